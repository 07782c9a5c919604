"""What the audit commands have in common: keys as options, findings as lines, text that cannot deceive.

A log may come from somebody hostile, so nothing of it reaches a terminal but printable characters.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from splitlearn.audit import Finding, Report

__all__ = [
    "MOST_LINES",
    "check_log",
    "finding_lines",
    "key_of",
    "printable",
    "report_as_json",
    "report_lines",
    "verdict_line",
]


# Of a log with a thousand faults of one kind, a person reads the first.
MOST_LINES = 20


def printable(text: object) -> str:
    """`text` without what could move a cursor or colour a line.

    >>> printable("news" + chr(27) + "[2J")
    'news?[2J'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def check_log(log: Path) -> None:
    """Raises ManifestError for what is no folder."""
    from splitlearn.errors import ManifestError

    if not log.is_dir():
        raise ManifestError(f"{log} is not a folder; give the one that holds log/ and checkpoints/")


def key_of(told: str, *, option: str) -> str | None:
    """The key that an option gave, in words or as a file; None for none. Raises ManifestError."""
    if not told:
        return None
    from splitlearn.audit.checkpoint import parse_verifier_key
    from splitlearn.errors import AuditError, ManifestError

    try:
        text = told if "+" in told else Path(told).read_text(encoding="utf-8")
        parse_verifier_key(text)
    except (OSError, UnicodeDecodeError, AuditError) as error:
        raise ManifestError(
            f"{option} {told} is neither a verifier key nor a file with one: {error}"
        ) from None
    return text


def report_as_json(report: "Report") -> dict[str, Any]:
    """A report as JSON takes it."""
    return {
        "ok": report.ok,
        "exit": int(report.exit),
        "log": str(report.folder),
        "origin": report.origin,
        "key_pinned": report.pinned,
        "records": report.records,
        "covered": report.covered,
        "heads": report.heads,
        "countersigned": dict(report.countersigned),
        "receipts": report.receipts,
        "unreceipted": report.unreceipted,
        "kept": report.kept,
        "redacted": report.redacted,
        "runs": list(report.runs),
        "messages": dict(report.messages_by_kind),
        "bytes": dict(report.bytes_by_kind),
        "findings": [
            {
                "exit": int(finding.exit),
                "name": finding.name,
                "record": finding.record,
                "sentence": finding.sentence,
            }
            for finding in report.findings
        ],
    }


def report_lines(report: "Report") -> list[str]:
    """A report as a person reads it, without its verdict."""
    lines = [
        f"log      {report.folder}",
        f"origin   {report.origin or 'unknown'}",
        f"runs     {', '.join(report.runs) or 'none'}",
        f"records  {report.records}, of which {report.covered} under {report.heads} signed heads",
    ]
    for name, size in report.countersigned.items():
        lines.append(f"         {size} of them countersigned by {name}")
    lines.append(f"receipts {report.receipts}; {report.unreceipted} messages sent are under none")
    if report.kept:
        lines.append(f"frames   {report.kept} kept sealed, {report.redacted} of them destroyed")
    for kind, count in report.messages_by_kind.items():
        lines.append(f"{kind:<24}{count:>10} messages{report.bytes_by_kind[kind]:>18,} bytes")
    return [*map(printable, lines), *finding_lines(report.findings)]


def finding_lines(findings: Iterable["Finding"]) -> Sequence[str]:
    """One line each, the grave ones marked; of one name no more than MOST_LINES."""
    lines = []
    seen: Counter[str] = Counter()
    for finding in findings:
        seen[finding.name] += 1
        if seen[finding.name] > MOST_LINES:
            continue
        where = "" if finding.record is None else f"record {finding.record}: "
        mark = "note" if finding.exit == 0 else "FAULT"
        lines.append(printable(f"{mark:<6}{finding.name:<16} {where}{finding.sentence}"))
    more = {name: count - MOST_LINES for name, count in seen.items() if count > MOST_LINES}
    return [
        *lines,
        *(f"...   {name:<16} and {count} more; see --json" for name, count in more.items()),
    ]


def verdict_line(exit_code: int, name: str) -> str:
    """The last line of every report."""
    return f"verdict  {'clean' if exit_code == 0 else f'{name.lower()} (exit {exit_code})'}"
