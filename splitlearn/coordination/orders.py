"""What a node's process is told to do, and what it leaves behind: two small files in the node's folder."""

from pathlib import Path
from typing import Annotated

import msgspec

from splitlearn.errors import ManifestError
from splitlearn.identity import files

__all__ = ["Ending", "Orders", "read_ending", "read_orders", "write_ending", "write_orders"]

_MAX_BYTES = 16 * 2**10


class Orders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Paths are absolute. address: the coordinator's "host:port". party: who alone may answer there.

    settings: what the ClientApp reads; processes: in place of what it says there, 0 for none. ending:
    where the process notes why it ends.
    """

    identity: Path
    address: str
    party: str | None
    settings: Path
    ending: Path
    processes: int = 0


class Ending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a node ended. final: whether starting it again would be of no use."""

    sentence: Annotated[str, msgspec.Meta(max_length=2_000)]
    final: bool


def write_orders(path: Path, orders: Orders) -> None:
    """Raises ManifestError."""
    files.write(path, msgspec.json.encode(orders, enc_hook=str))


def read_orders(path: Path) -> Orders:
    """Raises ManifestError."""
    try:
        return msgspec.json.decode(
            files.read(path, limit_bytes=_MAX_BYTES),
            type=Orders,
            dec_hook=lambda _, text: Path(text),
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} is not one of ours: {error}") from None


def write_ending(path: Path, ending: Ending) -> None:
    """Raises ManifestError."""
    shorter = msgspec.structs.replace(ending, sentence=ending.sentence[:2_000])
    files.write(path, msgspec.json.encode(shorter))


def read_ending(path: Path) -> Ending | None:
    """What a process left, once: the file is gone afterwards. None where it left nothing."""
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(files.read(path, limit_bytes=_MAX_BYTES), type=Ending)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    finally:
        path.unlink(missing_ok=True)
