import pytest
import torch
from torch import nn

from splitlearn.errors import ManifestError
from splitlearn.split.anatomy import (
    base_of,
    empty_config,
    empty_layer,
    family_of,
    fields_of,
    hidden_of,
    layers_of,
    replace_layers,
    rotary_of,
    table_of,
)
from splitlearn.split.families import FAMILIES
from tests.tiny import DECODERS, ENCODERS, RELATIVE, TASKS, WRITERS, tiny_batch, tiny_model

FAMILY_NAMES = sorted(FAMILIES)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model_type", ENCODERS)
def test_every_family_finds_its_layers_below_every_head(model_type: str, task: str) -> None:
    model = tiny_model(model_type, task=task, layers=3)
    assert len(layers_of(model)) == model.config.num_hidden_layers == 3
    assert base_of(model).base_model_prefix == model.base_model_prefix


@pytest.mark.parametrize("model_type", FAMILY_NAMES)
def test_a_bare_model_is_its_own_base(model_type: str) -> None:
    base = base_of(tiny_model(model_type))
    assert base_of(base) is base
    assert len(layers_of(base)) == 4


@pytest.mark.parametrize("model_type", FAMILY_NAMES)
def test_a_layer_built_from_the_fields_has_the_weights_of_the_real_one(model_type: str) -> None:
    model = tiny_model(model_type)
    family = family_of(model)
    with torch.device("meta"):
        layer = empty_layer(family, empty_config(family, fields_of(family, model.config)), index=2)
    real = layers_of(model)[2]
    assert type(layer) is type(real)
    assert {n: p.shape for n, p in layer.named_parameters()} == {
        n: p.shape for n, p in real.named_parameters()
    }
    assert all(p.is_meta for p in layer.parameters())
    assert not list(layer.buffers())


@pytest.mark.parametrize("model_type", [*ENCODERS, *WRITERS])
def test_the_fields_decide_everything_that_a_layer_computes(model_type: str) -> None:
    more = {"layer_norm_epsilon": 1e-3} if model_type in RELATIVE else {}
    model = tiny_model(model_type, dropout=0.25, **more).eval()
    family = family_of(model)
    config = empty_config(family, fields_of(family, model.config))
    layer = empty_layer(family, config, index=1)
    layer.load_state_dict(layers_of(model)[1].state_dict())
    h_BTD = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    expected = hidden_of(layers_of(model)[1](h_BTD, None))
    assert torch.equal(hidden_of(layer.eval()(h_BTD, None)), expected)
    real = layers_of(model)[1]
    drops = [m.p for m in layer.modules() if isinstance(m, nn.Dropout)]
    assert drops == [m.p for m in real.modules() if isinstance(m, nn.Dropout)]
    assert epsilons(layer) == epsilons(real)
    assert epsilons(layer)


def epsilons(layer: nn.Module) -> list[float]:
    found = [getattr(m, "eps", getattr(m, "variance_epsilon", None)) for m in layer.modules()]
    return [epsilon for epsilon in found if epsilon is not None]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", DECODERS)
def test_the_fields_of_a_decoder_decide_everything_too(model_type: str, attention: str) -> None:
    model = tiny_model(model_type, dropout=0.25, attention=attention)
    family, real = family_of(model), layers_of(model)[1]
    config = empty_config(family, fields_of(family, model.config))
    layer = empty_layer(family, config, index=1)
    layer.load_state_dict(real.state_dict())
    h_BTD = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    given, rotary = {"attention_mask": None}, rotary_of(family, config)
    assert (rotary is None) == (model_type == "gpt2")
    if rotary is not None:
        places_BT = torch.arange(5)[None]
        given["position_embeddings"] = rotary(h_BTD, position_ids=places_BT)
        theirs = base_of(model).rotary_emb(h_BTD, position_ids=places_BT)
        assert all(map(torch.equal, given["position_embeddings"], theirs))
    for training in (False, True):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            expected = real.train(training)(h_BTD, **given)
            torch.manual_seed(1)
            assert torch.equal(layer.train(training)(h_BTD, **given), expected)


def test_what_a_config_leaves_to_the_library_is_what_the_library_takes() -> None:
    gpt2 = tiny_model("gpt2", n_inner=None)
    assert fields_of(family_of(gpt2), gpt2.config)["inner"] == 128
    assert layers_of(gpt2)[0].mlp.c_fc.weight.shape == (32, 128)
    qwen = tiny_model("qwen2")
    del qwen.config.head_dim  # as in every published one
    assert fields_of(family_of(qwen), qwen.config)["head-width"] == 8
    mistral = tiny_model("mistral", sliding_window=None)
    found = fields_of(family_of(mistral), mistral.config)
    assert (found["window"], found["joined"]) == (0, False)
    assert empty_config(family_of(mistral), found).sliding_window is None


@pytest.mark.parametrize(
    ("model_type", "more", "told"),
    [
        (
            "qwen2",
            {"use_sliding_window": True, "max_window_layers": 2},
            "use_sliding_window = True",
        ),
        (
            "qwen3",
            {"use_sliding_window": True, "max_window_layers": 2},
            "use_sliding_window = True",
        ),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("bart", {"encoder_layerdrop": 0.1}, "encoder_layerdrop = 0.1"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention = True"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "only plain rotary tables",
        ),
    ],
)
def test_what_cannot_be_rebuilt_at_a_peer_is_refused_by_name(
    model_type: str, more: dict[str, object], told: str
) -> None:
    with pytest.raises(ManifestError, match=told):
        family_of(tiny_model(model_type, **more))


@pytest.mark.parametrize("model_type", DECODERS)
def test_more_layers_than_the_config_counts_are_all_walked(model_type: str) -> None:
    model = tiny_model(model_type).eval()
    ids = torch.tensor([[5, 6, 7]])
    seen: list[int] = []
    layers = [*layers_of(model), *(_Counting(seen) for _ in range(4))]
    replace_layers(model, layers)
    model(input_ids=ids)
    assert len(seen) == 4


class _Counting(nn.Module):
    def __init__(self, seen: list[int]) -> None:
        super().__init__()
        self.seen = seen

    def forward(self, h_BTD: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        self.seen.append(len(self.seen))
        return h_BTD


def test_replaced_layers_are_what_the_model_runs() -> None:
    model = tiny_model("bert").eval()
    ids = torch.tensor([[5, 6, 7]])
    replace_layers(model, list(layers_of(model))[:2])
    short = base_of(model)(input_ids=ids).last_hidden_state
    replace_layers(model, [*layers_of(model), nn.Identity()])
    assert len(layers_of(model)) == 3
    assert short.shape == (1, 3, 32)


def test_a_model_without_a_row_is_refused_with_those_that_have_one() -> None:
    model = tiny_model("bert")
    model.config.model_type = "opt"
    with pytest.raises(
        ManifestError, match=r"'opt' cannot be cut; choose one of bart, bert, camembert"
    ):
        family_of(model)


@pytest.mark.parametrize(
    ("switch", "value"), [("is_decoder", True), ("chunk_size_feed_forward", 2)]
)
def test_a_config_that_changes_what_a_layer_does_is_refused(switch: str, value: int) -> None:
    model = tiny_model("bert")
    setattr(model.config, switch, value)
    with pytest.raises(ManifestError, match=f"{switch} = {value}"):
        family_of(model)


@pytest.mark.parametrize("model_type", RELATIVE)
def test_a_table_says_the_bias_that_the_first_layer_hands_on(model_type: str) -> None:
    model = tiny_model(model_type).eval()
    family = family_of(model)
    handed: list[torch.Tensor] = []
    hook = layers_of(model)[2].register_forward_pre_hook(lambda _, args: handed.append(args[2]))
    batch = tiny_batch(model)
    model(**batch.inputs, **batch.labels)
    hook.remove()
    config = empty_config(family, fields_of(family, model.config))
    table = table_of(family, config, first=layers_of(model)[0])
    assert table is not None
    assert torch.equal(table.compute_bias(9, 9), handed[0])
    assert handed[0].unique().numel() > 20  # four heads, seven or eight buckets
    assert [name for name, _ in table.named_parameters()] == ["relative_attention_bias.weight"]
    (copied,) = table.parameters()
    assert copied.data_ptr() not in {weight.data_ptr() for weight in model.parameters()}
    assert not copied.requires_grad
    empty = table_of(family, config)
    assert empty is not None
    assert all(weight.is_meta and not weight.requires_grad for weight in empty.parameters())
    assert table_of(FAMILIES["bart"], config) is None


@pytest.mark.parametrize("model_type", RELATIVE)
def test_what_stands_among_layers_that_hand_something_on_does_so_too(model_type: str) -> None:
    model = tiny_model(model_type).eval()
    batch = tiny_batch(model)
    expected = model(**batch.inputs, **batch.labels).logits
    first, *rest = layers_of(model)
    among = [_Counting([]), _Counting([])]
    for _ in range(2):  # once more changes nothing
        replace_layers(model, [first, among[0], *rest, among[1]])
    assert torch.equal(model(**batch.inputs, **batch.labels).logits, expected)
    assert [len(module._forward_hooks) for module in layers_of(model)] == [0, 1, 0, 0, 0, 1]
