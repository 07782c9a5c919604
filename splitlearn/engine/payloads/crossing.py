"""Micro-batches on the link to a peer that has layers of a decoder: a memory's rows, then its own.

The decoder reads the target of each example, so what its rows must not be recognisable by is the target's
ids, and of the memory's rows the text's; the gate gets both. For both ends: the trusted party's exchange,
and what its peer takes apart.
"""

# B batch, S tokens of the memory, U tokens that the decoder reads, D width, M and N rows of each

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from splitlearn.engine.conversation.talk import Talk
from splitlearn.engine.payloads.coders import Coders
from splitlearn.engine.payloads.exchange import Exchange, rows_in
from splitlearn.errors import ManifestError, WireError
from splitlearn.gate import Private
from splitlearn.roles import Kind
from splitlearn.split.crossing import Beside, apart_again, as_one
from splitlearn.split.rows import pack, unpack
from splitlearn.tasks.batches import Batch
from splitlearn.tasks.encode import IGNORED
from splitlearn.wire.messages import Memory, Offer, StepTensor

__all__ = [
    "CrossExchange",
    "Target",
    "above_of",
    "check_says",
    "crosses",
    "memory_of",
    "take_apart",
]


def crosses(offer: Offer) -> bool:
    """Whether the offered layers are a decoder's that attends to an encoder."""
    return offer.model.takes_memory(offer.cut.first)


def check_says(offers: Iterable[Offer]) -> None:
    """ManifestError where layers of a decoder are remote, so that no text is said beside an evaluation."""
    if any(map(crosses, offers)):
        raise ManifestError(
            "layers of this run's decoder are remote, so what it says of held-out rows takes messages of its "
            "own; ask for it in a run offered to generate"
        )


@dataclass(frozen=True)
class Target:
    """What the decoder reads of a batch: (B, U) ids, padded with zeros, and real tokens of each example.

    had: where a text is gone on with, tokens of each that the peer has by now; these are the ones after.
    """

    ids_BU: Tensor
    lengths: tuple[int, ...]
    had: int = 0

    @property
    def told(self) -> tuple[int, ...]:
        """Lengths as they travel: of whole texts."""
        return tuple(self.had + length for length in self.lengths)

    @classmethod
    def of(cls, batch: Batch, *, start: int) -> "Target":
        """Of a batch with labels: first `start`, then each token that was to be said before."""
        labels_BU = batch.labels["labels"]
        width = labels_BU.shape[1]
        said_BU = labels_BU != IGNORED
        # Up to the last token that is to be said: what comes after is padding.
        last_B = torch.where(said_BU, torch.arange(1, width + 1), 1).max(dim=1).values
        ids_BU = torch.full_like(labels_BU, start)
        ids_BU[:, 1:] = labels_BU[:, :-1]
        real_BU = torch.arange(width) < last_B[:, None]
        ids_BU = ids_BU.masked_fill(~real_BU | (ids_BU == IGNORED), 0)
        return cls(ids_BU, tuple(last_B.tolist()))


class CrossExchange(Exchange):
    """As an Exchange. In training what is sent is both, and what comes back from a backward may be."""

    def __init__(
        self, talk: Talk, *, coders: Coders, widths: Mapping[Kind, int], start: int
    ) -> None:
        """start: the id that the decoder begins each text with; the rest as an Exchange has it."""
        super().__init__(talk, coders=coders, widths=widths, packed=True, noise=None)
        self._start = start

    def rows(self, batch: Batch, place: StepTensor) -> int:
        """Of both."""
        return rows_in(batch, place) + sum(self._target(batch).lengths)

    def send(self, kind: Kind, h_BTD: Tensor, batch: Batch, place: StepTensor) -> None:
        """Rows of the decoder alone: a gradient, where no layer above it attends to the memory."""
        assert kind is Kind.GRADIENT, "an activation goes with its memory"
        self._post(kind, None, h_BTD, batch, place, self._target(batch))

    def send_both(
        self, kind: Kind, beside_BSD: Tensor, h_BUD: Tensor, batch: Batch, place: StepTensor
    ) -> None:
        """As `send`, with the rows of a memory before those of the tensor."""
        self._post(kind, beside_BSD, h_BUD, batch, place, self._target(batch))

    def go_on(
        self,
        h_BUD: Tensor,
        batch: Batch,
        place: StepTensor,
        *,
        target: Target,
        beside_BSD: Tensor | None,
    ) -> Tensor:
        """What the peer makes of the next tokens that the decoder reads, (B, U, exit).

        batch, place: of the texts of the memory. beside_BSD: it itself, with the first of those tokens.
        """
        self._post(Kind.ACTIVATION, beside_BSD, h_BUD, batch, place, target)
        return self._own(Kind.OUTPUT, batch, place, target)

    def receive(self, kind: Kind, batch: Batch, place: StepTensor) -> Tensor:
        """Rows of the decoder alone."""
        return self._own(kind, batch, place, self._target(batch))

    def receive_both(self, kind: Kind, batch: Batch, place: StepTensor) -> tuple[Tensor, Tensor]:
        """Of the memory, and of the decoder."""
        target = self._target(batch)
        rows = sum(batch.lengths) + sum(target.lengths)
        both_ND = self._rows(kind, batch, place, rows=rows, both=True)
        m_MD, x_ND = apart_again(both_ND, memory=batch.lengths, lengths=target.lengths)
        return (
            unpack(m_MD, lengths=batch.lengths, width=place.width),
            unpack(x_ND, lengths=target.lengths, width=target.ids_BU.shape[1]),
        )

    def _target(self, batch: Batch) -> Target:
        return Target.of(batch, start=self._start)

    def _own(self, kind: Kind, batch: Batch, place: StepTensor, target: Target) -> Tensor:
        x_ND = self._rows(kind, batch, place, rows=sum(target.lengths), both=False)
        return unpack(x_ND, lengths=target.lengths, width=target.ids_BU.shape[1])

    def _post(
        self,
        kind: Kind,
        beside_BSD: Tensor | None,
        h_BUD: Tensor,
        batch: Batch,
        place: StepTensor,
        target: Target,
    ) -> None:
        codec = self._codec(kind, batch, place)
        x_BUD = h_BUD.detach()  # whoever waits to be sent holds no graph
        m_BSD = None if beside_BSD is None else beside_BSD.detach()

        def make() -> Tensor:
            x_ND = pack(x_BUD, lengths=target.lengths)
            if m_BSD is None:
                return x_ND
            return as_one(pack(m_BSD, lengths=batch.lengths), x_ND)

        told = kind is Kind.ACTIVATION
        self._talk.say_soon(
            kind,
            msgspec.structs.replace(
                place,
                width=target.ids_BU.shape[1],
                lengths=target.told if told else (),
                memory=None
                if m_BSD is None
                else Memory(place.width, batch.lengths if told else ()),
            ),
            make,
            codec=codec,
            private=_private(batch, target, beside=m_BSD is not None),
            keep=batch.canary,
        )
        self._coders.keep(codec)

    def _rows(
        self, kind: Kind, batch: Batch, place: StepTensor, *, rows: int, both: bool
    ) -> Tensor:
        frame = self._awaited(kind, place)
        assert isinstance(frame.meta, StepTensor)
        if (frame.meta.memory is not None) is not both:
            raise WireError(
                f"the peer's {kind} of step {place.step} comes {'without' if both else 'with'} rows of a "
                f"memory; agreed on is {'with' if both else 'without'}"
            )
        codec = self._codec(kind, batch, place)
        x_ND = self._talk.tensor(frame, codec=codec, rows=rows, width=self._widths[kind])
        self._coders.keep(codec)
        return x_ND


def _private(batch: Batch, target: Target, *, beside: bool) -> Private:
    """Each text's ids for its own rows. What is to be said next is compared with and not watched."""
    text = Private(ids=batch.inputs["input_ids"].numpy(), labels=(), lengths=batch.lengths)
    return Private(
        ids=target.ids_BU.numpy(),
        labels=tuple(t.numpy() for t in batch.labels.values()),
        lengths=target.lengths,
        memory=text if beside else None,
        watched=False,
    )


def memory_of(meta: StepTensor, *, agreed: bool) -> Memory | None:
    """The memory in a peer's message to a trunk; WireError where one is missing, or not agreed on."""
    if (meta.memory is None) is agreed:
        raise WireError(
            f"the peer's {meta.phase} step {meta.step} came {'without' if agreed else 'with'} a memory; the "
            f"layers that it offered take {'one' if agreed else 'none'} there"
        )
    if agreed and not meta.packed and meta.phase != "generate":
        raise WireError("the peer sent the padding of a decoder's texts; only their tokens travel")
    return meta.memory


def take_apart(both_ND: Tensor, meta: StepTensor) -> tuple[Beside, Tensor]:
    """The padded tensors that the rows of an activation, or of its gradient, stand for at the peer.

    meta: the activation's. WireError where rows and lengths disagree, or the batch would be padded beyond
    what any job needs.
    """
    assert meta.memory is not None, "asked for where one came"
    told = meta.memory
    m_MD, x_ND = apart_again(both_ND, memory=told.lengths, lengths=meta.lengths)
    beside_BSD = unpack(m_MD, lengths=told.lengths, width=told.width)
    return Beside(beside_BSD, told.lengths), unpack(x_ND, lengths=meta.lengths, width=meta.width)


def above_of(at: StepTensor, meta: StepTensor, *, trains: bool) -> bool:
    """Whether a gradient comes with those by the memory that layers above have; meta is the activation's.

    WireError where it does and no gradient by the memory is agreed on, or of another width.
    """
    if at.memory is None:
        return False
    if not trains or meta.memory is None or at.memory.width != meta.memory.width:
        raise WireError(
            f"the peer's gradient of step {at.step} comes with rows of a memory padded to "
            f"{at.memory.width}; its offer says that gradients by a memory travel: {trains}, and it sent one "
            f"padded to {0 if meta.memory is None else meta.memory.width}"
        )
    return True
