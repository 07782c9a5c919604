"""What a pre-training run leaves for people: events as lines of JSON, a summary, scalars for TensorBoard.

events.jsonl is what `splitlearn pretrain` draws its live view from; metrics.json is the newest state;
finished.json says that there is nothing left to do. No text, no id.
"""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from parties.pretrain_view import EVENTS
from splitlearn.coordination.endings import FINISHED
from splitlearn.engine.scalars import Scalars
from splitlearn.engine.streams.rounds import Joined, Kept, Left, RoundEvent, Scored, Trained
from splitlearn.errors import AuditError
from splitlearn.identity import files

if TYPE_CHECKING:
    from splitlearn.engine.streams.progress import Progress
    from splitlearn.manifest import Pretrain

__all__ = ["METRICS", "Recorder"]

METRICS = "metrics.json"

# Seconds between two lines about steps: a view that lives, and a file of some hundred KiB a day.
_EVERY_S = 1.0


class Recorder:
    """Takes an engine's events while its context lasts."""

    def __init__(self, folder: Path, *, moved: Callable[[], int]) -> None:
        """moved: bytes that came off the generators' links so far, all included."""
        self._folder, self._moved = folder, moved
        self._began_s = self._told_s = time.monotonic()
        self._since: list[Trained] = []
        self._tokens = self._scored_tokens = 0
        self._trained_s = 0.0
        self._batches: Counter[str] = Counter()
        self._rounds: list[dict[str, Any]] = []
        self._scalars = Scalars(folder / "scalars")

    def __enter__(self) -> "Recorder":
        self._file = (files.make_folder(self._folder) / EVENTS).open("ab", buffering=0)
        return self

    def __exit__(self, *_: object) -> None:
        self._steps()
        self._file.close()
        self._scalars.close()

    def begin(self, job: "Pretrain", progress: "Progress") -> None:
        """A process takes the run up."""
        self._rounds = [dict(each) for each in progress.history]
        self._line(
            "begin",
            run=job.run.name,
            step=progress.step,
            steps=job.rounds.count * job.rounds.steps,
            round=progress.round,
            rounds=job.rounds.count,
        )

    def __call__(self, event: RoundEvent) -> None:
        """Note one event of the engine's."""
        match event:
            case Trained():
                self._trained(event)
            case Scored():
                self._scored_tokens += event.tokens
                self._line("scored", **msgspec.to_builtins(event))
                for name in ("auc", "accuracy", "loss"):
                    value = getattr(event, name)
                    if value is not None:
                        self._scalars.add(f"held_out/{name}/{event.language}", value, event.round)
            case Joined(party, language):
                self._line("joined", party=party, language=language)
            case Left(party, why):
                self._line("left", party=party, why=why)
            case Kept(step):
                self._line("kept", step=step)

    def refused(self, party: str, why: str) -> None:
        """A generator answered the summons with a sentence in place of a report."""
        self._line("refused", party=party, why=why[:500])

    def round(self, progress: "Progress") -> None:
        """A round is done and kept."""
        self._steps()
        self._rounds = [dict(each) for each in progress.history]
        self._line("round", **self._rounds[-1])
        self._write(METRICS, self._metrics(progress))

    def finish(self, progress: "Progress") -> None:
        """Nothing is left to do."""
        metrics = self._metrics(progress)
        self._write(METRICS, metrics)
        self._line("finished", step=progress.step)
        self._write(FINISHED, {"step": progress.step, "rounds": progress.round})

    def _trained(self, event: Trained) -> None:
        self._since.append(event)
        self._tokens += event.tokens
        self._batches[event.language] += 1
        for name in ("loss", "accuracy", "replaced"):
            self._scalars.add(f"{name}/{event.language}", getattr(event, name), event.step)
        if time.monotonic() - self._told_s >= _EVERY_S:
            self._steps()

    def _steps(self) -> None:
        """One line about the steps since the last."""
        if not self._since:
            return
        now_s = time.monotonic()
        seconds, last = now_s - self._told_s, self._since[-1]
        self._told_s = now_s
        self._trained_s += seconds
        tokens = sum(event.tokens for event in self._since)
        languages = {}
        for name in sorted({event.language for event in self._since}):
            own = [event for event in self._since if event.language == name]
            languages[name] = {
                "steps": len(own),
                **{
                    fact: round(sum(getattr(event, fact) for event in own) / len(own), 5)
                    for fact in ("loss", "accuracy", "replaced")
                },
                "fill": last.fill.get(name, 0),
            }
        moved = self._moved()
        rates = {"tokens_per_s": round(tokens / max(seconds, 1e-9), 1), "link_bytes": moved}
        for name, value in rates.items():
            self._scalars.add(name, value, last.step)
        for name, fill in last.fill.items():
            self._scalars.add(f"buffer/{name}", fill, last.step)
        self._line(
            "steps",
            step=last.step,
            languages=languages,
            waited_s=round(sum(event.waited_s for event in self._since), 3),
            **rates,
        )
        self._since = []

    def _metrics(self, progress: "Progress") -> dict[str, Any]:
        """auc: by language and the worst, of the newest round that has them. bytes_per_token: of this
        process, everything on the links over the tokens that came to be trained on or scored.
        """
        scores: dict[str, Any] = dict(self._rounds[-1]["scores"]) if self._rounds else {}
        auc = {name: score["auc"] for name, score in sorted(scores.items())}
        known = [value for value in auc.values() if value is not None]
        came = self._tokens + self._scored_tokens
        return {
            "auc": {**auc, "worst": min(known, default=None)},
            "bytes_per_token": round(self._moved() / came, 4) if came else None,
            "tokens_per_s": round(self._tokens / self._trained_s, 1) if self._trained_s else None,
            "steps": progress.step,
            "rounds": self._rounds,
            "members": msgspec.to_builtins(progress.members),
        }

    def _line(self, event: str, **facts: object) -> None:
        line = msgspec.json.encode({"event": event, "time": round(time.time(), 3), **facts})
        try:
            self._file.write(line + b"\n")
        except OSError as error:
            raise AuditError(
                f"{self._folder / EVENTS} cannot be written ({error.strerror}); make room there"
            ) from error

    def _write(self, name: str, value: object) -> None:
        data = msgspec.json.format(msgspec.json.encode(value), indent=1)
        files.write(self._folder / name, data + b"\n", mode=files.PUBLIC)
