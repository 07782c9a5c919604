import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitlearn.errors import ManifestError
from splitlearn.manifest import Job
from splitlearn.tasks.rows import AnswerRow, PairRow, PlainRow, TextRow, TokenRow, load_rows

MakeJob = Callable[..., Job]
TEXTS = ["wonderful", "скучно", "这部电影", "फिल्म अच्छी", "كان مملا", 'he said "no", twice']


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8")


def refused(job: Job, part: str = "train") -> str:
    with pytest.raises(ManifestError) as caught:
        load_rows(job, part=part)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"{job.file}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{job.file}: ")


def table_file(path: Path, texts: list[str], labels: list[Any]) -> None:
    """The same rows in the format that the file's name says."""
    form = path.name.removesuffix(".gz").rpartition(".")[2]
    if form == "parquet":
        datasets.Dataset.from_dict({"text": texts, "label": labels}).to_parquet(path)
    elif form == "jsonl":
        write_lines(path, [{"text": t, "label": n} for t, n in zip(texts, labels, strict=True)])
    else:
        quoted = ['"' + t.replace('"', '""') + '"' if form == "csv" else t for t in texts]
        separator = {"csv": ",", "tsv": "\t"}[form]
        lines = [f"{t}{separator}{n}\n" for t, n in zip(quoted, labels, strict=True)]
        path.write_text(f"text{separator}label\n" + "".join(lines), encoding="utf-8")
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes()))


@pytest.mark.parametrize(
    "name", ["t.csv", "t.tsv", "t.jsonl", "t.parquet", "t.tsv.gz", "t.jsonl.gz"]
)
def test_every_format_gives_the_same_rows_in_any_script(
    tmp_path: Path, make_job: MakeJob, name: str
) -> None:
    table_file(tmp_path / name, TEXTS, [0, 1, 0, 1, 10, 9])
    rows = load_rows(make_job(data={"train": name}), part="train")
    assert rows.rows == tuple(
        TextRow(text=text, pair=None, label=label)
        for text, label in zip(TEXTS, ["0", "1", "0", "1", "10", "9"], strict=True)
    )
    assert rows.labels == ("0", "1", "9", "10")
    assert rows.name == name


def test_cells_that_look_like_numbers_or_nothing_stay_texts(
    tmp_path: Path, make_job: MakeJob
) -> None:
    table_file(tmp_path / "t.csv", ["NA", "007", "null", "1e5"], ["None", "nan", "a", "a"])
    rows = load_rows(make_job(data={"train": "t.csv"}), part="train")
    assert [row.text for row in rows.rows if isinstance(row, TextRow)] == [
        "NA",
        "007",
        "null",
        "1e5",
    ]
    assert rows.labels == ("None", "a", "nan")


def test_tsv_takes_quotes_as_they_stand(tmp_path: Path, make_job: MakeJob) -> None:
    (tmp_path / "t.tsv").write_text('text\tlabel\n"half\ta\nwhole"\tb\n')
    rows = load_rows(make_job(data={"train": "t.tsv"}), part="train")
    assert [row.text for row in rows.rows if isinstance(row, TextRow)] == ['"half', 'whole"']


def test_pairs_and_evaluation_rows_are_read(tmp_path: Path, make_job: MakeJob) -> None:
    write_lines(tmp_path / "e.jsonl", [{"text": "a", "other": "b", "label": "x"}])
    job = make_job(data={"evaluate": "e.jsonl", "text_pair": "other"})
    assert load_rows(job, part="evaluate").rows == (TextRow(text="a", pair="b", label="x"),)


def test_evaluation_without_data_is_told_so(make_job: MakeJob) -> None:
    assert refused(make_job(), "evaluate").startswith("data.evaluate is missing; it takes")


def test_declared_label_names_keep_their_order(tmp_path: Path, make_job: MakeJob) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["pos", "neg"])}
    )
    table = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 1]}, features=features)
    table.to_parquet(tmp_path / "t.parquet")
    rows = load_rows(make_job(data={"train": "t.parquet"}), part="train")
    assert rows.labels == ("pos", "neg")
    assert [row.label for row in rows.rows if isinstance(row, TextRow)] == ["neg", "neg"]


def test_words_and_tags_are_lists_or_texts_with_spaces(tmp_path: Path, make_job: MakeJob) -> None:
    words, tags = ("Анна", "in", "北京"), ("B-PER", "O", "B-LOC")
    write_lines(tmp_path / "t.jsonl", [{"tokens": words, "tags": tags}])
    (tmp_path / "t.tsv").write_text(f"tokens\ttags\n{' '.join(words)}\t{' '.join(tags)}\n")
    for name in ("t.jsonl", "t.tsv"):
        job = make_job(model={"task": "token-classification"}, data={"train": name})
        rows = load_rows(job, part="train")
        assert rows.rows == (TokenRow(tokens=words, tags=tags),)
        assert rows.labels == ("B-LOC", "B-PER", "O")


def test_declared_tag_names_are_taken(tmp_path: Path, make_job: MakeJob) -> None:
    features = datasets.Features(
        {
            "tokens": datasets.List(datasets.Value("string")),
            "tags": datasets.List(datasets.ClassLabel(names=["O", "B-PER"])),
        }
    )
    table = datasets.Dataset.from_dict(
        {"tokens": [["a", "b"]], "tags": [[1, 0]]}, features=features
    )
    table.to_parquet(tmp_path / "t.parquet")
    job = make_job(model={"task": "token-classification"}, data={"train": "t.parquet"})
    rows = load_rows(job, part="train")
    assert rows.rows == (TokenRow(tokens=("a", "b"), tags=("B-PER", "O")),)
    assert rows.labels == ("O", "B-PER")


QA = {"task": "question-answering"}


def test_answers_stand_in_columns_of_their_own_or_in_records(
    tmp_path: Path, make_job: MakeJob
) -> None:
    context, question = "Анна живёт в Берлине.", "Где живёт Анна?"
    expected = AnswerRow(question=question, context=context, answers=("Берлине",), start=13)
    shared = {"question": question, "context": context}
    write_lines(tmp_path / "flat.jsonl", [{**shared, "answer": "Берлине", "start": 13}])
    write_lines(
        tmp_path / "squad.jsonl",
        [{**shared, "answers": {"text": ["Берлине"], "answer_start": [13]}}],
    )
    write_lines(
        tmp_path / "list.jsonl", [{**shared, "answers": [{"text": "Берлине", "answer_start": 13}]}]
    )
    (tmp_path / "flat.tsv").write_text(
        f"question\tcontext\tanswer\tstart\n{question}\t{context}\t{expected.answers[0]}\t13\n"
    )
    inside = {"answer_text": "answers.text", "answer_start": "answers.answer_start"}
    for name, columns in [
        ("flat.jsonl", {}),
        ("flat.tsv", {}),
        ("squad.jsonl", inside),
        ("list.jsonl", inside),
    ]:
        rows = load_rows(make_job(model=QA, data={"train": name, **columns}), part="train")
        assert rows.rows == (expected,)
        assert rows.labels == ()


def test_a_text_alone_has_no_label(tmp_path: Path, make_job: MakeJob) -> None:
    write_lines(tmp_path / "t.jsonl", [{"text": "Анна"}, {"text": "b", "label": 1}])
    job = make_job(model={"task": "causal-language-modelling"}, data={"train": "t.jsonl"})
    rows = load_rows(job, part="train")
    assert rows.rows == (PlainRow("Анна"), PlainRow("b"))
    assert rows.labels == ()


def test_a_text_and_its_target_stand_in_two_columns(tmp_path: Path, make_job: MakeJob) -> None:
    write_lines(tmp_path / "t.jsonl", [{"text": "ein Film", "said": "a film"}])
    job = make_job(
        model={"task": "sequence-to-sequence"}, data={"train": "t.jsonl", "target": "said"}
    )
    rows = load_rows(job, part="train")
    assert rows.rows == (PairRow("ein Film", "a film"),)
    assert rows.labels == ()


def test_a_column_that_is_not_there_is_named_with_those_that_are(
    tmp_path: Path, make_job: MakeJob
) -> None:
    write_lines(tmp_path / "t.jsonl", [{"sentence": "a", "label": 1}])
    told = refused(make_job(data={"train": "t.jsonl"}))
    assert (
        told == 'data.text is "text", which t.jsonl does not have; its columns are sentence, label'
    )


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"text": "a", "label": 1}, {"text": " ", "label": 1}], "row 2: has an empty text"),
        ([{"text": "a", "label": None}], "row 1: has a NoneType where label takes a name"),
        ([{"text": "a", "label": 0.5}], "row 1: has a float where label"),
        ([{"text": "a", "label": True}], "row 1: has a bool where label"),
        ([{"text": "a", "label": ""}], "row 1: has an empty label"),
        ([{"text": 3, "label": 1}], "row 1: has a int where text takes a text"),
        ([{"text": None, "label": 1}], "row 1: has a NoneType where text"),
    ],
)
def test_a_bad_row_is_named_by_number(
    tmp_path: Path, make_job: MakeJob, rows: list[dict[str, Any]], told: str
) -> None:
    write_lines(tmp_path / "t.jsonl", rows)
    assert refused(make_job(data={"train": "t.jsonl"})).startswith(f"data.train (t.jsonl) {told}")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "has 2 tokens and 1 tags"),
        ({"tokens": [], "tags": []}, "has no tokens"),
        ({"tokens": ["a", " "], "tags": ["O", "O"]}, "has a token that is empty"),
        ({"tokens": ["a"], "tags": [None]}, "has a NoneType where tags"),
    ],
)
def test_a_bad_row_of_words_is_told(
    tmp_path: Path, make_job: MakeJob, row: dict[str, Any], told: str
) -> None:
    write_lines(tmp_path / "t.jsonl", [row])
    job = make_job(model={"task": "token-classification"}, data={"train": "t.jsonl"})
    assert told in refused(job)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"start": 5}, "does not stand at character 5"),
        ({"start": -1}, "does not stand at character -1"),
        ({"start": "x"}, "no whole number"),
        ({"start": True}, "no whole number"),
        ({"answer": ""}, "has no answer text"),
        ({"answer": []}, "has no answer text"),
        ({"answer": ["Berlin", ""]}, "has no answer text"),
        ({"question": ""}, "has an empty question"),
        ({"context": None}, "where context takes a text"),
    ],
)
def test_a_bad_answer_is_told(
    tmp_path: Path, make_job: MakeJob, change: dict[str, Any], told: str
) -> None:
    good = {"question": "Where?", "context": "in Berlin", "answer": "Berlin", "start": 3}
    write_lines(tmp_path / "t.jsonl", [good | change])
    assert told in refused(make_job(model=QA, data={"train": "t.jsonl"}))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", b""),
        ("t.jsonl", b""),
        ("t.csv", b"text,label\n"),
        ("t.csv", b"text,label\na,b,c\n"),
        ("t.csv", b"text,label\na,b\na,b,c\n"),
        ("t.csv", b"text,text\na,b\n"),
        ("t.csv", b"text,\na,b\n"),
        ("t.csv", b'text,label\n"a,b\n'),
        ("t.csv", b"text,label\n\xff\xfe,b\n"),
        ("t.csv", b"text,label\na\n"),
        ("t.csv", b"text,label\na,b\n\nc,d\n"),
        ("t.jsonl", b'{"text":\n'),
        ("t.parquet", b"PAR1junk"),
        ("t.tsv.gz", b"text\tlabel\na\tb\n"),
        ("t.tsv.gz", gzip.compress(b"text\tlabel\na\tb\n", mtime=0)[:-4]),
    ],
)
def test_a_broken_file_is_told_with_its_name(
    tmp_path: Path, make_job: MakeJob, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    assert f"data.train ({name})" in refused(make_job(data={"train": name}))


def test_a_file_without_rows_is_told_so(tmp_path: Path, make_job: MakeJob) -> None:
    features = {"text": datasets.Value("string"), "label": datasets.Value("string")}
    empty = datasets.Dataset.from_dict(
        {"text": [], "label": []}, features=datasets.Features(features)
    )
    empty.to_parquet(tmp_path / "t.parquet")
    assert "no rows" in refused(make_job(data={"train": "t.parquet"}))


def test_a_run_folder_that_cannot_be_made_is_told(tmp_path: Path, make_job: MakeJob) -> None:
    (tmp_path / "taken").touch()
    table_file(tmp_path / "t.csv", ["a"], [0])
    told = refused(make_job(run={"folder": "taken"}, data={"train": "t.csv"}))
    assert told.startswith(f"run.folder {tmp_path / 'taken'} cannot be written (File exists)")


def test_a_hub_that_cannot_be_reached_is_told(make_job: MakeJob) -> None:
    assert "data.train (owner/set) cannot be read" in refused(make_job(data={"train": "owner/set"}))


def test_nothing_of_what_was_read_stays_on_disk(tmp_path: Path, make_job: MakeJob) -> None:
    table_file(tmp_path / "t.csv", TEXTS, [0, 1, 0, 1, 0, 1])
    job = make_job(data={"train": "t.csv"})
    load_rows(job, part="train")
    assert list(job.run.folder.iterdir()) == []


def test_an_error_quotes_no_text(tmp_path: Path, make_job: MakeJob) -> None:
    write_lines(
        tmp_path / "t.jsonl", [{"text": "sesame", "label": 1}, {"text": "sesame", "label": []}]
    )
    assert "sesame" not in refused(make_job(data={"train": "t.jsonl"}))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.binary(max_size=60))
def test_junk_gives_rows_or_our_error(tmp_path: Path, make_job: MakeJob, junk: bytes) -> None:
    for name in ("t.csv", "t.jsonl"):
        (tmp_path / name).write_bytes(b"text,label\n" + junk if name == "t.csv" else junk)
        with suppress(ManifestError):
            load_rows(make_job(data={"train": name}), part="train")
