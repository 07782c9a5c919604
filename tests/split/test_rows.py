import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.errors import WireError
from splitlearn.split.rows import apart, mask_of, pack, reads_padding, together, unpack
from tests.tiny import TASKS, tiny_batch, tiny_model

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@given(LENGTHS, st.integers(0, 3), st.booleans())
def test_unpacking_gives_the_rows_back_where_they_were(
    lengths: list[int], spare: int, packed: bool
) -> None:
    width = max(lengths) + spare
    h_BTD = torch.randn(len(lengths), width, 3)
    x_ND = pack(h_BTD, lengths=lengths, packed=packed)
    assert x_ND.shape == (sum(lengths) if packed else len(lengths) * width, 3)
    back = unpack(x_ND, lengths=lengths, width=width, packed=packed)
    mask = mask_of(lengths, width=width)
    assert torch.equal(back[mask], h_BTD[mask])
    assert torch.equal(back[~mask], torch.zeros_like(h_BTD[~mask]) if packed else h_BTD[~mask])


@given(LENGTHS)
def test_the_first_example_travels_first_token_by_token(lengths: list[int]) -> None:
    width = max(lengths)
    h_BTD = torch.arange(len(lengths) * width, dtype=torch.float32).view(-1, width, 1)
    expected = [h_BTD[b, t, 0] for b, length in enumerate(lengths) for t in range(length)]
    assert pack(h_BTD, lengths=lengths).flatten().tolist() == expected


def test_the_mask_is_the_one_that_the_model_was_given() -> None:
    batch = tiny_batch(tiny_model("bert"))
    assert torch.equal(
        mask_of(batch.lengths, width=batch.width), batch.inputs["attention_mask"].bool()
    )


@pytest.mark.parametrize("packed", [True, False])
def test_unpacked_rows_lie_on_a_cache_line_of_their_own(packed: bool) -> None:
    lengths, width = (4, 4), 4
    line = torch.empty(8 * 16 + 1)
    x_ND = line[1:].view(8, 16)
    assert x_ND.data_ptr() % 64 == 4
    back = unpack(x_ND, lengths=lengths, width=width, packed=packed)
    assert back.data_ptr() % 64 == 0
    back.fill_(7.0)
    assert not bool((line == 7.0).any())


@pytest.mark.parametrize(
    ("shape", "lengths", "width", "packed"),
    [
        ((5, 3), (2, 4), 4, True),
        ((7, 3), (2, 4), 4, True),
        ((6, 3), (2, 4), 4, False),
        ((6, 3), (2, 4), 3, True),
        ((6, 3), (2, 4), 3, False),
        ((6,), (2, 4), 4, True),
        ((2, 4, 3), (2, 4), 4, False),
    ],
)
def test_rows_that_do_not_fit_their_lengths_are_the_peers_fault(
    shape: tuple[int, ...], lengths: tuple[int, ...], width: int, packed: bool
) -> None:
    with pytest.raises(WireError, match=r"2 examples padded to .* the peer sent"):
        unpack(torch.zeros(shape), lengths=lengths, width=width, packed=packed)


@pytest.mark.parametrize(
    ("lengths", "width"), [((1,) * 4096, 131_072), ((1,), 131_072), ((131_072, 1), 131_072)]
)
def test_few_rows_do_not_claim_much_memory(lengths: tuple[int, ...], width: int) -> None:
    x_ND = torch.zeros((1, 8)).expand(sum(lengths), 8)
    with pytest.raises(WireError, match="use smaller batches"):
        unpack(x_ND, lengths=lengths, width=width)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(9, 20))
def test_joined_rows_come_back_as_they_left(lengths: list[int], width: int) -> None:
    rows = together(lengths, width=width)
    assert [length for row in rows for length in row] == lengths
    assert max(map(sum, rows)) <= width
    # Laid again to the longest row, as a peer does, they lie the same.
    assert together(lengths, width=max(map(sum, rows))) == rows
    x_ND = torch.randn(sum(lengths), 3)
    h_BTD = unpack(x_ND, lengths=lengths, width=width, joined=True)
    assert h_BTD.shape == (len(rows), width, 3)
    assert torch.equal(pack(h_BTD, lengths=lengths, joined=True), x_ND)
    assert not h_BTD[~mask_of(lengths, width=width, joined=True)].any()
    ids_BT = torch.arange(len(rows) * width).reshape(len(rows), width)
    apart_BT = apart(ids_BT, lengths=lengths, filler=-1)
    assert apart_BT.shape == (len(lengths), width)
    assert torch.equal(
        apart_BT[mask_of(lengths, width=width)], ids_BT[mask_of(lengths, width=width, joined=True)]
    )


def test_joined_texts_with_padding_between_them_are_the_peers_fault() -> None:
    with pytest.raises(WireError, match="padding of joined texts"):
        unpack(torch.zeros(8, 3), lengths=(2, 2), width=4, packed=False, joined=True)


def test_a_decoders_loss_does_not_read_padding() -> None:
    assert not reads_padding(tiny_model("gpt2"))


@pytest.mark.parametrize("task", TASKS)
def test_only_question_answering_reads_padding(task: str) -> None:
    assert reads_padding(tiny_model("bert", task=task)) == (task == "question-answering")


@pytest.mark.parametrize("task", TASKS)
def test_reads_padding_says_whether_the_loss_changes_with_a_padded_position(task: str) -> None:
    from splitlearn.split.anatomy import layers_of

    model = tiny_model("bert", task=task)
    batch = tiny_batch(model)

    def loss(noise: float) -> torch.Tensor:
        mask_BT1 = batch.inputs["attention_mask"][..., None]

        def disturb(_: object, __: object, h_BTD: torch.Tensor) -> torch.Tensor:
            return h_BTD * mask_BT1 + noise * (1 - mask_BT1)

        hooks = [layer.register_forward_hook(disturb) for layer in layers_of(model)]
        found: torch.Tensor = model(**batch.inputs, **batch.labels).loss
        for hook in hooks:
            hook.remove()
        return found

    assert torch.equal(loss(0.0), loss(3.0)) == (not reads_padding(model))
