"""The source's table of codecs on AB-Net: forward by eight codecs, backward by two; bytes, time, BLEU.

As tests/bench/translation.py, with fewer steps: sixteen runs, each of two processes over the emulated link.
After them come their seconds a step, of a short run of each, one right after the other, which wants an idle
machine. SVD writes its factors in float16. Writes out/bench/table2.json after every run,
goes on from there when started again with the same number of steps, draws table2.svg and prints the table.
Run as `python -m tests.bench.table2`; about an hour. STEPS changes the length of each run.
"""

import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from parties.demo_translate import metrics_of, tensor_bytes
from parties.demo_translate_data import Size
from tests.bench.translation import across, arranged

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "table2.json"
FORWARD = ("identity", "fp16", "svd-0.8", "svd-0.6", "svd-0.4", "svd-0.2", "int8", "int4-g64")
BACKWARD = ("identity", "int8")
RUNS = {f"{f}-{b}".replace(".", ""): (f, b) for f in FORWARD for b in BACKWARD}
SIZE = Size(steps=int(os.environ.get("STEPS", "100")), held_out=1_014)
# Runs that only time a step.
SHORT = Size(steps=10, held_out=48)


def main() -> None:
    result: dict[str, Any] = {"steps": SIZE.steps, "rows": {}, "step_s": {}}
    if RESULT.exists():
        before = json.loads(RESULT.read_text())
        result = before if before["steps"] == SIZE.steps else result
    with tempfile.TemporaryDirectory(prefix="splitlearn-bench-") as name:
        train(Path(name) / "run", result)
    if not result["step_s"]:
        result["step_s"] = step_times()
        save(result)
    whole = result["rows"]["identity-identity"]["bytes"]
    print(f"{'forward':12}{'backward':12}{'bytes':>8}{'s a step':>10}{'loss':>8}{'BLEU':>8}")
    for run, (forward, backward) in RUNS.items():
        row = result["rows"][run]
        print(
            f"{forward:12}{backward:12}{row['bytes'] / whole:8.1%}{result['step_s'][run]:10.2f}"
            f"{row['loss']:8.3f}{row['bleu']:8.2f}"
        )
    RESULT.with_suffix(".svg").write_text(plot(result["rows"]))


def train(out: Path, result: dict[str, Any]) -> None:
    """The runs that `result` does not have yet."""
    ports = arranged(out, size=SIZE, runs=RUNS)
    for run in RUNS:
        if run in result["rows"]:
            continue
        across(out, run, ports=ports)
        found = metrics_of(out, run)
        result["rows"][run] = {
            "bytes": tensor_bytes(found),
            "bleu": found.bleu,
            "loss": statistics.mean(found.losses[-20:]),
        }
        save(result)


def step_times() -> dict[str, float]:
    """Of every run the seconds a step, the median of a short run's."""
    taken: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="splitlearn-bench-") as name:
        out = Path(name) / "run"
        ports = arranged(out, size=SHORT, runs=RUNS)
        for run in RUNS:
            across(out, run, ports=ports)
            taken[run] = metrics_of(out, run).step_s
    return taken


def save(result: dict[str, Any]) -> None:
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


def plot(rows: dict[str, dict[str, Any]]) -> str:
    """BLEU over the share of bytes, one point a run; hollow where the way back is uncompressed."""
    wide, high, edge = 860, 520, 60
    best = max(1e-9, *(row["bleu"] for row in rows.values())) * 1.1
    whole = rows["identity-identity"]["bytes"]

    def x(ratio: float) -> float:
        return edge + (wide - 2 * edge) * ratio

    def y(bleu: float) -> float:
        return high - edge - (high - 2 * edge) * bleu / best

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<path d="M{edge} {edge}V{high - edge}H{wide - edge}" fill="none" stroke="black"/>',
        f'<text x="{wide / 2}" y="{high - 15}" text-anchor="middle">bytes / uncompressed bytes</text>',
        f'<text x="15" y="{edge - 20}">BLEU</text>',
    ]
    drawn += [
        f'<text x="{x(ratio):.0f}" y="{high - edge + 16}" text-anchor="middle">{ratio:g}</text>'
        for ratio in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    drawn += [
        f'<text x="{edge - 34}" y="{y(best * part):.0f}">{best * part:.1f}</text>'
        for part in (0.25, 0.5, 0.75, 1.0)
    ]
    for run, (forward, backward) in RUNS.items():
        at = (x(rows[run]["bytes"] / whole), y(rows[run]["bleu"]))
        fill = "white" if backward == "identity" else "#0a6"
        drawn.append(
            f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4" fill="{fill}" stroke="#0a6"/>'
            f'<text x="{at[0] + 6:.1f}" y="{at[1] - 5:.1f}">{forward}</text>'
        )
    return "".join([*drawn, "</svg>\n"])


if __name__ == "__main__":
    main()
