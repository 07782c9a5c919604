"""A generator's door: only ids of the round's vocabulary, as the batch says, read back to the bit."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from splitlearn.audit import read_records
from splitlearn.audit.records import Denied
from splitlearn.codecs import build
from splitlearn.errors import RefusedError, SplitLearnError
from splitlearn.gate import Gate
from splitlearn.gate.batches import check_written, pack_ids
from splitlearn.roles import Kind, Role
from splitlearn.session import StreamSession
from splitlearn.wire.ids import IdBatch, pack
from splitlearn.wire.messages import Ask, Empty, Enlist, Ids, Round, Shard
from splitlearn.wire.tensors import Part
from tests.streaming import DIGEST, HUB, VOCABULARY, Hall, PartyName

NAME = PartyName(federation="example.org", party="ana", role=Role.GENERATOR)
TERMS = Round("tongues", "c" * 32, "1" * 64, "0" * 64, 0, VOCABULARY, DIGEST, 4, 16, 0.15, 1, 0)


def batch(*ids: int) -> IdBatch:
    return IdBatch(np.array(ids, np.int32), np.zeros(len(ids), bool), (len(ids),))


@pytest.fixture
def hall(tmp_path: Path) -> Iterator[Hall]:
    hall = Hall(tmp_path)
    yield hall
    hall.close()


@pytest.fixture
def gate(hall: Hall) -> Gate:
    """A generator's, in the middle of a round in which ten batches are wanted."""
    session = StreamSession(me=Role.GENERATOR, peer=Role.DISCRIMINATOR)
    gate = hall.open_gate(me=NAME, peer=HUB)(TERMS, session)
    session.check(Kind.ROUND, TERMS, seq=1)
    gate.release(Kind.ENLIST, meta=Enlist("sw", DIGEST, 10, 0, 0))
    session.check(Kind.ASK, Ask(10, 0, 0), seq=2)
    return gate


def refused(hall: Hall) -> list[str]:
    log = hall.folder / "ana" / "audit-hub"
    return [record.rule for _, record in read_records(log) if isinstance(record, Denied)]


def test_ids_of_the_vocabulary_pass(gate: Gate) -> None:
    sent = batch(0, 999, 4)
    released = gate.release(Kind.IDS, meta=Ids(0, "train", (3,)), ids=sent)
    assert released.raw.endswith(b"".join(bytes(p.data) for p in pack(sent, vocabulary=VOCABULARY)))


RED: dict[str, dict[str, object]] = {
    "an id that the vocabulary has not": {"ids": batch(0, 1_000, 4)},
    "a negative id": {"ids": batch(0, -1, 4)},
    "floats": {"ids": replace(batch(0, 1, 2), ids=np.zeros(3, np.float32))},
    "other lengths": {"ids": batch(0, 1, 2, 3)},
    "no ids": {},
    "weights": {"parts": (Part("x", "F32", (3,), bytes(12)),)},
    "a tensor": {"tensor": torch.zeros(3, 4), "codec": build("identity")},
    "ids and a tensor": {
        "ids": batch(0, 1, 2),
        "tensor": torch.zeros(3, 4),
        "codec": build("identity"),
    },
}


@pytest.mark.parametrize("what", RED)
def test_anything_else_does_not_leave_and_the_door_stays_shut(
    hall: Hall, gate: Gate, what: str
) -> None:
    with pytest.raises(RefusedError):
        gate.release(Kind.IDS, meta=Ids(0, "train", (3,)), **RED[what])  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="gate shut"):
        gate.release(Kind.IDS, meta=Ids(0, "train", (3,)), ids=batch(0, 1, 2))
    assert len(refused(hall)) == 1
    assert refused(hall)[0].startswith("content.")


@pytest.mark.parametrize("kind", [Kind.WEIGHTS, Kind.GRADIENT, Kind.ACTIVATION, Kind.OUTPUT])
def test_no_kind_with_numbers_leaves_a_generator(gate: Gate, kind: Kind) -> None:
    more: dict[str, object] = {"parts": (Part("x", "F32", (3,), bytes(12)),)}
    if kind is not Kind.WEIGHTS:
        more = {"tensor": torch.zeros(3, 4), "codec": build("identity")}
    with pytest.raises(SplitLearnError):
        gate.release(kind, meta=Shard(0, 1) if kind is Kind.WEIGHTS else Empty(), **more)  # type: ignore[arg-type]


def test_parts_that_read_back_as_another_batch_are_refused() -> None:
    sent = batch(1, 2, 3)
    with pytest.raises(RefusedError, match="others than were written"):
        check_written(
            pack(batch(1, 2, 4), vocabulary=VOCABULARY), batch=sent, vocabulary=VOCABULARY
        )
    with pytest.raises(RefusedError, match="cannot be read back"):
        check_written((), batch=sent, vocabulary=VOCABULARY)


def test_ids_travel_with_their_own_words_only() -> None:
    with pytest.raises(RefusedError, match="our own generator"):
        pack_ids(batch(1, 2, 3), meta=Empty(), vocabulary=VOCABULARY)
