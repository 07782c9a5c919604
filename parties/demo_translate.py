"""Translation between two owners on one machine: one has the source text, the other the target text.

Two processes with identities, policies and logs of their own, over an emulated link of 100 Mbit/s and 20 ms:
once through codecs and once uncompressed, side by side. Then the same in one process, and from scratch for as
many steps.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from parties.demo_translate_data import RUNS, STEPS, Ports, Size, prepare
from parties.processes import COMMAND, at_work, ended
from splitlearn.errors import AuditError
from splitlearn.roles import Role

if TYPE_CHECKING:
    import subprocess

    from rich.table import Table

    from parties.decoder import PairMetrics

__all__ = [
    "MBIT",
    "RTT_MS",
    "baselines",
    "demo_translate",
    "join_both",
    "metrics_of",
    "serving",
    "summary",
    "tensor_bytes",
]

_LOCAL = (sys.executable, "-m", "parties.demo_translate_local")
MBIT, RTT_MS = 100, 20
# Seconds that the slower of two things side by side may take longer.
_PATIENCE_S = 1_800.0


def demo_translate(
    out: Annotated[Path, typer.Option(help="Folder for everything that the demo writes.")] = Path(
        "out/demo-translate"
    ),
    pairs: Annotated[
        str | None,
        typer.Option(
            help="Folder with train.LANG.txt and val.LANG.txt (or .txt.gz), or a hub's data set with "
            "a column for each language; left out: ../shared/data/multi30k."
        ),
    ] = None,
    source: Annotated[str, typer.Option(help="Language to translate from.")] = "de",
    target: Annotated[str, typer.Option(help="Language to translate to.")] = "en",
    steps: Annotated[int, typer.Option(min=1, help="Training steps; fewer is quicker.")] = STEPS,
) -> None:
    """Train AB-Net across two processes that own one language each, and compare with one process.

    \b
    Examples:
        splitlearn demo-translate
        splitlearn demo-translate --pairs bentrevett/multi30k

    Needs the extra "demo-translate" (pip install 'splitlearn[demo-translate]') and some minutes.
    """
    from parties import decoder
    from parties.console import console, interruptible

    with interruptible("run it again to start anew"):
        began_s = time.monotonic()
        ports = Ports()
        size = Size(steps=steps)
        prepare(out, where=pairs, languages=(source, target), ports=ports, size=size)
        join_both(out)
        console.rule(f"two owners, a link of {MBIT} Mbit/s and {RTT_MS} ms")
        with ExitStack() as stack:
            for name in RUNS:
                stack.enter_context(serving(out, name, ports=ports))
            uncompressed = stack.enter_context(_training(out, "uncompressed"))
            decoder.train(out / "decoder-codec.toml", threads=1)
            console.print("waiting for the uncompressed run beside it", markup=False)
            log = out / "target" / "uncompressed.txt"
            ended(uncompressed, log=log, patience_s=_PATIENCE_S)
        console.rule("the same in one process, and from scratch for as many steps")
        local, scratch = baselines(out)
        across = {name: metrics_of(out, name) for name in RUNS}
        metrics = summary(out, across=across, local=local, scratch=scratch)
        metrics["seconds"] = round(time.monotonic() - began_s, 1)
        (out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        console.rule()
        console.print(_table(metrics))
        console.print(f"everything lies in {out}", markup=False)
    if not metrics["audit"]["ok"]:
        raise AuditError("the logs of the demo do not verify or do not agree")


def join_both(out: Path) -> None:
    """A federation, and both parties in it."""
    from parties.console import console
    from splitlearn.identity import Registrar, create_federation, invite, join

    create_federation(out / "federation", name="demo.example")
    with Registrar(out / "federation", port=0) as registrar:
        for party, role in (("source", Role.ENCODER), ("target", Role.DECODER)):
            token = invite(out / "federation", party=party, role=role)
            join(token, address=registrar.address, folder=out / party / "identity")
            console.print(f"{party} has joined demo.example as {role.value} party", markup=False)


@contextmanager
def serving(out: Path, name: str, *, ports: Ports) -> Iterator[None]:
    """The encoder party of a run at work, behind an emulated link."""
    from parties.console import console

    link = [
        *COMMAND,
        *("link", "emulate"),
        *("--listen", f"127.0.0.1:{ports.link[name]}"),
        *("--to", f"127.0.0.1:{ports.encoder[name]}"),
        *("--mbit", str(MBIT), "--rtt-ms", str(RTT_MS)),
    ]
    serve = [*COMMAND, "encoder", "serve", str(out / f"encoder-{name}.toml")]
    log = out / "source" / f"{name}.txt"
    with (
        at_work(link, log=out / f"link-{name}.txt"),
        at_work([*serve, "--runs", "1", "--threads", "1"], log=log) as process,
    ):
        console.print(f"source serves run {name} as process {process.pid}", markup=False)
        yield


def _training(out: Path, name: str) -> AbstractContextManager["subprocess.Popen[bytes]"]:
    """The decoder party of a run in a process of its own."""
    train = [*COMMAND, "decoder", "train", str(out / f"decoder-{name}.toml"), "--threads", "1"]
    return at_work(train, log=out / "target" / f"{name}.txt")


def baselines(out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """In one process, and from scratch beside it for as many steps: as `baseline` tells."""
    from parties.demo_translate_local import baseline

    files = (out / "encoder-uncompressed.toml", out / "decoder-uncompressed.toml")
    result, log = out / "scratch.json", out / "scratch.txt"
    words = [*_LOCAL, *map(str, files), str(result), "--scratch"]
    with at_work(words, log=log) as process:
        local = baseline(*files, scratch=False)
        ended(process, log=log, patience_s=_PATIENCE_S)
    return local, json.loads(result.read_text())


def metrics_of(out: Path, name: str) -> "PairMetrics":
    """What the decoder party of a run measured."""
    from parties.decoder import METRICS, PairMetrics

    return msgspec.json.decode((out / "target" / name / METRICS).read_bytes(), type=PairMetrics)


def summary(
    out: Path,
    *,
    across: "dict[str, PairMetrics]",
    local: dict[str, Any],
    scratch: dict[str, Any],
) -> dict[str, Any]:
    """What metrics.json says. bytes: whole frames of activations and gradients."""
    from parties.auditor import judge_of
    from splitlearn import audit

    moved = {name: tensor_bytes(found) for name, found in across.items()}
    logs = [
        audit.reconcile(
            out / "target" / name / "audit",
            out / "source" / name / f"target-{name}" / "audit",
            judge_of=judge_of,
        )
        for name in RUNS
    ]
    plain = across["uncompressed"]
    return {
        "bleu": {
            "local": local["bleu"],
            **{name: found.bleu for name, found in across.items()},
            "scratch": scratch["bleu"],
            "signature": local["signature"],
        },
        "bytes": {
            **moved,
            "ratio": moved["codec"] / moved["uncompressed"],
            **{f"channel_{n}": f.channel_sent + f.channel_received for n, f in across.items()},
        },
        "step_s": {
            **{name: found.step_s for name, found in across.items()},
            "local": local["seconds"] / max(1, local["steps"]),
            "scratch": scratch["seconds"] / max(1, scratch["steps"]),
        },
        "steps": {"local": local["steps"], "scratch": scratch["steps"]},
        "samples": plain.samples,
        "exact": plain.losses == local["losses"],
        "audit": {
            "ok": all(each.exit == audit.Exit.CLEAN for each in logs),
            "matched": sum(each.matched for each in logs),
        },
    }


def tensor_bytes(found: "PairMetrics") -> int:
    """Whole frames of activations and gradients."""
    return found.sent.get("gradient", 0) + found.received.get("activation", 0)


def _table(metrics: dict[str, Any]) -> "Table":
    from rich.table import Table

    from parties.console import size

    table = Table(
        "", "BLEU", "steps", "bytes of tensors", title="translation, MiniLM in both halves"
    )
    bleu, moved, steps = metrics["bleu"], metrics["bytes"], metrics["steps"]
    table.add_row("in one process", f"{bleu['local']:.2f}", str(steps["local"]), "")
    for name, told in (("uncompressed", "across, uncompressed"), ("codec", "across, with codecs")):
        table.add_row(told, f"{bleu[name]:.2f}", str(steps["local"]), size(moved[name]))
    table.add_row("from scratch", f"{bleu['scratch']:.2f}", str(steps["scratch"]), "")
    table.add_section()
    table.add_row("bytes of the uncompressed", f"{moved['ratio']:.1%}")
    same = "to the bit" if metrics["exact"] else "NOT THE SAME"
    table.add_row("losses uncompressed and in one process", same)
    verdict = "verified, and they agree" if metrics["audit"]["ok"] else "NOT VERIFIED"
    table.add_row("four logs", f"{verdict}: {metrics['audit']['matched']} messages")
    return table
