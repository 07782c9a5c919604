import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from splitlearn.coordination.answering import answer
from splitlearn.coordination.local_grid import LocalGrid
from splitlearn.coordination.messages import content_of
from splitlearn.coordination.summon import GridSummon, Reply
from splitlearn.errors import ChannelError, RefusedError, WireError
from tests.coordination.test_messages import message


class Room:
    """A grid whose nodes work until they are let go, and a summon over it with a clock of ours."""

    def __init__(self) -> None:
        app = ClientApp()
        self.go: dict[str, threading.Event] = {}
        self.worked: list[tuple[str, bytes]] = []

        @app.query()
        def stream(message: Message, context: Context) -> Message:
            return answer(message, context, stream=self.work)

        self.grid = LocalGrid(app)
        self.now = 100.0
        self.summon = GridSummon(self.grid, clock=lambda: self.now)

    def work(self, settings: Path, descriptor: bytes, _processes: int) -> bytes:
        party = settings.name
        self.worked.append((party, descriptor))
        assert self.go[party].wait(20)
        if party == "refuser":
            raise RefusedError("not with us", rule="r")
        return descriptor + b" of " + party.encode()

    def join(self, party: str) -> int:
        self.go.setdefault(party, threading.Event())
        return self.grid.join(party, settings=Path(party))

    def replies(self, count: int) -> list[Reply]:
        """Poll until so many came."""
        found: list[Reply] = []
        for _ in range(4_000):
            found += self.summon.poll()
            if len(found) >= count:
                return found
            threading.Event().wait(0.005)
        raise AssertionError(found)

    def later(self) -> None:
        self.now += 5.0


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    for event in room.go.values():
        event.set()
    room.grid.close()


def test_a_round_reaches_everybody_who_is_there_and_their_answers_come_when_they_come(
    room: Room,
) -> None:
    anna, bert = room.join("anna"), room.join("bert")
    assert room.summon.nodes() == {anna: "anna", bert: "bert"}
    room.summon.open(b"one", 60)
    assert room.summon.poll() == []
    room.go["bert"].set()
    assert room.replies(1) == [Reply(node=bert, party="bert", report=b"one of bert")]
    room.go["anna"].set()
    assert room.replies(1) == [Reply(node=anna, party="anna", report=b"one of anna")]
    room.later()
    assert room.summon.poll() == []
    assert sorted(room.worked) == [("anna", b"one"), ("bert", b"one")]


def test_who_comes_later_gets_the_round_and_who_comes_back_gets_it_again(room: Room) -> None:
    room.join("anna")
    room.summon.open(b"one", 60)
    cara = room.join("cara")
    assert room.summon.poll() == []
    assert "cara" not in dict(room.worked)
    room.later()
    room.go["cara"].set()
    assert room.replies(1) == [Reply(node=cara, party="cara", report=b"one of cara")]
    # Anna's process dies in the middle of the round, and another one comes.
    room.grid.leave("anna")
    room.later()
    room.summon.poll()
    anna = room.join("anna")
    room.later()
    room.summon.poll()
    room.go["anna"].set()
    # Both of her threads answer; only what her present process says is hers.
    assert room.replies(1) == [Reply(node=anna, party="anna", report=b"one of anna")]
    room.later()
    assert room.summon.poll() == []
    assert [party for party, _ in room.worked].count("anna") == 2


def test_a_refusal_is_a_reply(room: Room) -> None:
    node = room.join("refuser")
    room.go["refuser"].set()
    room.summon.open(b"one", 60)
    assert room.replies(1) == [Reply(node=node, party="refuser", refusal="not with us")]


def test_a_new_round_and_a_closed_one_take_no_answers_of_the_old(room: Room) -> None:
    anna = room.join("anna")
    room.summon.open(b"one", 60)
    room.summon.open(b"two", 60)
    room.go["anna"].set()
    assert room.replies(1) == [Reply(node=anna, party="anna", report=b"two of anna")]
    room.summon.open(b"three", 60)
    room.summon.close()
    assert room.summon.poll() == []
    room.later()
    assert room.summon.poll() == []


def test_nobody_is_sent_a_round_that_is_over(room: Room) -> None:
    room.summon.open(b"one", 3)
    room.join("late")
    room.later()
    assert room.summon.poll() == []
    assert room.worked == []


def test_a_descriptor_that_is_too_long_opens_nothing(room: Room) -> None:
    room.join("anna")
    with pytest.raises(WireError, match="descriptor"):
        room.summon.open(bytes(2**15), 60)
    assert room.summon.poll() == []
    assert room.worked == []


def test_a_grid_that_is_away_is_an_error_of_the_network(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.join("anna")
    room.summon.open(b"one", 60)

    def away(*_: object) -> None:
        raise httpx.ConnectError("gone")

    monkeypatch.setattr(room.grid, "pull_messages", away)
    with pytest.raises(ChannelError, match="SuperLink cannot be asked"):
        room.summon.poll()
    monkeypatch.setattr(room.grid, "push_messages", away)
    with pytest.raises(ChannelError, match="SuperLink cannot be asked"):
        room.summon.open(b"two", 60)
    monkeypatch.setattr(room.grid, "get_nodes", away)
    with pytest.raises(ChannelError, match="SuperLink cannot be asked"):
        room.summon.nodes()


def test_what_could_not_be_sent_is_sent_at_the_next_look(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.join("anna")
    with monkeypatch.context() as patched:
        patched.setattr(room.grid, "push_messages", lambda messages: [None for _ in messages])
        room.summon.open(b"one", 60)
    room.go["anna"].set()
    room.later()
    assert [reply.report for reply in room.replies(1)] == [b"one of anna"]


def flower_says(room: Room, code: int) -> Callable[[list[str]], list[Message]]:
    """A pull that answers what waits with an error that Flower makes in a node's place."""

    def pull(numbers: list[str]) -> list[Message]:
        replies = []
        for number in numbers:
            reply = Message(Error(code=code, reason="by Flower"), reply_to=message(content_of(b"")))
            reply.metadata.__dict__["_reply_to_message_id"] = number
            replies.append(reply)
        return replies

    return pull


def test_a_node_that_goes_away_has_not_answered(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its line is back its answer counts, and when its process is another it is called again."""
    anna, bert = room.join("anna"), room.join("bert")
    room.summon.open(b"one", 60)
    with monkeypatch.context() as patched:
        pull = flower_says(room, ErrorCode.NODE_UNAVAILABLE)
        patched.setattr(room.grid, "pull_messages", pull)
        assert room.summon.poll() == []
    room.go["bert"].set()
    assert room.replies(1) == [Reply(node=bert, party="bert", report=b"one of bert")]
    room.join("anna")
    room.go["anna"].set()
    room.later()
    assert room.replies(1) == [Reply(node=anna, party="anna", report=b"one of anna")]
    assert [party for party, _ in room.worked].count("anna") == 2


def test_a_node_whose_app_was_killed_is_called_again_but_not_for_ever(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.join("anna")
    room.go["anna"].set()
    room.summon.open(b"one", 600)
    pull = flower_says(room, ErrorCode.CLIENT_APP_CRASHED)
    monkeypatch.setattr(room.grid, "pull_messages", pull)
    found: list[Reply] = []
    for _ in range(6):
        found += room.summon.poll()
        room.later()
    assert [reply.refusal for reply in found] == ["Flower says: by Flower"]
    for _ in range(4_000):
        if len(room.worked) == 3:
            break
        threading.Event().wait(0.005)
    assert len(room.worked) == 3
