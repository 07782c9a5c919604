"""A split run equals the unsplit one to the bit: losses, gradients, weights; no wire, no codec.

Both halves here train as two parties would: two optimisers, rows packed and unpacked, gradients
passed by hand. Whatever the wire adds must not change these numbers either.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.split import (
    Bottleneck,
    Cut,
    build_trunk,
    factor,
    fit_pca,
    freeze,
    freeze_trunk,
    load_weights,
    merged,
    pack,
    reads_padding,
    remote_stage,
    set_training,
    spec_of,
    split,
    trunk_model,
    trunk_state,
    unpack,
)
from tests.tiny import (
    DECODERS,
    ENCODERS,
    TASKS,
    WRITERS,
    TinyBatch,
    tiny_batch,
    tiny_model,
)

STEPS = 10
CUTS = [Cut(1, 3), Cut(2, 3), Cut(1, 2)]  # at 1, in the middle, before the last layer, of four
LENGTHS = [(9, 4, 6), (9, 9, 9), (2, 7, 8), (1, 1, 5)]  # the last is padded beyond its longest


def batches(model: PreTrainedModel) -> list[TinyBatch]:
    return [tiny_batch(model, lengths=LENGTHS[i % 4], seed=i) for i in range(STEPS)]


def adamw(module: torch.nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-2)


def wire(x_ND: Tensor) -> Tensor:
    """To bytes and back, as a view that begins on an odd address of four bytes."""
    raw = bytearray(4) + x_ND.detach().numpy().tobytes()
    return torch.frombuffer(raw, dtype=torch.float32)[1:].view(x_ND.shape)


class Pair:
    """Two parties in one process: a local model and a trunk that was rebuilt from its blueprint."""

    def __init__(self, model: PreTrainedModel, *, cut: Cut, mode: str, train_bottom: bool) -> None:
        blueprint = trunk_model(model)
        self.cut = cut
        self.local, ours = split(model, cut=cut)
        self.trunk = build_trunk(blueprint, cut=spec_of(cut))
        for group in ("layers", "bottlenecks"):
            load_weights(self.trunk, trunk_state(ours, group=group), group=group)
        freeze(self.local, cut=cut, mode=mode, train_bottom=train_bottom)
        freeze_trunk(self.trunk, mode=mode)
        set_training(self.local, training=True)
        set_training(self.trunk, training=True)
        self.mode, self.packed = mode, not reads_padding(model)
        self.egress: list[bytes] = []  # what left the local party
        self.optimisers = [adamw(self.local)] + ([adamw(self.trunk)] if mode == "full" else [])

    def loss(self, batch: TinyBatch) -> Tensor:
        """One forward and backward pass of both parties; gradients stand in both parts after."""
        rows = {"lengths": batch.lengths, "packed": self.packed}
        ends: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

        def exchange(h1_BTD: Tensor) -> Tensor:
            sent = self.send(pack(h1_BTD, **rows))
            entered = unpack(sent, width=batch.width, **rows)
            entered.requires_grad_(self.mode == "full")
            left = self.trunk(entered, lengths=batch.lengths)
            h2_BTD = unpack(wire(pack(left, **rows)), width=batch.width, **rows)
            h2_BTD.requires_grad_(self.mode == "full")
            ends.append((h1_BTD, entered, left, h2_BTD))
            return h2_BTD

        remote_stage(self.local).exchange = exchange
        loss: Tensor = self.local(**batch.inputs, **batch.labels).loss
        loss.backward()
        h1_BTD, entered, left, h2_BTD = ends.pop()
        if self.mode == "full":
            assert h2_BTD.grad is not None
            sent = self.send(pack(h2_BTD.grad, **rows))
            left.backward(unpack(sent, width=batch.width, **rows))
            if h1_BTD.requires_grad:
                assert entered.grad is not None
                back = wire(pack(entered.grad, **rows))
                h1_BTD.backward(unpack(back, width=batch.width, **rows))
        return loss.detach()

    def send(self, x_ND: Tensor) -> Tensor:
        self.egress.append(x_ND.detach().numpy().tobytes())
        return wire(x_ND)

    def whole(self) -> PreTrainedModel:
        return merged(self.local, trunk=self.trunk, cut=self.cut)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Both parties' parameters under the names they have in the whole model."""
        ours = [*self.local.parameters(), *self.trunk.parameters()]
        shadow = copy.deepcopy(self.local), copy.deepcopy(self.trunk)
        marks = [*shadow[0].parameters(), *shadow[1].parameters()]
        for number, mark in enumerate(marks):
            mark.data = torch.full_like(mark, number)
        whole = merged(shadow[0], trunk=shadow[1], cut=self.cut)
        return {name: ours[int(mark.flatten()[0])] for name, mark in whole.named_parameters()}


def plain_loss(model: PreTrainedModel, batch: TinyBatch) -> Tensor:
    loss: Tensor = model(**batch.inputs, **batch.labels).loss
    loss.backward()
    return loss.detach()


def assert_the_same_run(
    make: Callable[[], PreTrainedModel],
    *,
    cut: Cut,
    mode: str = "full",
    train_bottom: bool = True,
) -> None:
    whole = make()
    pair = Pair(make(), cut=cut, mode=mode, train_bottom=train_bottom)
    freeze(whole, cut=cut, mode=mode, train_bottom=train_bottom)
    set_training(whole, training=True)
    optimiser = adamw(whole)
    ours = pair.parameters()
    assert list(ours) == [name for name, _ in whole.named_parameters()]
    for step, batch in enumerate(batches(whole)):
        optimiser.zero_grad()
        for half in pair.optimisers:
            half.zero_grad()
        expected, found = plain_loss(whole, batch), pair.loss(batch)
        assert torch.equal(expected, found), f"loss of step {step}"
        for name, weight in whole.named_parameters():
            mine, theirs = weight.grad, ours[name].grad
            assert (mine is None) == (theirs is None), f"{name} at step {step}"
            assert mine is None or torch.equal(mine, theirs), f"{name} at step {step}"
        optimiser.step()
        for half in pair.optimisers:
            half.step()
    final = pair.whole().state_dict()
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, final[name]), name


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut.first}-{cut.last}")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model_type", ENCODERS)
def test_ten_steps_of_a_split_model_equal_the_unsplit_ones_to_the_bit(
    model_type: str, task: str, cut: Cut
) -> None:
    assert_the_same_run(
        lambda: factor(tiny_model(model_type, task=task), cut=cut, bases={}), cut=cut
    )


@pytest.mark.parametrize(("mode", "train_bottom"), [("full", True), ("features", False)])
@pytest.mark.parametrize("cut", CUTS[:2], ids=lambda cut: f"{cut.first}-{cut.last}")
@pytest.mark.parametrize("model_type", WRITERS)
def test_a_remote_encoder_below_a_decoder_is_as_exact(
    model_type: str, cut: Cut, mode: str, train_bottom: bool
) -> None:
    assert_the_same_run(
        lambda: factor(tiny_model(model_type), cut=cut, bases={}),
        cut=cut,
        mode=mode,
        train_bottom=train_bottom,
    )


@pytest.mark.parametrize("mode", ["full", "features"])
@pytest.mark.parametrize(
    "more",
    [{"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, {"attention": "eager"}],
    ids=["gated", "eager"],
)
def test_both_kinds_of_t5_are_as_exact_with_a_frozen_bottom(
    more: dict[str, object], mode: str
) -> None:
    """A bottom that is frozen drops nothing out; here nothing does, so that both can be compared."""
    assert_the_same_run(
        lambda: factor(tiny_model("t5", **more), cut=Cut(2, 3), bases={}),
        cut=Cut(2, 3),
        mode=mode,
        train_bottom=False,
    )


def test_a_narrow_t5_is_split_as_exactly() -> None:
    cut = Cut(1, 3, Bottleneck("pca", 6), Bottleneck("pca", 4))

    def make() -> PreTrainedModel:
        model = tiny_model("t5")
        text = [tiny_batch(model, seed=seed).inputs for seed in range(3)]
        bases = {
            "lower": fit_pca(model, text, layer=cut.first, rank=6),
            "upper": fit_pca(model, text, layer=cut.last, rank=4),
        }
        return factor(model, cut=cut, bases=bases)

    assert_the_same_run(make, cut=cut)


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut.first}-{cut.last}")
@pytest.mark.parametrize("model_type", DECODERS)
def test_ten_steps_of_a_split_decoder_equal_the_unsplit_ones_to_the_bit(
    model_type: str, cut: Cut
) -> None:
    assert_the_same_run(lambda: factor(tiny_model(model_type), cut=cut, bases={}), cut=cut)


@pytest.mark.parametrize("mode", ["features", "full"])
@pytest.mark.parametrize("model_type", ["gpt2", "mistral", "qwen3"])
def test_a_decoder_is_as_exact_by_eager_attention_and_in_part_frozen(
    model_type: str, mode: str
) -> None:
    cut = Cut(1, 3)
    assert_the_same_run(
        lambda: factor(tiny_model(model_type, attention="eager"), cut=cut, bases={}),
        cut=cut,
        mode=mode,
        train_bottom=False,
    )


@pytest.mark.parametrize("upper", ["none", "pca"])
@pytest.mark.parametrize("model_type", ["gpt2", "qwen2"])
def test_a_narrow_decoder_is_split_as_exactly(model_type: str, upper: str) -> None:
    cut = Cut(2, 3, Bottleneck("pca", 6), Bottleneck(upper, 0 if upper == "none" else 4))

    def make() -> PreTrainedModel:
        model = tiny_model(model_type)
        text = [tiny_batch(model, seed=seed).inputs for seed in range(3)]
        bases = {
            "lower": fit_pca(model, text, layer=cut.first, rank=6),
            "upper": fit_pca(model, text, layer=cut.last, rank=4),
        }
        return factor(model, cut=cut, bases=bases)

    assert_the_same_run(make, cut=cut)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
def test_the_eager_attention_is_as_exact_as_the_fused_one(model_type: str, task: str) -> None:
    cut = Cut(1, 3)
    assert_the_same_run(
        lambda: factor(tiny_model(model_type, task=task, attention="eager"), cut=cut, bases={}),
        cut=cut,
    )


@pytest.mark.parametrize("mode", ["features", "full"])
@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
def test_a_frozen_bottom_and_a_frozen_trunk_are_as_exact(model_type: str, mode: str) -> None:
    cut = Cut(1, 3)
    assert_the_same_run(
        lambda: factor(tiny_model(model_type), cut=cut, bases={}),
        cut=cut,
        mode=mode,
        train_bottom=False,
    )


@pytest.mark.parametrize("upper", ["none", "pca", "sft"])
@pytest.mark.parametrize("lower", ["none", "pca", "sft"])
@pytest.mark.parametrize("model_type", ["roberta", "distilbert"])
def test_a_factored_model_is_split_as_exactly(model_type: str, lower: str, upper: str) -> None:
    cut = Cut(
        2,
        3,
        Bottleneck(lower, 0 if lower == "none" else 6),
        Bottleneck(upper, 0 if upper == "none" else 4),
    )

    def make() -> PreTrainedModel:
        model = tiny_model(model_type)
        text = [tiny_batch(model, seed=seed).inputs for seed in range(3)]
        bases = {
            "lower": fit_pca(model, text, layer=cut.first, rank=6),
            "upper": fit_pca(model, text, layer=cut.last, rank=4),
        }
        return factor(model, cut=cut, bases=bases)

    assert_the_same_run(make, cut=cut)


def test_dropout_in_the_same_order_gives_the_same_losses_twice() -> None:
    def losses() -> list[float]:
        cut = Cut(1, 3)
        model = factor(tiny_model("bert", dropout=0.3), cut=cut, bases={})
        pair = Pair(model, cut=cut, mode="full", train_bottom=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            return [float(pair.loss(batch)) for batch in batches(pair.local)[:4]]

    assert losses() == losses()


def test_permuted_labels_change_nothing_that_leaves_in_features_mode() -> None:
    def egress(shift: int) -> list[bytes]:
        cut = Cut(1, 3)
        model = factor(tiny_model("bert", dropout=0.3), cut=cut, bases={})
        pair = Pair(model, cut=cut, mode="features", train_bottom=False)
        for batch in batches(pair.local):
            pair.optimisers[0].zero_grad()
            labels = {"labels": batch.labels["labels"].roll(shift)}
            pair.loss(TinyBatch(batch.inputs, labels, batch.lengths))
            pair.optimisers[0].step()
        assert len(pair.egress) == STEPS
        return pair.egress

    with torch.random.fork_rng(devices=[]):
        assert egress(0) == egress(1)


def test_packed_rows_change_the_loss_of_question_answering_so_its_rows_travel_whole() -> None:
    cut = Cut(1, 3)
    make = lambda: factor(tiny_model("bert", task=TASKS[2]), cut=cut, bases={})  # noqa: E731
    pair = Pair(make(), cut=cut, mode="full", train_bottom=True)
    batch = tiny_batch(pair.local, lengths=(9, 4, 6))
    expected = plain_loss(make(), batch)
    assert torch.equal(pair.loss(batch), expected)
    pair.packed = True
    assert not torch.equal(pair.loss(batch), expected)
