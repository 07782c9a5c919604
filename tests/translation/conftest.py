"""Tiny halves of a translation model, and sentences for them."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing
from transformers import BertConfig, PreTrainedTokenizerFast

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("ein", "zwei", "hund", "hunde", "katze", "one", "two", "dog", "dogs", "cat", "runs", ".")


@pytest.fixture
def config() -> BertConfig:
    return BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=24,
        pad_token_id=0,
    )


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate((*SPECIAL, *WORDS))}
    inner = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    inner.normalizer = BertNormalizer()
    inner.pre_tokenizer = BertPreTokenizer()
    inner.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


@pytest.fixture
def model_folder(tmp_path: Path, config: BertConfig, tokenizer: PreTrainedTokenizerFast) -> Path:
    from splitlearn.translation.frozen import build_bert

    folder = tmp_path / "model"
    build_bert(config, seed=5).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def writable() -> torch.Tensor:
    return torch.arange(10, 17)
