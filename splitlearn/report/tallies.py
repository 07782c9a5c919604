"""What is counted while a log is read, and how each count becomes a row of the document.

Pure: reads no file, keeps no record longer than its caller does.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from splitlearn import policy as policies
from splitlearn.audit import Exit, Finding, Leakage, PartShape, Payload, Report, RunOpen
from splitlearn.report import document as doc
from splitlearn.report.document import MAX_ROWS
from splitlearn.report.releases import DELTA, Releases, epsilon_of

__all__ = [
    "VERDICTS",
    "Bound",
    "NoiseSum",
    "Sum",
    "Table",
    "Talk",
    "finding_row",
    "flat",
    "gravest_first",
    "leakage_row",
    "rule_row",
    "run_row",
    "shapes",
]

# Shapes shown of one refused message; a payload of many weights has hundreds of parts.
MAX_SHAPES = 6

_Names: TypeAlias = Literal["clean", "policy", "integrity", "mismatch", "uncheckable"]
VERDICTS: dict[int, _Names] = {
    Exit.CLEAN: "clean",
    Exit.POLICY: "policy",
    Exit.INTEGRITY: "integrity",
    Exit.MISMATCH: "mismatch",
    Exit.UNCHECKABLE: "uncheckable",
}


@dataclass
class Table:
    """A table that is full after `limit` rows; the others are counted."""

    limit: int = MAX_ROWS
    left_out: int = 0
    count: int = 0

    def room(self) -> bool:
        """Whether one more row fits; it counts as taken or as left out."""
        fits = self.count < self.limit
        self.count += fits
        self.left_out += not fits
        return fits


@dataclass
class Sum:
    """Messages and the bytes of their frames."""

    messages: int = 0
    bytes: int = 0

    def add(self, wire_bytes: int) -> None:
        """Count one message."""
        self.messages += 1
        self.bytes += wire_bytes


@dataclass
class NoiseSum(Sum):
    """Payloads under one accounting, and the ranges of the numbers that run on."""

    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)

    def stretch(self, numbers: Iterable[tuple[str, int]]) -> None:
        """Take further numbers into their ranges."""
        for name, number in numbers:
            low, high = self.ranges.get(name, (number, number))
            self.ranges[name] = (min(low, number), max(high, number))

    @property
    def facts(self) -> Iterator[doc.Fact]:
        """Each range in words."""
        for name, (low, high) in self.ranges.items():
            yield doc.Fact(name=name, value=f"{low}" if low == high else f"{low} to {high}")


_NAMED = {"mechanism", "unit", "relation"}


@dataclass
class Bound:
    """The gradients that left in one run: those with noise by its level, and how many without."""

    levels: dict[float, Releases] = field(default_factory=dict)
    bare: int = 0
    meant: set[tuple[str, str, str]] = field(default_factory=set)

    def add(self, record: Payload, said: Mapping[str, object]) -> None:
        """Count one gradient; `said`: its accounting, flat."""
        noise, epoch = said.get("noise"), said.get("epoch")
        if not isinstance(noise, float) or not isinstance(epoch, int) or not said.keys() >= _NAMED:
            self.bare += 1
            return
        self.meant.add((str(said["mechanism"]), str(said["unit"]), str(said["relation"])))
        if noise in self.levels or len(self.levels) < MAX_ROWS:
            self.levels.setdefault(noise, Releases()).add(
                epoch=epoch, step=record.step or 0, micro_batch=record.micro_batch or 0
            )
        else:
            self.bare += 1

    def row(self, run: str) -> doc.NoiseBound:
        """What it comes to."""
        _, unit, relation = next(iter(self.meant))
        bounds = {noise: releases.bound() for noise, releases in self.levels.items()}
        counted = [(noise, times) for noise, times in bounds.items() if times is not None]
        known = self.meant == {("gaussian", "example", "replace-labels")}
        sound = known and not self.bare and len(counted) == len(bounds)
        return doc.NoiseBound(
            run=run,
            epsilon=epsilon_of(counted) if sound else None,
            delta=DELTA,
            releases=sum(times for _, times in counted) if len(counted) == len(bounds) else None,
            bare=self.bare,
            unit=unit,
            relation=relation,
        )


@dataclass
class Talk:
    """A conversation as it goes on."""

    opened: RunOpen
    record: int
    out: Sum = field(default_factory=Sum)
    into: Sum = field(default_factory=Sum)
    denied: int = 0
    receipted: int = 0
    outcome: str = "open"


def gravest_first(report: Report) -> list[Finding]:
    """Findings in the order of what they mean for the verdict, then as they were made."""
    order = (Exit.INTEGRITY, Exit.MISMATCH, Exit.UNCHECKABLE, Exit.POLICY, Exit.CLEAN)
    return sorted(report.findings, key=lambda finding: order.index(finding.exit))


def finding_row(finding: Finding) -> doc.Finding:
    """A finding of the check."""
    return doc.Finding(
        exit=int(finding.exit),
        name=finding.name,
        sentence=finding.sentence,
        record=finding.record,
    )


def run_row(talks: list[Talk]) -> doc.Run:
    """A run from its conversations, one or more."""
    first = talks[0].opened
    return doc.Run(
        run=first.run,
        me=first.me.id,
        my_role=first.me.role.value,
        software=first.software,
        purpose=first.purpose,
        mode=first.mode,
        model=first.model,
        cut=first.cut or None,
        bottlenecks=first.bottlenecks or None,
        codecs=first.codecs,
        vocabulary=first.vocabulary,
        job=first.job,
        conversations=tuple(_conversation(talk) for talk in talks),
    )


def _conversation(talk: Talk) -> doc.Conversation:
    opened = talk.opened
    return doc.Conversation(
        id=opened.conversation,
        record=talk.record,
        time=opened.time,
        peer=opened.peer.id,
        peer_role=opened.peer.role.value,
        binding=opened.binding,
        policy=opened.policy,
        outcome=talk.outcome,
        messages_out=talk.out.messages,
        messages_in=talk.into.messages,
        bytes_out=talk.out.bytes,
        bytes_in=talk.into.bytes,
        denied=talk.denied,
        receipted=talk.receipted,
    )


def rule_row(run: str, use: Sum, *, policy: policies.Policy, rule: policies.Rule) -> doc.RuleUse:
    """What `rule` let through, against its budget."""
    return doc.RuleUse(
        run=run,
        policy=policy.name,
        rule=rule.id,
        direction=rule.direction,
        peer_role=rule.peer.value,
        kinds=tuple(kind.value for kind in rule.kinds),
        messages=use.messages,
        bytes=use.bytes,
        budget=rule.max_run_bytes,
        left=rule.max_run_bytes - use.bytes,
    )


def leakage_row(record: Leakage, *, at: int) -> doc.LeakageResult:
    """A leakage record."""
    return doc.LeakageResult(
        record=at,
        run=record.run,
        at=record.at,
        suite=record.suite,
        seed=record.seed,
        scored=record.scored,
        tokens=record.tokens,
        tokens_by=record.tokens_by,
        tokens_limit=record.tokens_limit,
        labels=record.labels,
        labels_by=record.labels_by,
        labels_limit=record.labels_limit,
        report=record.report,
    )


def shapes(parts: Sequence[PartShape]) -> tuple[str, ...]:
    """The first few parts of a payload, as dtype[rows x columns]."""
    shown = [
        f"{part.dtype}[{' x '.join(str(length) for length in part.shape)}]"
        for part in parts[:MAX_SHAPES]
    ]
    more = len(parts) - len(shown)
    return (*shown, f"and {more} more") if more else tuple(shown)


def flat(value: object, *, name: str = "") -> tuple[tuple[str, object], ...]:
    """Names and plain values of a record's accounting, whatever it is made of."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        return ((name, value),)
    return tuple(
        pair
        for key, each in value.items()
        for pair in flat(each, name=f"{name}.{key}" if name else str(key))
    )
