"""The report's tables: rows of the document as cells of text, one function a table.

Puts into words and computes shares; decides nothing. Text from a log goes into cells as it is: the
page makes it visible and escapes it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from splitlearn.report.charts import meter
from splitlearn.report.document import Conversation, Document
from splitlearn.report.words import KINDS, count, instant, plural, share, short, size, visible

__all__ = [
    "Cell",
    "Column",
    "Table",
    "changes_table",
    "conversations_table",
    "findings_table",
    "gaps_table",
    "kind_name",
    "noise_table",
    "party_name",
    "peer_heads_table",
    "redactions_table",
    "refusals_table",
    "rules_table",
    "traffic_table",
]


# Characters of a word that a column of a printed page holds.
MAX_WORD = 22


@dataclass(frozen=True)
class Cell:
    """One field of a table. note: smaller, below. mark: a drawing. code: set in the fixed font."""

    text: str
    note: str = ""
    mark: Markup = field(default_factory=Markup)
    code: bool = False
    tone: str = ""

    @property
    def long(self) -> bool:
        """Whether a word in it may have to be broken to fit a column."""
        words = f"{visible(self.text)} {visible(self.note)}".split()
        return any(len(word) > MAX_WORD for word in words)

    @property
    def whole(self) -> bool:
        """Whether it is so short that it need not be broken at all."""
        return len(visible(self.text)) <= MAX_WORD


@dataclass(frozen=True)
class Column:
    """css: "number", or "title" for what names the row, or empty."""

    title: str
    css: str


@dataclass(frozen=True)
class Table:
    """A table with its caption. name: in `left_out`."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


_SEVERITY = {0: "Remark", 1: "Policy", 3: "Integrity", 4: "Mismatch", 5: "Not checkable"}


def findings_table(document: Document) -> Table:
    """What the check found."""
    rows = [
        (
            Cell(_SEVERITY.get(each.exit, "Finding"), tone=f"exit-{each.exit}"),
            Cell(each.sentence[:1].upper() + each.sentence[1:]),
            Cell("" if each.record is None else count(each.record)),
        )
        for each in document.verdict.findings
    ]
    return _table("findings", "Findings, gravest first", ("*Kind", "Finding", "#Record"), rows)


def traffic_table(document: Document) -> Table:
    """Messages by peer, direction and kind."""
    total = sum(flow.bytes for flow in document.traffic)
    several = len({flow.peer for flow in document.traffic}) > 1
    rows = []
    for flow in sorted(document.traffic, key=lambda f: (f.peer, f.direction == "in", -f.bytes)):
        part = flow.bytes / max(total, 1)
        way = "sent" if flow.direction == "out" else "received"
        other = f" {'to' if flow.direction == 'out' else 'from'} {party_name(flow.peer)}"
        rows.append(
            (
                Cell(kind_name(flow.kind), note=KINDS.get(flow.kind, "")),
                Cell(way + other if several else way),
                Cell(count(flow.messages)),
                Cell(size(flow.bytes)),
                Cell(share(part), mark=meter(part, css=f"k-{flow.kind}")),
            )
        )
    return _table(
        "traffic",
        "Messages by peer, direction and kind",
        ("*Kind", "Direction", "#Messages", "#Bytes", "#Share of all bytes"),
        rows,
    )


def rules_table(document: Document) -> Table:
    """Each rule against its budget."""
    rows = []
    several = len({use.run for use in document.rules}) > 1
    for use in document.rules:
        spent = use.bytes / use.budget if use.budget else float(use.bytes > 0)
        over = use.left is not None and use.left < 0
        note = ", ".join(kind_name(kind) for kind in use.kinds)
        towards = "to" if use.direction == "out" else "from"
        rows.append(
            (
                Cell(f"{use.run}: {use.rule}" if several else use.rule, note=note),
                Cell(
                    f"{towards} a {use.peer_role} party"
                    if use.peer_role
                    else "no rule of the policy on record",
                    tone="" if use.peer_role else "exit-1",
                ),
                Cell(count(use.messages) if use.messages else "not used"),
                Cell(size(use.bytes)),
                Cell(
                    "none" if use.left is None else f"{size(use.left)} left",
                    note="" if use.budget is None else f"{share(spent)} of {size(use.budget)} used",
                    mark=meter(spent, css="over" if over else "fill"),
                    tone="exit-1" if over else "",
                ),
            )
        )
    return _table(
        "rules",
        "Rules of the policy, and what each let through",
        ("*Rule", "Allows", "#Messages", "#Bytes", "#Budget of a run"),
        rows,
    )


def refusals_table(document: Document) -> Table:
    """What was stopped."""
    rows = [
        (
            Cell(count(each.record), note=instant(each.time)),
            Cell(each.rule, code=True),
            Cell(
                f"{kind_name(each.kind)} {'to' if each.direction == 'out' else 'from'} "
                f"{party_name(each.peer)}"
            ),
            Cell(", ".join(each.shapes) or "no tensors", code=bool(each.shapes)),
        )
        for each in document.refusals
    ]
    return _table(
        "refusals", "Messages that were stopped", ("Record", "Rule", "Message", "Form"), rows
    )


def changes_table(document: Document) -> Table:
    """Changes of policy."""
    rows = [
        (
            Cell(count(each.record)),
            Cell(each.run),
            Cell(short(each.before), code=True),
            Cell(short(each.policy), code=True),
        )
        for each in document.policy_changes
    ]
    return _table(
        "policy_changes",
        "Changes of policy",
        ("Record", "Run", "Policy before", "Policy after"),
        rows,
    )


def peer_heads_table(document: Document) -> Table:
    """Heads swapped with peers."""
    rows = [
        (
            Cell(party_name(each.peer), note=f"key {each.key}"),
            Cell(count(each.size), note=f"root {short(each.root)}"),
            Cell(count(each.mine) if each.mine else "none"),
            Cell(count(each.swaps)),
        )
        for each in document.heads.peers
    ]
    return _table(
        "peers",
        "Heads swapped with peers",
        ("*Peer", "#Its records, held here", "#Records here, held there", "#Swaps"),
        rows,
    )


def noise_table(document: Document) -> Table:
    """Payloads with noise."""
    rows = [
        (
            Cell(kind_name(each.kind), note=f"run {each.run}"),
            Cell("; ".join(f"{fact.name} {fact.value}" for fact in each.facts)),
            Cell(count(each.releases)),
            Cell(size(each.bytes)),
        )
        for each in document.noise
    ]
    return _table(
        "noise",
        "Payloads with noise, by their accounting",
        ("*Kind", "Accounting on record", "#Releases", "#Bytes"),
        rows,
    )


def gaps_table(document: Document) -> Table:
    """Where the process had ended by surprise."""
    rows = [
        (
            Cell(count(each.record)),
            Cell(instant(each.time)),
            Cell(size(each.torn_bytes) if each.torn_bytes else "nothing"),
        )
        for each in document.gaps
    ]
    return _table(
        "gaps", "Gaps", ("Record", "Time of the restart", "#Dropped of an unfinished line"), rows
    )


_WHY = {
    "request": "on request",
    "retention": "its time to be kept was over",
    "mistake": "it should not have been kept",
}


def redactions_table(document: Document) -> Table:
    """Destroyed keys."""
    rows = [
        (
            Cell(count(each.record), note=instant(each.time)),
            Cell(count(each.payload)),
            Cell(_WHY.get(each.why, each.why)),
            Cell(short(each.blob), code=True),
        )
        for each in document.redactions
    ]
    return _table(
        "redactions", "Redactions", ("Record", "Payload of record", "Why", "Sealed frame"), rows
    )


_OUTCOMES = {
    "open": "not closed: under way, or interrupted",
    "done": "done",
    "failed": "failed",
    "interrupted": "interrupted",
    "refused": "stopped by a refusal",
}


def conversations_table(conversations: Sequence[Conversation]) -> Table:
    """The conversations of one run."""
    rows = [
        (
            Cell(count(each.record), note=instant(each.time)),
            Cell(party_name(each.peer), note=f"certificate {short(each.binding)}"),
            Cell(_OUTCOMES.get(each.outcome, each.outcome)),
            Cell(size(each.bytes_out), note=plural(each.messages_out, "message")),
            Cell(size(each.bytes_in), note=plural(each.messages_in, "message")),
            Cell(f"{count(each.receipted)} of {count(each.messages_out)}"),
            Cell(short(each.policy), code=True),
        )
        for each in conversations
    ]
    return _table(
        "conversations",
        "Conversations",
        ("From record", "Peer", "End", "#Sent", "#Received", "#Signed for by the peer", "Policy"),
        rows,
    )


def kind_name(kind: str) -> str:
    """A kind of message in words."""
    return kind.replace("_", " ")


def party_name(uri: str) -> str:
    """A party's name without what all of them begin with; any other text as it is.

    >>> party_name("spiffe://example.org/party/clinic/role/trusted"), party_name("x/party/role/")
    ('clinic (example.org)', 'x/party/role/')
    """
    parts = uri.removeprefix("spiffe://").split("/")
    if uri.startswith("spiffe://") and len(parts) == 5 and parts[1::2] == ["party", "role"]:
        return f"{parts[2]} ({parts[0]})"
    return uri


_CSS = {"#": "number", "*": "title"}


def _table(
    name: str, caption: str, columns: tuple[str, ...], rows: Iterable[tuple[Cell, ...]]
) -> Table:
    """Columns that begin with # hold numbers, one that begins with * names its row."""
    parsed = tuple(Column(each.lstrip("#*"), _CSS.get(each[0], "")) for each in columns)
    return Table(name, caption, parsed, tuple(rows))
