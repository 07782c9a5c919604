from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from transformers.utils.generic import ModelOutput

from splitlearn.tasks.batches import batch
from splitlearn.tasks.encode import IGNORED, Encoded, Example
from splitlearn.tasks.rows import AnswerRow, PlainRow, Row, TextRow, TokenRow
from splitlearn.tasks.score import MAX_ANSWER_TOKENS, Scorer, majority_score, told

LABELS = ("neg", "pos")


def encoded(
    examples: Sequence[Example], rows: Sequence[Row], gold: Sequence[tuple[str, ...]]
) -> Encoded:
    return Encoded(tuple(examples), tuple(rows), labels=LABELS, gold=tuple(gold), left_out=0)


def texts(*classes: int) -> Encoded:
    rows = [TextRow(text="x", pair=None, label=LABELS[c]) for c in classes]
    examples = [
        Example((1,), None, targets={"labels": c}, items=1, row=number)
        for number, c in enumerate(classes)
    ]
    return encoded(examples, rows, [(LABELS[c],) for c in classes])


def one_hot(classes: Sequence[int]) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(classes), len(LABELS)).float()


def test_texts_are_scored_over_all_batches() -> None:
    scorer = Scorer(texts(0, 1, 1))
    scorer.add({"logits": one_hot([0, 0])})
    scorer.add({"logits": one_hot([1])})
    scores = scorer.result()
    assert list(scores) == ["accuracy", "macro_f1"]
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["macro_f1"] == pytest.approx(2 / 3)


def test_missing_and_surplus_outputs_are_our_own_mistake() -> None:
    scorer = Scorer(texts(0, 1))
    scorer.add({"logits": one_hot([0])})
    with pytest.raises(AssertionError):
        scorer.result()
    with pytest.raises(AssertionError):
        scorer.add({"logits": one_hot([0, 0])})


def test_words_are_scored_at_their_first_piece_and_lost_words_count_as_wrong() -> None:
    row = TokenRow(tokens=("a", "b", "c", "d"), tags=("pos", "neg", "pos", "neg"))
    # Word 1 left no piece, word 3 was cut off; word 0 has two pieces.
    example = Example(
        (1,) * 5,
        None,
        targets={"labels": (IGNORED, 1, IGNORED, 1, IGNORED)},
        items=2,
        row=0,
        words=(0, 2),
    )
    scorer = Scorer(encoded([example], [row], [row.tags]))
    scorer.add({"logits": one_hot([0, 1, 0, 0, 0, 1, 1]).unsqueeze(0)})
    scores = scorer.result()
    assert list(scores) == ["token_accuracy", "entity_f1"]
    assert scores["token_accuracy"] == 0.25


CONTEXT = "Anna works in Berlin ."
OFFSETS = (None, None, (0, 4), (5, 10), (11, 13), (14, 20), (21, 22), None)


def window(start: Sequence[float], end: Sequence[float], *, row: int = 0) -> dict[str, Tensor]:
    return {"start_logits": torch.tensor([start]), "end_logits": torch.tensor([end])}


def answers(windows: int) -> Encoded:
    row = AnswerRow(question="Where?", context=CONTEXT, answers=("Berlin", "in Berlin"), start=14)
    example = Example(
        (1,) * 8,
        None,
        targets={"start_positions": 5, "end_positions": 5},
        items=1,
        row=0,
        offsets=OFFSETS,
    )
    return encoded([example] * windows, [row], [()])


def test_the_best_span_of_the_context_is_the_answer() -> None:
    scorer = Scorer(answers(1))
    scorer.add(window([9, 9, 0, 0, 1, 5, 0, 9], [9, 9, 0, 0, 1, 5, 0, 9, 7]))
    assert scorer.result() == {"exact_match": 1.0, "f1": 1.0}


def test_an_end_before_its_start_is_no_answer() -> None:
    scorer = Scorer(answers(1))
    # Best start is token 5, best end token 3: the best legal span is 4 to 5.
    scorer.add(window([0, 0, 0, 0, 4, 5, 0, 0], [0, 0, 0, 5, 0, 4.5, 0, 0]))
    assert scorer.result() == {"exact_match": 1.0, "f1": 1.0}


def test_the_best_of_all_windows_counts() -> None:
    scorer = Scorer(answers(2))
    scorer.add(window([0, 0, 0, 0, 0, 3, 0, 0], [0, 0, 0, 0, 0, 3, 0, 0]))
    scorer.add(window([0, 0, 2, 0, 0, 0, 0, 0], [0, 0, 2, 0, 0, 0, 0, 0]))
    assert scorer.result()["exact_match"] == 1.0


def test_no_answer_is_longer_than_the_limit() -> None:
    size = MAX_ANSWER_TOKENS + 5
    context = "x " * size
    row = AnswerRow(question="?", context=context, answers=(context.strip(),), start=0)
    example = Example(
        (1,) * size,
        None,
        targets={"start_positions": 0, "end_positions": size - 1},
        items=1,
        row=0,
        offsets=tuple((2 * place, 2 * place + 1) for place in range(size)),
    )
    scorer = Scorer(encoded([example], [row], [()]))
    flat = torch.zeros(1, size)
    flat[0, 0] = 1.0
    scorer.add({"start_logits": flat, "end_logits": flat.flip(1)})
    assert scorer.result()["exact_match"] == 0.0


def test_a_window_without_context_gives_no_answer() -> None:
    made = answers(1)
    bare = Example((1,), None, targets={}, items=1, row=0, offsets=(None,))
    scorer = Scorer(encoded([bare], made.rows, made.gold))
    scorer.add({"start_logits": torch.ones(1, 1), "end_logits": torch.ones(1, 1)})
    assert scorer.result() == {"exact_match": 0.0, "f1": 0.0}


def test_the_majority_baseline_is_counted_on_names_and_is_none_for_answers() -> None:
    assert majority_score(texts(1, 1, 0), texts(0, 1, 1, 1)) == 0.75
    assert majority_score(answers(1), answers(1)) is None


def test_next_tokens_are_scored_by_perplexity_and_share_of_tokens_said() -> None:
    example = Example((1, 2, 3), None, {"labels": (IGNORED, 2, 3)}, 2, 0, next_token=True)
    plain = encoded([example] * 3, [PlainRow("x")] * 3, [()] * 3)
    scorer = Scorer(plain)
    for size in (2, 1):
        made = batch([example] * size, pad_id=0)
        kept = told(ModelOutput(logits=torch.zeros(size, 3, 8)), made)
        assert kept.keys() == {"losses", "hits"}
        scorer.add(kept)
    assert scorer.result() == {"perplexity": pytest.approx(8.0), "token_accuracy": 0.0}
    assert majority_score(plain, plain) is None


def test_of_other_tasks_the_logits_are_told() -> None:
    output = ModelOutput(
        loss=torch.zeros(()), start_logits=torch.ones(1), end_logits=torch.ones(2), hidden=None
    )
    made = batch([Example((1,), None, {"start_positions": 0, "end_positions": 0}, 1, 0)], pad_id=0)
    assert told(output, made).keys() == {"start_logits", "end_logits"}
