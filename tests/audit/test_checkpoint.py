"""Signed heads against the published note of Go's sumdb and every way of forging one."""

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitlearn.audit.checkpoint import (
    MAX_NOTE_BYTES,
    Checkpoint,
    cosign,
    format_verifier_key,
    open_note,
    parse_verifier_key,
    sign_note,
)
from splitlearn.errors import AuditError

# Made by another implementation of signed notes, see vectors/make_notes.py.
NOTES = Path(__file__).parent.parent / "vectors" / "notes.json"
# From the documentation of golang.org/x/mod/sumdb/note, where signed notes come from.
NOTE_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
NOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "\N{EM DASH} PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNI"
    "uGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
HEAD = Checkpoint(origin="example.org/clinic/news", size=1234, root=bytes(range(32)))
# Ed25519 is deterministic, so a head has one spelling for ever.
GOLDEN = """\
example.org/clinic/news
1234
AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=
"""


def opened(note: str, *, origin: str = HEAD.origin, public_key: bytes = PUBLIC) -> Checkpoint:
    return Checkpoint.open(note, origin=origin, public_key=public_key)


def test_the_published_note_opens_and_one_changed_letter_shows() -> None:
    name, public = parse_verifier_key(NOTE_KEY)
    assert open_note(NOTE, name=name, public_key=public).startswith("If you think cryptography")
    with pytest.raises(AuditError, match="forged"):
        open_note(NOTE.replace("answer", "Answer"), name=name, public_key=public)


def test_heads_and_countersignatures_are_those_of_another_implementation_to_the_byte() -> None:
    vectors = json.loads(NOTES.read_text())
    signers = {
        name: Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed))
        for name, seed in vectors["seeds"].items()
    }
    log, peer = vectors["log"], vectors["peer"]
    for name, word in vectors["keys"].items():
        public = signers[name].public_key().public_bytes_raw()
        assert format_verifier_key(name, public_key=public) == word
    for vector in vectors["heads"]:
        head = Checkpoint(origin=log, size=vector["size"], root=bytes.fromhex(vector["root"]))
        note = head.sign(signers[log])
        assert note == vector["note"]
        assert cosign(note, name=peer, key=signers[peer]) == vector["countersigned"]
        for name in (log, peer):
            public = signers[name].public_key().public_bytes_raw()
            found = Checkpoint.open(
                vector["countersigned"], origin=log, public_key=public, name=name
            )
            assert found == head


def test_a_head_is_three_lines_and_a_signature_and_reads_back() -> None:
    note = HEAD.sign(KEY)
    text, signature = note.split("\n\n")
    assert text + "\n" == GOLDEN
    assert signature.startswith(f"\N{EM DASH} {HEAD.origin} ")
    assert opened(note) == HEAD


def test_a_countersignature_of_somebody_else_is_passed_over() -> None:
    other = sign_note(GOLDEN, name="example.org/farm", key=OTHER).split("\n\n")[1]
    own = HEAD.sign(KEY)
    assert opened(own + other) == HEAD
    assert opened(own.replace("\n\n", "\n\n" + other)) == HEAD


def resigned(old: str, new: str) -> str:
    """The head with a change, under a good signature."""
    return sign_note(GOLDEN.replace(old, new), name=HEAD.origin, key=KEY)


NOTE_OF_HEAD = HEAD.sign(KEY)
FORGERIES = {
    "another size": (NOTE_OF_HEAD.replace("1234", "1235"), "forged"),
    "another root": (NOTE_OF_HEAD.replace("AAEC", "BAEC"), "forged"),
    "no blank line": (NOTE_OF_HEAD.replace("\n\n", "\n"), "not a signed note"),
    "no last newline": (NOTE_OF_HEAD[:-1], "not a signed note"),
    "no signature": (NOTE_OF_HEAD.split("\n\n")[0] + "\n\n", "not a signed note"),
    "another dash": (NOTE_OF_HEAD.replace("\N{EM DASH}", "-"), "is no signature"),
    "too long": (NOTE_OF_HEAD + "x" * MAX_NOTE_BYTES + "\n", "not a signed note"),
    "another key": (HEAD.sign(OTHER), "not signed by"),
    "another text": (sign_note("a\nb\n", name=HEAD.origin, key=KEY), "not one of log"),
    "hexadecimal size": (resigned("1234", "0x12"), "no size"),
    "size with a zero before": (resigned("1234", "01234"), "no size"),
    "size without end": (resigned("1234", "9" * 5000), "no size"),
    "root spelt differently": (resigned("Hh8=", "Hh9="), "is not 32 bytes"),
    "root that is too short": (resigned("AAEC", ""), "is not 32 bytes"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_changed_or_ill_formed_head_is_refused(name: str) -> None:
    note, says = FORGERIES[name]
    with pytest.raises(AuditError, match=says):
        opened(note)


def test_a_head_of_another_log_of_the_same_key_is_refused() -> None:
    other = Checkpoint(origin="example.org/clinic/old", size=1, root=bytes(32))
    with pytest.raises(AuditError, match="not signed by"):
        opened(other.sign(KEY))


def test_a_verifier_key_reads_back_and_a_changed_one_does_not() -> None:
    word = format_verifier_key("a/b", public_key=PUBLIC)
    assert parse_verifier_key(word + "\n") == ("a/b", PUBLIC)
    name, key_id, encoded = word.split("+", 2)
    other_kind = base64.b64encode(b"\x02" + PUBLIC).decode()
    for broken in ("", "a", "a+b", f"b+{key_id}+{encoded}", f"{name}+{key_id}+{other_kind}"):
        with pytest.raises(AuditError):
            parse_verifier_key(broken)
