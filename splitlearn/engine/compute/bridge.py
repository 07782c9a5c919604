"""One hop of a direct chain as one of its ends has it: the conversation with the neighbour there.

Whoever has the layers before a hop leads: says what it is about, settles, ends it. Each end has the terms
from the trusted party's offer, so neither can tell the other anything new. Does no sums.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from splitlearn.channel.base import Channel
from splitlearn.engine.conversation.lanes import Lane, Lanes
from splitlearn.engine.conversation.talk import Talk
from splitlearn.errors import ChannelError, PeerError, SessionError
from splitlearn.gate import Gate
from splitlearn.roles import Kind, Role
from splitlearn.session import BridgeSession, BridgeState, Side
from splitlearn.wire.frames import Frame
from splitlearn.wire.messages import Accept, Bridge, Empty, Finish, Neighbour, Offer, Resume

__all__ = ["BridgeEnd", "Neighbours", "terms_of"]

# One try to find a neighbour; in between somebody looks whether the run still wants it. Long enough for a
# handshake over a link as slow as a handshake may be.
_TRY_S = 5.0


class Neighbours(Protocol):
    """The compute parties that this one is ready to speak with itself, as its owner's file names them."""

    def find(self, neighbour: Neighbour, *, timeout_s: float) -> Channel:
        """A fresh channel to the party of that name, for that bridge and no other.

        Raises ChannelError if it could not be had in that time, IdentityError if the file has no such party
        or it is another one.
        """
        ...

    def open_gate(self, terms: Bridge, session: BridgeSession, *, neighbour: Neighbour) -> Gate:
        """The door towards the neighbour that was found last under that name."""
        ...


def terms_of(offer: Offer, *, side: Side) -> Bridge:
    """The terms of the hop behind the offered layers (we are BEFORE it), or before them (AFTER it)."""
    neighbour, codecs = _neighbour(offer, side=side), offer.codecs
    assert offer.purpose != "generate", "the session refuses such an offer"
    behind = side is Side.BEFORE
    return Bridge(
        run=offer.run,
        conversation=neighbour.bridge,
        job=offer.job,
        salt=neighbour.salt,
        purpose=offer.purpose,
        mode=offer.mode,
        layer=offer.cut.last if behind else offer.cut.first,
        activation=codecs.output if behind else codecs.activation,
        input_gradient=codecs.gradient if behind else codecs.input_gradient,
    )


def _neighbour(offer: Offer, *, side: Side) -> Neighbour:
    """Who is at the other end."""
    hops = offer.detail.hops
    assert hops is not None, "an offer without neighbours has no hop"
    neighbour = hops.after if side is Side.BEFORE else hops.before
    assert neighbour is not None, "no neighbour on that side"
    return neighbour


class BridgeEnd:
    """The conversation over one hop. Call `open`, then the rest; `end` whatever happened."""

    def __init__(
        self,
        offer: Offer,
        *,
        side: Side,
        neighbours: Neighbours,
        lanes: Lanes,
        deadline_s: float,
        overlap: bool,
        sent: Counter[Kind],
        received: Counter[Kind],
    ) -> None:
        self.terms, self.side = terms_of(offer, side=side), side
        self._neighbour = _neighbour(offer, side=side)
        self._neighbours, self._lanes, self._deadline_s = neighbours, lanes, deadline_s
        self._overlap, self._sent, self._received = overlap, sent, received
        self._lane: Lane | None = None
        self._talk: Talk | None = None

    @property
    def lane(self) -> Lane:
        """What is heard of the neighbour."""
        assert self._lane is not None, "a hop before it was opened"
        return self._lane

    @property
    def talk(self) -> Talk:
        """What is said and heard."""
        assert self._talk is not None, "a hop before it was opened"
        return self._talk

    @property
    def session(self) -> BridgeSession:
        """Where the conversation stands."""
        session = self.talk.session
        assert isinstance(session, BridgeSession)
        return session

    def open(self, step: int, *, wanted: Callable[[], None]) -> None:
        """Find the neighbour, and agree on the terms and on the step that both go on from.

        wanted: called now and then, from here on; raises where the run has gone on without this.
        """
        session = BridgeSession(Role.COMPUTE, Role.COMPUTE, side=self.side)
        self._lane = Lane(self._find(wanted), lanes=self._lanes, neighbour=True)
        self._talk = Talk(
            channel=self._lane,
            session=session,
            gate=self._neighbours.open_gate(self.terms, session, neighbour=self._neighbour),
            deadline_s=self._deadline_s,
            overlap=self._overlap,
            sent=self._sent,
            received=self._received,
            meanwhile=wanted,
        )
        if self.side is Side.BEFORE:
            self._lead(step)
        else:
            self._follow(step)

    def _find(self, wanted: Callable[[], None]) -> Channel:
        until_s = time.monotonic() + self._deadline_s
        while True:
            wanted()
            try:
                return self._neighbours.find(self._neighbour, timeout_s=_TRY_S)
            except ChannelError as error:
                if time.monotonic() > until_s:
                    raise ChannelError(
                        f"the neighbour {self._neighbour.party} could not be had within "
                        f"{self._deadline_s:g} s: {error}"
                    ) from error

    def _lead(self, step: int) -> None:
        talk, witness = self.talk, self.talk.gate.witness
        talk.say(Kind.BRIDGE, self.terms)
        accept = talk.hear(Kind.ACCEPT).meta
        assert isinstance(accept, Accept)
        if accept.held != (step,):
            raise SessionError(
                f"{talk.channel.peer} stands at step {accept.held[0]}, where the trusted party had us go on "
                f"from {step}; one of us was told another step"
            )
        witness.peer_holds(accept.witnessed)
        talk.say(Kind.RESUME, Resume(step, witness.held))
        assert isinstance(talk.hear(Kind.READY).meta, Empty)
        self.talk.settle()

    def _follow(self, step: int) -> None:
        talk, witness = self.talk, self.talk.gate.witness
        said = talk.hear(Kind.BRIDGE).meta
        assert isinstance(said, Bridge)
        unlike = [
            name
            for name in Bridge.__struct_fields__
            if getattr(said, name) != getattr(self.terms, name)
        ]
        if unlike:
            raise SessionError(
                f"{talk.channel.peer} begins a hop with another {', '.join(unlike)} than the trusted party "
                "offered us; it was offered something else, or speaks of a run that has begun anew since"
            )
        talk.say(Kind.ACCEPT, Accept((step,), (), witness.held))
        resume = talk.hear(Kind.RESUME).meta
        assert isinstance(resume, Resume)
        witness.peer_holds(resume.witnessed)
        talk.say(Kind.READY, Empty())

    def settle_if_due(self) -> None:
        """Between two steps, where we lead: settle where enough messages or seconds have passed."""
        self.talk.flush()
        if self.side is Side.AFTER or not self.session.between_steps:
            return
        self.talk.settle_if_due()

    def answer(self, frame: Frame) -> bool:
        """Answer a word of the neighbour's that is no tensor, which has been admitted; whether it was one."""
        if frame.kind is Kind.SETTLE:
            self.talk.answer_settlement(frame)
        elif frame.kind is Kind.FINISH:
            self.talk.say(Kind.CLOSED, Empty())
        else:
            return False
        return True

    @property
    def closed(self) -> bool:
        """Whether the goodbye was said."""
        return self.session.state is BridgeState.CLOSED

    def finish(self) -> None:
        """Say goodbye, where we lead."""
        self.talk.settle()
        self.talk.say(Kind.FINISH, Finish(weights=False))
        self.talk.hear(Kind.CLOSED)

    def end(self, error: BaseException | None, *, blamed: bool) -> None:
        """Close the log's account and the channel. blamed: whether it was the neighbour who ended it."""
        if self._talk is not None:
            self._talk.end(error)
        if self._lane is None:
            return
        if error is None:
            self._lane.close()
        elif blamed and isinstance(error, PeerError):
            # What it did wrong it is told in full; of other troubles it hears the kind only.
            self._lane.close(reason=str(error))
        else:
            self._lane.close(reason=f"the hop ends here: {type(error).__name__}")
