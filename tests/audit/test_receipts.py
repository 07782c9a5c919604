"""Receipts: what a signature over a chain of commits vouches for, and what it does not."""

import hashlib
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitlearn.audit.checkpoint import format_verifier_key
from splitlearn.audit.receipts import Chain, Claim
from splitlearn.errors import AuditError

KEY = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
VERIFIER = format_verifier_key("farm", public_key=KEY.public_key().public_bytes_raw())
COMMITS = ("ab" * 32, "cd" * 32, "ef" * 32)


def chain(*commits: str) -> Chain:
    made = Chain()
    for commit in commits:
        made.add(commit)
    return made


CLAIM = Claim("news", "1" * 32, "from", "to", 3, chain(*COMMITS).at(3))


def test_a_chain_is_the_one_in_the_document() -> None:
    value = bytes(32)
    for commit in COMMITS:
        value = hashlib.sha256(value + bytes.fromhex(commit)).digest()
    assert chain(*COMMITS).at(3) == value.hex()
    assert chain().at(0) == "0" * 64
    assert len(chain(*COMMITS)) == 3


def test_a_chain_tells_order_and_number() -> None:
    values = {chain(*COMMITS).at(n) for n in range(4)}
    assert len(values) == 4
    assert chain(*reversed(COMMITS)).at(3) not in values


@pytest.mark.parametrize("last", [-1, 4])
def test_a_receipt_for_messages_that_never_were_is_refused(last: int) -> None:
    with pytest.raises(AuditError, match="3 are on record"):
        chain(*COMMITS).at(last)


def test_a_receipt_holds_for_what_it_signs() -> None:
    CLAIM.check(CLAIM.sign(KEY), key=VERIFIER)
    assert CLAIM.text == (
        b"splitlearn receipt 1\nnews\n"
        + b"1" * 32
        + b"\nfrom\nto\n3\n"
        + CLAIM.chain.encode()
        + b"\n"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "other"},
        {"conversation": "2" * 32},
        {"sender": "to", "receiver": "from"},
        {"last": 2},
        {"chain": "0" * 64},
    ],
    ids=", ".join,
)
def test_a_receipt_holds_for_nothing_else(changes: dict[str, object]) -> None:
    with pytest.raises(AuditError, match="not signed by its key"):
        replace(CLAIM, **changes).check(CLAIM.sign(KEY), key=VERIFIER)  # type: ignore[arg-type]


@pytest.mark.parametrize("signature", ["", "zz", "00" * 64])
def test_what_is_no_signature_of_it_is_refused(signature: str) -> None:
    with pytest.raises(AuditError, match="not signed by its key"):
        CLAIM.check(signature, key=VERIFIER)
