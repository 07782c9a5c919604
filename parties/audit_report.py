"""`splitlearn audit report` and `export`: what an auditor shows to others, and what others may have."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from splitlearn.report import Document

__all__ = ["export", "report"]

_Log = Annotated[
    Path, typer.Argument(help="Folder of the log: the one that holds log/ and checkpoints/.")
]


def report(
    log: _Log,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Where to write the page.", show_default=True)
    ] = Path("report.html"),
    json: Annotated[
        Path | None,
        typer.Option(
            help="Also write the same content as JSON; docs/report.schema.json has its form."
        ),
    ] = None,
    statement: Annotated[
        Path | None,
        typer.Option(
            help="Also write a signed statement (in-toto, in a DSSE envelope) that this page was "
            "made of the log with this head. Needs --identity."
        ),
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option(help="Folder of your identity; its log.key signs the statement."),
    ] = None,
    key: Annotated[
        str,
        typer.Option(
            help="The party's verifier key, as the party told it to you: name+id+base64, or a file "
            "with it. Without it, the key in the log's folder is believed, and the page says so."
        ),
    ] = "",
    peer_key: Annotated[
        list[str] | None,
        typer.Option(help="The same of a peer; see splitlearn audit verify."),
    ] = None,
) -> None:
    """Check a log as verify does, and write what it shows as one page for people.

    The page needs no network and runs no script; it can be mailed, printed and kept. It holds who
    sent what to whom, bytes per step, the policy's rules and refusals, the signed heads, what
    attacks recovered, noise, gaps, redactions, and what none of this shows.

    \b
    Examples:
        splitlearn audit report runs/news/audit -o news.html
        splitlearn audit report runs/news/audit --key clinic.key --json news.json
        splitlearn audit report runs/news/audit --statement news.dsse.json --identity ~/auditor

    \b
    Exit code: that of splitlearn audit verify. The page is written whatever it is.
    """
    from parties.audit_judge import judge_of
    from parties.audit_words import check_log, key_of, verdict_line
    from splitlearn import __version__, audit
    from splitlearn.errors import ManifestError
    from splitlearn.identity import files
    from splitlearn.report import collect, dump, render

    check_log(log)
    if (statement is None) != (identity is None):
        raise ManifestError("--statement and --identity go together: one is signed with the other")
    verifier_key = key_of(key, option="--key")
    found = audit.verify(
        log,
        verifier_key=verifier_key,
        peer_keys=[told for word in peer_key or () if (told := key_of(word, option="--peer-key"))],
        judge_of=judge_of,
    )
    document = collect(
        log,
        found,
        verifier_key=verifier_key,
        software=f"splitlearn {__version__}",
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
    )
    page = render(document).encode()
    written = {out: page}
    if json is not None:
        written[json] = dump(document)
    if statement is not None and identity is not None:
        written[statement] = _statement(document, page, name=out.name, identity=identity)
    if len(written) < 1 + sum(each is not None for each in (json, statement)):
        raise ManifestError("two of the files to write have the same name; choose different ones")
    for path, data in written.items():
        files.write(path, data)
        typer.echo(f"wrote    {path}")
    typer.echo(verdict_line(found.exit, found.exit.name))
    raise typer.Exit(found.exit)


def export(
    log: _Log,
    to: Annotated[
        Path,
        typer.Option(help="The copy: an archive where it ends in .tar, a new folder otherwise."),
    ],
    table: Annotated[
        Literal["csv", "jsonl"] | None,
        typer.Option(help="Add the records as a flat table, for a spreadsheet or a script."),
    ] = None,
    with_blobs: Annotated[
        bool,
        typer.Option(
            "--with-blobs", help="Add the sealed frames, which nobody can open without the run key."
        ),
    ] = False,
    with_run_key: Annotated[
        bool,
        typer.Option(
            "--with-run-key",
            help="Add the run key too: whoever gets the copy can then read every sealed frame.",
        ),
    ] = False,
) -> None:
    """Copy a log for an outsider: lines, signed heads, peers' heads, verifier keys, nothing else.

    The copy verifies like the log itself. The same log gives the same archive, to the byte.

    \b
    Examples:
        splitlearn audit export runs/news/audit --to news.tar
        splitlearn audit export runs/news/audit --to news --table csv
    """
    from parties.audit_words import check_log
    from splitlearn.report.export import Contents
    from splitlearn.report.export import export as copy

    check_log(log)
    names = copy(log, to, contents=Contents(blobs=with_blobs, run_key=with_run_key, table=table))
    typer.echo(f"wrote    {to}: {len(names)} files")
    if with_run_key:
        typer.echo("note     it holds the run key: whoever has it reads every sealed frame")


def _statement(document: "Document", page: bytes, *, name: str, identity: Path) -> bytes:
    from splitlearn.identity.party import Keys
    from splitlearn.report.statement import write

    return write(document, report=page, name=name, key=Keys.load(identity).log)
