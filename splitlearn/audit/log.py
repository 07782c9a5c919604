"""The log that a party writes about itself: append-only lines, a Merkle tree over them, signed heads.

On disk, all of it closed to other users:
    log/000000.jsonl     the truth: one record a line, RECORDS_PER_SEGMENT lines a file
    checkpoints/N.note   signed head of the first N records, with the peer's countersignature
    peers/               heads of the peer's log, see audit/witness.py
    verifier.key         public half of the key that signs the heads
A record has reached the operating system when `append` returns, and the disk when `checkpoint` does.
Never changes or drops a whole line. Once a write has failed the log is dead: nothing can be appended,
so nothing can be sent.
"""

import fcntl
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal, NoReturn

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitlearn.audit.checkpoint import Checkpoint, format_verifier_key
from splitlearn.audit.merkle import Tree
from splitlearn.audit.records import (
    Checkpointed,
    Gap,
    Payload,
    Record,
    RunOpen,
    decode,
    encode,
)
from splitlearn.errors import AuditError
from splitlearn.identity import files

__all__ = [
    "CHECKPOINTS",
    "CHECKPOINT_RECORDS",
    "CHECKPOINT_S",
    "RECORDS_PER_SEGMENT",
    "SEGMENTS",
    "VERIFIER_KEY",
    "Log",
    "read_heads",
    "read_lines",
]

SEGMENTS = "log"
CHECKPOINTS = "checkpoints"
VERIFIER_KEY = "verifier.key"
# A head is signed at the latest after this many records or seconds, whichever comes first: what a
# party could still rewrite alone is never more.
CHECKPOINT_RECORDS = 256
CHECKPOINT_S = 10.0
# About 50 MB a file, which any editor and any mail still takes when compressed.
RECORDS_PER_SEGMENT = 65_536


class Log:
    """An open log. Appending is safe from several threads; a second process is refused."""

    def __init__(
        self, folder: Path, *, origin: str, signer: Ed25519PrivateKey, clock: Callable[[], float]
    ) -> None:
        """Use `Log.open`."""
        self.folder = folder
        self.origin = origin
        self.verifier_key = format_verifier_key(
            origin, public_key=signer.public_key().public_bytes_raw()
        )
        self.signer = signer
        self._clock = clock
        self._guard = threading.RLock()
        self._tree = Tree()
        self._spent: Counter[tuple[str, str]] = Counter()
        self._policies: dict[str, str] = {}
        self._head = Checkpoint(origin=origin, size=0, root=self._tree.root())
        self._head_at = clock()
        self._closed_cleanly = False
        self._dead: str | None = None
        self._lock = -1
        self._segment = -1
        self._segment_bytes = 0

    @classmethod
    def open(
        cls, folder: Path, *, origin: str, signer: Ed25519PrivateKey, clock: Callable[[], float]
    ) -> "Log":
        """Begin a log in `folder`, or go on with the one that is there.

        An existing log is read and held against its own heads first. A line that a crash left
        unfinished is dropped, and a log that was not closed gets a `gap` record. `origin` names the
        log in its heads: no spaces, no plus. `clock` gives seconds since 1970.

        Raises AuditError: folder not writable, in use, or what lies there does not add up.
        """
        log = cls(folder, origin=origin, signer=signer, clock=clock)
        try:
            log._start()
        except BaseException:
            log._release()
            raise
        return log

    @property
    def size(self) -> int:
        """Records so far."""
        return self._tree.size

    def spent(self, run: str) -> dict[str, int]:
        """Bytes of whole frames that each policy rule let through in `run`, over all restarts."""
        return {rule: count for (name, rule), count in self._spent.items() if name == run}

    def policy_of(self, run: str) -> str | None:
        """Digest of the policy that the newest conversation of `run` went by; None for no such run."""
        return self._policies.get(run)

    def prove(self, size: int, *, since: int) -> tuple[bytes, ...]:
        """Proof that the head of `size` records extends that of `since`; empty for since 0."""
        with self._guard:
            assert size == self._tree.size, "heads are proved as they are signed"
            return self._tree.consistency(since) if since else ()

    def append(self, record: Record) -> int:
        """Write `record` with its index and time filled in; its index. On return the system has it.

        Raises AuditError if it cannot be written; the log is dead from then on.
        """
        with self._guard:
            seq = self._write(record)
            since_s = self._clock() - self._head_at
            if seq + 1 - self._head.size >= CHECKPOINT_RECORDS:
                self.checkpoint(why="records")
            elif not 0 <= since_s < CHECKPOINT_S:  # a clock that was set back counts as time passed
                self.checkpoint(why="interval")
            return seq

    def checkpoint(
        self, *, why: Literal["close", "interval", "records", "step"] = "step"
    ) -> Checkpoint:
        """Sign the head, everything up to it safe on the disk. Nothing new: the last head again.

        Raises AuditError as `append` does.
        """
        with self._guard:
            news = self._tree.size > self._head.size
            closing = why == "close" and bool(self._tree.size) and not self._closed_cleanly
            if self._dead is not None or news or closing:
                self._write(Checkpointed(why=why, root=self._tree.root().hex()))
                head = Checkpoint(origin=self.origin, size=self._tree.size, root=self._tree.root())
                try:
                    os.fsync(self._segment)
                    files.replace(
                        self.folder / CHECKPOINTS / f"{head.size}.note",
                        head.sign(self.signer).encode(),
                    )
                except OSError as error:
                    self._die(error)
                self._head, self._head_at = head, self._clock()
            return self._head

    def keep_head(self, size: int, note: str) -> None:
        """Replace the note of a signed head by one with a further signature. Raises AuditError."""
        try:
            files.replace(self.folder / CHECKPOINTS / f"{size}.note", note.encode())
        except OSError as error:
            raise AuditError(
                f"a countersigned head cannot be kept in {self.folder}: {error.strerror}; "
                "make room there"
            ) from error

    def close(self) -> None:
        """Sign the last head and let go of the files. May be called twice, and on a dead log."""
        with self._guard:
            if self._lock < 0:
                return
            try:
                if self._dead is None and not self._closed_cleanly:
                    self.checkpoint(why="close")
            finally:
                self._dead = self._dead or "it was closed"
                self._release()

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Everything below runs under the guard, or before anybody else holds the log.

    def _write(self, record: Record) -> int:
        if self._dead is not None:
            raise AuditError(f"log {self.folder} takes no more records: {self._dead}")
        seq = self._tree.size
        line = encode(msgspec.structs.replace(record, seq=seq, time=round(self._clock(), 3)))
        try:
            if seq % RECORDS_PER_SEGMENT == 0 and seq:
                self._open_segment(seq // RECORDS_PER_SEGMENT)
            left = line
            while left:  # a disk that takes half a line gives its reason at the second half
                left = left[os.write(self._segment, left) :]
            self._segment_bytes += len(line)
            self._take(line[:-1], record)
        except OSError as error:
            self._die(error)
        except BaseException:
            # Ctrl-C: the line may stand in the file and not be counted, so none may follow it.
            self._dead = "it was interrupted in the middle of a record"
            raise
        return seq

    def _take(self, line: bytes, record: Record) -> None:
        """Count a line that is in the file."""
        self._tree.append(line)
        self._closed_cleanly = isinstance(record, Checkpointed) and record.why == "close"
        if isinstance(record, Payload):
            for rule in record.rules:
                self._spent[record.run, rule] += record.wire_bytes
        elif isinstance(record, RunOpen):
            self._policies[record.run] = record.policy

    def _die(self, error: OSError) -> NoReturn:
        self._dead = f"{error.strerror}"
        try:  # leave no half line behind, if the disk still does that much
            os.ftruncate(self._segment, self._segment_bytes)
        except OSError:
            self._dead += "; the last line may be unfinished"
        raise AuditError(
            f"log {self.folder} cannot be written ({self._dead}); nothing is sent without a record: "
            "make room or choose another folder, then start again"
        ) from error

    def _start(self) -> None:
        try:
            for folder in (self.folder, self.folder / SEGMENTS, self.folder / CHECKPOINTS):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            self._lock = os.open(self.folder / ".lock", flags, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AuditError(
                f"log {self.folder} is being written by another process; "
                "one log belongs to one party at a time"
            ) from None
        except OSError as error:
            raise AuditError(
                f"log folder {self.folder} cannot be written ({error.strerror}); "
                "nothing is sent without a record: choose a folder that this user may write to"
            ) from error
        self._check_key()
        torn = self._replay()
        if torn or (self._tree.size and not self._closed_cleanly):
            self._write(Gap(torn_bytes=torn))

    def _check_key(self) -> None:
        path = self.folder / VERIFIER_KEY
        try:
            if not path.exists():
                files.replace(path, f"{self.verifier_key}\n".encode())
            held = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise AuditError(f"{path} cannot be written and read back: {error}") from error
        if held != self.verifier_key:
            raise AuditError(
                f"log {self.folder} belongs to {held[:100]!r} and not to {self.origin!r} with its "
                "present key; choose another folder"
            )

    def _replay(self) -> int:
        """Read what is there, judge it by its heads, open the last segment. Bytes torn off its end."""
        heads = {
            size: Checkpoint.open(
                note,
                origin=self.origin,
                public_key=self.signer.public_key().public_bytes_raw(),
            )
            for size, note in read_heads(self.folder)
        }
        torn = 0
        for line, whole in read_lines(self.folder):
            if torn:
                raise AuditError(
                    f"log {self.folder}: line {self._tree.size} breaks off in the middle"
                )
            if not whole:
                torn = len(line)
                continue
            self._take(line, self._read(line))
            self._check_head(heads.pop(self._tree.size, None))
        if heads:
            raise AuditError(
                f"log {self.folder} has {self._tree.size} records but a signed head of "
                f"{max(heads)}; records were dropped from its end"
            )
        last = self._tree.size if torn else max(0, self._tree.size - 1)
        self._open_segment(last // RECORDS_PER_SEGMENT)
        try:
            self._segment_bytes -= torn
            os.ftruncate(self._segment, self._segment_bytes)
        except OSError as error:
            self._die(error)
        return torn

    def _read(self, line: bytes) -> Record:
        place = f"log {self.folder}, line {self._tree.size}"
        try:
            record = decode(line)
        except AuditError as error:
            raise AuditError(f"{place}: {error}") from None
        if record.seq != self._tree.size:
            raise AuditError(
                f"{place} says it is record {record.seq}; lines were added, dropped or swapped"
            )
        return record

    def _check_head(self, head: Checkpoint | None) -> None:
        if head is None:
            return
        if (head.size, head.root) != (self._tree.size, self._tree.root()):
            raise AuditError(
                f"log {self.folder} is not what its signed head of {head.size} records says; "
                "a record was changed"
            )
        self._head = head

    def _open_segment(self, number: int) -> None:
        path = self.folder / SEGMENTS / f"{number:06}.jsonl"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        try:
            following = os.open(path, flags, 0o600)
            if self._segment >= 0:
                os.fsync(self._segment)
                os.close(self._segment)
            self._segment = following
            self._segment_bytes = os.fstat(self._segment).st_size
            files.flush_folder(path.parent)
        except OSError as error:
            self._die(error)

    def _release(self) -> None:
        for descriptor in (self._segment, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._segment = self._lock = -1


def read_lines(folder: Path) -> Iterator[tuple[bytes, bool]]:
    """Each line of the log in `folder`, without its newline, and whether it had one.

    Raises AuditError where a file is missing or cannot be read.
    """
    try:
        paths = sorted((folder / SEGMENTS).glob("*.jsonl"))
        for number, path in enumerate(paths):
            if path.name != f"{number:06}.jsonl":
                raise AuditError(f"log {folder}: segment {number:06}.jsonl is missing")
            with path.open("rb") as file:
                for line in file:
                    yield line.removesuffix(b"\n"), line.endswith(b"\n")
    except OSError as error:
        raise AuditError(f"log {folder} cannot be read: {error.strerror}") from error


def read_heads(folder: Path) -> Iterator[tuple[int, str]]:
    """Size by file name, and note, of each signed head in `folder`, smallest first.

    Raises AuditError where a file cannot be read or is not named after a size.
    """
    try:
        found = []
        for path in (folder / CHECKPOINTS).glob("*.note"):
            if not (path.stem.isascii() and path.stem.isdecimal()):
                raise AuditError(
                    f"log {folder}: {path.name} is not named after a number of records"
                )
            found.append((int(path.stem), path))
        for size, path in sorted(found):
            yield size, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AuditError(f"log {folder}: a signed head cannot be read: {error}") from error
