import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519

from splitlearn.errors import IdentityError
from splitlearn.identity import certificates, files
from splitlearn.identity.denied import DENIED_FILE, DenyList, adopt
from splitlearn.identity.names import PartyName
from splitlearn.roles import Role

KEY = certificates.new_key()
CA = certificates.make_ca(KEY, federation="fed.example", now=datetime.now(UTC))
NAME = PartyName(federation="fed.example", party="bank", role=Role.COMPUTE)


def denying(
    number: int, *, uris: frozenset[str] = frozenset(), serials: frozenset[str] = frozenset()
) -> DenyList:
    return DenyList(federation="fed.example", number=number, uris=uris, serials=serials)


def test_a_signed_list_reads_back_as_it_was() -> None:
    denied = denying(3, uris=frozenset({NAME.uri}), serials=frozenset({"ab12"}))
    assert DenyList.parse(denied.signed(KEY), ca=CA, federation="fed.example") == denied


def test_a_name_is_denied_with_any_certificate_and_a_certificate_under_any_name() -> None:
    other = PartyName(federation="fed.example", party="bank", role=Role.TRUSTED)
    by_name = denying(1, uris=frozenset({NAME.uri}))
    assert by_name.denies(NAME, serial=1)
    assert not by_name.denies(other, serial=1)
    by_serial = denying(1, serials=frozenset({"ab12"}))
    assert by_serial.denies(other, serial=0xAB12)
    assert not by_serial.denies(other, serial=0xAB13)


def test_a_list_that_was_touched_or_signed_by_another_ca_is_refused() -> None:
    signed = denying(1, uris=frozenset({NAME.uri})).signed(KEY)
    touched = signed.replace(b"bank", b"dank")
    for data in (touched, denying(1).signed(certificates.new_key())):
        with pytest.raises(IdentityError, match=r"not signed by the federation's CA"):
            DenyList.parse(data, ca=CA, federation="fed.example")


def test_a_list_of_another_federation_is_refused() -> None:
    data = DenyList(federation="other.example").signed(KEY)
    with pytest.raises(IdentityError, match=r"'other.example'; expected 'fed.example'"):
        DenyList.parse(data, ca=CA, federation="fed.example")


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"\xff", b"{}", bytes(files.MAX_FILE_BYTES + 1)],
    ids=["empty", "list", "no text", "no fields", "too long"],
)
def test_junk_is_no_list(data: bytes) -> None:
    with pytest.raises(IdentityError, match=r"deny-list is"):
        DenyList.parse(data, ca=CA, federation="fed.example")


def test_a_list_with_a_field_too_many_is_refused() -> None:
    loaded = json.loads(denying(1).signed(KEY))
    loaded["denied"]["more"] = 1
    with pytest.raises(IdentityError, match=r"more"):
        DenyList.parse(json.dumps(loaded).encode(), ca=CA, federation="fed.example")


def test_an_older_list_is_never_taken_over(tmp_path: Path) -> None:
    newer = denying(2, uris=frozenset({NAME.uri}))
    adopt(tmp_path, data=newer.signed(KEY), ca=CA, federation="fed.example")
    with pytest.raises(IdentityError, match=r"number 1 was offered.*number 2"):
        adopt(tmp_path, data=denying(1).signed(KEY), ca=CA, federation="fed.example")
    assert DenyList.load(tmp_path, ca=CA, federation="fed.example") == newer


def test_the_same_list_again_changes_no_file(tmp_path: Path) -> None:
    denied = denying(2, uris=frozenset({NAME.uri}))
    adopt(tmp_path, data=denied.signed(KEY), ca=CA, federation="fed.example")
    before = (tmp_path / DENIED_FILE).read_bytes()
    adopt(tmp_path, data=denied.signed(KEY), ca=CA, federation="fed.example")
    assert (tmp_path / DENIED_FILE).read_bytes() == before


def test_where_there_is_no_list_yet_nobody_is_denied(tmp_path: Path) -> None:
    denied = DenyList.load(tmp_path, ca=CA, federation="fed.example")
    assert denied == DenyList(federation="fed.example")
    assert not denied.denies(NAME, serial=1)


def test_a_ca_with_another_kind_of_key_signs_no_list() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([])
    odd = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now(UTC))
        .not_valid_after(datetime.now(UTC) + timedelta(hours=1))
        .sign(key, None)
    )
    with pytest.raises(IdentityError, match=r"expected P-256"):
        DenyList.parse(denying(1).signed(KEY), ca=odd, federation="fed.example")
