"""Whose a run folder is, and the secrets that lie in it. tests/engine/job/test_prepare.py has whole jobs."""

from pathlib import Path

import pytest

from splitlearn.engine.job.claim import claim_folder
from splitlearn.errors import AuditError, ManifestError
from splitlearn.manifest import load_job
from tests.jobs import make_job


def test_a_folder_keeps_its_secrets_closed_to_others(tmp_path: Path) -> None:
    job = load_job(make_job(tmp_path))
    claim = claim_folder(job)
    assert claim_folder(job) == claim
    assert (job.run.folder / "run.json").stat().st_mode & 0o077 == 0
    assert claim.salt != claim.labels


def test_each_party_of_a_chain_has_a_salt_that_no_other_can_tell(tmp_path: Path) -> None:
    claim = claim_folder(load_job(make_job(tmp_path)))
    salts = [claim.salt_of(party) for party in range(4)]
    assert salts[0] == claim.salt
    assert len({*salts, claim.labels}) == 5
    assert all(len(bytes.fromhex(salt)) == 32 for salt in salts)
    assert salts == [claim.salt_of(party) for party in range(4)]
    hops = [claim.salt_of_hop(party) for party in range(1, 4)]
    assert len({*salts, *hops, claim.labels}) == 8
    assert hops == [claim.salt_of_hop(party) for party in range(1, 4)]


def test_a_folder_of_another_run_is_refused_once_that_has_begun(tmp_path: Path) -> None:
    first = claim_folder(load_job(make_job(tmp_path)))
    other = load_job(make_job(tmp_path, changes={"run": {"seed": 1}}))
    assert claim_folder(other).salt != first.salt
    (other.run.folder / "checkpoints").mkdir()
    with pytest.raises(ManifestError, match="holds a run of another job"):
        claim_folder(load_job(make_job(tmp_path, changes={"run": {"seed": 2}})))
    assert claim_folder(other) == claim_folder(other)


def test_a_claim_that_cannot_be_read_is_no_ground_to_begin_anew(tmp_path: Path) -> None:
    job = load_job(make_job(tmp_path))
    job.run.folder.mkdir()
    (job.run.folder / "run.json").write_text("{")
    with pytest.raises(AuditError, match="cannot be used"):
        claim_folder(job)
