"""BLEU by sacrebleu (arXiv 1804.08771), which says beside the figure how it was reached."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from splitlearn.errors import ManifestError

__all__ = ["Bleu", "bleu_of", "check_bleu"]


@dataclass(frozen=True)
class Bleu:
    """score: 0 to 100. signature: sacrebleu's, with its version, case and tokenisation."""

    score: float
    signature: str


def check_bleu() -> None:
    """ManifestError where sacrebleu is missing: before what is to be scored is written, not after."""
    if find_spec("sacrebleu") is None:
        raise ManifestError(
            "package sacrebleu is missing; install it: pip install 'splitlearn[translate]'"
        )


def bleu_of(written: Sequence[str], *, references: Sequence[str], cased: bool = False) -> Bleu:
    """Of a whole corpus with one reference each, tokenised as WMT does ("13a").

    cased: else in lower case, because an uncased vocabulary writes no other. Raises ManifestError where
    sacrebleu is missing, or the two are not alike in number.
    """
    if len(written) != len(references) or not written:
        raise ManifestError(
            f"{len(written)} translations and {len(references)} references; expected as many of each, "
            "and some"
        )
    check_bleu()
    from sacrebleu.metrics.bleu import BLEU  # noqa: PLC0415 - an extra's, and only for scores

    metric = BLEU(lowercase=not cased)
    found = metric.corpus_score(list(written), [list(references)])
    return Bleu(round(float(found.score), 4), str(metric.get_signature()))
