"""Conversations, policy changes and leakage: what a record may say after those before it."""

import hashlib
from collections.abc import Mapping

import msgspec
import pytest

from splitlearn.audit import Exit, Judge, Leakage, Payload, PolicyChange, Record
from splitlearn.audit.findings import Findings
from splitlearn.audit.judging import Judging
from tests.audit.pair import FARM_KEY
from tests.audit.test_records import OPEN, PAYLOAD
from tests.door import COMPUTE

SENT = tuple(
    msgspec.structs.replace(PAYLOAD, message=number, commit=f"{number:064x}", policy=OPEN.policy)
    for number in (1, 2, 3)
)


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
