import tracemalloc
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.errors import ManifestError, WireError
from splitlearn.split.blueprint import MAX_TRUNK_BYTES, build_trunk, trunk_model
from splitlearn.split.cut import Bottleneck, Cut, spec_of
from splitlearn.split.families import FAMILIES
from splitlearn.split.stage import factor, split
from splitlearn.wire.messages import CutSpec, TrunkModel
from tests.crossed import crossed_model
from tests.tiny import DECODERS, ENCODERS, RELATIVE, WRITERS, tiny_model

PCA, SFT = Bottleneck("pca", 6), Bottleneck("sft", 4)
CUT = Cut(1, 3)
GOOD = trunk_model(tiny_model("bert", dropout=0.1))


def with_field(name: str, value: Any) -> TrunkModel:
    return TrunkModel(model_type="bert", fields=GOOD.fields | {name: value})


@pytest.mark.parametrize("lower", [Bottleneck(), PCA, SFT], ids=lambda b: b.method)
@pytest.mark.parametrize("upper", [Bottleneck(), PCA, SFT], ids=lambda b: b.method)
@pytest.mark.parametrize("model_type", ENCODERS)
def test_a_built_trunk_has_the_weights_of_the_one_it_describes(
    model_type: str, lower: Bottleneck, upper: Bottleneck
) -> None:
    assert_built(model_type, lower=lower, upper=upper)


@pytest.mark.parametrize("lower", [Bottleneck(), PCA], ids=lambda b: b.method)
@pytest.mark.parametrize("model_type", [*DECODERS, *WRITERS])
def test_a_built_trunk_of_a_decoder_has_them_too(model_type: str, lower: Bottleneck) -> None:
    assert_built(model_type, lower=lower, upper=PCA)


def assert_built(model_type: str, *, lower: Bottleneck, upper: Bottleneck) -> None:
    from splitlearn.split.bottleneck import PcaBasis

    cut = Cut(2, 3, lower, upper)
    model = tiny_model(model_type)
    blueprint = trunk_model(model)
    basis = PcaBasis(mean=torch.zeros(32), components=torch.eye(32)[:6], kept=1.0)
    _, expected = split(
        factor(model, cut=cut, bases=dict.fromkeys(("lower", "upper"), basis)), cut=cut
    )
    found = build_trunk(blueprint, cut=spec_of(cut))
    assert [(n, p.shape) for n, p in found.named_parameters()] == [
        (n, p.shape) for n, p in expected.named_parameters()
    ]
    assert all(p.is_meta for p in found.parameters())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_a_blueprint_survives_the_wire(model_type: str, attention: str) -> None:
    blueprint = trunk_model(tiny_model(model_type, dropout=0.1, attention=attention))
    back = msgspec.msgpack.decode(msgspec.msgpack.encode(blueprint), type=TrunkModel)
    assert back == blueprint
    assert {k: type(v) for k, v in back.fields.items()} == {
        k: type(v) for k, v in blueprint.fields.items()
    }
    assert build_trunk(back, cut=spec_of(CUT)).config._attn_implementation == attention


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_a_trunk_holds_no_embedding_head_or_layer_of_its_neighbours(model_type: str) -> None:
    cut = Cut(1, 3, SFT, SFT) if model_type in ENCODERS else Cut(1, 2, PCA, PCA)
    trunk = build_trunk(trunk_model(tiny_model(model_type)), cut=spec_of(cut))
    tables = [m for m in trunk.modules() if isinstance(m, torch.nn.Embedding)]
    assert [table.num_embeddings for table in tables] == ([8] if model_type in RELATIVE else [])
    assert list(trunk.layers) == ["1"]
    parts = {"receive", "layers", "send", *(("table",) if model_type in RELATIVE else ())}
    assert {name.split(".")[0] for name in trunk.state_dict()} == parts


def test_a_blueprint_says_nothing_of_vocabulary_labels_or_positions() -> None:
    for family in FAMILIES.values():
        assert set(family.fields) <= {
            "layers",
            "width",
            "heads",
            "inner",
            "activation",
            "dropout",
            "attention-dropout",
            "norm-epsilon",
            "attention",
            "key-value-heads",
            "head-width",
            "rope-base",
            "window",
            "attention-bias",
            "inner-bias",
            "inner-dropout",
            "joined",
            "gated",
            "buckets",
            "distance",
        }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layers", 0),
        ("layers", 513),
        ("layers", 4.0),
        ("layers", True),
        ("width", 0),
        ("width", -32),
        ("width", 16_385),
        ("width", 33),
        ("heads", 0),
        ("heads", 5),
        ("heads", 1025),
        ("inner", 0),
        ("inner", 65_537),
        ("inner", "64"),
        ("activation", "gelu_new"),
        ("activation", "prelu"),
        ("activation", 3),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("dropout", float("nan")),
        ("dropout", True),
        ("attention-dropout", 1),
        ("norm-epsilon", 0.0),
        ("norm-epsilon", float("inf")),
        ("norm-epsilon", "1e-12"),
        ("attention", "flash-attention-2"),
        ("attention", "sdpa_paged"),
        ("attention", True),
    ],
)
def test_a_field_out_of_bounds_is_the_peers_fault_and_named(name: str, value: object) -> None:
    with pytest.raises(WireError, match=rf"bert trunk that cannot be: .*{name}"):
        build_trunk(with_field(name, value), cut=spec_of(CUT))


MISTRAL, LLAMA = trunk_model(tiny_model("mistral")), trunk_model(tiny_model("llama"))
T5, T5_ABOVE = trunk_model(tiny_model("t5")), trunk_model(crossed_model("t5"))


@pytest.mark.parametrize(
    ("model", "name", "value"),
    [
        (MISTRAL, "key-value-heads", 0),
        (MISTRAL, "key-value-heads", 3),
        (MISTRAL, "key-value-heads", 8),
        (MISTRAL, "head-width", 7),
        (MISTRAL, "head-width", 0),
        (MISTRAL, "head-width", 1025),
        (MISTRAL, "head-width", True),
        (MISTRAL, "rope-base", 0.5),
        (MISTRAL, "rope-base", 1e10),
        (MISTRAL, "rope-base", float("nan")),
        (MISTRAL, "rope-base", True),
        (MISTRAL, "window", -1),
        (MISTRAL, "window", 65_537),
        (MISTRAL, "window", 4.0),
        (LLAMA, "attention-bias", 1),
        (LLAMA, "inner-bias", "yes"),
        (LLAMA, "joined", 0),
        (LLAMA, "joined", None),
        (T5, "gated", 1),
        (T5, "buckets", 3),
        (T5, "buckets", 1025),
        (T5, "buckets", 28),  # of which a quarter is no less than the distance, 6
        (T5, "distance", 2),
        (T5, "distance", 2**20 + 1),
        (T5, "distance", 6.0),
        (T5, "head-width", 1),
        (T5, "head-width", 1025),
        (T5_ABOVE, "distance", 4),  # which is half of the buckets
        (T5_ABOVE, "buckets", 12),
        (T5_ABOVE, "layers", 513),
    ],
)
def test_a_decoders_field_out_of_bounds_is_the_peers_fault_and_named(
    model: TrunkModel, name: str, value: object
) -> None:
    bad = TrunkModel(model.model_type, model.fields | {name: value})  # type: ignore[dict-item]
    with pytest.raises(WireError, match=rf"{model.model_type} trunk that cannot be: .*{name}"):
        build_trunk(bad, cut=spec_of(CUT))


def test_heads_that_say_how_wide_they_are_need_not_divide_the_width() -> None:
    odd = TrunkModel("t5", T5.fields | {"heads": 3, "head-width": 7})
    trunk = build_trunk(odd, cut=spec_of(CUT))
    assert trunk.get_parameter("layers.1.layer.0.SelfAttention.q.weight").shape == (21, 32)
    assert trunk.get_parameter("table.relative_attention_bias.weight").shape == (8, 3)
    wide = TrunkModel("t5", T5.fields | {"heads": 128, "head-width": 1024})
    with pytest.raises(WireError, match="head-width is 1024, expected at most 512 with 128 heads"):
        build_trunk(wide, cut=spec_of(CUT))


@pytest.mark.parametrize("model_type", RELATIVE)
def test_both_kinds_of_feed_forward_parts_are_built(model_type: str) -> None:
    for kind, inner in (("relu", {"wi", "wo"}), ("gated-gelu", {"wi_0", "wi_1", "wo"})):
        blueprint = trunk_model(tiny_model(model_type, feed_forward_proj=kind))
        assert blueprint.fields["activation"] == ("relu" if kind == "relu" else "gelu-new")
        trunk = build_trunk(blueprint, cut=spec_of(CUT))
        part = trunk.layers["1"].get_submodule("layer.1.DenseReluDense")
        assert {name for name, _ in part.named_children()} == inner | {"dropout", "act"}


@pytest.mark.parametrize("width", [1, 2, 7, 40])
@pytest.mark.parametrize(("buckets", "distance"), [(4, 2), (5, 2), (1024, 257), (32, 2**20)])
def test_every_table_within_bounds_has_a_place_for_every_distance(
    buckets: int, distance: int, width: int
) -> None:
    for model, far in ((T5, distance), (T5_ABOVE, max(distance, buckets // 2 + 1))):
        fields = model.fields | {"buckets": buckets, "distance": far}
        table = build_trunk(TrunkModel(model.model_type, fields), cut=spec_of(CUT)).table
        assert table is not None
        table.relative_attention_bias = torch.nn.Embedding(buckets, 4)
        assert table.compute_bias(width, width).shape == (1, 4, width, width)


def test_a_cut_through_a_block_that_has_no_halves_is_the_peers_fault() -> None:
    with pytest.raises(WireError, match="llama has no blocks for it"):
        build_trunk(LLAMA, cut=spec_of(Cut(2, 3, SFT)))


def test_a_decoder_of_terabytes_is_refused_before_anything_is_built() -> None:
    sizes = {"layers": 512, "width": 16_384, "heads": 64, "head-width": 1024, "inner": 65_536}
    huge = TrunkModel("llama", LLAMA.fields | sizes | {"key-value-heads": 64})
    with pytest.raises(WireError, match=str(MAX_TRUNK_BYTES)):
        build_trunk(huge, cut=spec_of(Cut(1, 511)))


@pytest.mark.parametrize("name", sorted(GOOD.fields))
def test_a_missing_field_is_refused(name: str) -> None:
    fields = {key: value for key, value in GOOD.fields.items() if key != name}
    with pytest.raises(WireError, match="its fields are"):
        build_trunk(TrunkModel(model_type="bert", fields=fields), cut=spec_of(CUT))


@pytest.mark.parametrize("name", ["is-decoder", "vocabulary", "auto-map", "layers.1"])
def test_an_unknown_field_is_refused(name: str) -> None:
    with pytest.raises(WireError, match=f"its fields are .*{name}"):
        build_trunk(with_field(name, 1), cut=spec_of(CUT))


@pytest.mark.parametrize("model_type", ["opt", "bert-generation", "os", "BERT"])
def test_a_model_type_outside_the_table_is_refused(model_type: str) -> None:
    with pytest.raises(WireError, match="this version knows bart, bart-both, bart-decoder, bert"):
        build_trunk(TrunkModel(model_type=model_type, fields=GOOD.fields), cut=spec_of(CUT))


@pytest.mark.parametrize(
    "cut", [Cut(0, 2), Cut(3, 3), Cut(3, 2), Cut(1, 5), Cut(1, 2, Bottleneck("pca", 33))], ids=str
)
def test_a_cut_that_does_not_fit_is_the_peers_fault(cut: Cut) -> None:
    with pytest.raises(WireError, match="cannot be"):
        build_trunk(GOOD, cut=spec_of(cut))


def test_a_claim_of_terabytes_is_refused_before_anything_is_built() -> None:
    sizes = {"layers": 512, "width": 16_384, "heads": 16, "inner": 65_536}
    huge = TrunkModel(model_type="bert", fields=GOOD.fields | sizes)
    tracemalloc.start()
    with pytest.raises(WireError, match=str(MAX_TRUNK_BYTES)):
        build_trunk(huge, cut=spec_of(Cut(1, 511)))
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_the_largest_trunk_allowed_takes_no_memory_until_its_weights_come() -> None:
    sizes = {"layers": 48, "width": 2560, "heads": 32, "inner": 10_240}
    trunk = build_trunk(
        TrunkModel(model_type="bert", fields=GOOD.fields | sizes), cut=spec_of(Cut(1, 47))
    )
    assert sum(p.numel() * 4 for p in trunk.parameters()) > 10 * 2**30
    assert all(p.is_meta for p in trunk.parameters())


VALUES = st.one_of(
    st.booleans(),
    st.integers(0, 65_536),
    st.floats(),
    st.sampled_from(["gelu", "sdpa", "eager", "relu", "x"]),
)


@given(
    st.sampled_from([GOOD, MISTRAL, LLAMA, T5]),
    st.dictionaries(st.sampled_from(sorted({*LLAMA.fields, *T5.fields})), VALUES, max_size=4),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from(["none", "pca", "sft"]),
    st.integers(0, 40),
)
def test_no_offer_raises_anything_but_a_wire_error(
    good: TrunkModel, changes: dict[str, Any], first: int, last: int, method: Any, rank: int
) -> None:
    small = {key: min(value, 64) if type(value) is int else value for key, value in changes.items()}
    spec = msgspec.structs.replace(
        spec_of(Cut(first, last)), upper=spec_of(Cut(1, 2, Bottleneck(method, rank))).lower
    )
    assert isinstance(spec, CutSpec)
    try:
        trunk = build_trunk(TrunkModel(good.model_type, good.fields | small), cut=spec)
    except WireError:
        return
    assert all(p.is_meta for p in trunk.parameters())


def test_a_model_of_ours_in_half_precision_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"torch\.bfloat16; load it in float32"):
        trunk_model(tiny_model("bert").to(torch.bfloat16))


def test_a_model_of_ours_with_an_activation_outside_the_table_is_refused() -> None:
    model = tiny_model("bert")
    model.config.hidden_act = "laplace"
    with pytest.raises(ManifestError, match="activation is 'laplace', expected one of gelu"):
        trunk_model(model)
