from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
import torch
from torch import Tensor

from splitlearn.engine.payloads.exchange import Exchange
from splitlearn.engine.trusted.line import Line
from splitlearn.engine.trusted.through import Through, ways_of
from splitlearn.roles import Kind
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import Hops, Neighbour, StepTensor

PLACE = StepTensor(0, 0, 1, "train", 1, True, (1,), 0)
BATCH = Batch({"input_ids": torch.zeros(1, 1, dtype=torch.long)}, {}, (1,), 1)


@dataclass
class Recorded:
    """One line, and its tensors: says what was asked of it."""

    name: str
    hops: Hops | None = None
    asked: list[Kind] = field(default_factory=list)
    beside: Sequence[object] = ()

    @property
    def tensors(self) -> Exchange:
        return cast(Exchange, self)

    def place(self, *_: object, **__: object) -> StepTensor:
        return PLACE

    def send(self, kind: Kind, *_: object) -> None:
        self.asked.append(kind)

    def receive(self, kind: Kind, *_: object) -> Tensor:
        self.asked.append(kind)
        return torch.zeros(1)


def lines(*names: str, direct: bool) -> list[Line]:
    hops = Hops(Neighbour("x", "b" * 32, "e" * 64), None) if direct else None
    return cast(list[Line], [Recorded(name, hops) for name in names])


def test_rows_go_in_at_the_first_party_and_come_out_at_the_last() -> None:
    chain = lines("a", "b", "c", direct=True)
    (way,) = ways_of(chain)
    assert isinstance(way, Through)
    assert way.tensors.place(BATCH, 0, 1, phase="train", step=0) is PLACE
    for kind in (Kind.ACTIVATION, Kind.GRADIENT):
        way.tensors.send(kind, torch.zeros(1, 1, 1), BATCH, PLACE)
    for kind in (Kind.OUTPUT, Kind.INPUT_GRADIENT):
        way.tensors.receive(kind, BATCH, PLACE)
    asked = [line.asked for line in cast(list[Recorded], chain)]
    assert asked == [
        [Kind.ACTIVATION, Kind.INPUT_GRADIENT],
        [],
        [Kind.GRADIENT, Kind.OUTPUT],
    ]


def test_whoever_is_waited_for_the_others_are_looked_at() -> None:
    chain = lines("a", "b", "c", direct=True)
    ways_of(chain)
    assert [[other.name for other in line.beside] for line in chain] == [
        ["b", "c"],
        ["a", "c"],
        ["a", "b"],
    ]


@pytest.mark.parametrize("count", [1, 3])
def test_relayed_each_party_is_a_way_of_its_own(count: int) -> None:
    chain = lines(*"abc"[:count], direct=False)
    assert ways_of(chain) is chain
    assert not any(line.beside for line in chain)
