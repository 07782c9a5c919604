import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from splitlearn.errors import IdentityError, ManifestError
from splitlearn.identity import Identity, PartyName, verify_proof
from splitlearn.identity.certificates import make_ca, make_leaf, new_key, pem, pin_of
from splitlearn.identity.files import mode_of
from splitlearn.identity.party import Keys, check_certificate, check_owner
from splitlearn.roles import Role
from tests.federation import make_authority, make_identity


@pytest.fixture
def bank(tmp_path: Path) -> Identity:
    return make_identity(tmp_path, "bank", Role.TRUSTED, registrar="ca.example:8470")


def test_what_was_established_loads_again(bank: Identity) -> None:
    again = bank.reload()
    assert again == Identity.load(bank.folder)
    assert (again.name, again.registrar) == (bank.name, "ca.example:8470")
    assert (again.fingerprint, again.ca_pem) == (bank.fingerprint, bank.ca_pem)
    verify_proof(bank.certificate_der, message=b"x", signature=again.sign(b"x"))


def test_keys_are_closed_to_others_and_the_folder_too(bank: Identity) -> None:
    assert mode_of(bank.folder) == 0o700
    assert {path.name: mode_of(path) for path in bank.folder.iterdir()} == {
        "party.key": 0o600,
        "log.key": 0o600,
        "party.json": 0o600,
        ".lock": 0o600,
        "party.crt": 0o644,
        "ca.crt": 0o644,
    }


def test_no_repr_shows_a_key(bank: Identity) -> None:
    secret = bank.key_pem.decode().splitlines()[1]
    keys = Keys.load(bank.folder)
    for shown in (repr(bank), repr(keys), str(bank)):
        assert secret not in shown
        assert "Key" not in shown.replace("Keys", "")


def test_the_pems_are_what_a_tls_library_takes(bank: Identity) -> None:
    key = serialization.load_pem_private_key(bank.key_pem, password=None)
    assert key.public_key() == bank.certificate.public_key()
    assert bank.chain_pem == pem(bank.certificate)
    assert bank.ca_pem == pem(bank.ca)


def test_the_log_key_is_the_one_in_the_certificate(bank: Identity) -> None:
    bank.log_key.public_key().verify(bank.log_key.sign(b"x"), b"x")
    assert bank.log_public == bank.log_key.public_key().public_bytes_raw()


def test_an_empty_folder_says_how_to_join(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"run splitlearn join"):
        Identity.load(tmp_path)


def test_a_key_open_to_others_is_refused(bank: Identity) -> None:
    (bank.folder / "party.key").chmod(0o640)
    with pytest.raises(ManifestError, match=r"party.key has mode 0640"):
        bank.reload()


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("party.key", "another key than party.key"),
        ("log.key", "another log key than log.key"),
        ("ca.crt", "wrong CA"),
        ("party.json", "was made for"),
    ],
)
def test_a_file_of_another_party_is_noticed(
    bank: Identity, tmp_path: Path, file: str, reason: str
) -> None:
    other = make_identity(tmp_path / "other", "lab", Role.COMPUTE)
    shutil.copy(other.folder / file, bank.folder / file)
    with pytest.raises(IdentityError, match=reason):
        bank.reload()


def test_a_note_that_is_none_is_a_manifest_error(bank: Identity) -> None:
    (bank.folder / "party.json").write_text("{}")
    with pytest.raises(ManifestError, match=r"party.json is not one of ours"):
        bank.reload()


def test_keys_are_made_once(tmp_path: Path) -> None:
    first, second = Keys.obtain(tmp_path / "a"), Keys.obtain(tmp_path / "a")
    assert first.certificate.public_key() == second.certificate.public_key()
    assert first.log.public_key() == second.log.public_key()


def test_a_certificate_for_other_keys_is_not_installed(bank: Identity, tmp_path: Path) -> None:
    Keys.obtain(tmp_path / "new")
    with pytest.raises(IdentityError, match=r"another key"):
        Identity.establish(
            tmp_path / "new",
            certificate=bank.chain_pem,
            ca=bank.ca_pem,
            denied=make_authority(tmp_path).denied_json,
            registrar=None,
        )
    assert not (tmp_path / "new" / "party.crt").exists()


def test_a_folder_stays_with_its_party_and_its_federation(bank: Identity, tmp_path: Path) -> None:
    assert check_owner(tmp_path, name=None, pin="any") is None
    assert check_owner(bank.folder, name=bank.name, pin=pin_of(bank.ca)) == bank.name
    with pytest.raises(ManifestError, match=r"with another CA"):
        check_owner(bank.folder, name=None, pin="0" * 64)
    authority = make_authority(tmp_path)
    keys = Keys.load(bank.folder)
    leaf = authority.issue(
        authority.name(party="bank", role=Role.COMPUTE),
        public_key=keys.certificate.public_key(),
        log_public=bank.log_public,
        now=datetime.now(UTC),
    )
    with pytest.raises(ManifestError, match=r"role/trusted; choose another folder"):
        Identity.establish(
            bank.folder,
            certificate=pem(leaf),
            ca=bank.ca_pem,
            denied=authority.denied_json,
            registrar=None,
        )


def test_the_deny_list_in_the_folder_is_read_at_every_look(bank: Identity, tmp_path: Path) -> None:
    assert bank.denied.number == 0
    authority = make_authority(tmp_path)
    authority.deny(uris=frozenset({bank.name.uri}), serials=frozenset())
    shutil.copy(authority.folder / "denied.json", bank.folder / "denied.json")
    assert bank.denied.denies(bank.name, serial=1)


def test_a_certificate_of_a_federation_its_ca_does_not_speak_for_is_refused(
    tmp_path: Path,
) -> None:
    keys = Keys.obtain(tmp_path)
    ca_key = new_key()
    ca = make_ca(ca_key, federation="fed.example", now=datetime.now(UTC))
    leaf = make_leaf(
        ca_key,
        ca=ca,
        name=PartyName(federation="other.example", party="bank", role=Role.COMPUTE),
        public_key=keys.certificate.public_key(),
        log_public=keys.log.public_key().public_bytes_raw(),
        not_before=datetime.now(UTC),
        not_after=datetime.now(UTC) + timedelta(hours=1),
    )
    with pytest.raises(IdentityError, match=r"does not speak for"):
        check_certificate(leaf, ca=ca, keys=keys, whose="it")
