"""One micro-batch through two compute parties, with a layer of ours between them: against one process.

The parties' conversations are replaced by their tensors alone: a list of what was sent, and an answer
computed from it.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from splitlearn.engine.trusted.flight import Flight, keep_memory, pause_at_cut
from splitlearn.engine.trusted.passage import Passage
from splitlearn.roles import Kind
from splitlearn.split.crossing import Handover
from splitlearn.split.stage import RemoteStage
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import StepTensor

PLACE = StepTensor(3, 1, 2, "train", 4, True, (4,), 0)


class Local(nn.Module):
    """Bottom, a remote stage, a layer between, a remote stage, top."""

    def __init__(self, stages: list[nn.Module]) -> None:
        super().__init__()
        self.bottom, self.between, self.top = (nn.Linear(4, 4) for _ in range(3))
        self.dropout = nn.Dropout(0.5)
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Tensor) -> ModelOutput:
        h = self.dropout(self.between(self.stages[0](self.dropout(self.bottom(x)))))
        return ModelOutput(loss=self.top(self.dropout(self.stages[1](h))).square().sum())


@dataclass
class Answering:
    """What stands for a line's tensors: answers with a layer of its own."""

    layer: nn.Module
    sent: list[tuple[Kind, Tensor]] = field(default_factory=list)
    graph: tuple[Tensor, Tensor] | None = None

    def send(self, kind: Kind, h_BTD: Tensor, _: Batch, place: StepTensor) -> None:
        assert place is PLACE
        self.sent.append((kind, h_BTD.detach().clone()))

    def receive(self, kind: Kind, _: Batch, __: StepTensor) -> Tensor:
        said, x = self.sent[-1]
        if kind is Kind.OUTPUT:
            assert said is Kind.ACTIVATION
            x.requires_grad_()
            self.graph = (x, self.layer(x))
            return self.graph[1].detach().clone()
        assert (said, kind) == (Kind.GRADIENT, Kind.INPUT_GRADIENT)
        assert self.graph is not None
        entered, left = self.graph
        torch.autograd.backward(left, x)
        assert entered.grad is not None
        return entered.grad


def layers() -> list[nn.Module]:
    torch.manual_seed(1)
    return [nn.Linear(4, 4), nn.Linear(4, 4)]


def model(stages: list[nn.Module]) -> Local:
    torch.manual_seed(2)
    return Local(stages)


def passage(local: Local, lines: list[Answering], *, gradients: bool) -> Passage:
    for stage in local.stages:
        stage.exchange = pause_at_cut  # type: ignore[assignment]
    held: list[Any] = [SimpleNamespace(tensors=line) for line in lines]
    return Passage(
        Flight(local, inputs={"x": torch.ones(1, 4)}),
        held,
        batch=SimpleNamespace(),  # type: ignore[arg-type]
        place=PLACE,
        seed=5,
        gradients=gradients,
    )


def grads(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: weight.grad for name, weight in module.named_parameters()}


def test_pieces_of_a_graph_come_to_the_gradients_of_the_whole() -> None:
    lines = [Answering(layer) for layer in layers()]
    local = model([RemoteStage(), RemoteStage()]).eval()
    under_way = passage(local, lines, gradients=True)
    under_way.bottom()
    under_way.relay(1)
    output = under_way.top()
    output["loss"].backward()
    under_way.turn()
    under_way.backward(1)
    under_way.backward(0)
    assert [[kind for kind, _ in line.sent] for line in lines] == [
        [Kind.ACTIVATION, Kind.GRADIENT]
    ] * 2
    inner = layers()
    whole = model(inner).eval()
    whole(torch.ones(1, 4))["loss"].backward()
    found, expected = grads(local), grads(whole)
    for name in ("bottom.weight", "between.weight", "between.bias", "top.weight"):
        assert torch.equal(found[name], expected[name]), name  # type: ignore[arg-type]
    for line, layer in zip(lines, inner, strict=True):
        assert torch.equal(line.layer.weight.grad, layer.weight.grad)  # type: ignore[arg-type]


def test_dropout_of_each_piece_is_drawn_from_the_place_alone() -> None:
    sent = []
    for noise in (0, 100):
        lines = [Answering(layer) for layer in layers()]
        under_way = passage(model([RemoteStage(), RemoteStage()]).train(), lines, gradients=True)
        under_way.bottom()
        torch.rand(noise)
        under_way.relay(1)
        torch.rand(noise)
        under_way.top()
        sent.append([x for line in lines for _, x in line.sent])
    for one, other in zip(*sent, strict=True):
        assert torch.equal(one, other)


def test_without_gradients_nothing_goes_back() -> None:
    lines = [Answering(layer) for layer in layers()]
    local = model([RemoteStage(), RemoteStage()]).eval()
    under_way = passage(local, lines, gradients=False)
    under_way.bottom()
    under_way.relay(1)
    under_way.top()["loss"].backward()
    under_way.turn()
    assert [[kind for kind, _ in line.sent] for line in lines] == [[Kind.ACTIVATION]] * 2
    assert local.bottom.weight.grad is None
    assert local.top.weight.grad is not None


class Attending(nn.Module):
    """A layer that looks at a memory beside its input, twice, as keys and values do."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.keys, self.values = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        seen = torch.softmax(self.own(x) @ self.keys(memory).T, dim=-1) @ self.values(memory)
        return torch.tanh(x + seen)


class Below(nn.Module):
    """An encoder with a remote layer in its middle, and a decoder of four layers with two of them remote."""

    def __init__(self, stage: nn.Module, decoder: list[nn.Module], door: nn.Module) -> None:
        super().__init__()
        self.bottom, self.middle = nn.Linear(4, 4), nn.Linear(4, 4)
        self.stage, self.decoder, self.door = stage, nn.ModuleList(decoder), door

    def forward(self, x: Tensor, y: Tensor) -> ModelOutput:
        memory = self.door(torch.tanh(self.middle(self.stage(self.bottom(x)))))
        for layer in self.decoder:
            y = layer(y, memory)
        return ModelOutput(loss=y.square().sum())


@dataclass
class Crossing:
    """What stands for the tensors of a line to a decoder's layers."""

    layers: list[nn.Module]
    took: list[Tensor | None] = field(default_factory=list)
    graph: tuple[Tensor, Tensor, Tensor] | None = None
    above: tuple[Tensor | None, Tensor] | None = None

    def send_both(self, kind: Kind, beside: Tensor, h: Tensor, _: Batch, __: StepTensor) -> None:
        beside, h = beside.detach().clone(), h.detach().clone()
        if kind is Kind.GRADIENT:
            self.above = (beside, h)
            return
        entered, memory = h.requires_grad_(), beside.requires_grad_()
        for layer in self.layers:
            h = layer(h, memory)
        self.graph = (memory, entered, h)

    def send(self, kind: Kind, h: Tensor, _: Batch, __: StepTensor) -> None:
        assert kind is Kind.GRADIENT
        self.above = (None, h.detach().clone())

    def receive(self, kind: Kind, _: Batch, __: StepTensor) -> Tensor:
        assert kind is Kind.OUTPUT
        assert self.graph is not None
        return self.graph[2].detach().clone()

    def receive_both(self, kind: Kind, _: Batch, __: StepTensor) -> tuple[Tensor, Tensor]:
        assert kind is Kind.INPUT_GRADIENT
        assert self.graph is not None
        assert self.above is not None
        memory, entered, left = self.graph
        sums, g = self.above
        self.took.append(sums)
        roots, grads = ([left], [g]) if sums is None else ([left, memory], [g, sums])
        torch.autograd.backward(roots, grads)
        assert memory.grad is not None
        assert entered.grad is not None
        return memory.grad, entered.grad


def attending() -> tuple[nn.Module, list[nn.Module]]:
    torch.manual_seed(3)
    return nn.Linear(4, 4), [Attending() for _ in range(4)]


def below(stage: nn.Module, decoder: list[nn.Module], door: nn.Module) -> Below:
    torch.manual_seed(4)
    return Below(stage, decoder, door)


@pytest.mark.parametrize("above", [1, 0], ids=["a layer above", "none above"])
def test_gradients_of_an_encoder_below_are_summed_as_one_model_sums_them(above: int) -> None:
    """With another party's layer in the encoder, to which what was summed goes on."""
    inputs = {"x": torch.linspace(-1, 1, 12).view(3, 4), "y": torch.linspace(0, 2, 8).view(2, 4)}
    remote, decoder = attending()
    theirs = decoder[1 : 4 - above]
    pieces = [decoder[0], RemoteStage(), *decoder[4 - above :]]
    local = below(RemoteStage(), pieces, Handover())
    for module in local.modules():
        if isinstance(module, RemoteStage):
            module.exchange = pause_at_cut
    assert isinstance(local.door, Handover)
    local.door.exchange = keep_memory
    line, both = Answering(remote), Crossing(theirs)
    lines: list[Any] = [SimpleNamespace(tensors=line), SimpleNamespace(tensors=both, both=both)]
    under_way = Passage(
        Flight(local, inputs=inputs),
        lines,
        batch=SimpleNamespace(),  # type: ignore[arg-type]
        place=PLACE,
        seed=5,
        gradients=True,
    )
    under_way.bottom()
    under_way.relay(1)
    under_way.top()["loss"].backward()
    under_way.turn()
    under_way.backward(1)
    under_way.backward(0)
    stage, layers = attending()
    whole = below(stage, layers, nn.Identity())
    whole(**inputs)["loss"].backward()
    assert (both.took[0] is None) is (above == 0)
    for mine, plain in ((remote, stage), *zip(decoder, layers, strict=True)):
        assert all(
            torch.equal(one.grad, other.grad)  # type: ignore[arg-type]
            for one, other in zip(mine.parameters(), plain.parameters(), strict=True)
        )
    for name in ("bottom", "middle"):
        found, expected = grads(local.get_submodule(name)), grads(whole.get_submodule(name))
        assert all(torch.equal(found[n], expected[n]) for n in expected)  # type: ignore[arg-type]
