from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from splitlearn.errors import ManifestError
from splitlearn.tasks.batches import Batch
from splitlearn.tasks.prompts import encode_prompts, encode_sources, of_equal_length


def test_each_text_is_by_itself_and_not_at_its_end(gpt2_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gpt2_folder)
    texts = ["a film", "фильм<|end|>"]
    one, other = encode_prompts(texts, tokenizer=tokenizer, tokens=4, limit=48)
    assert one.tolist() == [tokenizer("a film")["input_ids"]]
    assert other.tolist() == [tokenizer("фильм")["input_ids"]]


@pytest.mark.parametrize(
    ("text", "tokens", "told"),
    [
        (" ", 4, "prompt 2 of 2 has no token"),
        ("<|end|>", 4, "prompt 2 of 2 has no token"),
        ("a film", 48, "and 48 more are asked for; the model has 48 positions"),
    ],
)
def test_a_text_that_cannot_be_gone_on_with_is_named(
    gpt2_folder: Path, text: str, tokens: int, told: str
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gpt2_folder)
    with pytest.raises(ManifestError, match=told):
        encode_prompts(
            ["a" if tokens == 4 else text, text], tokenizer=tokenizer, tokens=tokens, limit=48
        )


def test_an_encoder_reads_a_text_with_its_end(bert_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    texts = ["a film", "the long film"]
    found = encode_sources(texts, tokenizer=tokenizer, tokens=16, limit=16)
    assert [ids.tolist() for ids in found] == [[tokenizer(text)["input_ids"]] for text in texts]
    assert all(ids[0, -1] == tokenizer.sep_token_id for ids in found)


@pytest.mark.parametrize(
    ("text", "tokens", "told"),
    [
        (" ", 4, "prompt 2 of 2 has no token"),
        ("a " * 15, 4, "prompt 2 of 2 has 17 tokens; the model has 16 positions"),
        ("a film", 17, "17 tokens are asked for; the model has 16 positions"),
    ],
)
def test_a_source_that_cannot_be_read_is_named(
    bert_folder: Path, text: str, tokens: int, told: str
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    with pytest.raises(ManifestError, match=told):
        encode_sources(["a film", text], tokenizer=tokenizer, tokens=tokens, limit=16)


def test_texts_of_one_length_lie_side_by_side_and_say_which_they_are() -> None:
    def padded(ids_BT: list[list[int]], lengths: tuple[int, ...]) -> Batch:
        return Batch({"input_ids": torch.tensor(ids_BT)}, {}, lengths, items=0)

    batches = [
        padded([[5, 6, 1], [7, 8, 9], [3, 4, 1]], (2, 3, 2)),
        padded([[2, 1], [8, 9]], (1, 2)),
    ]
    ids, texts = of_equal_length(batches, most=2)
    assert [ids_BT.tolist() for ids_BT in ids] == [
        *([[5, 6], [3, 4]], [[8, 9]]),
        *([[7, 8, 9]], [[2]]),
    ]
    assert texts == [(0, 2), (4,), (1,), (3,)]
