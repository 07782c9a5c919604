"""The trusted party's step loop: bottom, gate, link, gate, top, loss, and back.

Owns text, labels, optimiser state and the pace of the run. Sends nothing but through its
Talk, reads nothing but what the session allows, and after any restart of either process
goes on from the newest checkpoint that both parties hold, with the same numbers.
"""

# B batch, T tokens, D width at a cut, N rows that travel (packed: B x T without padding)

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec
import torch
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from splitlearn.channel.base import Channel, PeerRestarted
from splitlearn.channel.mailbox import DEFAULT_WINDOW
from splitlearn.engine.checkpoints import Checkpoints
from splitlearn.engine.coders import Coders
from splitlearn.engine.events import (
    Began,
    Evaluated,
    Finished,
    Observe,
    RolledBack,
    Saved,
    SentWeights,
    StepDone,
)
from splitlearn.engine.exchange import Exchange, rows_in
from splitlearn.engine.flight import Flight, pause_at_cut
from splitlearn.engine.kept import DEFAULT_BYTES, Kept, Namer
from splitlearn.engine.noise import LabelNoise
from splitlearn.engine.optimiser import build_stepper
from splitlearn.engine.plain import logits_of
from splitlearn.engine.seeds import seeded
from splitlearn.engine.talk import Talk
from splitlearn.engine.weights import Inlet, shards
from splitlearn.errors import SessionError
from splitlearn.gate import Gate
from splitlearn.pipeline import ORDERS, Action, Op
from splitlearn.roles import Kind, Role
from splitlearn.session import MAX_UNSETTLED, Session
from splitlearn.split.freeze import set_training
from splitlearn.split.stage import RemoteStage
from splitlearn.split.weights import GROUPS
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import Accept, Finish, Offer, Resume, Shard, Step, StepTensor

__all__ = ["EVALUATION_GROUP", "IN_FLIGHT", "TrustedEngine", "TrustedRun"]

# Activations under way at once, unless the job says otherwise. A job may ask for no more than half
# the channel's window, so that neither party can fill the other's credit with answers while it waits
# for its own: as many gradients are under way as activations.
IN_FLIGHT = DEFAULT_WINDOW // 4

# Heads and receipts are swapped between steps when so many messages or seconds have passed.
SETTLE_MESSAGES = MAX_UNSETTLED // 2
SETTLE_S = 10.0

# Micro-batches of an evaluation that the session counts as one stretch.
EVALUATION_GROUP = 64


@dataclass(frozen=True)
class TrustedRun:
    """What does not change while a run lives.

    local: the model with a RemoteStage for its trunk; groups: the trunk's weights before training,
    by group name, and the bases of codecs as "bases"; entrance and exit: columns of what is sent and
    what comes back; packed: whether padding is left out; every: steps between checkpoints; noise: on
    what labels decide, where the job asks for it; order, in_flight: schedule of a step's
    micro-batches, and activations under way at once. cache_bytes: for rows that codecs keep between
    epochs; linking: the secret behind the pseudonyms of samples.
    """

    offer: Offer
    local: nn.Module
    groups: dict[str, dict[str, Tensor]]
    entrance: int
    exit: int
    packed: bool
    every: int
    deadline_s: float
    noise: LabelNoise | None = None
    order: str = "1f1b"
    in_flight: int = IN_FLIGHT
    cache_bytes: int = DEFAULT_BYTES
    linking: bytes = field(default=b"", repr=False)


class TrustedEngine:
    """Runs one job against one compute party."""

    def __init__(
        self,
        run: TrustedRun,
        *,
        channel: Channel,
        open_gate: Callable[[Offer, Session], Gate],
        checkpoints: Checkpoints,
        observe: Observe,
    ) -> None:
        self.run, self._channel, self._open_gate = run, channel, open_gate
        self._checkpoints, self._observe = checkpoints, observe
        self._stepper = build_stepper(
            run.local.parameters(), optimiser=run.offer.optimiser, schedule=run.offer.schedule
        )
        self._coders = Coders(
            msgspec.structs.asdict(run.offer.codecs),
            run.groups.get("bases", {}),
            kept=Kept(checkpoints.folder.parent, limit_bytes=run.cache_bytes),
        )
        for module in run.local.modules():
            if isinstance(module, RemoteStage):
                module.exchange = pause_at_cut
        self.losses: list[float] = []
        # Wall seconds of each step that this process did, those done again after a restart included.
        self.step_s: list[float] = []
        self.rows = {"train": 0, "evaluate": 0}
        self._talk: Talk | None = None
        self._exchange: Exchange | None = None
        self._settled_at = 0.0
        # Bytes of whole frames by kind, over all conversations of this process.
        self.sent: Counter[Kind] = Counter()
        self.received: Counter[Kind] = Counter()

    @property
    def _now(self) -> Talk:
        """The conversation under way."""
        assert self._talk is not None, "a step before the conversation began"
        return self._talk

    @property
    def _link(self) -> Exchange:
        """Its tensors."""
        assert self._exchange is not None, "a step before the conversation began"
        return self._exchange

    def train(self, steps: Callable[[int], Sequence[Batch]]) -> None:
        """Train to the schedule's end; a peer that comes back as a new process only costs time."""
        self._surviving_restarts(lambda: self._train(steps))

    def evaluate(self, batches: Sequence[Batch]) -> list[dict[str, Tensor]]:
        """The model's logits for each batch, by name, with the weights of the newest checkpoint."""
        outputs: list[dict[str, Tensor]] = []

        def work() -> None:
            outputs.clear()
            self._begin()
            outputs.extend(self._evaluate(batches))

        self._surviving_restarts(work)
        return outputs

    def finish(self, *, fetch: bool = False) -> dict[str, Tensor]:
        """Say goodbye; with `fetch`, take the trunk's trained weights along (none if frozen)."""
        trunk: dict[str, Tensor] = {}

        def work() -> None:
            trunk.clear()
            self._begin()
            trunk.update(self._finish(fetch=fetch))

        self._surviving_restarts(work)
        return trunk

    def end(self, error: BaseException | None) -> None:
        """Close the log's account of the conversation; call it once, whatever happened."""
        self._coders.begin()  # what was kept is of no use to the next conversation
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
        """Agree on the job and on the step to go on from, unless that is done."""
        if self._talk is not None:
            return
        run, session = self.run, Session(me=Role.TRUSTED, peer=Role.COMPUTE)
        if not self._checkpoints.held():
            self._save(0)
        mine = self._checkpoints.held()
        offer = msgspec.structs.replace(run.offer, held=mine, conversation=secrets.token_hex(16))
        talk = Talk(
            channel=self._channel,
            session=session,
            gate=self._open_gate(offer, session),
            deadline_s=run.deadline_s,
            sent=self.sent,
            received=self.received,
        )
        self._talk = talk
        self._coders.begin()
        self._exchange = Exchange(
            talk,
            coders=self._coders,
            widths={Kind.OUTPUT: run.exit, Kind.INPUT_GRADIENT: run.entrance},
            packed=run.packed,
            noise=run.noise,
            namer=self._namer(),
        )
        talk.say(Kind.OFFER, offer)
        accept = talk.hear(Kind.ACCEPT).meta
        assert isinstance(accept, Accept)
        talk.gate.witness.peer_holds(accept.witnessed)
        step = self._common(mine, theirs=accept.held)
        if accept.needs:
            self._send_weights(accept.needs)
        talk.say(Kind.RESUME, Resume(step, talk.gate.witness.held))
        extra = self._checkpoints.load(step, model=run.local, stepper=self._stepper)
        if run.offer.purpose == "train":
            self._checkpoints.drop_after(step)
        self._stepper.clear()
        self.losses = _floats(extra.get("losses"))
        talk.hear(Kind.READY)
        self._settle()
        self._observe(Began(step, self._channel.peer))

    def _namer(self) -> Namer | None:
        """Who says which samples are kept, where the activation's codec keeps any."""
        run, coders = self.run, self._coders
        if not coders.links(Kind.ACTIVATION):
            return None
        widths = (run.entrance, *([run.exit] if coders.links(Kind.OUTPUT) else []))
        return Namer(run.linking, widths=widths, limit_bytes=run.cache_bytes)

    def _common(self, mine: Sequence[int], *, theirs: Sequence[int]) -> int:
        """The newest step that both hold. A run that trains may always begin anew at 0."""
        common = set(mine) & set(theirs)
        if self.run.offer.purpose == "train":
            common |= {0} & set(mine)
        if not common:
            raise SessionError(
                f"{self._channel.peer} holds no checkpoint of this run that we hold too (ours are "
                f"{tuple(mine)}, theirs {tuple(theirs)}); it lost them, or the run is another one: "
                "begin anew with another run.folder"
            )
        return max(common)

    def _send_weights(self, needs: Iterable[str]) -> None:
        state = {name: t for group in needs for name, t in self.run.groups[group].items()}
        cut = shards(state)
        for i, parts in enumerate(cut):
            self._now.say(Kind.WEIGHTS, Shard(i, len(cut)), parts=parts)
            self._observe(SentWeights(i, len(cut)))

    def _train(self, steps: Callable[[int], Sequence[Batch]]) -> None:
        self._begin()
        set_training(self.run.local, training=True)
        total = self.run.offer.schedule.total_steps
        while (step := self._now.session.next_step) < total:
            self._train_step(steps(step))
            self._settle_if_due()
            done = step + 1
            if done % self.run.every == 0 or done == total:
                self._save(done)
                self._now.say(Kind.CHECKPOINT, Step(done))
                self._now.hear(Kind.SAVED)
                self._coders.forget()
                self._observe(Saved(done))

    def _train_step(self, batches: Sequence[Batch]) -> None:
        began = time.perf_counter()
        talk, run = self._now, self.run
        step = talk.session.next_step
        before = (talk.sent.total(), talk.received.total())
        back = run.offer.returns_input_gradient
        total = sum(batch.items for batch in batches)
        flights: dict[int, tuple[Flight, Tensor]] = {}
        mean = torch.zeros(())
        for action in self._order(len(batches), backward=back):
            i = action.micro_batch
            batch = batches[i]
            # A step is one step: once its last gradient is out the session counts the next one.
            place = self._link.place(batch, i, len(batches), phase="train", step=step)
            if action.op is Op.BOTTOM:
                flights[i] = self._bottom(batch, place, labels=True)
            elif action.op is Op.TOP:
                h_BTD = self._link.receive(Kind.OUTPUT, batch, place)
                h_BTD.requires_grad_(run.offer.mode != "features")
                with seeded(run.offer.seed, step=step, micro_batch=i, stage="top"):
                    output = flights[i][0].from_cut(h_BTD)
                    loss = output["loss"] * (batch.items / total)
                self._backward(loss, output, batch, items=total)
                mean += loss.detach()
                if h_BTD.grad is not None:
                    self._link.send(Kind.GRADIENT, h_BTD.grad, batch, place)
                if not back:
                    del flights[i]
            else:
                g_BTD = self._link.receive(Kind.INPUT_GRADIENT, batch, place)
                torch.autograd.backward(flights.pop(i)[1], g_BTD)
        self._stepper.step()
        self.losses.append(mean.item())
        self.step_s.append(time.perf_counter() - began)
        self._observe(
            StepDone(
                step,
                self.losses[-1],
                self.step_s[-1],
                talk.sent.total() - before[0],
                talk.received.total() - before[1],
            )
        )

    def _backward(self, loss: Tensor, output: ModelOutput, batch: Batch, *, items: int) -> None:
        if self.run.noise is None:
            torch.autograd.backward(loss)
            return
        logits, labels = output["logits"], batch.labels["labels"]
        self.run.noise.backward(loss, logits=logits, labels=labels, items=items)

    def _evaluate(self, batches: Sequence[Batch]) -> Iterator[dict[str, Tensor]]:
        set_training(self.run.local, training=False)
        step = self._now.session.next_step
        remaining = iter(batches)
        done = 0
        with torch.no_grad():
            while group := list(islice(remaining, EVALUATION_GROUP)):
                flights: dict[int, Flight] = {}
                for action in self._order(len(group), backward=False):
                    i = action.micro_batch
                    place = self._link.place(group[i], i, len(group), phase="evaluate", step=step)
                    if action.op is Op.BOTTOM:
                        flights[i] = self._bottom(group[i], place, labels=False)[0]
                    else:
                        h_BTD = self._link.receive(Kind.OUTPUT, group[i], place)
                        output = flights.pop(i).from_cut(h_BTD)
                        done += 1
                        self._observe(Evaluated(done))
                        yield logits_of(output)
                self._settle_if_due()

    def _settle_if_due(self) -> None:
        late = time.monotonic() - self._settled_at >= SETTLE_S
        if late or self._now.session.unsettled >= SETTLE_MESSAGES:
            self._settle()

    def _settle(self) -> None:
        self._now.settle()
        self._settled_at = time.monotonic()

    def _finish(self, *, fetch: bool) -> dict[str, Tensor]:
        self._settle()
        self._now.say(Kind.FINISH, Finish(fetch))
        inlet = Inlet({name: t for g in GROUPS for name, t in self.run.groups[g].items()})
        heard = 0
        while (frame := self._now.hear(Kind.WEIGHTS, Kind.CLOSED)).kind is Kind.WEIGHTS:
            inlet.take(self._now.parts(frame))
            heard += 1
        self._observe(Finished(self._now.session.next_step))
        return inlet.state() if heard else {}

    def _bottom(self, batch: Batch, place: StepTensor, *, labels: bool) -> tuple[Flight, Tensor]:
        """Start a forward and send what it hands out at the cut."""
        inputs = {**batch.inputs, **batch.labels} if labels else batch.inputs
        flight = Flight(self.run.local, inputs=inputs)
        seed, step, i = self.run.offer.seed, place.step, place.micro_batch
        with seeded(seed, step=step, micro_batch=i, stage="bottom"):
            h_BTD = flight.to_cut()
        self._link.send(Kind.ACTIVATION, h_BTD, batch, place)
        self.rows[place.phase] += rows_in(batch, place)
        return flight, h_BTD

    def _order(self, micro_batches: int, *, backward: bool) -> Iterator[Action]:
        run = self.run
        return ORDERS[run.order](micro_batches, in_flight=run.in_flight, backward=backward)

    def _save(self, step: int) -> None:
        self._checkpoints.save(
            step, model=self.run.local, stepper=self._stepper, extra={"losses": self.losses}
        )


def _floats(values: object) -> list[float]:
    return [float(v) for v in values] if isinstance(values, list) else []
