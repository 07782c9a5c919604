"""A decoder's layers at the peer, the encoder and the rest here: ten steps are the unsplit ones to the bit.

First without a wire, gradients compared stage by stage; then through gates, logs, sessions and channels.
Gradients by the encoder's output come from layers on both sides of the cut, and are summed as one model
sums them.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.audit import reconcile, verify
from splitlearn.audit.findings import Exit
from splitlearn.channel import pair
from splitlearn.engine.job.merging import save_run
from splitlearn.engine.job.prepare import prepare, specs, unsplit
from splitlearn.engine.plain import evaluate_plain, train_plain
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.manifest import load_job
from splitlearn.split.anatomy import family_of
from splitlearn.split.blueprint import build_trunk, trunk_model
from splitlearn.split.crossing import Beside, Handover
from splitlearn.split.cut import Cut, spec_of
from splitlearn.split.freeze import Mode, freeze, set_training
from splitlearn.split.lora import Where, adapt, blocks_of
from splitlearn.split.merge import load_merged
from splitlearn.split.rows import pack, unpack
from splitlearn.split.stage import factor, remote_stage, split
from splitlearn.split.weights import load_weights, trunk_state
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import LoraSpec
from tests.chains import chain_run, run_chain, train_reseeded
from tests.crossed import Steps, both_model, crossed_model, crossed_steps, whole_weights
from tests.jobs import PAIRS, Changes, make_job
from tests.rig import (
    ComputeThread,
    compute_party,
    run_in_memory,
    train_unsplit,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import RELATIVE

# In the middle of four, and up to the head: there no layer of ours attends to the encoder above the cut.
CUTS = (Cut(1, 3), Cut(2, 4))
STEPS = 10
TYPES = ("bart", "marian", "t5", "mt5")


def in_hand(model: PreTrainedModel, batch: Batch, *, cut: Cut) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of a model that is taken apart, its two cuts and its encoder's end by hand."""
    blueprint = trunk_model(model)
    local, ours = split(factor(model, cut=cut, bases={}), cut=cut)
    trunk = build_trunk(blueprint, cut=spec_of(cut))
    load_weights(trunk, trunk_state(ours, group="layers"), group="layers")
    said = batch.labels["labels"] != -100
    lengths, width = tuple(said.sum(1).tolist()), said.shape[1]
    ends: list[Tensor] = []

    def hand_over(h_BSD: Tensor) -> Tensor:
        ends.extend((h_BSD, h_BSD.detach().requires_grad_()))
        return ends[1]

    def exchange(h_BUD: Tensor) -> Tensor:
        beside = unpack(
            pack(ends[1].detach(), lengths=batch.lengths),
            lengths=batch.lengths,
            width=ends[1].shape[1],
        ).requires_grad_()
        entered = unpack(
            pack(h_BUD.detach(), lengths=lengths), lengths=lengths, width=width
        ).requires_grad_()
        left = trunk(entered, lengths=lengths, beside=Beside(beside, batch.lengths))
        back = unpack(pack(left.detach(), lengths=lengths), lengths=lengths, width=width)
        ends.extend((h_BUD, beside, entered, left, back.requires_grad_()))
        return back

    (door,) = (module for module in local.modules() if isinstance(module, Handover))
    door.exchange, remote_stage(local).exchange = hand_over, exchange
    loss: Tensor = local(**batch.inputs, **batch.labels).loss
    loss.backward()
    left_BSD, leaf_BSD, h_BUD, beside, entered, left, back = ends
    sums = [] if leaf_BSD.grad is None else [leaf_BSD.grad]
    torch.autograd.backward([left, *([beside] if sums else [])], [back.grad, *sums])
    leaf_BSD.grad = None
    torch.autograd.backward([h_BUD, leaf_BSD], [entered.grad, beside.grad])
    torch.autograd.backward(left_BSD, leaf_BSD.grad)
    grads = {n: p.grad for n, p in local.named_parameters() if p.grad is not None}
    grads |= {f"trunk.{n}": p.grad for n, p in trunk.named_parameters() if p.grad is not None}
    return loss.detach(), grads


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut.first}-{cut.last}")
@pytest.mark.parametrize("model_type", TYPES)
def test_every_gradient_is_that_of_the_unsplit_model(
    model_type: str, cut: Cut, attention: str
) -> None:
    model = crossed_model(model_type, attention=attention)
    whole = copy.deepcopy(model)
    (batch,) = crossed_steps(model, micro=1)(0)
    for each in (model, whole):
        freeze(each, cut=cut, mode="full", train_bottom=True)
        set_training(each, training=True)
    loss, found = in_hand(model, batch, cut=cut)
    expected = whole(**batch.inputs, **batch.labels).loss
    expected.backward()
    assert torch.equal(loss, expected)
    grads = {n: p.grad for n, p in whole.named_parameters() if p.grad is not None}
    assert len(found) == len(grads)
    for name, gradient in grads.items():
        assert torch.equal(gradient, found[_named(name, model=whole, cut=cut)]), name


def _named(name: str, *, model: PreTrainedModel, cut: Cut) -> str:
    """Where a weight of the whole model is when it is taken apart."""
    layers = f"{family_of(model).layers}."
    before, _, after = name.partition(layers)
    if not after:
        return name
    index, _, rest = after.partition(".")
    layer = int(index)
    if layer in cut.whole:
        return f"trunk.layers.{layer}.{rest}"
    here = layer if layer < cut.first else layer - len(cut.whole) + 1
    return f"{before}{layers}{here}.{rest}"


def assert_the_unsplit_run(
    tmp_path: Path,
    run: TrustedRun,
    whole: PreTrainedModel,
    *,
    steps: Steps,
    cut: Cut,
    clip_norm: float | None = None,
) -> None:
    """whole: the same model, frozen and adapted alike."""
    before = offered(run)
    result = run_in_memory(tmp_path, run, steps=steps)
    expected = train_unsplit(whole, run, steps=steps, clip_norm=clip_norm)
    assert result.losses == expected
    if run.offer.detail.lora is not None:
        return
    trunk = before | result.trunk
    found = whole_weights(result.local, trunk, cut=cut, offers=[run.offer])
    assert_same(found, whole.state_dict())


def offered(run: TrustedRun) -> dict[str, Tensor]:
    """Copies of what the peers' layers begin with; not all of it trains and comes home."""
    return {name: t.clone() for hop in run.hops for name, t in hop.groups["layers"].items()}


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


@pytest.mark.parametrize(
    ("model_type", "cut", "micro", "mode", "train_bottom"),
    [
        ("bart", CUTS[0], 2, "full", True),
        ("bart", CUTS[1], 1, "full", True),
        ("bart", CUTS[0], 1, "full", False),
        ("marian", CUTS[0], 1, "full", True),
        ("marian", CUTS[1], 2, "full", True),
        ("marian", CUTS[0], 2, "features", False),
        ("t5", CUTS[0], 2, "full", True),
        ("t5", CUTS[1], 1, "full", False),
        ("t5-1.1", CUTS[0], 2, "full", True),
        ("mt5", CUTS[1], 2, "full", True),
        ("mt5", CUTS[0], 2, "features", False),
    ],
)
def test_ten_steps_over_a_link_are_the_unsplit_ones(
    tmp_path: Path, model_type: str, cut: Cut, micro: int, mode: Mode, train_bottom: bool
) -> None:
    model = crossed_model(model_type)
    whole, steps = copy.deepcopy(model), crossed_steps(model, micro=micro)
    freeze(whole, cut=cut, mode=mode, train_bottom=train_bottom)
    run = trusted_run(model, cut=cut, total=STEPS, mode=mode, train_bottom=train_bottom)
    assert_the_unsplit_run(tmp_path, run, whole, steps=steps, cut=cut)


TARGETS = ("self_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj", "fc1")
T5_TARGETS = (
    *("layer.0.SelfAttention.q", "layer.1.EncDecAttention.k", "layer.1.EncDecAttention.v"),
    "layer.2.DenseReluDense.wo",
)


@pytest.mark.parametrize(
    ("model_type", "where", "train_bottom", "micro"),
    [
        ("bart", "all", True, 2),
        ("marian", "trunk", False, 2),
        ("t5", "all", True, 2),
        ("mt5", "trunk", False, 1),
    ],
)
def test_adapters_in_a_decoder_train_as_in_the_unsplit_run(
    tmp_path: Path, model_type: str, where: Where, train_bottom: bool, micro: int
) -> None:
    model, cut = crossed_model(model_type), CUTS[0]
    targets = T5_TARGETS if model_type in RELATIVE else TARGETS
    spec = LoraSpec(rank=3, alpha=6.0, dropout=0.0, targets=targets, seed=5)
    whole, steps = copy.deepcopy(model), crossed_steps(model, micro=micro)
    adapt(blocks_of(whole, cut=cut, where=where, train_bottom=train_bottom), spec)
    freeze(whole, cut=cut, mode="lora", train_bottom=train_bottom)
    settings = {"mode": "lora", "train_bottom": train_bottom, "lora": spec, "where": where}
    run = trusted_run(model, cut=cut, total=STEPS, **settings)  # type: ignore[arg-type]
    assert_the_unsplit_run(tmp_path, run, whole, steps=steps, cut=cut)


def test_clipping_over_a_decoder_and_its_encoder_is_the_unsplit_models(tmp_path: Path) -> None:
    model, cut = crossed_model("bart"), CUTS[0]
    whole, steps = copy.deepcopy(model), crossed_steps(model)
    freeze(whole, cut=cut, mode="full", train_bottom=True)
    run = trusted_run(model, cut=cut, total=STEPS, clip_norm=0.4)
    assert_the_unsplit_run(tmp_path, run, whole, steps=steps, cut=cut, clip_norm=0.4)


@pytest.mark.parametrize(
    ("model_type", "train_bottom"), [("bart", True), ("bart", False), ("t5", True), ("mt5", False)]
)
def test_a_decoder_shared_out_in_a_chain_is_as_exact_with_dropout(
    tmp_path: Path, model_type: str, train_bottom: bool
) -> None:
    cut = Cut(1, 3)
    model = crossed_model(model_type, dropout=0.2)
    whole, steps = copy.deepcopy(model), crossed_steps(model)
    run = chain_run(model, cut=cut, starts=(2,), total=STEPS, train_bottom=train_bottom, seed=7)
    before = offered(run)
    ended = run_chain(tmp_path, run, steps=steps)
    losses, weights = train_reseeded(whole, steps=steps, run=run, cut=cut, starts=(2,))
    assert ended.losses == losses
    offers = [hop.offer for hop in run.hops]
    found = whole_weights(run.local, before | ended.trunk, cut=cut, offers=offers)
    assert_same(found, weights)


@pytest.mark.parametrize(
    ("model_type", "cut", "starts", "mode", "train_bottom"),
    [
        ("bart", Cut(1, 5), (4,), "full", True),
        ("marian", Cut(1, 6), (2, 4, 5), "full", True),
        ("bart", Cut(2, 5), (4,), "full", False),
        ("marian", Cut(1, 5), (4,), "features", False),
        ("t5", Cut(1, 6), (2, 4, 5), "full", True),
        ("mt5", Cut(2, 5), (4,), "full", False),
        ("t5-1.1", Cut(1, 5), (4,), "full", True),
        ("t5", Cut(1, 5), (4,), "features", False),
    ],
    ids=[
        *("two parties", "four", "frozen below", "features"),
        *("T5 at four", "mT5, frozen below", "T5 1.1", "T5, features"),
    ],
)
def test_an_encoder_and_its_decoder_at_different_parties_are_as_exact(
    tmp_path: Path,
    model_type: str,
    cut: Cut,
    starts: tuple[int, ...],
    mode: Mode,
    train_bottom: bool,
) -> None:
    """Of three layers each, counted on: those from 3 are the decoder's, whose first stays here."""
    model = both_model(model_type)
    whole, steps = copy.deepcopy(model), crossed_steps(model, micro=3)
    freeze(whole, cut=cut, mode=mode, train_bottom=train_bottom)
    run = chain_run(
        model, cut=cut, starts=starts, total=STEPS, mode=mode, train_bottom=train_bottom
    )
    before = offered(run)
    ended = run_chain(tmp_path, run, steps=steps)
    expected = train_unsplit(whole, run, steps=steps)
    assert ended.losses == expected
    offers = [hop.offer for hop in run.hops]
    found = whole_weights(run.local, before | ended.trunk, cut=cut, offers=offers)
    assert_same(found, whole.state_dict())
    for host in ended.hosts:
        ours, theirs = host.clinic.log.folder, host.party.log.folder
        assert verify(ours).ok
        assert reconcile(ours, theirs).exit is Exit.CLEAN


@pytest.mark.parametrize(("model_type", "micro"), [("bart", 2), ("t5", 3), ("mt5", 1)])
def test_adapters_at_two_parties_train_as_in_the_unsplit_run(
    tmp_path: Path, model_type: str, micro: int
) -> None:
    """At those of the encoder and of the decoder; what lies between them has none, and stands still."""
    model, cut = both_model(model_type), Cut(1, 5)
    targets = T5_TARGETS[:1] if model_type in RELATIVE else TARGETS[:1]
    spec = LoraSpec(rank=3, alpha=6.0, dropout=0.0, targets=targets, seed=5)
    whole, steps = copy.deepcopy(model), crossed_steps(model, micro=micro)
    adapt(blocks_of(whole, cut=cut, where="trunk", train_bottom=True), spec)
    freeze(whole, cut=cut, mode="lora", train_bottom=True)
    run = chain_run(model, cut=cut, starts=(4,), total=STEPS, mode="lora", lora=spec)
    ended = run_chain(tmp_path, run, steps=steps)
    assert ended.losses == train_unsplit(whole, run, steps=steps)


EXACT = dict.fromkeys(
    ("activation", "output", "gradient", "input_gradient", "inner", "inner_gradient"), "identity"
)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_job_over_both_stacks_is_the_unsplit_run_and_exports_a_plain_folder(
    tmp_path: Path, family: str
) -> None:
    changes: Changes = {
        **PAIRS,
        "cut": {"stack": "both", "top": 6, "train_bottom": True},
        "codec": EXACT,
        "[chain]": {"party": "farm", "dial": "127.0.0.1:2", "first": 5},
    }
    job = load_job(make_job(tmp_path, changes=changes, family=family))
    prepared = prepare(job)
    assert [(hop.offer.cut.first, hop.offer.cut.last) for hop in prepared.run.hops] == [
        (1, 4),
        (5, 6),
    ]
    ended = run_chain(tmp_path / "parties", prepared.run, steps=prepared.data.steps)
    data, model = unsplit(job)
    optimiser, schedule = specs(job, steps=data.steps.total)
    assert ended.losses == train_plain(
        model,
        steps=data.steps,
        optimiser=optimiser,
        schedule=schedule,
        seed=job.run.seed,
        observe=lambda _: None,
    )
    save_run(
        tmp_path / "out", job=job, prepared=prepared, state=offered(prepared.run) | ended.trunk
    )
    assert_same(load_merged(tmp_path / "out").state_dict(), model.state_dict())


@pytest.mark.parametrize("model_type", ["marian", "t5"])
def test_an_evaluation_gives_the_unsplit_models_losses(tmp_path: Path, model_type: str) -> None:
    model, cut = crossed_model(model_type), CUTS[0]
    whole, steps = copy.deepcopy(model), crossed_steps(model)
    rows = [steps(step)[0] for step in range(3)]
    run = trusted_run(model, cut=cut, total=1)
    ours, theirs = pair()
    thread = ComputeThread(compute_party(tmp_path), theirs)
    engine = trusted_engine(run, trusted_party(tmp_path), ours)
    found = engine.evaluate(rows)
    engine.finish()
    thread.join(20)
    assert thread.error is None
    for one, other in zip(
        found, evaluate_plain(whole, batches=rows, observe=lambda _: None), strict=True
    ):
        assert_same(one, other)


def test_a_run_that_was_killed_goes_on_to_the_undisturbed_ones_numbers(tmp_path: Path) -> None:
    steps, killed = crossed_steps(crossed_model("bart")), RuntimeError("killed")

    def made() -> TrustedRun:
        return trusted_run(crossed_model("bart", dropout=0.1), cut=CUTS[0], total=STEPS)

    def dying(step: int) -> Sequence[Batch]:
        if step == 6:  # two steps past a checkpoint
            raise killed
        return steps(step)

    undisturbed = run_in_memory(tmp_path / "one", made(), steps=steps)
    room, (ours, theirs) = tmp_path / "two", pair()
    party, peer = trusted_party(room), compute_party(room)
    thread = ComputeThread(peer, theirs, deadline_s=5)
    engine = trusted_engine(made(), party, ours)
    with pytest.raises(RuntimeError, match="killed"):
        engine.train(dying)
    engine.end(killed)
    ours.close()
    thread.join(20)
    party.log.close()
    peer.log.close()
    again = run_in_memory(room, made(), steps=steps)
    assert again.losses == undisturbed.losses
    assert_same(again.trunk, undisturbed.trunk)
