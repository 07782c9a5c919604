"""The auditor's commands: what anybody can check of a log without trusting who wrote it. No torch."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from splitlearn.audit import Judge, Payload, Report

__all__ = ["app", "judge_of", "verify"]

app = typer.Typer(
    no_args_is_help=True,
    help="Check what was sent, from a log alone.\n\nExample:  splitlearn audit verify out/demo/trusted/audit",
)

# Version of the report that --json prints. It grows with any change that a reader could stumble over.
REPORT_VERSION = 1


@app.callback()
def audit() -> None:
    """Check what was sent, from a log alone."""


@app.command("verify")
def verify(
    log: Annotated[
        Path, typer.Argument(help="Folder of the log: the one that holds log/ and checkpoints/.")
    ],
    key: Annotated[
        str,
        typer.Option(
            help="The party's verifier key, as the party told it to you: name+id+base64, or a file "
            "with it. Without it, the key in the log's folder is believed."
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check that a log is whole, signed, and that every message in it was allowed by its policy.

    \b
    Examples:
        splitlearn audit verify runs/news/audit
        splitlearn audit verify runs/news/audit --key clinic.key
        splitlearn audit verify runs/news/audit --json

    \b
    Exit code: 0 clean, 1 something was refused or against the policy, 2 no such log,
    3 the log was changed, 5 cannot be told (unfinished, unreadable, or not yet signed).
    """
    from splitlearn import audit
    from splitlearn.errors import ManifestError

    if not log.is_dir():
        raise ManifestError(f"{log} is not a folder; give the one that holds log/ and checkpoints/")
    report = audit.verify(log, verifier_key=_key(key), judge_of=judge_of)
    typer.echo(_as_json(report) if as_json else _as_text(report))
    raise typer.Exit(report.exit)


def judge_of(policy_text: str) -> "Judge":
    """A judge that derives each recorded verdict again from the policy in the log, budgets included.

    Raises ManifestError for a text that is no policy.
    """
    from splitlearn import policy
    from splitlearn.errors import RefusedError

    ledger = policy.Ledger(policy.parse(policy_text), spent={})

    def judge(payload: "Payload") -> str | None:
        facts = policy.Facts(
            direction=payload.direction,
            peer=payload.peer_role,
            kind=payload.kind,
            codec=payload.codec,
            dtypes=frozenset(part.dtype for part in payload.parts),
            rows=payload.rows,
            columns=payload.columns,
            examples=payload.examples,
            longest=payload.longest,
            wire_bytes=payload.wire_bytes,
        )
        try:
            rule = ledger.judge(facts)
        except RefusedError as error:
            return f"recorded as allowed, but {error}"
        ledger.charge(rule, wire_bytes=payload.wire_bytes)
        return (
            None
            if payload.rules == (rule.id,)
            else f"rule {rule.id} allows it, not {payload.rules}"
        )

    return judge


def _key(told: str) -> str | None:
    """The key that --key gave, in words or as a file. Raises ManifestError if it is none."""
    if not told:
        return None
    from splitlearn.audit.checkpoint import parse_verifier_key
    from splitlearn.errors import AuditError, ManifestError

    try:
        text = told if "+" in told else Path(told).read_text(encoding="utf-8")
        parse_verifier_key(text)
    except (OSError, UnicodeDecodeError, AuditError) as error:
        raise ManifestError(
            f"--key {told} is neither a verifier key nor a file with one: {error}"
        ) from None
    return text


def _as_json(report: "Report") -> str:
    return json.dumps(
        {
            "version": REPORT_VERSION,
            "ok": report.ok,
            "exit": int(report.exit),
            "log": str(report.folder),
            "origin": report.origin,
            "key_pinned": report.pinned,
            "records": report.records,
            "covered": report.covered,
            "heads": report.heads,
            "runs": list(report.runs),
            "messages": report.messages_by_kind,
            "bytes": report.bytes_by_kind,
            "findings": [
                {
                    "exit": int(finding.exit),
                    "name": finding.name,
                    "record": finding.record,
                    "sentence": finding.sentence,
                }
                for finding in report.findings
            ],
        },
        indent=2,
    )


def _as_text(report: "Report") -> str:
    lines = [
        f"log      {report.folder}",
        f"origin   {report.origin or 'unknown'}",
        f"runs     {', '.join(report.runs) or 'none'}",
        f"records  {report.records}, of which {report.covered} under {report.heads} signed heads",
    ]
    for kind, count in report.messages_by_kind.items():
        lines.append(f"{kind:<24}{count:>10} messages{report.bytes_by_kind[kind]:>18,} bytes")
    for finding in report.findings:
        where = "" if finding.record is None else f"record {finding.record}: "
        mark = "note" if finding.exit == 0 else "FAULT"
        lines.append(f"{mark:<6}{finding.name:<10}{where}{finding.sentence}")
    verdict = "clean" if report.ok else f"{report.exit.name.lower()} (exit {int(report.exit)})"
    return "\n".join([*lines, f"verdict  {verdict}"])
