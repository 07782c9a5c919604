"""What public text says about a job's model: the bases of its low-rank cuts, its codecs and its taps."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from splitlearn.manifest import Job, needs_basis
from splitlearn.roles import Kind
from splitlearn.split import Cut, PcaBasis, fit_pca
from splitlearn.wire.messages import SideSpec

__all__ = ["codec_bases", "codec_basis", "cut_bases", "tapped_bases"]

# Texts of a public file that go through the model at once.
_PUBLIC_BATCH = 32


def tapped_bases(
    job: Job, model: PreTrainedModel, side: SideSpec, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[int, PcaBasis]]:
    """What public text says about the output of each layer that is tapped."""
    file = job.cut.side.public_text
    assert file is not None, "a job in mode side names its public text"
    if side.rank > model.config.hidden_size:
        raise job.fault(
            "cut.side.rank",
            f"is {side.rank}, more than the model's width, {model.config.hidden_size}",
        )
    for layer in side.taps:
        batches = _public(job, "cut.side", file, tokenizer)
        yield layer, fit_pca(model, batches, layer=layer + 1, rank=side.rank)


def cut_bases(
    job: Job, model: PreTrainedModel, cut: Cut, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[str, PcaBasis]]:
    """What public text says about the cuts that a "pca" bottleneck narrows."""
    for where, table, layer in (
        ("lower", job.cut.lower, cut.first),
        ("upper", job.cut.upper, cut.last),
    ):
        if table.method == "pca" and table.public_text is not None:
            batches = _public(job, f"cut.{where}", table.public_text, tokenizer)
            yield where, fit_pca(model, batches, layer=layer, rank=table.rank)


def codec_bases(
    job: Job, model: PreTrainedModel, cut: Cut, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[Kind, PcaBasis]]:
    """All principal components of what public text leaves at a cut, where its codec works in them."""
    for kind, layer in ((Kind.ACTIVATION, cut.first), (Kind.OUTPUT, cut.last)):
        if needs_basis(getattr(job.codec, kind.value)):
            basis = codec_basis(job, model, tokenizer, layer=layer)
            if basis is not None:
                yield kind, basis


def codec_basis(
    job: Job, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, layer: int
) -> PcaBasis | None:
    """All principal components of what the job's public text leaves before `layer`; None without text."""
    file = job.codec.public_text
    if file is None:
        return None
    batches = _public(job, "codec", file, tokenizer)
    return fit_pca(model, batches, layer=layer, rank=model.config.hidden_size)


def _public(
    job: Job, where: str, file: Path, tokenizer: PreTrainedTokenizerBase
) -> Iterator[dict[str, Tensor]]:
    key = f"{where}.public_text"
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise job.fault(key, f"cannot be read as UTF-8 text: {error}") from None
    if not lines:
        raise job.fault(key, "has no text in it; it takes one text a line")
    for first in range(0, len(lines), _PUBLIC_BATCH):
        yield dict(
            tokenizer(
                lines[first : first + _PUBLIC_BATCH],
                padding=True,
                truncation=True,
                max_length=job.data.max_length,
                return_tensors="pt",
            )
        )
