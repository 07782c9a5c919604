"""Step time over slow links: measured against the physical limit and against the plan.

MiniLM, everything training, two processes pinned to a core each, TLS, sessions, policy and log on, the
emulated link in a third process: {10, 50, 100, 200} Mbit/s x round trips of {0, 20, 80} ms, and an
unlimited loopback; uncompressed and with the default codecs; two numbers of micro-batches. Compute is
measured layer by layer, as `splitlearn plan` does, before and after each round of runs. A shared
machine's speed drifts by a quarter within seconds, so one product of matrices is timed then and after each
step: a run's limit and plan are those at the pace that the machine had in that run. Figures are medians
over rounds. Loopback is measured in the same rounds as the link that is compared with it.

Writes out/bench/links.json with `worst_step_over_limit`, `worst_plan_error`, `worst_choice_over_best`,
`share_of_loopback` and every cell. Run as `python -m tests.bench.links`, some 25 minutes; `--quick` for
three cells. Needs the `demo` extra; figures mean something on an idle machine only.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, Any

import msgspec
import torch
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from splitlearn import policy
from splitlearn.channel import Listener, connect
from splitlearn.engine.compute.arriving import RunPlace
from splitlearn.engine.compute.engine import ComputeEngine
from splitlearn.engine.job.measure import measure_speeds
from splitlearn.identity import Identity
from splitlearn.pipeline.costs import Link, Setting, cost
from splitlearn.pipeline.simulate import simulate
from splitlearn.pipeline.speeds import Speeds
from splitlearn.roles import Role
from tests.cores import (
    BATCH,
    CODECS,
    CORES,
    CUT,
    TOKENS,
    WAIT_S,
    Laps,
    load,
    made,
    measured,
    pace_s,
    pin,
)
from tests.federation import make_identity
from tests.rig import ADAMW, COMPUTE, POLICIES, at, compute_party, trusted_party

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "links.json"
PIECES = (4, 8)
ROUNDS = 3
# Steps of a run: as many as take so long, within bounds; the first one is not counted.
RUN_S, STEPS = 6.0, (3, 5)
MEASURE = "measure"
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
# What loopback is measured beside.
BESIDE_LOOPBACK = Cell(100.0, 20.0)
SLOW = tuple(
    Cell(mbit, rtt_ms) for mbit in (10.0, 50.0, 100.0, 200.0) for rtt_ms in (0.0, 20.0, 80.0)
)
GROUPS = (
    (LOOPBACK, BESIDE_LOOPBACK),
    *((cell,) for cell in SLOW if cell != BESIDE_LOOPBACK),
)
QUICK = (GROUPS[0], (Cell(200.0, 80.0),))


@dataclass(frozen=True)
class Lap:
    """One round of one run: seconds of its median step, and what they are compared with."""

    step_s: float
    trusted_cpu_s: float
    plan_s: float
    limit_s: float
    plan_trusted_s: float
    pace_s: float


Key = tuple[Cell, str, int]  # a link, a choice of codecs, a number of micro-batches


def serve(folder: Path, *, core: int, host: str = "127.0.0.1") -> None:
    """The compute party's process. Reads how many runs the next channel brings."""
    pin(core)
    party, model = compute_party(folder), cache(load)
    identity = Identity.load(folder / "gpuhost-compute")
    listener = Listener(f"{host}:0", identity=identity, expect_roles=frozenset({Role.TRUSTED}))
    print(listener.port, flush=True)
    run = 0
    for line in sys.stdin:
        if line.strip() == MEASURE:
            speeds_of(model())
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


def speeds_of(model: PreTrainedModel) -> Speeds:
    """As `splitlearn plan` measures them, of the codecs that are used here."""
    generator = torch.Generator().manual_seed(0)
    return measure_speeds(
        model,
        [made(size, generator) for size in (BATCH // 16, BATCH // 2)],
        layer=CUT.first,
        optimiser=ADAMW,
        policy=policy.load(POLICIES / "demo.toml"),
        codecs=dict.fromkeys(
            name for spec in CODECS.values() for name in msgspec.structs.astuple(spec)
        ),
        tokens=TOKENS,
        padded=TOKENS,
    )


def at_pace(speeds: Speeds, factor: float) -> Speeds:
    """The same machine when everything takes `factor` times as long."""

    def slower(seconds: float | tuple[float, float]) -> float | tuple[float, float]:
        if isinstance(seconds, tuple):
            return seconds[0] * factor, seconds[1] * factor
        return seconds * factor

    party = {name: slower(seconds) for name, seconds in speeds.trusted.model_dump().items()}
    codecs = {
        name: (shrinks, error, encodes / factor, decodes / factor)
        for name, (shrinks, error, encodes, decodes) in speeds.codecs.items()
    }
    return speeds.model_copy(
        update={"trusted": speeds.trusted.model_copy(update=party), "codecs": codecs}
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


def planned(speeds: Speeds, key: Key) -> dict[str, float]:
    """The planner's step and the limit of a run."""
    cell, kind, pieces = key
    codecs = CODECS[kind]
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


class Bench:
    """The compute party's process, and the trusted party here."""

    def __init__(self, folder: Path, child: "subprocess.Popen[str]") -> None:
        self._folder, self._child, self._number = folder, child, 0
        self._me = make_identity(folder, "clinic", Role.TRUSTED)
        self._party, self._model = trusted_party(folder), load()
        self.port = int(_out(child.stdout).readline())

    def speeds(self) -> tuple[Speeds, float]:
        """And the pace that they are of, looked at while the other party rests, as after a step.

        The speeds themselves while its core is as busy: both share caches and memory in a run, too.
        """
        before_s = pace_s()
        self._tell(MEASURE)
        found = speeds_of(self._model)
        assert _out(self._child.stdout).readline().strip() == MEASURE
        return found, (before_s + pace_s()) / 2

    def runs(self, port: int, wanted: Sequence[tuple[Key, int]]) -> dict[Key, Laps]:
        """Several runs over one channel; steps of each."""
        self._tell(str(len(wanted)))
        channel = connect(
            f"127.0.0.1:{port}",
            identity=self._me,
            peer=COMPUTE,
            run="links",
            deadline_s=WAIT_S,
        )
        found = {}
        for key, steps in wanted:
            self._number += 1
            found[key] = measured(
                self._folder,
                self._party,
                channel,
                codecs=CODECS[key[1]],
                pieces=key[2],
                number=self._number,
                steps=steps,
                pacing=True,
            )
        channel.close()
        return found

    def _tell(self, line: str) -> None:
        _in(self._child.stdin).write(f"{line}\n")
        _in(self._child.stdin).flush()


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    """Both parties, warm: weights have gone over."""
    with tempfile.TemporaryDirectory() as name:
        make_identity(Path(name), "gpuhost", Role.COMPUTE)
        command = [sys.executable, "-m", "tests.bench.links", "--serve", name]
        command += ["--core", str(CORES[-1])]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as child:
            made = Bench(Path(name), child)
            made.runs(made.port, [((LOOPBACK, "default", PIECES[0]), STEPS[0])])
            yield made
            _in(child.stdin).close()


def measure_group(bench: Bench, cells: Sequence[Cell], *, rounds: int) -> dict[Key, list[Lap]]:
    """Cells in the same rounds, all choices of codecs and numbers of micro-batches of each in turn."""
    found: dict[Key, list[Lap]] = {}
    with contextlib.ExitStack() as stack:
        ports = {cell: stack.enter_context(emulated(cell, port=bench.port)) for cell in cells}
        before = bench.speeds()
        for _ in range(rounds):
            laps: dict[Key, Laps] = {}
            for cell in cells:
                keys = [(cell, kind, m) for m in PIECES for kind in CODECS]
                wanted = [(key, steps_of(before[0], key)) for key in keys]
                laps |= bench.runs(ports[cell], wanted)
            after = bench.speeds()
            for key, each in laps.items():
                found.setdefault(key, []).append(compared(each, key, speeds=(before, after)))
            before = after
    return found


def compared(laps: Laps, key: Key, *, speeds: Sequence[tuple[Speeds, float]]) -> Lap:
    """A run beside the means of what it would take by each of `speeds`, at the pace that it had."""
    here_s = statistics.median(laps.paces_s)
    figures = [planned(at_pace(found, here_s / pace), key) for found, pace in speeds]
    mean = {name: statistics.mean(each[name] for each in figures) for name in figures[0]}
    return Lap(**laps.medians, **mean, pace_s=here_s)


def steps_of(speeds: Speeds, key: Key) -> int:
    return min(max(STEPS[0], round(RUN_S / planned(speeds, key)["plan_s"])), STEPS[1])


def row_of(key: Key, rounds: Sequence[Lap]) -> dict[str, Any]:
    """Medians over rounds, of seconds and of ratios."""
    (cell, kind, m), middle = key, statistics.median
    row = {
        **asdict(cell),
        "codecs": kind,
        "micro_batches": m,
        **{name: middle(asdict(lap)[name] for lap in rounds) for name in asdict(rounds[0])},
        "step_over_limit": middle(lap.step_s / lap.limit_s for lap in rounds),
        "plan_over_step": middle(lap.plan_s / lap.step_s for lap in rounds),
        "plan_over_trusted_cpu": middle(lap.plan_trusted_s / lap.trusted_cpu_s for lap in rounds),
        "rounds": [asdict(lap) for lap in rounds],
    }
    print(
        f"{cell!s:18} {kind:12} m={m:2}: {row['step_s']:6.3f} s, {row['step_over_limit']:5.3f} of "
        f"the limit; plan {row['plan_over_step']:5.3f} of it; trusted CPU {row['trusted_cpu_s']:6.3f}"
        f", plan {row['plan_over_trusted_cpu']:5.3f} of it",
        flush=True,
    )
    return row


def summary(found: Mapping[Key, Sequence[Lap]]) -> dict[str, Any]:
    """The worst of all cells. A cell is a link and a choice of codecs, at its fastest run."""
    rows = [row_of(key, rounds) for key, rounds in found.items()]
    groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["mbit"], row["rtt_ms"], row["codecs"]), []).append(row)
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
                "step_over_limit": best["step_over_limit"],
                "plan_error": max(abs(row["plan_over_step"] - 1) for row in runs),
                "plan_error_of_choice": abs(chosen["plan_over_step"] - 1),
                "choice_over_best": chosen["step_s"] / best["step_s"],
            }
        )
    slow = [cell for cell in cells if cell["mbit"] is not None]
    worst = ("step_over_limit", "plan_error", "plan_error_of_choice", "choice_over_best")
    return {
        **{f"worst_{name}": max(cell[name] for cell in slow) for name in worst},
        "share_of_loopback": share_of_loopback(found),
        # Processor time does not depend on what else the machine does.
        "worst_cpu_error": max(abs(row["plan_over_trusted_cpu"] - 1) for row in rows),
        "cells": cells,
        "runs": rows,
    }


def share_of_loopback(found: Mapping[Key, Sequence[Lap]]) -> float:
    """Of its samples a second, round by round; each at its faster number of micro-batches."""

    def fastest(cell: Cell) -> list[float]:
        runs = [[lap.step_s for lap in found[cell, "default", m]] for m in PIECES]
        return [min(each) for each in zip(*runs, strict=True)]

    pairs = zip(fastest(LOOPBACK), fastest(BESIDE_LOOPBACK), strict=True)
    return statistics.median(free / linked for free, linked in pairs)


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
    found: dict[Key, list[Lap]] = {}
    with bench() as made_ready:
        for cells in QUICK if arguments.quick else GROUPS:
            found |= measure_group(made_ready, cells, rounds=ROUNDS)
            print(f"{', '.join(map(str, cells))} measured", file=sys.stderr, flush=True)
    result = {**summary(found), "targets": TARGETS}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    worst = {key: result[key] for key in TARGETS}
    print(json.dumps(worst, indent=2))


if __name__ == "__main__":
    main()
