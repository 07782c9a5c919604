"""The compute party's loop: it answers, one message after the other, and never asks.

Holds the trunk of one run, its optimiser and its checkpoints. What it is told to build comes from a
peer and is checked against tables before anything is built; what it computes goes back through the
gate like everything else.
"""

# B batch, T tokens, D width at a cut, N rows that travel

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import msgspec
import torch
from torch import Tensor

from splitlearn.channel.base import Channel
from splitlearn.codecs import Codec
from splitlearn.engine.compute.arriving import RunPlace, Sent, fill, take_weights
from splitlearn.engine.compute.bridge import Neighbours
from splitlearn.engine.compute.bridges import Bridges, bridging
from splitlearn.engine.compute.loaded import Loaded, build_loaded, go_to
from splitlearn.engine.conversation.answering import conversation
from splitlearn.engine.conversation.talk import Talk
from splitlearn.engine.events import Answered, Began, Finished, Observe, Saved
from splitlearn.engine.payloads.bases import expected_bases
from splitlearn.engine.payloads.coders import Coders
from splitlearn.engine.payloads.crossing import above_of, memory_of, take_apart
from splitlearn.engine.payloads.kept import Kept
from splitlearn.engine.payloads.weights import load_kept, shards
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.engine.state.clipping import norm_of, scale
from splitlearn.engine.state.device import CPU, Device
from splitlearn.engine.state.seeds import seeded
from splitlearn.errors import WireError
from splitlearn.gate import Gate
from splitlearn.roles import Kind, Role
from splitlearn.session import Session, State
from splitlearn.split.crossing import Beside, as_one
from splitlearn.split.cut import cut_of
from splitlearn.split.freeze import freeze_trunk, set_training
from splitlearn.split.lora import adapt, trained_state, trunk_blocks
from splitlearn.split.rows import pack, unpack
from splitlearn.split.weights import digest
from splitlearn.wire.frames import Frame
from splitlearn.wire.messages import (
    Accept,
    Empty,
    Memory,
    Offer,
    Scale,
    Shard,
    Step,
    StepTensor,
)

__all__ = ["ComputeEngine"]


class ComputeEngine:
    """Serves one conversation after the other over one channel."""

    def __init__(
        self,
        channel: Channel,
        *,
        open_gate: Callable[[Offer, Session], Gate],
        place_of: Callable[[Offer], RunPlace],
        deadline_s: float,
        observe: Observe,
        overlap: bool = True,
        neighbours: Neighbours | None = None,
        device: Device = CPU,
    ) -> None:
        """overlap: whether answers are encoded, logged and sent beside the sums. neighbours: whom this party
        speaks with itself in a direct chain; none where it is ready for no such chain. device: of the trunk.
        """
        self._channel, self._open_gate, self._place_of = channel, open_gate, place_of
        self._deadline_s, self._observe, self._device = deadline_s, observe, device
        self._overlap, self._neighbours = overlap, neighbours
        # Bytes of whole frames by kind, over all conversations of this engine.
        self.sent: Counter[Kind] = Counter()
        self.received: Counter[Kind] = Counter()

    def serve(self) -> None:
        """Answer from an offer to the goodbye.

        Raises PeerRestarted when the peer began anew (call again), ChannelError when it fell silent,
        PeerError when it broke the rules.
        """
        session = Session(me=Role.COMPUTE, peer=Role.TRUSTED)
        counts = {"sent": self.sent, "received": self.received}
        with (
            conversation(
                self._channel,
                session,
                begins=Kind.OFFER,
                terms_of=Offer,
                open_gate=self._open_gate,
                deadline_s=self._deadline_s,
                overlap=self._overlap,
                **counts,
            ) as (talk, offer),
            bridging(talk, offer, self._neighbours, **counts) as bridges,
        ):
            loaded = self._agree(talk, offer, bridges)
            answer: dict[Kind, Callable[[Talk, Loaded, Frame], None]] = {
                Kind.ACTIVATION: self._forward,
                Kind.GRADIENT: self._backward,
                Kind.INPUT_GRADIENT: self._backward,  # of a neighbour
                Kind.SCALE: self._scale,
                Kind.CHECKPOINT: self._save,
                Kind.SETTLE: self._settle,
                Kind.FINISH: self._finish,
            }
            while session.state is not State.CLOSED:
                if bridges is None:
                    of, frame = talk, talk.hear(*answer)
                else:
                    of, frame = bridges.hear(busy=bool(loaded.graphs))
                answer[frame.kind](of, loaded, frame)

    def _agree(self, talk: Talk, offer: Offer, bridges: Bridges | None) -> Loaded:
        """From the offer to READY."""
        place = self._place_of(offer)
        loaded = build_loaded(offer, Checkpoints(place.checkpoints))
        expected = expected_bases(offer, width=loaded.trunk.config.hidden_size)
        bases = load_kept(place.received, name=offer.bases) or {}
        needs: tuple[Sent, ...] = fill(loaded.trunk, offer, place)
        if digest(bases) != offer.bases or bases.keys() != expected.keys():
            needs, bases = (*needs, "bases"), {}
        talk.say(Kind.ACCEPT, Accept(loaded.checkpoints.held(), needs, talk.gate.witness.held))
        step, received = take_weights(talk, loaded.trunk, offer, place, needs, expected=expected)
        loaded.agreed = Coders.of_offer(
            offer,
            received if "bases" in needs else bases,
            kept=Kept(place.checkpoints.parent, limit_bytes=place.cache_bytes),
        )
        if loaded.trunk.crossed and loaded.coders.linking:
            raise WireError(
                f"the peer offers a {offer.model.model_type} and a codec of changes by sample, which is for "
                "rows of one text each"
            )
        # What is kept of one message is what the next one is written against.
        talk.overlap = talk.overlap and not loaded.coders.linking
        if offer.detail.lora is not None:
            adapt(trunk_blocks(loaded.trunk), offer.detail.lora)
        freeze_trunk(loaded.trunk, mode=offer.mode)
        loaded.trunk.to(self._device.at)
        go_to(loaded, step)
        loaded.bridges = bridges
        if bridges is not None:
            bridges.open(step)
        talk.say(Kind.READY, Empty())
        self._observe(Began(step, self._channel.peer))
        return loaded

    def _forward(self, talk: Talk, loaded: Loaded, frame: Frame) -> None:
        meta, offer = _step_of(frame), loaded.offer
        told = memory_of(meta, agreed=loaded.takes_memory(meta))
        cache = loaded.going_on(meta)
        if cache is not None:  # from here on only the new tokens count
            new = (meta.width,) * len(meta.lengths)
            meta = msgspec.structs.replace(meta, lengths=new)
        training = loaded.trains and meta.phase == "train"
        entrance = cut_of(offer.cut).entrance(loaded.trunk.config.hidden_size)
        codec = loaded.codec(frame.kind, meta, samples=None)
        joined = loaded.trunk.joined and cache is None
        beside = loaded.beside
        if told is None:
            h_BTD = _tensor(talk, codec, frame, meta, width=entrance, joined=joined)
            _open_ahead(talk, loaded, meta)
        else:
            beside, h_BTD = take_apart(_both(talk, codec, frame, meta, width=entrance), meta)
            beside = Beside(self._device.take(beside.h_BSD), beside.lengths)
            beside.h_BSD.requires_grad_(training and offer.detail.memory_trains)
            loaded.beside = None if cache is None else beside
        samples = loaded.coders.keep(codec)
        h_BTD = self._device.take(h_BTD)
        h_BTD.requires_grad_(training and offer.returns_input_gradient)
        set_training(loaded.trunk, training=training)
        place = {"step": meta.step, "micro_batch": meta.micro_batch}
        weights = loaded.versions.using(meta.step) if training else nullcontext()
        seeds = seeded(offer.seed, **place, stage="trunk")
        with weights, seeds, torch.set_grad_enabled(training), self._device.working():
            o_BTD = loaded.trunk(h_BTD, lengths=meta.lengths, cache=cache, beside=beside)
        o_BTD = o_BTD.float()  # in whatever precision it was computed
        if training:
            entered = (h_BTD,) if beside is None else (beside.h_BSD, h_BTD)
            loaded.graphs[meta.step, meta.micro_batch] = (entered, o_BTD, meta)
        codec = loaded.codec(Kind.OUTPUT, meta, samples=samples)
        _answer(talk, loaded, codec, Kind.OUTPUT, o_BTD, meta, reply_to=frame.seq, joined=joined)
        loaded.coders.keep(codec)
        if meta.phase == "train" and not training and meta.micro_batch == meta.micro_batches - 1:
            loaded.stepped(meta.step)

    def _backward(self, talk: Talk, loaded: Loaded, frame: Frame) -> None:
        at = _step_of(frame)
        entered, o_BTD, meta = loaded.graphs.pop((at.step, at.micro_batch))
        codec, joined = loaded.codec(Kind.GRADIENT, meta), loaded.trunk.joined
        width = o_BTD.shape[2]
        if above_of(at, meta, trains=loaded.offer.detail.memory_trains):
            above, g_BTD = take_apart(_both(talk, codec, frame, meta, width=width), meta)
            # Summed on from there, as one model would.
            sums = [self._device.take(g_BTD), self._device.take(above.h_BSD)]
            torch.autograd.backward([o_BTD, entered[0]], sums)
        else:
            g_BTD = _tensor(talk, codec, frame, meta, width=width, joined=joined)
            _open_ahead(talk, loaded, meta)
            torch.autograd.backward(o_BTD, self._device.take(g_BTD))
        if loaded.offer.returns_input_gradient:
            self._give_back(talk, loaded, entered, meta, reply_to=frame.seq)
        if at.micro_batch == at.micro_batches - 1:
            if loaded.offer.detail.clips:  # the step waits for the factor
                talk.say(Kind.NORM, norm_of(loaded.stepper, step=at.step, peer=talk.channel.peer))
            else:
                self._step(loaded, at.step)

    def _give_back(
        self,
        talk: Talk,
        loaded: Loaded,
        entered: tuple[Tensor, ...],
        meta: StepTensor,
        *,
        reply_to: int,
    ) -> None:
        """Gradients by what entered the trunk, as far as they are asked for."""
        codec, joined = loaded.codec(Kind.INPUT_GRADIENT, meta), loaded.trunk.joined
        kind, grads = Kind.INPUT_GRADIENT, [h.grad for h in entered if h.grad is not None]
        _answer(
            talk,
            loaded,
            codec,
            kind,
            grads[-1],
            meta,
            reply_to=reply_to,
            joined=joined,
            beside=grads[:-1],
        )

    def _scale(self, _: Talk, loaded: Loaded, frame: Frame) -> None:
        assert isinstance(frame.meta, Scale)
        scale(loaded.stepper.parameters, frame.meta.factor)
        self._step(loaded, frame.meta.step)

    def _step(self, loaded: Loaded, step: int) -> None:
        loaded.versions.update(step, stepper=loaded.stepper)
        loaded.stepped(step)
        self._observe(Answered(step))

    def _save(self, talk: Talk, loaded: Loaded, frame: Frame) -> None:
        assert isinstance(frame.meta, Step)
        if loaded.bridges is not None:
            loaded.bridges.check_done(frame)
        loaded.checkpoints.save(
            frame.meta.step,
            model=loaded.trunk,
            stepper=loaded.stepper,
            extra={},
            best=frame.meta.best,
        )
        loaded.versions.drained(frame.meta.step)
        loaded.coders.forget()
        talk.say(Kind.SAVED, Step(frame.meta.step))
        self._observe(Saved(frame.meta.step))

    def _settle(self, talk: Talk, loaded: Loaded, frame: Frame) -> None:
        if loaded.bridges is not None:
            loaded.bridges.vouch()
        talk.answer_settlement(frame)
        loaded.versions.drained(talk.session.next_step)

    def _finish(self, talk: Talk, loaded: Loaded, _: Frame) -> None:
        assert isinstance(talk.session, Session)
        if loaded.bridges is not None:
            loaded.bridges.finish()
        if talk.session.weights_wanted and loaded.offer.trains_trunk:
            cut = shards(trained_state(loaded.trunk))
            for i, parts in enumerate(cut):
                talk.say(Kind.WEIGHTS, Shard(i, len(cut)), parts=parts)
        talk.say(Kind.CLOSED, Empty())
        self._observe(Finished(talk.session.next_step))


def _step_of(frame: Frame) -> StepTensor:
    assert isinstance(frame.meta, StepTensor)
    return frame.meta


def _tensor(
    talk: Talk, codec: Codec, frame: Frame, meta: StepTensor, *, width: int, joined: bool
) -> Tensor:
    """The padded tensor that a frame's payload stands for; meta is the activation's."""
    x_ND = talk.tensor(frame, codec=codec, rows=_rows_of(meta), width=width)
    return unpack(x_ND, lengths=meta.lengths, width=meta.width, packed=meta.packed, joined=joined)


def _rows_of(meta: StepTensor) -> int:
    return sum(meta.lengths) if meta.packed else len(meta.lengths) * meta.width


def _open_ahead(talk: Talk, loaded: Loaded, now: StepTensor) -> None:
    """What has come of the same step is opened beside the sums that now follow.

    Not of texts that are gone on with, nor where more than one peer or step is under way: what is admitted
    early there may be answered late.
    """
    alone = loaded.bridges is None and not loaded.offer.schedule.staleness
    if not (talk.overlap and alone) or loaded.trunk.crossed or now.phase == "generate":
        return

    def ours(frame: Frame) -> bool:
        meta = frame.meta
        if not isinstance(meta, StepTensor) or (meta.step, meta.phase) != (now.step, now.phase):
            return False
        # A gradient is legal from when its output went out.
        return frame.kind is Kind.ACTIVATION or (meta.step, meta.micro_batch) in loaded.graphs

    for frame in talk.take_in(ours):
        meta = _step_of(frame)
        width = cut_of(loaded.offer.cut).entrance(loaded.trunk.config.hidden_size)
        if frame.kind is not Kind.ACTIVATION:
            _, o_BTD, meta = loaded.graphs[meta.step, meta.micro_batch]
            width = o_BTD.shape[2]
        codec = loaded.codec(frame.kind, meta, samples=None)
        talk.open_soon(frame, codec=codec, rows=_rows_of(meta), width=width)


def _both(talk: Talk, codec: Codec, frame: Frame, meta: StepTensor, *, width: int) -> Tensor:
    """Rows of a memory and of a decoder, of an activation or of a gradient; meta is the activation's."""
    assert meta.memory is not None, "asked for where one came"
    rows = sum(meta.memory.lengths) + sum(meta.lengths)
    return talk.tensor(frame, codec=codec, rows=rows, width=width)


def _answer(
    talk: Talk,
    loaded: Loaded,
    codec: Codec,
    kind: Kind,
    x_BTD: Tensor,
    meta: StepTensor,
    *,
    reply_to: int,
    joined: bool,
    beside: Sequence[Tensor] = (),
) -> None:
    """beside: nothing, or what goes back for a memory."""
    memory = None
    if meta.memory is not None and beside:
        memory = Memory(meta.memory.width, ())
    answer = msgspec.structs.replace(meta, lengths=(), reply_to=reply_to, memory=memory)
    if loaded.bridges is not None:
        talk, kind, answer = loaded.bridges.route(kind, answer, lengths=meta.lengths)
    x_BTD = x_BTD.detach()  # what waits to be sent holds no graph

    def make() -> Tensor:
        x_ND = pack(x_BTD, lengths=meta.lengths, packed=meta.packed, joined=joined)
        if meta.memory is None or not beside:
            return x_ND
        return as_one(pack(beside[0], lengths=meta.memory.lengths), x_ND)

    talk.say_soon(kind, answer, make, codec=codec)
