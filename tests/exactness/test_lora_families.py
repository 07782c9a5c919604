"""Ten steps with adapters in each family of the table, split against unsplit, to the bit.

Targets, head and what else trains are those that a job gets by itself; so tied heads, GPT-2's layers
that lie across, and decoders above a remote encoder are here. One micro-batch and three take turns, so
that each family has both; where only the trunk has adapters there is one throughout, as in test_lora.
"""

import copy
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from splitlearn.split.anatomy import base_of, family_of, layers_of
from splitlearn.split.cut import Cut
from splitlearn.split.freeze import freeze
from splitlearn.split.lora import Where, adapt, blocks_of, targets_in, trained_state
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import LoraSpec
from tests.exactness.test_engine import STEPS, batches
from tests.rig import run_in_memory, train_unsplit, trusted_run
from tests.tiny import DECODERS, ENCODERS, WRITERS, tiny_model

CUT = Cut(1, 2)


def spec_for(model: PreTrainedModel, *, dropout: float = 0.0) -> LoraSpec:
    targets = targets_in(layers_of(model)[1], which="all")
    return LoraSpec(rank=2, alpha=4.0, dropout=dropout, targets=targets, seed=5)


@pytest.mark.parametrize(
    ("model_type", "where", "train_bottom"),
    [
        *((name, "all", True) for name in (*ENCODERS, *DECODERS, *WRITERS)),
        *((name, "trunk", False) for name in ("gpt2", "llama", "mistral", "bart", "t5")),
    ],
)
def test_adapters_train_as_in_the_unsplit_run(
    tmp_path: Path, model_type: str, where: Where, train_bottom: bool
) -> None:
    def steps(step: int) -> list[Batch]:
        return batches(model, step, micro=3 if where == "all" and step % 2 else 1)

    model = tiny_model(model_type, layers=3)
    whole, spec = copy.deepcopy(model), spec_for(model)
    adapt(blocks_of(whole, cut=CUT, where=where, train_bottom=train_bottom), spec)
    freeze(whole, cut=CUT, mode="lora", train_bottom=train_bottom)
    run = trusted_run(
        model,
        cut=CUT,
        total=STEPS,
        mode="lora",
        train_bottom=train_bottom,
        lora=spec,
        where=where,
        every=STEPS,
    )
    expected = train_unsplit(whole, run, steps=steps)
    begun = {name: tensor.clone() for name, tensor in run.groups["adapters"].items()}
    result = run_in_memory(tmp_path, run, steps=steps)
    assert result.losses == expected
    assert len(set(expected)) == STEPS
    # A head that is the embeddings stands still with them; another one trains.
    head = result.local.get_output_embeddings()
    if model_type in (*DECODERS, *WRITERS):
        assert head is not None
        assert head.weight.requires_grad is not result.local.config.tie_word_embeddings
    # Every adapter trained: none stands where no gradient comes.
    assert begun.keys() == result.trunk.keys()
    assert all(not torch.equal(begun[name], result.trunk[name]) for name in begun)
    below = "" if base_of(whole) is whole else f"{whole.base_model_prefix}."
    layers = f"{below}{family_of(whole).layers}"
    home = {name.replace("layers.", f"{layers}.", 1): t for name, t in result.trunk.items()}
    found = trained_state(result.local) | home
    wanted = trained_state(whole)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(tensor, found[name]), name
