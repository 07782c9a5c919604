"""A compute party of a direct chain among its peers: whom it hears next, and who gets what.

A step's end is seen by nobody alone. What the trusted party says between two steps comes on another
connection than the gradients that have to be in before, so each conversation is heard only when this party
has done what comes before it: the lowest step first. Only the trusted party rolls back: whoever loses a
neighbour leaves the hop and waits for it. Does no sums.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec

from splitlearn.engine.compute.bridge import BridgeEnd, Neighbours
from splitlearn.engine.conversation.lanes import BridgeLost, Lane, Lanes
from splitlearn.engine.conversation.talk import Talk
from splitlearn.errors import ChannelError, IdentityError, SessionError
from splitlearn.roles import Kind
from splitlearn.session import Side
from splitlearn.wire.frames import Frame
from splitlearn.wire.messages import Offer, Step, StepTensor

__all__ = ["Bridges", "bridging"]

# Of the trusted party's words, those that are about a step, and those that only wait for one to end.
_OF_A_STEP = frozenset({Kind.ACTIVATION, Kind.CHECKPOINT})
_BETWEEN_STEPS = frozenset({Kind.SETTLE, Kind.FINISH})


@dataclass
class Bridges:
    """The conversations of one compute party. Make it by `bridging`; call `open`, then the rest.

    done: optimiser steps that are over here; the engine counts it on with `stepped`.
    """

    trusted: Talk
    lanes: Lanes
    before: BridgeEnd | None
    after: BridgeEnd | None
    deadline_s: float
    done: int = 0
    _lane: Lane | None = field(default=None, repr=False)
    # Whose message is being worked on.
    _of: BridgeEnd | None = field(default=None, repr=False)

    def open(self, step: int) -> None:
        """Stand on both hops at the step that the trusted party named."""
        self.listen()
        self.done = step
        for end in self._ends:
            self._of = end
            end.open(step, wanted=self._check_wanted)
        self._of = None

    @property
    def lane(self) -> Lane:
        """What is heard of the trusted party."""
        assert self._lane is not None, "nobody listened yet"
        return self._lane

    def listen(self) -> None:
        """Hear the trusted party beside the neighbours; not before its weights, for none is taken ahead."""
        self.trusted.channel = self._lane = Lane(self.trusted.channel, lanes=self.lanes)

    def hear(self, *, busy: bool) -> tuple[Talk, Frame]:
        """The next message that is for the engine, and the conversation that it is of. Others are answered.

        busy: whether gradients of a step under way are not in yet. Raises as `Talk.hear` does, and
        BridgeLost.
        """
        heard_s = time.monotonic()
        while True:
            self._of, count = None, self.lanes.count
            came = self._take(busy=busy)
            if came is not None:
                end, talk, frame = came
                if end is None or not end.answer(frame):
                    return talk, frame
                heard_s = time.monotonic()
                continue
            left_s = heard_s + self.deadline_s - time.monotonic()
            if not self.lanes.wait(count=count, timeout_s=max(0.0, left_s)) and left_s <= 0:
                raise ChannelError(
                    f"nobody had anything for us for {self.deadline_s:g} s: neither {self.lane.peer} nor "
                    f"{' nor '.join(end.lane.peer for end in self._ends)}; {self.done} steps are done"
                )

    def route(
        self, kind: Kind, meta: StepTensor, *, lengths: tuple[int, ...]
    ) -> tuple[Talk, Kind, StepTensor]:
        """To whom an output or an input gradient goes, and as what.

        meta: as for an answer. lengths: of its activation. What it answers came from somebody else.
        """
        if kind is Kind.OUTPUT and self.after is not None:
            onward = msgspec.structs.replace(meta, lengths=lengths, reply_to=0)
            return self.after.talk, Kind.ACTIVATION, onward
        back = self.before if kind is Kind.INPUT_GRADIENT else None
        to = self.trusted if back is None else back.talk
        return to, kind, msgspec.structs.replace(meta, reply_to=0)

    def stepped(self, step: int) -> None:
        """Step number `step`, from 0, is over here."""
        self.done = step + 1

    def check_done(self, frame: Frame) -> None:
        """SessionError unless a CHECKPOINT names the steps that are done here."""
        assert isinstance(frame.meta, Step)
        if frame.meta.step != self.done:
            raise SessionError(
                f"{frame.kind} names step {frame.meta.step}; {self.done} steps are done here"
            )

    def vouch(self) -> None:
        """Put the heads of the hops' logs on record where the trusted party countersigns the log."""
        for end in self._ends:
            self.trusted.gate.vouch(end.talk.gate)

    def finish(self) -> None:
        """Say goodbye to both neighbours: first to the one after, whose goodbye waits for nobody."""
        if self.after is not None:
            self._of = self.after
            self.after.finish()
        self._of = self.before
        while self.before is not None and not self.before.closed:
            frame = self.before.talk.hear(Kind.SETTLE, Kind.FINISH)
            if not self.before.answer(frame):
                raise SessionError(f"{frame.kind} after the trusted party said {Kind.FINISH}")
        self._of = None

    def end(self, error: BaseException | None) -> None:
        """Close the accounts of both hops, and their channels."""
        for end in self._ends:
            end.end(error, blamed=end is self._of)

    def wait_for_the_trusted_party(self, lost: BridgeLost) -> NoReturn:
        """Until it begins anew, which raises PeerRestarted, or ends. What it said before is let go."""
        # It waits for the neighbour as long as we do, and may have begun to do so later.
        until_s = time.monotonic() + 2 * self.deadline_s
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                self.lane.receive(timeout_s=left_s)
            except ChannelError:
                self.lane.next()  # raises what ended it
        raise ChannelError(f"{lost}; and {self.lane.peer} did not begin anew") from lost

    @property
    def _ends(self) -> tuple[BridgeEnd, ...]:
        return tuple(end for end in (self.before, self.after) if end is not None)

    def _take(self, *, busy: bool) -> tuple[BridgeEnd | None, Talk, Frame] | None:
        """The next message whose turn it is, admitted. Gradients first: they end what is under way."""
        for end in (self.after, None, self.before):
            if end is not None and end.closed:
                continue
            lane = self.lane if end is None else end.lane
            frame = lane.next()
            if frame is None or (end is None and not self._due(frame, busy=busy)):
                continue
            if self.after is not None and _begins_a_step(frame):
                self._of = self.after
                self.after.settle_if_due()
            self._of = end
            talk = self.trusted if end is None else end.talk
            return end, talk, talk.hear(frame.kind)
        return None

    def _due(self, frame: Frame, *, busy: bool) -> bool:
        """Whether it is the turn of a word of the trusted party's: not before our own step is over."""
        if frame.kind in _OF_A_STEP:
            assert isinstance(frame.meta, Step | StepTensor)
            return frame.meta.step != self.done + 1
        return not busy or frame.kind not in _BETWEEN_STEPS

    def _check_wanted(self) -> None:
        self.lane.next()


def _begins_a_step(frame: Frame) -> bool:
    meta = frame.meta
    return frame.kind is Kind.ACTIVATION and isinstance(meta, StepTensor) and not meta.micro_batch


@contextmanager
def bridging(
    talk: Talk,
    offer: Offer,
    neighbours: Neighbours | None,
    *,
    sent: Counter[Kind],
    received: Counter[Kind],
) -> Iterator[Bridges | None]:
    """The hops of one conversation with the trusted party, ended either way; None in any other run.

    neighbours: None where this party's file names none. Raises IdentityError then. Where a neighbour was
    lost, raises what the trusted party did about it.
    """
    hops = offer.detail.hops
    if hops is None:
        yield None
        return
    if neighbours is None:
        names = " and ".join(each.party for each in (hops.before, hops.after) if each is not None)
        raise IdentityError(
            f"the offer names {names} as our neighbour, and our settings have no [[neighbour]] at all; add "
            "one, with dial or listen, if rows are to go there straight from here"
        )
    lanes, whole = Lanes(), talk.channel

    def end(side: Side, *, there: bool) -> BridgeEnd | None:
        if not there:
            return None
        return BridgeEnd(
            offer,
            side=side,
            neighbours=neighbours,
            lanes=lanes,
            deadline_s=talk.deadline_s,
            overlap=talk.overlap,
            sent=sent,
            received=received,
        )

    bridges = Bridges(
        trusted=talk,
        lanes=lanes,
        before=end(Side.AFTER, there=hops.before is not None),
        after=end(Side.BEFORE, there=hops.after is not None),
        deadline_s=talk.deadline_s,
    )
    try:
        yield bridges
    except BridgeLost as lost:
        bridges.end(lost)
        bridges.wait_for_the_trusted_party(lost)
    except BaseException as error:
        bridges.end(error)
        raise
    else:
        bridges.end(None)
    finally:
        if talk.channel is not whole:
            bridges.lane.stop()
            talk.channel = whole
