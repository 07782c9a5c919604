"""Texts gone on with through two parties, against transformers' own loop over the unsplit model."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from splitlearn.audit.log import read_lines
from splitlearn.audit.records import Payload, decode
from splitlearn.channel import Channel, pair
from splitlearn.engine.conversation import talk
from splitlearn.engine.job.prepare import check_policy
from splitlearn.engine.payloads.weights import keep
from splitlearn.engine.trusted.engine import TrustedEngine
from splitlearn.engine.trusted.generation import Sampling
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.errors import ManifestError, RefusedError, SplitLearnError, WireError
from splitlearn.policy import load
from splitlearn.roles import Kind
from splitlearn.split.anatomy import layers_of
from splitlearn.split.cut import Bottleneck, Cut
from splitlearn.split.freeze import freeze
from splitlearn.split.lora import adapt, blocks_of, fold, targets_in
from splitlearn.split.stage import factor
from splitlearn.wire.messages import LoraSpec, StepTensor
from tests.chains import Host, chain_engine, chain_run, hosts
from tests.crossed import crossed_model
from tests.engine.compute.test_engine import desk_at, payload, rows
from tests.rig import (
    ADAMW,
    POLICIES,
    ComputeThread,
    Party,
    batch_of,
    compute_party,
    train_unsplit,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import DECODERS, WRITERS, tiny_batch, tiny_model

PROMPT = torch.tensor([[7, 11, 5, 9]])
TWO = torch.tensor([[7, 11, 5], [20, 6, 41]])
DRAWN = Sampling(tokens=9, temperature=1.5, top_p=0.9, seed=3)
STILL = msgspec.structs.replace(ADAMW, learning_rate=0.0)


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
    settings = {"mode": "features", "train_bottom": False, "optimiser": STILL}
    return trusted_run(model, cut=Cut(1, 3), total=1, **settings)


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


def both_ways(
    folder: Path, model_type: str, sampling: Sampling
) -> tuple[list[Tensor], list[Tensor], list[tuple[Tensor, list[Tensor]]]]:
    """Two batches gone on with, split: texts, and logits of each step; then both of the unsplit model."""
    model = tiny_model(model_type)
    whole = copy.deepcopy(model)
    run = run_of(model)
    said: list[Tensor] = []
    hook = model.get_output_embeddings().register_forward_hook(lambda _, __, out: said.append(out))
    with at_work(folder, run) as engine:
        said.clear()
        found = engine.generate([PROMPT, TWO], sampling=sampling)
    hook.remove()
    return found, said, [unsplit(whole, ids, sampling) for ids in (PROMPT, TWO)]


@pytest.mark.parametrize("sampling", [Sampling(tokens=9), DRAWN], ids=["likeliest", "drawn"])
@pytest.mark.parametrize("model_type", DECODERS)
def test_tokens_and_logits_are_those_of_the_unsplit_model_with_its_cache(
    tmp_path: Path, model_type: str, sampling: Sampling
) -> None:
    """Mistral's window is 4 tokens: what it drops is dropped at both parties."""
    found, said, expected = both_ways(tmp_path, model_type, sampling)
    for one, (other, _) in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert one.shape[1] > 4
    logits = [step for _, steps in expected for step in steps]
    assert len(said) == len(logits)
    assert all(map(torch.equal, said, logits))


@pytest.mark.parametrize(
    "sampling",
    [Sampling(tokens=9), DRAWN, Sampling(tokens=9, beams=3)],
    ids=["likeliest", "drawn", "beams"],
)
@pytest.mark.parametrize("model_type", WRITERS)
def test_a_decoder_above_a_remote_encoder_says_what_the_unsplit_model_says(
    tmp_path: Path, model_type: str, sampling: Sampling
) -> None:
    """Each text goes through the encoder once; the decoder needs nobody."""
    found, said, expected = both_ways(tmp_path, model_type, sampling)
    assert all(torch.equal(one, other) for one, (other, _) in zip(found, expected, strict=True))
    assert [one[:, 0].tolist() for one in found] == [[2], [2, 2]]  # where a decoder begins
    logits = [step for _, steps in expected for step in steps]
    assert len(said) == len(logits) > 4
    assert all(map(torch.equal, said, logits))
    assert activations(tmp_path / "clinic") == [(4, 4), (6, 3)]


def activations(party: Path) -> list[tuple[int, int]]:
    """Rows of each message that left while texts were generated, and the longest text in it."""
    records = [decode(line) for line, _ in read_lines(party / "audit")]
    return [
        (r.rows, r.longest)
        for r in records
        if isinstance(r, Payload) and (r.phase, r.direction) == ("generate", "out")
    ]


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "bart-decoder"])
def test_a_run_with_adapters_goes_on_as_the_unsplit_model_and_as_the_merged_one(
    tmp_path: Path, model_type: str
) -> None:
    cut, (name, _, stack) = Cut(1, 3), model_type.partition("-")
    model = crossed_model(name) if stack else tiny_model(name)
    base, whole = copy.deepcopy(model), copy.deepcopy(model)
    targets = targets_in(layers_of(model)[1], which="all")
    spec = LoraSpec(rank=4, alpha=8.0, dropout=0.0, targets=targets, seed=5)
    fast = msgspec.structs.replace(ADAMW, learning_rate=0.02)
    run = trusted_run(
        model, cut=cut, total=3, mode="lora", train_bottom=False, optimiser=fast, lora=spec
    )
    adapt(blocks_of(whole, cut=cut, where="trunk", train_bottom=False), spec)
    freeze(whole, cut=cut, mode="lora", train_bottom=False)
    train_unsplit(whole, run, steps=lambda _: [batch_of(tiny_batch(base))])
    sampling = Sampling(tokens=9)
    with at_work(tmp_path, run) as engine:
        (found,) = engine.generate([TWO], sampling=sampling)
    assert torch.equal(found, unsplit(whole, TWO, sampling)[0])
    fold(whole)
    assert torch.equal(found, unsplit(whole, TWO, sampling)[0])
    assert not torch.equal(found, unsplit(base, TWO, sampling)[0])


@pytest.mark.parametrize(
    ("model_type", "counts"), [("gpt2", [4, 1]), ("llama", [4, 1]), ("bart", [4, 6])]
)
def test_a_text_goes_on_through_a_chain_of_two_compute_parties(
    tmp_path: Path, model_type: str, counts: list[int]
) -> None:
    """Each keeps the keys and values of its own layers; the second party has two."""
    model = tiny_model(model_type)
    whole, local = copy.deepcopy(model), copy.deepcopy(model)
    run = chain_run(
        local,
        cut=Cut(1, 4),
        starts=(2,),
        total=1,
        mode="features",
        train_bottom=False,
        optimiser=STILL,
    )
    found, parties = said_over_a_chain(tmp_path, run, whole)
    for one, ids in zip(found, (PROMPT, TWO), strict=True):
        assert torch.equal(one, unsplit(whole, ids, DRAWN)[0])
    first, second = (activations(host.clinic.folder) for host in parties)
    assert first == second
    assert [count for count, _ in first[:2]] == counts


def said_over_a_chain(
    place: Path, run: TrustedRun, whole: nn.Module, heard: Callable[[Tensor], None] | None = None
) -> tuple[list[Tensor], list[Host]]:
    """PROMPT and TWO gone on with after a step of training, and who was there. heard: gets all logits."""
    for purpose in ("train", "generate"):
        offered = chain_offered(run, purpose)
        parties = hosts(place, offered, policy="research.toml")
        engine = chain_engine(place, offered, parties)
        if purpose == "train":
            engine.train(lambda _: [batch_of(tiny_batch(whole))])
        else:
            if heard is not None:
                words = run.local.get_output_embeddings()
                words.register_forward_hook(lambda _, __, out: heard(out))
            found = engine.generate([PROMPT, TWO], sampling=DRAWN)
        engine.finish()
        engine.end(None)
        for host in parties:
            host.close()
    return found, parties


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
    assert activations(tmp_path / "clinic") == [(6, 3), (2, 4), (2, 5), (2, 6), (2, 7)]


def test_long_texts_are_settled_on_their_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk, "SETTLE_MESSAGES", 6)
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


def test_an_encoder_below_a_decoder_is_sent_whole_texts_and_keeps_nothing_of_them(
    tmp_path: Path,
) -> None:
    run = run_of(tiny_model("t5"))
    desk = desk_at(tmp_path)
    desk.engine._overlap = False  # it answers before it hears the next one
    keep(desk.place.received, run.groups["layers"], name=run.offer.layers)
    desk.agree(offered(run, "generate").offer)
    whole = StepTensor(0, 0, 1, "generate", 3, False, (3, 3), 0)
    next_ones = msgspec.structs.replace(whole, width=1, lengths=(4, 4))
    desk.say(Kind.ACTIVATION, whole, payload(rows(6)))
    desk.say(Kind.ACTIVATION, next_ones, payload(rows(2)))
    answered = desk.fails(WireError, "2 examples padded to 1 takes 2 rows")
    assert answered == [Kind.ACCEPT, Kind.READY, Kind.OUTPUT]


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


def test_of_a_decoder_above_an_encoder_they_say_where_it_begins_and_what_it_may_not_say() -> None:
    model = tiny_model("marian")
    own = model.generation_config
    own.num_beams, own.length_penalty, own.max_length = 4, 0.1, 512
    own.bad_words_ids, own.forced_eos_token_id, own.decoder_start_token_id = [[1]], 3, 1
    made = Sampling(tokens=7, beams=2).config(model)
    assert (made.bad_words_ids, made.forced_eos_token_id) == ([[1]], 3)
    assert (made.decoder_start_token_id, made.pad_token_id, made.num_beams) == (1, 1, 2)
    assert (made.max_new_tokens, made.length_penalty) == (7, None)


def test_beams_are_refused_where_peers_keep_what_they_have_of_a_text() -> None:
    with pytest.raises(ManifestError, match="3 beams cannot be tried over a llama model"):
        Sampling(tokens=7, beams=3).config(tiny_model("llama"))


@pytest.mark.parametrize("beams", [1, 3])
def test_texts_said_while_scoring_are_the_unsplit_models_and_cost_no_message(
    tmp_path: Path, beams: int
) -> None:
    """Several texts side by side, padded on the right; T5's padding is past its table's last bucket."""
    model = tiny_model("t5")
    whole, saying = copy.deepcopy(model).eval(), Sampling(tokens=7, beams=beams)
    run = trusted_run(model, cut=Cut(1, 3), total=1)
    rows = [batch_of(tiny_batch(whole, seed=seed)) for seed in (3, 4)]
    parties = trusted_party(tmp_path), compute_party(tmp_path)
    ours, theirs = pair()
    ComputeThread(parties[1], theirs)
    engine = trusted_engine(run, parties[0], ours)
    found = engine.evaluate(rows, saying=saying)
    sent = engine.sent[Kind.ACTIVATION]
    alone = engine.evaluate(rows)
    assert engine.sent[Kind.ACTIVATION] == 2 * sent
    for batch, one, other in zip(rows, found, alone, strict=True):
        said = whole.generate(**batch.inputs, generation_config=saying.config(whole))
        assert torch.equal(one.pop("said"), said)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in other)
