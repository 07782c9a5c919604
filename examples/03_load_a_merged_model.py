"""Load a merged model: what to do with the folder that `splitlearn trusted export` wrote.

A run without a low-rank cut exports a plain transformers folder. A low-rank cut changes a layer, so
that run's folder is loaded with `splitlearn.load_merged`; the model is then called like any other.
load_merged takes both kinds. Nothing of it needs a peer, a certificate or a network.

    python examples/03_load_a_merged_model.py                    # makes two tiny models of its own
    python examples/03_load_a_merged_model.py out/demo/model     # classifies with the demo's

What you should see: each loaded model gives the logits of the model that was exported, to the bit.
"""

import sys
import tempfile
from pathlib import Path

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
)

import splitlearn
from splitlearn.split import Bottleneck, Cut, factor, merged, save_merged, split

TEXT = "The central bank raised interest rates again, and shares fell."


def classify(folder: Path, text: str) -> None:
    """A sentence through an exported model, as in any program that uses transformers."""
    model = splitlearn.load_merged(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = model(**tokenizer(text, return_tensors="pt", truncation=True)).logits
    share = logits.softmax(-1)[0]
    print(f"{text!r}")
    for number, label in model.config.id2label.items():
        print(f"    {label:<16}{share[number]:.3f}")


def exported(folder: Path, *, cut: Cut) -> tuple[torch.Tensor, torch.Tensor]:
    """Makes what an export makes: a split model put together again. Ids, and logits for them."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=100,
            hidden_size=32,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=64,
        )
    )
    local, trunk = split(factor(model, cut=cut, bases={}), cut=cut)
    # Here a run would train both parts; the trunk's weights come back at its end.
    whole = merged(local, trunk=trunk, cut=cut)
    save_merged(folder, model=whole, cut=cut)
    ids = torch.randint(5, 100, (2, 8))
    with torch.no_grad():
        return ids, whole(input_ids=ids).logits


def main(folder: Path) -> None:
    # 1. Without a low-rank cut: layers 1 and 2 were trained elsewhere, and that is all.
    plain = folder / "plain"
    ids, expected = exported(plain, cut=Cut(1, 3))
    print(f"{plain.name:<9}", sorted(path.name for path in plain.iterdir()))
    with torch.no_grad():
        by_us = splitlearn.load_merged(plain)(input_ids=ids).logits
        by_transformers = AutoModelForSequenceClassification.from_pretrained(plain)(ids).logits
    assert torch.equal(by_us, expected)
    assert torch.equal(by_transformers, expected)
    print("          load_merged and transformers load it; both give the same logits")

    # 2. With one: 8 numbers a token crossed the upper cut, through two matrices that BERT has not.
    low_rank = folder / "low-rank"
    ids, expected = exported(low_rank, cut=Cut(1, 3, upper=Bottleneck("sft", 8)))
    print(f"{low_rank.name:<9}", sorted(path.name for path in low_rank.iterdir()))
    with torch.no_grad():
        assert torch.equal(splitlearn.load_merged(low_rank)(input_ids=ids).logits, expected)
    print("          load_merged gives the same logits")

    # transformers alone would have to draw weights at random for it. It finds none instead, and says so.
    try:
        AutoModelForSequenceClassification.from_pretrained(low_rank)
    except OSError:
        print("          transformers alone refuses it")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        classify(Path(sys.argv[1]), TEXT)
    else:
        main(Path(tempfile.mkdtemp(prefix="splitlearn-example-")))
