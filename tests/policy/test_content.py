"""Values: what looks like text or labels is refused, and real hidden states never are."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from splitlearn.codecs import build, to_part
from splitlearn.errors import RefusedError
from splitlearn.policy import (
    Private,
    check_finite,
    check_hidden,
    check_lengths,
    check_row_norm,
    check_weights,
)
from splitlearn.split.anatomy import layers_of
from splitlearn.wire.tensors import Part
from tests.tiny import TASKS, tiny_batch, tiny_model

LENGTHS = (12, 7, 9, 12, 5, 8, 11, 6, 10, 12, 4, 9, 7, 12, 8, 6, 9, 5)
WIDTH = 12
N = sum(LENGTHS)
Floats = NDArray[np.float32]


def hidden(*, columns: int = 32, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((N, columns)).astype(np.float32)


def private(*, tagged: bool = False, spans: bool = False) -> Private:
    generator = np.random.default_rng(1)
    ids = generator.integers(5, 30_000, (len(LENGTHS), WIDTH))
    labels: NDArray[np.integer] = np.arange(len(LENGTHS)) % 2
    if tagged:
        labels = generator.integers(0, 9, ids.shape)
    if spans:
        labels = generator.integers(0, WIDTH, len(LENGTHS))
    return Private(ids=ids, labels=(labels,), lengths=LENGTHS)


def packed(values_BT: NDArray[np.integer]) -> NDArray[np.integer]:
    return np.concatenate([row[:n] for row, n in zip(values_BT, LENGTHS, strict=True)])


def starts() -> NDArray[np.intp]:
    return np.cumsum([0, *LENGTHS[:-1]])


def judge(x_ND: Floats, secret: Private, *, gradient: bool = False, coded: bool = False) -> None:
    check_hidden(x_ND, private=secret, packed=True, gradient=gradient, coded=coded)


def rule_of(x_ND: Floats, secret: Private, *, gradient: bool = False, coded: bool = False) -> str:
    with pytest.raises(RefusedError) as caught:
        judge(x_ND, secret, gradient=gradient, coded=coded)
    return caught.value.rule


def with_column(values: NDArray[np.generic], *, column: int = 5) -> Floats:
    x_ND = hidden()
    x_ND[:, column] = values
    return x_ND


def test_normal_rows_pass() -> None:
    for columns in (1, 2, 8, 32):
        judge(hidden(columns=columns), private())
        judge(hidden(columns=columns), private(tagged=True))


def _ids_column() -> Floats:
    return with_column(packed(private().ids))


def _ids_scaled() -> Floats:
    return with_column(packed(private().ids) * 1e-4 - 0.7)


def _ids_in_one_row() -> Floats:
    x_ND = hidden()
    x_ND[3, :12] = private().ids[0]
    return x_ND


def _ids_scattered() -> Floats:
    x_ND = hidden()
    flat = x_ND.reshape(-1)
    flat[:: flat.size // N][:N] = packed(private().ids)
    return x_ND


def _ids_everywhere() -> Floats:
    return np.broadcast_to(packed(private().ids)[:, None], (N, 32)).astype(np.float32)


def _labels_on_every_token() -> Floats:
    return with_column(np.repeat(private().labels[0], LENGTHS))


def _labels_scaled() -> Floats:
    return with_column(np.repeat(private().labels[0], LENGTHS) * 0.37 + 0.11)


def _labels_on_first_tokens() -> Floats:
    x_ND = hidden()
    x_ND[starts(), 5] = private().labels[0]
    return x_ND


def _labels_scaled_on_first_tokens() -> Floats:
    x_ND = hidden()
    x_ND[starts(), 5] = private().labels[0] * 0.37 + 0.11
    return x_ND


def _whole_message_of_labels() -> Floats:
    labels = np.repeat(private().labels[0], LENGTHS)
    return np.broadcast_to(labels[:, None], (N, 32)).astype(np.float32)


def _rounded() -> Floats:
    return np.rint(hidden() * 10)


LEAKS: dict[str, tuple[Callable[[], Floats], set[str]]] = {
    "ids in a column": (_ids_column, {"content.whole"}),
    "ids scaled and shifted": (_ids_scaled, {"content.ids"}),
    "ids in one row": (_ids_in_one_row, {"content.whole"}),
    "ids scattered over the message": (_ids_scattered, {"content.whole"}),
    "nothing but ids": (_ids_everywhere, {"content.whole"}),
    "labels on every token": (_labels_on_every_token, {"content.whole", "content.distinct"}),
    "labels scaled and shifted": (_labels_scaled, {"content.distinct"}),
    "labels on first tokens": (_labels_on_first_tokens, {"content.whole", "content.labels"}),
    "labels scaled on first tokens": (_labels_scaled_on_first_tokens, {"content.distinct"}),
    "nothing but labels": (_whole_message_of_labels, {"content.whole"}),
    "rounded values": (_rounded, {"content.whole"}),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_message_with_ids_or_labels_is_refused(name: str) -> None:
    make, rules = LEAKS[name]
    assert rule_of(make(), private()) in rules


def test_tags_in_a_column_are_refused_however_they_are_scaled() -> None:
    tags = packed(private(tagged=True).labels[0])
    assert rule_of(with_column(tags), private(tagged=True)) == "content.whole"
    assert rule_of(with_column(tags * 0.01 + 3.3), private(tagged=True)) == "content.distinct"


def test_answer_positions_on_first_tokens_are_refused_however_they_are_scaled() -> None:
    secret = private(spans=True)
    for scale, shift in ((1.0, 0.0), (-0.013, 0.4)):
        x_ND = hidden()
        x_ND[starts(), 5] = secret.labels[0] * scale + shift
        assert rule_of(x_ND, secret) in {"content.whole", "content.labels", "content.distinct"}


def test_ids_are_found_in_a_gradient_too() -> None:
    for leak in (_ids_column, _ids_scaled, _ids_everywhere):
        assert rule_of(leak(), private(), gradient=True) in {"content.whole", "content.ids"}


@pytest.mark.parametrize("codec", ["identity", "fp16", "bf16", "int8"])
def test_ids_and_tags_are_found_behind_a_codec(codec: str) -> None:
    """As if the stage were honest and the codec not: only the decoded rows show it. Coarser codecs round
    ids away; what went into them was judged before.
    """
    coder = build(codec)
    for values in (packed(private().ids) * 1e-4, packed(private(tagged=True).labels[0])):
        alone = np.repeat(values[:, None], 32, axis=1).astype(np.float32)
        alone[:, 1:] *= 0.5
        parts = coder.encode(torch.from_numpy(alone))
        decoded = coder.decode(parts, rows=N, width=32).numpy()
        secret = private(tagged=True)
        assert rule_of(decoded, secret, coded=True) in {"content.ids", "content.whole"}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("gradient", [False, True])
def test_one_value_that_is_not_finite_is_refused(value: float, gradient: bool) -> None:
    x_ND = hidden()
    x_ND[7, 3] = value
    assert rule_of(x_ND, private(), gradient=gradient) == "content.finite"
    with pytest.raises(RefusedError):
        check_finite(x_ND)


def test_bits_hidden_in_a_nan_are_refused() -> None:
    x_ND = hidden()
    x_ND.view(np.uint32)[0, 0] = 0x7FC0_1234
    assert rule_of(x_ND, private()) == "content.finite"


def test_large_values_are_finite_even_where_their_squares_are_not() -> None:
    check_finite(np.full((4, 4), 3e38, np.float32))
    check_finite(np.zeros((0, 4), np.float32))


def test_zero_rows_and_dead_columns_pass() -> None:
    x_ND = hidden()
    x_ND[:, 3] = 0.0
    judge(x_ND, private())
    x_ND[:, 4] = 0.25
    judge(x_ND, private())
    judge(np.zeros((N, 32), np.float32), private(), gradient=True)
    sparse = np.zeros((N, 32), np.float32)
    sparse[starts()] = hidden()[: len(LENGTHS)]
    judge(sparse, private(), gradient=True)


def test_labels_that_are_all_zero_say_nothing() -> None:
    secret = private()
    secret = Private(ids=secret.ids, labels=(np.zeros(len(LENGTHS), int),), lengths=LENGTHS)
    x_ND = hidden()
    x_ND[:, 3] = 0.0
    judge(x_ND, secret)


def test_one_far_id_makes_no_line_of_every_column() -> None:
    """A high token far from all others is a strong lever; the rest of the column decides."""
    secret = private()
    ids = secret.ids % 50
    ids[0, 0] = 29_999
    x_ND = hidden()
    x_ND[0] *= 1e4
    judge(x_ND, Private(ids=ids, labels=secret.labels, lengths=LENGTHS))


def test_labels_on_first_tokens_are_found_behind_a_codec() -> None:
    assert rule_of(_labels_on_first_tokens(), private(), coded=True) == "content.labels"


def test_a_few_whole_numbers_are_an_accident() -> None:
    x_ND = hidden()
    x_ND[:, 3] = 0.0
    x_ND[4, 3] = 2.0
    x_ND[9, 7] = -1.0
    judge(x_ND, private(), gradient=True)


def test_a_column_that_happens_to_begin_as_the_labels_do_passes() -> None:
    x_ND = hidden()
    x_ND[starts()[1], 5] = 1.0
    judge(x_ND, private())


def test_half_precision_states_pass() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        x_ND = torch.from_numpy(hidden(columns=64) + 10.0).to(dtype).float().numpy()
        judge(x_ND, private(), coded=True)
        x_ND = torch.from_numpy(hidden(columns=64)).to(dtype).float().numpy()
        judge(x_ND, private())


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", ["bert", "distilbert", "xlm-roberta"])
def test_no_hidden_state_or_gradient_of_a_real_stack_is_refused(family: str, task: str) -> None:
    shapes = [((9, 4, 6), 9), ((2, 1), 3), ((3,), 3), ((9,) * 24, 9)]
    for seed, (lengths, width) in enumerate(shapes):
        model = tiny_model(family, task=task, dropout=0.1, seed=seed)
        batch = tiny_batch(model, lengths=lengths, width=width, seed=seed)
        states: list[Tensor] = []

        def keep(
            _module: object, _inputs: object, output: Tensor, states: list[Tensor] = states
        ) -> None:
            output.retain_grad()
            states.append(output)

        for layer in layers_of(model):
            layer.register_forward_hook(keep)
        model(**batch.inputs, **batch.labels).loss.backward()
        secret = Private(
            ids=batch.inputs["input_ids"].numpy(),
            labels=tuple(label.numpy() for label in batch.labels.values()),
            lengths=batch.lengths,
        )
        for state in states:
            assert state.grad is not None
            for gradient, x in ((False, state.detach()), (True, state.grad)):
                x_ND = x.flatten(0, 1)
                check_hidden(
                    x_ND.numpy(), private=secret, packed=False, gradient=gradient, coded=False
                )
                for name in ("identity", "fp16", "bf16", "int8"):
                    coder = build(name)
                    rows, columns = x_ND.shape
                    decoded = coder.decode(coder.encode(x_ND), rows=rows, width=columns)
                    check_hidden(
                        decoded.numpy(), private=secret, packed=False, gradient=gradient, coded=True
                    )


def lengths_rule(
    secret: Private,
    *,
    rows: int = N,
    width: int = WIDTH,
    is_packed: bool = True,
    lengths: tuple[int, ...] = LENGTHS,
) -> str:
    with pytest.raises(RefusedError) as caught:
        check_lengths(secret, rows=rows, width=width, packed=is_packed, lengths=lengths)
    return caught.value.rule


def test_side_data_of_the_batch_itself_pass() -> None:
    check_lengths(private(), rows=N, width=WIDTH, packed=True, lengths=LENGTHS)
    check_lengths(private(tagged=True), rows=N, width=WIDTH, packed=True, lengths=())
    padded = len(LENGTHS) * WIDTH
    check_lengths(private(), rows=padded, width=WIDTH, packed=False, lengths=LENGTHS)


def test_side_data_that_are_not_the_batchs_are_refused() -> None:
    labels = tuple(int(label) + 1 for label in private().labels[0])
    ids = tuple(int(token) for token in private().ids[:, 0])
    assert lengths_rule(private(), lengths=labels) == "content.lengths"
    assert lengths_rule(private(), lengths=ids) == "content.lengths"
    assert lengths_rule(private(), lengths=LENGTHS[:-1]) == "content.lengths"
    assert lengths_rule(private(), rows=N + 1) == "content.rows"
    assert lengths_rule(private(), is_packed=False) == "content.rows"
    assert lengths_rule(private(), width=WIDTH + 1) == "content.batch"
    secret = private()
    for wrong in (
        Private(ids=secret.ids[:-1], labels=secret.labels, lengths=LENGTHS),
        Private(ids=secret.ids, labels=(secret.labels[0][:-1],), lengths=LENGTHS),
        Private(ids=secret.ids, labels=secret.labels, lengths=(WIDTH + 1, *LENGTHS[1:])),
        Private(ids=secret.ids, labels=secret.labels, lengths=(0, *LENGTHS[1:])),
    ):
        assert lengths_rule(wrong) == "content.batch"


def test_a_row_over_the_norm_is_refused() -> None:
    x_ND = hidden()
    check_row_norm(x_ND, limit=100.0)
    check_row_norm(np.zeros((0, 3), np.float32), limit=1.0)
    x_ND[3] = 1e3
    with pytest.raises(RefusedError, match="norm") as caught:
        check_row_norm(x_ND, limit=100.0)
    assert caught.value.rule == "content.max_row_norm"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_weights_are_finite_numbers_in_floating_point(dtype: torch.dtype) -> None:
    weight = torch.ones(3, 4, dtype=dtype)
    check_weights((to_part("layers.2.weight", weight),))
    for value in (float("nan"), float("inf")):
        weight[1, 1] = value
        with pytest.raises(RefusedError, match=r"layers\.2\.weight"):
            check_weights((to_part("layers.2.weight", weight),))


@pytest.mark.parametrize("dtype", ["I64", "U8", "BOOL"])
def test_weights_that_are_no_floats_are_refused(dtype: str) -> None:
    size = {"I64": 8, "U8": 1, "BOOL": 1}[dtype]
    with pytest.raises(RefusedError):
        check_weights((Part("ids", dtype, (2,), bytes(2 * size)),))


def test_nothing_private_is_ever_shown() -> None:
    secret = private()
    assert "ids" not in repr(secret)
    for name, (make, _) in LEAKS.items():
        with pytest.raises(RefusedError) as caught:
            judge(make(), secret)
        values = {str(value) for value in secret.ids.reshape(-1) if value > 1000}
        assert not values & set(str(caught.value).split()), name
