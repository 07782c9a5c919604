"""One micro-batch through two compute parties, with a layer of ours between them: against one process.

The parties' conversations are replaced by their tensors alone: a list of what was sent, and an answer
computed from it.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from splitlearn.engine.flight import Flight, pause_at_cut
from splitlearn.engine.passage import Passage
from splitlearn.roles import Kind
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
