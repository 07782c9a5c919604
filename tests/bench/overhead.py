"""What splitting costs in processor time: both parties together against a plain loop.

MiniLM, everything training, identity codec, over loopback with TLS, sessions, policy and log on; one
thread each. Rounds of both interleaved, CPU seconds of training steps only, medians. Writes
out/bench/overhead.json, key `cpu_ratio`, and prints the same. Run as `python -m tests.bench.overhead`;
needs the `demo` extra.
"""

import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from splitlearn.channel import Channel, Listener, connect
from splitlearn.engine.compute.arriving import RunPlace
from splitlearn.engine.compute.engine import ComputeEngine
from splitlearn.engine.events import Answered, Began, Event, StepDone
from splitlearn.engine.plain import train_plain
from splitlearn.identity import Identity
from splitlearn.roles import Role
from splitlearn.split import own_memory
from tests.cores import BATCH, CUT, TOKENS, batches, load
from tests.federation import make_identity
from tests.rig import Party, at, compute_party, trusted_engine, trusted_party, trusted_run

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "overhead.json"
TARGET = 1.25
ROUNDS = 5
STEPS = 6
MICRO_BATCHES = 4
WAIT_S = 60.0


class Clock:
    """CPU and wall seconds between the moment work began and its last step."""

    def __init__(self) -> None:
        self.cpu_s = self.wall_s = self._cpu = self._wall = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Began):
            self._cpu, self._wall = time.process_time(), time.perf_counter()
        elif isinstance(event, StepDone | Answered) and event.step == STEPS - 1:
            self.cpu_s = time.process_time() - self._cpu
            self.wall_s = time.perf_counter() - self._wall


def serve(folder: Path) -> None:
    """The compute party's process: one line with its CPU seconds for each round."""
    torch.set_num_threads(1)
    party = compute_party(folder)
    identity = Identity.load(folder / "gpuhost-compute")
    listener = Listener("127.0.0.1:0", identity=identity, expect_roles=frozenset({Role.TRUSTED}))
    print(listener.port, flush=True)
    channel = listener.accept(timeout_s=WAIT_S)
    for i in range(ROUNDS + 1):
        clock = Clock()
        place = RunPlace(checkpoints=folder / f"checkpoints-{i}", received=folder / "received")
        ComputeEngine(
            channel,
            open_gate=party.gate,
            place_of=at(place),
            deadline_s=WAIT_S,
            observe=clock,
        ).serve()
        print(json.dumps([clock.cpu_s, clock.wall_s]), flush=True)
    sys.stdin.read()
    listener.close()


def plain(model: PreTrainedModel) -> Clock:
    """One round of the plain loop."""
    clock = Clock()
    run = trusted_run(copy.deepcopy(model), cut=CUT, total=STEPS)
    own_memory(model)
    model.requires_grad_(True)
    clock(Began(0, "nobody"))
    train_plain(
        model,
        steps=partial(batches, MICRO_BATCHES),
        optimiser=run.offer.optimiser,
        schedule=run.offer.schedule,
        seed=0,
        observe=clock,
    )
    return clock


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    model = load()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trusted = make_identity(folder, "clinic", Role.TRUSTED)
        compute = make_identity(folder, "gpuhost", Role.COMPUTE)
        command = [sys.executable, "-m", "tests.bench.overhead", str(folder)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as child:
            assert child.stdout is not None
            assert child.stdin is not None
            channel = connect(
                f"127.0.0.1:{int(child.stdout.readline())}",
                identity=trusted,
                peer=compute.name,
                run="overhead",
                deadline_s=WAIT_S,
            )
            party = trusted_party(folder)
            rounds = [
                one_round(model, folder / f"round-{i}", party, channel, child.stdout.readline)
                for i in range(ROUNDS + 1)
            ][1:]
            channel.close()
            child.stdin.close()
    result = {
        "cpu_ratio": statistics.median(r["split_cpu_s"] / r["plain_cpu_s"] for r in rounds),
        "wall_ratio": statistics.median(r["split_wall_s"] / r["plain_wall_s"] for r in rounds),
        "target": TARGET,
        "steps": STEPS,
        "tokens_a_step": BATCH * TOKENS,
        "rounds": rounds,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(
        f"CPU of both parties / plain loop: {result['cpu_ratio']:.3f} (target {TARGET}); "
        f"wall time: {result['wall_ratio']:.3f}"
    )


def one_round(
    model: PreTrainedModel,
    folder: Path,
    party: Party,
    channel: Channel,
    childs_line: Callable[[], str],
) -> dict[str, float]:
    """The plain loop and the split run on the same batches."""
    unsplit = plain(copy.deepcopy(model))
    clock = Clock()
    run = trusted_run(copy.deepcopy(model), cut=CUT, total=STEPS, every=STEPS, deadline_s=WAIT_S)
    engine = trusted_engine(run, party, channel, observe=clock, checkpoints=folder)
    engine.train(partial(batches, MICRO_BATCHES))
    engine.finish()
    engine.end(None)
    childs_cpu_s, _ = json.loads(childs_line())
    return {
        "plain_cpu_s": unsplit.cpu_s,
        "plain_wall_s": unsplit.wall_s,
        "split_cpu_s": clock.cpu_s + childs_cpu_s,
        "split_wall_s": clock.wall_s,
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(Path(sys.argv[1]))
    else:
        main()
