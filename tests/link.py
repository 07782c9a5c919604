"""The library's emulated link in a thread of its own, for tests: counts, cuts, stalls and corrupts."""

import contextlib
from types import TracebackType

from splitlearn.channel.loop import LoopThread
from splitlearn.emulator import Relay, Wire

__all__ = ["LinkProxy"]

_START_S = 5.0


class LinkProxy:
    """Listens on `port` and carries every connection to `target`. A context manager.

    >>> proxy = LinkProxy(("127.0.0.1", 9), bits_per_s=100e6, delay_s=0.01)
    >>> proxy.close()
    """

    def __init__(
        self, target: tuple[str, int], *, bits_per_s: float | None = None, delay_s: float = 0.0
    ) -> None:
        self.up = Wire(bits_per_s=bits_per_s, delay_s=delay_s)
        self.down = Wire(bits_per_s=bits_per_s, delay_s=delay_s)
        self._loop = LoopThread("link proxy")
        self.port = self._loop.run(self._start(target), timeout_s=_START_S)

    async def _start(self, target: tuple[str, int]) -> int:
        self._relay = Relay(target, up=self.up, down=self.down)
        return await self._relay.start()

    @property
    def address(self) -> str:
        """What a dialler dials."""
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        return self._relay.connections

    @property
    def is_cut(self) -> bool:
        return self._relay.is_cut

    def cut(self) -> None:
        """See `Relay`, as the others."""
        self._now("cut")

    def cut_after(self, size: int) -> None:
        self._relay.cut_after(size)

    def stall(self) -> None:
        self._now("stall")

    def heal(self) -> None:
        self._now("heal")

    def retarget(self, target: tuple[str, int]) -> None:
        self._relay.retarget(target)

    def corrupt_up(self) -> None:
        self._relay.flip()

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(Exception):
            self._loop.run(self._relay.stop(), timeout_s=_START_S)
        self._loop.close()

    def _now(self, what: str) -> None:
        async def do() -> None:
            getattr(self._relay, what)()

        self._loop.run(do(), timeout_s=_START_S)

    def __enter__(self) -> "LinkProxy":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
