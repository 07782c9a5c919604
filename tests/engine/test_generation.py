"""Texts gone on with through two parties, against transformers' own loop over the unsplit model."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.audit.log import read_lines
from splitlearn.audit.records import Payload, decode
from splitlearn.channel import Channel, pair
from splitlearn.engine import line
from splitlearn.engine.generation import Sampling
from splitlearn.engine.plain import train_plain
from splitlearn.engine.prepare import check_policy
from splitlearn.engine.run import TrustedRun
from splitlearn.engine.trusted import TrustedEngine
from splitlearn.errors import RefusedError, SplitLearnError, WireError
from splitlearn.policy import load
from splitlearn.split.anatomy import layers_of
from splitlearn.split.cut import Bottleneck, Cut
from splitlearn.split.freeze import freeze
from splitlearn.split.lora import adapt, blocks_of, fold, targets_in
from splitlearn.split.stage import factor
from splitlearn.wire.messages import LoraSpec
from tests.chains import chain_engine, chain_run, hosts
from tests.rig import (
    ADAMW,
    POLICIES,
    ComputeThread,
    Party,
    batch_of,
    compute_party,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import DECODERS, tiny_batch, tiny_model

PROMPT = torch.tensor([[7, 11, 5, 9]])
TWO = torch.tensor([[7, 11, 5], [20, 6, 41]])
DRAWN = Sampling(tokens=9, temperature=1.5, top_p=0.9, seed=3)


def offered(run: TrustedRun, purpose: str) -> TrustedRun:
    return replace(run, offer=msgspec.structs.replace(run.offer, purpose=purpose))  # type: ignore[arg-type]


class Leaving(ComputeThread):
    """A compute party that hangs up when it has ended, so that nobody waits for it."""

    def __init__(self, party: Party, channel: Channel) -> None:
        self.channel = channel
        super().__init__(party, channel)

    def run(self) -> None:
        super().run()
        self.channel.close()


@contextmanager
def at_work(
    folder: Path, run: TrustedRun, *, policy: str = "research.toml", peers: str = "compute.toml"
) -> Iterator[TrustedEngine]:
    """A trusted engine that has a checkpoint, offering to generate, and its compute party in a thread."""
    parties = trusted_party(folder, policy=policy), compute_party(folder, policy=peers)
    ours, theirs = pair()
    thread = Leaving(parties[1], theirs)
    engine = trusted_engine(offered(run, "train"), parties[0], ours)
    engine.train(lambda _: [batch_of(tiny_batch(run.local))])
    engine.finish()
    thread.join(20)
    ours, theirs = pair()
    thread = Leaving(parties[1], theirs)
    engine = trusted_engine(offered(run, "generate"), parties[0], ours)
    try:
        yield engine
        engine.finish()
    except SplitLearnError as error:
        engine.end(error)
        ours.close()
        thread.join(20)
        if isinstance(error, RefusedError) or thread.error is None:
            raise
        raise thread.error from error
    finally:
        thread.join(20)
        for party in parties:
            party.log.close()


def run_of(model: PreTrainedModel) -> TrustedRun:
    """One step without any learning, so that the model is known."""
    cut = Cut(1, 3)
    still = msgspec.structs.replace(
        trusted_run(copy.deepcopy(model), cut=cut, total=1).offer.optimiser, learning_rate=0.0
    )
    sizes = {"mode": "features", "train_bottom": False, "optimiser": still}
    return trusted_run(model, cut=cut, total=1, **sizes)


def unsplit(
    model: PreTrainedModel, ids_BT: Tensor, sampling: Sampling
) -> tuple[Tensor, list[Tensor]]:
    """What transformers makes of it alone, and the logits of each step."""
    model.train(False)
    said: list[Tensor] = []
    hook = model.get_output_embeddings().register_forward_hook(lambda _, __, out: said.append(out))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sampling.seed)
        found = model.generate(
            ids_BT,
            attention_mask=torch.ones_like(ids_BT),
            generation_config=sampling.config(model),
        )
    hook.remove()
    return found, said


@pytest.mark.parametrize("sampling", [Sampling(tokens=9), DRAWN], ids=["likeliest", "drawn"])
@pytest.mark.parametrize("model_type", DECODERS)
def test_tokens_and_logits_are_those_of_the_unsplit_model_with_its_cache(
    tmp_path: Path, model_type: str, sampling: Sampling
) -> None:
    """Mistral's window is 4 tokens: what it drops is dropped at both parties."""
    model = tiny_model(model_type)
    whole = copy.deepcopy(model)
    run = run_of(model)
    said: list[Tensor] = []
    hook = model.get_output_embeddings().register_forward_hook(lambda _, __, out: said.append(out))
    with at_work(tmp_path, run) as engine:
        said.clear()
        found = engine.generate([PROMPT, TWO], sampling=sampling)
    hook.remove()
    expected = [unsplit(whole, ids, sampling) for ids in (PROMPT, TWO)]
    for one, (other, _) in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert one.shape[1] > 4
    logits = [step for _, steps in expected for step in steps]
    assert len(said) == len(logits)
    assert all(map(torch.equal, said, logits))


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_a_run_with_adapters_goes_on_as_the_unsplit_model_and_as_the_merged_one(
    tmp_path: Path, model_type: str
) -> None:
    cut, model = Cut(1, 3), tiny_model(model_type)
    base, whole = copy.deepcopy(model), copy.deepcopy(model)
    targets = targets_in(layers_of(model)[1], which="all")
    spec = LoraSpec(rank=4, alpha=8.0, dropout=0.0, targets=targets, seed=5)
    fast = msgspec.structs.replace(ADAMW, learning_rate=0.02)
    run = trusted_run(
        model, cut=cut, total=3, mode="lora", train_bottom=False, optimiser=fast, lora=spec
    )
    adapt(blocks_of(whole, cut=cut, where="trunk", train_bottom=False), spec)
    freeze(whole, cut=cut, mode="lora", train_bottom=False)
    train_plain(
        whole,
        steps=lambda _: [batch_of(tiny_batch(base))],
        optimiser=run.offer.optimiser,
        schedule=run.offer.schedule,
        seed=0,
        observe=lambda _: None,
    )
    sampling = Sampling(tokens=9)
    with at_work(tmp_path, run) as engine:
        (found,) = engine.generate([TWO], sampling=sampling)
    assert torch.equal(found, unsplit(whole, TWO, sampling)[0])
    fold(whole)
    assert torch.equal(found, unsplit(whole, TWO, sampling)[0])
    assert not torch.equal(found, unsplit(base, TWO, sampling)[0])


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_a_text_goes_on_through_a_chain_of_two_compute_parties(
    tmp_path: Path, model_type: str
) -> None:
    """Each keeps the keys and values of its own layers; the second party has two."""
    model = tiny_model(model_type)
    whole, local = copy.deepcopy(model), copy.deepcopy(model)
    still = msgspec.structs.replace(ADAMW, learning_rate=0.0)
    run = chain_run(
        local,
        cut=Cut(1, 4),
        starts=(2,),
        total=1,
        mode="features",
        train_bottom=False,
        optimiser=still,
    )
    for purpose in ("train", "generate"):
        parties = hosts(tmp_path, chain_offered(run, purpose), policy="research.toml")
        engine = chain_engine(tmp_path, chain_offered(run, purpose), parties)
        if purpose == "train":
            engine.train(lambda _: [batch_of(tiny_batch(whole))])
        else:
            found = engine.generate([PROMPT, TWO], sampling=DRAWN)
        engine.finish()
        engine.end(None)
        for host in parties:
            host.close()
    for one, ids in zip(found, (PROMPT, TWO), strict=True):
        assert torch.equal(one, unsplit(whole, ids, DRAWN)[0])
    sent = [
        [
            (r.kind.value, r.rows)
            for r in (decode(line) for line, _ in read_lines(host.clinic.folder / "audit"))
            if isinstance(r, Payload) and (r.phase, r.direction) == ("generate", "out")
        ]
        for host in parties
    ]
    assert sent[0] == sent[1]
    assert sent[0][:2] == [("activation", 4), ("activation", 1)]


def chain_offered(run: TrustedRun, purpose: str) -> TrustedRun:
    further = [
        replace(hop, offer=msgspec.structs.replace(hop.offer, purpose=purpose))  # type: ignore[arg-type]
        for hop in run.further
    ]
    return replace(offered(run, purpose), further=tuple(further))


def test_each_token_after_the_prompt_is_one_row_of_each_text(tmp_path: Path) -> None:
    run = run_of(tiny_model("llama"))
    with at_work(tmp_path, run) as engine:
        engine.generate([TWO], sampling=Sampling(tokens=5))
    records = [decode(line) for line, _ in read_lines(tmp_path / "clinic" / "audit")]
    rows = [
        (r.kind.value, r.rows, r.longest)
        for r in records
        if isinstance(r, Payload) and (r.phase, r.direction) == ("generate", "out")
    ]
    assert rows == [("activation", 6, 3), *(("activation", 2, n) for n in (4, 5, 6, 7))]


def test_long_texts_are_settled_on_their_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "SETTLE_MESSAGES", 6)
    model = tiny_model("llama")
    run = run_of(model)
    model.config.eos_token_id = None
    model.generation_config.eos_token_id = None
    with at_work(tmp_path, run) as engine:
        (found,) = engine.generate([PROMPT], sampling=Sampling(tokens=20))
        assert found.shape[1] == 24
        assert engine.sent.keys() >= {"settle"}
    kinds = [
        record.kind.value
        for record in (decode(line) for line, _ in read_lines(tmp_path / "clinic" / "audit"))
        if isinstance(record, Payload)
    ]
    assert kinds.count("settle") > 6


def test_a_narrow_decoder_goes_on_as_its_factored_model_does(tmp_path: Path) -> None:
    from splitlearn.split.bottleneck import fit_pca

    cut = Cut(2, 3, Bottleneck("pca", 6), Bottleneck("pca", 8))
    model = tiny_model("qwen2")
    text = [tiny_batch(model, seed=seed).inputs for seed in range(3)]
    bases = {
        "lower": fit_pca(model, text, layer=2, rank=6),
        "upper": fit_pca(model, text, layer=3, rank=8),
    }
    whole = factor(copy.deepcopy(model), cut=cut, bases=bases)
    run = trusted_run(model, cut=cut, total=1, mode="features", train_bottom=False, bases=bases)
    still = msgspec.structs.replace(run.offer.optimiser, learning_rate=0.0)
    run = replace(run, offer=msgspec.structs.replace(run.offer, optimiser=still))
    with at_work(tmp_path, run) as engine:
        (found,) = engine.generate([PROMPT], sampling=Sampling(tokens=6))
    assert torch.equal(found, unsplit(whole, PROMPT, Sampling(tokens=6))[0])


@pytest.mark.parametrize("at", ["trusted", "compute"])
def test_nothing_is_generated_that_a_policy_does_not_speak_of(tmp_path: Path, at: str) -> None:
    text = (POLICIES / "compute.toml").read_text(encoding="utf-8")
    silent = tmp_path / "silent.toml"
    silent.write_text(text.replace("generating = true", "generating = false"), encoding="utf-8")
    run = run_of(tiny_model("gpt2"))
    policies = {"policy": "demo.toml"} if at == "trusted" else {"peers": str(silent)}
    with pytest.raises(RefusedError) as caught, at_work(tmp_path, run, **policies) as engine:
        engine.generate([PROMPT], sampling=Sampling(tokens=3))
    assert caught.value.rule == ("activation" if at == "trusted" else "input") + ".generating"


def test_a_run_that_no_policy_lets_generate_is_refused_before_it_begins() -> None:
    run = offered(run_of(tiny_model("gpt2")), "generate")
    check_policy(load(POLICIES / "research.toml"), run.offer)
    with pytest.raises(
        RefusedError, match=r"a text that the model goes on with.*generating = true"
    ):
        check_policy(load(POLICIES / "demo.toml"), run.offer)


def test_an_encoder_that_is_to_go_on_with_texts_is_the_peers_fault(tmp_path: Path) -> None:
    run = run_of(tiny_model("bert"))
    expected = pytest.raises(WireError, match="bert model, which sees the tokens after")
    with expected, at_work(tmp_path, run) as engine:
        engine.generate([PROMPT], sampling=Sampling(tokens=3))


def test_the_models_own_settings_decide_only_where_a_text_ends() -> None:
    model = tiny_model("llama")
    model.generation_config.num_beams = 4
    model.generation_config.eos_token_id = [3, 8]
    made = Sampling(tokens=7).config(model)
    assert (made.max_new_tokens, made.do_sample, made.eos_token_id, made.pad_token_id) == (
        *(7, False, [3, 8]),
        3,
    )
    assert made.num_beams in (None, 1)
