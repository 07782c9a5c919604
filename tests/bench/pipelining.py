"""A step of ours beside one of torch.distributed.pipelining: same model, cut, batch, cores and wire.

MiniLM without dropout, everything training, bottom [0, 2) and top [5, 6) at one process, trunk [2, 5) at
the other, a core each, 8 micro-batches. Ours: TLS, sessions, policy and log on, uncompressed and with two
choices of codecs on slow wires. Theirs: gloo, plaintext, both public V-shaped schedules and our own order
of work as a third (tests/torch_pipelining.py). Both systems over loopback and over the same wire between
two network namespaces, which the kernel paces and which has no delay of its own; where namespaces are not
permitted those cells are left out and the result says why. Every run's losses are compared with a plain
loop's. Rounds of all systems interleaved, medians of steps, then of rounds.

Writes out/bench/pipelining.json: `ours_over_torch_uncompressed`, the worst cell against their fastest
public schedule; `ours_over_torch_any_uncompressed`, against the fastest of the three;
`torch_over_ours_with_codec_50mbit`, their fastest public schedule over our faster choice of codecs; and
every cell. What both parties take of a processor over a plain loop is in tests/bench/overhead.py. Run as
`python -m tests.bench.pipelining`; `--quick` for one short round of two cells and fewer systems, `--mbit 10`
for other wires. Needs the `demo` extra; figures mean something on an idle machine only.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from splitlearn.channel import connect
from splitlearn.engine.plain import train_plain
from splitlearn.engine.state.optimiser import build_stepper
from splitlearn.identity import Identity
from splitlearn.manifest import needs_basis
from splitlearn.roles import Kind, Role
from splitlearn.split import fit_pca
from splitlearn.wire.messages import CodecSpec, ScheduleSpec
from tests import cores, netns
from tests.cores import CORES, CUT, Laps, pin
from tests.federation import make_identity
from tests.netns import Place
from tests.rig import ADAMW, COMPUTE, trusted_party
from tests.torch_pipelining import PUBLIC, SCHEDULES, Pipelined

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "pipelining.json"
PIECES = 8
STEPS = 4
ROUNDS = 3
MBIT = (50.0, 100.0)
CODECS = {
    **cores.CODECS,
    "transform": CodecSpec(
        "pca-transform-e0.2", "pca-transform-e0.2", "transform-e0.1", "transform-e0.1"
    ),
}
# How far a loss may lie from the plain loop's: ours not at all, theirs by sums in another order.
LOSS_ERROR = 1e-3
TARGETS = {"ours_over_torch_uncompressed": 1.0, "torch_over_ours_with_codec_50mbit": 5.0}
# Batches of random ids that the bases are fitted to; their numbers are no step's.
PUBLIC_BATCHES = range(1000, 1004)
UNCOMPRESSED = ("ours uncompressed", "torch zbv", "torch dualpipe-v", "torch u-1f1b")
SYSTEMS = (*UNCOMPRESSED, "ours default", "ours transform")


@dataclass(frozen=True)
class Extent:
    """How much is measured: steps of a run, the first of which is not; rounds; systems."""

    steps: int
    rounds: int
    systems: tuple[str, ...]


WHOLE = Extent(STEPS, ROUNDS, SYSTEMS)
QUICK = Extent(3, 1, ("ours uncompressed", "torch dualpipe-v", "ours default"))


def fresh() -> PreTrainedModel:
    """The same model at every call."""
    torch.manual_seed(0)
    return cores.load(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def schedule(steps: int) -> ScheduleSpec:
    return ScheduleSpec("linear", 2, steps)


def plain_losses(steps: int) -> list[float]:
    """What every uncompressed run has to come to."""
    return train_plain(
        fresh().requires_grad_(True),
        steps=lambda step: cores.batches(PIECES, step),
        optimiser=ADAMW,
        schedule=schedule(steps),
        seed=0,
        observe=lambda _: None,
    )


def answer(laps: Laps) -> None:
    """One line to the process that asked."""
    walls, cpus = ([b - a for a, b in pairwise(times)] for times in (laps.ends_s, laps.cpu_s))
    print(json.dumps({"laps_s": walls, "cpu_s": cpus, "losses": laps.losses}), flush=True)


def ours(folder: Path, *, dial: str) -> None:
    """The trusted party's process: a run for each line that names a choice of codecs."""
    channel = connect(
        dial,
        identity=Identity.load(folder / "clinic-trusted"),
        peer=COMPUTE,
        run="pipelining",
        deadline_s=cores.WAIT_S,
    )
    party, model = trusted_party(folder), fresh()
    bases = {
        kind: fit_pca(
            model,
            [batch.inputs for i in PUBLIC_BATCHES for batch in cores.batches(PIECES, i)],
            layer=layer,
            rank=model.config.hidden_size,
        )
        for kind, layer in ((Kind.ACTIVATION, CUT.first), (Kind.OUTPUT, CUT.last))
    }
    print("connected", flush=True)
    for number, line in enumerate(sys.stdin):
        name, steps = line.split()
        codecs = CODECS[name]
        laps = cores.measured(
            folder,
            party,
            channel,
            codecs=codecs,
            pieces=PIECES,
            number=number,
            model=fresh(),
            bases={k: basis for k, basis in bases.items() if needs_basis(getattr(codecs, k.value))},
            steps=int(steps),
        )
        answer(laps)
    channel.close()


def theirs(rank: int, *, dial: str) -> None:
    """One rank's process: a run for each line that names a schedule."""
    host, _, port = dial.rpartition(":")
    store = dist.TCPStore(  # type: ignore[attr-defined]  # it is in torch's documentation
        host, int(port), 2, is_master=rank == 0, wait_for_workers=False
    )
    print(store.port, flush=True)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    for line in sys.stdin:
        name, steps = line.split()
        pipelined = Pipelined(fresh(), cut=CUT, schedule=name, micro_batches=PIECES)
        stepper = build_stepper(
            pipelined.parameters, optimiser=ADAMW, schedule=schedule(int(steps))
        )
        laps = Laps()
        for step in range(int(steps)):
            batches = cores.batches(PIECES, step)
            ids_BT = torch.cat([batch.inputs["input_ids"] for batch in batches])
            labels_B = torch.cat([batch.labels["labels"] for batch in batches])
            loss = pipelined.backward(ids_BT, labels_B)
            stepper.step()
            laps.done(loss or 0.0)
        answer(laps)
    dist.destroy_process_group()


class Child:
    """A process of this file, or of another, somewhere; lines in, lines out. Killed at the end."""

    def __init__(self, place: Place, module: str, *arguments: str) -> None:
        # Inside a namespace no address has a name, which torch would warn of.
        environment = os.environ | {
            "GLOO_SOCKET_IFNAME": place.interface,
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        self._process = subprocess.Popen(
            [*place.prefix, sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> None:
        _open(self._process.stdin).write(line + "\n")
        _open(self._process.stdin).flush()

    def hear(self) -> str:
        line = _open(self._process.stdout).readline().strip()
        if not line:
            raise SystemExit(f"{self._process.args!r} ended with {self._process.wait()}")
        return line

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@contextmanager
def systems(a: Place, b: Place) -> Iterator[Mapping[str, tuple[Child, ...]]]:
    """Both systems' processes, by the first word of a system's name; the first of them measures."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def child(place: Place, module: str, *arguments: str) -> Child:
            made = Child(place, module, *arguments)
            stack.callback(made.end)
            return made

        make_identity(folder, "clinic", Role.TRUSTED)
        make_identity(folder, "gpuhost", Role.COMPUTE)
        first, last = str(CORES[0]), str(CORES[-1])
        compute = child(
            *(b, "tests.bench.links", "--serve", str(folder)),
            *("--core", last, "--host", b.address),
        )
        dial = f"{b.address}:{compute.hear()}"
        compute.tell(str(10**6))  # as many runs as come
        me = "tests.bench.pipelining"
        trusted = child(a, me, "--ours", str(folder), "--dial", dial, "--core", first)
        trusted.hear()
        zero = child(a, me, "--rank", "0", "--dial", f"{a.address}:0", "--core", first)
        dial = f"{a.address}:{zero.hear()}"
        one = child(b, me, "--rank", "1", "--dial", dial, "--core", last)
        one.hear()
        yield {"ours": (trusted,), "torch": (zero, one)}


def one_run(children: Mapping[str, tuple[Child, ...]], name: str, *, steps: int) -> dict[str, Any]:
    """The measuring process's account of one run of `name`."""
    who, what = name.split()
    for child in children[who]:
        child.tell(f"{what} {steps}")
    accounts = [json.loads(child.hear()) for child in children[who]]
    first: dict[str, Any] = accounts[0]
    return first


def checked(found: dict[str, Any], *, name: str, plain: list[float]) -> float:
    """The largest distance of a loss from the plain loop's; SystemExit where it may not be so large."""
    error = max(abs(a - b) for a, b in zip(found["losses"], plain, strict=True))
    allowed = {"ours uncompressed": 0.0} | {f"torch {s}": LOSS_ERROR for s in SCHEDULES}
    if error > allowed.get(name, float("inf")):
        raise SystemExit(f"{name}: losses {found['losses']}, the plain loop's are {plain}")
    return error


def measure(mbit: float | None, *, extent: Extent, plain: list[float]) -> dict[str, Any]:
    """One cell: every system's median step, and all of its steps."""
    names = [name for name in extent.systems if mbit or name in UNCOMPRESSED]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    errors: dict[str, float] = {}
    wire = netns.slow_wire(mbit=mbit) if mbit else _no_wire()
    with wire as (a, b), systems(a, b) as children:
        # Brings weights and bases over and warms up.
        for name in ("ours transform", "torch zbv"):
            one_run(children, name, steps=1)
        for i in range(extent.rounds):
            for name in names[i:] + names[:i]:
                run = one_run(children, name, steps=extent.steps)
                found[name].append(run)
                errors[name] = checked(run, name=name, plain=plain)
    medians = {
        name: statistics.median(statistics.median(run["laps_s"]) for run in runs)
        for name, runs in found.items()
    }
    for name, step_s in medians.items():
        link = "loopback" if mbit is None else f"{mbit:g} Mbit/s"
        print(f"{link:11} {name:18} {step_s:7.3f} s, loss off by {errors[name]:.1e}", flush=True)
    return {
        "mbit": mbit,
        "step_s": medians,
        "first_partys_cpu_s": {
            name: statistics.median(statistics.median(run["cpu_s"]) for run in runs)
            for name, runs in found.items()
        },
        "loss_error": errors,
        "laps_s": {name: [run["laps_s"] for run in runs] for name, runs in found.items()},
    }


@contextmanager
def _no_wire() -> Iterator[tuple[Place, Place]]:
    yield netns.here, netns.here


def fastest(cell: dict[str, Any], names: Iterable[str]) -> float:
    """Seconds of a step of the fastest of those that were measured."""
    return min(cell["step_s"][name] for name in names if name in cell["step_s"])


def summary(cells: list[dict[str, Any]]) -> dict[str, object]:
    """The worst of all cells; None for what was not measured."""
    public, any_of_theirs = ([f"torch {name}" for name in some] for some in (PUBLIC, SCHEDULES))
    plain, compressed = SYSTEMS[:1], [name for name in SYSTEMS if name not in UNCOMPRESSED]
    for cell in cells:
        cell["ours_over_torch"] = fastest(cell, plain) / fastest(cell, public)
        cell["ours_over_torch_any"] = fastest(cell, plain) / fastest(cell, any_of_theirs)
        if cell["mbit"]:
            cell["torch_over_ours_with_codec"] = fastest(cell, public) / fastest(cell, compressed)
    at_50 = [cell["torch_over_ours_with_codec"] for cell in cells if cell["mbit"] == 50.0]
    return {
        "ours_over_torch_uncompressed": max(cell["ours_over_torch"] for cell in cells),
        "ours_over_torch_any_uncompressed": max(cell["ours_over_torch_any"] for cell in cells),
        "torch_over_ours_with_codec_50mbit": at_50[0] if at_50 else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, loopback and 50 Mbit/s")
    parser.add_argument("--mbit", type=float, nargs="+", help="the wires beside loopback")
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--dial", default="", help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, default=CORES[0], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    pin(arguments.core)
    if arguments.ours is not None:
        ours(arguments.ours, dial=arguments.dial)
        return
    if arguments.rank is not None:
        theirs(arguments.rank, dial=arguments.dial)
        return
    # As ^C does: so that what was started and made is undone.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    obstacle = netns.obstacle()
    if obstacle is not None:
        print(f"no network namespaces, so no slow wire: {obstacle}", file=sys.stderr)
    extent = QUICK if arguments.quick else WHOLE
    wires = arguments.mbit or (MBIT[:1] if arguments.quick else MBIT)
    plain = plain_losses(extent.steps)
    cells = [
        measure(mbit, extent=extent, plain=plain)
        for mbit in (None, *(wires if obstacle is None else ()))
    ]
    found = {
        **summary(cells),
        "targets": TARGETS,
        "left_out": obstacle and f"cells with a limit: {obstacle}",
        "micro_batches": PIECES,
        "rows": cores.BATCH,
        "tokens": cores.TOKENS,
        "cells": cells,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps({key: value for key, value in found.items() if "over" in key}, indent=2))


if __name__ == "__main__":
    main()
