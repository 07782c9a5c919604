"""What a job will need, told beforehand: held against real codecs and against the log of a real run."""

import json
from pathlib import Path

import msgspec
import pytest
import torch

from splitlearn.audit import Payload
from splitlearn.codecs import NAMES, NOBODY, Basis, Delta, build
from splitlearn.engine.job.prepare import check_policy, prepare
from splitlearn.errors import ManifestError, RefusedError
from splitlearn.manifest import load_job
from splitlearn.policy import (
    STEP_KINDS,
    Plan,
    Verdict,
    foresee,
    lasts,
    load,
    plan_of_offer,
    plans_of_job,
)
from splitlearn.policy.forecast import _dtypes, _sizes, _wire_bytes
from splitlearn.roles import MAY_SEND, Kind, Role
from splitlearn.wire import frames, tensors
from splitlearn.wire.messages import StepTensor
from tests.codecs.test_delta import Shelf
from tests.door import POLICIES, records
from tests.jobs import PAIRS, Changes, make_job
from tests.rig import run_in_memory

NARROW: Changes = {"cut.upper": {"method": "sft", "rank": 4}}
BOTTOM: Changes = {**NARROW, "cut": {"train_bottom": True}}
CLIPPED: Changes = {**BOTTOM, "optimiser": {"clip_norm": 1.0}}
FEATURES: Changes = {"cut": {"mode": "features"}}


def plan(folder: Path, changes: Changes | None = None) -> Plan:
    (only,) = plans_of_job(load_job(make_job(folder, changes=changes)))
    return only


def ask(folder: Path, policy: str, changes: Changes | None = None) -> tuple[Verdict, ...]:
    return foresee(load(POLICIES / f"{policy}.toml"), plan(folder, changes))


def rules_of(verdicts: tuple[Verdict, ...]) -> dict[str, list[str]]:
    return {
        f"{each.facts.kind} {each.facts.direction}": [refusal.rule for refusal in each.refusals]
        for each in verdicts
        if each.refusals
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_what_codecs_write_is_true_and_its_bytes_are_a_bound(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for rows, columns in ((1, 1), (7, 8), (64, 384), (513, 5)):
        x_ND = torch.randn(rows, columns, generator=generator) * 10.0 ** torch.arange(
            columns
        ).clamp(max=8)
        parts = build(name, basis=Basis(torch.zeros(columns), torch.eye(columns))).encode(x_ND)
        assert {part.dtype for part in parts} == _dtypes(name)
        meta = StepTensor(
            9_999_999, 4_096, 4_096, "evaluate", 131_072, True, (131_072,) * rows, 2**53
        )
        raw = frames.encode(Kind.ACTIVATION, seq=2**53, meta=meta, payload=tensors.encode(parts))
        assert len(raw) <= _wire_bytes(name, rows=rows, columns=columns)
        if not ("zstd" in name or "transform" in name):  # whose bytes depend on the content
            assert _wire_bytes(name, rows=rows, columns=columns) <= 1.1 * len(raw) + 512


def test_a_message_of_changes_is_within_its_bound_with_its_pseudonyms() -> None:
    shelf, spans = Shelf(), (1,) * 40
    for name in ("delta-int4", "delta-int2-g64+zstd"):
        delta = build(name)
        assert isinstance(delta, Delta)
        for samples in ((NOBODY,) * 40, tuple(bytes([i]) * 8 for i in range(40))):
            codec = delta.about(shelf, samples=samples, spans=spans, named=True)
            parts = codec.encode(torch.randn(40, 1, generator=torch.Generator().manual_seed(0)))
            assert {part.dtype for part in parts} <= _dtypes(name)
            meta = StepTensor(9, 0, 1, "train", 1, True, (1,) * 40, 2**53)
            raw = frames.encode(
                Kind.ACTIVATION, seq=2**53, meta=meta, payload=tensors.encode(parts)
            )
            assert len(raw) <= _wire_bytes(name, rows=40, columns=1, examples=40)


def test_every_kind_of_message_is_foreseen(tmp_path: Path) -> None:
    everything = ask(tmp_path, "research", CLIPPED)
    spoken = {
        kind for kind, pairs in MAY_SEND.items() if {Role.TRUSTED, Role.COMPUTE} in map(set, pairs)
    }
    assert {each.facts.kind for each in everything} == spoken
    assert rules_of(everything) == {}
    told = {(each.facts.kind, each.facts.direction) for each in ask(tmp_path, "strict", FEATURES)}
    left_out = {(each.facts.kind, each.facts.direction) for each in everything} - told
    assert left_out == {
        (Kind.GRADIENT, "out"),
        (Kind.INPUT_GRADIENT, "in"),
        (Kind.WEIGHTS, "in"),
        (Kind.NORM, "in"),
        (Kind.SCALE, "out"),
    }


def test_clipping_takes_two_messages_more_where_the_trunk_trains_and_none_elsewhere(
    tmp_path: Path,
) -> None:
    def kinds(changes: Changes) -> set[Kind]:
        return {each.facts.kind for each in ask(tmp_path, "research", changes)}

    assert kinds(CLIPPED) - kinds(BOTTOM) == {Kind.NORM, Kind.SCALE}
    frozen: Changes = {**FEATURES, "optimiser": {"clip_norm": 1.0}}
    assert kinds(frozen) == kinds(FEATURES)
    strict = ask(tmp_path, "strict", CLIPPED)
    assert rules_of(strict)["scale out"] == rules_of(strict)["norm in"] == ["no-rule"]


@pytest.mark.parametrize("changes", [CLIPPED, FEATURES], ids=["full", "features"])
def test_no_message_of_a_real_run_is_larger_or_other_than_was_foreseen(
    tmp_path: Path, changes: Changes
) -> None:
    job = load_job(make_job(tmp_path / "job", changes=changes))
    found = prepare(job)
    result = run_in_memory(tmp_path / "run", found.run, steps=found.data.steps)
    told = {
        (each.facts.kind, each.facts.direction): each.facts
        for each in foresee(load(POLICIES / "research.toml"), plans_of_job(job)[0])
    }
    logged = [one for one in records(result.trusted.log.folder) if isinstance(one, Payload)]
    assert len(logged) > 20
    for one in logged:
        facts = told[one.kind, one.direction]
        if one.direction == "out":  # what comes in is logged before its codec is asked
            assert (one.codec, one.columns) == (facts.codec, facts.columns)
        assert {part.dtype for part in one.parts} <= facts.dtypes
        assert one.rows <= facts.rows
        assert one.examples <= facts.examples
        assert one.longest <= facts.longest
        if facts.codec:
            assert one.wire_bytes <= facts.wire_bytes


@pytest.mark.parametrize("changes", [BOTTOM, FEATURES], ids=["full", "features"])
def test_a_job_and_its_offer_have_the_same_plan_but_for_sizes(
    tmp_path: Path, changes: Changes
) -> None:
    job = load_job(make_job(tmp_path, changes=changes))
    offered = plan_of_offer(prepare(job).run.offer)
    (told,) = plans_of_job(job)
    for name in ("mode", "returns_input_gradient", "narrow", "codecs", "columns", "rows"):
        assert getattr(offered, name) == getattr(told, name), name
    assert (told.examples, told.longest, told.unknown) == (8, 16, ())
    assert (offered.examples, offered.longest) == (0, 0)


def test_without_held_out_data_the_largest_message_is_a_micro_batch(tmp_path: Path) -> None:
    changes: Changes = {
        "data": {"evaluate": None},
        "schedule": {"batch_size": 10, "micro_batches": 4},
    }
    assert plan(tmp_path, changes).examples == 3


@pytest.mark.parametrize(
    ("policy", "changes", "refused"),
    [
        ("strict", None, {"gradient out": ["no-rule"], "weights in": ["no-rule"]}),
        ("strict", FEATURES, {}),
        ("standard", NARROW, {}),
        ("standard", BOTTOM, {"input_gradient in": ["no-rule"]}),
        (
            "standard",
            {**NARROW, "codec": {"gradient": "identity"}},
            {"gradient out": ["gradient.codecs"]},
        ),
        (
            "demo",
            {**NARROW, "data": {"max_length": 600}},
            {
                "activation out": ["activation.max_length"],
                "gradient out": ["gradient.max_length"],
                "output in": ["output.max_length"],
            },
        ),
    ],
    ids=["full", "features", "narrow", "bottom", "float32 gradient", "long texts"],
)
def test_each_shipped_policy_refuses_what_it_should(
    tmp_path: Path, policy: str, changes: Changes | None, refused: dict[str, list[str]]
) -> None:
    assert rules_of(ask(tmp_path, policy, changes)) == refused


def test_every_limit_that_a_message_goes_over_is_named(tmp_path: Path) -> None:
    changes: Changes = {
        "codec": {"activation": "fp16+zstd"},
        "data": {"max_length": 1_024},
        "schedule": {"batch_size": 512, "micro_batches": 1},
    }
    assert rules_of(ask(tmp_path, "strict", {**FEATURES, **changes}))["activation out"] == [
        f"activation.{limit}"
        for limit in ("codecs", "max_rows", "max_examples", "max_length", "max_message_bytes")
    ]


def test_weights_go_out_for_certain_only_through_a_narrow_cut(tmp_path: Path) -> None:
    for changes, certain in ((None, False), (NARROW, True)):
        verdicts = ask(tmp_path, "demo", changes)
        (weights,) = (
            each
            for each in verdicts
            if (each.facts.kind, each.facts.direction) == (Kind.WEIGHTS, "out")
        )
        assert weights.certain is certain
        assert all(each.certain for each in verdicts if each is not weights)


def test_a_hub_model_of_unknown_width_is_judged_by_all_but_its_columns(tmp_path: Path) -> None:
    changes: Changes = {**NARROW, "model": {"path": "someone/some-model"}}
    told = plan(tmp_path, changes)
    (sentence,) = told.unknown
    assert "someone/some-model" in sentence
    assert told.columns[Kind.ACTIVATION] == 0
    assert told.columns[Kind.GRADIENT] == 4
    assert rules_of(foresee(load(POLICIES / "standard.toml"), told)) == {}
    assert "gradient out" in rules_of(foresee(load(POLICIES / "strict.toml"), told))


def test_a_cut_that_the_model_has_no_layers_for_is_a_mistake_in_the_job(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"cut\.top"):
        plan(tmp_path, {"cut": {"bottom": 3}})


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (json.dumps({"hidden_size": 32, "num_hidden_layers": 4}), (32, 4)),
        (json.dumps({"dim": 16, "n_layers": 2}), (16, 2)),
        (json.dumps({"hidden_size": "32", "num_hidden_layers": True}), (0, 0)),
        ("[1]", (0, 0)),
        ("[" * 100_000, (0, 0)),
        ("\xff", (0, 0)),
        ("", (0, 0)),
    ],
    ids=["bert", "distilbert", "ill-typed", "a list", "deep", "no text", "empty"],
)
def test_a_config_is_read_as_json_and_never_trusted(
    tmp_path: Path, text: str, sizes: tuple[int, int]
) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    assert _sizes(str(tmp_path)) == sizes
    assert _sizes(str(tmp_path / "none")) == (0, 0)


def test_how_long_a_budget_lasts(tmp_path: Path) -> None:
    policy = load(POLICIES / "strict.toml")
    tight = msgspec.structs.replace(
        policy,
        rules=tuple(msgspec.structs.replace(rule, max_run_bytes=100_000) for rule in policy.rules),
    )
    (sent,) = (
        each
        for each in foresee(tight, plan(tmp_path, FEATURES))
        if each.facts.kind is Kind.ACTIVATION
    )
    assert lasts(sent, messages=2) == 100_000 // (2 * sent.facts.wire_bytes) == 8
    offer = foresee(tight, plan(tmp_path, FEATURES))[0]
    assert lasts(offer, messages=2) is None


CHAIN: Changes = {**FEATURES, "[chain]": {"party": "farm", "dial": "127.0.0.1:2", "first": 2}}


def test_each_party_of_a_chain_is_foreseen_with_its_own_hops(tmp_path: Path) -> None:
    lower = {"method": "pca", "rank": 8, "public_text": "public.txt"}
    changes: Changes = {
        **CHAIN,
        "cut": {"train_bottom": False},
        "cut.lower": lower,
        "cut.upper": {"method": "sft", "rank": 4},
        "codec": {"activation": "int4", "output": "bf16", "inner": "int8"},
    }
    first, second = plans_of_job(load_job(make_job(tmp_path, changes=changes)))
    assert (first.party, second.party) == ("gpuhost", "farm")
    assert (first.returns_input_gradient, second.returns_input_gradient) == (False, True)
    assert first.narrow
    assert second.narrow
    columns = {kind: (first.columns[kind], second.columns[kind]) for kind in first.columns}
    assert columns == {
        Kind.ACTIVATION: (8, 32),
        Kind.OUTPUT: (32, 4),
        Kind.GRADIENT: (32, 4),
        Kind.INPUT_GRADIENT: (8, 32),
    }
    assert [first.codecs[kind] for kind in (Kind.ACTIVATION, Kind.OUTPUT)] == ["int4", "int8"]
    assert [second.codecs[kind] for kind in (Kind.ACTIVATION, Kind.OUTPUT)] == ["int8", "bf16"]


def test_a_chain_does_not_get_past_a_limit_on_columns_between_two_parties(tmp_path: Path) -> None:
    """Each hop is rows that leave to a peer: the policy's limits are for every one of them."""
    narrow = {"method": "sft", "rank": 4}
    job = {**CHAIN, "cut": {"train_bottom": True}, "cut.lower": narrow, "cut.upper": narrow}
    plans = plans_of_job(load_job(make_job(tmp_path, changes=job)))
    standard = load(POLICIES / "standard.toml")
    tight = msgspec.structs.replace(
        standard,
        rules=tuple(
            msgspec.structs.replace(rule, max_columns=8)
            if rule.id in {"activation", "gradient"}
            else rule
            for rule in standard.rules
        ),
    )
    first, second = (rules_of(foresee(tight, plan)) for plan in plans)
    assert first["gradient out"] == ["gradient.max_columns"]
    assert second["activation out"] == ["activation.max_columns"]
    assert "activation out" not in first
    assert "gradient out" not in second


def test_in_a_direct_chain_each_party_is_foreseen_with_what_is_exchanged_with_it(
    tmp_path: Path,
) -> None:
    """So a policy that lets no wide gradient leave lets such a chain train, where it is narrow above."""
    standard = load(POLICIES / "standard.toml")
    tight = msgspec.structs.replace(
        standard,
        rules=tuple(
            msgspec.structs.replace(rule, max_columns=8) if rule.id == "gradient" else rule
            for rule in standard.rules
        ),
    )
    found = []
    for direct in (True, False):
        table = {**CHAIN["[chain]"], "direct": direct}
        job = load_job(make_job(tmp_path, changes={**NARROW, "[chain]": table}))
        found.append([foresee(tight, plan) for plan in plans_of_job(job)])
    (first, last), (relayed, _) = found
    rows = [{each.facts.kind for each in said if each.facts.rows} for said in (first, last)]
    assert rows == [{Kind.ACTIVATION}, {Kind.OUTPUT, Kind.GRADIENT}]
    assert rules_of(first) == rules_of(last) == {}
    assert rules_of(relayed)["gradient out"] == ["gradient.max_columns"]


@pytest.mark.parametrize("direct", [False, True])
def test_a_chains_offers_have_the_same_plans_as_its_job(tmp_path: Path, direct: bool) -> None:
    changes: Changes = {**BOTTOM, "[chain]": {**CHAIN["[chain]"], "direct": direct}}
    job = load_job(make_job(tmp_path, changes=changes))
    hops = prepare(job).run.hops
    for told, hop in zip(plans_of_job(job), hops, strict=True):
        offered = plan_of_offer(hop.offer)
        for name in ("mode", "returns_input_gradient", "narrow", "codecs", "columns"):
            assert getattr(offered, name) == getattr(told, name), name


def test_every_stage_of_codecs_is_judged_before_a_run(tmp_path: Path) -> None:
    path = make_job(tmp_path)
    path.write_text(
        path.read_text(encoding="utf-8")
        + '\n[[codec.stage]]\nafter = 0.5\nactivation = "topk-0.1"\ngradient = "int8"\n',
        encoding="utf-8",
    )
    rules, job = load(POLICIES / "demo.toml"), load_job(path)
    offer = prepare(job).run.offer
    assert [stage.step for stage in offer.detail.stages] == [2]
    for plan in (plans_of_job(job)[0], plan_of_offer(offer)):
        judged = [
            (each.facts.codec, [refusal.rule for refusal in each.refusals])
            for each in foresee(rules, plan)
            if each.facts.kind is Kind.ACTIVATION
        ]
        assert [codec for codec, _ in judged] == ["int8+zstd", "topk-0.1"]
        assert judged[0][1] == []
        assert judged[1][1] != []
    with pytest.raises(RefusedError, match=r"topk-0\.1"):
        check_policy(rules, offer)


@pytest.mark.parametrize(
    ("cut", "twice"),
    [
        ({"mode": "features"}, {Kind.ACTIVATION}),
        ({"mode": "full"}, {Kind.ACTIVATION}),
        (
            {"mode": "full", "train_bottom": True},
            {Kind.ACTIVATION, Kind.GRADIENT, Kind.INPUT_GRADIENT},
        ),
    ],
    ids=["features", "full", "bottom too"],
)
def test_rows_of_a_decoder_are_counted_with_those_of_its_encoder(
    tmp_path: Path, cut: dict[str, object], twice: set[Kind]
) -> None:
    changes: Changes = {**PAIRS, "cut": {"stack": "decoder", "top": 2, **cut}}
    job = load_job(make_job(tmp_path, changes=changes, family="bart"))
    (told,) = plans_of_job(job)
    assert told.columns[Kind.ACTIVATION] == 32
    assert told.beside == twice
    for verdict in foresee(load(POLICIES / "research.toml"), told):
        if verdict.facts.kind in STEP_KINDS:
            texts = 2 if verdict.facts.kind in twice else 1
            assert verdict.facts.rows == texts * told.examples * told.longest
    assert plan_of_offer(prepare(job).run.offer).beside == twice


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_decoders_layers_are_those_that_its_config_names(tmp_path: Path, family: str) -> None:
    changes: Changes = {**PAIRS, "cut": {"stack": "decoder", "top": 3}}
    with pytest.raises(ManifestError, match=r"a model of 2 layers"):
        plans_of_job(load_job(make_job(tmp_path, changes=changes, family=family)))


def test_a_t5_that_names_no_layers_of_a_decoder_has_as_many_as_its_encoder(tmp_path: Path) -> None:
    changes: Changes = {**PAIRS, "cut": {"stack": "decoder", "top": 5}}
    file = make_job(tmp_path, changes=changes, family="t5")
    config = tmp_path / "model" / "config.json"
    told = json.loads(config.read_text())
    del told["num_decoder_layers"]
    config.write_text(json.dumps(told))
    with pytest.raises(ManifestError, match=r"a model of 4 layers"):
        plans_of_job(load_job(file))


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_of_both_stacks_only_the_decoders_parties_get_rows_of_two_texts(
    tmp_path: Path, family: str
) -> None:
    changes: Changes = {
        **PAIRS,
        "cut": {"stack": "both", "top": 6},
        "[chain]": {"party": "farm", "dial": "127.0.0.1:2", "first": 5},
    }
    job = load_job(make_job(tmp_path, changes=changes, family=family))
    told = [plan.beside for plan in plans_of_job(job)]
    assert told == [frozenset(), {Kind.ACTIVATION, Kind.GRADIENT, Kind.INPUT_GRADIENT}]
    assert [plan_of_offer(hop.offer).beside for hop in prepare(job).run.hops] == told
