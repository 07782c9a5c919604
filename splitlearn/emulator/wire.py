"""One direction of an emulated link: when do bytes that enter now come out at the other end?

Pure: a virtual clock, no I/O. Bytes are sent one after the other at a fixed rate and then travel for
a fixed time, so that a late wake-up of whoever asks delays one piece and never the next.
"""

import random

__all__ = ["Wire"]

# How far the sender may run ahead of the wire: a router's queue. Short, so that small messages of
# one connection do not wait long behind large ones of another.
_QUEUE_S = 0.05
# The largest piece, and the time that a piece takes on the wire where it is shorter than that.
_PIECE_BYTES = 64 * 2**10
_LEAST_PIECE_BYTES = 2 * 2**10
_PIECE_S = 0.005
# What an unlimited wire may hold.
_UNLIMITED_BYTES = 16 * 2**20


class Wire:
    """bits_per_s: None for no limit. delay_s: from one end to the other. jitter_s: added to it, a
    random part of it for each piece; order is kept. `carried` counts bytes that came out.

    >>> wire = Wire(bits_per_s=8e6, delay_s=0.01)
    >>> [round(wire.due_s(10_000, now_s=0.0), 6), round(wire.due_s(10_000, now_s=0.0), 6)]
    [0.02, 0.03]
    """

    def __init__(
        self,
        *,
        bits_per_s: float | None = None,
        delay_s: float = 0.0,
        jitter_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.bits_per_s, self.delay_s, self.jitter_s = bits_per_s, delay_s, jitter_s
        self.carried = 0
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._free_s = 0.0
        self._last_due_s = 0.0

    @property
    def piece_bytes(self) -> int:
        """How much to put on the wire at once."""
        if self.bits_per_s is None:
            return _PIECE_BYTES
        size = int(self.bits_per_s * _PIECE_S / 8)
        return min(max(size, _LEAST_PIECE_BYTES), _PIECE_BYTES)

    @property
    def room_bytes(self) -> int:
        """How much may be on its way, in the queue and on the wire."""
        if self.bits_per_s is None:
            return _UNLIMITED_BYTES
        return int(self.bits_per_s * (self.delay_s + self.jitter_s + _QUEUE_S) / 8) + _PIECE_BYTES

    def due_s(self, size: int, *, now_s: float) -> float:
        """When `size` bytes that enter now have come out at the other end."""
        takes_s = 8 * size / self.bits_per_s if self.bits_per_s else 0.0
        self._free_s = max(now_s, self._free_s) + takes_s
        jitter_s = self.jitter_s * self._random.random() if self.jitter_s else 0.0
        self._last_due_s = max(self._last_due_s, self._free_s + self.delay_s + jitter_s)
        return self._last_due_s

    def wait_s(self, *, now_s: float) -> float:
        """How long the sender has to wait before it may put more into the queue; 0 for not at all."""
        return max(0.0, self._free_s - now_s - _QUEUE_S)
