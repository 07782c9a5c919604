import pytest

from splitlearn.errors import ManifestError
from splitlearn.translation.bleu import bleu_of


def test_the_same_in_another_case_is_perfect_and_another_text_is_not() -> None:
    reference = ["Two dogs run over a green meadow.", "A man sits on a bench in the park."]
    assert bleu_of([line.lower() for line in reference], references=reference).score == 100.0
    found = bleu_of(["two dogs run over a meadow.", "a man sits on a bench."], references=reference)
    assert 20 < found.score < 80
    assert "case:lc" in found.signature
    assert "tok:13a" in found.signature


def test_a_wrong_number_is_refused() -> None:
    with pytest.raises(ManifestError, match="1 translations and 2 references"):
        bleu_of(["a"], references=["a", "b"])
