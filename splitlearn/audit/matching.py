"""One direction of one conversation as two logs have it: what is the same, and what is not and why.

Knows messages by number, never reads a file, never judges a log by itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from splitlearn.audit.entries import Direction
from splitlearn.audit.findings import Exit
from splitlearn.audit.records import PartShape, Payload, RunOpen

__all__ = ["CLASSES", "Class", "Conversed", "Difference", "Message", "Stream"]

Class: TypeAlias = Literal[
    "digest_mismatch",
    "missing_at_peer",
    "missing_here",
    "duplicate",
    "order",
    "unreceipted_tail",
    "fork",
    "nothing_in_common",
]
# What each class means, and what it comes to.
CLASSES: Mapping[Class, tuple[Exit, str]] = {
    "digest_mismatch": (Exit.MISMATCH, "both logs have the message and do not agree on it"),
    "missing_at_peer": (Exit.MISMATCH, "the first log has it, the second does not"),
    "missing_here": (Exit.MISMATCH, "the second log has it, the first does not"),
    "duplicate": (Exit.MISMATCH, "one log has it twice"),
    "order": (Exit.MISMATCH, "one log has its messages in another order than their numbers"),
    "unreceipted_tail": (Exit.CLEAN, "under no receipt, and lost when a process or link ended"),
    "fork": (Exit.MISMATCH, "a log is not the one whose heads its peer holds"),
    "nothing_in_common": (Exit.UNCHECKABLE, "the logs share no conversation"),
}


@dataclass(frozen=True)
class Difference:
    """One difference. here, there: its record in the first and in the second log, where it has one."""

    name: Class
    sentence: str
    here: int | None = None
    there: int | None = None

    @property
    def exit(self) -> Exit:
        return CLASSES[self.name][0]


@dataclass(frozen=True, slots=True)
class Message:
    """record: index of its line."""

    record: int
    commit: str
    wire_bytes: int
    kind: str
    parts: tuple[PartShape, ...]

    def unlike(self, other: "Message") -> list[str]:
        """Names of what is not the same."""
        pairs = {
            "commit": (self.commit, other.commit),
            "length": (self.wire_bytes, other.wire_bytes),
            "kind": (self.kind, other.kind),
            "parts": (self.parts, other.parts),
        }
        return [name for name, (one, two) in pairs.items() if one != two]


@dataclass(slots=True)
class Conversed:
    """A conversation as one log has it. closed: the outcome, None where its process ended first.

    opened, record: None in a log that knows nothing of it. crashed: it was under way when the log
    broke off.
    """

    opened: RunOpen | None
    record: int | None
    messages: dict[Direction, dict[int, Message]] = field(
        default_factory=lambda: {"in": {}, "out": {}}
    )
    twice: list[tuple[Direction, int, int]] = field(default_factory=list)
    receipted: int = 0
    closed: str | None = None
    crashed: bool = False

    def add(self, payload: Payload, *, record: int, parts: tuple[PartShape, ...]) -> None:
        """The message of line `record`; `parts` are its own, shared with others of the same shapes."""
        messages = self.messages[payload.direction]
        message = Message(record, payload.commit, payload.wire_bytes, payload.kind, parts)
        if messages.setdefault(payload.message, message) is not message:
            self.twice.append((payload.direction, payload.message, record))


class Stream:
    """The messages of one conversation in one direction, `direction` as the first log calls it."""

    def __init__(
        self, ours: Conversed, theirs: Conversed, *, direction: Direction, turned: Direction
    ) -> None:
        self.matched = 0
        self._direction, self._turned = direction, turned
        self._ours, self._theirs = ours, theirs
        self._here, self._there = ours.messages[direction], theirs.messages[turned]
        self._outward = direction == "out"
        opened = ours.opened or theirs.opened
        self._run = "" if opened is None else opened.run

    def differences(self) -> Iterator[Difference]:
        """What is not the same, and beside it how many are: `matched`."""
        missing: list[int] = []
        for number in sorted(self._here.keys() | self._there.keys()):
            here, there = self._here.get(number), self._there.get(number)
            if here is not None and there is not None:
                unlike = here.unlike(there)
                if not unlike:
                    self.matched += 1
                    continue
                yield Difference(
                    "digest_mismatch",
                    f"{self._named(number, number)} another {', '.join(unlike)}",
                    here=here.record,
                    there=there.record,
                )
            else:
                missing.append(number)
        yield from self._missing(missing)
        yield from self._twice(self._ours, self._direction, first=True)
        yield from self._twice(self._theirs, self._turned, first=False)
        yield from self._disorder(self._here, first=True)
        yield from self._disorder(self._there, first=False)

    def _missing(self, numbers: Sequence[int]) -> Iterator[Difference]:
        """One difference for each stretch that is in one log only."""
        stretch: list[int] = []
        for number in [*numbers, -1]:
            if stretch and not self._goes_on(stretch[-1], number):
                yield self._stretch(stretch)
                stretch = []
            stretch.append(number)

    def _goes_on(self, last: int, number: int) -> bool:
        return (
            number == last + 1
            and (number in self._here) == (last in self._here)
            and self._explained(number) == self._explained(last)
        )

    def _stretch(self, numbers: Sequence[int]) -> Difference:
        first, last = numbers[0], numbers[-1]
        in_ours = first in self._here
        held = (self._here if in_ours else self._there)[first]
        why = self._explained(first)
        if why:
            name: Class = "unreceipted_tail"
        else:
            name = "missing_at_peer" if in_ours else "missing_here"
            why = self._contradiction(first)
        return Difference(
            name,
            f"{self._named(first, last)} {why}",
            here=held.record if in_ours else None,
            there=None if in_ours else held.record,
        )

    def _explained(self, number: int) -> str:
        """How an honest run comes to have message `number` in one log only; empty if it cannot."""
        sender, receiver = self._ends
        sent, taken = self._ends_messages
        if number in sent:
            if number <= sender.receipted or number < max(taken, default=0):
                return ""
            if receiver.closed == "done":
                return ""
            return "left and never arrived: the link or the receiver's process ended before"
        if number < max(sent, default=0) or not sender.crashed:
            return ""
        return "arrived, and its sender's machine went down before its own record was on the disk"

    def _contradiction(self, number: int) -> str:
        sender, receiver = self._ends
        sent, taken = self._ends_messages
        if number not in sent:
            return "arrived according to the receiver; the sender's log has no such message"
        if number <= sender.receipted:
            return "is under the receiver's own receipt, and its log has no such message"
        if number < max(taken, default=0):
            return "left before others that arrived, and the receiver's log has no such message"
        return f"left, and the receiver's log, closed as {receiver.closed}, has no such message"

    @property
    def _ends(self) -> tuple[Conversed, Conversed]:
        """Sender and receiver."""
        return (self._ours, self._theirs) if self._outward else (self._theirs, self._ours)

    @property
    def _ends_messages(self) -> tuple[dict[int, Message], dict[int, Message]]:
        return (self._here, self._there) if self._outward else (self._there, self._here)

    def _twice(self, talk: Conversed, direction: Direction, *, first: bool) -> Iterator[Difference]:
        for way, number, record in talk.twice:
            if way == direction:
                yield self._of(
                    "duplicate", f"{self._named(number, number)} stands twice", record, first=first
                )

    def _disorder(self, messages: Mapping[int, Message], *, first: bool) -> Iterator[Difference]:
        before = -1
        for number in sorted(messages):
            record = messages[number].record
            if record < before:
                yield self._of(
                    "order",
                    f"{self._named(number, number)} stands before a message of a lower number",
                    record,
                    first=first,
                )
            before = record

    def _of(self, name: Class, sentence: str, record: int, *, first: bool) -> Difference:
        return Difference(
            name, sentence, here=record if first else None, there=None if first else record
        )

    def _named(self, first: int, last: int) -> str:
        numbers = f"message {first}" if first == last else f"messages {first} to {last}"
        way = "from here to there" if self._outward else "from there to here"
        return f"run {self._run}, {numbers} {way}:"
