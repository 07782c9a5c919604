"""Statements: the envelope of the specification, and what a changed one is."""

import base64
import json
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from splitlearn.errors import AuditError, ManifestError
from splitlearn.report import Document
from splitlearn.report.statement import MAX_ENVELOPE_BYTES, PAYLOAD_TYPE, pae, verify, write
from tests.report.logs import ORIGIN, PEER_SIGNER, SIGNER, Talk, document, opened

PAGE = b"<!doctype html>"
PUBLIC = SIGNER.public_key().public_bytes_raw()


@pytest.fixture(scope="module")
def stated(tmp_path_factory: pytest.TempPathFactory) -> Document:
    folder = tmp_path_factory.mktemp("log")
    with opened(folder) as log:
        talk = Talk(log)
        talk.steps(range(3))
        talk.close()
    return document(folder)


@pytest.fixture(scope="module")
def envelope(stated: Document) -> bytes:
    return write(stated, report=PAGE, name="report.html", key=SIGNER)


def test_the_specifications_own_signature_verifies_over_our_encoding() -> None:
    """protocol.md of DSSE 1.0.0, "Test Vectors"."""
    key = ec.EllipticCurvePublicNumbers(
        46950820868899156662930047687818585632848591499744589407958293238635476079160,
        5640078356564379163099075877009565129882514886557779369047442380624545832820,
        ec.SECP256R1(),
    ).public_key()
    signature = base64.b64decode(
        "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="
    )
    signed = encode_dss_signature(
        int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    )
    encoded = pae("http://example.com/HelloWorld", b"hello world")
    key.verify(signed, encoded, ec.ECDSA(hashes.SHA256()))


def test_lengths_are_of_bytes() -> None:
    assert pae("\N{BULLET}", b"") == b"DSSEv1 3 \xe2\x80\xa2 0 "


def test_a_statement_names_head_and_report(stated: Document, envelope: bytes) -> None:
    statement = verify(envelope, public_key=PUBLIC, report=PAGE)
    head, report = statement.subject
    assert (head.name, head.digest.sha256) == (f"{ORIGIN}@{stated.log.covered}", stated.log.root)
    assert report.name == "report.html"
    assert (statement.predicate.exit, statement.predicate.verdict) == (0, "clean")


def test_the_bytes_are_in_toto_in_dsse(envelope: bytes) -> None:
    said = json.loads(envelope)
    assert said.keys() == {"payload", "payloadType", "signatures"}
    assert said["payloadType"] == "application/vnd.in-toto+json"
    inside = json.loads(base64.b64decode(said["payload"]))
    assert inside["_type"] == "https://in-toto.io/Statement/v1"
    assert inside["predicateType"] == "urn:splitlearn:audit-report:1"
    assert [subject["digest"].keys() for subject in inside["subject"]] == [{"sha256"}] * 2


def test_either_base64_alphabet_and_unknown_fields_are_taken(envelope: bytes) -> None:
    said = json.loads(envelope)
    for name in ("payload",):
        said[name] = said[name].replace("+", "-").replace("/", "_")
    said["signatures"][0]["sig"] = said["signatures"][0]["sig"].replace("+", "-").replace("/", "_")
    said["more"] = 1
    said["signatures"].insert(0, {"sig": "", "keyid": "other"})
    assert verify(json.dumps(said).encode(), public_key=PUBLIC)


def sealed(payload: bytes, *, kind: str = PAYLOAD_TYPE) -> bytes:
    """An envelope that the right key did sign."""
    signature = base64.b64encode(SIGNER.sign(pae(kind, payload))).decode()
    return json.dumps(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": kind,
            "signatures": [{"sig": signature}],
        }
    ).encode()


def test_what_was_changed_or_is_another_is_refused(envelope: bytes) -> None:
    said = json.loads(envelope)
    payload = base64.b64decode(said["payload"])
    changed = base64.b64encode(payload.replace(b'"exit":0', b'"exit":1')).decode()
    one = msgspec.json.decode(payload)
    for broken, why in (
        (json.dumps(said | {"payload": changed}).encode(), "not signed"),
        (json.dumps(said | {"payload": "!"}).encode(), "base64"),
        (json.dumps(said | {"payloadType": "text/plain"}).encode(), "not signed"),
        (json.dumps(said | {"signatures": []}).encode(), "not signed"),
        (b"{}", "not a DSSE envelope"),
        (b"\xff", "not a DSSE envelope"),
        (b" " * (MAX_ENVELOPE_BYTES + 1), "at most"),
        (sealed(payload, kind="text/plain"), "no in-toto statement"),
        (sealed(b"{}"), "not a statement"),
        (sealed(json.dumps(one | {"subject": one["subject"][:1]}).encode()), "two subjects"),
    ):
        with pytest.raises(AuditError, match=why):
            verify(broken, public_key=PUBLIC)
    with pytest.raises(AuditError, match="not signed"):
        verify(envelope, public_key=PEER_SIGNER.public_key().public_bytes_raw())
    with pytest.raises(AuditError, match="changed"):
        verify(envelope, public_key=PUBLIC, report=PAGE + b" ")


def test_nothing_is_stated_about_a_log_under_no_head(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="no signed head"):
        write(document(tmp_path), report=PAGE, name="r.html", key=Ed25519PrivateKey.generate())
