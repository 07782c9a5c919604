"""What a trunk rebuilds from lengths, against what the base model gives its own layers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.errors import WireError
from splitlearn.split.anatomy import layers_of
from splitlearn.split.crossing import Beside
from splitlearn.split.cut import Cut
from splitlearn.split.stage import split
from tests.crossed import crossed_model
from tests.tiny import DECODERS, ENCODERS, RELATIVE, WRITERS, joined_batch, tiny_batch, tiny_model


@pytest.mark.parametrize("model_type", [*ENCODERS, *WRITERS])
def test_the_trunks_mask_is_the_base_models_own(model_type: str) -> None:
    cut = Cut(1, 3)
    model = tiny_model(model_type).eval()
    batch = tiny_batch(model)
    seen: list[Tensor | None] = []
    hook = layers_of(model)[1].register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    model(**batch.inputs, **batch.labels)
    hook.remove()
    _, trunk = split(model, cut=cut)
    trunk.layers["1"].register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    trunk(torch.randn(3, 9, 32), lengths=batch.lengths)
    expected, found = seen
    assert expected is not None
    assert found is not None
    assert torch.equal(expected, found)
    assert expected.dtype == found.dtype


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", RELATIVE)
def test_the_trunks_bias_of_relative_positions_is_the_one_that_the_first_layer_hands_on(
    model_type: str, attention: str
) -> None:
    model = tiny_model(model_type, attention=attention).eval()
    batch = tiny_batch(model)
    seen: list[tuple[Tensor, Tensor]] = []
    hook = layers_of(model)[1].register_forward_pre_hook(lambda _, args: seen.append(args[1:3]))
    model(**batch.inputs, **batch.labels)
    hook.remove()
    _, trunk = split(model, cut=Cut(1, 3))
    for layer in trunk.layers.values():
        layer.register_forward_pre_hook(lambda _, args: seen.append(args[1:3]))
    trunk(torch.randn(3, 9, 32), lengths=batch.lengths)
    assert len(seen) == 3
    for mask, bias in seen[1:]:
        assert torch.equal(mask, seen[0][0])
        assert torch.equal(bias, seen[0][1])
        assert not bias.requires_grad


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", DECODERS)
def test_a_decoders_trunk_rebuilds_mask_positions_and_angles_as_its_base_model_makes_them(
    model_type: str, attention: str, joined: bool
) -> None:
    model = tiny_model(model_type, attention=attention).eval()
    model.config.joined_texts = joined
    batch = joined_batch() if joined else tiny_batch(model)
    seen: list[dict[str, object]] = []

    def look(_: object, args: tuple[Tensor, ...], kwargs: dict[str, object]) -> None:
        mask = {"attention_mask": args[2]} if model_type == "gpt2" and len(args) > 1 else {}
        seen.append({**kwargs, **mask})

    hook = layers_of(model)[1].register_forward_pre_hook(look, with_kwargs=True)
    model(**batch.inputs)
    hook.remove()
    _, trunk = split(model, cut=Cut(1, 3))
    trunk.layers["1"].register_forward_pre_hook(look, with_kwargs=True)
    trunk(torch.randn(*batch.inputs["input_ids"].shape, 32), lengths=batch.lengths)
    expected, found = seen
    assert isinstance(expected["attention_mask"], Tensor)
    for name, value in found.items():
        ours = value if isinstance(value, tuple) else (value,)
        theirs = expected[name] if isinstance(value, tuple) else (expected[name],)
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other), name
            assert one.dtype == other.dtype
    assert ("position_embeddings" in found) == (model_type != "gpt2")


def test_a_text_that_is_joined_to_others_gives_what_it_gives_alone() -> None:
    model = tiny_model("llama", attention="eager").eval()
    batch = joined_batch(lengths=(4, 3, 5, 2), width=8)
    logits_BTV = model(**batch.inputs).logits
    ids = batch.inputs["input_ids"]
    for row, first, length in ((0, 0, 4), (0, 4, 3), (1, 0, 5), (1, 5, 2)):
        alone = model(input_ids=ids[row : row + 1, first : first + length]).logits[0]
        assert torch.allclose(logits_BTV[row, first : first + length], alone, atol=1e-6)


@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
def test_a_batch_without_padding_runs_without_a_mask_on_both_sides(model_type: str) -> None:
    cut = Cut(1, 3)
    model = tiny_model(model_type).eval()
    batch = tiny_batch(model, lengths=(9, 9))
    seen: list[Tensor | None] = []
    for layer in layers_of(model):
        layer.register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    model(**batch.inputs)
    _, trunk = split(model, cut=cut)
    trunk(torch.randn(2, 9, 32), lengths=batch.lengths)
    assert seen == [None] * 6


def test_a_bias_larger_than_a_machine_is_the_peers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    _, trunk = split(tiny_model("t5").eval(), cut=Cut(1, 3))
    monkeypatch.setattr("splitlearn.split.trunk.MAX_SCORES", 2 * 4 * 5**2)
    assert trunk(torch.zeros(2, 5, 32), lengths=(5, 3)).shape == (2, 5, 32)
    with pytest.raises(WireError, match="3 texts padded to 5 tokens, which have 300 pairs"):
        trunk(torch.zeros(3, 5, 32), lengths=(5, 3, 1))


def test_zeros_added_to_what_a_memory_scores_are_as_much_of_a_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, trunk = split(crossed_model("t5").eval(), cut=Cut(1, 3))
    monkeypatch.setattr("splitlearn.split.trunk.MAX_SCORES", 2 * 4 * 5 * 7)
    h_BUD = torch.zeros(2, 5, 32)
    near, far = (Beside(torch.zeros(2, width, 32), (width, 3)) for width in (7, 8))
    assert trunk(h_BUD, lengths=(5, 3), beside=near).shape == (2, 5, 32)
    with pytest.raises(WireError, match="2 texts padded to 8 tokens, which have 320 pairs"):
        trunk(h_BUD, lengths=(5, 3), beside=far)


@pytest.mark.parametrize("make", [tiny_model, crossed_model])
def test_a_bias_of_tokens_after_others_is_that_of_the_last_rows(
    make: Callable[[str], PreTrainedModel],
) -> None:
    _, trunk = split(make("t5").eval(), cut=Cut(1, 3))
    whole = trunk._bias(torch.zeros(1, 7, 32))
    assert torch.equal(trunk._bias(torch.zeros(1, 2, 32), had=5), whole[:, :, 5:])


def test_a_decoders_bias_tells_apart_only_what_comes_before_a_token() -> None:
    _, trunk = split(crossed_model("t5").eval(), cut=Cut(1, 3))
    _, encoder = split(tiny_model("t5").eval(), cut=Cut(1, 3))
    for each, alike in ((trunk, True), (encoder, False)):
        assert each.table is not None
        bias_TT = each.table.compute_bias(7, 7)[0, 0]
        after = torch.triu_indices(7, 7, offset=1)
        assert (bias_TT[*after].unique().numel() == 1) is alike
        assert bias_TT[:, 0].unique().numel() > 3
