"""Texts said by a decoder whose layers are at a peer, against transformers' own loop over the unsplit model.

The encoder's output goes there once, with the first token; each further token is one row.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.audit import reconcile, verify
from splitlearn.audit.findings import Exit
from splitlearn.channel import Released
from splitlearn.engine.events import Evaluated, Event, RolledBack
from splitlearn.engine.trusted.generation import Sampling
from splitlearn.errors import RefusedError
from splitlearn.gate import Gate, Private
from splitlearn.roles import Kind
from splitlearn.split.anatomy import cut_stack
from splitlearn.split.cut import Cut
from tests.chains import chain_engine, chain_run, hosts
from tests.crossed import both_model, crossed_model
from tests.engine.trusted.test_generation import (
    DRAWN,
    PROMPT,
    STILL,
    TWO,
    activations,
    at_work,
    chain_offered,
    run_of,
    said_over_a_chain,
    unsplit,
)
from tests.rig import batch_of
from tests.tiny import RELATIVE, tiny_batch

TYPES = ("bart", "marian", "t5")
LIKELIEST = Sampling(tokens=9)


def assert_the_unsplit_texts(
    found: list[Tensor], said: list[Tensor], whole: PreTrainedModel, sampling: Sampling
) -> None:
    expected = [unsplit(whole, ids, sampling) for ids in (PROMPT, TWO)]
    for one, (other, _) in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    logits = [step for _, steps in expected for step in steps]
    assert len(said) == len(logits) > 4
    assert all(map(torch.equal, said, logits))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("sampling", [LIKELIEST, DRAWN], ids=["likeliest", "drawn"])
@pytest.mark.parametrize("model_type", TYPES)
def test_tokens_and_logits_are_those_of_the_unsplit_model_with_its_cache(
    tmp_path: Path, model_type: str, sampling: Sampling, attention: str
) -> None:
    """T5 with as many layers in its encoder: the library's cache for its decoder has so many."""
    model = (
        both_model(model_type, layers=4, attention=attention)
        if model_type in RELATIVE
        else crossed_model(model_type, attention=attention)
    )
    cut_stack(model, "decoder")
    whole, said = copy.deepcopy(model), list[Tensor]()
    with at_work(tmp_path, run_of(model)) as engine:
        words = model.get_output_embeddings()
        hook = words.register_forward_hook(lambda _, __, out: said.append(out))
        found = engine.generate([PROMPT, TWO], sampling=sampling)
        hook.remove()
    assert_the_unsplit_texts(found, said, whole, sampling)
    # Rows of the memory with the first token, then one of each text.
    sent = activations(tmp_path / "clinic")
    firsts = [place for place, (rows, _) in enumerate(sent) if rows > 2]
    assert [sent[place] for place in firsts] == [(5, 4), (8, 3)]
    longer = [longest for _, longest in sent[1 : firsts[1]]]
    assert longer == list(range(2, 2 + len(longer)))


@pytest.mark.parametrize(
    ("model_type", "stack", "cut", "starts"),
    [
        ("bart", "decoder", Cut(1, 4), (2,)),
        ("bart", "both", Cut(1, 7), (5,)),
        ("marian", "both", Cut(1, 7), (2, 5, 6)),
        ("t5-1.1", "both", Cut(1, 7), (5, 6)),
    ],
    ids=["a decoder at two", "two stacks at two", "two stacks at four", "tables at three"],
)
def test_a_chain_says_what_the_unsplit_model_says(
    tmp_path: Path, model_type: str, stack: str, cut: Cut, starts: tuple[int, ...]
) -> None:
    made = crossed_model if stack == "decoder" else both_model
    model = made(model_type, layers=5 if stack == "decoder" else 4)
    whole, local, said = copy.deepcopy(model), copy.deepcopy(model), list[Tensor]()
    settings = {"mode": "features", "train_bottom": False, "optimiser": STILL}
    run = chain_run(local, cut=cut, starts=starts, total=1, **settings)  # type: ignore[arg-type]
    found, parties = said_over_a_chain(tmp_path, run, whole, said.append)
    assert_the_unsplit_texts(found, said, whole, DRAWN)
    for host in parties:
        ours, theirs = host.clinic.log.folder, host.party.log.folder
        assert verify(ours).ok
        assert reconcile(ours, theirs).exit is Exit.CLEAN
    crossed = [hop.offer.model.takes_memory(hop.offer.cut.first) for hop in run.hops]
    sent = [activations(host.clinic.folder) for host in parties]
    for each, decodes in zip(sent, crossed, strict=True):
        # A text goes through the encoder once.
        assert each[:2] == [(5, 4), (1, 2)] if decodes else each == [(4, 4), (6, 3)]


@pytest.mark.parametrize("killed", [0, 1], ids=["the encoder's party", "the decoder's party"])
def test_a_party_killed_in_the_middle_of_a_text_costs_only_time(
    tmp_path: Path, killed: int
) -> None:
    """What it kept of the text is not missed: all begin it again. The encoder's party is done by then, and
    that it was away is noticed when it is next spoken to.
    """
    model = both_model("bart")
    whole = copy.deepcopy(model)
    settings = {"mode": "features", "train_bottom": False, "optimiser": STILL}
    run = chain_run(model, cut=Cut(1, 5), starts=(4,), total=1, **settings)  # type: ignore[arg-type]
    parties = hosts(tmp_path, run, policy="research.toml")
    engine = chain_engine(tmp_path, run, parties)
    engine.train(lambda _: [batch_of(tiny_batch(whole))])
    engine.finish()
    engine.end(None)
    for host in parties:
        host.close()
    asked = chain_offered(run, "generate")
    parties, told = hosts(tmp_path, asked, policy="research.toml"), list[Event]()

    def killing(event: Event) -> None:
        told.append(event)
        if event == Evaluated(3) and told.count(event) == 1:
            parties[killed].killed()

    engine = chain_engine(tmp_path, asked, parties, observe=killing)
    found = engine.generate([TWO], sampling=DRAWN)
    engine.finish()
    engine.end(None)
    for host in parties:
        host.close()
    assert told.count(RolledBack(f"host{killed}")) == 1
    assert told.count(Evaluated(3)) == 1 + killed
    assert torch.equal(found[0], unsplit(whole, TWO, DRAWN)[0])


def test_the_gate_is_told_the_ids_of_the_text_for_its_memory_and_of_what_is_said_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Private] = []
    release = Gate.release

    def looking(gate: Gate, kind: Kind, **more: Any) -> Released:
        if kind is Kind.ACTIVATION and more["meta"].phase == "generate":
            asked.append(more["private"])
        return release(gate, kind, **more)

    monkeypatch.setattr(Gate, "release", looking)
    with at_work(tmp_path, run_of(crossed_model("bart"))) as engine:
        (found_BU,) = engine.generate([TWO], sampling=DRAWN)
    first, *later = asked
    assert first.memory is not None
    assert first.memory.ids.tolist() == TWO.tolist()
    assert [each.memory for each in later] == [None] * len(later)
    # All that it said but the last tokens, which nobody reads.
    read = torch.cat([torch.from_numpy(each.ids) for each in asked], dim=1)
    assert torch.equal(read, found_BU[:, :-1])


def test_ids_of_the_text_do_not_leave_among_the_rows_of_a_memory(tmp_path: Path) -> None:
    model = crossed_model("bart")
    texts = torch.arange(12).reshape(2, 6) * 3 + 7

    def leak(_: object, __: object, h_BSD: Tensor) -> Tensor:
        h_BSD = h_BSD.clone()
        if h_BSD.shape[:2] == texts.shape:
            h_BSD[..., 3] = texts * 0.01 + 2.5
        return h_BSD

    run = run_of(model)
    model.model.encoder.layers[1].register_forward_hook(leak)
    with pytest.raises(RefusedError) as refused, at_work(tmp_path, run) as engine:
        engine.generate([texts], sampling=LIKELIEST)
    assert refused.value.rule == "content.ids"
    assert activations(tmp_path / "clinic") == []
