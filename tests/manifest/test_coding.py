"""Stages of codecs. tests/manifest/test_job.py has what a codec alone may be."""

from pathlib import Path
from typing import Any

import pytest

from splitlearn.errors import ManifestError
from splitlearn.manifest import Job, load_job
from splitlearn.manifest.hops import codecs_at
from tests.manifest.test_job import toml, write


def staged(folder: Path, *stages: dict[str, Any], **changes: dict[str, Any]) -> Job:
    path = write(folder, **changes)
    lines = [path.read_text(encoding="utf-8")]
    for table in stages:
        lines += ["[[codec.stage]]", *(f"{key} = {toml(value)}" for key, value in table.items())]
    path.write_text("\n".join(lines), encoding="utf-8")
    return load_job(path)


FIRST: dict[str, Any] = {"after": 0.1, "activation": "int4"}
SECOND: dict[str, Any] = {"after": 0.5, "output": "int8"}


def test_a_stage_changes_what_it_names_and_leaves_the_rest(tmp_path: Path) -> None:
    job = staged(tmp_path, FIRST, SECOND)
    one, two = job.codec.later
    assert (one.activation, one.output) == ("int4", "fp16")
    assert (two.activation, two.output) == ("int4", "int8")
    assert codecs_at(job, party=0, codec=two)["output"] == "int8"
    assert codecs_at(job, party=0)["activation"] == "int8+zstd"
    assert [stage.step(total=95) for stage in job.codec.stage] == [10, 48]
    counted = staged(tmp_path, {**FIRST, "after": 7})
    assert counted.codec.stage[0].step(total=95) == 7


def test_stages_decide_the_digest_and_a_job_without_has_its_old_one(tmp_path: Path) -> None:
    assert staged(tmp_path, FIRST).digest() != staged(tmp_path).digest()
    assert staged(tmp_path, FIRST).digest() != staged(tmp_path, SECOND).digest()


@pytest.mark.parametrize(
    ("stages", "changes", "told"),
    [
        ([{"after": 0.1}], {}, "codec.stage after 0.1 names no codec"),
        ([{**FIRST, "after": 1.5}], {}, "codec.stage.after is 1.5, which is no share"),
        ([{**FIRST, "after": 0}], {}, "codec.stage"),
        ([{**FIRST, "activation": "int5"}], {}, "codec.stage"),
        ([SECOND, FIRST], {}, "codec.stage.after does not grow"),
        ([FIRST, {**SECOND, "after": 9}], {}, "codec.stage.after is a share here and a step there"),
        ([{**FIRST, "activation": "delta-int4"}], {}, "codec.stage.activation is delta-int4"),
        ([{**FIRST, "activation": "pca-0.5"}], {}, "codec.stage.activation is pca-0.5"),
        ([{**FIRST, "inner": "int8"}], {}, "codec.stage.inner has a use with [[chain]] only"),
        ([FIRST], {"codec": {"activation": "delta-int4"}}, "does not go with a delta- codec"),
        ([FIRST], {"canary": {"file": "train.tsv"}}, "canary.file has no use with [[codec.stage]]"),
    ],
)
def test_what_a_stage_may_not_be_is_told(
    tmp_path: Path, stages: list[dict[str, Any]], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        staged(tmp_path, *stages, **changes)
    assert told in str(caught.value)
