"""What a step takes of memory: bounded by the window, not by how many micro-batches there are.

MiniLM, everything training, micro-batches of one size, both parties in fresh processes for each run, over
loopback with TLS, sessions, policy and log on. The peak is the kernel's own of resident memory, over the
whole of a process's life, so that models, weights that travel and the optimiser are in it. With a window
of one activation, 4 micro-batches fill it already; with the usual one it takes more, and 64 are held
against as many as that. A run in the order fill-drain, which holds every graph of the bottom, shows that
graphs would be seen. Live graphs are counted in tests/exactness/test_memory.py.

Writes out/bench/memory.json with `rss_64_over_4` and `rss_64_over_full_window`, the worse party of each, and
`rss_fill_drain_over_4` of the trusted party. Run as `python -m tests.bench.memory`; `--quick` for the first
alone. Linux; needs the `demo` extra.
"""

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from splitlearn.channel import connect
from splitlearn.engine.trusted.run import IN_FLIGHT
from splitlearn.identity import Identity
from splitlearn.roles import Role
from splitlearn.tasks import Batch
from tests import cores, netns
from tests.bench.pipelining import Child
from tests.cores import CORES, CUT, pin
from tests.federation import make_identity
from tests.rig import COMPUTE, trusted_engine, trusted_party, trusted_run

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "memory.json"
TARGETS = {"rss_64_over_4": 1.05, "rss_64_over_full_window": 1.05}
ROWS = 2
# The second has the optimiser's state from its beginning.
STEPS = 2


@dataclass(frozen=True)
class Run:
    """Micro-batches of a step, in a window, in an order."""

    micro_batches: int
    in_flight: int
    order: str = "1f1b"


NARROW = Run(4, 1), Run(64, 1)
# No fewer micro-batches than there can be graphs of the bottom.
USUAL = Run(2 * IN_FLIGHT + 1, IN_FLIGHT), Run(64, IN_FLIGHT)
DRAINED = Run(64, 1, "fill-drain")


def train(folder: Path, *, dial: str, run: Run) -> None:
    """The trusted party's process; it says when it is done and waits to be looked at."""
    channel = connect(
        dial,
        identity=Identity.load(folder / "clinic-trusted"),
        peer=COMPUTE,
        run="memory",
        deadline_s=cores.WAIT_S,
    )
    settings = trusted_run(cores.load(), cut=CUT, total=STEPS, every=STEPS, deadline_s=cores.WAIT_S)
    settings = replace(settings, in_flight=run.in_flight, order=run.order)
    engine = trusted_engine(settings, trusted_party(folder), channel)
    engine.train(lambda step: batches(run.micro_batches, step))
    engine.finish()
    engine.end(None)
    print("done", flush=True)
    sys.stdin.read()


def batches(micro_batches: int, step: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(step)
    return [cores.made(ROWS, generator) for _ in range(micro_batches)]


def measure(run: Run) -> dict[str, float]:
    """MiB of resident memory at most, by party."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def child(module: str, *arguments: str) -> Child:
            made = Child(netns.here, module, *arguments)
            stack.callback(made.end)
            return made

        make_identity(folder, "clinic", Role.TRUSTED)
        make_identity(folder, "gpuhost", Role.COMPUTE)
        compute = child("tests.bench.links", "--serve", str(folder), "--core", str(CORES[-1]))
        dial = f"127.0.0.1:{compute.hear()}"
        compute.tell("1")
        trusted = child(
            *("tests.bench.memory", "--train", str(folder), "--dial", dial),
            *("--run", json.dumps(asdict(run))),
        )
        trusted.hear()
        found = {"trusted_mib": peak_mib(trusted.pid), "compute_mib": peak_mib(compute.pid)}
    print(f"{run}: {found['trusted_mib']:.0f} and {found['compute_mib']:.0f} MiB", flush=True)
    return found


def peak_mib(pid: int) -> float:
    """Of a process since its program began; what it was forked from does not count."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 2**10
    raise SystemExit(f"the kernel keeps no peak of resident memory of process {pid}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the window of one alone")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--dial", default="", help=argparse.SUPPRESS)
    parser.add_argument("--run", default="{}", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    if arguments.train is not None:
        pin(CORES[0])
        train(arguments.train, dial=arguments.dial, run=Run(**json.loads(arguments.run)))
        return
    runs = NARROW if arguments.quick else (*NARROW, *USUAL, DRAINED)
    found = {run: measure(run) for run in runs}

    def worse(pair: tuple[Run, Run]) -> float | None:
        few, many = pair
        if few not in found:
            return None
        return max(found[many][party] / found[few][party] for party in found[few])

    drained = found.get(DRAINED)
    result: dict[str, object] = {
        "rss_64_over_4": worse(NARROW),
        "rss_64_over_full_window": worse(USUAL),
        "rss_fill_drain_over_4": drained
        and drained["trusted_mib"] / found[NARROW[0]]["trusted_mib"],
        "targets": TARGETS,
        "rows": ROWS,
        "tokens": cores.TOKENS,
        "runs": [asdict(run) | peaks for run, peaks in found.items()],
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({key: value for key, value in result.items() if "over" in key}, indent=2))


if __name__ == "__main__":
    main()
