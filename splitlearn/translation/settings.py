"""What a translation model is made of and how it trains, with units. No torch."""

from dataclasses import dataclass

from splitlearn.errors import ManifestError

__all__ = ["DecoderShape", "EncoderShape", "Objective"]


@dataclass(frozen=True, kw_only=True)
class EncoderShape:
    """inner: numbers inside an adapter. trains: whether the adapters do, or stand still as identities."""

    inner: int = 512
    trains: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.inner <= 65_536:
            raise ManifestError(f"an adapter of {self.inner} numbers; expected 1 to 65536")


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """inner: numbers inside an adapter. reach: a target is at most so many pieces longer or shorter than
    its source; what differs by more is taken for that.
    """

    inner: int = 1024
    reach: int = 24

    def __post_init__(self) -> None:
        if not (1 <= self.inner <= 65_536 and 1 <= self.reach <= 512):
            raise ManifestError(
                f"a decoder of adapters of {self.inner} and a reach of {self.reach}; expected 1 to 65536 "
                "and 1 to 512"
            )


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Weights of what is minimised. smoothing: of the labels. length: of the length's loss."""

    smoothing: float = 0.1
    length: float = 0.1

    def __post_init__(self) -> None:
        if not (0 <= self.smoothing < 1 and self.length >= 0):
            raise ManifestError(
                f"a smoothing of {self.smoothing} and a length weight of {self.length}; expected 0 to 1, "
                "and at least 0"
            )
