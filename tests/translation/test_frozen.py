from pathlib import Path

import pytest
import torch
from transformers import BertConfig, DistilBertConfig

from splitlearn.errors import ManifestError
from splitlearn.translation.frozen import Frozen, build_bert, load_bert, real_tokens


def test_layer_by_layer_is_the_librarys_own_forward(config: BertConfig) -> None:
    bert = build_bert(config, seed=1).eval()
    ids_BT, real_BT = torch.randint(5, 17, (2, 7)), real_tokens((7, 4), width=7)
    whole_BTD = bert(input_ids=ids_BT, attention_mask=real_BT).last_hidden_state
    frozen = Frozen(bert)
    h_BTD = frozen.embeddings(input_ids=ids_BT)
    mask = frozen.mask(h_BTD, real_BT=real_BT)
    for layer in frozen.layers:
        h_BTD = layer(h_BTD, mask)
    assert torch.equal(h_BTD, whole_BTD)


def test_nothing_drops_out_and_nothing_trains(config: BertConfig) -> None:
    frozen = Frozen(build_bert(config, seed=1)).train()
    assert not any(module.training for module in frozen.modules())
    assert not any(p.requires_grad for p in frozen.parameters())


def test_a_folder_is_loaded_as_it_was_saved(model_folder: Path, config: BertConfig) -> None:
    made, loaded = build_bert(config, seed=5), load_bert(str(model_folder))
    assert all(
        torch.equal(a, b)
        for a, b in zip(made.state_dict().values(), loaded.state_dict().values(), strict=True)
    )


def test_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    DistilBertConfig().save_pretrained(tmp_path)
    with pytest.raises(ManifestError, match="distilbert; translation takes encoders of type bert"):
        load_bert(str(tmp_path))


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=f"model {tmp_path} cannot be loaded"):
        load_bert(str(tmp_path))
