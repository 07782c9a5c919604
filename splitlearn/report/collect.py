"""One pass over a log and its verdict, into the document that a report shows.

Reads only. Takes a log in any state, also a broken one: what cannot be read is counted and the verdict
says it. Memory is bounded by the document's tables, not by the log.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from splitlearn import policy as policies
from splitlearn.audit import (
    Denied,
    Gap,
    Leakage,
    Payload,
    PeerCheckpoint,
    PolicyChange,
    Receipt,
    Record,
    Redaction,
    Report,
    RunClose,
    RunOpen,
)
from splitlearn.audit.log import read_lines
from splitlearn.audit.records import decode
from splitlearn.errors import AuditError, ManifestError
from splitlearn.report import document as doc
from splitlearn.report.bins import Bins
from splitlearn.report.document import MAX_BINS, Document
from splitlearn.report.heads import key_of, list_heads
from splitlearn.report.tallies import (
    VERDICTS,
    Bound,
    NoiseSum,
    Sum,
    Table,
    Talk,
    finding_row,
    flat,
    gravest_first,
    leakage_row,
    rule_row,
    run_row,
    shapes,
)
from splitlearn.report.words import LIMITS
from splitlearn.roles import Kind

__all__ = ["collect"]


def collect(
    folder: Path, report: Report, *, verifier_key: str | None = None, software: str, made: str
) -> Document:
    """The document about the records of `folder` that `report` is about.

    report: outcome of `splitlearn.audit.verify` on the folder, with the same `verifier_key`. A log
    that grows meanwhile is read as far as the report went. made: the present moment, ISO 8601.
    """
    gathering = _Gathering(folder)
    for record in gathering.read(report.records):
        gathering.take(record)
    return gathering.document(report, told=verifier_key, software=software, made=made)


class _Gathering:
    """What has been read so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index = -1
        self._unreadable = 0
        self._first: float | None = None
        self._last: float | None = None
        self._talks: list[Talk] = []
        self._active: dict[tuple[str, str], Talk] = {}
        self._named: dict[str, Talk] = {}
        self._policies: dict[str, policies.Policy] = {}
        self._flows: dict[tuple[str, str, str, str], Sum] = {}
        self._bins = Bins[tuple[str, str]](limit=MAX_BINS)
        self._outside = 0
        self._rules: dict[tuple[str, str], Sum] = {}
        self._refusals: list[doc.Refusal] = []
        self._refused_by: dict[str, int] = {}
        self._changes: list[doc.PolicyChange] = []
        self._peers: dict[str, doc.PeerHead] = {}
        self._leakage: list[doc.LeakageResult] = []
        self._noise: dict[tuple[str, str, tuple[doc.Fact, ...]], NoiseSum] = {}
        self._bounds: dict[str, Bound] = {}
        self._released = Sum()
        self._plain = Sum()
        self._gaps: list[doc.Gap] = []
        self._redactions: list[doc.Redaction] = []
        self._tables: dict[str, Table] = {}

    def read(self, records: int) -> Iterator[Record]:
        """The first `records` lines, those left out that are no records. The check could read them."""
        for line, _ in islice(read_lines(self._folder), records):
            self._index += 1
            try:
                yield decode(line)
            except AuditError:
                self._unreadable += 1

    def take(self, record: Record) -> None:
        """Count one record."""
        self._last = record.time
        if self._first is None:
            self._first = record.time
        match record:
            case Payload():
                self._payload(record)
            case RunOpen():
                self._open(record)
            case RunClose():
                for key in [key for key in self._active if key[0] == record.run]:
                    self._active.pop(key).outcome = record.outcome
            case Denied():
                self._denied(record)
            case Receipt():
                talk = self._named.get(record.conversation)
                if talk is not None:
                    talk.receipted = max(talk.receipted, record.last)
            case PeerCheckpoint():
                self._peer(record)
            case _:
                self._event(record)

    def _room(self, table: str) -> bool:
        return self._tables.setdefault(table, Table()).room()

    def _open(self, record: RunOpen) -> None:
        if not self._room("conversations"):
            return
        talk = Talk(record, self._index)
        self._talks.append(talk)
        self._named[record.conversation] = talk
        self._active[record.run, record.peer.id] = talk
        try:
            self._policies[record.run] = policies.parse(record.policy_text)
        except ManifestError:  # the verdict says so
            self._policies.pop(record.run, None)

    def _payload(self, record: Payload) -> None:
        wire_bytes = record.wire_bytes
        talk = self._active.get((record.run, record.peer))
        if talk is not None:
            (talk.out if record.direction == "out" else talk.into).add(wire_bytes)
        flow = (record.peer, record.peer_role.value, record.direction, record.kind.value)
        if flow in self._flows or self._room("traffic"):
            self._flows.setdefault(flow, Sum()).add(wire_bytes)
        if record.step is None:
            self._outside += wire_bytes
        else:
            key = (record.direction, record.kind.value)
            self._bins.add(key, at=record.step, amount=wire_bytes)
        for rule in record.rules:
            use = (record.run, rule)
            if use in self._rules or self._room("rules"):
                self._rules.setdefault(use, Sum()).add(wire_bytes)
        if record.direction == "out" and record.step is not None:
            self._release(record)

    def _release(self, record: Payload) -> None:
        self._released.add(record.wire_bytes)
        said = flat(msgspec.to_builtins(record.dp))
        if record.kind is Kind.GRADIENT and (record.run in self._bounds or self._room("bounds")):
            self._bounds.setdefault(record.run, Bound()).add(record, dict(said))
        if not said:
            self._plain.add(record.wire_bytes)
            return
        # A whole number, such as the epoch, runs on from payload to payload; the rest names a group.
        facts = tuple(doc.Fact(name=n, value=str(v)) for n, v in said if not isinstance(v, int))
        group = (record.run, record.kind.value, facts)
        if group in self._noise or self._room("noise"):
            noise = self._noise.setdefault(group, NoiseSum())
            noise.add(record.wire_bytes)
            noise.stretch((name, value) for name, value in said if isinstance(value, int))

    def _denied(self, record: Denied) -> None:
        talk = self._active.get((record.run, record.peer))
        if talk is not None:
            talk.denied += 1
        if record.rule in self._refused_by or self._room("refused_by"):
            self._refused_by[record.rule] = self._refused_by.get(record.rule, 0) + 1
        if self._room("refusals"):
            self._refusals.append(
                doc.Refusal(
                    record=self._index,
                    time=record.time,
                    run=record.run,
                    direction=record.direction,
                    peer=record.peer,
                    kind=record.kind.value,
                    rule=record.rule,
                    shapes=shapes(record.parts),
                )
            )

    def _peer(self, record: PeerCheckpoint) -> None:
        before = self._peers.get(record.peer)
        if before is None and not self._room("peers"):
            return
        self._peers[record.peer] = doc.PeerHead(
            peer=record.peer,
            key=record.key,
            size=record.size,
            root=record.root,
            mine=max(record.mine, before.mine if before else 0),
            swaps=1 + (before.swaps if before else 0),
        )

    def _event(self, record: Record) -> None:
        """What happens seldom and stands in a table of its own."""
        at = self._index
        match record:
            case Gap():
                self._active.clear()
                if self._room("gaps"):
                    gap = doc.Gap(record=at, time=record.time, torn_bytes=record.torn_bytes)
                    self._gaps.append(gap)
            case Redaction() if self._room("redactions"):
                self._redactions.append(
                    doc.Redaction(
                        record=at,
                        time=record.time,
                        payload=record.record,
                        blob=record.blob,
                        why=record.why,
                    )
                )
            case PolicyChange() if self._room("policy_changes"):
                change = doc.PolicyChange(
                    record=at, run=record.run, before=record.before, policy=record.policy
                )
                self._changes.append(change)
            case Leakage() if self._room("leakage"):
                self._leakage.append(leakage_row(record, at=at))
            case _:  # a checkpoint's marker: its note is read from its own file
                pass

    def document(self, report: Report, *, told: str | None, software: str, made: str) -> Document:
        """What came together."""
        key = key_of(self._folder, told=told)
        heads, root = list_heads(
            self._folder,
            key=key,
            covered=report.covered,
            records=report.records,
            peers=tuple(self._peers.values()),
        )
        findings = [finding_row(each) for each in gravest_first(report) if self._room("findings")]
        return Document(
            version=doc.DOCUMENT_VERSION,
            software=software,
            made=made,
            verdict=doc.Verdict(
                exit=int(report.exit),
                name=VERDICTS.get(report.exit, "uncheckable"),
                findings=tuple(findings),
            ),
            log=doc.LogFacts(
                origin=report.origin,
                key=key,
                pinned=report.pinned,
                records=report.records,
                covered=report.covered,
                root=root,
                unreadable=self._unreadable,
                first=self._first,
                last=self._last,
            ),
            runs=self._runs(),
            traffic=tuple(
                doc.Flow(
                    peer=peer,
                    peer_role=role,
                    direction="out" if way == "out" else "in",
                    kind=kind,
                    messages=flow.messages,
                    bytes=flow.bytes,
                )
                for (peer, role, way, kind), flow in self._flows.items()
            ),
            steps=self._steps(),
            rules=self._rule_uses(),
            refusals=tuple(self._refusals),
            refused_by=tuple(
                doc.Tally(name=rule, count=times)
                for rule, times in sorted(self._refused_by.items(), key=lambda each: -each[1])
            ),
            policy_changes=tuple(self._changes),
            heads=heads,
            leakage=tuple(self._leakage),
            noise=tuple(
                doc.Noise(
                    run=run,
                    kind=kind,
                    facts=(*facts, *noise.facts),
                    releases=noise.messages,
                    bytes=noise.bytes,
                )
                for (run, kind, facts), noise in self._noise.items()
            ),
            noise_bounds=tuple(
                bound.row(run) for run, bound in self._bounds.items() if bound.levels
            ),
            outgoing_steps=self._released.messages,
            without_noise=self._plain.messages,
            gaps=tuple(self._gaps),
            redactions=tuple(self._redactions),
            limits=LIMITS,
            left_out=tuple(
                doc.Tally(name=name, count=rows.left_out)
                for name, rows in self._tables.items()
                if rows.left_out
            ),
        )

    def _runs(self) -> tuple[doc.Run, ...]:
        found: dict[str, list[Talk]] = {}
        for talk in self._talks:
            found.setdefault(talk.opened.run, []).append(talk)
        return tuple(run_row(talks) for talks in found.values())

    def _steps(self) -> doc.Steps:
        bins = self._bins
        return doc.Steps(
            first=bins.first if bins else 0,
            last=bins.last,
            width=bins.width,
            series=tuple(
                doc.Series(
                    direction="out" if way == "out" else "in", kind=kind, bytes=bins.row(key)
                )
                for key in sorted(bins.keys, key=lambda each: (each[0] == "in", each[1]))
                for way, kind in (key,)
            ),
            outside=self._outside,
        )

    def _rule_uses(self) -> tuple[doc.RuleUse, ...]:
        """Every rule of the newest policy of each run, used or not, then what no policy names."""
        uses = dict(self._rules)
        rows = []
        for run, policy in self._policies.items():
            for rule in policy.rules:
                use = uses.pop((run, rule.id), Sum())
                rows.append(rule_row(run, use, policy=policy, rule=rule))
        for (run, name), use in uses.items():
            rows.append(
                doc.RuleUse(
                    run=run,
                    policy="",
                    rule=name,
                    direction="",
                    peer_role="",
                    kinds=(),
                    messages=use.messages,
                    bytes=use.bytes,
                    budget=None,
                    left=None,
                )
            )
        return tuple(rows)
