"""The decoder party's loop: it sets the pace, asks for rows, computes the loss, and sends gradients back.

Holds target text, a frozen encoder used as decoder, its adapters, and the loss. Where the encoder's adapters
stand still its rows are kept, and as soon as all are here the conversation ends: the rest needs no peer.
Any break of the link and any restart goes on from the newest checkpoint that both hold, with the same
numbers.
"""

# B examples, S rows of each source, D width, N rows that travel

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec
import torch
from torch import Tensor

from splitlearn.channel.base import Channel, PeerRestarted
from splitlearn.engine.conversation.talk import Talk
from splitlearn.engine.events import (
    Began,
    Evaluated,
    Finished,
    Observe,
    RolledBack,
    Saved,
    StepDone,
)
from splitlearn.engine.pair.pairing import Codecs, DecoderRun, hashes_of, names_of
from splitlearn.engine.pair.rowstore import RowStore
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.engine.state.optimiser import build_stepper
from splitlearn.engine.state.seeds import stage_seed
from splitlearn.errors import ManifestError, SessionError
from splitlearn.gate import Gate
from splitlearn.roles import Kind, Role
from splitlearn.session import PairSession
from splitlearn.split.rows import pack, unpack
from splitlearn.translation import Source
from splitlearn.translation.objective import loss_of, mask_targets
from splitlearn.translation.order import Order
from splitlearn.translation.predict import mask_predict
from splitlearn.translation.text import Padded, written
from splitlearn.wire.messages import (
    Accept,
    Empty,
    Finish,
    Pairing,
    Resume,
    Samples,
    Step,
    StepTensor,
    Want,
)

__all__ = ["DecoderEngine", "mask_seed"]


class DecoderEngine:
    """Runs one job against its encoder party."""

    def __init__(
        self,
        run: DecoderRun,
        channel: Channel,
        *,
        open_gate: Callable[[Pairing, PairSession], Gate],
        checkpoints: Checkpoints,
        observe: Observe,
    ) -> None:
        """Raises WireError for codecs that are not for this."""
        self.run, self._channel, self._open_gate = run, channel, open_gate
        self._checkpoints, self._observe = checkpoints, observe
        self._codecs = Codecs(run.terms)
        self._stepper = build_stepper(
            run.decoder.parameters(), optimiser=run.terms.optimiser, schedule=run.terms.schedule
        )
        self._store = RowStore(
            checkpoints.folder.parent,
            width=run.terms.width,
            limit_bytes=0 if run.terms.trains else run.cache_bytes,
        )
        self.losses: list[float] = []
        self.step_s: list[float] = []
        # Bytes of whole frames by kind, over all conversations of this process; rows that were received.
        self.sent: Counter[Kind] = Counter()
        self.received: Counter[Kind] = Counter()
        self.errors: dict[Kind, list[float]] = {}
        self.rows = 0
        self._talk: Talk | None = None
        self._step = 0
        # By phase the samples that both have, by number. Empty before the first conversation.
        self._numbered: dict[str, list[str]] = {}
        # Those numbers in the order of the samples' ids, which no key decides: a seed gives the same run in
        # any folder, and the peer, who has the ids too, learns nothing by it.
        self._sorted: dict[str, list[int]] = {}
        self._order: Order | None = None

    @property
    def samples(self) -> dict[str, int]:
        """How many samples both parties have, by phase."""
        return {phase: len(found) for phase, found in self._numbered.items()}

    def train(self) -> None:
        """Train to the schedule's end; a peer that comes back as a new process only costs time."""
        self._surviving_restarts(self._train)

    def translate(self) -> list[tuple[str, str]]:
        """The held-out samples that both have, as the decoder writes them: (reference, translation)."""
        found: list[tuple[str, str]] = []

        def work() -> None:
            found.clear()
            self._begin()
            found.extend(self._translate())

        self._surviving_restarts(work)
        return found

    def finish(self) -> None:
        """Say goodbye, unless that is done."""

        def work() -> None:
            if self._talk is not None or not self._store.full(self.samples):
                self._begin()
                self._goodbye()

        self._surviving_restarts(work)

    def end(self, error: BaseException | None) -> None:
        """Close the log's account of the conversation; call it once, whatever happened."""
        if self._talk is not None:
            self._talk.end(error)

    def _surviving_restarts(self, work: Callable[[], None]) -> None:
        while True:
            try:
                return work()
            except PeerRestarted as error:
                self._observe(RolledBack(self._channel.peer))
                self.end(error)
                self._talk = None

    def _begin(self) -> None:
        """Agree on terms, samples and the step to go on from, unless that is done or not needed."""
        if self._talk is not None or self._store.full(self.samples):
            return
        run, checkpoints = self.run, self._checkpoints
        if not checkpoints.held():
            self._save(0)
        mine = checkpoints.held()
        self._channel.renew()
        terms = msgspec.structs.replace(run.terms, held=mine, conversation=secrets.token_hex(16))
        session = PairSession(me=Role.DECODER, peer=Role.ENCODER)
        talk = self._talk = Talk(
            channel=self._channel,
            session=session,
            gate=self._open_gate(terms, session),
            deadline_s=run.deadline_s,
            overlap=False,
            sent=self.sent,
            received=self.received,
            errors=self.errors,
        )
        talk.say(Kind.PAIRING, terms)
        accept = talk.hear(Kind.ACCEPT).meta
        assert isinstance(accept, Accept)
        talk.gate.witness.peer_holds(accept.witnessed)
        self._align(talk)
        common = set(mine) & (set(accept.held) | {0}) if terms.trains else set(mine)
        if not common:
            raise SessionError(
                f"{self._channel.peer} holds no checkpoint of this run that we hold too (ours are {mine}, "
                f"theirs {accept.held}); begin anew with another run.folder"
            )
        step = max(common)
        talk.say(Kind.RESUME, Resume(step, talk.gate.witness.held))
        self._go_to(step)
        talk.hear(Kind.READY)
        talk.settle()
        self._observe(Began(step, self._channel.peer))

    def _align(self, talk: Talk) -> None:
        """Hear which samples the peer has; tell it which of them we have too."""
        naming, corpus = self.run.terms.naming, self.run.corpus
        theirs = talk.hashes(talk.hear(Kind.SAMPLES))
        mine = (
            names_of(corpus.train.samples, naming=naming),
            names_of(corpus.evaluate.samples, naming=naming),
        )
        common = hashes_of(mine[0].keys() & set(theirs[0]), mine[1].keys() & set(theirs[1]))
        for what, names, found in zip(("train on", "hold out"), mine, common, strict=True):
            if not found:
                raise ManifestError(
                    f"of our {len(names)} samples to {what} {self._channel.peer} has none; both sides have "
                    "to name their samples alike (data.id) and leave out few (data.max_length)"
                )
        talk.say(Kind.SAMPLES, Samples(len(common[0]), len(common[1])), hashes=common)
        numbered = {
            phase: [names[each] for each in found]
            for phase, names, found in zip(("train", "evaluate"), mine, common, strict=True)
        }
        if self._numbered and numbered != self._numbered:
            raise SessionError(
                f"{self._channel.peer} has other samples than when this run began; begin anew with "
                "another run.folder"
            )
        self._numbered = numbered
        self._sorted = {
            phase: sorted(range(len(names)), key=names.__getitem__)
            for phase, names in numbered.items()
        }
        train = corpus.train
        self._order = Order(
            [train.length(sample) for sample in sorted(numbered["train"])],
            batch=self.run.batch,
            seed=self.run.terms.seed,
        )

    def _go_to(self, step: int) -> None:
        extra = self._checkpoints.load(step, model=self.run.decoder, stepper=self._stepper)
        self._checkpoints.drop_after(step)
        self._stepper.clear()
        losses = extra.get("losses")
        self.losses = [float(each) for each in losses] if isinstance(losses, list) else []
        self._step = step

    def _train(self) -> None:
        self._begin()
        total = self.run.terms.schedule.total_steps
        while self._step < total:
            self._train_step()
            if self._store.filled("train", self.samples):
                self._go_alone()
            if self._step % self.run.every == 0 or self._step == total:
                self._checkpoint()

    def _train_step(self) -> None:
        run, step, began_s = self.run, self._step, time.perf_counter()
        before = (self.sent.total(), self.received.total())
        assert self._order is not None, "a step before samples were agreed on"
        numbers = [self._sorted["train"][i] for i in self._order(step)]
        source, place = self._source(numbers, phase="train")
        targets = self._targets(numbers)
        leaf_BSD = source.rows_BSD.requires_grad_(run.terms.trains)
        masked = mask_targets(
            targets, mask=run.special.mask, seed=mask_seed(run.terms.seed, step=step)
        )
        loss = loss_of(
            run.decoder, source=source, targets=targets, masked=masked, objective=run.objective
        )
        torch.autograd.backward(loss)
        if run.terms.trains:
            self._send_gradient(leaf_BSD, place)
        self._stepper.step()
        self._step += 1
        self.losses.append(loss.item())
        self.step_s.append(time.perf_counter() - began_s)
        self._observe(
            StepDone(
                step,
                self.losses[-1],
                self.step_s[-1],
                self.sent.total() - before[0],
                self.received.total() - before[1],
            )
        )
        self._settle_if_due()

    def _send_gradient(self, leaf_BSD: Tensor, place: StepTensor) -> None:
        assert leaf_BSD.grad is not None and self._talk is not None  # noqa: PT018
        self._talk.say(
            Kind.GRADIENT,
            msgspec.structs.replace(place, lengths=(), reply_to=place.reply_to),
            tensor=pack(leaf_BSD.grad, lengths=place.lengths),
            codec=self._codecs.gradient,
        )

    def _targets(self, numbers: Sequence[int]) -> Padded:
        names = self._numbered["train"]
        return self.run.corpus.train.batch([names[i] for i in numbers])

    def _source(self, numbers: Sequence[int], *, phase: str) -> tuple[Source, StepTensor]:
        """The encoder's rows of these samples, kept ones included."""
        missing = tuple(i for i in numbers if not self._store.has(phase, i))
        if not missing:
            return self._store.source(phase, numbers), _NOWHERE
        source, place = self._ask(missing, phase=phase)
        kept = self._store.keep(phase, missing, source)
        if len(missing) == len(numbers):
            return source, place
        if not kept:  # the rest found no room: ask for all, so that a batch is one tensor
            return self._ask(tuple(numbers), phase=phase)
        return self._store.source(phase, numbers), place

    def _ask(self, numbers: tuple[int, ...], *, phase: str) -> tuple[Source, StepTensor]:
        talk = self._talk
        assert talk is not None, "rows are asked for in a conversation"
        asked = talk.say(Kind.WANT, Want(self._step, phase, numbers))  # type: ignore[arg-type]
        frame = talk.hear(Kind.ACTIVATION)
        place = frame.meta
        assert isinstance(place, StepTensor)
        if place.reply_to != asked:
            raise SessionError(
                f"{frame.kind} answers message {place.reply_to}; expected {asked}, which asked for it"
            )
        rows_ND = talk.tensor(
            frame, codec=self._codecs.rows, rows=sum(place.lengths), width=self.run.terms.width
        )
        self.rows += len(rows_ND)
        rows_BSD = unpack(rows_ND, lengths=place.lengths, width=place.width)
        answered = msgspec.structs.replace(place, reply_to=frame.seq)
        return Source(rows_BSD, place.lengths), answered

    def _translate(self) -> list[tuple[str, str]]:
        run, names = self.run, self._numbered["evaluate"]
        out: list[tuple[str, str]] = []
        for numbers in self._questions():
            with torch.no_grad():
                source, _ = self._source(numbers, phase="evaluate")
                found = mask_predict(
                    run.decoder,
                    source,
                    special=run.special,
                    iterations=run.iterations,
                    candidates=run.candidates,
                )
            held_out = run.corpus.evaluate
            out += [
                (held_out.text(names[i]), written(held_out.tokenizer, words))
                for i, words in zip(numbers, found, strict=True)
            ]
            self._observe(Evaluated(len(out)))
            self._settle_if_due()
        return out

    def _questions(self) -> Iterator[list[int]]:
        """The numbers of held-out samples whose rows are asked for at once."""
        numbers, most = self._sorted["evaluate"], self.run.evaluated
        for start in range(0, len(numbers), most):
            yield numbers[start : start + most]

    def _go_alone(self) -> None:
        """All rows to train on are here: take those held out too, and let the peer go."""
        if self._talk is None:
            return
        for numbers in self._questions():
            self._source(numbers, phase="evaluate")
            self._settle_if_due()
        if self._store.full(self.samples):
            self._goodbye()

    def _goodbye(self) -> None:
        talk = self._talk
        assert talk is not None, "a goodbye without a conversation"
        talk.settle()
        talk.say(Kind.FINISH, Finish(weights=False))
        assert isinstance(talk.hear(Kind.CLOSED).meta, Empty)
        talk.end(None)
        self._talk = None
        self._observe(Finished(self._step))

    def _checkpoint(self) -> None:
        self._save(self._step)
        if self.run.terms.trains:
            assert self._talk is not None, "an encoder that trains is at the other end"
            self._talk.say(Kind.CHECKPOINT, Step(self._step))
            self._talk.hear(Kind.SAVED)
        self._observe(Saved(self._step))

    def _save(self, step: int) -> None:
        self._checkpoints.save(
            step, model=self.run.decoder, stepper=self._stepper, extra={"losses": self.losses}
        )

    def _settle_if_due(self) -> None:
        if self._talk is not None:
            self._talk.settle_if_due()


def mask_seed(seed: int, *, step: int) -> int:
    """What a step's masks are drawn by: the same with and without a link."""
    return stage_seed(seed, step=step, micro_batch=0, stage="masks")


# Where rows that were kept stand in the conversation.
_NOWHERE = StepTensor(0, 0, 1, "train", 1, True, (), 0)
