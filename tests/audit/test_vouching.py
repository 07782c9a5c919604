"""Receipts, heads of peers and the keys that they are under: what holds, and every way in which it fails."""

from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitlearn.audit import Exit, PeerCheckpoint, Receipt, verify
from splitlearn.audit.checkpoint import format_verifier_key
from splitlearn.audit.findings import Findings
from splitlearn.audit.judging import Judging
from splitlearn.audit.receipts import Chain, Claim
from tests.audit.pair import CLINIC_KEY, FARM_KEY, FARM_SIGNER, Pair, records
from tests.audit.test_judging import SENT, faults, judged
from tests.audit.test_records import OPEN
from tests.door import COMPUTE, TRUSTED

OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
OTHER_KEY = format_verifier_key(COMPUTE.dns, public_key=OTHER.public_key().public_bytes_raw())
HEAD = PeerCheckpoint(
    run="news",
    conversation=OPEN.conversation,
    peer=COMPUTE.uri,
    key=FARM_KEY,
    size=7,
    root="4" * 64,
)


def receipt(
    last: int,
    *,
    signer: Ed25519PrivateKey = FARM_SIGNER,
    key: str = FARM_KEY,
    commits: tuple[str, ...] = tuple(sent.commit for sent in SENT),
    **changes: object,
) -> Receipt:
    """What the farm signs for the first `last` of SENT, then changed."""
    chain = Chain()
    for commit in commits:
        chain.add(commit)
    claim = Claim("news", OPEN.conversation, TRUSTED.uri, COMPUTE.uri, last, chain.at(last))
    record = Receipt(
        run="news",
        conversation=OPEN.conversation,
        peer=COMPUTE.uri,
        last=last,
        chain=claim.chain,
        key=key,
        signature=claim.sign(signer),
    )
    return msgspec.structs.replace(record, **changes)


def test_a_receipt_for_what_was_sent_is_taken(tmp_path: Path) -> None:
    findings, judging = judged(receipt(1), receipt(1), receipt(3))
    assert findings == []
    assert judging.vouching.receipts == 3
    assert judging.talks[OPEN.conversation].receipted == 3
    judging.finish()
    assert [finding.name for finding in findings] == ["open"]


def test_messages_under_no_receipt_are_counted() -> None:
    findings, judging = judged(receipt(1))
    judging.finish()
    (said,) = (finding for finding in findings if finding.name == "unreceipted")
    assert said.exit is Exit.CLEAN
    assert said.sentence.endswith(
        "for 1 of the 3 messages sent in this conversation; tensors are in 2 of the rest"
    )


FALSE_RECEIPTS = {
    "of another key": receipt(3, signer=OTHER),
    "of a key of its own": receipt(3, signer=OTHER, key=OTHER_KEY),
    "of a key in another name": receipt(3, key=CLINIC_KEY),
    "of a key that is none": receipt(3, key="a+b+c"),
    "for more than was sent": msgspec.structs.replace(receipt(3), last=4),
    "for fewer than it signs": msgspec.structs.replace(receipt(3), last=2),
    "for other bytes": receipt(3, commits=("e" * 64, "f" * 64, "0" * 64)),
    "with a digit of its signature changed": receipt(3, signature="0" * 128),
    "of another run": receipt(3, run="old"),
    "of another conversation": receipt(3, conversation="0" * 32),
    "of another peer": receipt(3, peer=TRUSTED.uri),
}


@pytest.mark.parametrize("name", FALSE_RECEIPTS)
def test_a_false_receipt_is_found_out(name: str) -> None:
    assert faults(FALSE_RECEIPTS[name]) == [("receipt", 4)]


def test_a_receipt_never_takes_anything_back() -> None:
    assert faults(receipt(2), receipt(1)) == [("receipt", 5)]


def test_a_message_changed_under_a_receipt_is_found_out() -> None:
    findings = Findings()
    judging = Judging(findings, key=None, peer_keys={}, judge_of=None)
    changed = msgspec.structs.replace(SENT[1], commit="a" * 64)
    for index, record in enumerate((OPEN, SENT[0], changed, SENT[2], receipt(3))):
        judging.take(record, index=index)
    assert [(finding.name, finding.record) for finding in findings] == [("receipt", 4)]


def test_a_peer_has_one_key_and_without_one_that_was_told_it_is_said_so() -> None:
    assert faults(receipt(1), receipt(3, signer=OTHER, key=OTHER_KEY), pinned={}) == [
        ("receipt", 5)
    ]
    findings, judging = judged(receipt(3), pinned={})
    judging.finish()
    assert "peer-unpinned" in {finding.name for finding in findings}


def test_heads_of_a_peer_only_grow() -> None:
    def head(**changes: object) -> PeerCheckpoint:
        return msgspec.structs.replace(HEAD, **changes)

    assert faults(HEAD, HEAD, head(size=9, root="5" * 64, mine=2)) == []
    assert faults(HEAD, head(size=6)) == [("peer-head", 5)]
    assert faults(HEAD, head(root="5" * 64)) == [("peer-head", 5)]
    assert faults(head(mine=2), head(mine=1)) == [("peer-head", 5)]
    assert faults(head(mine=2), head(mine=0), head(mine=3)) == []  # a new process holds none yet
    assert faults(head(mine=99)) == [("peer-head", 4)]
    assert faults(head(conversation="0" * 32)) == [("peer-head", 4)]
    assert faults(head(peer="nobody")) == [("peer-head", 4)]
    assert faults(head(key=OTHER_KEY)) == [("peer-head", 4)]


def test_a_party_that_cannot_be_named_has_no_key() -> None:
    findings = Findings()
    judging = Judging(findings, key=None, peer_keys={}, judge_of=None)
    nobody = msgspec.structs.replace(OPEN.peer, id="nobody")
    judging.take(msgspec.structs.replace(OPEN, peer=nobody), index=0)
    judging.take(msgspec.structs.replace(HEAD, peer="nobody"), index=1)
    assert [(finding.name, finding.record) for finding in findings] == [("peer-head", 1)]


def test_logs_as_two_parties_write_them_are_clean_and_say_by_whom(tmp_path: Path) -> None:
    pair = Pair(tmp_path).run()
    for side, key, peer_key in (
        (pair.clinic, CLINIC_KEY, FARM_KEY),
        (pair.farm, FARM_KEY, CLINIC_KEY),
    ):
        report = verify(side.folder, verifier_key=key, peer_keys=(peer_key,))
        assert report.findings == ()
        newest = max(r.mine for r in records(side.folder) if isinstance(r, PeerCheckpoint))
        assert report.countersigned[side.peer.dns] >= newest > 0
        assert report.receipts == 2
        assert report.unreceipted == 2
