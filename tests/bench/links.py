"""Step time over slow links: measured against the physical limit and against the plan.

MiniLM, everything training, two processes pinned to a core each, TLS, sessions, policy and log on, the
emulated link in a third process: {10, 50, 100, 200} Mbit/s x round trips of {0, 20, 80} ms, and an
unlimited loopback; uncompressed and with the default codecs; several numbers of micro-batches,
interleaved. Compute is measured first, layer by layer, as `splitlearn plan` does. Writes
out/bench/links.json with `worst_step_over_limit`, `worst_plan_error`, `worst_choice_over_best`,
`share_of_loopback` and every cell. Run as `python -m tests.bench.links`; `--quick` for two cells. Needs
the `demo` extra; figures mean something on an idle machine only.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import IO

import msgspec
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils import logging as transformers_logging

from splitlearn import policy
from splitlearn.channel import Channel, Listener, connect
from splitlearn.codecs import NAMES
from splitlearn.engine.compute.arriving import RunPlace
from splitlearn.engine.compute.engine import ComputeEngine
from splitlearn.engine.events import Event, StepDone
from splitlearn.engine.job.measure import measure_speeds
from splitlearn.identity import Identity
from splitlearn.pipeline.costs import Link, Setting, cost
from splitlearn.pipeline.simulate import simulate
from splitlearn.pipeline.speeds import Speeds
from splitlearn.roles import Kind, Role
from splitlearn.split import Cut, PcaBasis
from splitlearn.tasks import Batch
from splitlearn.wire.messages import CodecSpec
from tests.federation import make_identity
from tests.rig import (
    ADAMW,
    POLICIES,
    Party,
    at,
    compute_party,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import real_model_folder

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "links.json"
BATCH, TOKENS = 32, 64
CUT = Cut(2, 5)
PIECES = (4, 8)
# Steps of a run: as many as take so long, within bounds; the first one is not counted.
RUN_S, STEPS = 12.0, (3, 7)
WAIT_S = 240.0
# Names in the result; the second is what a job has that names no codecs.
CODECS = {
    "uncompressed": CodecSpec("identity", "identity", "identity", "identity"),
    "default": CodecSpec("int8+zstd", "fp16", "fp16", "fp16"),
}
TARGETS = {
    "worst_step_over_limit": 1.10,
    "worst_plan_error": 0.10,
    "worst_choice_over_best": 1.05,
    "share_of_loopback": 0.90,
}


@dataclass(frozen=True)
class Cell:
    """A link. mbit: None for no limit."""

    mbit: float | None
    rtt_ms: float

    def __str__(self) -> str:
        return "loopback" if self.mbit is None else f"{self.mbit:g} Mbit/s, {self.rtt_ms:g} ms"


LOOPBACK = Cell(None, 0.0)
CELLS = (
    LOOPBACK,
    *(Cell(mbit, rtt_ms) for mbit in (10.0, 50.0, 100.0, 200.0) for rtt_ms in (0.0, 20.0, 80.0)),
)
QUICK = (LOOPBACK, Cell(50.0, 20.0), Cell(200.0, 80.0))


@dataclass
class Laps:
    """Seconds from one finished step to the next, and the steps' losses."""

    ends_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepDone):
            self.done(event.loss)

    def done(self, loss: float) -> None:
        """A step ended just now."""
        self.ends_s.append(time.perf_counter())
        self.cpu_s.append(time.process_time())
        self.losses.append(loss)

    @property
    def medians(self) -> dict[str, float]:
        """Wall seconds and the trusted party's processor seconds."""
        return {
            name: statistics.median(b - a for a, b in pairwise(times))
            for name, times in (("step_s", self.ends_s), ("trusted_cpu_s", self.cpu_s))
        }


# Of this program before it pinned itself: what it starts inherits one core only.
CORES = sorted(os.sched_getaffinity(0))


def pin(core: int) -> None:
    """This process to one core, and torch to one thread."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {core})


def serve(folder: Path, *, core: int, host: str = "127.0.0.1") -> None:
    """The compute party's process. Reads how many runs the next channel brings."""
    pin(core)
    party = compute_party(folder)
    identity = Identity.load(folder / "gpuhost-compute")
    listener = Listener(f"{host}:0", identity=identity, expect_roles=frozenset({Role.TRUSTED}))
    print(listener.port, flush=True)
    run = 0
    for line in sys.stdin:
        if line.strip() == MEASURE:
            speeds_here()
            print(MEASURE, flush=True)
            continue
        channel = listener.accept(timeout_s=WAIT_S)
        for _ in range(int(line)):
            run += 1
            place = RunPlace(checkpoints=folder / f"peer-{run}", received=folder / "received")
            ComputeEngine(
                channel,
                open_gate=party.gate,
                place_of=at(place),
                deadline_s=WAIT_S,
                observe=lambda _: None,
            ).serve()
        with contextlib.suppress(Exception):
            channel.receive(timeout_s=WAIT_S)
        channel.close()
    listener.close()


def batches(pieces: int, step: int) -> list[Batch]:
    """Random ids of full length, in so many micro-batches."""
    generator = torch.Generator().manual_seed(step)
    size = BATCH // pieces
    return [made(size, generator) for _ in range(pieces)]


def made(size: int, generator: torch.Generator) -> Batch:
    return Batch(
        inputs={
            "input_ids": torch.randint(1000, 30000, (size, TOKENS), generator=generator),
            "attention_mask": torch.ones((size, TOKENS), dtype=torch.long),
        },
        labels={"labels": torch.randint(2, (size,), generator=generator)},
        lengths=(TOKENS,) * size,
        items=size,
    )


MEASURE = "measure"


def speeds_beside(child: "subprocess.Popen[str]") -> Speeds:
    """Speeds while the other party's core is as busy: both share caches and memory in a run, too."""
    _in(child.stdin).write(f"{MEASURE}\n")
    _in(child.stdin).flush()
    speeds = speeds_here()
    assert _out(child.stdout).readline().strip() == MEASURE
    return speeds


@contextlib.contextmanager
def emulated(cell: Cell, *, port: int) -> Iterator[int]:
    """The link in a process of its own; the port to dial."""
    if cell == LOOPBACK:
        yield port
        return
    command = [
        *(sys.executable, "-m", "parties.cli", "link", "emulate"),
        *("--listen", "127.0.0.1:0", "--to", f"127.0.0.1:{port}"),
        *("--mbit", str(cell.mbit), "--rtt-ms", str(cell.rtt_ms)),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as link:
        os.sched_setaffinity(link.pid, CORES)
        assert link.stdout is not None
        try:
            yield int(link.stdout.readline().split()[0].rpartition(":")[2])
        finally:
            link.terminate()


def load(**changes: object) -> PreTrainedModel:
    """changes: to the model's configuration."""
    model: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(
        real_model_folder(), attn_implementation="sdpa", **changes
    )
    return model


def speeds_here() -> Speeds:
    """As `splitlearn plan` measures them."""
    generator = torch.Generator().manual_seed(0)
    return measure_speeds(
        load(),
        [made(size, generator) for size in (BATCH // 16, BATCH // 2)],
        layer=CUT.first,
        optimiser=ADAMW,
        policy=policy.load(POLICIES / "demo.toml"),
        codecs=NAMES,
        tokens=TOKENS,
        padded=TOKENS,
    )


def without_overhead(speeds: Speeds) -> Speeds:
    """A machine whose gates, logs, channels and codecs take no time: what is left is physics."""
    nothing = {"message": (0.0, 0.0), "carry": (0.0, 0.0)}
    return speeds.model_copy(
        update={
            "trusted": speeds.trusted.model_copy(update=nothing),
            "compute": speeds.peer.model_copy(update=nothing),
            "codecs": {
                name: (shrinks, error, 1e12, 1e12)
                for name, (shrinks, error, *_) in speeds.codecs.items()
            },
        }
    )


def planned(speeds: Speeds, cell: Cell, *, codecs: CodecSpec, pieces: int) -> dict[str, float]:
    """The planner's step and the limit of a run."""
    setting = Setting(
        batch=BATCH,
        first=CUT.first,
        last=CUT.last,
        micro_batches=pieces,
        in_flight=8,
        order="1f1b",
        codecs=(codecs.activation, codecs.output, codecs.gradient, codecs.input_gradient),
        gradients=True,
        returns=True,
    )
    costed = cost(setting, speeds=speeds, link=Link.of(mbit=cell.mbit, rtt_ms=cell.rtt_ms))
    # Medians of laps do not see the settlement that every few steps has.
    run = simulate(replace(costed.chain, settle_messages=0), steps=6)
    bare = cost(
        setting, speeds=without_overhead(speeds), link=Link.of(mbit=cell.mbit, rtt_ms=cell.rtt_ms)
    )
    return {
        "plan_s": run.step_s,
        "limit_s": bare.limit_s,
        "plan_trusted_s": run.busy_s("trusted"),
    }


def measured(
    folder: Path,
    party: Party,
    channel: Channel,
    *,
    codecs: CodecSpec,
    pieces: int,
    number: int,
    model: PreTrainedModel | None = None,
    bases: Mapping[Kind, PcaBasis] | None = None,
    steps: int,
) -> Laps:
    """One run over `channel`, of a freshly loaded model where none is given; that is changed."""
    laps = Laps()
    run = trusted_run(
        model or load(),
        cut=CUT,
        total=steps,
        every=steps,
        deadline_s=WAIT_S,
        run=f"run-{number}",
        codec_bases=bases,
    )
    run = replace(run, offer=msgspec.structs.replace(run.offer, codecs=codecs))
    engine = trusted_engine(
        run, party, channel, observe=laps, checkpoints=folder / f"ours-{number}"
    )
    engine.train(lambda step: batches(pieces, step))
    engine.finish()
    engine.end(None)
    return laps


def measure_cells(cells: tuple[Cell, ...], *, pieces: tuple[int, ...]) -> dict[str, object]:
    """Every run of every cell, codecs and numbers of micro-batches interleaved within a cell."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trusted = make_identity(folder, "clinic", Role.TRUSTED)
        compute = make_identity(folder, "gpuhost", Role.COMPUTE)
        command = [sys.executable, "-m", "tests.bench.links", "--serve", str(folder)]
        command += ["--core", str(CORES[-1])]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as child:
            port = int(_out(child.stdout).readline())
            party = trusted_party(folder)
            number = 0
            for cell in (LOOPBACK, *cells):  # the first warms up, and brings the weights over
                warming = number == 0
                speeds = speeds_beside(child)  # anew, for a machine's speed drifts
                runs = [(k, m) for m in pieces for k in CODECS][: 1 if warming else None]
                with emulated(cell, port=port) as dialled:
                    _in(child.stdin).write(f"{len(runs)}\n")
                    _in(child.stdin).flush()
                    channel = connect(
                        f"127.0.0.1:{dialled}",
                        identity=trusted,
                        peer=compute.name,
                        run="links",
                        deadline_s=WAIT_S,
                    )
                    for kind, m in runs:
                        number += 1
                        figures = planned(speeds, cell, codecs=CODECS[kind], pieces=m)
                        found = measured(
                            folder,
                            party,
                            channel,
                            codecs=CODECS[kind],
                            pieces=m,
                            number=number,
                            steps=min(max(STEPS[0], round(RUN_S / figures["plan_s"])), STEPS[1]),
                        ).medians
                        if warming:
                            continue
                        row: dict[str, object] = {
                            **asdict(cell),
                            "codecs": kind,
                            "micro_batches": m,
                        }
                        row |= {**found, **figures}
                        rows.append(row)
                        print(
                            f"{cell!s:18} {kind:12} m={m:2}: {found['step_s']:7.3f} s, plan "
                            f"{figures['plan_s']:7.3f}, limit {figures['limit_s']:7.3f}; trusted "
                            f"CPU {found['trusted_cpu_s']:6.3f}, plan "
                            f"{figures['plan_trusted_s']:6.3f}",
                            flush=True,
                        )
                    channel.close()
            _in(child.stdin).close()
    return {**summary(rows), "targets": TARGETS, "runs": rows}


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    """The worst of all cells. A cell is a link and a choice of codecs, at its fastest run."""
    groups: dict[tuple[object, ...], list[Mapping[str, float]]] = {}
    for row in rows:
        groups.setdefault((row["mbit"], row["rtt_ms"], row["codecs"]), []).append(row)  # type: ignore[arg-type]
    cells = []
    for (mbit, rtt_ms, kind), runs in groups.items():
        best = min(runs, key=lambda row: row["step_s"])
        chosen = min(runs, key=lambda row: row["plan_s"])
        cells.append(
            {
                "mbit": mbit,
                "rtt_ms": rtt_ms,
                "codecs": kind,
                "best_micro_batches": best["micro_batches"],
                "chosen_micro_batches": chosen["micro_batches"],
                "step_s": best["step_s"],
                "step_over_limit": best["step_s"] / best["limit_s"],
                "plan_error": max(abs(row["plan_s"] / row["step_s"] - 1) for row in runs),
                "plan_error_of_choice": abs(chosen["plan_s"] / chosen["step_s"] - 1),
                "choice_over_best": chosen["step_s"] / best["step_s"],
            }
        )
    loopback = [c["step_s"] for c in cells if c["mbit"] is None and c["codecs"] == "default"]
    link = [
        c["step_s"]
        for c in cells
        if (c["mbit"], c["rtt_ms"], c["codecs"]) == (100.0, 20.0, "default")
    ]
    slow = [c for c in cells if c["mbit"] is not None]
    return {
        "worst_step_over_limit": max(c["step_over_limit"] for c in slow),  # type: ignore[type-var]
        "worst_plan_error": max(c["plan_error"] for c in slow),  # type: ignore[type-var]
        "worst_plan_error_of_choice": max(c["plan_error_of_choice"] for c in slow),  # type: ignore[type-var]
        "worst_choice_over_best": max(c["choice_over_best"] for c in slow),  # type: ignore[type-var]
        "share_of_loopback": loopback[0] / link[0] if loopback and link else None,  # type: ignore[operator]
        # Processor time does not depend on what else the machine does.
        "worst_cpu_error": max(
            abs(row["plan_trusted_s"] / row["trusted_cpu_s"] - 1)  # type: ignore[operator]
            for row in rows
        ),
        "cells": cells,
    }


def _out(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


_in = _out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two cells and loopback, fewer runs")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--host", default="127.0.0.1", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    if arguments.serve is not None:
        serve(arguments.serve, core=arguments.core, host=arguments.host)
        return
    pin(CORES[0])
    torch.manual_seed(0)
    found = measure_cells(
        QUICK if arguments.quick else CELLS, pieces=(4, 8) if arguments.quick else PIECES
    )
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    worst = {key: found[key] for key in TARGETS}
    print(json.dumps(worst, indent=2))


if __name__ == "__main__":
    main()
