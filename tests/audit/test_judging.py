"""Receipts, heads of peers, policy changes and leakage: what a record may say after those before it."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitlearn.audit import (
    Exit,
    Judge,
    Leakage,
    Payload,
    PeerCheckpoint,
    PolicyChange,
    Receipt,
    Record,
    verify,
)
from splitlearn.audit.checkpoint import format_verifier_key
from splitlearn.audit.findings import Findings
from splitlearn.audit.judging import Judging
from splitlearn.audit.receipts import Chain, Claim
from tests.audit.pair import CLINIC_KEY, FARM_KEY, FARM_SIGNER, Pair, records
from tests.audit.test_records import OPEN, PAYLOAD
from tests.door import COMPUTE, TRUSTED

OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
OTHER_KEY = format_verifier_key(COMPUTE.dns, public_key=OTHER.public_key().public_bytes_raw())
SENT = tuple(
    msgspec.structs.replace(PAYLOAD, message=number, commit=f"{number:064x}", policy=OPEN.policy)
    for number in (1, 2, 3)
)
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


def judged(
    *after: Record, pinned: Mapping[str, str] = {COMPUTE.dns: FARM_KEY}, sent: int = 3
) -> tuple[Findings, Judging]:
    """What is found in a conversation of `sent` messages with the records `after` it."""
    findings = Findings()
    judging = Judging(findings, key=None, peer_keys=pinned, judge_of=None)
    for index, record in enumerate((OPEN, *SENT[:sent], *after)):
        judging.take(record, index=index)
    return findings, judging


def faults(*after: Record, **how: object) -> list[tuple[str, int | None]]:
    findings, _ = judged(*after, **how)  # type: ignore[arg-type]
    return [(finding.name, finding.record) for finding in findings]


def test_a_receipt_for_what_was_sent_is_taken(tmp_path: Path) -> None:
    findings, judging = judged(receipt(1), receipt(1), receipt(3))
    assert findings == []
    assert judging.receipts == 3
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


def policy(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def under(text: str, number: int) -> Record:
    return msgspec.structs.replace(
        OPEN, conversation=f"{number:032x}", policy=policy(text), policy_text=text
    )


def change(before: str, after: str) -> PolicyChange:
    return PolicyChange(run="news", before=policy(before), policy=policy(after))


POLICIES: dict[str, tuple[tuple[Record, ...], list[tuple[str, Exit, int]]]] = {
    "the same": ((under("{}", 1), under("{}", 2)), []),
    "announced": (
        (under("{}", 1), change("{}", "[]"), under("[]", 2), under("[]", 3)),
        [("policy-change", Exit.CLEAN, 2)],
    ),
    "announced twice, a crash between": (
        (under("{}", 1), change("{}", "[]"), change("{}", "[]"), under("[]", 2)),
        [("policy-change", Exit.CLEAN, 3)],
    ),
    "not announced": ((under("{}", 1), under("[]", 2)), [("policy-change", Exit.POLICY, 1)]),
    "announced as another": (
        (under("{}", 1), change("{}", "null"), under("[]", 2)),
        [("policy-change", Exit.POLICY, 2)],
    ),
    "announced from another": (
        (under("{}", 1), change("null", "[]"), under("[]", 2)),
        [("policy-change", Exit.POLICY, 2)],
    ),
    "announced and not done": (
        (under("{}", 1), change("{}", "[]"), under("{}", 2)),
        [("policy-change", Exit.POLICY, 2)],
    ),
    "used up": (
        (under("{}", 1), change("{}", "[]"), under("[]", 2), under("{}", 3)),
        [("policy-change", Exit.CLEAN, 2), ("policy-change", Exit.POLICY, 3)],
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_run_changes_its_policy_only_with_an_announcement(name: str) -> None:
    shown, found = POLICIES[name]
    findings = Findings()
    judging = Judging(findings, key=None, peer_keys={}, judge_of=None)
    for index, record in enumerate(shown):
        judging.take(record, index=index)
    assert [(f.name, f.exit, f.record) for f in findings if f.name != "reopened"] == found


def test_a_new_policy_is_judged_with_what_was_spent_under_the_old_one() -> None:
    seen: list[tuple[str, dict[str, int]]] = []

    def judge_of(text: str, spent: Mapping[str, int]) -> Judge:
        seen.append((text, dict(spent)))

        def judge(payload: Payload) -> str | None:
            return None

        return judge

    judging = Judging(Findings(), key=None, peer_keys={}, judge_of=judge_of)
    shown = (OPEN, SENT[0], SENT[1], change("{}", "[]"), under("[]", 2))
    for index, record in enumerate(shown):
        judging.take(record, index=index)
    assert seen == [("{}", {}), ("[]", {"activation": 2000})]


def leakage(**changes: object) -> Leakage:
    record = Leakage(
        run="news",
        at="preflight",
        suite=1,
        seed=0,
        scored=10,
        tokens=0.4,
        tokens_by="ridge",
        labels=0.9,
        labels_by="norm",
        report="7" * 64,
    )
    return msgspec.structs.replace(record, **changes)


def test_leakage_over_a_limit_of_the_policy_is_a_finding() -> None:
    assert faults(leakage()) == []
    assert faults(leakage(tokens_limit=0.4, labels_limit=0.9)) == []
    assert faults(leakage(tokens=None, tokens_limit=0.0)) == []
    assert faults(leakage(tokens_limit=0.39)) == [("leakage", 4)]
    findings, _ = judged(leakage(tokens_limit=0.1, labels_limit=0.5))
    assert [finding.exit for finding in findings] == [Exit.POLICY, Exit.POLICY]
    assert "attack norm got 0.900 of the labels" in findings[1].sentence


def test_a_conversation_has_a_number_of_its_own() -> None:
    assert ("conversation", 4) in faults(OPEN)


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
