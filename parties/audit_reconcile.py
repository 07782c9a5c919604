"""`splitlearn audit reconcile`: the logs of both parties against each other."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from splitlearn.audit import Reconciliation

__all__ = ["RECONCILIATION_VERSION", "reconcile"]

# Version of what --json prints. It grows with any change that a reader could stumble over.
RECONCILIATION_VERSION = 1


def reconcile(
    log_a: Annotated[Path, typer.Argument(help="Folder of one party's log.")],
    log_b: Annotated[Path, typer.Argument(help="Folder of its peer's log of the same run.")],
    key_a: Annotated[
        str,
        typer.Option(help="Verifier key of the first party, as it told you, or a file with it."),
    ] = "",
    key_b: Annotated[str, typer.Option(help="The same of the second party.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Hold two parties' logs of one run against each other, message by message.

    Both logs are verified first. Then each message in one has to be in the other, with the same
    bytes; each party's signed heads that the other holds have to be those of the log you were given.
    A message lost when a link or a process ended is explained, where no receipt says it arrived.

    \b
    Examples:
        splitlearn audit reconcile clinic/audit farm/audit
        splitlearn audit reconcile clinic/audit farm/audit --key-a clinic.key --key-b farm.key
        splitlearn audit reconcile clinic/audit farm/audit --json | jq .counts

    \b
    Exit code: 0 the logs agree, 1 they do and something was refused or against a policy,
    2 no such log, 3 a log was changed, 4 the logs do not agree, 5 cannot be told.
    """
    from parties.audit_judge import judge_of
    from parties.audit_words import check_log, key_of
    from splitlearn import audit

    check_log(log_a)
    check_log(log_b)
    found = audit.reconcile(
        log_a,
        log_b,
        key_a=key_of(key_a, option="--key-a"),
        key_b=key_of(key_b, option="--key-b"),
        judge_of=judge_of,
    )
    typer.echo(json.dumps(_as_json(found), indent=2) if as_json else "\n".join(_lines(found)))
    raise typer.Exit(found.exit)


def _as_json(found: "Reconciliation") -> dict[str, Any]:
    from parties.audit_words import report_as_json

    return {
        "version": RECONCILIATION_VERSION,
        "ok": found.exit == 0,
        "exit": int(found.exit),
        "conversations": found.conversations,
        "counts": found.counts,
        "differences": [
            {
                "class": difference.name,
                "exit": int(difference.exit),
                "here": difference.here,
                "there": difference.there,
                "sentence": difference.sentence,
            }
            for difference in found.differences
        ],
        "here": report_as_json(found.here),
        "there": report_as_json(found.there),
    }


def _lines(found: "Reconciliation") -> list[str]:
    from parties.audit_words import printable, report_lines, verdict_line
    from splitlearn.audit import CLASSES

    lines = ["HERE", *report_lines(found.here), "", "THERE", *report_lines(found.there), ""]
    lines.append(f"matched  {found.matched} messages in {found.conversations} conversations")
    for name, (_, meaning) in CLASSES.items():
        if found.counts[name]:
            lines.append(f"{name:<17} {found.counts[name]:>6}  {meaning}")
    for difference in found.differences:
        mark = "note" if difference.exit == 0 else "FAULT"
        records = ", ".join(
            f"record {record} {where}"
            for record, where in ((difference.here, "here"), (difference.there, "there"))
            if record is not None
        )
        text = f"{mark:<6}{difference.name:<17} {records}: {difference.sentence}"
        lines.append(printable(text))
    return [*lines, verdict_line(found.exit, found.exit.name)]
