"""Which records of a log somebody wants to see, as a packet viewer filters packets. Never writes."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from splitlearn.audit.reading import follow_records, read_records
from splitlearn.audit.records import Denied, Payload, Record, RunOpen
from splitlearn.errors import ManifestError

__all__ = ["Filter", "Span", "parse_span", "select", "type_of"]

# Least and greatest, both inclusive; None where it is open.
Span: TypeAlias = tuple[int | None, int | None]


@dataclass(frozen=True, kw_only=True)
class Filter:
    """What a record has to be. A condition that is not given lets every record through.

    types: as they stand in the log, like `payload` or `run.open`. peer: a piece of the peer's URI.
    verdict: allow is a payload, denied is one that was stopped. step, wire_bytes: of payloads.
    """

    types: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    run: str = ""
    peer: str = ""
    direction: Literal["in", "out"] | None = None
    verdict: Literal["allow", "denied"] | None = None
    step: Span = (None, None)
    wire_bytes: Span = (None, None)
    kept: bool = False

    def lets(self, record: Record) -> bool:
        """Whether `record` is wanted. One that has not what a condition asks about is not."""
        return (
            (not self.types or type_of(record) in self.types)
            and (not self.kinds or str(getattr(record, "kind", "")) in self.kinds)
            and (not self.run or getattr(record, "run", None) == self.run)
            and (not self.peer or self.peer in _peer(record))
            and (self.direction is None or getattr(record, "direction", None) == self.direction)
            and self._verdict(record)
            and _within(getattr(record, "step", None), self.step)
            and _within(getattr(record, "wire_bytes", None), self.wire_bytes)
            and (not self.kept or (isinstance(record, Payload) and record.blob != "withheld"))
        )

    def _verdict(self, record: Record) -> bool:
        wanted = {"allow": Payload, "denied": Denied, None: object}[self.verdict]
        return isinstance(record, wanted)


def select(
    folder: Path, wanted: Filter, *, wait: Callable[[], bool] | None = None
) -> Iterator[tuple[int, Record]]:
    """Index and record of each line that `wanted` lets through, as they are read.

    wait: go on at the log's end, as in `follow_records`. Raises AuditError as reading does.
    """
    records = read_records(folder) if wait is None else follow_records(folder, wait=wait)
    return ((index, record) for index, record in records if wanted.lets(record))


def parse_span(text: str, *, option: str) -> Span:
    """`7`, `3:9`, `:9` or `3:` as least and greatest. Raises ManifestError.

    >>> parse_span("3:9", option="--step"), parse_span("7", option="--step")
    ((3, 9), (7, 7))
    """
    found = re.fullmatch(r"(\d{0,18})(?:(:)(\d{0,18}))?", text)
    if found is None:
        raise ManifestError(f"{option} {text}: expected a number or a range like 3:9")
    least, most = (int(end) if end else None for end in found.group(1, 3))
    return (least, most) if found[2] else (least, least)


def type_of(record: Record) -> str:
    """Its type as it stands in the log."""
    return str(record.__struct_config__.tag)


def _peer(record: Record) -> str:
    return record.peer.id if isinstance(record, RunOpen) else str(getattr(record, "peer", ""))


def _within(value: int | None, span: Span) -> bool:
    least, most = span
    if least is None and most is None:
        return True
    if value is None:
        return False
    return (least is None or value >= least) and (most is None or value <= most)
