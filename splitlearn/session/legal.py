"""What any conversation judges alike: a message's number, its sender, and what its table allows.

A conversation of its own kind is a table, and an Endpoint that reads it and judges what a table cannot.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

from splitlearn.errors import SessionError
from splitlearn.roles import Kind, Role, may_send
from splitlearn.wire.messages import Meta

__all__ = ["End", "Endpoint", "Side", "Table", "check_number", "next_state"]


class Side(StrEnum):
    """Which end of a conversation between two parties of one role, by the order of their layers."""

    BEFORE = "before"
    AFTER = "after"


S = TypeVar("S", bound=StrEnum)
# An end is named by its role, where the roles differ.
End: TypeAlias = Role | Side
# From each state: which end may say what, and where that leads.
Table: TypeAlias = Mapping[S, Mapping[tuple[End, Kind], S]]


@dataclass
class Endpoint(ABC, Generic[S]):
    """One end's view of one conversation, between the roles `me` and `peer`.

    next_out, next_in: numbers of the next message of each. unsettled: messages since the last receipt.
    """

    me: Role
    peer: Role
    state: S
    next_out: int = 1
    next_in: int = 1
    unsettled: int = 0

    def stamp(self, kind: Kind, meta: Meta) -> int:
        """Take `kind` as the next thing we say; its sequence number.

        Raises SessionError if we may not say it now; the conversation is over then.
        """
        self._advance(kind, meta, sender=self.me, receiver=self.peer, by=self.ends[0])
        seq = self.next_out
        self.next_out += 1
        return seq

    def check(self, kind: Kind, meta: Meta, *, seq: int) -> None:
        """Take a message from the peer; SessionError, and the end, if it is not legal now."""
        check_number(seq, kind=kind, expected=self.next_in, peer=self.peer, view=self._view)
        self._advance(kind, meta, sender=self.peer, receiver=self.me, by=self.ends[1])
        self.next_in += 1

    def owed(self, _received: int) -> int:
        """How many of our messages a receipt in a SETTLE that has come must cover: all of them."""
        return self.next_out - 1

    @property
    def ends(self) -> tuple[End, End]:
        """Ours and the peer's, as the table names them."""
        return self.me, self.peer

    def _advance(self, kind: Kind, meta: Meta, *, sender: Role, receiver: Role, by: End) -> None:
        following = next_state(
            self._table(),
            state=self.state,
            kind=kind,
            sender=sender,
            receiver=receiver,
            by=by,
            view=self._view,
        )
        following = self._judge(kind, meta, following=following)
        self.unsettled = 0 if kind is Kind.COUNTERSIGNED else self.unsettled + 1
        self.state = following

    @abstractmethod
    def _table(self) -> Table[S]: ...

    @abstractmethod
    def _judge(self, kind: Kind, meta: Meta, *, following: S) -> S:
        """SessionError for what is legal by the table and not by what was said before; the next state."""

    @abstractmethod
    def _view(self) -> str:
        """How we see things, for an error."""


def check_number(
    seq: int, *, kind: Kind, expected: int, peer: Role, view: Callable[[], str]
) -> None:
    """SessionError unless a message of the peer bears the next number. view: tells how we see things."""
    if seq != expected:
        what = "repeats" if seq < expected else "runs ahead of"
        raise SessionError(
            f"the {peer} party's message {seq} ({kind}) {what} the conversation; {view()} expected "
            f"number {expected}"
        )


def next_state(
    table: Table[S],
    *,
    state: S,
    kind: Kind,
    sender: Role,
    receiver: Role,
    by: End,
    view: Callable[[], str],
) -> S:
    """Where the table leads from `state`, if the end `by` says this.

    SessionError where the role or the table does not allow it.
    """
    if not may_send(kind, sender=sender, receiver=receiver):
        raise SessionError(f"a {sender} party may not send {kind} to a {receiver} party")
    following = table[state].get((by, kind))
    if following is None:
        legal = ", ".join(f"{k} by {who}" for who, k in table[state]) or "nothing"
        raise SessionError(f"{kind} by {by} while {view()}; expected {legal}")
    return following
