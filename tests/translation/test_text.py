from pathlib import Path

import pytest
from transformers import BertConfig, PreTrainedTokenizerFast

from splitlearn.errors import ManifestError
from splitlearn.translation.text import Sentences, Special, load_tokenizer, written

TEXTS = {"a": "Ein Hund.", "b": "Zwei Hunde zwei"}


def test_sentences_are_batched_by_sample_in_the_order_asked_for(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    batch = Sentences(TEXTS, tokenizer=tokenizer, max_length=16).batch(["b", "a"])
    assert batch.ids_BT.tolist() == [[2, 6, 8, 6, 3], [2, 5, 7, 16, 3]]
    assert batch.lengths == (5, 5)


def test_what_is_longer_takes_no_part(tokenizer: PreTrainedTokenizerFast) -> None:
    found = Sentences({**TEXTS, "c": "ein"}, tokenizer=tokenizer, max_length=4)
    assert found.samples == ("c",)
    assert found.length("c") == 3


def test_words_are_those_that_occur(tokenizer: PreTrainedTokenizerFast) -> None:
    assert Sentences(TEXTS, tokenizer=tokenizer, max_length=16).words().tolist() == [5, 6, 7, 8, 16]


def test_ids_become_a_sentence(tokenizer: PreTrainedTokenizerFast) -> None:
    assert written(tokenizer, [10, 12, 15]) == "one dog runs"


def test_a_tokenizer_comes_from_its_folder(model_folder: Path) -> None:
    assert Special.of(load_tokenizer(str(model_folder))) == Special(2, 3, 0, 4)


def test_a_folder_without_one_is_named(tmp_path: Path, config: BertConfig) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(ManifestError, match="tokenizer of model"):
        load_tokenizer(str(tmp_path))
