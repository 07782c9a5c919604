"""What any conversation judges alike: a message's number, its sender, and what its table allows."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

from splitlearn.errors import SessionError
from splitlearn.roles import Kind, Role, may_send

__all__ = ["check_number", "next_state"]

S = TypeVar("S", bound=StrEnum)


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
    table: Mapping[S, Mapping[tuple[Role, Kind], S]],
    *,
    state: S,
    kind: Kind,
    sender: Role,
    receiver: Role,
    view: Callable[[], str],
) -> S:
    """Where the table leads from `state`. SessionError where the role or the table does not allow it."""
    if not may_send(kind, sender=sender, receiver=receiver):
        raise SessionError(f"a {sender} party may not send {kind} to a {receiver} party")
    following = table[state].get((sender, kind))
    if following is None:
        legal = ", ".join(f"{k} by {who}" for who, k in table[state]) or "nothing"
        raise SessionError(f"{kind} by {sender} while {view()}; expected {legal}")
    return following
