"""A loop in a thread: calls reach it, its closing is bounded, nothing stays behind."""

import asyncio
import os
import threading
from collections.abc import Callable

import pytest

from splitlearn.channel.loop import LoopThread
from splitlearn.errors import ChannelError


async def give(value: int) -> int:
    return value


async def stay() -> None:
    await asyncio.Event().wait()


async def fall() -> None:
    raise KeyError("nobody foresaw this")


def test_a_coroutine_runs_there_and_its_result_comes_back() -> None:
    loop = LoopThread("test")
    assert loop.run(give(7), timeout_s=5) == 7
    loop.close()


def test_waiting_too_long_is_a_channel_error_and_cancels() -> None:
    loop = LoopThread("test")
    with pytest.raises(ChannelError, match=r"within 0\.01 s"):
        loop.run(stay(), timeout_s=0.01)
    loop.close()


def test_closing_cancels_what_runs_and_tells_who_waits() -> None:
    loop = LoopThread("test")
    told: list[ChannelError] = []
    began = threading.Event()

    async def begin() -> None:
        began.set()
        await stay()

    def wait() -> None:
        try:
            loop.run(begin(), timeout_s=20)
        except ChannelError as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    began.wait()
    loop.close()
    waiting.join()
    assert "closed meanwhile" in str(told[0])


def test_a_closed_loop_refuses_work_and_ignores_calls() -> None:
    loop = LoopThread("test")
    loop.close()
    loop.close()
    loop.soon(lambda: None)
    with pytest.raises(ChannelError, match="closed"):
        loop.run(give(1), timeout_s=1)
    with pytest.raises(ChannelError, match="closed"):
        loop.start(stay(), on_failure=lambda _: None)


def test_a_failure_in_the_background_is_told_to_whoever_started_it() -> None:
    loop = LoopThread("test")
    told: list[BaseException] = []
    done = threading.Event()

    def failed(error: BaseException) -> None:
        told.append(error)
        done.set()

    loop.start(fall(), on_failure=failed)
    assert done.wait(5)
    loop.start(stay(), on_failure=told.append)
    loop.close()
    assert [type(error) for error in told] == [KeyError]


GRPCS = "src/python/grpcio/grpc/_cython/_cygrpc/aio/completion_queue.pyx.pxi"


def closed_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.close()
    return loop


def read_by_grpc() -> None:
    """Fails where gRPC's poller does when another thread closes its sockets under it."""
    exec(compile("import os\nos.read(9999, 1)", GRPCS, "exec"), {})


def read_by_us() -> None:
    os.read(9999, 1)


def handed_on_by_grpc() -> None:
    """Fails where gRPC's poller does when what it has is for a loop that has ended."""
    exec(compile("loop.call_soon_threadsafe(print)", GRPCS, "exec"), {"loop": closed_loop()})


def handed_on_by_us() -> None:
    closed_loop().call_soon_threadsafe(print)


@pytest.mark.parametrize(
    ("what", "sentence", "told"),
    [
        (read_by_grpc, "Bad file descriptor", False),
        (read_by_us, "Bad file descriptor", True),
        (handed_on_by_grpc, "Event loop is closed", False),
        (handed_on_by_us, "Event loop is closed", True),
    ],
)
def test_what_falls_unseen_is_told_unless_it_is_grpcs_own_goodbye(
    caplog: pytest.LogCaptureFixture, what: Callable[[], None], sentence: str, told: bool
) -> None:
    loop = LoopThread("test")
    loop.soon(what)
    assert loop.run(give(7), timeout_s=5) == 7
    loop.close()
    assert (sentence in caplog.text) is told
