"""Pre-training on one machine as five organisations would do it: a hub, and four that hold a language.

A real SuperLink, four SuperNodes and a discriminator, each a process of its own with its own identity,
policy and log; the same commands and files that a real federation has, which stay to be read.
"""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parties.demo_pretrain_data import DEMO, Plan, Ports, prepare
from parties.processes import COMMAND, at_work, checked
from splitlearn.errors import AuditError, ChannelError
from splitlearn.roles import Role

if TYPE_CHECKING:
    import subprocess

    from rich.table import Table

__all__ = ["demo_pretrain", "pretrained"]

# Seconds until a coordinator answers: it imports Flower and makes its database.
_START_S = 90.0


def demo_pretrain(
    out: Annotated[Path, typer.Option(help="Folder for everything that the demo writes.")] = Path(
        "out/demo-pretrain"
    ),
) -> None:
    """Pre-train one discriminator on four languages that four organisations hold.

    \b
    Example:
        splitlearn demo-pretrain

    Needs the extra "demo-pretrain" (pip install 'splitlearn[demo-pretrain]'), some minutes and no network.
    """
    from parties.console import console, interruptible

    with interruptible("run it again to start anew"):
        metrics = pretrained(out, plan=DEMO)
        console.rule()
        console.print(_table(metrics))
        console.print(
            f"everything lies in {out}; the discriminator in {out / 'hub/run/model'}", markup=False
        )
    if not metrics["audit"]["ok"]:
        raise AuditError("the logs of the demo do not verify or do not agree")


def pretrained(out: Path, *, plan: Plan) -> dict[str, Any]:
    """What a whole run of the plan measured, also left as metrics.json; what lay in `out` goes."""
    from parties.console import console

    began_s = time.monotonic()
    ports = Ports()
    prepare(out, plan=plan, ports=ports)
    with _federation(out, plan=plan, ports=ports):
        console.rule("two rounds: generators stream ids, the hub trains")
        longest_s = 2.0 * plan.deadline_s
        checked("pretrain", "pretrain.toml", cwd=out, quiet=False, timeout_s=longest_s)
    metrics: dict[str, Any] = json.loads((out / "hub/run/metrics.json").read_text())
    metrics["audit"] = _audit(out, plan=plan)
    metrics["seconds"] = round(time.monotonic() - began_s, 1)
    (out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    return metrics


@contextmanager
def _federation(out: Path, *, plan: Plan, ports: Ports) -> Iterator[None]:
    """A CA, a coordinator that serves its registrar too, and generators that joined by token."""
    from parties.console import console
    from splitlearn.identity import Registrar, create_federation, invite, join

    federation = out / "federation"
    create_federation(federation, name="demo.example")
    with Registrar(federation, port=0) as registrar:
        token = invite(federation, party="hub", role=Role.DISCRIMINATOR)
        join(token, address=registrar.address, folder=out / "hub" / "identity")
    with ExitStack() as stack:
        # Those that were started last end first: a node says goodbye to a coordinator that is there.
        coordinator = stack.enter_context(
            at_work(
                [
                    *COMMAND,
                    "coordinator",
                    "up",
                    "--folder",
                    "hub/identity",
                    "--state",
                    "hub/coordinator",
                    "--port",
                    str(ports.serve),
                    "--control-port",
                    str(ports.control),
                    "--federation",
                    "federation",
                    "--registrar-port",
                    str(ports.registrar),
                ],
                log=out / "hub" / "coordinator.txt",
                cwd=out,
            )
        )
        _wait_for(ports.registrar, coordinator, log=out / "hub" / "coordinator.txt")
        _wait_for(ports.control, coordinator, log=out / "hub" / "coordinator.txt")
        console.print(f"the coordinator runs as process {coordinator.pid}", markup=False)
        for party, language in plan.languages.items():
            token = invite(federation, party=party, role=Role.GENERATOR)
            checked(
                "generator",
                "join",
                token,
                "--registrar",
                f"127.0.0.1:{ports.registrar}",
                "--folder",
                f"{party}/identity",
                cwd=out,
            )
            node = stack.enter_context(
                at_work(
                    [*COMMAND, "generator", "run", f"{party}.toml"],
                    log=out / party / "node.txt",
                    cwd=out,
                )
            )
            console.print(
                f"{party} has joined with {language} and runs as process {node.pid}", markup=False
            )
        yield


def _wait_for(port: int, process: "subprocess.Popen[bytes]", *, log: Path) -> None:
    """Until the port answers. Raises ChannelError with the process's last line."""
    import socket

    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    raise ChannelError(f"the coordinator did not come up: {lines[-1]}")


def _audit(out: Path, *, plan: Plan) -> dict[str, Any]:
    """Each generator's log against the hub's about it."""
    from parties.auditor import judge_of
    from splitlearn import audit

    ok, matched, records = True, 0, 0
    for party in plan.languages:
        both = audit.reconcile(
            out / "hub/run" / f"audit-{party}",
            out / party / "run/tongues/audit",
            judge_of=judge_of,
        )
        ok = ok and both.exit == audit.Exit.CLEAN
        matched += both.matched
        records += both.here.records + both.there.records
    return {"ok": ok, "matched": matched, "records": records}


def _table(metrics: dict[str, Any]) -> "Table":
    from rich.table import Table

    rounds = metrics["rounds"]
    titles = [f"AUC, round {number + 1}" for number in range(len(rounds))]
    table = Table("", "batches", "tokens", *titles, title="replaced tokens told on held-out text")
    members = {member["language"]: member for member in metrics["members"].values()}
    for language, member in sorted(members.items()):
        found = [each["scores"].get(language, {}).get("auc") for each in rounds]
        table.add_row(
            language,
            str(member["batches"]),
            f"{member['tokens']:,}",
            *("-" if auc is None else f"{auc:.3f}" for auc in found),
        )
    table.add_section()
    table.add_row("bytes a token, all included", f"{metrics['bytes_per_token']:.2f}")
    table.add_row("tokens a second", f"{metrics['tokens_per_s']:.0f}")
    verdict = "verified, and they agree" if metrics["audit"]["ok"] else "NOT VERIFIED"
    logs = 2 * len(metrics["members"])
    table.add_row(f"{logs} logs", f"{verdict}: {metrics['audit']['matched']} messages")
    return table
