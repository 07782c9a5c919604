"""From a model's outputs, example after example, to the task's scores.

B batch, T tokens, C classes
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers.utils.generic import ModelOutput

from splitlearn.tasks.batches import Batch
from splitlearn.tasks.encode import IGNORED, Encoded, Example
from splitlearn.tasks.language import next_tokens
from splitlearn.tasks.metrics import (
    accuracy,
    answer_scores,
    entity_f1,
    macro_f1,
    majority,
    perplexity,
)
from splitlearn.tasks.rows import AnswerRow, PairRow, PlainRow, TokenRow

__all__ = ["MAX_ANSWER_TOKENS", "Scorer", "majority_score", "told"]

# Tokens: no answer that is longer is looked for, as in SQuAD's reference code.
MAX_ANSWER_TOKENS = 30


def told(output: ModelOutput, batch: Batch) -> dict[str, Tensor]:
    """Of a model's output, what a task's metrics read: logits by name, on the CPU in float32.

    Of next tokens the logits of a batch may be larger than all else: their losses and hits are kept.
    """
    if batch.next_token or batch.target:
        return next_tokens(output["logits"], batch)
    logits = {name: value for name, value in output.items() if name.endswith("logits")}
    return {name: value.float().cpu() for name, value in logits.items()}


class Scorer:
    """Takes outputs in the order of `encoded.examples`; keeps predictions, no tensor."""

    def __init__(self, encoded: Encoded) -> None:
        self._encoded = encoded
        self._seen = 0
        # Of each row: a class a word, "" where truncation left none; or the best answer so far.
        self._classes = [[""] * len(gold) for gold in encoded.gold]
        self._answers = [(float("-inf"), "")] * len(encoded.rows)
        # Of next tokens: the sum of losses in nats, and how many were said.
        self._loss, self._hits = 0.0, 0

    def add(self, outputs: Mapping[str, Tensor]) -> None:
        """The next examples' logits (B, C) or (B, T, C), start_logits and end_logits (B, T), or, of next
        tokens, losses and hits (B).
        """
        size = len(next(iter(outputs.values())))
        examples = self._encoded.examples[self._seen : self._seen + size]
        assert len(examples) == size, "more outputs than there are examples"
        self._seen += size
        if "losses" in outputs:
            self._loss += float(outputs["losses"].sum())
            self._hits += int(outputs["hits"].sum())
        elif "logits" in outputs:
            self._add_classes(examples, outputs["logits"])
        else:
            self._add_answers(examples, outputs["start_logits"], outputs["end_logits"])

    def result(self) -> dict[str, float]:
        """accuracy and macro_f1, or token_accuracy and entity_f1, or exact_match and f1; the first of
        each pair is what `majority_score` compares with. Words that truncation cut off count as wrong.
        Of next tokens, and of those of a target, perplexity, which is from 1 up, and token_accuracy.
        """
        assert self._seen == len(self._encoded.examples), "scores take the outputs of all examples"
        rows, gold = self._encoded.rows, self._encoded.gold
        if isinstance(rows[0], AnswerRow):
            answers = [row.answers for row in rows if isinstance(row, AnswerRow)]
            exact, f1 = answer_scores([text for _, text in self._answers], answers)
            return {"exact_match": exact, "f1": f1}
        if isinstance(rows[0], PlainRow | PairRow):
            tokens = sum(example.items for example in self._encoded.examples)
            return {
                "perplexity": perplexity(self._loss, tokens),
                "token_accuracy": self._hits / tokens,
            }
        flat, flat_gold = _flat(self._classes), _flat(gold)
        if isinstance(rows[0], TokenRow):
            return {
                "token_accuracy": accuracy(flat, flat_gold),
                "entity_f1": entity_f1(self._classes, gold),
            }
        return {"accuracy": accuracy(flat, flat_gold), "macro_f1": macro_f1(flat, flat_gold)}

    def _add_classes(self, examples: Sequence[Example], logits: Tensor) -> None:
        labels = self._encoded.labels
        for example, best in zip(examples, logits.argmax(dim=-1).tolist(), strict=True):
            targets = example.targets["labels"]
            if not isinstance(targets, tuple):
                self._classes[example.row] = [labels[best]]
                continue
            said = [labels[c] for c, t in zip(best, targets, strict=False) if t != IGNORED]
            for word, name in zip(example.words, said, strict=True):
                self._classes[example.row][word] = name

    def _add_answers(self, examples: Sequence[Example], start_BT: Tensor, end_BT: Tensor) -> None:
        for example, start_T, end_T in zip(examples, start_BT, end_BT, strict=True):
            row = self._encoded.rows[example.row]
            assert isinstance(row, AnswerRow), "start and end logits belong to answers"
            assert example.offsets is not None, "only examples made for evaluation have offsets"
            best = _best_span(example.offsets, start_T.float().cpu(), end_T.float().cpu())
            if best is not None and best[0] > self._answers[example.row][0]:
                score, first, last = best
                self._answers[example.row] = (score, row.context[first:last].strip())


def majority_score(train: Encoded, evaluate: Encoded) -> float | None:
    """Accuracy of always saying the most frequent class; None for tasks without classes."""
    gold = _flat(evaluate.gold)
    return majority(_flat(train.gold), gold) if gold else None


def _flat(names: Sequence[Sequence[str]]) -> list[str]:
    return [name for row in names for name in row]


def _best_span(
    offsets: Sequence[tuple[int, int] | None], start_T: Tensor, end_T: Tensor
) -> tuple[float, int, int] | None:
    """Score, first character and character after the last of the best answer in this window."""
    tokens = [token for token, offset in enumerate(offsets) if offset is not None]
    if not tokens:
        return None
    score_TT = start_T[tokens].unsqueeze(1) + end_T[tokens].unsqueeze(0)
    allowed_TT = torch.ones_like(score_TT, dtype=torch.bool).triu().tril(MAX_ANSWER_TOKENS - 1)
    place = int(score_TT.masked_fill(~allowed_TT, float("-inf")).argmax())
    first, last = (tokens[index] for index in divmod(place, len(tokens)))
    first_offset, last_offset = offsets[first], offsets[last]
    assert first_offset is not None and last_offset is not None, "tokens have offsets"  # noqa: PT018
    return float(score_TT.reshape(-1)[place]), first_offset[0], last_offset[1]
