"""Redaction: the frame is gone, the log says so under a signed head, and goes on to verify."""

from pathlib import Path

import msgspec
import pytest

from splitlearn.audit import Blobs, Exit, Log, Redaction, read_records, redact, verify
from splitlearn.audit.blobs import key_path, sealed_path
from splitlearn.errors import AuditError, ManifestError
from tests.audit.test_log import ORIGIN, Clock, opened
from tests.audit.test_verify import KEY, OPENED, closing, names, payload
from tests.door import SIGNER

RAW = b"frame" * 100


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A closed log whose record 1 has a frame and whose record 2 has none."""
    blobs = Blobs.open(tmp_path, create=True)
    with opened(tmp_path) as log:
        log.append(OPENED)
        log.append(payload(1, blob=blobs.keep(RAW)))
        log.append(payload(2))
        log.append(closing(out=2))
    return tmp_path


def destroy(folder: Path, record: int) -> str:
    return redact(folder, record, why="request", origin=ORIGIN, signer=SIGNER, clock=Clock())


def test_a_redacted_frame_is_gone_and_its_record_stays(kept: Path) -> None:
    assert names(verify(kept, verifier_key=KEY)) == set()
    before = list(read_records(kept))
    name = destroy(kept, 1)
    after = list(read_records(kept))
    assert after[: len(before)] == before
    (said,) = (record for _, record in after if isinstance(record, Redaction))
    assert (said.record, said.blob, said.why) == (1, name, "request")
    assert not sealed_path(kept, name).exists()
    with pytest.raises(AuditError):
        Blobs.open(kept, create=False).read(name)
    report = verify(kept, verifier_key=KEY)
    assert (report.exit, names(report)) == (Exit.CLEAN, {"redacted"})
    assert (report.kept, report.redacted, report.covered) == (1, 1, report.records)


@pytest.mark.parametrize("record", [0, 2, 99, -1])
def test_only_a_record_with_a_frame_can_be_redacted(kept: Path, record: int) -> None:
    with pytest.raises(ManifestError, match="no sealed frame"):
        destroy(kept, record)
    assert verify(kept, verifier_key=KEY).ok


def test_the_second_time_it_is_said_to_be_done(kept: Path) -> None:
    destroy(kept, 1)
    with pytest.raises(ManifestError, match="already"):
        destroy(kept, 1)


def test_a_redaction_that_broke_off_is_told_of_and_can_be_done_again(kept: Path) -> None:
    name = next(
        r.blob for _, r in read_records(kept) if getattr(r, "blob", "withheld") != "withheld"
    )
    Blobs.open(kept, create=False).shred(name)
    assert verify(kept, verifier_key=KEY).exit is Exit.INTEGRITY
    destroy(kept, 1)
    assert verify(kept, verifier_key=KEY).ok


def test_a_redaction_that_destroyed_nothing_is_found_out(kept: Path) -> None:
    name = next(
        r.blob for _, r in read_records(kept) if getattr(r, "blob", "withheld") != "withheld"
    )
    with opened(kept) as log:
        log.append(Redaction(record=1, blob=name, why="request"))
    report = verify(kept, verifier_key=KEY)
    assert (report.exit, names(report)) == (Exit.POLICY, {"redacted", "redaction"})
    destroy(kept, 1)
    assert not key_path(kept, name).exists()
    assert verify(kept, verifier_key=KEY).ok


def test_a_log_in_use_and_a_log_of_somebody_else_are_left_alone(kept: Path) -> None:
    with opened(kept), pytest.raises(AuditError, match="another process"):
        destroy(kept, 1)
    with pytest.raises(AuditError, match="belongs to"):
        redact(kept, 1, why="mistake", origin="example.org/other", signer=SIGNER, clock=Clock())
    assert verify(kept, verifier_key=KEY).ok


def test_a_redaction_of_what_was_not_kept_is_no_redaction(kept: Path) -> None:
    with Log.open(kept, origin=ORIGIN, signer=SIGNER, clock=Clock()) as log:
        index = log.append(Redaction(record=2, blob="a" * 64, why="request"))
    report = verify(kept, verifier_key=KEY)
    assert report.exit is Exit.INTEGRITY
    assert [f.record for f in report.findings if f.name == "redaction"] == [index]
    assert msgspec.structs.asdict(list(read_records(kept))[index][1])["blob"] == "a" * 64
