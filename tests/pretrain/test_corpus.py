import itertools
from pathlib import Path

import pytest

from splitlearn.errors import ManifestError
from splitlearn.pretrain.corpus import Corpus
from splitlearn.pretrain.text import TextSettings, open_text, text_source
from tests.babble import WIDTH, lines, vocabulary


def corpus(folder: Path, *, texts: list[str] | None = None, **changes: float) -> Corpus:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "text.txt"
    path.write_text("\n".join(lines(200) if texts is None else texts) + "\n", encoding="utf-8")
    passages = open_text(TextSettings(source=text_source(path)), scratch=folder / "scratch")
    settings = {"width": WIDTH, "batch": 4, "seed": 1, "held_out": 0.2} | changes
    return Corpus(passages, vocabulary=vocabulary(), **settings)  # type: ignore[arg-type]


def sentences(examples: list) -> list[tuple[int, ...]]:
    """What stands between special tokens, whole passages only."""
    found = []
    for ids in examples:
        ends = [place for place, each in enumerate(ids) if each == vocabulary().sep]
        for start, stop in itertools.pairwise((0, *ends[:-1])):
            found.append(tuple(ids[start + 1 : stop].tolist()))
    return found


def test_any_batch_is_the_same_from_any_beginning(tmp_path: Path) -> None:
    first, again = (corpus(tmp_path / name) for name in ("a", "b"))
    late = again.batch(123_456)
    batches = [first.batch(index) for index in (0, 1, 123_456)]
    assert [ids.tolist() for ids in batches[2]] == [ids.tolist() for ids in late]
    assert [ids.tolist() for ids in batches[0]] == [ids.tolist() for ids in again.batch(0)]
    assert [ids.tolist() for ids in batches[0]] != [ids.tolist() for ids in batches[1]]
    other = corpus(tmp_path / "c", seed=2)
    assert [ids.tolist() for ids in batches[0]] != [ids.tolist() for ids in other.batch(0)]


def test_examples_are_full_and_begin_and_end_as_they_should(tmp_path: Path) -> None:
    for ids in corpus(tmp_path).batch(7):
        assert len(ids) == WIDTH
        assert (ids[0], ids[-1]) == (vocabulary().cls, vocabulary().sep)
        assert vocabulary().pad not in ids
        assert vocabulary().mask not in ids


def test_a_pass_begins_once_at_every_passage(tmp_path: Path) -> None:
    texts = lines(40)
    whole = corpus(tmp_path, texts=texts, held_out=0.0)
    begins = [tuple(ids[1:5]) for index in range(10) for ids in whole.batch(index)]
    expected = [tuple((*vocabulary().encode(text), vocabulary().sep)[:4]) for text in texts]
    assert sorted(begins) == sorted(expected)


def test_held_out_text_never_trains_and_is_whole(tmp_path: Path) -> None:
    texts = lines(150)
    texts += texts[:75]  # what comes twice stands on one side
    some = corpus(tmp_path, texts=texts)
    trained = {each for index in range(60) for each in sentences(some.batch(index))}
    first = some.held_out(0)
    count = 1
    while [ids.tolist() for ids in some.held_out(count)] != [ids.tolist() for ids in first]:
        count += 1
    held = [each for number in range(count) for each in sentences(some.held_out(number))]
    assert held
    assert not trained & set(held)
    # Each passage once, though the text has it twice.
    assert len(held) == len(set(held))
    assert len(trained | set(held)) <= len(set(texts))
    assert 0.1 < len(held) / len(set(texts)) < 0.3


def test_held_out_batches_are_deterministic_and_begin_anew(tmp_path: Path) -> None:
    first, again = (corpus(tmp_path / name) for name in ("a", "b"))
    assert [i.tolist() for i in first.held_out(2)] == [i.tolist() for i in again.held_out(2)]
    # The same passages are held out under another seed.
    other = corpus(tmp_path / "c", seed=9)
    held = {each for n in range(20) for each in sentences(other.held_out(n))}
    trained = {each for index in range(60) for each in sentences(first.batch(index))}
    assert held
    assert not held & trained


def test_a_text_shorter_than_an_example_does_not_repeat_in_it(tmp_path: Path) -> None:
    one = corpus(tmp_path, texts=["baba"], held_out=0.0)
    ids = [vocabulary().cls, *vocabulary().encode("baba"), vocabulary().sep]
    assert [each.tolist() for each in one.batch(0)] == [ids] * 4


def test_a_passage_as_long_as_a_book_is_read_in_windows(tmp_path: Path) -> None:
    book = corpus(tmp_path, texts=[" ".join(lines(3_000))], held_out=0.0)
    examples = [tuple(ids.tolist()) for index in range(5) for ids in book.batch(index)]
    assert all(len(ids) == WIDTH for ids in examples)
    assert len(set(examples)) > 15


def test_translations_share_an_example(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    pairs = list(zip(lines(30), lines(30, seed=1), strict=True))
    pairs[3] = (" ".join(lines(9)), pairs[3][1])
    pairs[4] = ("", pairs[4][1])
    path.write_text("\n".join(("a\tb", *map("\t".join, pairs))) + "\n")
    settings = TextSettings(source=text_source(path), column="a", pair_column="b")
    both = Corpus(
        open_text(settings, scratch=tmp_path / "scratch"),
        vocabulary=vocabulary(),
        width=WIDTH,
        batch=30,
        seed=1,
        held_out=0.0,
    )
    known = vocabulary()
    found = [ids.tolist() for ids in both.batch(0)]
    assert all(ids.count(known.sep) == 2 and len(ids) <= WIDTH for ids in found)
    first, second = (known.encode(side) for side in pairs[0])
    whole = [known.cls, *first, known.sep, *second, known.sep]
    if len(whole) <= WIDTH:
        assert whole in found
    second = known.encode(pairs[3][1])
    room = max((WIDTH - 3) // 2, WIDTH - 3 - len(second))
    cut = [known.cls, *known.encode(pairs[3][0])[:room], known.sep]
    assert [ids for ids in found if ids[: len(cut)] == cut]


def test_the_size_is_that_of_the_text(tmp_path: Path) -> None:
    texts = lines(100)
    exact = sum(len(vocabulary().encode(text)) + 1 for text in texts)
    assert corpus(tmp_path, texts=texts).tokens() == exact


@pytest.mark.parametrize("changes", [{"width": 4}, {"batch": 0}, {"held_out": 0.9}])
def test_settings_that_make_no_examples_are_refused(
    tmp_path: Path, changes: dict[str, float]
) -> None:
    with pytest.raises(ManifestError, match="expected at least 8 ids"):
        corpus(tmp_path, **changes)


def test_text_with_nothing_in_it_is_refused(tmp_path: Path) -> None:
    empty = corpus(tmp_path, texts=["  ", " "])
    with pytest.raises(ManifestError, match="nothing to train on"):
        empty.batch(0)
    with pytest.raises(ManifestError, match="no held-out passage"):
        empty.held_out(0)
