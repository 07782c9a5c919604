import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from splitlearn.errors import IdentityError, ManifestError
from splitlearn.identity import Authority, PartyName, create_federation, denied, revoke
from splitlearn.identity.authority import _Issued
from splitlearn.identity.certificates import fingerprint, new_key
from splitlearn.identity.files import mode_of
from splitlearn.identity.judge import check_chain
from splitlearn.roles import Role
from tests.federation import make_identity

NOW = datetime.now(UTC)
LOG = bytes(32)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return create_federation(tmp_path / "fed", name="fed.example")


def test_a_new_federation_is_closed_to_others_and_opens_again(authority: Authority) -> None:
    folder = authority.folder
    assert mode_of(folder) == 0o700
    assert mode_of(folder / "ca.key") == 0o600
    assert Authority.open(folder) == authority
    assert authority.denied.number == 0
    assert "Key" not in repr(authority)


def test_a_federation_is_not_made_twice_in_one_folder(authority: Authority) -> None:
    with pytest.raises(ManifestError, match=r"nothing was changed"):
        create_federation(authority.folder, name="other.example")
    assert Authority.open(authority.folder).pin == authority.pin


def test_a_misspelt_federation_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"federation name"):
        create_federation(tmp_path / "fed", name="Fed Example")
    assert not (tmp_path / "fed").exists()


def test_an_empty_folder_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"splitlearn federation create"):
        Authority.open(tmp_path)


@pytest.mark.parametrize(
    ("file", "reason"),
    [("ca.key", "is not the key of"), ("federation.json", "name two federations")],
)
def test_a_folder_put_together_from_two_is_refused(
    authority: Authority, tmp_path: Path, file: str, reason: str
) -> None:
    other = create_federation(tmp_path / "other", name="other.example")
    shutil.copy(other.folder / file, authority.folder / file)
    with pytest.raises(IdentityError, match=reason):
        Authority.open(authority.folder)


def test_settings_that_are_none_are_a_manifest_error(authority: Authority) -> None:
    (authority.folder / "federation.json").write_text("[]")
    with pytest.raises(ManifestError, match=r"federation.json is not one of ours"):
        Authority.open(authority.folder)


def test_an_issued_certificate_is_recorded_with_its_log_key(authority: Authority) -> None:
    name = authority.name(party="bank", role=Role.COMPUTE)
    leaf = authority.issue(name, public_key=new_key().public_key(), log_public=LOG, now=NOW)
    check_chain(leaf, ca=authority.ca, whose="it")
    lines = (authority.folder / "issued.jsonl").read_bytes().splitlines()
    record = msgspec.json.decode(lines[-1], type=_Issued)
    assert record.uri == name.uri
    assert record.serial == f"{leaf.serial_number:x}"
    assert record.fingerprint == fingerprint(leaf)
    assert record.log_public == LOG.hex()
    assert datetime.fromisoformat(record.not_after) == leaf.not_valid_after_utc


def test_dates_are_backdated_ten_minutes_and_end_after_a_day(authority: Authority) -> None:
    name = authority.name(party="bank", role=Role.COMPUTE)
    leaf = authority.issue(name, public_key=new_key().public_key(), log_public=LOG, now=NOW)
    moment = NOW.replace(microsecond=0)
    assert leaf.not_valid_before_utc == moment - timedelta(minutes=10)
    assert leaf.not_valid_after_utc == moment + timedelta(hours=24)


def test_a_name_of_another_federation_or_a_denied_one_is_not_certified(
    authority: Authority,
) -> None:
    stranger = PartyName(federation="other.example", party="bank", role=Role.COMPUTE)
    with pytest.raises(IdentityError, match=r"another federation"):
        authority.issue(stranger, public_key=new_key().public_key(), log_public=LOG, now=NOW)
    revoke(authority.folder, party="bank", role=Role.COMPUTE)
    name = authority.name(party="bank", role=Role.COMPUTE)
    with pytest.raises(IdentityError, match=r"deny-list"):
        authority.issue(name, public_key=new_key().public_key(), log_public=LOG, now=NOW)


def test_a_revoked_party_is_denied_in_every_role_but_the_registrars(authority: Authority) -> None:
    listed = revoke(authority.folder, party="bank")
    assert listed.number == 1
    assert listed == authority.denied
    for role in Role:
        name = authority.name(party="bank", role=role)
        assert listed.denies(name, serial=1) == (role is not Role.REGISTRAR)


def test_a_serial_is_read_as_tools_print_it(authority: Authority, tmp_path: Path) -> None:
    bank = make_identity(tmp_path, "bank", Role.COMPUTE, authority=authority)
    serial = f"{bank.certificate.serial_number:040X}"
    pairs = ":".join(serial[i : i + 2] for i in range(0, 40, 2))
    listed = revoke(authority.folder, serial=pairs)
    assert listed.denies(bank.name, serial=bank.certificate.serial_number)
    assert not listed.denies(bank.name, serial=1)


def test_every_revocation_counts_and_none_is_forgotten(authority: Authority) -> None:
    revoke(authority.folder, party="bank", role=Role.COMPUTE)
    listed = revoke(authority.folder, serial="ab")
    assert listed.number == 2
    assert (len(listed.uris), listed.serials) == (1, frozenset({"ab"}))


@pytest.mark.parametrize("serial", ["", "xyz", "0", "-1", "f" * 41])
def test_a_serial_that_is_none_is_refused(authority: Authority, serial: str) -> None:
    with pytest.raises(ManifestError, match=r"expected hex digits"):
        revoke(authority.folder, serial=serial)


def test_revoke_takes_one_of_party_and_serial(authority: Authority) -> None:
    with pytest.raises(ManifestError, match=r"exactly one"):
        revoke(authority.folder)
    with pytest.raises(ManifestError, match=r"exactly one"):
        revoke(authority.folder, party="bank", serial="ab")


def test_a_full_deny_list_says_so(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitlearn.identity.authority.MAX_DENIED", 2)
    assert denied.MAX_DENIED > 2
    with pytest.raises(ManifestError, match=r"at most 2 entries"):
        revoke(authority.folder, party="bank")
    assert authority.denied.number == 0


def test_the_address_of_the_registrar_is_remembered(authority: Authority) -> None:
    assert authority.registrar is None
    authority.serves_at("ca.example:8470")
    assert Authority.open(authority.folder).registrar == "ca.example:8470"
