"""From files to a run: what is offered, what is refused before anything starts, whose folder it is."""

import json
from pathlib import Path

import pytest
import torch

from splitlearn import policy
from splitlearn.engine.job.prepare import Prepared, check_policy, prepare, specs, unsplit
from splitlearn.engine.payloads import exchange
from splitlearn.engine.plain import evaluate_plain, train_plain
from splitlearn.errors import AuditError, ManifestError, RefusedError
from splitlearn.manifest import load_job
from splitlearn.roles import Kind
from splitlearn.split import GROUPS, build_trunk, digest, load_layers_from_folder
from splitlearn.split.stage import remote_stages
from splitlearn.wire import frames
from tests.jobs import CAUSAL, LABELS, make_job
from tests.rig import POLICIES, run_in_memory

Changes = dict[str, dict[str, object]]
PCA: Changes = {"cut.upper": {"method": "pca", "rank": 4, "public_text": "public.txt"}}


def prepared(folder: Path, changes: Changes | None = None) -> Prepared:
    return prepare(load_job(make_job(folder, changes=changes)))


def test_an_offer_says_what_the_peer_has_to_know_and_no_more(tmp_path: Path) -> None:
    found = prepared(tmp_path)
    offer = found.run.offer
    assert (offer.run, offer.purpose, offer.mode) == ("films", "train", "full")
    assert (offer.cut.first, offer.cut.last) == (1, 3)
    assert not offer.returns_input_gradient
    assert offer.schedule.total_steps == found.data.steps.total == 3
    layers = load_layers_from_folder(tmp_path / "model", model=offer.model, cut=offer.cut)
    assert offer.layers == digest(layers)
    raw = frames.encode(Kind.OFFER, seq=1, meta=offer)
    for secret in (*LABELS, str(tmp_path), "jsonl", "story", "vocab"):
        assert secret.encode() not in raw
    assert found.run.packed
    assert (found.run.every, found.run.deadline_s) == (2, 20.0)


def test_the_local_part_has_no_trunk_and_the_trunk_no_embeddings(tmp_path: Path) -> None:
    found = prepared(tmp_path, PCA)
    offer = found.run.offer
    names = set(build_trunk(offer.model, cut=offer.cut).state_dict())
    assert names == {name for group in found.run.groups.values() for name in group}
    assert all(name.startswith(("layers.1.", "layers.2.", "send.")) for name in names)
    _, whole = unsplit(load_job(tmp_path / "job.toml"))
    left = sum(p.numel() for p in found.model.parameters())
    taken = sum(t.numel() for t in found.run.groups["layers"].values())
    up = 4 * 32 + 32  # the receiving half of the low-rank cut
    assert left + taken == sum(p.numel() for p in whole.parameters()) + up
    assert (found.run.entrance, found.run.exit) == (32, 4)


@pytest.mark.parametrize(
    ("changes", "trains", "back"),
    [
        ({"cut": {"mode": "features"}}, {"encoder.layer", "pooler", "classifier"}, False),
        ({"cut": {"train_bottom": True}}, {"embeddings", "encoder.layer", "pooler"}, True),
    ],
    ids=["features", "bottom too"],
)
def test_a_mode_decides_what_trains_and_what_comes_back(
    tmp_path: Path, changes: Changes, trains: set[str], back: bool
) -> None:
    found = prepared(tmp_path, changes)
    trained = {name for name, p in found.model.named_parameters() if p.requires_grad}
    assert all(any(part in name for name in trained) for part in trains)
    assert any("embeddings" in name for name in trained) is back
    assert found.run.offer.returns_input_gradient is back


def test_the_same_files_give_the_same_offer_and_the_same_steps_twice(tmp_path: Path) -> None:
    job = load_job(make_job(tmp_path, changes=PCA))
    one, two = prepare(job), prepare(job)
    assert one.run.offer == two.run.offer
    for step in (2, 0, 1):
        for first, second in zip(one.data.steps(step), two.data.steps(step), strict=True):
            assert torch.equal(first.inputs["input_ids"], second.inputs["input_ids"])


def test_a_run_from_files_is_the_unsplit_run_from_the_same_files(tmp_path: Path) -> None:
    codecs: Changes = {
        "codec": dict.fromkeys(("activation", "output", "gradient", "input_gradient"), "identity"),
        "cut": {"train_bottom": True},
    }
    job = load_job(make_job(tmp_path, changes=codecs))
    found = prepare(job)
    result = run_in_memory(tmp_path / "parties", found.run, steps=found.data.steps)
    data, model = unsplit(job)
    optimiser, schedule = specs(job, steps=data.steps.total)
    losses = train_plain(
        model,
        steps=data.steps,
        optimiser=optimiser,
        schedule=schedule,
        seed=job.run.seed,
        observe=lambda _: None,
    )
    assert result.losses == losses
    outputs = evaluate_plain(model, batches=data.evaluation, observe=lambda _: None)
    assert sum(len(output["logits"]) for output in outputs) == 10


def begun(folder: Path) -> Prepared:
    """A run that has its first checkpoint."""
    made = prepared(folder)
    (folder / "run" / "checkpoints").mkdir()
    return made


def test_a_run_folder_belongs_to_one_run(tmp_path: Path) -> None:
    first = begun(tmp_path).run.offer
    assert prepared(tmp_path).run.offer.salt == first.salt
    assert prepared(tmp_path, {"run": {"deadline_s": 5.0}}).run.offer.salt == first.salt
    for changes in (
        {"optimiser": {"learning_rate": 2e-3}},
        {"run": {"seed": 1}},
        PCA,
    ):
        with pytest.raises(ManifestError, match="run of another job, model or data"):
            prepared(tmp_path, changes)
    elsewhere = prepared(tmp_path, {**PCA, "run": {"folder": "elsewhere"}}).run.offer
    assert elsewhere.salt != first.salt
    with (tmp_path / "model" / "config.json").open("a") as config:
        config.write("\n")
    with pytest.raises(ManifestError, match="another job, model or data"):
        prepared(tmp_path)


def test_a_job_that_never_began_may_be_corrected_in_its_folder(tmp_path: Path) -> None:
    first = prepared(tmp_path).run.offer
    corrected = prepared(tmp_path, {"run": {"seed": 1}}).run.offer
    assert corrected.salt != first.salt
    assert prepared(tmp_path, {"run": {"seed": 1}}).run.offer.salt == corrected.salt


def test_a_run_on_randomised_labels_keeps_true_and_used_ones_from_its_payloads(
    tmp_path: Path,
) -> None:
    found = prepared(tmp_path, {"privacy": {"label_epsilon": 0.1}})
    run_in_memory(tmp_path / "parties", found.run, steps=found.data.steps)
    (batch, *_) = found.data.steps(0)
    used, truth = exchange._private(batch).labels
    assert used.tolist() == batch.labels["labels"].tolist()
    assert truth.tolist() == batch.truth["labels"].tolist()


def test_noise_knows_how_long_an_epoch_is(tmp_path: Path) -> None:
    changes: Changes = {"privacy": {"gradient_clip": 0.7, "gradient_noise": 4.0}}
    noise = prepared(tmp_path, changes).run.noise
    assert noise is not None
    assert (noise.clip, noise.noise, noise.steps_per_epoch) == (0.7, 4.0, 3)


def test_other_training_data_in_the_same_run_folder_are_refused(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(ManifestError, match="another job, model or data"):
        prepare(load_job(make_job(tmp_path, examples=25)))


def test_the_salt_is_for_our_eyes_and_the_peers(tmp_path: Path) -> None:
    salt = prepared(tmp_path).run.offer.salt
    path = tmp_path / "run" / "run.json"
    assert json.loads(path.read_text())["salt"] == salt
    assert path.stat().st_mode & 0o077 == 0
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]


@pytest.mark.parametrize("text", ["", "{}", '{"salt": 1}', "not json"])
def test_a_damaged_claim_is_an_error_and_no_new_run(tmp_path: Path, text: str) -> None:
    prepared(tmp_path)
    (tmp_path / "run" / "run.json").write_text(text)
    with pytest.raises(AuditError, match="cannot be used"):
        prepared(tmp_path)


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(ManifestError, match=r"run\.folder .*run cannot be written"):
        prepared(tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"\n \n", "has no text"), (b"\xff\xfe", "UTF-8"), (b"a film\n", "fit a bottleneck of rank")],
    ids=["empty", "not text", "too little"],
)
def test_public_text_that_will_not_do_is_named(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    changes: Changes = {"cut.upper": {**PCA["cut.upper"], "rank": 16}}
    path = make_job(tmp_path, changes=changes)
    (tmp_path / "public.txt").write_bytes(content)
    with pytest.raises(ManifestError, match=sentence):
        prepare(load_job(path))


def test_a_cut_that_does_not_fit_the_model_is_refused_with_its_numbers(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"bottom = 3, top = -1"):
        prepared(tmp_path, {"cut": {"bottom": 3}})
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize(
    ("file", "changes", "sentence"),
    [
        ("strict.toml", {}, "gradient to go out"),
        ("compute.toml", {"cut": {"mode": "features"}}, "offer to go out"),
    ],
    ids=["gradients", "a compute party's policy"],
)
def test_a_policy_that_cannot_allow_the_job_is_refused_before_anything_is_sent(
    tmp_path: Path, file: str, changes: Changes, sentence: str
) -> None:
    offer = prepared(tmp_path, changes).run.offer
    with pytest.raises(RefusedError, match=sentence) as refused:
        check_policy(policy.load(POLICIES / file), offer)
    assert refused.value.rule == "no-rule"


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("strict.toml", {"cut": {"mode": "features"}}),
        ("demo.toml", {"cut": {"train_bottom": True}}),
    ],
    ids=["features", "full"],
)
def test_a_policy_that_allows_the_job_says_nothing(
    tmp_path: Path, file: str, changes: Changes
) -> None:
    check_policy(policy.load(POLICIES / file), prepared(tmp_path, changes).run.offer)


CHAIN: Changes = {"[chain]": {"party": "farm", "dial": "127.0.0.1:2", "first": 2}}


def test_a_chain_is_a_hop_for_each_party_with_its_own_layers_and_seed_and_salt(
    tmp_path: Path,
) -> None:
    found = prepared(tmp_path, {**CHAIN, "cut.upper": {"method": "sft", "rank": 4}})
    first, second = found.run.hops
    assert [(hop.offer.cut.first, hop.offer.cut.last) for hop in (first, second)] == [
        (1, 2),
        (2, 3),
    ]
    assert (found.cut.first, found.cut.last) == (1, 3)
    assert (first.offer.cut.upper.method, second.offer.cut.upper.method) == ("none", "sft")
    assert (first.exit, second.entrance, second.exit) == (32, 32, 4)
    assert first.offer.job == second.offer.job
    assert first.offer.seed != second.offer.seed
    assert first.offer.salt != second.offer.salt
    assert (first.offer.returns_input_gradient, second.offer.returns_input_gradient) == (
        False,
        True,
    )
    again = prepared(tmp_path, {**CHAIN, "cut.upper": {"method": "sft", "rank": 4}})
    assert [hop.offer for hop in again.run.hops] == [first.offer, second.offer]
    for hop in (first, second):
        trunk = build_trunk(hop.offer.model, cut=hop.offer.cut)
        assert set(trunk.state_dict()) == {n for g in GROUPS for n in hop.groups[g]}


def test_in_a_direct_chain_each_party_is_offered_its_neighbours_by_name(tmp_path: Path) -> None:
    changes: Changes = {"[chain]": {**CHAIN["[chain]"], "direct": True}}
    found = prepared(tmp_path, changes)
    first, second = (hop.offer.detail.hops for hop in found.run.hops)
    assert first is not None and second is not None  # noqa: PT018
    assert first.before is None and second.after is None  # noqa: PT018
    assert first.after is not None and second.before is not None  # noqa: PT018
    assert (first.after.party, second.before.party) == ("farm", "gpuhost")
    assert first.after.salt == second.before.salt
    assert first.after.salt not in {hop.offer.salt for hop in found.run.hops}
    assert len(remote_stages(found.model)) == 1
    relayed = prepared(tmp_path / "relayed", CHAIN)
    assert [hop.offer.detail.hops for hop in relayed.run.hops] == [None, None]
    assert len(remote_stages(relayed.model)) == 2


def test_the_basis_of_a_codec_goes_to_the_party_at_its_end_of_the_chain(tmp_path: Path) -> None:
    codec = {"activation": "pca-0.5", "output": "pca-0.5", "public_text": "public.txt"}
    first, second = prepared(tmp_path, {**CHAIN, "codec": codec}).run.hops
    assert set(first.groups["bases"]) == {"activation.mean", "activation.vectors"}
    assert set(second.groups["bases"]) == {"output.mean", "output.vectors"}


def test_a_chain_that_the_model_has_no_layers_for_is_refused(tmp_path: Path) -> None:
    table = {"party": "farm", "dial": "127.0.0.1:2", "first": 3}
    with pytest.raises(ManifestError, match=r"chain\.first is 3 for farm"):
        prepared(tmp_path, {"[chain]": table})


def test_every_offer_of_a_chain_is_held_against_the_policy(tmp_path: Path) -> None:
    changes: Changes = {**CHAIN, "cut": {"mode": "full"}, "cut.upper": {"method": "sft", "rank": 4}}
    hops = prepared(tmp_path, changes).run.hops
    with pytest.raises(RefusedError, match="input_gradient"):
        check_policy(policy.load(POLICIES / "standard.toml"), *(hop.offer for hop in hops))


def test_a_head_that_is_the_embeddings_is_not_trained_by_stale_steps(tmp_path: Path) -> None:
    stale = {"schedule": {"staleness": 1}, "cut": {"train_bottom": True}}
    job = make_job(tmp_path, family="gpt2", changes={**CAUSAL, **stale})
    with pytest.raises(ManifestError, match=r"schedule\.staleness is 1, and this model's head is"):
        prepare(load_job(job))
    job = make_job(tmp_path, family="gpt2", changes={**CAUSAL, "schedule": {"staleness": 1}})
    assert prepare(load_job(job)).run.offer.schedule.staleness == 1


def test_a_decoder_has_the_task_that_it_was_tried_with(tmp_path: Path) -> None:
    job = make_job(tmp_path, family="bart")
    with pytest.raises(
        ManifestError, match=r"model\.task is .*; of a bart model it takes sequence-to"
    ):
        prepare(load_job(job))
