"""Which step all go on from; whole conversations stand in test_trusted.py and tests/exactness."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from splitlearn.engine.events import Event, SentWeights
from splitlearn.engine.trusted.agreement import agree, in_turns
from splitlearn.engine.trusted.line import Line
from splitlearn.errors import SessionError
from splitlearn.wire.messages import Accept, Hops, Neighbour


@dataclass
class Said:
    """What a line is asked, in order; `held` are the peer's checkpoints, `parts` the weights it wants."""

    name: str
    held: tuple[int, ...]
    parts: int = 0
    words: list[object] = field(default_factory=list)
    hops: Hops | None = None
    told: list[Hops | None] = field(default_factory=list)

    def begin(self, mine: Sequence[int], *, hops: Hops | None) -> None:
        self.words.append(("begin", tuple(mine)))
        self.told.append(hops)

    def accepted(self) -> Accept:
        return Accept(held=self.held, needs=(), witnessed=0)

    def send_weights(self, _: Accept) -> Iterator[tuple[int, int]]:
        yield from ((number, self.parts) for number in range(self.parts))

    def resume(self, step: int) -> None:
        self.words.append(("resume", step))


def agreed(*peers: Said, mine: Sequence[int], trains: bool = True) -> tuple[int, list[Event]]:
    told: list[Event] = []
    lines = cast(Sequence[Line], peers)
    return agree(lines, mine, trains=trains, observe=told.append), told


def test_all_go_on_from_the_newest_step_that_all_hold() -> None:
    farm, host = Said("farm", (2, 4, 6), parts=2), Said("host", (2, 4), parts=1)
    step, told = agreed(farm, host, mine=(0, 2, 4, 6))
    assert step == 4
    assert farm.words == host.words == [("begin", (0, 2, 4, 6)), ("resume", 4)]
    assert told == [SentWeights(0, 2), SentWeights(0, 1), SentWeights(1, 2)]


def test_neighbours_are_told_of_one_bridge_that_was_never_there_before() -> None:
    def neighbour(name: str, salt: str) -> Neighbour:
        return Neighbour(name, "0" * 32, salt * 64)

    first = Said("a", (), hops=Hops(None, neighbour("b", "1")))
    middle = Said("b", (), hops=Hops(neighbour("a", "1"), neighbour("c", "2")))
    last = Said("c", (), hops=Hops(neighbour("b", "2"), None))
    bridges = []
    for _ in range(2):
        agreed(first, middle, last, mine=(0,))
        one, two, three = (said.told[-1] for said in (first, middle, last))
        assert one is not None and two is not None and three is not None  # noqa: PT018
        assert one.before is None and three.after is None  # noqa: PT018
        assert one.after is not None and two.after is not None  # noqa: PT018
        assert two.before == Neighbour("a", one.after.bridge, "1" * 64)
        assert three.before == Neighbour("b", two.after.bridge, "2" * 64)
        bridges += [one.after.bridge, two.after.bridge]
    assert len({*bridges, "0" * 32}) == 5


def test_a_run_that_trains_may_begin_anew_and_no_other() -> None:
    assert agreed(Said("farm", (4,)), mine=(0, 2))[0] == 0
    with pytest.raises(SessionError, match="farm holds no checkpoint"):
        agreed(Said("farm", (4,)), mine=(0, 2), trains=False)


def test_two_peers_without_a_step_in_common_are_told_apart() -> None:
    with pytest.raises(
        SessionError, match=r"held by all \(ours are \(2, 4\); farm \(2,\), host \(4"
    ):
        agreed(Said("farm", (2,)), Said("host", (4,)), mine=(2, 4))


def test_nobody_waits_for_anothers_end() -> None:
    order: list[str] = []

    def work(name: str, pieces: int) -> Iterator[None]:
        for _ in range(pieces):
            order.append(name)
            yield

    in_turns([work("a", 3), work("b", 1), work("c", 2)])
    assert "".join(order) == "abcaca"
