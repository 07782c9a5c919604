"""What an encoder's or a decoder's gate lets through, and what not: ids, whole numbers, no hashes."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from splitlearn.codecs import build
from splitlearn.errors import RefusedError
from splitlearn.gate import Gate, Private
from splitlearn.roles import Kind, Role
from splitlearn.session import PairSession
from splitlearn.wire.messages import (
    Accept,
    Empty,
    Finish,
    Resume,
    Samples,
    StepTensor,
    Want,
)
from splitlearn.wire.samples import hash_of, pack
from splitlearn.wire.tensors import Part
from tests.pairs import NAMES, Meeting, terms

LENGTHS = (9, 7, 8)
HASHES = tuple(sorted(hash_of(str(i), naming="7" * 64) for i in range(4)))


def gate(folder: Path, role: Role) -> tuple[Gate, PairSession]:
    """A gate with a conversation opened to the point where the role may speak of a step."""
    other = Role.DECODER if role is Role.ENCODER else Role.ENCODER
    session = PairSession(me=role, peer=other)
    meeting = Meeting(folder)
    opened = meeting.open_gate(role)(terms(), session)
    assert NAMES[role].role is role
    said = [
        (Role.DECODER, Kind.PAIRING, terms()),
        (Role.ENCODER, Kind.ACCEPT, Accept((), (), 0)),
        (Role.ENCODER, Kind.SAMPLES, Samples(4, 0)),
        (Role.DECODER, Kind.SAMPLES, Samples(4, 0)),
        (Role.DECODER, Kind.RESUME, Resume(0, 0)),
        (Role.ENCODER, Kind.READY, Empty()),
        (Role.DECODER, Kind.WANT, Want(0, "train", (0, 1, 2))),
    ]
    if role is Role.DECODER:
        said.append((Role.ENCODER, Kind.ACTIVATION, place(lengths=LENGTHS)))
    for who, kind, meta in said:
        if who is role:
            session.stamp(kind, meta)
        else:
            session.check(kind, meta, seq=session.next_in)
    return opened, session


def place(*, lengths: tuple[int, ...] = ()) -> StepTensor:
    return StepTensor(0, 0, 1, "train", 9, True, lengths, 1)


def private() -> Private:
    draw = torch.Generator().manual_seed(1)
    ids_BS = torch.randint(5, 40, (3, 9), generator=draw)
    return Private(ids=ids_BS.numpy(), labels=(), lengths=LENGTHS)


def rows() -> Tensor:
    return torch.randn(sum(LENGTHS), 32, generator=torch.Generator().manual_seed(2))


def with_ids(x_ND: Tensor) -> Tensor:
    ids_BS = private().ids
    real = [float(i) / 3.0 + 0.1 for row, n in zip(ids_BS, LENGTHS, strict=True) for i in row[:n]]
    x_ND[:, 5] = torch.tensor(real)
    return x_ND


@pytest.mark.parametrize("codec", ["identity", "int8+zstd"])
def test_rows_of_an_encoder_leave_and_ids_among_them_do_not(tmp_path: Path, codec: str) -> None:
    good, _ = gate(tmp_path / "good", Role.ENCODER)
    good.release(
        Kind.ACTIVATION,
        meta=place(lengths=LENGTHS),
        tensor=rows(),
        codec=build(codec),
        private=private(),
    )
    bad, _ = gate(tmp_path / "bad", Role.ENCODER)
    with pytest.raises(RefusedError, match="follows the ids"):
        bad.release(
            Kind.ACTIVATION,
            meta=place(lengths=LENGTHS),
            tensor=with_ids(rows()),
            codec=build(codec),
            private=private(),
        )


def test_rows_without_their_ids_to_compare_with_do_not_leave(tmp_path: Path) -> None:
    found, _ = gate(tmp_path, Role.ENCODER)
    with pytest.raises(RefusedError, match="without the ids"):
        found.release(
            Kind.ACTIVATION,
            meta=place(lengths=LENGTHS),
            tensor=rows(),
            codec=build("identity"),
        )


def test_whole_numbers_do_not_leave_a_decoder_as_a_gradient(tmp_path: Path) -> None:
    good, _ = gate(tmp_path / "good", Role.DECODER)
    good.release(Kind.GRADIENT, meta=place(), tensor=rows(), codec=build("identity"))
    bad, _ = gate(tmp_path / "bad", Role.DECODER)
    x_ND = rows()
    x_ND[:, 3] = torch.arange(sum(LENGTHS)) + 101.0
    with pytest.raises(RefusedError, match="whole numbers"):
        bad.release(Kind.GRADIENT, meta=place(), tensor=x_ND, codec=build("identity"))


@pytest.mark.parametrize(
    "parts",
    [
        (Part("train", "U8", (4, 16), b"an id in the clear, and another " * 2),),
        pack((HASHES[:3], ())),
        pack((HASHES[::-1], ())),
        (),
    ],
)
def test_nothing_but_hashes_leaves_in_their_place(tmp_path: Path, parts: tuple[Part, ...]) -> None:
    session = PairSession(me=Role.ENCODER, peer=Role.DECODER)
    found = Meeting(tmp_path).open_gate(Role.ENCODER)(terms(), session)
    session.check(Kind.PAIRING, terms(), seq=1)
    session.stamp(Kind.ACCEPT, Accept((), (), 0))
    with pytest.raises(RefusedError, match="hashes"):
        found.release(Kind.SAMPLES, meta=Samples(4, 0), parts=parts)


def test_no_weights_are_asked_of_an_encoder(tmp_path: Path) -> None:
    found, _ = gate(tmp_path, Role.DECODER)
    with pytest.raises(Exception, match=r"finish by decoder while|adapters stay"):
        found.release(Kind.FINISH, meta=Finish(True))
