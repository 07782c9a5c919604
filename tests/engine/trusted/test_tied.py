import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from splitlearn.engine.trusted.tied import Tied


class Shares(nn.Module):
    """A table of words that is the head, too, and a linear that is only itself."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 3)
        self.inner = nn.Linear(3, 3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.words.weight


def made() -> Shares:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Shares()


IDS = [torch.tensor([[1, 2, 3]]), torch.tensor([[3, 3, 6]]), torch.tensor([[0, 5, 2]])]


def unsplit() -> torch.Tensor:
    model = made()
    for ids in IDS:
        model.head(model.inner(model.words(ids)).tanh()).logsumexp(-1).sum().backward()
    assert model.words.weight.grad is not None
    return model.words.weight.grad


def in_halves(*, tied: bool) -> torch.Tensor:
    """All tops' backwards before all bottoms', as with many micro-batches under way."""
    model = made()
    holder = Tied(model if tied else nn.Linear(1, 1))
    ends = []
    for i, ids in enumerate(IDS):
        left = model.inner(model.words(ids)).tanh()
        entered = left.detach().requires_grad_(True)
        with holder.top(i):
            model.head(entered).logsumexp(-1).sum().backward()
        ends.append((left, entered))
    for i, (left, entered) in enumerate(ends):
        with holder.bottom(i):
            left.backward(entered.grad)
    assert model.words.weight.grad is not None
    return model.words.weight.grad


def test_shares_of_a_tied_weight_are_summed_as_one_backward_sums_them() -> None:
    assert torch.equal(in_halves(tied=True), unsplit())


def test_summed_as_they_come_the_last_bits_differ() -> None:
    assert torch.allclose(in_halves(tied=False), unsplit())
    assert not torch.equal(in_halves(tied=False), unsplit())


def test_a_shared_weight_that_is_frozen_is_left_alone() -> None:
    model = made()
    model.words.weight.requires_grad_(False)
    holder = Tied(model)
    with holder.top(0):
        model.head(model.inner(model.words(IDS[0]))).sum().backward()
    assert model.words.weight.grad is None
    assert model.inner.weight.grad is not None
    with holder.bottom(0):
        pass
    assert model.inner.weight.grad is not None


class Thrice(Shares):
    """A table of words that is read twice, below another table of layers each time, and is the head."""

    def forward(self, ids: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return self.between(self.below(ids), others).logsumexp(-1).sum()

    def below(self, ids: torch.Tensor) -> torch.Tensor:
        return self.inner(self.words(ids)).tanh()

    def between(self, below: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return self.head((self.words(others) * below).tanh())


@pytest.mark.parametrize("held", [True, False])
def test_the_share_of_a_piece_between_two_parties_comes_second(held: bool) -> None:
    """As the embeddings of a decoder whose encoder is remote: head, then they, then the encoder's."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = Thrice()
    whole = copy.deepcopy(model)
    for ids in IDS:
        whole(ids, ids.flip(1)).backward()
    holder, pieces = Tied(model), []
    for i, ids in enumerate(IDS):
        below = model.below(ids)
        leaf = below.detach().requires_grad_()
        words = model.words(ids.flip(1))
        entered = words.detach().requires_grad_()
        with holder.top(i):
            model.head((entered * leaf).tanh()).logsumexp(-1).sum().backward()
        pieces.append((words, entered, below, leaf))
    for i, (words, entered, _, _) in enumerate(pieces):
        with holder.between(i) if held else nullcontext():
            words.backward(entered.grad)
    for i, (_, _, below, leaf) in enumerate(pieces):
        with holder.bottom(i):
            below.backward(leaf.grad)
    assert model.words.weight.grad is not None
    assert whole.words.weight.grad is not None
    assert torch.equal(model.words.weight.grad, whole.words.weight.grad) is held
