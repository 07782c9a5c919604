"""What a report says, as one versioned JSON document: the page shows this and nothing else.

A reader of the JSON needs no program of ours: docs/report.schema.json describes it. Never holds a
payload's content, for the log it was made from has none.
"""

from typing import Literal

import msgspec

__all__ = [
    "DOCUMENT_VERSION",
    "MAX_BINS",
    "MAX_HEADS",
    "MAX_ROWS",
    "Conversation",
    "Document",
    "Fact",
    "Finding",
    "Flow",
    "Gap",
    "Head",
    "Heads",
    "LeakageResult",
    "LogFacts",
    "Noise",
    "NoiseBound",
    "PeerHead",
    "PolicyChange",
    "Redaction",
    "Refusal",
    "RuleUse",
    "Run",
    "Series",
    "Steps",
    "Tally",
    "Verdict",
    "dump",
    "load",
    "schema",
]

DOCUMENT_VERSION: Literal[1] = 1
# A chart of 400 bars has two pixels a bar on a screen of a thousand; no reader sees more.
MAX_BINS = 400
MAX_HEADS = 400
# Lines of one table. What is over is counted in `left_out`, never dropped in silence.
MAX_ROWS = 100


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part of the document: all fields named, no others read."""


class Finding(Entry, frozen=True, kw_only=True):
    """One thing that the check found. exit: 0 for a remark. record: index of its line in the log."""

    exit: int
    name: str
    sentence: str
    record: int | None


class Verdict(Entry, frozen=True, kw_only=True):
    """Outcome of `splitlearn audit verify` on the same records. exit: its exit code."""

    exit: int
    name: Literal["clean", "policy", "integrity", "mismatch", "uncheckable"]
    findings: tuple[Finding, ...]


class LogFacts(Entry, frozen=True, kw_only=True):
    """Which log this is about.

    key: verifier key its heads were checked with; pinned: whether it was given from outside. covered:
    records under the newest head that fits; root: that head's, in hex. unreadable: lines that are no
    records. first, last: the party's own clock in seconds since 1970, advisory.
    """

    origin: str
    key: str
    pinned: bool
    records: int
    covered: int
    root: str
    unreadable: int
    first: float | None
    last: float | None


class Conversation(Entry, frozen=True, kw_only=True):
    """One connection of a run, from its run.open. outcome: of its run.close, "open" without one.

    record: index of its run.open. receipted: outgoing messages that the peer signed for. Messages and
    bytes are counted from the payload records, not taken from the closing totals.
    """

    id: str
    record: int
    time: float
    peer: str
    peer_role: str
    binding: str
    policy: str
    outcome: str
    messages_out: int
    messages_in: int
    bytes_out: int
    bytes_in: int
    denied: int
    receipted: int


class Run(Entry, frozen=True, kw_only=True):
    """One run as its first run.open describes it. cut: first and last layer at the peer; cut and
    bottlenecks are null where ids are streamed and no model is cut.
    """

    run: str
    me: str
    my_role: str
    software: str
    purpose: str
    mode: str
    model: str
    cut: tuple[int, int] | None
    bottlenecks: tuple[str, str] | None
    codecs: dict[str, str]
    vocabulary: int | None
    job: str
    conversations: tuple[Conversation, ...]


class Flow(Entry, frozen=True, kw_only=True):
    """Messages of one kind in one direction between this party and one peer. bytes: whole frames."""

    peer: str
    peer_role: str
    direction: Literal["in", "out"]
    kind: str
    messages: int
    bytes: int


class Series(Entry, frozen=True, kw_only=True):
    """Bytes of one kind and direction in each bin of steps."""

    direction: Literal["in", "out"]
    kind: str
    bytes: tuple[int, ...]


class Steps(Entry, frozen=True, kw_only=True):
    """Bytes over training steps, all runs added up; a step repeated after a restart counts again.

    first: step number at the left edge of the first bin; width: steps a bin; last: highest step.
    outside: bytes of messages that belong to no step, such as weights.
    """

    first: int
    last: int
    width: int
    series: tuple[Series, ...]
    outside: int


class RuleUse(Entry, frozen=True, kw_only=True):
    """What one policy rule let through in one run. budget: bytes it allows a run, None where the
    policy on record has no such rule; left: what remains of it, below zero if overdrawn."""

    run: str
    policy: str
    rule: str
    direction: str
    peer_role: str
    kinds: tuple[str, ...]
    messages: int
    bytes: int
    budget: int | None
    left: int | None


class Tally(Entry, frozen=True, kw_only=True):
    """How often."""

    name: str
    count: int


class Refusal(Entry, frozen=True, kw_only=True):
    """A message that was stopped. shapes: of its parts, as dtype[rows x columns]."""

    record: int
    time: float
    run: str
    direction: Literal["in", "out"]
    peer: str
    kind: str
    rule: str
    shapes: tuple[str, ...]


class PolicyChange(Entry, frozen=True, kw_only=True):
    """From record `record` on another policy counted."""

    record: int
    run: str
    before: str
    policy: str


class Head(Entry, frozen=True, kw_only=True):
    """A signed head over the first `size` records. countersigned: names whose signature, checked with
    the key that the log names for them, stands under it too."""

    size: int
    countersigned: tuple[str, ...]


class PeerHead(Entry, frozen=True, kw_only=True):
    """The newest head of a peer's log that this party holds. mine: newest head of this log that the
    peer has countersigned, 0 for none; swaps: how often heads were exchanged."""

    peer: str
    key: str
    size: int
    root: str
    mine: int
    swaps: int


class Heads(Entry, frozen=True, kw_only=True):
    """Signed heads; at most MAX_HEADS of them are listed, the last among them."""

    total: int
    listed: tuple[Head, ...]
    peers: tuple[PeerHead, ...]


class LeakageResult(Entry, frozen=True, kw_only=True):
    """What the attack suite recovered: lower bounds. tokens: top-1 share; labels: AUC; *_by: the
    attack that got most; None where there was nothing to attack. *_limit: of the policy."""

    record: int
    run: str
    at: Literal["preflight", "canary"]
    suite: int
    seed: int
    scored: int
    tokens: float | None
    tokens_by: str
    tokens_limit: float | None
    labels: float | None
    labels_by: str
    labels_limit: float | None
    report: str


class Fact(Entry, frozen=True, kw_only=True):
    """A name and a value as text."""

    name: str
    value: str


class Noise(Entry, frozen=True, kw_only=True):
    """Outgoing payloads whose records carry the same noise accounting. releases: how many."""

    run: str
    kind: str
    facts: tuple[Fact, ...]
    releases: int
    bytes: int


class NoiseBound(Entry, frozen=True, kw_only=True):
    """What the noise on a run's gradients is worth for the labels of one example, and for nothing else.

    epsilon: at `delta`, composed over `releases`, the most that one example can have had; None where
    there is no bound: `bare` gradients left without noise, or the accounting is not one known here.
    """

    run: str
    epsilon: float | None
    delta: float
    releases: int | None
    bare: int
    unit: str
    relation: str


class Gap(Entry, frozen=True, kw_only=True):
    """The process before had ended by surprise."""

    record: int
    time: float
    torn_bytes: int


class Redaction(Entry, frozen=True, kw_only=True):
    """The key of a kept payload was destroyed. record: of the redaction; payload: of the payload."""

    record: int
    time: float
    payload: int
    blob: str
    why: str


class Document(Entry, frozen=True, kw_only=True):
    """The whole report. made: when, ISO 8601, by the clock of who made it.

    outgoing_steps: outgoing payloads that belong to a training step; without_noise: those of them
    that carry no noise accounting. left_out: rows that did not fit, by table.
    """

    version: Literal[1]
    software: str
    made: str
    verdict: Verdict
    log: LogFacts
    runs: tuple[Run, ...]
    traffic: tuple[Flow, ...]
    steps: Steps
    rules: tuple[RuleUse, ...]
    refusals: tuple[Refusal, ...]
    refused_by: tuple[Tally, ...]
    policy_changes: tuple[PolicyChange, ...]
    heads: Heads
    leakage: tuple[LeakageResult, ...]
    noise: tuple[Noise, ...]
    noise_bounds: tuple[NoiseBound, ...]
    outgoing_steps: int
    without_noise: int
    gaps: tuple[Gap, ...]
    redactions: tuple[Redaction, ...]
    limits: tuple[str, ...]
    left_out: tuple[Tally, ...]


def dump(document: Document) -> bytes:
    """The document as indented JSON with a newline at its end; the same document, the same bytes."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def load(data: bytes) -> Document:
    """Read a document back. Raises msgspec.ValidationError or DecodeError if it is none."""
    return msgspec.json.decode(data, type=Document)


def schema() -> bytes:
    """JSON Schema (2020-12) of the document: the text of docs/report.schema.json."""
    described = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:splitlearn:audit-report:{DOCUMENT_VERSION}",
        "title": "splitlearn audit report",
        **msgspec.json.schema(Document),
    }
    return msgspec.json.format(msgspec.json.encode(described), indent=2) + b"\n"
