import pytest

from splitlearn.errors import ManifestError
from splitlearn.translation.bleu import bleu_of, check_bleu


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


def test_where_case_counts_another_case_is_another_word() -> None:
    found = bleu_of(["two dogs run over it ."], references=["Two dogs run over it ."], cased=True)
    assert 50 < found.score < 90
    assert "case:mixed" in found.signature


def test_a_missing_package_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitlearn.translation.bleu.find_spec", lambda _: None)
    with pytest.raises(ManifestError, match=r"pip install 'splitlearn\[translate\]'"):
        check_bleu()
