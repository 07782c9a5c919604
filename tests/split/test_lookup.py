"""The gradient of a table of embeddings, added up row by row, against torch's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from splitlearn.split.lookup import RowEmbedding, look_up_by_rows
from tests.tiny import VOCABULARY, tiny_model

ROWS, WIDTH = 40, 24


def gradient(embedding: nn.Embedding, micro_batches: list[Tensor]) -> Tensor:
    """Summed over micro-batches, each with a gradient drawn from its number."""
    for i, ids in enumerate(micro_batches):
        generator = torch.Generator().manual_seed(i)
        embedding(ids).backward(torch.randn((*ids.shape, WIDTH), generator=generator))
    assert embedding.weight.grad is not None
    return embedding.weight.grad


@given(
    sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 30)), min_size=1, max_size=4),
    different=st.integers(1, ROWS),
    padding=st.none() | st.integers(0, ROWS - 1),
    threads=st.integers(1, 2),
)
def test_sums_are_torchs_own_to_the_bit(
    sizes: list[tuple[int, int]], different: int, padding: int | None, threads: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        micro_batches = [torch.randint(different, size) for size in sizes]
        plain = nn.Embedding(ROWS, WIDTH, padding_idx=padding)
        ours = RowEmbedding.of(
            nn.Embedding(ROWS, WIDTH, padding_idx=padding, _weight=plain.weight.detach().clone())
        )
        assert torch.equal(ours(micro_batches[0]), plain(micro_batches[0]))
        assert torch.equal(gradient(ours, micro_batches), gradient(plain, micro_batches))
    finally:
        torch.set_num_threads(before)


def test_a_table_of_many_rows_is_summed_alike() -> None:
    micro_batches = [torch.randint(3_000, (8, 64)) for _ in range(3)]
    plain = nn.Embedding(3_000, WIDTH)
    ours = RowEmbedding.of(nn.Embedding(3_000, WIDTH, _weight=plain.weight.detach().clone()))
    assert torch.equal(gradient(ours, micro_batches), gradient(plain, micro_batches))


def test_a_step_begins_with_zeros_again() -> None:
    first, second = torch.tensor([[1, 2, 2]]), torch.tensor([[2, 5]])
    ours = RowEmbedding.of(nn.Embedding(ROWS, WIDTH))
    gradient(ours, [first])
    ours.zero_grad(set_to_none=True)
    plain = nn.Embedding(ROWS, WIDTH)
    assert torch.equal(gradient(ours, [second]), gradient(plain, [second]))
    ours.zero_grad(set_to_none=False)
    assert torch.equal(
        gradient(ours, [first]) != 0, gradient(nn.Embedding(ROWS, WIDTH), [first]) != 0
    )


def test_it_adds_to_a_gradient_that_is_there() -> None:
    ours = RowEmbedding.of(nn.Embedding(ROWS, WIDTH))
    ours.weight.grad = torch.ones_like(ours.weight)
    found = gradient(ours, [torch.tensor([3])])
    assert found[4].eq(1).all()
    assert found[3].ne(1).any()
    ours.weight.grad = None
    assert gradient(ours, [torch.tensor([4])])[3].eq(0).all()


def test_a_gradient_is_of_the_weight_that_the_forward_had() -> None:
    ours = RowEmbedding.of(nn.Embedding(ROWS, WIDTH))
    own, others = ours.weight, [nn.Parameter(torch.randn(ROWS, WIDTH)) for _ in range(2)]
    ids = torch.tensor([[3, 3]])
    outputs = []
    for weight in (*others, own):
        ours.weight = weight
        outputs.append(ours(ids))
    for output in outputs:
        output.sum().backward()
    for weight in (*others, own):
        assert weight.grad is not None
        assert weight.grad.sum() == 2 * WIDTH
    assert others[0].grad is not others[1].grad


def test_what_does_not_train_has_no_gradient() -> None:
    ours = RowEmbedding.of(nn.Embedding(ROWS, WIDTH))
    with torch.no_grad():
        assert not ours(torch.tensor([1])).requires_grad
    ours.weight.requires_grad_(False)
    assert not ours(torch.tensor([1])).requires_grad
    assert ours.weight.grad is None


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert"])
def test_an_encoders_own_table_is_looked_up_by_rows_and_stays_the_same_weight(
    model_type: str,
) -> None:
    model = tiny_model(model_type, task="sequence-classification")
    names, weight = list(model.state_dict()), model.get_input_embeddings().weight
    padding = model.get_input_embeddings().padding_idx
    look_up_by_rows(model)
    table = model.get_input_embeddings()
    assert isinstance(table, RowEmbedding)
    assert table.weight is weight
    assert (table.padding_idx, table.num_embeddings) == (padding, VOCABULARY)
    assert list(model.state_dict()) == names
    look_up_by_rows(model)
    assert model.get_input_embeddings() is table


@pytest.mark.parametrize("model_type", ["t5", "bart", "gpt2"])
def test_a_shared_table_is_left_as_it_is(model_type: str) -> None:
    model = tiny_model(model_type)
    before = model.get_input_embeddings()
    look_up_by_rows(model)
    assert model.get_input_embeddings() is before


def test_a_table_that_somebody_listens_to_is_left_as_it_is() -> None:
    model = tiny_model("bert", task="sequence-classification")
    before = model.get_input_embeddings()
    before.register_forward_hook(lambda *_: None)
    look_up_by_rows(model)
    assert model.get_input_embeddings() is before


def test_what_is_no_transformer_is_left_as_it_is() -> None:
    model = nn.Sequential(nn.Embedding(ROWS, WIDTH))
    look_up_by_rows(model)
    assert type(model[0]) is nn.Embedding
