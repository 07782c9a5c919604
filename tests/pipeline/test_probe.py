"""The fit of a link, against links that are known."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.channel.control import MAX_ZEROS
from splitlearn.channel.link import MAX_PROBES
from splitlearn.pipeline.chain import Pipe
from splitlearn.pipeline.costs import Link
from splitlearn.pipeline.probe import ZEROS, fit_link, slowest


class Line:
    """A link that does what physics says. warm: how many times slower its first trains are."""

    def __init__(self, up: float, down: float, rtt_s: float, *, warm: int = 0) -> None:
        self.up, self.down, self.rtt_s, self.warm = up, down, rtt_s, warm
        self.longest = 0

    def __call__(self, sizes: Sequence[tuple[int, int]]) -> list[float]:
        self.longest = max(self.longest, len(sizes))
        slow = 4 if self.warm > 0 and len(sizes) > 1 else 1
        self.warm -= len(sizes) > 1
        there = back = 0.0
        times = []
        for up, down in sizes:
            there += 8 * up * slow / self.up
            back = max(back, there) + 8 * down * slow / self.down
            times.append(back + self.rtt_s)
        return times


rates = st.floats(1e5, 1e10)


@given(up=rates, down=rates, rtt_s=st.floats(0, 1))
def test_a_known_link_is_found(up: float, down: float, rtt_s: float) -> None:
    line = Line(up, down, rtt_s)
    link = fit_link(line)
    assert link.round_trip_s == pytest.approx(rtt_s)
    assert link.up.bits_per_s == pytest.approx(up, rel=1e-3)
    assert link.down.bits_per_s == pytest.approx(down, rel=1e-3)
    assert line.longest <= MAX_PROBES


def test_a_transport_that_opens_its_window_slowly_is_waited_for() -> None:
    link = fit_link(Line(1e7, 1e7, 0.1, warm=1))
    assert link.up.bits_per_s == pytest.approx(1e7, rel=1e-3)


def test_a_link_without_a_limit_has_none() -> None:
    link = fit_link(lambda sizes: [0.01] * len(sizes))
    assert (link.up.bits_per_s, link.down.bits_per_s) == (None, None)
    assert link.round_trip_s == pytest.approx(0.01)


def test_probes_are_as_large_as_the_channel_takes() -> None:
    assert ZEROS == MAX_ZEROS


def test_of_several_links_the_worst_of_each_way_is_planned_with() -> None:
    near = Link(Pipe(1e6, 0.1), Pipe(None, 0.1))
    far = Link(Pipe(None, 0.3), Pipe(None, 0.2))
    assert slowest([near, far]) == Link(Pipe(1e6, 0.3), Pipe(None, 0.2))
    assert slowest([near]) == near
