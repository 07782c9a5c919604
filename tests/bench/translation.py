"""AB-Net between two owners against one process and against scratch: BLEU, bytes, seconds a step.

German to English captions (multi30k), MiniLM in both halves, two processes over an emulated link of 100
Mbit/s and 20 ms. Writes out/bench/translation.json and prints the figures. Run as
`python -m tests.bench.translation`, with PAIRS naming the folder where the pairs are not in
../shared/data/multi30k; needs the extra `demo-translate`, two cores, and about an hour. STEPS changes the
length of the run.

scratch: the same network, every weight drawn and training, for as many steps, which take longer, with the
same objective, schedule and decoding, at a rate of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from parties.demo_translate import baselines, join_both, metrics_of, serving, summary
from parties.demo_translate_data import RUNS, Ports, Size, prepare

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "translation.json"
SIZE = Size(steps=int(os.environ.get("STEPS", "900")), held_out=1_014, max_length=24, warmup=100)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="splitlearn-bench-") as name:
        out, ports = Path(name) / "run", Ports()
        prepare(out, where=os.environ.get("PAIRS"), languages=("de", "en"), ports=ports, size=SIZE)
        join_both(out)
        for run in RUNS:
            across(out, run, ports=ports)
        local, scratch = baselines(out)
        result = summary(
            out,
            across={run: metrics_of(out, run) for run in RUNS},
            local=local,
            scratch=scratch,
        )
    bleu = result["bleu"]
    result["losses"] = {"local": local["losses"], "scratch": scratch["losses"]}
    result["lost_to_codec"] = bleu["local"] - bleu["codec"]
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(f"BLEU on {result['samples']['evaluate']} held-out pairs ({bleu['signature']})")
    for what in ("local", "uncompressed", "codec", "scratch"):
        print(f"  {what:14}{bleu[what]:8.2f}   {result['step_s'][what]:.2f} s a step")
    print(f"codec loses {result['lost_to_codec']:.2f} (limit 0.3; the source lost 1.27)")
    print(f"bytes of the uncompressed: {result['bytes']['ratio']:.1%} (limit 25%)")
    print(f"ahead of from scratch by {bleu['codec'] - bleu['scratch']:.2f}")
    print(f"uncompressed is the run in one process to the bit: {result['exact']}")


def across(out: Path, run: str, *, ports: Ports) -> None:
    """One run across the link, each party a process."""
    train = [sys.executable, "-m", "parties.cli", "decoder", "train"]
    with serving(out, run, ports=ports):
        subprocess.run([*train, str(out / f"decoder-{run}.toml"), "--threads", "1"], check=True)


if __name__ == "__main__":
    main()
