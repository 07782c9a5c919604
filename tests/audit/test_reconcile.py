"""Two logs of one run: agreement, honest loss, and each way in which one of them can be false."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from splitlearn.audit import (
    Exit,
    Party,
    Payload,
    Receipt,
    Reconciliation,
    RunClose,
    reconcile,
)
from splitlearn.audit.checkpoint import Checkpoint, cosign
from splitlearn.audit.merkle import leaf_hash, root_of
from splitlearn.audit.records import decode
from splitlearn.errors import AuditError
from splitlearn.roles import Kind, Role
from tests.audit.pair import CLINIC_KEY, FARM_KEY, FARM_SIGNER, Pair, Side, crash, segment
from tests.door import COMPUTE, SIGNER, TRUSTED, offer


def held_together(pair: Pair) -> Reconciliation:
    return reconcile(*pair.folders, key_a=CLINIC_KEY, key_b=FARM_KEY)


def classes(found: Reconciliation) -> set[str]:
    return {difference.name for difference in found.differences}


def test_the_logs_of_an_honest_run_agree_in_either_order(tmp_path: Path) -> None:
    pair = Pair(tmp_path).run()
    for found in (
        held_together(pair),
        reconcile(*reversed(pair.folders), key_a=FARM_KEY, key_b=CLINIC_KEY),
    ):
        assert (found.exit, found.differences) == (Exit.CLEAN, ())
        assert (found.matched, found.conversations) == (16, 1)
        assert found.counts["matched"] == 16
        assert found.here.findings == found.there.findings == ()


def test_keys_need_not_be_told(tmp_path: Path) -> None:
    pair = Pair(tmp_path).run()
    found = reconcile(*pair.folders)
    assert found.exit is Exit.CLEAN
    assert not found.here.pinned
    with pytest.raises(AuditError):
        reconcile(*pair.folders, key_a="a+b+c")


def test_a_message_lost_with_its_link_is_explained(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.begin()
    pair.step()
    pair.settle()
    pair.say(Kind.ACTIVATION, lost=True)
    crash(pair.clinic)
    pair.farm.end("failed")
    pair.clinic.start()
    pair.farm.start()
    pair.run()
    found = held_together(pair)
    assert (found.exit, classes(found)) == (Exit.CLEAN, {"unreceipted_tail"})
    (lost,) = found.differences
    assert lost.here is not None
    assert lost.there is None
    assert "never arrived" in lost.sentence
    assert found.conversations == 2


def test_a_conversation_that_the_peer_never_took_up_is_explained(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.begin()
    pair.step()
    pair.settle()
    pair.end()
    for side in (pair.clinic, pair.farm):
        side.start()
    pair.clinic.begin(msgspec.structs.replace(offer(), conversation="f" * 32))
    pair.clinic.note("out", Kind.OFFER, commit="a" * 64)
    pair.clinic.end("failed")
    pair.farm.log.close()
    found = held_together(pair)
    assert (found.exit, classes(found)) == (Exit.CLEAN, {"unreceipted_tail"})


def test_a_record_that_went_down_with_its_machine_is_explained(tmp_path: Path) -> None:
    """The disk of the sender had not yet what its system had; the message arrived all the same."""
    pair = Pair(tmp_path)
    pair.begin()
    pair.step()
    pair.settle()
    pair.step()
    pair.say(Kind.ACTIVATION)
    crash(pair.clinic)
    path = segment(pair.clinic.folder)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    pair.farm.end("failed")
    pair.clinic.start()
    pair.clinic.log.close()
    found = held_together(pair)
    assert (found.exit, classes(found)) == (Exit.CLEAN, {"unreceipted_tail"})
    assert "machine went down" in found.differences[0].sentence


def _other_bytes(pair: Pair) -> None:
    pair.clinic.note("out", Kind.ACTIVATION, commit="a" * 64)
    pair.farm.note("in", Kind.ACTIVATION, commit="b" * 64)


def _other_length(pair: Pair) -> None:
    commit = pair.commit()
    pair.clinic.note("out", Kind.ACTIVATION, commit=commit)
    pair.farm.note("in", Kind.ACTIVATION, commit=commit, wire_bytes=1)


def _never_sent(pair: Pair) -> None:
    pair.farm.note("in", Kind.ACTIVATION, commit=pair.commit())


def _not_taken_down(pair: Pair) -> None:
    pair.clinic.note("out", Kind.ACTIVATION, commit=pair.commit())


def _close(side: Side) -> None:
    totals = side.counts
    side.log.append(
        RunClose(
            run=side.run,
            outcome="done",
            messages_out=totals["out"],
            messages_in=totals["in"],
            bytes_out=1000 * totals["out"],
            bytes_in=1000 * totals["in"] - (999 if side.me == COMPUTE else 0),
            denied=0,
        )
    )
    side.log.close()


FALSE: dict[str, tuple[Callable[[Pair], None], str]] = {
    "other bytes": (_other_bytes, "digest_mismatch"),
    "a message that was never sent": (_never_sent, "missing_here"),
    "a message that was not taken down": (_not_taken_down, "missing_at_peer"),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_log_that_is_whole_and_false_does_not_agree_with_its_peers(
    tmp_path: Path, name: str
) -> None:
    """Each log verifies by itself: nothing was changed afterwards, it was false from the start."""
    falsify, wanted = FALSE[name]
    pair = Pair(tmp_path)
    pair.begin()
    pair.step()
    pair.settle()
    falsify(pair)
    pair.clinic.end()
    pair.farm.end()
    found = held_together(pair)
    assert (found.here.exit, found.there.exit) == (Exit.CLEAN, Exit.CLEAN)
    assert (found.exit, classes(found)) == (Exit.MISMATCH, {wanted})
    (difference,) = found.differences
    assert (difference.here, difference.there) != (None, None)


def test_a_length_that_differs_is_no_agreement(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.begin()
    _other_length(pair)
    pair.clinic.end()
    _close(pair.farm)
    found = held_together(pair)
    assert (found.exit, classes(found)) == (Exit.MISMATCH, {"digest_mismatch"})
    assert "length" in found.differences[0].sentence


def test_conversations_begin_alike(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.clinic.begin(offer())
    pair.farm.begin(offer(), job="9" * 64)
    pair.clinic.end()
    pair.farm.end()
    found = held_together(pair)
    assert (found.exit, classes(found)) == (Exit.MISMATCH, {"digest_mismatch"})
    assert "another job" in found.differences[0].sentence
    assert (found.differences[0].here, found.differences[0].there) == (0, 0)


def forked(tmp_path: Path) -> Pair:
    """The farm's log as its peer knows it, then another history of the farm's in its place."""
    pair = Pair(tmp_path / "true").run()
    other = Pair(tmp_path / "other", seed=1).run()
    shutil.rmtree(pair.farm.folder)
    shutil.copytree(other.farm.folder, pair.farm.folder)
    return pair


def test_a_log_with_two_histories_is_found_out_by_the_heads_that_its_peer_holds(
    tmp_path: Path,
) -> None:
    pair = forked(tmp_path)
    found = held_together(pair)
    assert (found.here.exit, found.there.exit) == (Exit.CLEAN, Exit.CLEAN)
    assert (found.exit, classes(found)) == (Exit.MISMATCH, {"digest_mismatch", "fork"})
    forks = [difference for difference in found.differences if difference.name == "fork"]
    assert any(difference.here is not None for difference in forks)
    turned = reconcile(*reversed(pair.folders))
    assert {(d.there, d.here) for d in turned.differences if d.name == "fork"} == {
        (d.here, d.there) for d in forks
    }


def test_a_log_that_lost_what_its_peer_holds_a_head_of_is_a_fork(tmp_path: Path) -> None:
    """Lines, heads and countersignatures dropped by the owner of the key: whole, and too short."""
    pair = Pair(tmp_path)
    pair.begin()
    pair.step()
    pair.settle()
    pair.clinic.end()
    pair.farm.log.close()
    folder = pair.farm.folder
    kept = segment(folder).read_bytes().splitlines(keepends=True)[:4]
    segment(folder).write_bytes(b"".join(kept))
    for path in (folder / "checkpoints").iterdir():
        if int(path.stem) > 4:
            path.unlink()
    shutil.rmtree(folder / "peers")
    found = held_together(pair)
    assert "fork" in classes(found)


def leaves(folder: Path) -> list[bytes]:
    return [leaf_hash(line) for line in segment(folder).read_bytes().splitlines()]


def test_a_head_kept_just_before_a_crash_counts_too(tmp_path: Path) -> None:
    pair = Pair(tmp_path).run()
    (place,) = (pair.clinic.folder / "peers").iterdir()
    head = Checkpoint(COMPUTE.dns, 2, bytes(32))
    note = cosign(head.sign(FARM_SIGNER), name=TRUSTED.dns, key=SIGNER)
    (place / "2.note").write_text(note)
    true = Checkpoint(COMPUTE.dns, 3, root_of(leaves(pair.farm.folder)[:3]))
    note = cosign(true.sign(FARM_SIGNER), name=TRUSTED.dns, key=SIGNER)
    (place / "3.note").write_text(note)
    found = held_together(pair)
    assert (found.exit, classes(found)) == (Exit.MISMATCH, {"fork"})
    assert (found.differences[0].here, found.differences[0].there) == (None, 1)


def test_a_peer_that_signed_under_another_key_than_its_logs_is_a_fork(tmp_path: Path) -> None:
    one, two = Pair(tmp_path / "one").run(), Pair(tmp_path / "two")
    two.farm.log.close()
    shutil.rmtree(two.farm.folder)
    two.farm.signer = SIGNER
    two.farm.start()
    two.run()
    found = reconcile(one.clinic.folder, two.farm.folder)
    assert "fork" in classes(found)
    assert found.exit is Exit.MISMATCH


def test_logs_of_different_runs_have_nothing_in_common(tmp_path: Path) -> None:
    one, two = Pair(tmp_path / "one").run(), Pair(tmp_path / "two")
    two.farm.begin(msgspec.structs.replace(offer(), run="other"))
    two.farm.end()
    found = reconcile(one.clinic.folder, two.farm.folder)
    assert (found.exit, classes(found)) == (Exit.UNCHECKABLE, {"nothing_in_common"})
    assert found.conversations == 0
    assert reconcile(one.clinic.folder, tmp_path / "none").exit is Exit.UNCHECKABLE


def test_a_changed_log_is_an_integrity_fault_before_anything_else(tmp_path: Path) -> None:
    pair = Pair(tmp_path).run()
    path = segment(pair.farm.folder)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"nonsense\n", *lines[4:], lines[-1][:20]]))
    found = held_together(pair)
    assert found.exit is Exit.INTEGRITY
    assert "fork" in classes(found)


def test_a_log_that_contradicts_itself_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    """Records outside of any conversation, and a receipt for none: verify has named them."""
    pair = Pair(tmp_path).run()
    lines = segment(pair.clinic.folder).read_bytes().splitlines()
    payload, closing = (
        next(decode(line) for line in lines if isinstance(decode(line), kind))
        for kind in (Payload, RunClose)
    )
    receipt = next(decode(line) for line in lines if isinstance(decode(line), Receipt))
    stray = msgspec.structs.replace(receipt, conversation="0" * 32)
    pair.farm.start()
    for record in (payload, closing, stray):
        pair.farm.log.append(record)
    pair.farm.log.close()
    found = held_together(pair)
    assert (found.exit, found.differences) == (Exit.INTEGRITY, ())
    assert found.matched == 16


def test_a_segment_that_is_missing_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    pair = Pair(tmp_path).run()
    path = segment(pair.farm.folder)
    path.with_name("000002.jsonl").write_bytes(b"")
    found = held_together(pair)
    assert (found.exit, found.differences) == (Exit.UNCHECKABLE, ())


def test_a_conversation_that_does_not_cross_is_no_agreement(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.clinic.begin(offer())
    pair.farm.begin(offer(), peer=Party(id=TRUSTED.uri, role=Role.COMPUTE))
    pair.clinic.end()
    pair.farm.end()
    found = held_together(pair)
    assert "another parties" in found.differences[0].sentence


def test_heads_of_a_peers_other_logs_are_not_held_against_this_one(tmp_path: Path) -> None:
    """A party that works with us in two runs has two logs under one name."""
    one, two = Pair(tmp_path / "one").run(), Pair(tmp_path / "two", seed=2).run()
    (place,) = (two.clinic.folder / "peers").iterdir()
    shutil.copytree(place, one.clinic.folder / "peers" / f"{place.name[:-1]}x")
    found = held_together(one)
    assert (found.exit, found.differences) == (Exit.CLEAN, ())


def test_a_conversation_that_one_party_hid_is_missing(tmp_path: Path) -> None:
    pair, other = Pair(tmp_path / "pair").run(), Pair(tmp_path / "other")
    other.farm.begin(msgspec.structs.replace(offer(), conversation="e" * 32))
    other.farm.end()
    found = reconcile(pair.clinic.folder, other.farm.folder)
    assert found.exit is Exit.MISMATCH
    assert {"missing_at_peer", "fork"} <= classes(found)
    turned = reconcile(other.farm.folder, pair.clinic.folder)
    assert {"missing_here", "fork"} <= classes(turned)
