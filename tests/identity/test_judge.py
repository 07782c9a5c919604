from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from splitlearn.errors import IdentityError
from splitlearn.identity import DenyList, Identity, PartyName, Peer, authorise, verify_proof
from splitlearn.identity.certificates import make_ca, new_key
from splitlearn.identity.judge import check_chain
from splitlearn.roles import Role
from tests.federation import make_authority, make_identity

NOW = datetime.now(UTC)
ALL = frozenset(Role)


@pytest.fixture
def bank(tmp_path: Path) -> Identity:
    return make_identity(tmp_path, "bank", Role.COMPUTE)


def judged(
    identity: Identity,
    *,
    ca: x509.Certificate | None = None,
    expected: PartyName | None = None,
    federation: str = "fed.example",
    roles: frozenset[Role] = ALL,
    denied: DenyList | None = None,
    now: datetime = NOW,
) -> Peer:
    return authorise(
        identity.certificate_der,
        ca=ca or identity.ca,
        expected=expected,
        federation=federation,
        roles=roles,
        denied=denied or DenyList(federation="fed.example"),
        now=now,
    )


def test_a_good_certificate_says_who_it_is_and_which_key_signs_its_logs(bank: Identity) -> None:
    peer = judged(bank, expected=bank.name, roles=frozenset({Role.COMPUTE}))
    assert peer == Peer(
        name=bank.name,
        fingerprint=bank.fingerprint,
        serial=bank.certificate.serial_number,
        log_public=bank.log_public,
        not_after=bank.certificate.not_valid_after_utc,
    )


def test_a_certificate_of_another_ca_is_refused(bank: Identity, tmp_path: Path) -> None:
    other = make_authority(tmp_path / "other")
    with pytest.raises(IdentityError, match=r"wrong CA; expected the CA of fed.example"):
        judged(bank, ca=other.ca)


def test_a_certificate_that_only_copies_the_cas_name_is_refused(bank: Identity) -> None:
    forged = make_ca(new_key(), federation="fed.example", now=NOW)
    with pytest.raises(IdentityError, match=r"wrong CA"):
        judged(bank, ca=forged)


def test_the_ca_itself_is_no_party(bank: Identity) -> None:
    with pytest.raises(IdentityError, match=r"for another use"):
        check_chain(bank.ca, ca=bank.ca, whose="it")


def test_a_certificate_that_says_no_use_is_refused(tmp_path: Path) -> None:
    key = new_key()
    ca = make_ca(key, federation="fed.example", now=NOW)
    leaf = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    with pytest.raises(IdentityError, match=r"may be used for"):
        check_chain(leaf, ca=ca, whose="it")


def test_a_certificate_is_good_between_its_two_dates_and_at_them(bank: Identity) -> None:
    begins = bank.certificate.not_valid_before_utc
    ends = bank.certificate.not_valid_after_utc
    for moment in (begins, ends):
        judged(bank, now=moment)
    with pytest.raises(IdentityError, match=r"party/bank/role/compute is not yet valid: it begins"):
        judged(bank, now=begins - timedelta(seconds=1))
    with pytest.raises(IdentityError, match=r"party/bank/role/compute expired at .* renew"):
        judged(bank, now=ends + timedelta(seconds=1))


def test_a_party_of_another_federation_is_refused(bank: Identity) -> None:
    with pytest.raises(IdentityError, match=r"another federation; expected other.example"):
        judged(bank, federation="other.example")


def test_a_wrong_role_is_named_with_those_allowed(bank: Identity) -> None:
    with pytest.raises(IdentityError, match=r"wrong role compute; expected auditor, trusted"):
        judged(bank, roles=frozenset({Role.TRUSTED, Role.AUDITOR}))


def test_another_party_or_role_than_expected_is_named_with_both(bank: Identity) -> None:
    with pytest.raises(IdentityError, match=r"party/bank/.*wrong name; expected .*party/lab/"):
        judged(bank, expected=replace(bank.name, party="lab"))
    with pytest.raises(
        IdentityError, match=r"role/compute, the wrong role; expected .*role/auditor"
    ):
        judged(bank, expected=replace(bank.name, role=Role.AUDITOR))


def test_a_denied_name_and_a_denied_certificate_are_refused(bank: Identity) -> None:
    serial = f"{bank.certificate.serial_number:x}"
    for denied in (
        DenyList(federation="fed.example", number=7, uris=frozenset({bank.name.uri})),
        DenyList(federation="fed.example", number=7, serials=frozenset({serial})),
    ):
        with pytest.raises(IdentityError, match=r"denied by the federation's deny-list number 7"):
            judged(bank, denied=denied)


def test_junk_is_no_certificate(bank: Identity) -> None:
    with pytest.raises(IdentityError, match=r"not an X.509 certificate"):
        authorise(
            b"",
            ca=bank.ca,
            expected=None,
            federation="fed.example",
            roles=ALL,
            denied=bank.denied,
            now=NOW,
        )


def test_a_proof_holds_for_its_message_and_its_key_only(bank: Identity, tmp_path: Path) -> None:
    lab = make_identity(tmp_path, "lab", Role.COMPUTE)
    proof = bank.sign(b"hello")
    verify_proof(bank.certificate_der, message=b"hello", signature=proof)
    for certificate, message, signature in (
        (bank.certificate_der, b"hallo", proof),
        (lab.certificate_der, b"hello", proof),
        (bank.certificate_der, b"hello", b"junk"),
    ):
        with pytest.raises(IdentityError, match=r"could not prove"):
            verify_proof(certificate, message=message, signature=signature)


def test_a_proof_is_no_signature_over_the_bare_message(bank: Identity) -> None:
    key = serialization.load_pem_private_key(bank.key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    bare = key.sign(b"hello", ec.ECDSA(hashes.SHA256()))
    with pytest.raises(IdentityError, match=r"could not prove"):
        verify_proof(bank.certificate_der, message=b"hello", signature=bare)


def test_a_proof_by_another_kind_of_key_is_refused() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(hours=1))
        .sign(key, None)
    )
    der = certificate.public_bytes(serialization.Encoding.DER)
    with pytest.raises(IdentityError, match=r"expected P-256"):
        verify_proof(der, message=b"", signature=key.sign(b""))
