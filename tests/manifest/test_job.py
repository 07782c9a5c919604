import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitlearn.errors import ManifestError
from splitlearn.manifest import Job, load_job

JOB: dict[str, dict[str, Any]] = {
    "run": {"name": "reviews-1", "folder": "out"},
    "identity": {"folder": "identity"},
    "peer": {"party": "gpus", "dial": "localhost:7000"},
    "model": {"path": "model", "task": "sequence-classification"},
    "data": {"train": "train.tsv", "evaluate": "dev.tsv", "text": "sentence", "label": "label"},
    "schedule": {"epochs": 1},
    "policy": {"file": "policy.toml"},
}


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(inner) for inner in value) + "]"
    return repr(value)


def write(folder: Path, **changes: dict[str, Any]) -> Path:
    """The good job with `changes` to its tables; a value of None leaves the key out."""
    (folder / "model").mkdir(exist_ok=True)
    for name in ("train.tsv", "dev.tsv", "policy.toml", "public.txt"):
        (folder / name).write_text(name)
    (folder / "model" / "config.json").write_text("{}")
    lines = []
    for table in JOB | changes:
        merged = {**JOB.get(table, {}), **changes.get(table, {})}
        lines.append(f"[{table}]")
        lines += [f"{key} = {toml(value)}" for key, value in merged.items() if value is not None]
    (folder / "job.toml").write_text("\n".join(lines), encoding="utf-8")
    return folder / "job.toml"


def sentence(path: Path) -> str | None:
    """What a user is told about the file; None if it is a job."""
    try:
        load_job(path)
    except ManifestError as error:
        return str(error)
    return None


def job(folder: Path, **changes: dict[str, Any]) -> Job:
    return load_job(write(folder, **changes))


def test_a_short_job_is_whole_with_its_defaults(tmp_path: Path) -> None:
    loaded = job(tmp_path)
    assert loaded.file == tmp_path / "job.toml"
    assert loaded.run.folder == tmp_path / "out"
    assert loaded.run.seed == 0
    assert loaded.data.train.file == tmp_path / "train.tsv"
    assert loaded.data.max_length == 128
    assert loaded.codec.activation == "int8+zstd"
    assert loaded.codec.output == loaded.codec.gradient == loaded.codec.input_gradient == "fp16"
    assert loaded.schedule.batch_size == 32
    assert loaded.checkpoint.every_steps == 50


PCA = {"method": "pca", "rank": 8, "public_text": "public.txt"}
SFT = {"method": "sft", "rank": 8}
QA = {"text": None, "label": None, "question": "q", "context": "c", "answer_text": "a"}
FULL = {"mode": "full"}
WORDS = {"text": None, "label": None, "tokens": "words", "tags": "tags"}


@pytest.mark.parametrize(
    "changes",
    [
        {"cut": {"lower": PCA, "upper": SFT}},
        {"cut": {"mode": "full", "train_bottom": True, "bottom": 1, "top": 4}},
        {"model": {"labels": ["neg", "pos"]}},
        {"cut": {"mode": "lora", "train_bottom": True, "lora": {"rank": 4, "where": "all"}}},
        {"model": {"task": "token-classification"}, "data": WORDS},
        {"model": {"task": "question-answering"}, "data": {**QA, "answer_start": "answers.start"}},
        {"schedule": {"epochs": None, "steps": 10, "warmup_steps": 10, "micro_batches": 32}},
        {"peer": {"dial": None, "listen": "[::]:0"}},
        {"privacy": {"label_epsilon": 1.0}},
        {"cut": {"mode": "full"}, "privacy": {"gradient_clip": 0.7, "gradient_noise": 4.0}},
        {"data": {"text_pair": "second", "evaluate": None, "train": "nyu-mll/glue:sst2"}},
        {"model": {"task": "causal-language-modelling"}, "data": {"label": None, "join": True}},
        {"model": {"task": "sequence-to-sequence"}, "data": {"label": None, "target": "said"}},
    ],
)
def test_what_is_possible_is_read(tmp_path: Path, changes: dict[str, Any]) -> None:
    job(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"schedule": {"patience": 2}}, "schedule.patience counts scores"),
        ({"checkpoint": {"best": True}}, "checkpoint.best is true and needs scores"),
        (
            {"schedule": {"evaluate_every": 2}, "data": {"evaluate": None}},
            "schedule.evaluate_every scores data.evaluate",
        ),
        (
            {"schedule": {"evaluate_every": 2, "staleness": 1}, "data": {"evaluate": "dev.tsv"}},
            "schedule.evaluate_every has to stop between two steps",
        ),
        (
            {"optimiser": {"clip_norm": 1.0}, "schedule": {"staleness": 1}},
            "optimiser.clip_norm needs a step's whole gradient",
        ),
        ({"optimiser": {"clip_norm": 0.0}}, "optimiser.clip_norm is 0"),
        ({"cut": {"lora": {"rank": 4}}}, 'cut.lora has no use in mode "features"'),
        ({"cut": {"mode": "lora", "lora": {"rank": 0}}}, "cut.lora.rank"),
        ({"cut": {"train_bottom": True}}, 'cut.train_bottom is true, but in mode "features"'),
        (
            {"cut": {"bottom": 3, "top": 3}},
            "cut.top is 3 and cut.bottom is 3, which leave no layer",
        ),
        ({"cut": {"top": 0}}, "cut.top is 0"),
        ({"cut": {"upper": {"method": "sft"}}}, "cut.upper.rank is missing or 0"),
        ({"cut": {"upper": {"rank": 8}}}, "cut.upper.rank is 8 without cut.upper.method"),
        ({"cut": {"lower": {"method": "pca", "rank": 8}}}, "cut.lower.public_text is missing"),
        (
            {"cut": {"lower": {**SFT, "public_text": "public.txt"}}},
            "cut.lower.public_text has a use",
        ),
        ({"schedule": {"in_flight": 17}}, "schedule.in_flight is 17"),
        ({"schedule": {"staleness": 5}}, "schedule.staleness is 5"),
        ({"schedule": {"order": "random"}}, 'schedule.order is "random"'),
        ({"schedule": {"micro_batches": 33}}, "schedule.micro_batches is 33, more than the 32"),
        (
            {"schedule": {"steps": 3}},
            "schedule.epochs or schedule.steps has to be given, and not both",
        ),
        ({"schedule": {"epochs": None}}, "schedule.epochs or schedule.steps has to be given"),
        ({"schedule": {"epochs": None, "steps": 3, "warmup_steps": 4}}, "it takes at most"),
        ({"peer": {"listen": "localhost:1"}}, "peer.dial or peer.listen has to be given"),
        (
            {"data": {"label": None}},
            "data.label is missing; sequence-classification needs data.text",
        ),
        ({"data": {"tokens": "t"}}, "data.tokens has no use in sequence-classification"),
        ({"model": {"task": "question-answering"}, "data": QA}, "data.answer_start is missing"),
        (
            {
                "model": {"task": "question-answering", "labels": ["a", "b"]},
                "data": {**QA, "answer_start": "s"},
            },
            "model.labels has no use in question-answering",
        ),
        ({"model": {"labels": ["a", "a"]}}, "model.labels names a label twice"),
        ({"model": {"labels": ["a"]}}, "model.labels is"),
        ({"model": {"path": "./gone"}}, "model.path is"),
        ({"data": {"train": "gone.csv"}}, "there is no file"),
        ({"codec": {"activation": "pca-0.5"}}, "codec.public_text is missing"),
        ({"codec": {"public_text": "public.txt"}}, "codec.public_text has a use"),
        (
            {"codec": {"gradient": "pca-transform-e0.1", "public_text": "public.txt"}},
            "gain next to nothing from a basis; take transform-e0.1",
        ),
        (
            {
                "codec": {"output": "pca-0.5", "public_text": "public.txt"},
                "cut.upper": {"method": "sft", "rank": 4},
            },
            "codec.output is pca-0.5, and what a low-rank cut",
        ),
        ({"codec": {"output": "int3"}}, "codec.output is"),
        ({"codec": {"gradient": "delta-int4"}}, "of an epoch before; take int4"),
        ({"codec": {"output": "delta-int4+zstd"}}, "which sample is which; take int4+zstd"),
        ({"codec": {"cache_mb": 0}}, "codec.cache_mb is 0"),
        ({"optimizer": {"name": "adamw"}}, "optimizer is not a key; did you mean optimiser?"),
        ({"run": {"name": "../x"}}, "run.name is"),
        ({"privacy": {"label_epsilon": 0.0}}, "privacy.label_epsilon is 0.0; it takes the epsilon"),
        ({"privacy": {"delta": 1.0}}, "privacy.delta is 1.0"),
        (
            {"cut": FULL, "privacy": {"gradient_noise": 4.0}},
            "privacy.gradient_noise is 4 without privacy.gradient_clip",
        ),
        (
            {"cut": FULL, "privacy": {"gradient_clip": 1.0}},
            "clipping alone hides nothing",
        ),
        (
            {"privacy": {"gradient_noise": 4.0, "gradient_clip": 1.0}},
            'privacy.gradient_noise has no use in cut.mode "features", where no gradient leaves',
        ),
        (
            {
                "model": {"task": "question-answering"},
                "data": {**QA, "answer_start": "s"},
                "privacy": {"label_epsilon": 1.0},
            },
            "privacy.label_epsilon is not to be had in question-answering",
        ),
        ({"data": {"join": True}}, "data.join is true, and sequence-classification has one text"),
        (
            {"model": {"task": "causal-language-modelling"}},
            "data.label has no use in causal-language-modelling, which has data.text",
        ),
        (
            {
                "model": {"task": "causal-language-modelling", "labels": ["a", "b"]},
                "data": {"label": None},
            },
            "model.labels has no use in causal-language-modelling",
        ),
        (
            {
                "model": {"task": "causal-language-modelling"},
                "data": {"label": None},
                "privacy": {"label_epsilon": 1.0},
            },
            "whose labels are texts",
        ),
    ],
)
def test_what_is_impossible_is_told_in_one_sentence(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        job(tmp_path, **changes)
    assert str(caught.value).startswith(f"{tmp_path / 'job.toml'}: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_trunk_is_counted_from_either_end(tmp_path: Path) -> None:
    assert job(tmp_path).trunk(layers=6) == (2, 5)
    assert job(tmp_path, cut={"bottom": 1, "top": 3}).trunk(layers=4) == (1, 3)
    assert job(tmp_path, cut={"bottom": 1, "top": 4}).trunk(layers=4) == (1, 4)
    for layers in (1, 2, 3):
        with pytest.raises(ManifestError, match=f"model of {layers} layers"):
            job(tmp_path).trunk(layers=layers)
    with pytest.raises(ManifestError, match="take 1 <= bottom < top <= 4"):
        job(tmp_path, cut={"bottom": 1, "top": 5}).trunk(layers=4)


DECIDING: list[dict[str, Any]] = [
    {"run": {"seed": 1}},
    {"model": {"attention": "eager"}},
    {"data": {"max_length": 64}},
    {"cut": {"bottom": 1}},
    {"cut": {"mode": "full"}},
    {"cut": {"mode": "lora"}},
    {"cut": {"upper": SFT}},
    {"codec": {"activation": "identity"}},
    {"optimiser": {"learning_rate": 3e-5}},
    {"optimiser": {"clip_norm": 1.0}},
    {"schedule": {"epochs": 2}},
    {"schedule": {"micro_batches": 2}},
    {"schedule": {"staleness": 1}},
    {"schedule": {"evaluate_every": 5, "patience": 2}, "data": {"evaluate": "dev.tsv"}},
    {
        "schedule": {"evaluate_every": 5},
        "checkpoint": {"best": True},
        "data": {"evaluate": "dev.tsv"},
    },
    {"privacy": {"label_epsilon": 1.0}},
]
INDIFFERENT: list[dict[str, Any]] = [
    {"run": {"name": "other", "folder": "elsewhere", "deadline_s": 1.5}},
    {"run": {"device": "cuda:1", "precision": "bf16"}},
    {"peer": {"party": "others", "dial": "10.0.0.1:1"}},
    {"checkpoint": {"every_steps": 7, "best": False}},
    {"codec": {"cache_mb": 7}},
    {"privacy": {"delta": 1e-6}},
    {"schedule": {"order": "fill-drain", "in_flight": 1}},
    {"schedule": {"evaluate_every": 5}, "data": {"evaluate": "dev.tsv"}},
    {"model": {"labels": ["bad", "good"]}},
    {"data": {"train": "dev.tsv", "text": "review"}},
]


@pytest.mark.parametrize("changes", DECIDING)
def test_a_setting_that_decides_the_numbers_changes_the_digest(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert job(tmp_path).digest() != job(tmp_path, **changes).digest()


@pytest.mark.parametrize("changes", INDIFFERENT)
def test_addresses_paths_names_and_contents_are_not_in_the_digest_the_peer_gets(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert job(tmp_path).digest() == job(tmp_path, **changes).digest()


@pytest.mark.parametrize(
    ("patience", "asked", "keeps"),
    [(2, None, True), (2, False, False), (None, None, False), (None, True, True)],
)
def test_who_has_patience_keeps_the_best_unless_told_otherwise(
    tmp_path: Path, patience: int | None, asked: bool | None, keeps: bool
) -> None:
    changes: dict[str, Any] = {
        "schedule": {
            "evaluate_every": 5,
            **({"patience": patience} if patience else {}),
        },
        "checkpoint": {} if asked is None else {"best": asked},
        "data": {"evaluate": "dev.tsv"},
    }
    assert job(tmp_path, **changes).keeps_best is keeps


def test_where_steps_interleave_the_distance_of_checkpoints_decides_the_numbers_too(
    tmp_path: Path,
) -> None:
    stale: dict[str, Any] = {"schedule": {"staleness": 2}}
    often = {**stale, "checkpoint": {"every_steps": 7}}
    assert job(tmp_path, **stale).digest() != job(tmp_path, **often).digest()


def test_where_codecs_forget_at_checkpoints_their_number_decides(tmp_path: Path) -> None:
    codec = {"output": "lowrank-4"}
    often = job(tmp_path, codec=codec, checkpoint={"every_steps": 7}).digest()
    assert job(tmp_path, codec=codec).digest() != often
    assert job(tmp_path, codec=codec, checkpoint={"every_steps": 7}).digest() == often


def test_where_rows_are_kept_their_room_decides(tmp_path: Path) -> None:
    small = job(tmp_path, codec={"activation": "delta-int4", "cache_mb": 7}).digest()
    assert job(tmp_path, codec={"activation": "delta-int4"}).digest() != small


def test_canaries_and_changes_do_not_go_together(tmp_path: Path) -> None:
    (tmp_path / "canary.csv").write_text("text,label\n", encoding="utf-8")
    with pytest.raises(ManifestError, match=r"canary\.file has no use"):
        job(tmp_path, codec={"activation": "delta-int4"}, canary={"file": "canary.csv"})


def test_the_digest_is_the_same_in_any_version_of_this_program(tmp_path: Path) -> None:
    known = "c764b68fbe38642f62a1a0cf1fa188934a33f2e931dab69380f86fc8ef83ec9c"
    assert job(tmp_path).digest() == known


def test_the_digest_of_inputs_follows_the_contents_of_files(tmp_path: Path) -> None:
    changes = {"cut": {"upper": PCA}}
    loaded = job(tmp_path, **changes)
    seen = {loaded.inputs_digest()}
    for name in ("train.tsv", "public.txt", "model/config.json", "model/model.safetensors"):
        (tmp_path / name).write_text("changed")
        seen.add(loaded.inputs_digest())
    assert len(seen) == 5
    (tmp_path / "dev.tsv").write_text("changed")
    (tmp_path / "model" / "README.md").write_text("changed")
    assert loaded.inputs_digest() in seen
    (tmp_path / "train.tsv").unlink()
    with pytest.raises(ManifestError, match="cannot be read"):
        loaded.inputs_digest()


def test_a_later_fault_names_file_and_key(tmp_path: Path) -> None:
    assert str(job(tmp_path).fault("data.text", "is wrong")) == (
        f"{tmp_path / 'job.toml'}: data.text is wrong"
    )


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(string.printable, max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["rank", "method", "x"]), inner, max_size=3)
    ),
    max_leaves=4,
)
TABLES = ["run", "peer", "model", "data", "cut", "codec", "optimiser", "schedule", "checkpoint"]
KEYS = ["name", "seed", "dial", "path", "labels", "train", "bottom", "top", "lower", "output", "x"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(TABLES), st.sampled_from(KEYS), VALUES)
def test_any_value_anywhere_gives_a_job_or_our_error(
    tmp_path: Path, table: str, key: str, value: Any
) -> None:
    told = sentence(write(tmp_path, **{table: {key: value}}))
    assert told is None or len(told) < 1_000


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes_give_our_error(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "job.toml"
    for text in (junk, write(tmp_path).read_bytes() + b"\n" + junk):
        path.write_bytes(text)
        told = sentence(path)
        assert told is None or told.startswith(str(path))


def test_adapters_decide_the_digest_of_a_job_that_has_some(tmp_path: Path) -> None:
    plain = job(tmp_path, cut={"mode": "lora"}).digest()
    assert job(tmp_path, cut={"mode": "lora", "lora": {"rank": 4}}).digest() != plain
    assert job(tmp_path, cut={"mode": "lora", "lora": {"where": "all"}}).digest() != plain


@pytest.mark.parametrize(("mode", "clips"), [("full", True), ("lora", True), ("features", False)])
def test_the_peer_is_asked_to_clip_only_what_it_trains(
    tmp_path: Path, mode: str, clips: bool
) -> None:
    clipped = job(tmp_path, optimiser={"clip_norm": 1.0}, cut={"mode": mode})
    assert clipped.clips_trunk is clips
    assert not job(tmp_path, cut={"mode": mode}).clips_trunk
