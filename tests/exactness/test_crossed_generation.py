"""Texts said by a decoder whose layers are at a peer, against transformers' own loop over the unsplit model.

The encoder's output goes there once, with the first token; each further token is one row.
"""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.engine.generation import Sampling
from splitlearn.split.cut import Cut
from tests.chains import chain_engine, chain_run, hosts
from tests.crossed import both_model, crossed_model
from tests.engine.test_generation import (
    DRAWN,
    PROMPT,
    STILL,
    TWO,
    activations,
    at_work,
    chain_offered,
    run_of,
    unsplit,
)
from tests.rig import batch_of
from tests.tiny import tiny_batch

TYPES = ("bart", "marian")
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
    model = crossed_model(model_type, attention=attention)
    whole, said = copy.deepcopy(model), list[Tensor]()
    with at_work(tmp_path, run_of(model)) as engine:
        words = model.get_output_embeddings()
        hook = words.register_forward_hook(lambda _, __, out: said.append(out))
        found = engine.generate([PROMPT, TWO], sampling=sampling)
        hook.remove()
    assert_the_unsplit_texts(found, said, whole, sampling)
    # Rows of the memory with the first token, then one of each text: the first reads four, of one text.
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
    ],
    ids=["a decoder at two", "two stacks at two", "two stacks at four"],
)
def test_a_chain_says_what_the_unsplit_model_says(
    tmp_path: Path, model_type: str, stack: str, cut: Cut, starts: tuple[int, ...]
) -> None:
    made = crossed_model if stack == "decoder" else both_model
    model = made(model_type, layers=5 if stack == "decoder" else 4)
    whole, local, said = copy.deepcopy(model), copy.deepcopy(model), list[Tensor]()
    settings = {"mode": "features", "train_bottom": False, "optimiser": STILL}
    run = chain_run(local, cut=cut, starts=starts, total=1, **settings)  # type: ignore[arg-type]
    for purpose in ("train", "generate"):
        parties = hosts(tmp_path, chain_offered(run, purpose), policy="research.toml")
        engine = chain_engine(tmp_path, chain_offered(run, purpose), parties)
        if purpose == "train":
            engine.train(lambda _: [batch_of(tiny_batch(whole))])
        else:
            words = local.get_output_embeddings()
            words.register_forward_hook(lambda _, __, out: said.append(out))
            found = engine.generate([PROMPT, TWO], sampling=DRAWN)
        engine.finish()
        engine.end(None)
        for host in parties:
            host.close()
    assert_the_unsplit_texts(found, said, whole, DRAWN)
    crossed = [hop.offer.model.takes_memory(hop.offer.cut.first) for hop in run.hops]
    sent = [activations(host.clinic.folder) for host in parties]
    for each, decodes in zip(sent, crossed, strict=True):
        # A text goes through the encoder once.
        assert each[:2] == [(5, 4), (1, 2)] if decodes else each == [(4, 4), (6, 3)]
