"""The live view of a pre-training run: what its process writes down, drawn for whoever waits.

On a terminal a bar and a table of the languages; in a file or a CI log a line now and then, and one
for each that counts: who came, who left, what a round scored.
"""

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from parties.console import QUIET_S, console, size

__all__ = ["EVENTS", "View"]

# What a run's process writes its events to, below the run's folder.
EVENTS = "events.jsonl"

# Seconds between two looks at the file.
_LOOK_S = 0.3
# Events that are told in a line as they come.
_TELLS = {
    "joined": "{party} streams {language}",
    "left": "{party} left: {why}",
    "refused": "{party} could not come: {why}",
    "finished": "all rounds are done, {step} steps",
}


class View:
    """Follows `events` while its context lasts; what was written before is passed over."""

    def __init__(self, events: Path) -> None:
        self._events = events
        self._offset = events.stat().st_size if events.exists() else 0
        self._stop = threading.Event()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[facts]}"),
            console=console,
        )
        self._task = self._bar.add_task("waiting for generators", total=None, facts="")
        self._languages: dict[str, dict[str, Any]] = {}
        self._auc: dict[str, list[str]] = {}
        self._told_s = 0.0
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._thread = threading.Thread(target=self._follow, name="view", daemon=True)

    def __enter__(self) -> "View":
        if self._live is not None:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._live is not None:
            self._live.stop()

    def _follow(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self._look()
        self._look()

    def _look(self) -> None:
        if not self._events.exists():
            return
        with self._events.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                self.take(msgspec.json.decode(line, type=dict[str, Any]))
            except msgspec.DecodeError:
                continue
        if self._live is not None:
            self._live.update(Group(self._bar, self._table()))

    def take(self, event: dict[str, Any]) -> None:
        """One event as it stands in the file."""
        match event["event"]:
            case "begin":
                self._bar.update(self._task, total=event["steps"], completed=event["step"])
                self._tell(f"run {event['run']}, round {event['round'] + 1} of {event['rounds']}")
            case "steps":
                self._steps(event)
            case "scored":
                auc = "-" if event["auc"] is None else f"{event['auc']:.3f}"
                self._auc.setdefault(event["language"], []).append(auc)
            case "round":
                self._bar.update(self._task, description=f"round {event['round'] + 1} done")
                found = ", ".join(
                    f"{name} {rounds[-1]}" for name, rounds in sorted(self._auc.items())
                )
                self._tell(f"round {event['round'] + 1}: AUC on held-out text: {found}")
            case kind if kind in _TELLS:
                self._tell(_TELLS[kind].format(**event))

    def _steps(self, event: dict[str, Any]) -> None:
        self._languages.update(event["languages"])
        facts = f"{event['tokens_per_s']:.0f} tokens/s, {size(event['link_bytes'])} came"
        self._bar.update(
            self._task, completed=event["step"], facts=facts, description="pre-training"
        )
        now_s = time.monotonic()
        if self._live is None and now_s - self._told_s > QUIET_S:
            self._told_s = now_s
            losses = ", ".join(f"{n} {f['loss']:.3f}" for n, f in sorted(self._languages.items()))
            console.print(f"step {event['step']}: {facts}; loss {losses}", markup=False)

    def _table(self) -> Table:
        table = Table("language", "loss", "accuracy", "replaced", "waiting", "AUC by round")
        for name, facts in sorted(self._languages.items()):
            table.add_row(
                name,
                f"{facts['loss']:.3f}",
                f"{facts['accuracy']:.3f}",
                f"{facts['replaced']:.3f}",
                str(facts["fill"]),
                " ".join(self._auc.get(name, [])),
            )
        return table

    @staticmethod
    def _tell(sentence: str) -> None:
        console.print(sentence, markup=False)
