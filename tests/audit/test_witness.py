"""Two logs as each other's witnesses: honest ones go on, forked, cut and rewritten ones do not."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitlearn.audit.checkpoint import Checkpoint, parse_verifier_key
from splitlearn.audit.log import Log, read_heads
from splitlearn.audit.records import Gap, PeerCheckpoint, Receipt
from splitlearn.audit.witness import PEERS, Witness
from splitlearn.errors import AuditError
from splitlearn.identity import PartyName
from splitlearn.wire.messages import Settlement
from tests.door import COMPUTE, TRUSTED, offer, records

KEYS = {
    name: Ed25519PrivateKey.from_private_bytes(bytes([index]) * 32)
    for index, name in enumerate((TRUSTED, COMPUTE), start=1)
}


def open_log(folder: Path, name: PartyName) -> Log:
    return Log.open(folder, origin=name.dns, signer=KEYS[name], clock=lambda: 1.7e9)


@dataclass
class Side:
    """A party's log and its witness of the other's, for one conversation."""

    folder: Path
    me: PartyName
    peer: PartyName
    conversation: str = "1" * 32
    said: int = 0
    log: Log = field(init=False)
    witness: Witness = field(init=False)

    def __post_init__(self) -> None:
        self.log = open_log(self.folder, self.me)
        self.begin()

    def begin(self) -> None:
        """A new conversation of the same run."""
        terms = msgspec.structs.replace(offer(), conversation=self.conversation)
        self.witness = Witness(self.log, me=self.me, peer=self.peer, offer=terms)
        self.said = 0

    def restart(self) -> None:
        """The process ends, another one takes the folder up."""
        self.log.close()
        self.log = open_log(self.folder, self.me)
        self.begin()


def say(speaker: Side, hearer: Side, *, commit: str = "ab" * 32) -> None:
    """A message from one to the other, as their gates would log it."""
    speaker.log.append(Gap(torn_bytes=0))  # any record will do
    hearer.log.append(Gap(torn_bytes=0))
    speaker.witness.logged("out", commit)
    hearer.witness.logged("in", commit)
    speaker.said += 1


def settle(clinic: Side, farm: Side) -> None:
    """The three messages of a settlement, their own records and receipts left out."""
    shown = clinic.witness.statement()
    countersignature = farm.witness.take(shown, sent=farm.said)
    answer = farm.witness.statement()
    clinic.witness.countersigned(countersignature, by=answer.log_key)
    last = clinic.witness.take(answer, sent=clinic.said)
    farm.witness.countersigned(last, by=shown.log_key)


def meet(clinic: Side, farm: Side) -> None:
    """ACCEPT and RESUME: each says which head of the other it holds."""
    clinic.witness.peer_holds(farm.witness.held)
    farm.witness.peer_holds(clinic.witness.held)


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Side, Side]:
    """A clinic and a farm that have settled once."""
    clinic = Side(tmp_path / "clinic", TRUSTED, COMPUTE)
    farm = Side(tmp_path / "farm", COMPUTE, TRUSTED)
    meet(clinic, farm)
    say(clinic, farm)
    settle(clinic, farm)
    return clinic, farm


def test_a_settlement_leaves_each_with_the_others_countersigned_head(
    sides: tuple[Side, Side],
) -> None:
    for one, other in (sides, sides[::-1]):
        public = KEYS[one.me].public_key().public_bytes_raw()
        theirs = KEYS[other.me].public_key().public_bytes_raw()
        (size, note), *_ = reversed(list(read_heads(one.folder)))
        head = Checkpoint.open(note, origin=one.me.dns, public_key=public)
        by_peer = Checkpoint.open(note, origin=one.me.dns, public_key=theirs, name=other.me.dns)
        assert head == by_peer
        (folder,) = (other.folder / PEERS).iterdir()
        kept = (folder / f"{size}.note").read_text()
        assert Checkpoint.open(kept, origin=one.me.dns, public_key=public) == head
        assert parse_verifier_key((folder / "verifier.key").read_text()) == (one.me.dns, public)


def test_a_settlement_is_on_record(sides: tuple[Side, Side]) -> None:
    for one, other in (sides, sides[::-1]):
        written = records(one.folder)
        (receipt,) = (r for r in written if isinstance(r, Receipt))
        (head,) = (r for r in written if isinstance(r, PeerCheckpoint))
        assert receipt.last == one.said
        assert receipt.key == head.key == other.log.verifier_key
        assert head.size <= other.log.size


def test_settling_again_and_again_extends_what_is_held(sides: tuple[Side, Side]) -> None:
    clinic, farm = sides
    for turn in range(5):
        held = clinic.witness.held
        say(farm, clinic, commit=f"{turn:02x}" * 32)
        settle(clinic, farm)
        assert clinic.witness.held > held


def test_after_a_restart_of_either_the_old_heads_still_bind(sides: tuple[Side, Side]) -> None:
    clinic, farm = sides
    for side in (clinic, farm):
        side.restart()
    for side in (clinic, farm):
        side.conversation = "2" * 32
        side.begin()
    assert clinic.witness.held
    meet(clinic, farm)
    say(clinic, farm)
    settle(clinic, farm)


def test_a_countersignature_that_a_crash_lost_is_no_obstacle(sides: tuple[Side, Side]) -> None:
    clinic, farm = sides
    say(clinic, farm)
    farm.witness.take(clinic.witness.statement(), sent=farm.said)  # and the answer never comes
    for side in (clinic, farm):
        side.begin()
    meet(clinic, farm)
    settle(clinic, farm)


# What a dishonest party might show


def rewritten(sides: tuple[Side, Side], tmp_path: Path) -> Side:
    """The clinic's log with another history after its first records, signed by its own key."""
    clinic, farm = sides
    clinic.log.close()
    forged = Side(tmp_path / "forged", TRUSTED, COMPUTE)
    for _ in range(clinic.log.size + 3):
        forged.log.append(Gap(torn_bytes=1))
    farm.begin()
    forged.witness.peer_holds(farm.witness.held)
    return forged


def test_a_rewritten_log_is_found_out_and_kept_as_evidence(
    sides: tuple[Side, Side], tmp_path: Path
) -> None:
    _, farm = sides
    forged = rewritten(sides, tmp_path)
    shown = forged.witness.statement()
    held = farm.witness.held
    with pytest.raises(AuditError, match=r"was rewritten.*does not extend the head"):
        farm.witness.take(shown, sent=farm.said)
    assert farm.witness.held == held
    (folder,) = (farm.folder / PEERS).iterdir()
    assert (folder / f"{shown.size}.refused.note").exists()


def test_two_histories_forked_for_two_peers_are_caught_at_the_next_countersigning(
    sides: tuple[Side, Side], tmp_path: Path
) -> None:
    clinic, farm = sides
    clinic.log.close()
    shutil.copytree(clinic.folder, tmp_path / "fork")
    clinic.log = open_log(clinic.folder, TRUSTED)
    fork = Side(tmp_path / "fork", TRUSTED, COMPUTE)
    farm.begin()
    clinic.begin()
    meet(clinic, farm)
    say(clinic, farm)
    settle(clinic, farm)
    for _ in range(20):
        fork.log.append(Gap(torn_bytes=2))
    farm.begin()
    fork.witness.peer_holds(farm.witness.held)
    with pytest.raises(AuditError, match="was rewritten"):
        farm.witness.take(fork.witness.statement(), sent=farm.said)


def test_a_log_that_was_cut_below_a_head_that_the_peer_holds_stops_its_owner(
    sides: tuple[Side, Side], tmp_path: Path
) -> None:
    short = Side(tmp_path / "short", TRUSTED, COMPUTE)
    with pytest.raises(AuditError, match="records were dropped from its end"):
        short.witness.peer_holds(sides[1].witness.held)


Bend = Callable[[Settlement], Settlement]


def bent(**changes: object) -> Bend:
    return lambda shown: msgspec.structs.replace(shown, **changes)


@pytest.mark.parametrize(
    ("bend", "sentence"),
    [
        (bent(root="0" * 64), "forged"),
        (bent(size=1), "forged"),
        (bent(signature="0" * 128), "forged"),
        (bent(proof=()), "was rewritten"),
        (bent(proof=("0" * 64,) * 3), "was rewritten"),
        (bent(received=0), "receipt for 0 messages where we sent it 1"),
        (bent(received=9), "receipt for 9 messages where we sent it 1"),
        (bent(receipt="0" * 128), "not signed by its key"),
        (bent(log_key=KEYS[COMPUTE].public_key().public_bytes_raw().hex()), "forged|not signed"),
        (bent(log_key="f" * 64), "forged|not signed"),
    ],
    ids=[
        *("another root", "another size", "no signature", "no proof", "a forged proof"),
        *("fewer messages", "more messages", "no receipt", "the peer's own key", "no key"),
    ],
)
def test_a_statement_that_was_bent_is_refused(
    sides: tuple[Side, Side], bend: Bend, sentence: str
) -> None:
    clinic, farm = sides
    for side in sides:
        side.begin()
    meet(clinic, farm)
    say(farm, clinic)
    with pytest.raises(AuditError, match=sentence):
        farm.witness.take(bend(clinic.witness.statement()), sent=farm.said)


def test_a_receipt_for_other_bytes_is_refused(sides: tuple[Side, Side]) -> None:
    clinic, farm = sides
    farm.witness.logged("out", "ab" * 32)
    clinic.witness.logged("in", "ac" * 32)
    with pytest.raises(AuditError, match="its log and ours differ"):
        farm.witness.take(clinic.witness.statement(), sent=farm.said + 1)


def test_another_key_for_the_same_log_is_refused(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, farm = sides
    monkeypatch.setitem(KEYS, TRUSTED, Ed25519PrivateKey.from_private_bytes(b"\x09" * 32))
    other = rewritten(sides, tmp_path)
    with pytest.raises(AuditError, match="with another key than before"):
        farm.witness.take(other.witness.statement(), sent=farm.said)


def test_a_countersignature_by_somebody_else_is_refused(sides: tuple[Side, Side]) -> None:
    clinic, farm = sides
    say(clinic, farm)
    clinic.witness.statement()
    stranger = Ed25519PrivateKey.from_private_bytes(b"\x0a" * 32)
    with pytest.raises(AuditError, match="forged"):
        clinic.witness.countersigned(
            stranger.sign(b"x").hex(), by=stranger.public_key().public_bytes_raw().hex()
        )


def test_heads_that_cannot_be_kept_stop_the_run(sides: tuple[Side, Side]) -> None:
    clinic, farm = sides
    shutil.rmtree(farm.folder / PEERS)
    (farm.folder / PEERS).write_text("in the way")
    say(clinic, farm)
    with pytest.raises(AuditError, match="cannot be kept"):
        farm.witness.take(clinic.witness.statement(), sent=farm.said)


@pytest.mark.parametrize("damage", ["key", "note"])
def test_damaged_heads_are_not_believed(sides: tuple[Side, Side], damage: str) -> None:
    _, farm = sides
    (folder,) = (farm.folder / PEERS).iterdir()
    newest = max(folder.glob("*.note"), key=lambda path: int(path.stem))
    (folder / "verifier.key" if damage == "key" else newest).write_text("nothing\n")
    with pytest.raises(AuditError):
        farm.begin()
