"""Processes killed at random points and exactly at the two that matter, and what both logs say then.

Between log and send a record may stand for what never left; between send and receipt a message arrived
that nobody has signed for. Both are explained, and nothing that is false is. tests/bench/kills.py does
the same fifty times.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from parties.auditor import judge_of
from splitlearn.audit import Exit, Gap, Log, Payload, Reconciliation, reconcile
from splitlearn.channel import Released, pair
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.roles import Kind
from splitlearn.split.cut import Cut
from splitlearn.tasks.batches import Batch
from tests.bench.kills import torment
from tests.door import records
from tests.integration.organisations import Organisations, Starter
from tests.rig import (
    Around,
    ComputeThread,
    batch_of,
    compute_party,
    run_in_memory,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import tiny_batch, tiny_model

KILLS = 4
# Seconds after a start within which the kill comes. A run takes about as long.
WITHIN_S = 2.5
STEPS = 3


def test_kills_at_random_points_neither_accuse_honest_logs_nor_let_false_ones_pass(
    tmp_path: Path, inputs: Path, template: Starter, undisturbed: Organisations
) -> None:
    def make(room: Path) -> Organisations:
        room.mkdir()
        return Organisations(room, inputs=inputs, starter=template)

    found = torment(
        KILLS,
        undisturbed=undisturbed,
        make=make,
        folder=tmp_path,
        within_s=WITHIN_S,
        chance=random.Random(0),
    )
    assert found.kills >= KILLS
    assert found.verified.total() >= 2 * KILLS


class Killed(BaseException):
    """This process was killed by SIGKILL."""


def kill(log: Log) -> None:
    """From here on nothing that the process would still do is done; files and lock are let go."""
    log._dead = "its process was killed"
    log._release()


@dataclass
class Deadly(Around):
    """A channel whose process dies at the `nth` message of `kind`, before it is sent or right after."""

    log: Log
    kind: Kind
    nth: int
    after: bool

    def send(self, released: Released, *, deadline_s: float) -> None:
        self.nth -= released.kind is self.kind
        deadly = released.kind is self.kind and not self.nth
        if self.after or not deadly:
            self.inner.send(released, deadline_s=deadline_s)
        if deadly:
            kill(self.log)
            self.inner.close()
            raise Killed


def a_run() -> TrustedRun:
    return trusted_run(tiny_model("bert"), cut=Cut(1, 3), total=STEPS, every=1)


def steps(step: int) -> list[Batch]:
    return [batch_of(tiny_batch(tiny_model("bert"), seed=step))]


def until_killed(folder: Path, *, who: str, kind: Kind, nth: int, after: bool) -> None:
    """A run whose party `who` dies there. The other one sees the link end, and closes its log."""
    trusted, compute = trusted_party(folder), compute_party(folder)
    ours, theirs = pair()
    victim = trusted if who == "clinic" else compute
    end = Deadly(ours if who == "clinic" else theirs, victim.log, kind=kind, nth=nth, after=after)
    thread = ComputeThread(compute, theirs if who == "clinic" else end)
    engine = trusted_engine(a_run(), trusted, end if who == "clinic" else ours)
    error: BaseException | None = None
    try:
        engine.train(steps)
        engine.finish()
    except BaseException as ended:  # noqa: BLE001 - looked at below
        error = ended
        engine.end(ended)
        ours.close()
    thread.join(20)
    died = error if who == "clinic" else thread.error
    assert isinstance(died, Killed), died
    for party in (trusted, compute):
        if party is not victim:
            party.log.close()


def held_together(folder: Path) -> Reconciliation:
    return reconcile(folder / "clinic" / "audit", folder / "gpuhost" / "audit", judge_of=judge_of)


def said(folder: Path, who: str, record: int) -> tuple[str, Kind]:
    """Direction and kind of one record in the log of `who`."""
    payload = records(folder / who / "audit")[record]
    assert isinstance(payload, Payload)
    return payload.direction, payload.kind


# Who dies at which message of a kind; the first settlement is the one at the beginning.
POINTS = [
    ("clinic", Kind.ACTIVATION, 2),
    ("clinic", Kind.GRADIENT, 2),
    ("clinic", Kind.SETTLE, 1),
    ("clinic", Kind.COUNTERSIGNED, 1),
    ("clinic", Kind.CHECKPOINT, 1),
    ("gpuhost", Kind.OUTPUT, 2),
    ("gpuhost", Kind.SETTLED, 1),
    ("gpuhost", Kind.SAVED, 1),
    ("gpuhost", Kind.CLOSED, 1),
]
NAMES = [f"{who}-{kind}" for who, kind, _ in POINTS]


def other(who: str) -> str:
    return "gpuhost" if who == "clinic" else "clinic"


@pytest.mark.parametrize(("who", "kind", "nth"), POINTS, ids=NAMES)
def test_a_crash_between_log_and_send_leaves_one_record_that_only_its_sender_has(
    tmp_path: Path, who: str, kind: Kind, nth: int
) -> None:
    until_killed(tmp_path, who=who, kind=kind, nth=nth, after=False)
    found = held_together(tmp_path)
    (difference,) = found.differences
    assert difference.name == "unreceipted_tail"
    assert "left and never arrived" in difference.sentence
    record = difference.here if who == "clinic" else difference.there
    assert record is not None
    assert said(tmp_path, who, record) == ("out", kind)
    dead, alive = (found.here, found.there) if who == "clinic" else (found.there, found.here)
    assert alive.exit is Exit.CLEAN, alive.findings
    assert {finding.name for finding in dead.findings if finding.exit} == {"uncovered"}
    assert_explained_after_a_restart(tmp_path, who, names=["unreceipted_tail"])


@pytest.mark.parametrize(("who", "kind", "nth"), POINTS, ids=NAMES)
def test_a_crash_between_send_and_receipt_leaves_a_message_that_both_logs_have(
    tmp_path: Path, who: str, kind: Kind, nth: int
) -> None:
    until_killed(tmp_path, who=who, kind=kind, nth=nth, after=True)
    found = held_together(tmp_path)
    sent = [
        record
        for record in records(tmp_path / who / "audit")
        if isinstance(record, Payload) and (record.direction, record.kind) == ("out", kind)
    ]
    taken = [
        record.commit
        for record in records(tmp_path / other(who) / "audit")
        if isinstance(record, Payload) and record.direction == "in"
    ]
    assert len(sent) == nth
    assert sent[-1].commit in taken
    # An answer to it that its dead sender never took is the only thing that may be missing.
    for difference in found.differences:
        assert difference.name == "unreceipted_tail"
        record = difference.there if who == "clinic" else difference.here
        assert record is not None
        assert said(tmp_path, other(who), record)[0] == "out"
    assert found.exit is Exit.UNCHECKABLE
    names = [difference.name for difference in found.differences]
    assert_explained_after_a_restart(tmp_path, who, names=names)


def assert_explained_after_a_restart(folder: Path, who: str, *, names: list[str]) -> None:
    """The dead party comes back: one gap in its log, all is signed, and no other difference than before."""
    run_in_memory(folder, a_run(), steps=steps)
    found = held_together(folder)
    assert found.exit is Exit.CLEAN, found.differences
    assert [difference.name for difference in found.differences] == names
    for party in ("clinic", "gpuhost"):
        gaps = [r for r in records(folder / party / "audit") if isinstance(r, Gap)]
        assert len(gaps) == (party == who)
