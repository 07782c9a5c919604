from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store
from hypothesis import given, settings
from hypothesis import strategies as st

from splitlearn.errors import IdentityError
from splitlearn.identity import certificates
from splitlearn.identity.judge import check_chain
from splitlearn.identity.names import PartyName
from splitlearn.roles import Role

NOW = datetime.now(UTC).replace(microsecond=0)
CA_KEY = certificates.new_key()
CA = certificates.make_ca(CA_KEY, federation="fed.example", now=NOW)
KEY = certificates.new_key()
LOG_KEY = ed25519.Ed25519PrivateKey.generate()
NAME = PartyName(federation="fed.example", party="bank", role=Role.COMPUTE)
LEAF = certificates.make_leaf(
    CA_KEY,
    ca=CA,
    name=NAME,
    public_key=KEY.public_key(),
    log_public=LOG_KEY.public_key().public_bytes_raw(),
    not_before=NOW - certificates.BACKDATE,
    not_after=NOW + certificates.LIFETIME,
)


def self_signed(*extensions: x509.ExtensionType) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(hours=1))
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(KEY, hashes.SHA256())


def test_a_leaf_passes_the_web_pki_rules_of_another_verifier() -> None:
    verifier = PolicyBuilder().store(Store([CA])).time(NOW).build_client_verifier()
    verified = verifier.verify(LEAF, [])
    assert verified.subjects is not None
    assert [name.value for name in verified.subjects] == [NAME.uri, NAME.dns]


def test_a_leaf_says_its_name_its_log_key_and_its_day() -> None:
    assert certificates.name_of(LEAF) == NAME
    assert certificates.log_public_of(LEAF) == LOG_KEY.public_key().public_bytes_raw()
    lifetime = LEAF.not_valid_after_utc - LEAF.not_valid_before_utc
    assert lifetime == timedelta(hours=24, minutes=10)
    assert not LEAF.extensions.get_extension_for_oid(certificates.LOG_KEY_OID).critical


def test_a_ca_says_its_federation_and_signs_no_further_ca() -> None:
    assert certificates.federation_of(CA) == "fed.example"
    constraints = CA.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)


def test_a_pin_is_the_hash_of_the_key_and_stays_when_the_certificate_changes() -> None:
    other = certificates.make_ca(CA_KEY, federation="fed.example", now=NOW + timedelta(days=1))
    assert certificates.pin_of(CA) == certificates.pin_of(other)
    assert certificates.fingerprint(CA) != certificates.fingerprint(other)


def test_a_request_has_no_name_and_proves_both_keys() -> None:
    request = certificates.make_request(KEY, log_key=LOG_KEY)
    assert certificates.read_request(request) == KEY.public_key()
    assert list(x509.load_pem_x509_csr(request.csr).subject) == []


def test_a_request_with_another_log_key_is_refused() -> None:
    request = certificates.make_request(KEY, log_key=LOG_KEY)
    stolen = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    for broken in (
        replace(request, log_public=stolen),
        replace(request, log_public=b"short"),
        replace(request, log_proof=bytes(64)),
        replace(request, csr=certificates.make_request(CA_KEY, log_key=LOG_KEY).csr),
    ):
        with pytest.raises(IdentityError, match=r"did not sign the request"):
            certificates.read_request(broken)


def test_a_request_that_its_own_key_did_not_sign_is_refused() -> None:
    request = certificates.make_request(KEY, log_key=LOG_KEY)
    der = bytearray(x509.load_pem_x509_csr(request.csr).public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    broken = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(IdentityError, match=r"not signed by the key"):
        certificates.read_request(replace(request, csr=broken))


@pytest.mark.parametrize(
    "key", [ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()]
)
def test_a_request_for_another_kind_of_key_is_refused(
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey,
) -> None:
    algorithm = hashes.SHA256() if isinstance(key, ec.EllipticCurvePrivateKey) else None
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, algorithm)
    request = replace(
        certificates.make_request(KEY, log_key=LOG_KEY),
        csr=csr.public_bytes(serialization.Encoding.PEM),
    )
    with pytest.raises(IdentityError, match=r"expected P-256"):
        certificates.read_request(request)


def test_too_much_or_no_pem_is_refused_before_it_is_parsed() -> None:
    request = certificates.make_request(KEY, log_key=LOG_KEY)
    with pytest.raises(IdentityError, match=r"longer than"):
        certificates.read_request(replace(request, csr=bytes(20_000)))
    with pytest.raises(IdentityError, match=r"PKCS#10"):
        certificates.read_request(replace(request, csr=b"junk"))
    for read in (certificates.read_der, certificates.read_pem):
        with pytest.raises(IdentityError, match=r"longer than"):
            read(bytes(20_000), whose="it")
        with pytest.raises(IdentityError, match=r"it is not an X.509 certificate"):
            read(b"junk", whose="it")


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_certificate_is_read_or_is_an_identity_error(data: st.DataObject) -> None:
    der = bytearray(LEAF.public_bytes(serialization.Encoding.DER))
    for _ in range(data.draw(st.integers(1, 4))):
        der[data.draw(st.integers(0, len(der) - 1))] = data.draw(st.integers(0, 255))
    with suppress(IdentityError):
        leaf = certificates.read_der(bytes(der), whose="it")
        for read in (
            certificates.name_of,
            certificates.log_public_of,
            certificates.federation_of,
            lambda leaf: check_chain(leaf, ca=CA, whose="it"),
        ):
            with suppress(IdentityError):
                read(leaf)


def test_a_certificate_without_the_right_names_names_nobody() -> None:
    uri = x509.UniformResourceIdentifier(NAME.uri)
    for names, reason in (
        ([x509.DNSName(NAME.dns)], "0 URIs"),
        ([uri, uri, x509.DNSName(NAME.dns)], "2 URIs"),
        ([uri], "another DNS name"),
        ([uri, x509.DNSName("compute.other.fed.example")], "another DNS name"),
    ):
        with pytest.raises(IdentityError, match=reason):
            certificates.name_of(self_signed(x509.SubjectAlternativeName(names)))
    with pytest.raises(IdentityError, match=r"no subject alternative names"):
        certificates.name_of(self_signed())


def test_a_certificate_that_is_no_ca_of_a_federation_is_told_so() -> None:
    with pytest.raises(IdentityError, match=r"not a federation's CA"):
        certificates.federation_of(LEAF)
    strange = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("https://a")])
    with pytest.raises(IdentityError, match=r"carries no federation URI"):
        certificates.federation_of(self_signed(strange))


def test_a_certificate_without_a_proper_log_key_is_refused() -> None:
    with pytest.raises(IdentityError, match=r"names no log key"):
        certificates.log_public_of(self_signed())
    short = x509.UnrecognizedExtension(certificates.LOG_KEY_OID, b"\x04\x02ab")
    with pytest.raises(IdentityError, match=r"not 32 bytes"):
        certificates.log_public_of(self_signed(short))


def test_keys_are_read_as_what_they_are_and_never_quoted() -> None:
    own, log = certificates.key_pem(KEY), certificates.key_pem(LOG_KEY)
    assert certificates.read_key(own, whose="k").public_key() == KEY.public_key()
    assert certificates.read_log_key(log, whose="k").public_key() == LOG_KEY.public_key()
    other = certificates.key_pem(ec.generate_private_key(ec.SECP384R1()))
    for wrong in (log, other):
        with pytest.raises(IdentityError, match=r"expected P-256"):
            certificates.read_key(wrong, whose="k")
    with pytest.raises(IdentityError, match=r"expected Ed25519"):
        certificates.read_log_key(own, whose="k")
    with pytest.raises(IdentityError) as caught:
        certificates.read_key(own[:60], whose="k")
    assert own[30:60].decode() not in str(caught.value)
