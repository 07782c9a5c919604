"""How far a pre-training run has come, in one checkpoint with the discriminator it belongs to.

A checkpoint is whole or absent, and says the digest of the weights and optimiser that lie in it: what
was changed on disk is not gone on from.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from splitlearn.errors import AuditError, ManifestError

__all__ = ["Member", "Progress", "Shelf"]

# The newest, and the one before it for the case that a disk loses the newest.
KEPT = 2

_PROGRESS, _LEARNER = "progress.json", "learner"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A generator that has taken part. following: the lowest batch index that is still taken from it.

    batches, tokens: trained on. loss: its own in the newest round that it reported, in nats.
    """

    language: str
    size: int
    following: int = 0
    batches: int = 0
    tokens: int = 0
    loss: float = 0.0


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """job: digest of what decides the numbers. step: discriminator steps done. round: rounds done.

    in_round: steps done of the round under way. members: by party. history: what each round came to.
    """

    job: str
    step: int = 0
    round: int = 0
    in_round: int = 0
    members: dict[str, Member] = {}
    history: tuple[dict[str, object], ...] = ()
    digest: str = ""


class Shelf:
    """The checkpoints of one run below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def held(self) -> tuple[int, ...]:
        """The steps held, ascending."""
        if not self.folder.is_dir():
            return ()
        return tuple(
            sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())
        )

    def save(self, progress: Progress, save: Callable[[Path], None]) -> None:
        """Put `progress` and what `save` writes into the folder it is given on the shelf.

        Raises AuditError where the disk is full or not writable: a run that cannot be resumed
        should not go on.
        """
        part = self.folder / f"{progress.step}.part"
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True, mode=0o700)
            save(part / _LEARNER)
            (part / _PROGRESS).write_bytes(msgspec.json.encode(progress))
            for path in (part / _PROGRESS, part):
                _sync(path)
            self._drop(progress.step)
            part.rename(self.folder / str(progress.step))
            _sync(self.folder)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise AuditError(
                f"checkpoint {progress.step} cannot be written to {self.folder}: {error}; free space "
                "there or choose another run folder, then start again"
            ) from error
        for old in self.held()[:-KEPT]:
            self._drop(old)

    def load(self, load: Callable[[Path], str]) -> Progress | None:
        """The newest checkpoint's progress, after `load` has read its learner and told its digest.

        None where there is none. Raises ManifestError if it is not what was saved.
        """
        held = self.held()
        if not held:
            return None
        place = self.folder / str(held[-1])
        try:
            progress = msgspec.json.decode((place / _PROGRESS).read_bytes(), type=Progress)
        except (OSError, msgspec.MsgspecError) as error:
            raise ManifestError(
                f"checkpoint {place} cannot be read: {error}; remove it to go on from the one before"
            ) from error
        found = load(place / _LEARNER)
        if found != progress.digest:
            raise ManifestError(
                f"checkpoint {place} is not the one that was saved: its digest is {found[:16]}..., "
                f"expected {progress.digest[:16]}...; remove it to go on from the one before"
            )
        return progress

    def _drop(self, step: int) -> None:
        shutil.rmtree(self.folder / str(step), ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
