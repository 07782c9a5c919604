"""What stops a run before anything of it is there; whole runs stand in test_trusted.py."""

from pathlib import Path

import pytest

from parties.under_way import under_way
from splitlearn.engine.job.prepare import prepare
from splitlearn.errors import ManifestError, RefusedError, SplitLearnError
from splitlearn.manifest import load_job
from tests.jobs import Changes, make_clinic, make_job


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"policy": {"file": "strict.toml"}}, RefusedError),
        ({"identity": {"folder": "nobody"}}, ManifestError),
    ],
    ids=["policy", "identity"],
)
def test_a_run_that_may_not_be_leaves_no_log(
    changes: Changes, error: type[SplitLearnError], tmp_path: Path
) -> None:
    make = make_clinic if error is RefusedError else make_job
    manifest = load_job(make(tmp_path, changes=changes))
    prepared = prepare(manifest)
    with pytest.raises(error), under_way(manifest, prepared, "training", 3):
        raise AssertionError("it went to work")
    assert not (manifest.run.folder / "audit").exists()
