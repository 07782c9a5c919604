"""`splitlearn audit redact`: only the log's owner, only what was kept, and the log says so."""

import time
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from parties.auditor import app
from splitlearn.audit import Blobs, Log, Redaction, read_records
from splitlearn.errors import AuditError, ManifestError
from splitlearn.identity import Identity
from tests.audit.test_records import OPEN, PAYLOAD
from tests.federation import make_identity


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["redact", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def owner(tmp_path: Path) -> Identity:
    return make_identity(tmp_path, "clinic", "trusted")


@pytest.fixture
def log(tmp_path: Path, owner: Identity) -> Path:
    folder = tmp_path / "audit"
    with Log.open(folder, origin=owner.name.dns, signer=owner.log_key, clock=time.time) as log:
        name = Blobs.open(folder, create=True).keep(b"frame")
        log.append(msgspec.structs.replace(OPEN, log_key=log.verifier_key))
        log.append(msgspec.structs.replace(PAYLOAD, message=1, blob=name))
    return folder


def test_a_kept_frame_is_destroyed_and_the_log_says_why(log: Path, owner: Identity) -> None:
    code, text = run(str(log), "1", "--why", "retention", "--identity", str(owner.folder))
    assert code == 0
    assert "of record 1 is destroyed" in text
    (said,) = (r for _, r in read_records(log) if isinstance(r, Redaction))
    assert (said.record, said.why) == (1, "retention")
    assert not list((log / "blobs").iterdir())


def test_nobody_else_can_do_it(log: Path, tmp_path: Path) -> None:
    other = make_identity(tmp_path, "farm", "compute")
    with pytest.raises(AuditError, match="belongs to"):
        run(str(log), "1", "--identity", str(other.folder))
    assert len(list((log / "blobs").iterdir())) == 2


def test_mistakes_are_told_before_anything_is_touched(log: Path, owner: Identity) -> None:
    identity = ["--identity", str(owner.folder)]
    for words in (
        [str(log), "0", *identity],
        [f"{log}x", "1", *identity],
        [str(log), "1", "--identity", f"{owner.folder}x"],
    ):
        with pytest.raises(ManifestError):
            run(*words)
    assert run(str(log), "1", "--why", "fun", *identity)[0] == 2
    assert len(list((log / "blobs").iterdir())) == 2
