"""The tamper matrix: each way of changing a log after the fact, and what the verifier says to it."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitlearn.audit import Exit, Judge, Log, Report, verify
from splitlearn.audit.checkpoint import Checkpoint, format_verifier_key
from splitlearn.audit.log import read_lines
from splitlearn.audit.merkle import leaf_hash, root_of
from splitlearn.audit.records import Denied, Payload, Record, RunClose, encode
from splitlearn.errors import AuditError, ManifestError
from splitlearn.roles import Kind
from tests.audit.test_log import ORIGIN, SIGNER, Clock, crash, opened, segment
from tests.audit.test_records import OPEN, PAYLOAD
from tests.door import COMPUTE

KEY = format_verifier_key(ORIGIN, public_key=SIGNER.public_key().public_bytes_raw())
OPENED = msgspec.structs.replace(OPEN, log_key=KEY)
SENT = msgspec.structs.replace(PAYLOAD, policy=OPEN.policy)


def payload(message: int, **changes: object) -> Payload:
    return msgspec.structs.replace(SENT, message=message, **changes)


def closing(*, out: int, denied: int = 0) -> RunClose:
    return RunClose(
        run="news",
        outcome="done",
        messages_out=out,
        messages_in=0,
        bytes_out=1000 * out,
        bytes_in=0,
        denied=denied,
    )


def write(folder: Path, *records: Record) -> Path:
    with opened(folder) as log:
        for record in records:
            log.append(record)
    return folder


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """A whole run of four messages, with a head in the middle."""
    with opened(tmp_path / "audit") as log:
        log.append(OPENED)
        for message in (1, 2):
            log.append(payload(message))
        log.checkpoint()
        for message in (3, 4):
            log.append(payload(message))
        log.append(closing(out=4))
    return tmp_path / "audit"


def again(number: int, **changes: object) -> Record:
    """The beginning of another conversation of the same run."""
    return msgspec.structs.replace(OPENED, conversation=f"{number:032x}", **changes)


def names(report: Report) -> set[str]:
    """What was found, but for the remark that a log gets whose peer gave no receipt."""
    return {finding.name for finding in report.findings} - {"unreceipted"}


def lines(folder: Path) -> list[bytes]:
    return segment(folder).read_bytes().splitlines(keepends=True)


def rewrite(folder: Path, new: list[bytes]) -> None:
    segment(folder).write_bytes(b"".join(new))


def heads(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("*.note"), key=lambda path: int(path.stem))


def sign_anew(folder: Path, *, key: Ed25519PrivateKey) -> None:
    """What somebody who owns `key` can do: every head fresh, over the lines as they are now."""
    leaves = [leaf_hash(line) for line, _ in read_lines(folder)]
    for path in heads(folder):
        path.unlink()
    head = Checkpoint(origin=ORIGIN, size=len(leaves), root=root_of(leaves))
    (folder / "checkpoints" / f"{head.size}.note").write_text(head.sign(key))


def test_a_whole_log_is_clean_and_summed_up(clean: Path) -> None:
    report = verify(clean, verifier_key=KEY)
    assert (report.exit, report.ok) == (Exit.CLEAN, True)
    assert [finding.name for finding in report.findings] == ["unreceipted"]
    assert (report.receipts, report.unreceipted, report.countersigned) == (0, 4, {})
    assert (report.records, report.covered, report.heads) == (8, 8, 2)
    assert report.bytes_by_kind == {"out activation": 4000}
    assert report.messages_by_kind == {"out activation": 4}
    assert (report.origin, report.runs, report.pinned) == (ORIGIN, ("news",), True)


def test_a_key_from_the_folder_is_used_and_said_not_to_be_pinned(clean: Path) -> None:
    report = verify(clean)
    assert (report.exit, report.pinned, names(report)) == (Exit.CLEAN, False, {"unpinned"})


def _flip(folder: Path) -> None:
    rewrite(folder, [line.replace(b'"step":null', b'"step":1234') for line in lines(folder)])


def _flip_one_in_the_middle(folder: Path) -> None:
    new = lines(folder)
    new[1] = new[1].replace(b"ffff", b"0fff", 1)
    rewrite(folder, new)


def _drop(count: int) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, lines(folder)[:-count])


def _drop_middle(folder: Path) -> None:
    new = lines(folder)
    rewrite(folder, new[:2] + new[3:])


def _swap(folder: Path) -> None:
    new = lines(folder)
    new[1], new[2] = new[2], new[1]
    rewrite(folder, new)


def _insert(folder: Path) -> None:
    new = lines(folder)
    rewrite(folder, [*new[:2], encode(payload(2)), *new[2:]])


def _no_json(folder: Path) -> None:
    new = lines(folder)
    rewrite(folder, [*new[:2], b"nonsense\n", *new[2:]])


def _empty_segment(folder: Path) -> None:
    rewrite(folder, [])


def _old_head_under_a_new_name(folder: Path) -> None:
    old, new = heads(folder)
    shutil.copy(old, new)


def _forged_head(folder: Path) -> None:
    path = heads(folder)[-1]
    path.write_text(path.read_text().replace("\n8\n", "\n9\n"))


def _head_by_another_key(folder: Path) -> None:
    sign_anew(folder, key=Ed25519PrivateKey.generate())


def _marker_renamed(folder: Path) -> None:
    new = lines(folder)
    new[3] = new[3].replace(b'"root":"', b'"root":"0', 1).replace(b'"}', b'"}', 1)
    rewrite(folder, new)


TAMPERINGS: dict[str, Callable[[Path], None]] = {
    "a value changed everywhere": _flip,
    "a digit of a commit": _flip_one_in_the_middle,
    "last line dropped": _drop(1),
    "last three lines dropped": _drop(3),
    "all but one line dropped": _drop(7),
    "a line in the middle dropped": _drop_middle,
    "two lines swapped": _swap,
    "a line inserted": _insert,
    "a line that is no record": _no_json,
    "everything dropped": _empty_segment,
    "an old head replayed": _old_head_under_a_new_name,
    "a head changed": _forged_head,
    "heads signed with another key": _head_by_another_key,
    "a marker's root changed": _marker_renamed,
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_log_that_was_changed_is_found_out(clean: Path, name: str) -> None:
    TAMPERINGS[name](clean)
    report = verify(clean, verifier_key=KEY)
    assert report.exit is Exit.INTEGRITY, report.findings
    assert not report.ok


def test_the_owner_of_the_key_cannot_hide_a_dropped_or_doubled_message(clean: Path) -> None:
    """What numbers and totals show even when the lines, the markers and the heads are all made anew."""
    for messages in ((1, 2, 4), (1, 2, 2, 3, 4), (2, 3, 4)):
        shutil.rmtree(clean)
        write(clean, OPENED, *(payload(m) for m in messages), closing(out=4))
        report = verify(clean, verifier_key=KEY)
        assert report.exit is Exit.INTEGRITY
        assert names(report) == {"sequence", "totals"} or names(report) == {"sequence"}


def test_two_histories_of_one_log_have_two_heads_of_one_size(tmp_path: Path) -> None:
    """Each history is whole in itself; whoever holds both heads holds the proof."""
    one = write(tmp_path / "one", OPENED, payload(1), closing(out=1))
    two = write(tmp_path / "two", OPENED, payload(1, commit="0" * 64), closing(out=1))
    assert verify(one, verifier_key=KEY).ok
    assert verify(two, verifier_key=KEY).ok
    assert [path.name for path in heads(one)] == [path.name for path in heads(two)]
    shutil.copy(heads(two)[0], heads(one)[0])
    assert verify(one, verifier_key=KEY).exit is Exit.INTEGRITY


def test_a_false_head_under_a_true_one_is_named_and_the_lines_are_believed(clean: Path) -> None:
    first = heads(clean)[0]
    head = Checkpoint(origin=ORIGIN, size=int(first.stem), root=bytes(32))
    first.write_text(head.sign(SIGNER))
    report = verify(clean, verifier_key=KEY)
    (finding,) = (f for f in report.findings if f.exit is Exit.INTEGRITY)
    assert (finding.name, finding.record) == ("head", head.size - 1)
    assert (report.covered, report.heads) == (8, 1)


def test_a_change_is_told_once_with_the_records_it_is_among(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.append(OPENED)
        for message in range(1, 7):
            log.append(payload(message))
            log.checkpoint()
        log.append(closing(out=6))
    new = lines(tmp_path)
    new[5] = new[5].replace(b"ffff", b"0fff", 1)
    rewrite(tmp_path, new)
    report = verify(tmp_path, verifier_key=KEY)
    grave = [(f.name, f.record, f.sentence) for f in report.findings if f.exit]
    assert [(name, record) for name, record, _ in grave] == [("root", 6), ("head", 5)]
    assert "records 4 to 5" in grave[0][2]
    assert "records 5 to 6" in grave[1][2]


def test_a_line_dropped_is_told_where_it_was_and_not_at_every_line_after(clean: Path) -> None:
    _drop_middle(clean)
    report = verify(clean, verifier_key=KEY)
    assert [f.record for f in report.findings if f.name == "order"] == [2]


def test_a_log_under_no_head_cannot_be_checked(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(OPENED)
    log.append(payload(1))
    crash(log)
    report = verify(tmp_path, verifier_key=KEY)
    assert report.exit is Exit.UNCHECKABLE
    assert names(report) == {"uncovered", "open"}


def test_a_crashed_log_that_was_gone_on_with_is_clean_and_tells_of_the_gap(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(OPENED)
    log.append(payload(1))
    crash(log)
    segment(tmp_path).write_bytes(segment(tmp_path).read_bytes() + b'{"type":')
    report = verify(tmp_path, verifier_key=KEY)
    assert report.exit is Exit.UNCHECKABLE
    assert "torn" in names(report)
    write(tmp_path, again(2), payload(1), closing(out=1))
    report = verify(tmp_path, verifier_key=KEY)
    assert report.exit is Exit.CLEAN
    assert [finding.sentence for finding in report.findings if finding.name == "gap"] == [
        "the process before had ended by surprise; 8 bytes of an unfinished line were dropped"
    ]


@pytest.mark.parametrize("left", ["nothing", "an empty log", "no key"])
def test_what_is_not_there_cannot_be_checked(clean: Path, left: str) -> None:
    if left == "nothing":
        shutil.rmtree(clean)
    elif left == "an empty log":
        shutil.rmtree(clean / "log")
        shutil.rmtree(clean / "checkpoints")
    else:
        (clean / "verifier.key").unlink()
    assert verify(clean).exit is Exit.UNCHECKABLE


def test_a_missing_or_unreadable_file_cannot_be_checked(clean: Path) -> None:
    (clean / "checkpoints" / "x.note").write_text("")
    assert "unreadable" in names(verify(clean, verifier_key=KEY))
    (clean / "checkpoints" / "x.note").unlink()
    segment(clean).rename(segment(clean, 1))
    assert "unreadable" in names(verify(clean, verifier_key=KEY))
    segment(clean).mkdir()
    assert "unreadable" in names(verify(clean, verifier_key=KEY))


def test_a_torn_line_in_the_middle_is_no_crash(clean: Path) -> None:
    segment(clean, 1).write_bytes(lines(clean)[-1])
    rewrite(clean, [*lines(clean)[:-2], lines(clean)[-2][:-1]])
    assert verify(clean, verifier_key=KEY).exit is Exit.INTEGRITY


def test_a_key_that_is_none_is_the_callers_mistake(clean: Path) -> None:
    with pytest.raises(AuditError, match="key"):
        verify(clean, verifier_key="a+b+c")


def test_a_refusal_is_a_policy_finding(tmp_path: Path) -> None:
    denied = Denied(
        run="news",
        direction="out",
        peer=COMPUTE.uri,
        kind=Kind.GRADIENT,
        rule="no-rule",
        policy=OPEN.policy,
    )
    report = verify(write(tmp_path, OPENED, denied, closing(out=0, denied=1)), verifier_key=KEY)
    assert (report.exit, names(report)) == (Exit.POLICY, {"denied"})


def test_a_refusal_outside_of_any_run_is_a_policy_finding_too(tmp_path: Path) -> None:
    denied = Denied(
        run="news",
        direction="in",
        peer=COMPUTE.uri,
        kind=Kind.OUTPUT,
        rule="WireError",
        policy=OPEN.policy,
    )
    assert verify(write(tmp_path, denied), verifier_key=KEY).exit is Exit.POLICY


ILL_FORMED: dict[str, tuple[tuple[Record, ...], str]] = {
    "a message before any run": ((payload(1),), "outside"),
    "a message of another run": ((OPENED, payload(1, run="old")), "outside"),
    "a message to another peer": ((OPENED, payload(1, peer="spiffe://x")), "outside"),
    "a message after the end": ((OPENED, closing(out=0), payload(1)), "outside"),
    "totals that are not": ((OPENED, payload(1), closing(out=2)), "totals"),
    "an end without a beginning": ((closing(out=0),), "totals"),
    "a policy that is not the text's": (
        (msgspec.structs.replace(OPENED, policy_text='{"name":"all"}'),),
        "policy",
    ),
    "another key than the log's": ((msgspec.structs.replace(OPENED, log_key="a+b+c"),), "key"),
}


@pytest.mark.parametrize("name", ILL_FORMED)
def test_a_log_that_contradicts_itself_is_found_out(tmp_path: Path, name: str) -> None:
    records, finding = ILL_FORMED[name]
    report = verify(write(tmp_path, *records), verifier_key=KEY)
    assert report.exit is Exit.INTEGRITY
    assert finding in names(report)


def test_a_policy_that_changed_in_mid_run_is_found_out(tmp_path: Path) -> None:
    folder = write(tmp_path, OPENED, payload(1, policy="9" * 64), closing(out=1))
    report = verify(folder, verifier_key=KEY)
    assert (report.exit, names(report)) == (Exit.POLICY, {"policy"})


def test_a_conversation_that_began_anew_is_remarked(tmp_path: Path) -> None:
    folder = write(tmp_path, OPENED, payload(1), again(2), payload(1), closing(out=1))
    report = verify(folder, verifier_key=KEY)
    assert (report.exit, names(report)) == (Exit.CLEAN, {"reopened"})


def test_each_message_of_a_run_is_judged_once_in_order_by_its_policy(tmp_path: Path) -> None:
    folder = write(tmp_path, OPENED, payload(1), payload(2), again(2), payload(1))
    seen: list[int] = []
    texts: list[str] = []

    def judge(sent: Payload) -> str | None:
        seen.append(sent.message)
        return "too many" if len(seen) > 2 else None

    def judge_of(text: str, spent: Mapping[str, int]) -> Judge:
        texts.append(text)
        assert spent == {}
        return judge

    report = verify(folder, verifier_key=KEY, judge_of=judge_of)
    assert (seen, texts) == ([1, 2, 1], [OPENED.policy_text])
    assert report.exit is Exit.POLICY
    assert [f.sentence for f in report.findings if f.name == "verdict"] == ["too many"]


def test_a_policy_that_cannot_be_read_cannot_be_checked(clean: Path) -> None:
    def judge_of(text: str, spent: Mapping[str, int]) -> Judge:
        raise ManifestError("no policy")

    report = verify(clean, verifier_key=KEY, judge_of=judge_of)
    assert report.exit is Exit.UNCHECKABLE


def test_a_living_log_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    log = Log.open(tmp_path, origin=ORIGIN, signer=SIGNER, clock=Clock())
    log.append(OPENED)
    log.checkpoint()
    report = verify(tmp_path, verifier_key=KEY)
    assert (report.exit, names(report)) == (Exit.CLEAN, {"open"})
    log.close()
