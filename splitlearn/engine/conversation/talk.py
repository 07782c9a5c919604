"""What a party says and hears: session, gate and channel of one peer in one pair of hands.

Every send passes the gate and every receive the session; a wait that ends says for whom, at which
step and for which message it waited. Tensors are encoded and sent beside the engine's thread, and those
that have come are opened beside it, if it asks so.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from splitlearn.audit import Dp
from splitlearn.channel.base import Channel, PeerRestarted
from splitlearn.codecs.base import Codec
from splitlearn.engine.conversation.courier import Courier
from splitlearn.engine.conversation.lanes import BridgeLost
from splitlearn.engine.state.threads import several_cores
from splitlearn.errors import AuditError, ChannelError, RefusedError
from splitlearn.gate import Gate, Outcome, Private
from splitlearn.roles import Kind
from splitlearn.session import (
    MAX_UNSETTLED,
    BridgeSession,
    PairSession,
    Session,
    StreamSession,
)
from splitlearn.wire.frames import Frame
from splitlearn.wire.ids import IdBatch
from splitlearn.wire.messages import Countersigned, Meta, Settled, Settlement
from splitlearn.wire.samples import Hashes
from splitlearn.wire.samples import pack as pack_hashes
from splitlearn.wire.tensors import Part

__all__ = ["SETTLE_MESSAGES", "SETTLE_S", "Talk"]

# Heads and receipts are swapped between steps when so many messages or seconds have passed.
SETTLE_MESSAGES = MAX_UNSETTLED // 2
SETTLE_S = 10.0

# How long a wait for one peer may go on before the others are looked at, and how much of theirs is taken in
# unheard: more than a window is never under way.
_LOOK_S = 0.1
_MOST_AHEAD = 64


@dataclass
class Talk:
    """One conversation with one peer. Deadlines are seconds. One thread hears; several may speak.

    overlap: whether `say_soon` and `open_soon` use other threads. What comes meanwhile may then stand
    before what is said in the log, or after it: its order is one of several, each of which is what happened.
    sent, received: bytes of whole frames by kind, as logged. errors: what codecs lost of what was sent,
    by kind: the sum over all messages, and how many. restarted: whether the peer came back as a new
    process, which ends the conversation. meanwhile: called now and then where we wait for the peer.
    """

    channel: Channel
    session: Session | StreamSession | PairSession | BridgeSession
    gate: Gate
    deadline_s: float
    overlap: bool = True
    sent: Counter[Kind] = field(default_factory=Counter)
    received: Counter[Kind] = field(default_factory=Counter)
    restarted: bool = False
    errors: dict[Kind, list[float]] = field(default_factory=dict)
    meanwhile: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self._courier = Courier(f"courier to {self.channel.peer}")
        # A message's number is given at the gate: none may come between it and the channel.
        self._speaking = threading.Lock()
        # What has come and was not heard yet: as it came, and after the gate admitted it.
        self._ahead: deque[Frame] = deque()
        self._admitted: deque[Frame] = deque()
        # Tensors that are being opened, by their messages' numbers.
        self._opener = ThreadPoolExecutor(1, thread_name_prefix=f"opener of {self.channel.peer}")
        self._opening: dict[int, Future[Tensor]] = {}
        self._settled_s = 0.0
        # On one core the other thread would cost 4% of a step and save nothing.
        self.overlap = self.overlap and several_cores()

    def say(
        self,
        kind: Kind,
        meta: Meta,
        *,
        tensor: Tensor | None = None,
        codec: Codec | None = None,
        parts: tuple[Part, ...] | None = None,
        ids: IdBatch | None = None,
        hashes: Hashes | None = None,
        private: Private | None = None,
        dp: Dp | None = None,
        keep: bool = False,
    ) -> int:
        """Pass the gate and hand over to the channel, after all before it; the sequence number."""
        self._courier.flush()
        return self._say(
            kind,
            meta,
            tensor,
            codec=codec,
            parts=pack_hashes(hashes) if hashes is not None else parts,
            ids=ids,
            private=private,
            dp=dp,
            keep=keep,
        )

    def say_soon(
        self,
        kind: Kind,
        meta: Meta,
        make: Callable[[], Tensor],
        *,
        codec: Codec,
        private: Private | None = None,
        dp: Dp | None = None,
        keep: bool = False,
    ) -> None:
        """As `say`, in another thread, in which `make` gives the rows: nobody may change them meanwhile.

        What goes wrong is raised at the next word, said or heard.
        """

        def errand() -> int:
            return self._say(kind, meta, make(), codec=codec, private=private, dp=dp, keep=keep)

        if self.overlap:
            self._courier.put(errand)
        else:
            errand()

    def flush(self) -> None:
        """Wait until all is said; raises what went wrong."""
        self._courier.flush()

    def _say(
        self,
        kind: Kind,
        meta: Meta,
        tensor: Tensor | None,
        *,
        codec: Codec | None,
        parts: tuple[Part, ...] | None = None,
        ids: IdBatch | None = None,
        private: Private | None,
        dp: Dp | None,
        keep: bool,
    ) -> int:
        with self._speaking:
            released = self.gate.release(
                kind,
                meta=meta,
                tensor=tensor,
                codec=codec,
                parts=parts,
                ids=ids,
                private=private,
                dp=dp,
                keep=keep,
            )
            try:
                self.channel.send(released, deadline_s=self.deadline_s)
            except PeerRestarted:
                self.restarted = True
                raise
            except BridgeLost:
                raise
            except ChannelError as error:
                raise ChannelError(f"{error}, while sending {kind} of {self._where()}") from error
        self.sent[kind] += len(released.raw)
        if codec is not None:
            total = self.errors.setdefault(kind, [0.0, 0])
            total[0] += released.error
            total[1] += 1
        return released.seq

    def hear(self, *awaited: Kind) -> Frame:
        """The next frame; `awaited` is only for the error message if none comes in time."""
        if self._admitted:
            self._courier.check()
            return self._admitted.popleft()
        try:
            frame = self._receive()
        except (PeerRestarted, BridgeLost):
            raise
        except ChannelError as error:
            names = " or ".join(awaited)
            raise ChannelError(f"{error}; awaited {names} of {self._where()}") from error
        self.admit(frame)
        return frame

    def hear_now(self) -> Frame | None:
        """The next frame, if one has come; does not wait."""
        if self._admitted:
            return self._admitted.popleft()
        try:
            frame = self._now()
        except PeerRestarted:
            raise
        except ChannelError:
            # Nothing yet, or nothing any more: whoever waits or sends next learns which.
            return None
        self.admit(frame)
        return frame

    def take_in(self, wanted: Callable[[Frame], bool]) -> Iterator[Frame]:
        """Admit what has come, as long as `wanted` says so of each; it is heard later, in the same order.

        Raises PeerRestarted, and what `hear` raises for what the peer did wrong.
        """
        while len(self._admitted) < _MOST_AHEAD:
            try:
                frame = self._now()
            except PeerRestarted:
                raise
            except ChannelError:  # no more
                return
            if not wanted(frame):
                self._ahead.appendleft(frame)
                return
            self.admit(frame)
            self._admitted.append(frame)
            yield frame

    def look(self) -> None:
        """Take in what has come, to be heard later. Raises PeerRestarted, or what the peer did wrong."""
        try:
            while len(self._ahead) < _MOST_AHEAD:
                self._ahead.append(self._off(timeout_s=0))
        except PeerRestarted:
            raise
        except ChannelError:  # no more
            return

    def _now(self) -> Frame:
        return self._ahead.popleft() if self._ahead else self._off(timeout_s=0)

    def _off(self, *, timeout_s: float) -> Frame:
        try:
            return self.channel.receive(timeout_s=timeout_s)
        except PeerRestarted:
            self.restarted = True
            raise

    def _receive(self) -> Frame:
        self._courier.check()
        try:
            return self._now()
        except ChannelError:
            # Nothing yet. Before we wait we see to it that what is awaited was asked for.
            self._courier.flush()
            if self.meanwhile is None:
                return self._off(timeout_s=self.deadline_s)
            return self._watchfully(self.meanwhile)

    def _watchfully(self, meanwhile: Callable[[], None]) -> Frame:
        until_s = time.monotonic() + self.deadline_s
        while True:
            meanwhile()
            over, left_s = self.channel.over, until_s - time.monotonic()
            try:
                return self._off(timeout_s=max(0.0, min(left_s, _LOOK_S)))
            except (PeerRestarted, BridgeLost):
                raise
            except ChannelError as error:
                if over:
                    raise
                if left_s <= 0:
                    link = str(error).partition("; ")[2]
                    raise ChannelError(
                        f"{self.channel.peer} sent nothing for {self.deadline_s:g} s; {link}"
                    ) from error

    def admit(self, frame: Frame) -> None:
        """Take a frame that has come: legal now, allowed and logged, or an error."""
        self.gate.admit(frame)
        self.received[frame.kind] += len(frame.raw)

    def tensor(self, frame: Frame, *, codec: Codec, rows: int, width: int) -> Tensor:
        """The rows (rows, width) in an admitted frame."""
        begun = self._opening.pop(frame.seq, None)
        if begun is not None:
            return begun.result()
        return self.gate.open_tensor(frame, codec=codec, rows=rows, width=width)

    def open_soon(self, frame: Frame, *, codec: Codec, rows: int, width: int) -> None:
        """Begin to open an admitted frame in another thread. `tensor` of it, which is owed, waits for that
        and raises what went wrong.
        """
        if self.overlap:
            self._opening[frame.seq] = self._opener.submit(
                self.gate.open_tensor, frame, codec=codec, rows=rows, width=width
            )

    def ids(self, frame: Frame) -> IdBatch:
        """The batch in an admitted frame."""
        return self.gate.open_ids(frame)

    def hashes(self, frame: Frame) -> Hashes:
        """The hashes of samples in an admitted frame."""
        return self.gate.open_hashes(frame)

    def parts(self, frame: Frame) -> tuple[Part, ...]:
        """The weights in an admitted frame."""
        return self.gate.open_parts(frame)

    def end(self, error: BaseException | None) -> None:
        """Close the gate's account of this conversation; `error` is what ended it, if anything did."""
        self._courier.close()
        self._opener.shutdown(cancel_futures=True)
        with suppress(AuditError):  # a dead log has already stopped the run, with a better sentence
            self.gate.close(outcome=_outcome(error))

    def settle(self) -> None:
        """Lead a settlement: swap log heads and receipts, each countersigned by the other.

        Raises AuditError if the peer's log is not the one that it was.
        """
        witness = self.gate.witness
        self.say(Kind.SETTLE, witness.statement())
        settled = self.hear(Kind.SETTLED).meta
        while not isinstance(settled, Settled):  # what a discriminator said before it heard of it
            settled = self.hear(Kind.SETTLED).meta
        witness.countersigned(settled.countersignature, by=settled.log_key)
        # The peer gave its receipt after it had taken in SETTLE, the last thing we said.
        countersignature = witness.take(settled, sent=self.session.next_out - 1)
        self.say(Kind.COUNTERSIGNED, Countersigned(countersignature))
        self._settled_s = time.monotonic()

    def settle_if_due(self) -> None:
        """Where we lead, and a settlement is legal: settle if enough messages or seconds have passed."""
        late = time.monotonic() - self._settled_s >= SETTLE_S
        if late or self.session.unsettled >= SETTLE_MESSAGES:
            self.settle()

    def answer_settlement(self, frame: Frame) -> None:
        """The other half: `frame` is the peer's SETTLE.

        Raises AuditError also if its receipt is for more than we said, or for less than it must have heard.
        """
        witness, shown = self.gate.witness, frame.meta
        assert isinstance(shown, Settlement)
        countersignature = witness.take(shown, sent=self.session.owed(shown.received))
        mine = msgspec.structs.asdict(witness.statement())
        self.say(Kind.SETTLED, Settled(**mine, countersignature=countersignature))
        last = self.hear(Kind.COUNTERSIGNED).meta
        assert isinstance(last, Countersigned)
        witness.countersigned(last.countersignature, by=shown.log_key)

    def _where(self) -> str:
        return f"step {self.session.next_step} from {self.channel.peer}"


def _outcome(error: BaseException | None) -> Outcome:
    if error is None:
        return "done"
    if isinstance(error, RefusedError):
        return "refused"
    gone = (ChannelError, KeyboardInterrupt, GeneratorExit, SystemExit)
    return "interrupted" if isinstance(error, gone) else "failed"
