"""AB-Net between two owners against one process and against scratch: BLEU, bytes, seconds a step.

German to English captions (multi30k), MiniLM in both halves, two processes over an emulated link of 100
Mbit/s and 20 ms. The first seed has all four runs; the others have the one with codecs and the one in one
process, which the uncompressed run is to the bit. Writes out/bench/translation.json after every seed, goes on
from there when started again with the same number of steps, and prints the figures and their means. Run as
`python -m tests.bench.translation`, with PAIRS naming the folder where the pairs are not in
../shared/data/multi30k; needs the extra `demo-translate`, two cores, and somewhat over an hour. STEPS changes
the length of a run.

scratch: the same network, every weight drawn and training, for as many steps, which take longer, with the
same objective, schedule and decoding, at a rate of its own.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from parties.demo_translate import baselines, join_both, metrics_of, serving, summary
from parties.demo_translate_data import RUNS, Ports, Size, prepare
from parties.demo_translate_local import baseline

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "translation.json"
SIZE = Size(steps=int(os.environ.get("STEPS", "400")), held_out=1_014, max_length=24, warmup=100)
SEEDS = (1, 2, 3)
# What codecs may cost, in BLEU; the source lost 1.27.
LOST, BYTES = 0.3, 0.25


def main() -> None:
    done: dict[str, Any] = {}
    if RESULT.exists():
        before = json.loads(RESULT.read_text())
        done = before["seeds"] if before.get("steps") == SIZE.steps else {}
    for seed in SEEDS:
        if str(seed) not in done:
            done[str(seed)] = trained(seed, whole=seed == SEEDS[0])
            print(f"seed {seed}: {json.dumps(done[str(seed)]['bleu'])}", flush=True)
        mean = means(done)
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        result = {"steps": SIZE.steps, "lost_to_codec": mean["local"] - mean["codec"], "mean": mean}
        RESULT.write_text(json.dumps({**result, "seeds": done}, indent=2) + "\n")
    mean = means(done)
    first = done[str(SEEDS[0])]
    bleu = first["bleu"]
    print(f"BLEU on {first['samples']['evaluate']} held-out pairs ({bleu['signature']})")
    for what in ("local", "uncompressed", "codec", "scratch"):
        print(f"  {what:14}{bleu[what]:8.2f}   {first['step_s'][what]:.2f} s a step")
    lost = mean["local"] - mean["codec"]
    print(f"mean of {len(done)} seeds: local {mean['local']:.2f}, codec {mean['codec']:.2f}")
    print(f"codec loses {lost:.2f} (limit {LOST}; the source lost 1.27)")
    print(f"bytes of the uncompressed: {first['bytes']['ratio']:.1%} (limit {BYTES:.0%})")
    print(f"ahead of from scratch by {bleu['codec'] - bleu['scratch']:.2f}")
    print(f"uncompressed is the run in one process to the bit: {first['exact']}")


def means(done: Mapping[str, Any]) -> dict[str, float]:
    """Mean BLEU of what all seeds have."""
    return {
        name: statistics.mean(run["bleu"][name] for run in done.values())
        for name in ("local", "codec")
    }


def trained(seed: int, *, whole: bool) -> dict[str, Any]:
    """A seed's scores. whole: with the uncompressed run, and from scratch, and what all of them took."""
    runs = RUNS if whole else {"codec": RUNS["codec"]}
    with tempfile.TemporaryDirectory(prefix="splitlearn-bench-") as name:
        out = Path(name) / "run"
        ports = arranged(out, size=replace(SIZE, seed=seed), runs=runs)
        for run in runs:
            across(out, run, ports=ports)
        if not whole:
            files = (out / "encoder-codec.toml", out / "decoder-codec.toml")
            local = baseline(*files, scratch=False)
            return {"bleu": {"local": local["bleu"], "codec": metrics_of(out, "codec").bleu}}
        local, scratch = baselines(out)
        found = summary(
            out, across={run: metrics_of(out, run) for run in RUNS}, local=local, scratch=scratch
        )
        found["losses"] = {"local": local["losses"], "scratch": scratch["losses"]}
        return found


def arranged(out: Path, *, size: Size, runs: Mapping[str, tuple[str, str]]) -> Ports:
    """Both parties, joined, with the settings of all runs."""
    ports = Ports(runs)
    where = os.environ.get("PAIRS")
    prepare(out, where=where, languages=("de", "en"), ports=ports, size=size, runs=runs)
    join_both(out)
    return ports


def across(out: Path, run: str, *, ports: Ports) -> None:
    """One run across the link, each party a process."""
    train = [sys.executable, "-m", "parties.cli", "decoder", "train"]
    with serving(out, run, ports=ports):
        subprocess.run([*train, str(out / f"decoder-{run}.toml"), "--threads", "1"], check=True)


if __name__ == "__main__":
    main()
