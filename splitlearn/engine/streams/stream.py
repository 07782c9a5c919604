"""One generator as the discriminator's engine sees it: a conversation in a thread, and a bounded buffer.

The thread hears, checks and logs batches and answers settlements; the engine's thread takes batches and
asks for more. What goes wrong with one generator ends here and is told in one sentence: the others
don't notice.
"""

import queue
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from splitlearn.channel.base import Channel, PeerRestarted
from splitlearn.engine.conversation.talk import Talk
from splitlearn.engine.streams.rounds import Terms
from splitlearn.errors import (
    ChannelError,
    IdentityError,
    PeerError,
    RefusedError,
    SessionError,
    SplitLearnError,
    WireError,
)
from splitlearn.gate import Gate
from splitlearn.roles import Kind, Role
from splitlearn.session import StreamSession, StreamState
from splitlearn.wire.frames import Frame
from splitlearn.wire.ids import IdBatch
from splitlearn.wire.messages import Ask, Empty, Enlist, Ids, Meta, Report, Round, Settlement

__all__ = ["Call", "Stream"]

# Seconds. How often a waiting thread looks whether it should end.
_LOOK_S = 0.2


@dataclass(frozen=True)
class Call:
    """How conversations with one generator open. salt: of the log about it.

    following: the lowest batch index to take, asked each time. welcome: raises where its language is
    another party's.
    """

    party: str
    salt: str
    open_gate: Callable[[Round, StreamSession], Gate]
    following: Callable[[], int]
    welcome: Callable[[Enlist], None]


class Stream:
    """A generator in one round. Begins at once, in a thread of its own."""

    def __init__(
        self,
        channel: Channel,
        *,
        call: Call,
        terms: Terms,
        number: int,
        told: Callable[["Stream"], None] = lambda _: None,
    ) -> None:
        """number: of the round. told: called in the stream's thread when it enlists and when it ends."""
        self.call, self.terms, self.number = call, terms, number
        self.language = ""
        self.size = 0
        # Why it left, once it has; what it did, once the round has ended well.
        self.failure: SplitLearnError | None = None
        self.report: Report | None = None
        self._channel, self._told = channel, told
        self._batches: queue.Queue[tuple[int, IdBatch]] = queue.Queue(terms.buffer)
        self._held_out: queue.Queue[tuple[int, IdBatch]] = queue.Queue()
        # Asked for and not here yet: what a conversation that begins anew has to ask for again.
        self._due = {"train": 0, "evaluate": 0}
        self._asked = {"train": 0, "evaluate": 0}
        self._following = 0
        self._last_word: Report | None = None
        self._enough = False
        self._talk: Talk | None = None
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"stream of {call.party}", daemon=True
        )
        self._thread.start()

    @property
    def streams(self) -> bool:
        """Whether it has enlisted, and nothing is known to be wrong."""
        return bool(self.language) and not self.over

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.failure is not None or self.report is not None or not self._thread.is_alive()

    @property
    def fill(self) -> int:
        """Batches that wait here."""
        return self._batches.qsize()

    @property
    def due(self) -> int:
        """Batches to train on that were asked for and not taken yet."""
        return self._due["train"] + self.fill

    def ask(self, *, train: int = 0, evaluate: int = 0) -> None:
        """Ask for so many batches more. What cannot be said now is said when it is back."""
        with self._lock:
            for phase, more in (("train", train), ("evaluate", evaluate)):
                self._due[phase] += more
                self._asked[phase] += more
            if self._talk is not None and (train or evaluate):
                self._say(Kind.ASK, self._ask())

    def take(self, *, timeout_s: float) -> tuple[int, IdBatch] | None:
        """The next batch to train on and its index; None if none came in time, or none will."""
        return self._get(self._batches, timeout_s=timeout_s)

    def take_held_out(self, *, timeout_s: float) -> IdBatch | None:
        """The same of held-out text."""
        found = self._get(self._held_out, timeout_s=timeout_s)
        return None if found is None else found[1]

    def enough(self) -> None:
        """The round is over: what still comes is logged and dropped."""
        with self._lock:
            if not self._enough:
                self._enough = True
                if self._talk is not None:
                    self._say(Kind.ENOUGH, Empty())

    def join(self, *, timeout_s: float) -> None:
        """Wait for report and receipts, so long; then close, whatever came."""
        self._thread.join(timeout_s)
        if self._stop.is_set():
            return
        self._stop.set()
        self._channel.close()
        self._thread.join(timeout_s)

    def cut(self, error: SplitLearnError) -> None:
        """End it at once. The peer is told the sentence if the fault is its own."""
        self.failure = self.failure or error
        self._stop.set()
        faulty = isinstance(error, PeerError)
        self._channel.close(reason=str(error) if faulty else "the round was stopped here")

    def _get(
        self, waiting: "queue.Queue[tuple[int, IdBatch]]", *, timeout_s: float
    ) -> tuple[int, IdBatch] | None:
        end_s = time.monotonic() + timeout_s
        while True:
            left_s = end_s - time.monotonic()
            with suppress(queue.Empty):
                return waiting.get(timeout=max(0.0, min(_LOOK_S, left_s)))
            if left_s <= 0 or self.over:
                return None

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and self.report is None:
                try:
                    self._converse()
                except PeerRestarted:
                    continue
        except SplitLearnError as error:
            self.cut(error)
        except BaseException as error:
            self.cut(ChannelError(f"the stream of {self.call.party} broke: {type(error).__name__}"))
            raise
        finally:
            self._talk = None
            self._told(self)

    def _converse(self) -> None:
        """From the round's terms to the last receipt. Raises PeerRestarted where it has to begin anew."""
        self._channel.renew()
        session = StreamSession(me=Role.DISCRIMINATOR, peer=Role.GENERATOR)
        terms = self._round()
        talk = Talk(
            channel=self._channel,
            session=session,
            gate=self.call.open_gate(terms, session),
            deadline_s=self.terms.silence_s,
            overlap=False,
        )
        try:
            self._enlist(talk, terms)
            while session.state is not StreamState.CLOSED and not self._stop.is_set():
                self._hear(talk, session)
        except (WireError, SessionError, IdentityError) as error:
            # Of what came broken, or more than was asked for, no message stands in the log. That a peer
            # gave up (a plain PeerError) breaks no rule.
            talk.gate.refuse(Kind.IDS, rule=type(error).__name__)
            talk.end(error)
            raise
        except BaseException as error:
            talk.end(error)
            raise
        finally:
            with self._lock:
                self._talk = None
        talk.end(None)

    def _round(self) -> Round:
        terms = self.terms
        return Round(
            run=terms.run,
            conversation=secrets.token_hex(16),
            salt=self.call.salt,
            job=terms.job,
            number=self.number,
            vocabulary=terms.vocabulary,
            vocabulary_digest=terms.vocabulary_digest,
            examples=terms.examples,
            width=terms.width,
            masked=terms.masked,
            seed=terms.seed,
            following=max(self._following, self.call.following()),
        )

    def _enlist(self, talk: Talk, terms: Round) -> None:
        talk.say(Kind.ROUND, terms)
        enlist = self._wait(talk, Kind.ENLIST).meta
        assert isinstance(enlist, Enlist)
        if enlist.vocabulary_digest != terms.vocabulary_digest:
            raise IdentityError(
                f"{self.call.party} has vocabulary {enlist.vocabulary_digest[:16]}... and this run "
                f"{terms.vocabulary_digest[:16]}...; agree on one, none of its ids were taken"
            )
        self.call.welcome(enlist)
        witness = talk.gate.witness
        witness.peer_holds(enlist.witnessed)
        with self._lock:
            self._asked = dict(self._due)
            talk.say(Kind.ASK, self._ask(witnessed=witness.held))
            if self._enough:
                talk.say(Kind.ENOUGH, Empty())
            self._talk = talk
            self.language, self.size = enlist.language, enlist.size
        self._told(self)

    def _hear(self, talk: Talk, session: StreamSession) -> None:
        frame = self._wait(talk, Kind.IDS, Kind.SETTLE, Kind.REPORT)
        match frame.meta:
            case Ids():
                self._batch(talk, frame, frame.meta)
            case Settlement():
                talk.answer_settlement(frame)
                if session.reported:
                    talk.say(Kind.CLOSED, Empty())
                    self.report = self._last_word
            case Report():
                self._last_word = frame.meta

    def _batch(self, talk: Talk, frame: Frame, meta: Ids) -> None:
        batch = talk.ids(frame)
        if meta.phase == "evaluate":
            self._due["evaluate"] -= 1
            self._held_out.put((meta.index, batch))
            return
        self._following = meta.index + 1
        # The count of what is due must not be too low in between: nothing is asked for twice.
        while not self._stop.is_set() and not self._enough:
            with suppress(queue.Full):
                self._batches.put((meta.index, batch), timeout=_LOOK_S)
                break
        with self._lock:
            self._due["train"] -= 1

    def _wait(self, talk: Talk, *awaited: Kind) -> Frame:
        """The next frame, however long it takes: who is too slow is dropped by whoever waits for it."""
        while True:
            try:
                frame = self._channel.receive(timeout_s=_LOOK_S)
            except PeerRestarted:
                raise
            except ChannelError as error:
                if self._channel.over or self._stop.is_set():
                    names = " or ".join(awaited)
                    raise ChannelError(f"{error}; awaited {names} of {self.call.party}") from error
                continue
            talk.admit(frame)
            return frame

    def _ask(self, *, witnessed: int = 0) -> Ask:
        return Ask(self._asked["train"], self._asked["evaluate"], witnessed)

    def _say(self, kind: Kind, meta: Meta) -> None:
        """Say it if it can be: of a broken conversation the stream's own thread finds out."""
        assert self._talk is not None
        try:
            self._talk.say(kind, meta)
        except (ChannelError, RefusedError) as error:
            # A gate that shut after the peer's fault refuses us, too.
            if not isinstance(error, PeerRestarted) and self._channel.over:
                self.failure = self.failure or error
