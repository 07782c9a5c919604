"""Micro-batches on the link: rows there, padded tensors here, answers in any legal order."""

from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from splitlearn.audit import Payload, read_records
from splitlearn.channel import pair
from splitlearn.codecs import build
from splitlearn.engine.conversation.talk import Talk
from splitlearn.engine.payloads.coders import Coders
from splitlearn.engine.payloads.exchange import Exchange, rows_in
from splitlearn.engine.payloads.kept import Kept
from splitlearn.engine.payloads.noise import LabelNoise
from splitlearn.roles import Kind, Role
from splitlearn.session import Session
from splitlearn.split.cut import Cut
from splitlearn.tasks.batches import Batch
from splitlearn.wire.frames import Frame
from splitlearn.wire.messages import Accept, Empty, Resume, StepTensor
from tests.rig import batch_of, compute_party, trusted_party, trusted_run
from tests.tiny import tiny_batch, tiny_model

WIDTH = 32
KINDS = (Kind.ACTIVATION, Kind.OUTPUT, Kind.GRADIENT, Kind.INPUT_GRADIENT)
NOISE = LabelNoise(clip=0.5, noise=2.0, steps_per_epoch=1)


class Pair:
    """A trusted party's exchange in an open conversation, and its peer's talk."""

    def __init__(self, folder: Path) -> None:
        offer = trusted_run(tiny_model("bert", layers=3), cut=Cut(1, 2), total=2).offer
        ours, theirs = pair(window=8)
        self.party = trusted_party(folder)
        mine = Session(me=Role.TRUSTED, peer=Role.COMPUTE)
        other = Session(me=Role.COMPUTE, peer=Role.TRUSTED)
        gate, peer_gate = self.party.gate(offer, mine), compute_party(folder).gate(offer, other)
        talk = Talk(channel=ours, session=mine, gate=gate, deadline_s=5)
        self.peer = Talk(channel=theirs, session=other, gate=peer_gate, deadline_s=5)
        talk.say(Kind.OFFER, offer)
        self.peer.hear(Kind.OFFER)
        self.peer.say(Kind.ACCEPT, Accept((), (), 0))
        talk.hear(Kind.ACCEPT)
        talk.say(Kind.RESUME, Resume(0, 0))
        self.peer.hear(Kind.RESUME)
        self.peer.say(Kind.READY, Empty())
        talk.hear(Kind.READY)
        self.exchange = Exchange(
            talk,
            coders=Coders({kind.value: "identity" for kind in KINDS}, {}, kept=Kept(folder)),
            widths={Kind.OUTPUT: WIDTH, Kind.INPUT_GRADIENT: WIDTH},
            packed=True,
            noise=NOISE,
        )

    def answer(self, kind: Kind, frame: Frame, x_ND: Tensor) -> None:
        assert isinstance(frame.meta, StepTensor)
        meta = msgspec.structs.replace(frame.meta, lengths=(), reply_to=frame.seq)
        self.peer.say(kind, meta, tensor=x_ND, codec=build("identity"))


@pytest.fixture
def batch() -> Batch:
    return batch_of(tiny_batch(tiny_model("bert")))


def test_answers_that_come_early_are_kept_until_they_are_wanted(
    tmp_path: Path, batch: Batch
) -> None:
    two = Pair(tmp_path)
    link = two.exchange
    places = [link.place(batch, i, 2, phase="train", step=0) for i in range(2)]
    h_BTD = torch.randn(*batch.inputs["input_ids"].shape, WIDTH)
    rows = [torch.randn(rows_in(batch, places[0]), WIDTH) for _ in range(3)]
    for place in places:
        link.send(Kind.ACTIVATION, h_BTD, batch, place)
    first, second = (two.peer.hear(Kind.ACTIVATION) for _ in range(2))
    two.answer(Kind.OUTPUT, first, rows[0])
    assert link.receive(Kind.OUTPUT, batch, places[0]).shape == h_BTD.shape
    link.send(Kind.GRADIENT, h_BTD, batch, places[0])
    gradient = two.peer.hear(Kind.GRADIENT)
    two.answer(Kind.INPUT_GRADIENT, gradient, rows[1])
    two.answer(Kind.OUTPUT, second, rows[2])
    mask_BT = batch.inputs["attention_mask"].bool()
    assert torch.equal(link.receive(Kind.OUTPUT, batch, places[1])[mask_BT], rows[2])
    early = link.receive(Kind.INPUT_GRADIENT, batch, places[0])
    assert torch.equal(early[mask_BT], rows[1])
    assert not early[~mask_BT].any()


def test_lengths_travel_once_and_noise_is_said_of_gradients_only(
    tmp_path: Path, batch: Batch
) -> None:
    two = Pair(tmp_path)
    place = two.exchange.place(batch, 0, 1, phase="train", step=0)
    h_BTD = torch.randn(*batch.inputs["input_ids"].shape, WIDTH)
    two.exchange.send(Kind.ACTIVATION, h_BTD, batch, place)
    frame = two.peer.hear(Kind.ACTIVATION)
    two.answer(Kind.OUTPUT, frame, torch.randn(rows_in(batch, place), WIDTH))
    two.exchange.receive(Kind.OUTPUT, batch, place)
    two.exchange.send(Kind.GRADIENT, h_BTD, batch, place)
    gradient = two.peer.hear(Kind.GRADIENT)
    assert isinstance(frame.meta, StepTensor)
    assert isinstance(gradient.meta, StepTensor)
    assert (frame.meta.lengths, gradient.meta.lengths) == (batch.lengths, ())
    sent = {
        r.kind: r.dp
        for _, r in read_records(two.party.folder / "audit")
        if isinstance(r, Payload) and r.direction == "out"
    }
    assert sent[Kind.ACTIVATION] is None
    assert sent[Kind.GRADIENT] == NOISE.record(0)
