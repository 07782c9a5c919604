"""What lies beside the lines: countersignatures, the peer's heads, sealed frames."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitlearn.audit import Blobs, Exit, Report, verify
from splitlearn.audit.blobs import key_path, sealed_path
from splitlearn.audit.checkpoint import Checkpoint, cosign, parse_verifier_key
from splitlearn.audit.evidence import check_blob, read_own_heads, read_peers, signed_by
from splitlearn.audit.findings import Findings
from splitlearn.errors import AuditError
from tests.audit.pair import CLINIC_KEY, FARM_KEY, FARM_SIGNER, Pair
from tests.door import COMPUTE, SIGNER, TRUSTED


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The clinic's log of a run that settled twice."""
    return Pair(tmp_path).run().clinic.folder


def checked(log: Path) -> Report:
    return verify(log, verifier_key=CLINIC_KEY, peer_keys=(FARM_KEY,))


def found(log: Path) -> set[tuple[str, Exit]]:
    return {(finding.name, finding.exit) for finding in checked(log).findings}


def peer_notes(log: Path) -> list[Path]:
    return sorted((log / "peers").glob("*/*.note"), key=lambda path: int(path.stem))


def countersigned_heads(log: Path) -> list[Path]:
    notes = sorted((log / "checkpoints").glob("*.note"), key=lambda path: int(path.stem))
    return [path for path in notes if f" {COMPUTE.dns} " in path.read_text()]


def test_what_two_parties_kept_of_each_other_reads_back(log: Path) -> None:
    findings = Findings()
    (place,) = read_peers(log, key=parse_verifier_key(CLINIC_KEY), findings=findings)
    assert place.key == FARM_KEY
    assert len(place.heads) == 2
    assert (place.faults, place.refused, findings) == ({}, (), [])
    heads = read_own_heads(log, key=parse_verifier_key(CLINIC_KEY), findings=findings)
    by_farm = [size for size, head in heads.items() if signed_by(head, key=FARM_KEY)]
    assert [int(path.stem) for path in countersigned_heads(log)] == by_farm
    assert read_own_heads(log, key=None, findings=findings) == {}


def _note_gone(log: Path) -> None:
    peer_notes(log)[0].unlink()


def _notes_swapped(log: Path) -> None:
    one, two = peer_notes(log)
    shutil.copy(one, two)


def _root_changed(log: Path) -> None:
    """As its peer's key would sign it, and as this log's owner would countersign it."""
    path = peer_notes(log)[0]
    head = Checkpoint(COMPUTE.dns, int(path.stem), bytes(32))
    path.write_text(cosign(head.sign(FARM_SIGNER), name=TRUSTED.dns, key=SIGNER))


def _own_name_dropped(log: Path) -> None:
    path = peer_notes(log)[0]
    kept = [line for line in path.read_text().splitlines() if f" {TRUSTED.dns} " not in line]
    path.write_text("\n".join(kept) + "\n")


def _not_text(log: Path) -> None:
    peer_notes(log)[0].write_bytes(b"\xff\xfe")


def _too_long(log: Path) -> None:
    path = peer_notes(log)[0]
    path.write_text(path.read_text() + "x" * 20_000)


def _folder_gone(log: Path) -> None:
    shutil.rmtree(log / "peers")


FALSE_PEERS: dict[str, Callable[[Path], None]] = {
    "a head is gone": _note_gone,
    "an old head under a new name": _notes_swapped,
    "a head with another root": _root_changed,
    "a head without our countersignature": _own_name_dropped,
    "a head that is no text": _not_text,
    "a head without end": _too_long,
    "all heads are gone": _folder_gone,
}


@pytest.mark.parametrize("name", FALSE_PEERS)
def test_a_peers_head_that_is_not_what_the_record_says_is_found_out(log: Path, name: str) -> None:
    FALSE_PEERS[name](log)
    report = checked(log)
    assert {(f.name, f.exit) for f in report.findings} == {("peer-head", Exit.INTEGRITY)}
    assert all(finding.record is not None for finding in report.findings)


def test_a_head_that_no_record_names_has_to_verify_too(log: Path) -> None:
    spare = peer_notes(log)[0].with_name("99.note")
    head = Checkpoint(COMPUTE.dns, 99, bytes(32))
    spare.write_text(cosign(head.sign(FARM_SIGNER), name=TRUSTED.dns, key=SIGNER))
    assert found(log) == set()
    spare.write_text(head.sign(SIGNER))
    assert found(log) == {("peer-head", Exit.INTEGRITY)}


def test_a_folder_of_heads_has_a_key(log: Path) -> None:
    key = next((log / "peers").glob("*/verifier.key"))
    key.write_text("a+b+c")
    assert ("peer-key", Exit.INTEGRITY) in found(log)
    key.unlink()
    assert ("peer-key", Exit.INTEGRITY) in found(log)


def test_a_folder_without_a_head_is_none(log: Path) -> None:
    (log / "peers" / "compute.other.example.org-0000000000000000").mkdir()
    assert found(log) == set()


def test_a_head_that_was_refused_when_it_was_shown_is_a_mismatch(log: Path) -> None:
    path = peer_notes(log)[1]
    path.with_name("40.refused.note").write_text(
        Checkpoint(COMPUTE.dns, 40, bytes(32)).sign(SIGNER)
    )
    path.with_name("notes.note").write_text("mine")
    assert found(log) == {("refused", Exit.MISMATCH)}
    assert checked(log).exit is Exit.MISMATCH


def test_a_countersignature_that_was_taken_away_or_changed_is_found_out(log: Path) -> None:
    forged = Checkpoint(COMPUTE.dns, 1, bytes(32)).sign(FARM_SIGNER).splitlines()[-1]
    path = countersigned_heads(log)[0]
    text = path.read_text()
    line = next(line for line in text.splitlines() if f" {COMPUTE.dns} " in line)
    for changed in (text.replace(line + "\n", ""), text.replace(line, forged)):
        path.write_text(changed)
        assert found(log) == {("countersignature", Exit.INTEGRITY)}
        assert all(finding.record is not None for finding in checked(log).findings)
    path.write_text(text)
    assert found(log) == set()


def test_a_countersignature_by_somebody_else_is_passed_over(log: Path) -> None:
    path = countersigned_heads(log)[0]
    witness = Ed25519PrivateKey.generate()
    path.write_text(cosign(path.read_text(), name="witness.example.com", key=witness))
    assert found(log) == set()


def test_heads_that_cannot_be_read_cannot_be_checked(log: Path) -> None:
    (log / "checkpoints" / "x.note").write_text("")
    findings = Findings()
    read_own_heads(log, key=parse_verifier_key(CLINIC_KEY), findings=findings)
    assert [finding.exit for finding in findings] == [Exit.UNCHECKABLE]


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, str]:
    return tmp_path, Blobs.open(tmp_path, create=True).keep(b"frame")


def blob_findings(kept: tuple[Path, str], *, redacted: int | None = None) -> list[tuple[str, Exit]]:
    findings = Findings()
    check_blob(*kept, record=3, redacted=redacted, findings=findings)
    assert all(finding.record in {3, redacted} for finding in findings)
    return [(finding.name, finding.exit) for finding in findings]


def test_a_sealed_frame_is_there_and_whole_or_said_to_be_destroyed(kept: tuple[Path, str]) -> None:
    assert blob_findings(kept) == []
    assert blob_findings(kept, redacted=9) == [("redaction", Exit.POLICY)]
    key_path(*kept).unlink()
    assert blob_findings(kept) == [("blob", Exit.UNCHECKABLE)]
    sealed_path(*kept).write_bytes(b"other")
    assert blob_findings(kept) == [("blob", Exit.INTEGRITY), ("blob", Exit.UNCHECKABLE)]
    sealed_path(*kept).unlink()
    assert blob_findings(kept) == [("blob", Exit.INTEGRITY)]
    assert blob_findings(kept, redacted=9) == []


def test_a_log_that_is_handed_over_without_its_frames_can_be_checked(
    kept: tuple[Path, str],
) -> None:
    shutil.rmtree(kept[0] / "blobs")
    assert blob_findings(kept) == []


def test_a_signature_in_a_peers_name_is_its_own(log: Path) -> None:
    heads = read_own_heads(log, key=parse_verifier_key(CLINIC_KEY), findings=Findings())
    head = heads[int(countersigned_heads(log)[0].stem)]
    name, _ = parse_verifier_key(FARM_KEY)
    other = SIGNER.public_key().public_bytes_raw()
    from splitlearn.audit.checkpoint import format_verifier_key

    with pytest.raises(AuditError, match="not signed by"):
        signed_by(head, key=format_verifier_key(name, public_key=other))
