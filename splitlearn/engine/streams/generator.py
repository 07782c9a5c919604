"""The generator's side of a round: train on its own text, corrupt it, send the ids, and nothing else.

It is told what a batch has to look like and how many are wanted; it never learns what became of them.
"""

import time
from collections.abc import Callable

from splitlearn.channel.base import Channel
from splitlearn.engine.conversation.answering import conversation
from splitlearn.engine.conversation.talk import Talk
from splitlearn.engine.streams.rounds import Batches, Source, Streamed, WatchRound
from splitlearn.errors import IdentityError
from splitlearn.gate import Gate
from splitlearn.roles import Kind, Role
from splitlearn.session import StreamSession, StreamState
from splitlearn.wire.ids import IdBatch
from splitlearn.wire.messages import Ask, Enlist, Ids, Report, Round

__all__ = ["GeneratorEngine"]

# Messages between two settlements: half of what may be without a receipt.
SETTLE_EVERY = 128


class GeneratorEngine:
    """Streams in one round after the other over one channel."""

    def __init__(
        self,
        channel: Channel,
        *,
        language: str,
        vocabulary_digest: str,
        batches: Batches,
        open_gate: Callable[[Round, StreamSession], Gate],
        save: Callable[[Source], None],
        deadline_s: float,
        save_every: int = 100,
        watch: WatchRound = lambda _: None,
    ) -> None:
        """batches: makes the source, once the round's terms are known. save: called after `save_every`
        batches and at the end, for a process that comes back to go on from.
        """
        self._channel, self._batches, self._open_gate = channel, batches, open_gate
        self._language, self._digest = language, vocabulary_digest
        self._save, self._save_every = save, save_every
        self._deadline_s, self._watch = deadline_s, watch
        self._source: Source | None = None

    def serve(self) -> Report:
        """Stream from a round's terms to its end; the totals.

        Raises PeerRestarted when the discriminator came back as a new process (call again),
        ChannelError when it fell silent, PeerError when it broke the rules.
        """
        session = StreamSession(me=Role.GENERATOR, peer=Role.DISCRIMINATOR)
        try:
            with conversation(
                self._channel,
                session,
                begins=Kind.ROUND,
                terms_of=Round,
                open_gate=self._open_gate,
                deadline_s=self._deadline_s,
            ) as (talk, terms):
                return self._stream(talk, session, terms)
        finally:
            self._keep()

    def _stream(self, talk: Talk, session: StreamSession, terms: Round) -> Report:
        if terms.vocabulary_digest != self._digest:
            raise IdentityError(
                f"{self._channel.peer} trains on vocabulary {terms.vocabulary_digest[:16]}... and ours "
                f"is {self._digest[:16]}...; agree on one, no ids were sent"
            )
        source = self._source = self._source or self._batches(terms)
        if source.index < terms.following:
            source.skip_to(terms.following)
        witness = talk.gate.witness
        talk.say(
            Kind.ENLIST,
            Enlist(self._language, self._digest, source.size, source.index, witness.held),
        )
        first = talk.hear(Kind.ASK).meta
        assert isinstance(first, Ask)
        witness.peer_holds(first.witnessed)
        report = self._batch_by_batch(talk, session, source)
        talk.say(Kind.REPORT, report)
        talk.settle()
        while session.state is not StreamState.CLOSED:
            talk.hear(Kind.CLOSED)
        return report

    def _batch_by_batch(self, talk: Talk, session: StreamSession, source: Source) -> Report:
        """Send what is asked for, until there is enough."""
        began_s = time.monotonic()
        batches = tokens = 0
        losses = 0.0
        while True:
            self._listen(talk)
            if session.enough:
                break
            if session.wanted("train"):
                index = source.index
                batch, loss = source.step()
                self._listen(talk)
                if not session.enough:  # else the round ended while the batch was made
                    talk.say(Kind.IDS, Ids(index, "train", batch.lengths), ids=batch)
                    batches, tokens, losses = (
                        batches + 1,
                        tokens + sum(batch.lengths),
                        losses + loss,
                    )
                    self._watch(Streamed(index, loss, sum(batch.lengths)))
                    if batches % self._save_every == 0:
                        self._keep()
            elif session.wanted("evaluate"):
                number = session.sent["evaluate"]
                held: IdBatch = source.held_out(number)
                talk.say(Kind.IDS, Ids(number, "evaluate", held.lengths), ids=held)
            else:
                talk.hear(Kind.ASK, Kind.ENOUGH)
            if session.unsettled >= SETTLE_EVERY:
                talk.settle()
        seconds = time.monotonic() - began_s
        return Report(batches, tokens, losses / max(1, batches), round(seconds, 3))

    @staticmethod
    def _listen(talk: Talk) -> None:
        """Take in all that has come."""
        while talk.hear_now() is not None:
            pass

    def _keep(self) -> None:
        if self._source is not None:
            self._save(self._source)
