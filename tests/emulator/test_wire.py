"""The virtual clock of one direction against what physics says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.emulator.wire import Wire

sizes = st.lists(st.integers(1, 10**6), min_size=1, max_size=30)
gaps = st.lists(st.floats(0, 1), min_size=30, max_size=30)


@given(sizes=sizes, rate=st.floats(1e4, 1e10), delay=st.floats(0, 1))
def test_a_burst_takes_its_bytes_over_the_rate_and_one_delay(
    sizes: list[int], rate: float, delay: float
) -> None:
    wire = Wire(bits_per_s=rate, delay_s=delay)
    due = [wire.due_s(size, now_s=0.0) for size in sizes]
    assert due[-1] == pytest.approx(8 * sum(sizes) / rate + delay)
    assert due == sorted(due)


@given(sizes=sizes, gaps=gaps, rate=st.floats(1e4, 1e10))
def test_nothing_arrives_before_its_delay_nor_faster_than_the_rate(
    sizes: list[int], gaps: list[float], rate: float
) -> None:
    wire = Wire(bits_per_s=rate, delay_s=0.1)
    now, free = 0.0, 0.0
    for size, gap in zip(sizes, gaps, strict=False):
        now += gap
        free = max(now, free) + 8 * size / rate
        assert wire.due_s(size, now_s=now) == pytest.approx(free + 0.1)


@given(sizes=sizes, seed=st.integers(0, 100))
def test_jitter_keeps_the_order_and_stays_within_its_bound(sizes: list[int], seed: int) -> None:
    wire = Wire(bits_per_s=1e9, delay_s=0.01, jitter_s=0.02, seed=seed)
    last = 0.0
    for place, size in enumerate(sizes):
        now = 0.1 * place
        due = wire.due_s(size, now_s=now)
        least = now + 8 * size / 1e9 + 0.01
        assert least <= due <= least + 0.02 + 1e-9
        assert due >= last
        last = due


def test_an_unlimited_wire_only_delays() -> None:
    wire = Wire(delay_s=0.5)
    assert wire.due_s(10**9, now_s=1.0) == 1.5
    assert wire.wait_s(now_s=1.0) == 0.0


def test_the_sender_waits_while_the_queue_is_long() -> None:
    wire = Wire(bits_per_s=8e6)
    assert wire.wait_s(now_s=0.0) == 0.0
    wire.due_s(1_000_000, now_s=0.0)
    assert wire.wait_s(now_s=0.0) == pytest.approx(0.95)
    assert wire.wait_s(now_s=0.96) == 0.0


@pytest.mark.parametrize(
    ("rate", "piece"), [(None, 2**16), (1e4, 2**11), (80e6, 50_000), (1e10, 2**16)]
)
def test_pieces_are_small_where_the_wire_is_slow(rate: float | None, piece: int) -> None:
    wire = Wire(bits_per_s=rate)
    assert wire.piece_bytes == piece
    assert wire.room_bytes > piece
