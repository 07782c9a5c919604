"""One pass over a log: what is counted, what a broken log does, and what is left out when there is much."""

from pathlib import Path

import msgspec
import pytest

from splitlearn.audit import (
    Dp,
    Gap,
    Log,
    Payload,
    PeerCheckpoint,
    PolicyChange,
    Receipt,
    Redaction,
)
from splitlearn.policy.accounting import gaussian
from splitlearn.report import Document, render
from splitlearn.report.document import MAX_BINS, MAX_ROWS
from splitlearn.roles import Kind
from tests.report.logs import (
    DENIED,
    OPEN,
    PAYLOAD,
    PEER,
    PEER_KEY,
    POLICY,
    WIDER,
    Talk,
    document,
    eventful,
    leakage,
    opened,
    write,
)

NOISE = Dp(
    mechanism="gaussian",
    clip=0.7,
    noise=6.0,
    epoch=0,
    unit="example",
    relation="replace-labels",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Document:
    return document(eventful(tmp_path_factory.mktemp("report") / "audit", steps=40))


def test_traffic_is_counted_by_peer_direction_and_kind(whole: Document) -> None:
    flows = {(flow.direction, flow.kind): flow for flow in whole.traffic}
    assert flows["out", "weights"].bytes == 3 * 28_000_000
    assert flows["out", "activation"].messages == 41
    assert flows["in", "output"].messages == 40
    assert {flow.peer for flow in whole.traffic} == {PEER}
    series = {(each.direction, each.kind): sum(each.bytes) for each in whole.steps.series}
    assert series["out", "activation"] == flows["out", "activation"].bytes
    assert whole.steps.outside == sum(
        flow.bytes
        for (_, kind), flow in flows.items()
        if ("out", kind) not in series and ("in", kind) not in series
    )
    assert (whole.steps.first, whole.steps.last, whole.steps.width) == (0, 39, 1)


def test_conversations_are_told_apart_and_receipts_counted(whole: Document) -> None:
    (run,) = whole.runs
    first, second = run.conversations
    assert (first.outcome, second.outcome) == ("open", "refused")
    assert (first.policy, second.policy) == (POLICY.digest, WIDER.digest)
    assert first.receipted == first.messages_out == 44
    assert (first.denied, second.denied) == (0, 1)
    total = sum(flow.bytes for flow in whole.traffic if flow.direction == "out")
    assert first.bytes_out + second.bytes_out == total


def test_budgets_are_held_against_the_newest_policy_of_the_run(whole: Document) -> None:
    rules = {use.rule: use for use in whole.rules}
    limits = {rule.id: rule.max_run_bytes for rule in WIDER.rules}
    assert rules.keys() == limits.keys()
    weights = rules["trunk-weights"]
    assert (weights.messages, weights.policy) == (3, "wider")
    assert weights.budget == limits["trunk-weights"]
    assert weights.left == limits["trunk-weights"] - 84_000_000
    assert rules["trained-weights"].messages == 0


def test_what_happened_stands_in_its_table(whole: Document) -> None:
    (refusal,) = whole.refusals
    assert (refusal.rule, refusal.shapes) == ("content.finite", ("F32[256 x 64]",))
    assert [(tally.name, tally.count) for tally in whole.refused_by] == [("content.finite", 1)]
    (gap,) = whole.gaps
    (redaction,) = whole.redactions
    assert gap.record < redaction.payload < redaction.record
    assert [result.at for result in whole.leakage] == ["preflight", "canary"]
    assert [change.policy for change in whole.policy_changes] == [WIDER.digest]
    assert [head.countersigned for head in whole.heads.listed].count((PEER,)) == 2
    (peer,) = whole.heads.peers
    assert (peer.key, peer.swaps, peer.size) == (PEER_KEY, 2, 400)
    assert whole.verdict.name == "policy"
    assert whole.log.covered == whole.log.records
    assert whole.left_out == ()


def noisy(folder: Path, *, bare: int = 0, **changes: object) -> Document:
    with opened(folder) as log:
        talk = Talk(log)
        for step in range(6):
            noise = msgspec.structs.replace(NOISE, epoch=step // 2, **changes)
            talk.send(Kind.ACTIVATION, step=step)
            talk.send(Kind.GRADIENT, step=step, micro_batch=0, dp=noise)
        for step in range(bare):
            talk.send(Kind.GRADIENT, step=6 + step, micro_batch=0)
        talk.close()
    return document(folder)


def test_noise_is_grouped_and_bounded_as_the_accounting_does(tmp_path: Path) -> None:
    found = noisy(tmp_path)
    (group,) = found.noise
    assert (group.kind, group.releases) == ("gradient", 6)
    assert {fact.name: fact.value for fact in group.facts} == {
        "mechanism": "gaussian",
        "clip": "0.7",
        "noise": "6.0",
        "unit": "example",
        "relation": "replace-labels",
        "epoch": "0 to 2",
    }
    (bound,) = found.noise_bounds
    assert bound.releases == 3
    told = gaussian(noise=6.0, delta=bound.delta, releases=3).epsilon
    assert bound.epsilon == pytest.approx(told, abs=1e-9)
    assert (found.without_noise, found.outgoing_steps) == (6, 12)


def test_one_gradient_without_noise_leaves_no_bound(tmp_path: Path) -> None:
    (bound,) = noisy(tmp_path, bare=1).noise_bounds
    assert (bound.epsilon, bound.bare) == (None, 1)


def test_a_run_without_noise_has_neither(whole: Document) -> None:
    assert (whole.noise, whole.noise_bounds) == ((), ())
    assert whole.without_noise == whole.outgoing_steps == 81


def test_a_log_of_many_steps_has_few_bins(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        talk = Talk(log)
        talk.steps(range(0, 5_000, 7))
    steps = document(tmp_path).steps
    assert steps.width == 16
    assert {len(each.bytes) for each in steps.series} == {313}
    assert MAX_BINS >= 313


def test_what_does_not_fit_a_table_is_counted(tmp_path: Path) -> None:
    many = MAX_ROWS + 3
    with opened(tmp_path) as log:
        log.append(OPEN)
        for number in range(many):
            log.append(msgspec.structs.replace(DENIED, rule=f"rule-{number}"))
            log.append(msgspec.structs.replace(OPEN, run=f"run-{number}"))
    found = document(tmp_path)
    assert len(found.refusals) == len(found.verdict.findings) == MAX_ROWS
    left_out = {tally.name: tally.count for tally in found.left_out}
    assert left_out["refusals"] == left_out["refused_by"] == 3
    assert left_out["conversations"] == 4
    assert sum(len(run.conversations) for run in found.runs) == MAX_ROWS


def test_no_table_of_a_hostile_log_grows_without_bound(tmp_path: Path) -> None:
    many = MAX_ROWS + 2
    with opened(tmp_path) as log:
        log.append(Receipt(**HERE, signature="0" * 128, last=1, chain="0" * 64))
        for number in range(many):
            noise = msgspec.structs.replace(NOISE, clip=1.0 + number)
            log.append(
                msgspec.structs.replace(
                    PAYLOAD,
                    run=f"run-{number}",
                    peer=f"peer-{number}",
                    rules=(f"rule-{number}",),
                    kind=Kind.GRADIENT,
                    step=number,
                    dp=noise,
                )
            )
            log.append(PeerCheckpoint(**(HERE | {"peer": f"peer-{number}"}), size=1, root="0" * 64))
            log.append(Gap(torn_bytes=1))
            log.append(Redaction(record=number, blob="0" * 64, why="mistake"))
            log.append(PolicyChange(run="x", before="0" * 64, policy="1" * 64))
            log.append(leakage(at="canary", tokens=0.1, limit=None))
    found = document(tmp_path)
    left_out = {tally.name: tally.count for tally in found.left_out}
    for name in (
        "bounds",
        "gaps",
        "leakage",
        "noise",
        "peers",
        "policy_changes",
        "redactions",
        "rules",
        "traffic",
    ):
        assert left_out.pop(name) == 2, name
    assert set(left_out) == {"findings"}
    assert len(found.traffic) == len(found.heads.peers) == len(found.gaps) == MAX_ROWS
    assert len(render(found)) < 1_000_000


HERE = {
    "run": "news",
    "conversation": "3" * 32,
    "peer": PEER,
    "key": PEER_KEY,
}


def test_payloads_of_no_known_run_or_rule_are_still_counted(tmp_path: Path) -> None:
    stray = msgspec.structs.replace(PAYLOAD, run="stray", rules=("nobody",), step=None)
    found = document(write(tmp_path, stray, msgspec.structs.replace(DENIED, run="stray")))
    assert [flow.messages for flow in found.traffic] == [1]
    (use,) = found.rules
    assert (use.rule, use.budget, use.left, use.policy) == ("nobody", None, None, "")
    assert (found.runs, found.steps.outside) == ((), 16_900)


def test_a_policy_that_cannot_be_read_gives_no_budgets(tmp_path: Path) -> None:
    found = document(write(tmp_path, msgspec.structs.replace(OPEN, policy_text="{}"), PAYLOAD))
    assert [use.budget for use in found.rules] == [None]


def _nonsense(segment: Path) -> None:
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([*lines[:3], b"nonsense\n", *lines[3:]]))


def _torn(segment: Path) -> None:
    segment.write_bytes(segment.read_bytes()[:-20])


def _missing(segment: Path) -> None:
    segment.rename(segment.with_name("000001.jsonl"))


@pytest.mark.parametrize(
    ("damage", "unreadable", "payloads"), [(_nonsense, 1, 10), (_torn, 0, 10), (_missing, 0, 0)]
)
def test_a_broken_log_has_a_document_too(
    tmp_path: Path, damage: object, unreadable: int, payloads: int
) -> None:
    write(tmp_path, OPEN, *[PAYLOAD] * 10)
    assert callable(damage)
    damage(tmp_path / "log" / "000000.jsonl")
    found = document(tmp_path)
    assert found.verdict.exit in {3, 5}
    assert found.log.unreadable == unreadable
    assert sum(flow.messages for flow in found.traffic) == payloads


def test_nothing_at_all_has_a_document_too(tmp_path: Path) -> None:
    found = document(tmp_path, key=None)
    assert (found.verdict.name, found.log.key, found.log.first) == ("uncheckable", "", None)


def test_what_is_appended_after_the_check_is_not_in_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.report import logs

    log = opened(tmp_path)
    log.append(OPEN)
    log.append(PAYLOAD)
    log.checkpoint()
    real = logs.checked

    def grown(folder: Path, *, key: str | None) -> object:
        found = real(folder, key=key)
        _more(log)
        return found

    monkeypatch.setattr(logs, "checked", grown)
    found = document(tmp_path)
    log.close()
    assert sum(flow.messages for flow in found.traffic) == 1
    assert (found.log.records, found.heads.total) == (3, 1)


def _more(log: Log) -> None:
    more: Payload = msgspec.structs.replace(PAYLOAD, message=2)
    log.append(more)
    log.checkpoint()
