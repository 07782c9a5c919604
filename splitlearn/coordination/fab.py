"""The bundle that Flower ships to nodes (a FAB): two names, a licence, and no code.

Whoever runs a SuperLink decides what its SuperNodes run. Ours refuse every bundle but one that names
the two apps of the installed package and holds nothing besides; so no code crosses a federation.
"""

import hashlib
import io
import tomllib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from splitlearn.errors import PeerError

__all__ = ["MAX_FAB_BYTES", "Fab", "build_fab", "check_fab"]

# Ours is about 5 KiB, nearly all of it the licence; what `flwr build` makes of it is as short.
MAX_FAB_BYTES = 64 * 2**10
_MAX_ENTRY_BYTES = 64 * 2**10
_APP = Path(__file__).parent / "app"
_PROJECT = "pyproject.toml"
_LICENSE = "LICENSE"
_CONTENT = ".info/CONTENT"
# One moment for every build, so that the same files give the same bytes.
_MOMENT = (2024, 10, 1, 0, 0, 0)


@dataclass(frozen=True)
class Fab:
    """A bundle's bytes and their SHA-256 in hex, which Flower calls it by."""

    content: bytes
    digest: str


def build_fab() -> Fab:
    """The bundle of the installed package; the same bytes every time."""
    files = {name: (_APP / name).read_bytes() for name in (_PROJECT, _LICENSE)}
    lines = [
        f"{name},{hashlib.sha256(data).hexdigest()},{8 * len(data)}" for name, data in files.items()
    ]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (*files.items(), (_CONTENT, "\n".join(lines).encode())):
            archive.writestr(zipfile.ZipInfo(name, _MOMENT), data, zipfile.ZIP_DEFLATED)
    content = buffer.getvalue()
    return Fab(content=content, digest=hashlib.sha256(content).hexdigest())


def check_fab(content: bytes) -> None:
    """Raise PeerError unless a shipped bundle names our two apps and carries no code."""
    if len(content) > MAX_FAB_BYTES:
        raise PeerError(f"{_THEIRS} is {len(content)} bytes long; expected {MAX_FAB_BYTES} at most")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            if len(names) != len(set(names)) or not set(names) <= _ALLOWED:
                raise PeerError(f"{_THEIRS} holds other files than {', '.join(sorted(_ALLOWED))}")
            project = tomllib.loads(_entry(archive, _PROJECT).decode("utf-8"))
        tables = project["tool"]["flwr"]["app"]
        components, config = tables["components"], tables.get("config", {})
    except _UNREADABLE:
        raise PeerError(f"{_THEIRS} is not a bundle that Flower could read") from None
    if components != _ours() or set(config) - {"job", "processes"}:
        raise PeerError(f"{_THEIRS} names other apps or settings than those of splitlearn")


# What zipfile and tomllib raise for other bytes: damaged, encrypted, packed in a way it does not know.
_UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, RuntimeError, EOFError),
    *(KeyError, TypeError, AttributeError, ValueError),
)
_ALLOWED = frozenset({_PROJECT, _LICENSE, _CONTENT})
_THEIRS = "the app that the coordinator ships"


def _ours() -> object:
    project = tomllib.loads((_APP / _PROJECT).read_text(encoding="utf-8"))
    return project["tool"]["flwr"]["app"]["components"]


def _entry(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as entry:
        data = entry.read(_MAX_ENTRY_BYTES + 1)
    if len(data) > _MAX_ENTRY_BYTES:
        raise ValueError(name)
    return data
