"""The encoder party's loop: it names its samples, sends rows of those that are asked for, and steps.

Holds source text, a frozen encoder and its adapters. It never learns a target, nor what its rows were
used for beyond the gradient that comes back, where its adapters train.
"""

# B examples, S rows of each (its tokens and the extra one), D width, N rows that travel

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from splitlearn.channel.base import Channel
from splitlearn.engine.conversation.answering import conversation
from splitlearn.engine.conversation.talk import Talk
from splitlearn.engine.events import Answered, Began, Finished, Observe, Saved
from splitlearn.engine.pair.pairing import Codecs, EncoderHalf, hashes_of, names_of
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.engine.state.optimiser import Stepper, build_stepper
from splitlearn.errors import IdentityError, SessionError
from splitlearn.gate import Gate, Private
from splitlearn.roles import Kind, Role
from splitlearn.session import PairSession, PairState
from splitlearn.split.rows import pack, unpack
from splitlearn.translation.text import Sentences
from splitlearn.wire.frames import Frame
from splitlearn.wire.messages import (
    Accept,
    Empty,
    Pairing,
    Resume,
    Samples,
    Step,
    StepTensor,
    Want,
)

__all__ = ["EncoderEngine"]


@dataclass
class _Served:
    """A half at work. numbered: by phase the samples that both have, in the order of their hashes."""

    terms: Pairing
    half: EncoderHalf
    codecs: Codecs
    checkpoints: Checkpoints
    numbered: dict[str, list[str]] = field(default_factory=dict)
    stepper: Stepper = field(default_factory=lambda: Stepper(None, None))

    def sentences(self, phase: str) -> Sentences:
        corpus = self.half.corpus
        return corpus.train if phase == "train" else corpus.evaluate


class EncoderEngine:
    """Serves one conversation after the other over one channel."""

    def __init__(
        self,
        channel: Channel,
        *,
        open_gate: Callable[[Pairing, PairSession], Gate],
        half_of: Callable[[Pairing], EncoderHalf],
        deadline_s: float,
        observe: Observe,
    ) -> None:
        """half_of: the half that a run's terms ask for, as it was before training."""
        self._channel, self._open_gate, self._half_of = channel, open_gate, half_of
        self._deadline_s, self._observe = deadline_s, observe

    def serve(self) -> None:
        """Answer from the terms to the goodbye.

        Raises PeerRestarted when the decoder party began anew (call again), ChannelError when it fell
        silent, PeerError when it broke the rules.
        """
        session = PairSession(me=Role.ENCODER, peer=Role.DECODER)
        with conversation(
            self._channel,
            session,
            begins=Kind.PAIRING,
            terms_of=Pairing,
            open_gate=self._open_gate,
            deadline_s=self._deadline_s,
        ) as (talk, terms):
            served = self._agree(talk, terms)
            answer: dict[Kind, Callable[[Talk, _Served, Frame], None]] = {
                Kind.WANT: self._forward,
                Kind.CHECKPOINT: self._save,
                Kind.SETTLE: lambda talk, _, frame: talk.answer_settlement(frame),
                Kind.FINISH: self._finish,
            }
            while session.state is not PairState.CLOSED:
                frame = talk.hear(*answer)
                answer[frame.kind](talk, served, frame)

    def _agree(self, talk: Talk, terms: Pairing) -> _Served:
        """From the terms to READY."""
        codecs, half = Codecs(terms), self._half_of(terms)
        width = half.encoder.frozen.width
        if width != terms.width or half.encoder.trains != terms.trains:
            raise IdentityError(
                f"{self._channel.peer} wants rows of {terms.width} numbers from adapters that "
                f"{'train' if terms.trains else 'stand still'}; our encoder has {width} and its "
                f"{'train' if half.encoder.trains else 'stand still'}: agree on both"
            )
        served = _Served(terms, half, codecs, Checkpoints(half.checkpoints))
        held = served.checkpoints.held() if terms.trains else ()
        talk.say(Kind.ACCEPT, Accept(held, (), talk.gate.witness.held))
        self._align(talk, served)
        resume = talk.hear(Kind.RESUME).meta
        assert isinstance(resume, Resume)
        talk.gate.witness.peer_holds(resume.witnessed)
        _go_to(served, resume.step)
        talk.say(Kind.READY, Empty())
        self._observe(Began(resume.step, self._channel.peer))
        return served

    def _align(self, talk: Talk, served: _Served) -> None:
        """Name our samples; hear which of them both have."""
        naming, corpus = served.terms.naming, served.half.corpus
        train = names_of(corpus.train.samples, naming=naming)
        evaluate = names_of(corpus.evaluate.samples, naming=naming)
        mine = hashes_of(train, evaluate)
        talk.say(Kind.SAMPLES, Samples(len(mine[0]), len(mine[1])), hashes=mine)
        common = talk.hashes(talk.hear(Kind.SAMPLES))
        for phase, names, found in (
            ("train", train, common[0]),
            ("evaluate", evaluate, common[1]),
        ):
            if not names.keys() >= set(found):
                raise SessionError(
                    f"{self._channel.peer} names samples in common that we have not named; its list is "
                    "not of this conversation"
                )
            served.numbered[phase] = [names[each] for each in found]

    def _forward(self, talk: Talk, served: _Served, frame: Frame) -> None:
        want = frame.meta
        assert isinstance(want, Want)
        numbered = served.numbered[want.phase]
        source = served.sentences(want.phase).batch([numbered[i] for i in want.samples])
        training = served.terms.trains and want.phase == "train"
        with torch.set_grad_enabled(training):
            h_BSD = served.half.encoder(source.ids_BT, lengths=source.lengths)
        lengths = tuple(n + 1 for n in source.lengths)
        meta = StepTensor(
            step=want.step,
            micro_batch=0,
            micro_batches=1,
            phase=want.phase,
            width=max(lengths),
            packed=True,
            lengths=lengths,
            reply_to=frame.seq,
        )
        rows_ND = pack(h_BSD.detach(), lengths=lengths)
        private = _private(source.ids_BT, lengths)
        talk.say(Kind.ACTIVATION, meta, tensor=rows_ND, codec=served.codecs.rows, private=private)
        if training:
            self._backward(talk, served, h_BSD=h_BSD, lengths=lengths)
            self._observe(Answered(want.step))

    def _backward(
        self, talk: Talk, served: _Served, *, h_BSD: Tensor, lengths: tuple[int, ...]
    ) -> None:
        frame = talk.hear(Kind.GRADIENT)
        g_ND = talk.tensor(
            frame, codec=served.codecs.gradient, rows=sum(lengths), width=h_BSD.shape[2]
        )
        g_BSD = unpack(g_ND, lengths=lengths, width=h_BSD.shape[1])
        torch.autograd.backward(h_BSD, g_BSD)
        served.stepper.step()

    def _save(self, talk: Talk, served: _Served, frame: Frame) -> None:
        assert isinstance(frame.meta, Step)
        served.checkpoints.save(
            frame.meta.step, model=served.half.encoder, stepper=served.stepper, extra={}
        )
        talk.say(Kind.SAVED, frame.meta)
        self._observe(Saved(frame.meta.step))

    def _finish(self, talk: Talk, _: _Served, __: Frame) -> None:
        talk.say(Kind.CLOSED, Empty())
        self._observe(Finished(talk.session.next_step))


def _go_to(served: _Served, step: int) -> None:
    """Put adapters and optimiser into the state after `step` steps; 0 is the beginning, whatever is held."""
    terms, checkpoints = served.terms, served.checkpoints
    if not terms.trains:
        return
    encoder = served.half.encoder
    served.stepper = build_stepper(
        encoder.parameters(), optimiser=terms.optimiser, schedule=terms.schedule
    )
    if step and step not in checkpoints.held():
        raise SessionError(
            f"the decoder party resumes at step {step}; we hold {checkpoints.held() or 'none'}"
        )
    if step:
        checkpoints.load(step, model=encoder, stepper=served.stepper)
    checkpoints.drop_after(step)
    if not step:
        checkpoints.save(0, model=encoder, stepper=served.stepper, extra={})


def _private(ids_BT: Tensor, lengths: tuple[int, ...]) -> Private:
    """The ids that no row may be recognised by; the extra row comes before them and has none."""
    ids_BS = np.concatenate((np.zeros((len(lengths), 1), np.int64), ids_BT.numpy()), axis=1)
    return Private(ids=ids_BS, labels=(), lengths=lengths)
