"""A copy of a log for an outsider: what is needed to check it, and nothing that opens a sealed frame.

An allow-list of names: the lines, the heads, the peers' heads, the verifier keys. Sealed frames only
when asked for, and the key that opens them only when asked for that too. Never follows a link, never
changes a byte of what it copies.
"""

import csv
import io
import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

import msgspec

from splitlearn.audit.records import decode
from splitlearn.errors import AuditError, ManifestError

__all__ = ["COLUMNS", "Contents", "Table", "export"]

Table: TypeAlias = Literal["csv", "jsonl"]

# Columns of the flat table. What a record has not is empty.
COLUMNS = (
    "seq",
    "time",
    "type",
    "run",
    "direction",
    "peer",
    "kind",
    "message",
    "step",
    "micro_batch",
    "codec",
    "rows",
    "columns",
    "examples",
    "longest",
    "wire_bytes",
    "commit",
    "rule",
    "blob",
    "policy",
    "conversation",
    "outcome",
)


@dataclass(frozen=True)
class Contents:
    """What a copy holds besides the evidence. The run key opens every sealed frame that is not
    redacted; with it, whoever gets the copy reads them."""

    blobs: bool = False
    run_key: bool = False
    table: Table | None = None


def export(folder: Path, to: Path, *, contents: Contents) -> tuple[str, ...]:
    """Copy the log in `folder` to `to`: a tar archive where it ends in .tar, a new folder otherwise.

    The same log gives the same archive, to the byte. A log that is being written is copied as it
    is: each head in the copy has its records. Returns the names in the copy.

    Raises ManifestError: nothing to copy, `to` exists, or the disk says no.
    """
    if contents.run_key and not contents.blobs:
        raise ManifestError("--with-run-key is of no use without --with-blobs; give both or none")
    if to.exists() or to.is_symlink():
        raise ManifestError(f"{to} exists; choose another name, or remove it first")
    try:
        # Heads before lines: a head that is signed meanwhile would count lines that are not copied.
        sources = list(_sources(folder, contents=contents))
        if not any(_LINES.fullmatch(source.name) for source in sources):
            raise ManifestError(f"there is no log in {folder}; give the folder that holds log/")
        with tempfile.TemporaryDirectory(prefix="splitlearn-export-") as scratch:
            if contents.table is not None:
                drawn = Path(scratch) / "table"
                sources.append(_write_table(drawn, sources, table=contents.table))
            sources.sort(key=lambda source: source.name)
            (_write_tar if to.suffix == ".tar" else _write_folder)(to, sources)
        return tuple(source.name for source in sources)
    except OSError as error:
        raise ManifestError(f"{folder} cannot be copied to {to}: {error.strerror}") from error


# Names of the parts of a log folder in the order in which they are looked at, and whether a file of
# them is small and may be replaced, so that it is read at once.
_HEADS = re.compile(r"checkpoints/\d{1,16}\.note")
_PEERS = re.compile(r"peers/[\w.-]{1,255}/(\d{1,16}(\.refused)?\.note|verifier\.key)")
_KEY = re.compile(r"verifier\.key")
_LINES = re.compile(r"log/\d{6,9}\.jsonl")
_BLOBS = re.compile(r"blobs/[0-9a-f]{64}\.(sealed|key)")
_RUN_KEY = re.compile(r"blobs\.key")
_SMALL = {_HEADS, _PEERS, _KEY, _RUN_KEY}
# Bytes of a small file; a note has at most 16 KiB.
_SMALL_BYTES = 64 * 1024
_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class _Source:
    """A file as it was when it was looked at: small ones whole, others by their length."""

    name: str
    path: Path
    size: int
    data: bytes | None = None

    def chunks(self) -> Iterator[bytes]:
        """Its bytes. Raises ManifestError where it has become shorter."""
        if self.data is not None:
            yield self.data
            return
        left = self.size
        with _open(self.path) as file:
            while left:
                chunk = file.read(min(left, _CHUNK_BYTES))
                if not chunk:
                    raise ManifestError(f"{self.path} became shorter while it was copied")
                left -= len(chunk)
                yield chunk


def _sources(folder: Path, *, contents: Contents) -> Iterator[_Source]:
    patterns = [_HEADS, _PEERS, _KEY, _LINES]
    patterns += [_BLOBS] if contents.blobs else []
    patterns += [_RUN_KEY] if contents.run_key else []
    for pattern in patterns:
        wild = "/".join("*" for _ in pattern.pattern.split("/"))
        paths = {path.relative_to(folder).as_posix(): path for path in folder.glob(wild)}
        for name in sorted(paths):
            if pattern.fullmatch(name):
                yield _source(name, paths[name], small=pattern in _SMALL)


def _source(name: str, path: Path, *, small: bool) -> _Source:
    with _open(path) as file:
        if not small:
            return _Source(name, path, os.fstat(file.fileno()).st_size)
        data = file.read(_SMALL_BYTES + 1)
    if len(data) > _SMALL_BYTES:
        raise ManifestError(f"{path} is longer than {_SMALL_BYTES} bytes: not a file of ours")
    return _Source(name, path, len(data), data)


def _open(path: Path) -> IO[bytes]:
    """Open an ordinary file and nothing else. Raises ManifestError, OSError for a link."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ManifestError(f"{path} is not an ordinary file; a log has no other")
    return file


def _write_tar(to: Path, sources: Sequence[_Source]) -> None:
    draft = to.with_name(f".{to.name}.draft")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with (
            os.fdopen(os.open(draft, flags, 0o600), "wb") as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for source in sources:
                # Neither owner nor time: two copies of one log are the same archive.
                entry = tarfile.TarInfo(source.name)
                entry.size, entry.mode = source.size, 0o644
                archive.addfile(entry, io.BufferedReader(_Chunks(source.chunks())))
        draft.replace(to)
    finally:
        draft.unlink(missing_ok=True)


def _write_folder(to: Path, sources: Sequence[_Source]) -> None:
    to.mkdir(mode=0o700)
    for source in sources:
        path = to / source.name
        for above in [*reversed(Path(source.name).parents)][1:]:
            (to / above).mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.writelines(source.chunks())


class _Chunks(io.RawIOBase):
    """An iterator of bytes as a file that tarfile reads."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or next(self._chunks, b"")
        taken = min(len(buffer), len(self._rest))
        buffer[:taken] = self._rest[:taken]
        self._rest = self._rest[taken:]
        return taken


def _write_table(path: Path, sources: Sequence[_Source], *, table: Table) -> _Source:
    with path.open("w", encoding="utf-8", newline="") as file:
        if table == "csv":
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for row in _rows(sources):
                writer.writerow([_harmless(row.get(name)) for name in COLUMNS])
        else:
            for row in _rows(sources):
                flat = {name: row[name] for name in COLUMNS if row.get(name) is not None}
                file.write(msgspec.json.encode(flat).decode() + "\n")
    return _Source(f"records.{table}", path, path.stat().st_size)


def _rows(sources: Sequence[_Source]) -> Iterator[dict[str, object]]:
    """One flat row a record; a line that is no record has its number and nothing else."""
    for index, line in enumerate(_lines(sources)):
        try:
            record = decode(line)
        except AuditError:
            yield {"seq": index, "type": "unreadable"}
            continue
        row: dict[str, object] = msgspec.to_builtins(record)
        rules = row.get("rules")
        if isinstance(rules, Sequence):
            row["rule"] = " ".join(map(str, rules))
        peer = row.get("peer")
        if isinstance(peer, dict):
            row["peer"] = peer.get("id")
        yield row


def _lines(sources: Sequence[_Source]) -> Iterator[bytes]:
    """The whole lines among the bytes that are copied."""
    for source in sources:
        if not _LINES.fullmatch(source.name):
            continue
        rest = b""
        for chunk in source.chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines


def _harmless(value: object) -> object:
    """No text from a log is a formula to the spreadsheet that opens the table."""
    if isinstance(value, str) and value[:1] in _FORMULA:
        return f"'{value}"
    return "" if value is None else value


_FORMULA = frozenset("=+-@\t\r\n")
