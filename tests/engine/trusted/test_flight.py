"""A forward that pauses at the cut against the same forward done in one go."""

import pytest
import torch
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from splitlearn.engine.trusted.flight import Flight, keep_memory, pause_at_cut


class Paused(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return pause_at_cut(h)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bottom, self.cut, self.top = nn.Linear(3, 3), Paused(), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> ModelOutput:
        return ModelOutput(loss=self.top(self.cut(self.bottom(x))).sum())


def test_interleaved_forwards_give_each_its_own_result() -> None:
    torch.manual_seed(0)
    model = Small()
    inputs = [torch.full((2, 3), float(i)) for i in range(5)]
    flights = [Flight(model, inputs={"x": x}) for x in inputs]
    at_cut = [flight.to_cut() for flight in flights]
    for x, flight, h in reversed(list(zip(inputs, flights, at_cut, strict=True))):
        assert torch.equal(h, model.bottom(x))
        assert torch.equal(flight.from_cut(2 * h).loss, model.top(2 * model.bottom(x)).sum())


def test_gradients_pass_through_the_pause() -> None:
    model = Small()
    flight = Flight(model, inputs={"x": torch.ones(1, 3)})
    h = flight.to_cut()
    received = h.detach().requires_grad_()
    flight.from_cut(received).loss.backward()
    assert received.grad is not None
    h.backward(received.grad)
    assert model.bottom.weight.grad is not None


def test_an_error_in_the_model_comes_out_where_the_flight_is_flown() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        Flight(Small(), inputs={"x": torch.ones(1, 4)}).to_cut()


def test_a_remote_stage_outside_a_flight_says_so() -> None:
    with pytest.raises(RuntimeError, match="outside a Flight"):
        Small()(torch.ones(1, 3))


class Chained(nn.Module):
    """A model that pauses twice, with a layer between."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.between = Paused(), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> ModelOutput:
        return ModelOutput(loss=self.cut(self.between(self.cut(x))).sum())


def test_a_flight_pauses_at_each_remote_stage_in_turn() -> None:
    model, x = Chained(), torch.ones(1, 3)
    flight = Flight(model, inputs={"x": x})
    assert torch.equal(flight.to_cut(), x)
    assert torch.equal(flight.past_cut(2 * x), model.between(2 * x))
    assert flight.from_cut(x).loss.item() == 3.0


class Encoding(nn.Module):
    """A model that hands over before it pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cut = nn.Linear(3, 3), Paused()

    def forward(self, x: Tensor) -> ModelOutput:
        memory = keep_memory(self.encoder(x))
        return ModelOutput(loss=(self.cut(x) * memory).sum())


def test_what_an_encoder_left_is_kept_by_each_flight_and_its_gradient_waits_there() -> None:
    model = Encoding()
    flights = [Flight(model, inputs={"x": torch.full((1, 3), float(i))}) for i in range(3)]
    assert flights[0].memory is None
    cuts = [flight.to_cut() for flight in flights]
    for flight, cut in reversed(list(zip(flights, cuts, strict=True))):
        flight.from_cut(cut).loss.backward()
        assert flight.memory is not None
        assert torch.equal(flight.memory.left, model.encoder(cut))
        assert torch.equal(flight.memory.entered.grad, cut)  # type: ignore[arg-type]
    assert model.encoder.weight.grad is None
    with torch.no_grad():
        still = Flight(model, inputs={"x": torch.ones(1, 3)})
        still.to_cut()
    assert still.memory is not None
    assert not still.memory.entered.requires_grad


def test_a_handover_outside_a_flight_says_so() -> None:
    with pytest.raises(RuntimeError, match="outside a Flight"):
        Encoding()(torch.ones(1, 3))
