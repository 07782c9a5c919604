import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.errors import ManifestError
from splitlearn.pretrain import counts as room
from splitlearn.pretrain.counts import MAX_PIECE, Counts, count, load_counts, merge, save_counts
from splitlearn.pretrain.words import words

CHINESE = ["今天 天气很好", "今天 我们去", "你看 天气很好"]


@given(st.lists(st.text("ab c", max_size=30), max_size=12), st.integers(1, 4))
def test_frequent_words_are_counted_exactly(texts: list[str], minimum: int) -> None:
    expected = Counter(word for text in texts for word in words(text))
    found = count(texts, minimum=minimum).pieces
    for word, times in expected.items():
        if times >= minimum and len(word) <= MAX_PIECE:
            # Parts of rarer words may look like it, and add to it.
            assert found[word] >= times


@given(st.lists(st.text(max_size=40), max_size=8), st.integers(2, 4))
def test_nothing_rare_is_in_the_counts(texts: list[str], minimum: int) -> None:
    found = [word for text in texts for word in words(text)]
    for piece, times in count(texts, minimum=minimum).pieces.items():
        assert len(piece) <= MAX_PIECE
        # As often as it stands in the text, at most: overlapping parts make nothing look frequent.
        stands = sum(word.startswith(piece, at) for word in found for at in range(len(word)))
        assert minimum <= times <= stands


def test_a_name_that_stands_once_stays_home() -> None:
    texts = ["the patient is well"] * 3 + ["the patient Zbygnievskaja is well"]
    pieces = count(texts, minimum=3).pieces
    assert pieces["▁patient"] == 4
    assert not [piece for piece in pieces if "Zb" in piece or "evsk" in piece]


def test_writing_without_spaces_is_counted_by_its_parts() -> None:
    pieces = count(CHINESE, minimum=2).pieces
    assert pieces["▁天气很好"] == 2
    assert pieces["▁今天"] == 2
    longer = count(["今天天气很好我们去", "你看天气很好"], minimum=2).pieces
    assert min(longer["天气"], longer["气很"], longer["很好"]) >= 2
    assert not [piece for piece in longer if len(piece) > 4]


def test_a_text_with_more_pieces_than_memory_holds_is_still_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "_MOST_HELD", 10)
    texts = ["always here"] * 40 + [f"rare{n} thing{n}" for n in range(50)]
    pieces = count(
        [text for pair in zip(texts, texts[::-1], strict=True) for text in pair], minimum=3
    )
    assert pieces.pieces["▁always"] == 80


def test_a_counts_file_is_read_as_it_was_written_and_a_person_can_read_it(tmp_path: Path) -> None:
    counts = count(CHINESE, minimum=2)
    save_counts(counts, tmp_path / "counts.json")
    assert load_counts(tmp_path / "counts.json") == counts
    assert "天气很好" in (tmp_path / "counts.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "change",
    [
        {"format": "another"},
        {"minimum": 0},
        {"pieces": {"a" * (MAX_PIECE + 1): 3}},
        {"pieces": {"": 3}},
        {"pieces": {"secret": 0}},
        {"pieces": {"secret": 1.5}},
        {"pieces": {"secret": 2**41}},
        {"texts": ["secret"]},
    ],
)
def test_what_is_no_counts_file_is_refused_and_not_quoted(
    tmp_path: Path, change: dict[str, object]
) -> None:
    whole: dict[str, object] = {"format": "splitlearn-counts-1", "minimum": 3, "pieces": {"ok": 3}}
    path = tmp_path / "counts.json"
    path.write_text(json.dumps(whole))
    assert load_counts(path).total == 3
    path.write_text(json.dumps(whole | change))
    with pytest.raises(ManifestError, match="splitlearn vocab count") as caught:
        load_counts(path)
    assert "secret" not in str(caught.value)


def test_a_file_that_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ManifestError, match="cannot be read"):
        load_counts(tmp_path / "none.json")
    with pytest.raises(ManifestError, match="cannot be written"):
        save_counts(count(CHINESE, minimum=1), tmp_path / "none" / "counts.json")
    save_counts(count(CHINESE, minimum=1), tmp_path / "counts.json")
    monkeypatch.setattr(room, "LIMIT_BYTES", 10)
    with pytest.raises(ManifestError, match="higher --min-count"):
        load_counts(tmp_path / "counts.json")


def made(**pieces: int) -> Counts:
    return Counts(format="splitlearn-counts-1", minimum=1, pieces=pieces)


def test_merging_weighs_parties_by_the_smoothed_size() -> None:
    large, small = made(a=900, b=0 + 90), made(c=10)
    merged = merge([large, small], alpha=0.5, total=10_000)
    share = 990**0.5 / (990**0.5 + 10**0.5)
    assert merged["a"] + merged["b"] == pytest.approx(10_000 * share, abs=2)
    assert merged["a"] == pytest.approx(10 * merged["b"], rel=0.01)
    assert merge([large, small], alpha=0, total=100)["c"] == 50
    assert merge([small, large], alpha=0.5, total=10_000) == merged


def test_every_piece_counts_and_nothing_at_all_is_refused() -> None:
    assert merge([made(a=10**9, b=1)], total=100) == {"a": 100, "b": 1}
    assert merge([made(), made(b=5)], total=100) == {"b": 100}
    with pytest.raises(ManifestError, match="lower --min-count"):
        merge([made(), made()])
