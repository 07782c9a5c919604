"""Errands beside the engine's thread: in order, bounded, and no failure goes unheard."""

import threading

import pytest

from splitlearn.engine.conversation.courier import Courier


@pytest.fixture
def courier() -> Courier:
    return Courier("courier to nobody")


def test_errands_are_done_in_order_in_another_thread(courier: Courier) -> None:
    done: list[tuple[int, int]] = []
    for i in range(20):
        courier.put(lambda i=i: done.append((i, threading.get_ident())))
    courier.flush()
    assert [i for i, _ in done] == list(range(20))
    assert {thread for _, thread in done} == {courier._thread.ident}  # type: ignore[union-attr]
    courier.close()


def test_nothing_is_done_after_one_that_failed_and_every_word_says_why(courier: Courier) -> None:
    done: list[int] = []
    gate = threading.Event()

    def fail() -> None:
        gate.wait(5)
        raise ValueError("no room")

    courier.put(fail)
    courier.put(lambda: done.append(1))
    gate.set()
    for _ in range(2):
        with pytest.raises(ValueError, match="no room"):
            courier.flush()
    with pytest.raises(ValueError, match="no room"):
        courier.put(lambda: done.append(2))
    with pytest.raises(ValueError, match="no room"):
        courier.check()
    courier.close()
    assert not done


def test_whoever_asks_too_much_waits(courier: Courier) -> None:
    gate = threading.Event()
    began: list[int] = []

    def errand() -> None:
        began.append(1)
        gate.wait(5)

    asked = 0

    def ask() -> None:
        nonlocal asked
        for _ in range(40):
            courier.put(errand)
            asked += 1

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert asked < 10
    gate.set()
    thread.join(5)
    courier.flush()
    assert len(began) == 40
    courier.close()


def test_a_close_begins_nothing_more_and_the_thread_ends(courier: Courier) -> None:
    done: list[int] = []
    gate, inside = threading.Event(), threading.Event()

    def errand() -> None:
        inside.set()
        gate.wait(5)

    courier.put(errand)
    courier.put(lambda: done.append(1))
    inside.wait(5)
    closing = threading.Thread(target=courier.close)
    closing.start()
    while not courier._closed:
        threading.Event().wait(0.001)
    gate.set()
    closing.join(5)
    courier.close()
    courier.flush()
    with pytest.raises(RuntimeError, match="after its end"):
        courier.put(lambda: done.append(2))
    assert not done
    assert not courier._thread.is_alive()  # type: ignore[union-attr]


def test_one_that_never_worked_is_closed_at_once(courier: Courier) -> None:
    courier.flush()
    courier.close()
    assert courier._thread is None
