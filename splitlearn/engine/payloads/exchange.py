"""Micro-batches on the link: what of one is sent, and the answers, in whatever order they come.

One for each conversation. Padded tensors here, rows there; what a payload must not be recognisable by
goes along to the gate. Does no sums and decides nothing about the pace.
"""

# B batch, T tokens, D width at a cut, N rows that travel (packed: B x T without padding)

from collections.abc import Mapping

import msgspec
from torch import Tensor

from splitlearn.codecs import Codec
from splitlearn.engine.conversation.talk import Talk
from splitlearn.engine.payloads.coders import Coders, Phase, spans_of
from splitlearn.engine.payloads.kept import Namer
from splitlearn.engine.payloads.noise import LabelNoise
from splitlearn.gate import Private
from splitlearn.roles import Kind
from splitlearn.split.rows import apart, pack, unpack
from splitlearn.tasks.batches import Batch
from splitlearn.wire.frames import Frame
from splitlearn.wire.messages import StepTensor

__all__ = ["Exchange", "rows_in"]


class Exchange:
    """The tensors that a trusted party and its peer exchange in one conversation.

    widths: columns of each kind that comes back. packed: whether padding is left out; noise: what is
    in the gradients, for the record. namer: of samples, where a codec keeps their rows.
    """

    def __init__(
        self,
        talk: Talk,
        *,
        coders: Coders,
        widths: Mapping[Kind, int],
        packed: bool,
        noise: LabelNoise | None,
        namer: Namer | None = None,
    ) -> None:
        self._talk, self._coders, self._widths = talk, coders, widths
        self._packed, self._noise, self._namer = packed, noise, namer
        # Pseudonyms of the examples of activations that are not answered yet.
        self._named: dict[tuple[int, int], tuple[bytes, ...]] = {}
        self._early: dict[tuple[Kind, int, int], Frame] = {}
        # What is under way of the newest step, by step and micro-batch.
        self._sent: dict[tuple[int, int], tuple[Batch, StepTensor]] = {}

    def place(self, batch: Batch, i: int, of: int, *, phase: Phase, step: int) -> StepTensor:
        """Where micro-batch `i` of `of` stands in the run, and what its peer needs to rebuild masks."""
        return StepTensor(
            step=step,
            micro_batch=i,
            micro_batches=of,
            phase=phase,
            width=batch.inputs["input_ids"].shape[1],
            packed=self._packed,
            lengths=batch.lengths,
            reply_to=0,
        )

    def send(self, kind: Kind, h_BTD: Tensor, batch: Batch, place: StepTensor) -> None:
        """Pass a padded tensor through the gate, soon; nobody may change it any more."""
        noise, codec = self._noise, self._codec(kind, batch, place)
        if kind is Kind.ACTIVATION:
            self._note(batch, place)
        x_BTD = h_BTD.detach()  # whoever waits to be sent holds no graph
        self._talk.say_soon(
            kind,
            place if kind is Kind.ACTIVATION else msgspec.structs.replace(place, lengths=()),
            lambda: pack(x_BTD, lengths=batch.lengths, packed=place.packed, joined=batch.joined),
            codec=codec,
            private=_private(batch),
            dp=noise.record(place.step) if noise and kind is Kind.GRADIENT else None,
            keep=batch.canary,
        )
        self._coders.keep(codec)

    def receive(self, kind: Kind, batch: Batch, place: StepTensor) -> Tensor:
        """The padded answer for one micro-batch; answers to others that come before it are kept."""
        frame = self._awaited(kind, place)
        codec = self._codec(kind, batch, place)
        x_ND = self._talk.tensor(
            frame,
            codec=codec,
            rows=rows_in(batch, place),
            width=self._widths[kind],
        )
        self._coders.keep(codec)
        self._open_ahead()
        return unpack(
            x_ND,
            lengths=batch.lengths,
            width=place.width,
            packed=place.packed,
            joined=batch.joined,
        )

    def rows(self, batch: Batch, place: StepTensor) -> int:
        """Rows of an activation that travel."""
        return rows_in(batch, place)

    def _note(self, batch: Batch, place: StepTensor) -> None:
        if any((p.step, p.phase) != (place.step, place.phase) for _, p in self._sent.values()):
            self._sent.clear()
        self._sent[place.step, place.micro_batch] = batch, place

    def _open_ahead(self) -> None:
        """Answers that have come are opened beside the sums that now follow."""
        if not self._talk.overlap or self._namer is not None:
            return

        def ours(frame: Frame) -> bool:
            meta = frame.meta
            if not isinstance(meta, StepTensor) or frame.kind not in self._widths:
                return False
            _, place = self._sent.get((meta.step, meta.micro_batch), (None, None))
            return place is not None and place.phase == meta.phase

        for frame in self._talk.take_in(ours):
            assert isinstance(frame.meta, StepTensor)
            batch, place = self._sent[frame.meta.step, frame.meta.micro_batch]
            self._talk.open_soon(
                frame,
                codec=self._codec(frame.kind, batch, place),
                rows=rows_in(batch, place),
                width=self._widths[frame.kind],
            )

    def _awaited(self, kind: Kind, place: StepTensor) -> Frame:
        """The answer for one micro-batch; answers to others that come before it are kept."""
        wanted = (kind, place.step, place.micro_batch)
        while wanted not in self._early:
            frame = self._talk.hear(kind)
            assert isinstance(frame.meta, StepTensor)
            self._early[frame.kind, frame.meta.step, frame.meta.micro_batch] = frame
        return self._early.pop(wanted)

    def _codec(self, kind: Kind, batch: Batch, place: StepTensor) -> Codec:
        """The codec of one message; an activation's examples are named by it, and its output's by that."""
        spans = spans_of(place, lengths=batch.lengths)
        samples: tuple[bytes, ...] = ()
        if self._namer is not None and place.phase == "train":
            key = (place.step, place.micro_batch)
            if kind is Kind.ACTIVATION:
                samples = self._named[key] = self._namer.name(batch.samples, spans=spans)
            elif kind is Kind.OUTPUT:
                samples = self._named.pop(key)
        return self._coders.of(
            kind, phase=place.phase, step=place.step, samples=samples, spans=spans
        )


def rows_in(batch: Batch, place: StepTensor) -> int:
    """Rows of a micro-batch that travel."""
    return sum(batch.lengths) if place.packed else len(batch.lengths) * place.width


def _private(batch: Batch) -> Private:
    """What must never be in a payload of this batch, for the gate to compare with: a text a row.

    Where the labels are the ids themselves, there are no others to look for; those of a target belong to
    no row that leaves.
    """
    ids_BT = batch.inputs["input_ids"]
    if batch.joined:
        ids_BT = apart(ids_BT, lengths=batch.lengths, filler=0)
    labels = (
        () if batch.next_token or batch.target else (*batch.labels.values(), *batch.truth.values())
    )
    return Private(
        ids=ids_BT.numpy(),
        labels=tuple(t.numpy() for t in labels),
        lengths=batch.lengths,
    )
