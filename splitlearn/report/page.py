"""A document as one HTML file: no script, no request, readable on a phone, on paper and by ear.

Everything from a log is hostile text: it passes `visible` and the template's escape, nothing else.
Decides nothing and computes no verdict; it shows what the document says.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from splitlearn.report.charts import arrow, leakage_chart, steps_chart, timeline_chart
from splitlearn.report.document import Document, Flow, LeakageResult
from splitlearn.report.tables import (
    changes_table,
    conversations_table,
    findings_table,
    gaps_table,
    kind_name,
    noise_table,
    party_name,
    peer_heads_table,
    redactions_table,
    refusals_table,
    rules_table,
    traffic_table,
)
from splitlearn.report.words import count, instant, plural, short, size, visible

__all__ = ["render"]


def render(document: Document) -> str:
    """The page. The same document gives the same page, to the byte."""
    return _TEMPLATE.render(
        doc=document,
        verdict=_VERDICTS[document.verdict.name],
        tiles=_tiles(document),
        findings=findings_table(document),
        found=_found(document),
        peers=_peers(document),
        traffic=traffic_table(document),
        steps_chart=steps_chart(document.steps) if document.steps.series else None,
        legend=[
            (each.direction, each.kind, size(sum(each.bytes))) for each in document.steps.series
        ],
        rules=rules_table(document),
        refusals=refusals_table(document),
        refused_by=document.refused_by,
        changes=changes_table(document),
        timeline=timeline_chart(document.log, document.heads, marks=_marks(document)),
        peer_heads=peer_heads_table(document),
        leakage=[_leak(each, document) for each in document.leakage],
        noise=noise_table(document),
        gaps=gaps_table(document),
        redactions=redactions_table(document),
        runs=[(run, conversations_table(run.conversations)) for run in document.runs],
        left_out={tally.name: tally.count for tally in document.left_out},
    )


@dataclass(frozen=True)
class Verdict:
    """How an outcome is shown: an icon, a word and a sentence, never a colour alone."""

    icon: str
    word: str
    sentence: str


@dataclass(frozen=True)
class Peer:
    """One peer in the picture of who sent what to whom."""

    name: str
    role: str
    out: str
    into: str
    arrow_out: Markup
    arrow_in: Markup


@dataclass(frozen=True)
class Leak:
    """One measurement: its charts, and what it was measured on."""

    title: str
    over: bool
    charts: tuple[Markup, ...]
    notes: tuple[str, ...]


_VERDICTS = {
    "clean": Verdict(
        "check",
        "Clean",
        "The log adds up: no record was changed, dropped or reordered under its signed heads, and every "
        "message on record was allowed by the policy on record.",
    ),
    "policy": Verdict(
        "warning",
        "Policy finding",
        "The log adds up. Something in it was refused, went against its policy, or leaked more than its "
        "policy allows. The findings say what.",
    ),
    "integrity": Verdict(
        "stop",
        "Does not add up",
        "The log was changed, cut or forged, or its writer failed. Take no figure below as evidence "
        "until the findings are explained.",
    ),
    "mismatch": Verdict(
        "stop",
        "The logs differ",
        "This log and that of a peer tell two stories. The findings name the differences.",
    ),
    "uncheckable": Verdict(
        "question",
        "Cannot be told",
        "Part of the log is unfinished, unsigned or unreadable. What it says may be true; it cannot be "
        "checked from what is here.",
    ),
}


def _found(document: Document) -> str:
    left_out = sum(tally.count for tally in document.left_out if tally.name == "findings")
    grave = sum(finding.exit > 0 for finding in document.verdict.findings)
    remarks = len(document.verdict.findings) - grave + left_out
    return f"{plural(grave, 'finding')}, {plural(remarks, 'remark')}"


def _tiles(document: Document) -> list[tuple[str, str, str]]:
    out = [flow for flow in document.traffic if flow.direction == "out"]
    into = [flow for flow in document.traffic if flow.direction == "in"]
    held = max((head.size for head in document.heads.listed if head.countersigned), default=0)
    refused = sum(tally.count for tally in document.refused_by)
    log = document.log
    return [
        ("Records", count(log.records), f"{count(log.covered)} under a signed head"),
        ("Sent", *_amount(out)),
        ("Received", *_amount(into)),
        ("Refused", count(refused), "messages stopped by the policy"),
        (
            "Countersigned",
            f"{count(held)}" if held else "none",
            "records that a peer vouches for" if held else "no peer holds a head of this log",
        ),
    ]


def _amount(flows: Iterable[Flow]) -> tuple[str, str]:
    flows = list(flows)
    if not flows:
        return "nothing", "no message"
    messages = plural(sum(flow.messages for flow in flows), "message")
    return size(sum(flow.bytes for flow in flows)), messages


def _peers(document: Document) -> list[Peer]:
    most = max((flow.bytes for flow in document.traffic), default=0)
    found: dict[tuple[str, str], list[Flow]] = {}
    for flow in document.traffic:
        found.setdefault((flow.peer, flow.peer_role), []).append(flow)
    peers = []
    for (name, role), flows in found.items():
        sums = {way: [flow for flow in flows if flow.direction == way] for way in ("out", "in")}
        parts = {way: sum(flow.bytes for flow in each) / max(most, 1) for way, each in sums.items()}
        peers.append(
            Peer(
                name=party_name(name),
                role=role,
                out=", ".join(_amount(sums["out"])) if sums["out"] else "nothing",
                into=", ".join(_amount(sums["in"])) if sums["in"] else "nothing",
                arrow_out=arrow("out", part=parts["out"]) if sums["out"] else Markup(),
                arrow_in=arrow("in", part=parts["in"]) if sums["in"] else Markup(),
            )
        )
    return peers


def _marks(document: Document) -> dict[str, list[int]]:
    marks = {
        "gap": [each.record for each in document.gaps],
        "redaction": [each.record for each in document.redactions],
        "refusal": [each.record for each in document.refusals],
        "policy": [each.record for each in document.policy_changes],
    }
    return {name: places for name, places in marks.items() if places}


def _leak(result: LeakageResult, document: Document) -> Leak:
    run = next((each for each in document.runs if each.run == result.run), None)
    where = "payloads of canary batches" if result.at == "canary" else "public text in their place"
    notes = [f"measured on {where}, {plural(result.scored, 'token')} scored"]
    if run is not None and run.cut is not None and run.bottlenecks is not None:
        lower, upper = run.bottlenecks
        notes.append(
            f"layers {run.cut[0]} to {run.cut[1]} at the peer, bottlenecks {bottleneck(lower)} and "
            f"{bottleneck(upper)}, activations as {run.codecs.get('activation', 'unknown')}"
        )
    charts = []
    if result.tokens is not None:
        charts.append(leakage_chart(result, of="tokens"))
        notes.append(f"best attack on the text: {result.tokens_by or 'not named'}")
    if result.labels is not None:
        charts.append(leakage_chart(result, of="labels"))
        notes.append(
            f"best attack on the labels: {result.labels_by or 'not named'} "
            "(AUC 0.5, the thin line, is guessing; 1 is certainty)"
        )
    if not charts:
        notes.append("there was nothing to attack")
    notes.append(
        f"attack suite {result.suite}, seed {result.seed}; full figures in the file with SHA-256 "
        f"{short(result.report)}; record {count(result.record)}"
    )
    over = any(
        limit is not None and value is not None and value > limit
        for value, limit in (
            (result.tokens, result.tokens_limit),
            (result.labels, result.labels_limit),
        )
    )
    title = (
        f"Before run {result.run}, on public text"
        if result.at == "preflight"
        else f"On what run {result.run} really sent"
    )
    return Leak(title, over, tuple(charts), tuple(notes))


def bottleneck(spec: str) -> str:
    """Method and rank in words.

    >>> bottleneck("pca:64"), bottleneck("none:0")
    ('pca of rank 64', 'none')
    """
    method, _, rank = spec.partition(":")
    return method if rank in {"", "0"} else f"{method} of rank {rank}"


def _shown(value: object) -> object:
    """What every expression of the template passes before it is escaped."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value, limit=_MAX_TEXT)
    return value


# A finding's sentence quotes at most a path and some numbers; a key takes 150 characters.
_MAX_TEXT = 1000

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    finalize=_shown,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters.update(
    size=size, count=count, instant=instant, party=party_name, kind=kind_name, bottleneck=bottleneck
)
_TEMPLATE = _ENVIRONMENT.get_template("page.html.j2")
