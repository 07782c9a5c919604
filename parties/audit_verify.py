"""`splitlearn audit verify`: one log against itself."""

import json
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["REPORT_VERSION", "verify"]

# Version of the report that --json prints. It grows with any change that a reader could stumble over.
REPORT_VERSION = 2


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
    peer_key: Annotated[
        list[str] | None,
        typer.Option(
            help="The same of a peer whose receipts and countersignatures stand in the log. May be "
            "given several times. Without it, the keys in the log are believed."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check that a log is whole and signed, and that its policy allowed every message in it.

    Also that each receipt is for exactly these messages, that the peer countersigned what the log
    says, and that no frame that was kept is gone without a record.

    \b
    Examples:
        splitlearn audit verify runs/news/audit
        splitlearn audit verify runs/news/audit --key clinic.key --peer-key farm.key
        splitlearn audit verify runs/news/audit --json

    \b
    In the CI of another organisation, with keys that came another way than the log:
        splitlearn audit verify log --key clinic.key --json > verdict.json || exit $?

    \b
    Exit code: 0 clean, 1 something was refused or against the policy, 2 no such log,
    3 the log was changed, 4 the peer showed a rewritten log, 5 cannot be told (unfinished,
    unreadable, or not yet signed).
    """
    from parties.audit_judge import judge_of
    from parties.audit_words import check_log, key_of, report_as_json, report_lines, verdict_line
    from splitlearn import audit

    check_log(log)
    report = audit.verify(
        log,
        verifier_key=key_of(key, option="--key"),
        peer_keys=[told for word in peer_key or () if (told := key_of(word, option="--peer-key"))],
        judge_of=judge_of,
    )
    if as_json:
        typer.echo(json.dumps({"version": REPORT_VERSION, **report_as_json(report)}, indent=2))
    else:
        verdict = verdict_line(report.exit, report.exit.name)
        typer.echo("\n".join([*report_lines(report), verdict]))
    raise typer.Exit(report.exit)
