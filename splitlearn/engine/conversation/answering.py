"""How a party that is asked begins a conversation: its first message says what it is about."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from splitlearn.channel.base import Channel
from splitlearn.engine.conversation.talk import Talk
from splitlearn.errors import SessionError
from splitlearn.gate import Gate
from splitlearn.roles import Kind
from splitlearn.session import PairSession, Session, StreamSession
from splitlearn.wire.messages import Meta

__all__ = ["conversation"]

T = TypeVar("T", bound=Meta)
S = TypeVar("S", Session, StreamSession, PairSession)


@contextmanager
def conversation(
    channel: Channel,
    session: S,
    *,
    begins: Kind,
    terms_of: type[T],
    open_gate: Callable[[T, S], Gate],
    deadline_s: float,
    overlap: bool = False,
    sent: Counter[Kind] | None = None,
    received: Counter[Kind] | None = None,
) -> Iterator[tuple[Talk, T]]:
    """A conversation under the terms of its first message, which is of kind `begins`; ended either way.

    open_gate: by these terms. overlap, sent, received: as Talk has them. Raises PeerRestarted when the
    peer began anew, ChannelError when it fell silent, PeerError when it broke the rules.
    """
    channel.renew()
    first = channel.receive(timeout_s=deadline_s)
    terms = first.meta
    if not isinstance(terms, terms_of):
        raise SessionError(f"the conversation began with {first.kind}; expected {begins}")
    talk = Talk(
        channel=channel,
        session=session,
        gate=open_gate(terms, session),
        deadline_s=deadline_s,
        overlap=overlap,
        sent=Counter() if sent is None else sent,
        received=Counter() if received is None else received,
    )
    try:
        talk.admit(first)
        yield talk, terms
    except BaseException as error:
        talk.end(error)
        raise
    talk.end(None)
