from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from splitlearn.errors import ManifestError
from splitlearn.manifest import Job
from splitlearn.tasks.encode import IGNORED, Encoded, encode
from splitlearn.tasks.rows import AnswerRow, PairRow, PlainRow, Row, Rows, TextRow, TokenRow

MakeJob = Callable[..., Job]


@pytest.fixture(scope="module")
def bert(bert_folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(bert_folder)


@pytest.fixture(scope="module")
def roberta(roberta_folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(roberta_folder, add_prefix_space=True)


def rows_of(*rows: Row, labels: tuple[str, ...] = ()) -> Rows:
    return Rows(rows=rows, labels=labels, name="t.jsonl")


TEXTS = rows_of(
    TextRow(text="the film was wonderful", pair=None, label="pos"),
    TextRow(text="这部电影非常好看 , фильм был", pair=None, label="neg"),
    labels=("neg", "pos"),
)


def test_texts_become_what_the_tokenizer_makes_of_them(
    make_job: MakeJob, bert: PreTrainedTokenizerBase
) -> None:
    encoded = encode(TEXTS, job=make_job(), part="train", tokenizer=bert, labels=("neg", "pos"))
    for number, example in enumerate(encoded.examples):
        row = TEXTS.rows[number]
        assert isinstance(row, TextRow)
        assert list(example.input_ids) == bert(row.text)["input_ids"]
        assert example.token_type_ids == (0,) * len(example.input_ids)
        assert (example.items, example.row) == (1, number)
    assert [example.targets for example in encoded.examples] == [{"labels": 1}, {"labels": 0}]
    assert encoded.gold == (("pos",), ("neg",))
    assert encoded.left_out == 0


def test_pairs_are_told_apart_by_type_and_cut_to_the_limit(
    make_job: MakeJob, bert: PreTrainedTokenizerBase
) -> None:
    pair = rows_of(
        TextRow(text="the film " * 20, pair="a story " * 20, label="a"), labels=("a", "b")
    )
    job = make_job(data={"text_pair": "other", "max_length": 16})
    (example,) = encode(pair, job=job, part="train", tokenizer=bert, labels=("a", "b")).examples
    assert len(example.input_ids) == 16
    assert example.token_type_ids is not None
    assert set(example.token_type_ids) == {0, 1}


def test_a_tokenizer_without_types_gives_none(
    make_job: MakeJob, roberta: PreTrainedTokenizerBase
) -> None:
    encoded = encode(TEXTS, job=make_job(), part="train", tokenizer=roberta, labels=("neg", "pos"))
    assert {example.token_type_ids for example in encoded.examples} == {None}


def test_numbers_in_the_data_are_places_among_the_jobs_names(
    make_job: MakeJob, bert: PreTrainedTokenizerBase
) -> None:
    rows = rows_of(TextRow(text="good", pair=None, label="1"), labels=("0", "1"))
    encoded = encode(rows, job=make_job(), part="train", tokenizer=bert, labels=("neg", "pos"))
    assert encoded.examples[0].targets == {"labels": 1}
    assert encoded.gold == (("pos",),)


def test_numbers_that_are_names_themselves_stay_names(
    make_job: MakeJob, bert: PreTrainedTokenizerBase
) -> None:
    rows = rows_of(TextRow(text="good", pair=None, label="1"), labels=("0", "1"))
    encoded = encode(rows, job=make_job(), part="train", tokenizer=bert, labels=("1", "0"))
    assert encoded.examples[0].targets == {"labels": 0}


@pytest.mark.parametrize("label", ["neutral", "2", "-1"])
def test_a_label_that_is_not_among_the_jobs_is_refused(
    make_job: MakeJob, bert: PreTrainedTokenizerBase, label: str
) -> None:
    rows = rows_of(TextRow(text="good", pair=None, label=label), labels=(label,))
    with pytest.raises(ManifestError, match=rf'model.labels has 2 .* another, "{label}"'):
        encode(rows, job=make_job(), part="train", tokenizer=bert, labels=("neg", "pos"))


TAGS = ("B-PER", "O")
TOKENS = rows_of(
    TokenRow(
        tokens=("Anna", "wonderfully", "北京", "актёрыхорошо"), tags=("B-PER", "O", "B-PER", "O")
    ),
    labels=TAGS,
)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_first_piece_of_each_word_has_the_words_tag(
    make_job: MakeJob, request: pytest.FixtureRequest, family: str
) -> None:
    tokenizer = request.getfixturevalue(family)
    job = make_job(model={"task": "token-classification"}, data={"max_length": 60})
    encoded = encode(TOKENS, job=job, part="train", tokenizer=tokenizer, labels=TAGS)
    (example,) = encoded.examples
    labels = example.targets["labels"]
    assert isinstance(labels, tuple)
    assert len(labels) == len(example.input_ids) > 6
    assert [label for label in labels if label != IGNORED] == [0, 1, 0, 1]
    assert example.words == (0, 1, 2, 3)
    assert example.items == 4
    assert labels[0] == labels[-1] == IGNORED
    # The oracle: pieces of each word alone, counted.
    place = 1
    row = TOKENS.rows[0]
    assert isinstance(row, TokenRow)
    for word, tag in zip(row.tokens, row.tags, strict=True):
        pieces = tokenizer([word], is_split_into_words=True, add_special_tokens=False)["input_ids"]
        assert list(example.input_ids[place : place + len(pieces)]) == pieces
        assert labels[place : place + len(pieces)] == (TAGS.index(tag),) + (IGNORED,) * (
            len(pieces) - 1
        )
        place += len(pieces)


def test_words_cut_off_by_the_limit_have_no_target(
    make_job: MakeJob, bert: PreTrainedTokenizerBase
) -> None:
    rows = rows_of(TokenRow(tokens=("film",) * 20, tags=("O",) * 20), labels=("O",))
    job = make_job(model={"task": "token-classification"}, data={"max_length": 8})
    encoded = encode(rows, job=job, part="train", tokenizer=bert, labels=TAGS)
    assert encoded.examples[0].words == (0, 1, 2, 3, 4, 5)
    assert encoded.gold == (("O",) * 20,)


def test_a_row_of_which_the_tokenizer_leaves_nothing_is_named(
    make_job: MakeJob, bert: PreTrainedTokenizerBase
) -> None:
    good = TokenRow(tokens=("film",), tags=("O",))
    rows = rows_of(good, TokenRow(tokens=("\u200b",), tags=("O",)), labels=("O",))
    job = make_job(model={"task": "token-classification"})
    with pytest.raises(ManifestError, match="row 2: the tokenizer leaves no token that has a tag"):
        encode(rows, job=job, part="train", tokenizer=bert, labels=TAGS)


def answer_row(context: str, answer: str, question: str = "Where does Anna work ?") -> AnswerRow:
    return AnswerRow(
        question=question, context=context, answers=(answer,), start=context.index(answer)
    )


CONTEXTS = [
    ("Anna Schmidt works for Acme in Berlin since 1999 .", "Acme"),
    ("Anna Schmidt works for Acme in Berlin since 1999 .", "Anna Schmidt works"),
    ("актёры играли хорошо", "хорошо"),
    ("这部电影非常好看", "非常好"),
    ("فيلم كان الفيلم مملا", "مملا"),
]


def qa(job: Job, tokenizer: PreTrainedTokenizerBase, *rows: AnswerRow, part: str) -> Encoded:
    return encode(rows_of(*rows), job=job, part=part, tokenizer=tokenizer, labels=())  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize(("context", "answer"), CONTEXTS)
def test_start_and_end_are_the_tokens_that_hold_the_answer(
    make_job: MakeJob, request: pytest.FixtureRequest, family: str, context: str, answer: str
) -> None:
    tokenizer = request.getfixturevalue(family)
    job = make_job(model={"task": "question-answering"}, data={"max_length": 60})
    row = answer_row(context, answer)
    (example,) = qa(job, tokenizer, row, part="evaluate").examples
    first, last = example.targets["start_positions"], example.targets["end_positions"]
    assert isinstance(first, int)
    assert isinstance(last, int)
    assert example.offsets is not None
    start, end = example.offsets[first], example.offsets[last]
    assert start is not None
    assert end is not None
    # Byte-level pieces may begin inside a character or before the space; then they cover more.
    assert answer in context[start[0] : end[1]]
    assert len(context[start[0] : end[1]].strip()) <= len(answer) + 1
    # Tokens of the question and special ones stand nowhere in the context.
    assert example.offsets[0] is None
    assert example.offsets[-1] is None


def test_a_long_context_becomes_overlapping_windows_that_hold_all_of_it(
    make_job: MakeJob, bert: PreTrainedTokenizerBase
) -> None:
    job = make_job(model={"task": "question-answering"}, data={"max_length": 24})
    context = " ".join(["the film was long"] * 20 + ["Berlin"] + ["a dull story"] * 20)
    row = answer_row(context, "Berlin")
    evaluate = qa(job, bert, row, part="evaluate")
    assert len(evaluate.examples) > 5
    assert {len(example.input_ids) for example in evaluate.examples[:-1]} == {24}
    covered: set[int] = set()
    for example in evaluate.examples:
        assert example.offsets is not None
        covered |= {place for offset in example.offsets if offset for place in range(*offset)}
    assert covered == {place for place, character in enumerate(context) if character != " "}
    train = qa(job, bert, row, part="train")
    assert 1 <= len(train.examples) < len(evaluate.examples)
    for example in train.examples:
        assert example.offsets is None
        ids = example.input_ids[example.targets["start_positions"]]  # type: ignore[index]
        assert bert.convert_ids_to_tokens(ids) in {"berlin", "b", "be", "ber"}


def test_a_question_longer_than_half_the_limit_is_cut(
    make_job: MakeJob, bert: PreTrainedTokenizerBase
) -> None:
    job = make_job(model={"task": "question-answering"}, data={"max_length": 8})
    row = answer_row("Anna works in Berlin", "Berlin", question="where does the film story " * 9)
    encoded = qa(job, bert, row, part="train")
    assert encoded.examples
    assert all(len(example.input_ids) <= 8 for example in encoded.examples)


def test_training_rows_whose_answer_fits_no_window_are_counted(
    make_job: MakeJob, bert: PreTrainedTokenizerBase
) -> None:
    job = make_job(model={"task": "question-answering"}, data={"max_length": 12})
    long = " ".join(["the film was wonderful"] * 5)
    short = answer_row("in Berlin", "Berlin")
    encoded = qa(job, bert, short, answer_row(long, long), part="train")
    assert encoded.left_out == 1
    assert {example.row for example in encoded.examples} == {0}
    with pytest.raises(
        ManifestError, match=r"data\.max_length is 12, which leaves no answer whole"
    ):
        qa(job, bert, answer_row(long, long), part="train")


def test_a_text_is_what_has_to_be_said_and_ends_with_its_end(
    make_job: MakeJob, gpt2_folder: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gpt2_folder)
    job = make_job(model={"task": "causal-language-modelling"}, data={"max_length": 8})
    rows = rows_of(PlainRow("a"), PlainRow("фильм был прекрасным"), PlainRow("film<|end|>"))
    encoded = encode(rows, job=job, part="train", tokenizer=tokenizer, labels=())
    short, cut, ended = encoded.examples
    assert short.input_ids == (*tokenizer("a")["input_ids"], tokenizer.eos_token_id)
    assert len(cut.input_ids) == 8
    assert cut.input_ids[-1] != tokenizer.eos_token_id
    assert ended.input_ids.count(tokenizer.eos_token_id) == 1
    for example in encoded.examples:
        assert example.targets["labels"] == (IGNORED, *example.input_ids[1:])
        assert example.items == len(example.input_ids) - 1
        assert example.next_token
    assert encoded.gold == ((), (), ())


def test_a_text_of_which_nothing_is_to_be_said_is_named(
    make_job: MakeJob, gpt2_folder: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gpt2_folder)
    tokenizer.eos_token = None
    job = make_job(model={"task": "causal-language-modelling"})
    rows = rows_of(PlainRow("a film"), PlainRow("a"))
    with pytest.raises(
        ManifestError, match=r"row 2: the tokenizer leaves no token that has another"
    ):
        encode(rows, job=job, part="train", tokenizer=tokenizer, labels=())


def test_a_target_is_what_has_to_be_said_of_its_text(
    make_job: MakeJob, roberta: PreTrainedTokenizerBase
) -> None:
    job = make_job(model={"task": "sequence-to-sequence"}, data={"max_length": 8})
    rows = rows_of(PairRow("der Film war langweilig und viel zu lang", "a film"))
    (example,) = encode(rows, job=job, part="train", tokenizer=roberta, labels=()).examples
    assert len(example.input_ids) == 8
    assert example.targets["labels"] == tuple(roberta("a film")["input_ids"])
    assert (example.items, example.target) == (len(example.targets["labels"]), True)
