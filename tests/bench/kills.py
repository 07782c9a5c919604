"""Two real processes killed with SIGKILL at random points, and what an auditor finds after each kill.

A clinic and a gpuhost train a tiny job over loopback TLS. One of them, or both, dies at a random moment
and is started again. After each kill both logs as they lie there are verified and held against each
other, and a falsified copy of each has to be found out:

    verify      0, or 5 for what a process had not signed or finished when it died: never anything else
    reconcile   every difference explained: messages under no receipt that were under way
    falsified   3 or 4; in a tail that nobody has signed yet at least not 0

A run that comes to its end has the losses, scores and weights of an undisturbed one, to the bit, and
logs that both verify clean and agree. Then the next one begins. Writes out/bench/kills.json and prints
the same. Run as `python -m tests.bench.kills [--times 50] [--seed 0]`; needs /proc.
"""

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from parties.auditor import judge_of
from splitlearn.audit import Exit, Reconciliation, reconcile
from splitlearn.audit.checkpoint import Checkpoint, format_verifier_key
from splitlearn.audit.log import CHECKPOINTS
from splitlearn.audit.merkle import leaf_hash, root_of
from splitlearn.audit.records import Checkpointed, Payload, PeerCheckpoint, decode, encode
from splitlearn.audit.witness import PEERS
from splitlearn.errors import AuditError
from splitlearn.identity import Identity
from tests.integration.organisations import (
    STEPS,
    Organisations,
    Process,
    Template,
    write_inputs,
)

RESULT = Path(__file__).parents[2] / "out" / "bench" / "kills.json"
# What verify may say of an honest log whose process has just died: not signed yet, a line or a folder
# that it had only begun.
UNFINISHED = {"uncovered", "torn", "empty", "key"}
# Kills that one run has to bear. Then it is left alone, so that every run comes to its end.
A_RUN = 12
# A kill comes within this share of the time that an undisturbed run takes, so that runs go forward.
WITHIN = 0.6
_PATIENCE_S = 60.0


@dataclass
class Found:
    """What all kills so far came to. verified, differences: how often; forged: exits by forgery."""

    verified: Counter[str] = field(default_factory=Counter)
    differences: Counter[str] = field(default_factory=Counter)
    forged: dict[str, Counter[str]] = field(default_factory=dict)
    matched: int = 0
    kills: int = 0
    runs: int = 0


@dataclass(frozen=True)
class Owner:
    """Whose log it is: name of the log, key that signs it."""

    origin: str
    signer: Ed25519PrivateKey

    @classmethod
    def of(cls, folder: Path) -> "Owner":
        identity = Identity.load(folder)
        return cls(identity.name.dns, identity.log_key)

    @property
    def verifier_key(self) -> str:
        public_key = self.signer.public_key().public_bytes_raw()
        return format_verifier_key(self.origin, public_key=public_key)


@dataclass
class Copies:
    """Both logs as they lay at one moment: ours and theirs, to be held against each other or falsified."""

    ours: Path
    theirs: Path
    owner: Owner
    peer: Owner

    def judged(self) -> Reconciliation:
        """What an auditor finds who was told both keys."""
        return reconcile(
            self.ours,
            self.theirs,
            key_a=self.owner.verifier_key,
            key_b=self.peer.verifier_key,
            judge_of=judge_of,
        )

    @property
    def lines(self) -> list[bytes]:
        path = self.ours / "log" / "000000.jsonl"
        return path.read_bytes().splitlines(keepends=True) if path.exists() else []

    @lines.setter
    def lines(self, new: Sequence[bytes]) -> None:
        (self.ours / "log" / "000000.jsonl").write_bytes(b"".join(new))

    @property
    def heads(self) -> list[int]:
        """Sizes of the signed heads, smallest first."""
        return sorted(int(path.stem) for path in (self.ours / CHECKPOINTS).glob("*.note"))

    def head(self, size: int) -> Path:
        return self.ours / CHECKPOINTS / f"{size}.note"

    @property
    def held(self) -> int:
        """Records of ours under the newest head that the peer has put on record."""
        path = self.theirs / "log" / "000000.jsonl"
        sizes = [0]
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                record = decode(line)
            except AuditError:  # torn
                continue
            if isinstance(record, PeerCheckpoint):
                sizes.append(record.size)
        return max(sizes)


# Ways to falsify our log. Each is done to what stands under a head; False: there is nothing to do it to.
Forgery = Callable[[Copies, random.Random], bool]


def flip(copies: Copies, chance: random.Random) -> bool:
    covered = sum(map(len, copies.lines[: max(copies.heads, default=0)]))
    return _flip_within(copies, range(covered), chance)


def flip_in_the_unsigned_tail(copies: Copies, chance: random.Random) -> bool:
    sizes = [len(line) for line in copies.lines]
    return _flip_within(
        copies, range(sum(sizes[: max(copies.heads, default=0)]), sum(sizes)), chance
    )


def drop_the_tail(copies: Copies, chance: random.Random) -> bool:
    return _edit(copies, chance, lambda lines, at: lines[:at])


def drop_a_line(copies: Copies, chance: random.Random) -> bool:
    return _edit(copies, chance, lambda lines, at: lines[:at] + lines[at + 1 :])


def swap(copies: Copies, chance: random.Random) -> bool:
    other = chance.random()

    def swapped(lines: list[bytes], at: int) -> list[bytes]:
        to = int(other * at)
        lines[at], lines[to] = lines[to], lines[at]
        return lines

    return _edit(copies, chance, swapped)


def insert(copies: Copies, chance: random.Random) -> bool:
    return _edit(copies, chance, lambda lines, at: [*lines[:at], lines[at - 1], *lines[at:]])


def replay_an_old_head(copies: Copies, chance: random.Random) -> bool:
    if len(copies.heads) < 2:
        return False
    *old, new = copies.heads
    shutil.copy(copies.head(chance.choice(old)), copies.head(new))
    return True


def roll_back(copies: Copies, chance: random.Random) -> bool:
    """To an older head, as if nothing had come after it: by itself the log is whole."""
    older = [size for size in copies.heads if size < copies.held]
    if not older:
        return False
    keep = chance.choice(older)
    copies.lines = copies.lines[:keep]
    for size in copies.heads:
        if size > keep:
            copies.head(size).unlink()
    return True


def sign_anew(copies: Copies, chance: random.Random) -> bool:
    """By the key's owner: another commit for one message, then everything marked and signed afresh."""
    new = copies.lines
    new = new[: max(copies.heads, default=0)]
    places = [
        at
        for at, line in enumerate(new[: copies.held])
        if isinstance(record := decode(line), Payload) and record.direction == "out"
    ]
    if not places:
        return False
    at = chance.choice(places)
    new[at] = encode(
        msgspec.structs.replace(decode(new[at]), commit=f"{chance.getrandbits(256):064x}")
    )
    leaves: list[bytes] = []
    for seq, line in enumerate(new):
        record = decode(line)
        if isinstance(record, Checkpointed):
            new[seq] = encode(msgspec.structs.replace(record, root=root_of(leaves).hex()))
        leaves.append(leaf_hash(new[seq][:-1]))
    for size in copies.heads:
        copies.head(size).unlink()
    copies.lines = new
    head = Checkpoint(copies.owner.origin, len(new), root_of(leaves))
    copies.head(head.size).write_text(head.sign(copies.owner.signer), encoding="utf-8")
    return True


def lose_a_head_of_the_peer(copies: Copies, chance: random.Random) -> bool:
    told = {
        record.size for line in copies.lines if isinstance(record := _read(line), PeerCheckpoint)
    }
    notes = [path for path in (copies.ours / PEERS).glob("*/*.note") if int(path.stem) in told]
    if not notes:
        return False
    chance.choice(sorted(notes)).unlink()
    return True


FORGERIES: Sequence[Forgery] = (
    flip,
    flip_in_the_unsigned_tail,
    drop_the_tail,
    drop_a_line,
    swap,
    insert,
    replay_an_old_head,
    roll_back,
    sign_anew,
    lose_a_head_of_the_peer,
)


class Ordeal:
    """One run of both parties, killed again and again. `found` adds up over runs."""

    def __init__(
        self, both: Organisations, *, room: Path, chance: random.Random, found: Found
    ) -> None:
        self._both, self._room = both, room
        self._chance, self._found = chance, found
        self._clinic = Owner.of(both.folder / "clinic-trusted")
        self._gpuhost = Owner.of(both.folder / "gpuhost-compute")

    def bear(self, kills: int, *, within_s: float) -> None:
        """At most so many kills, each at most `within_s` after a start; then to the end in peace."""
        clinic, gpuhost = self._both.both()
        while kills and not self._ended(clinic, gpuhost):
            victims = self._chance.choice(((clinic,), (gpuhost,), (clinic, gpuhost)))
            self._await_a_moment(clinic, gpuhost, within_s=within_s)
            if self._ended(clinic, gpuhost):
                break
            kills -= self._kill(victims, others=[p for p in (clinic, gpuhost) if p not in victims])
            clinic, gpuhost = self._start_again(clinic, gpuhost)
            self._examine()
        assert clinic.wait() == 0, clinic.said + gpuhost.said
        idle = gpuhost.poll() is None and "working with" not in gpuhost.said
        if idle or gpuhost.poll() == -signal.SIGKILL:
            # It was killed when all was said and done. Once more, so that its log is closed.
            gpuhost = gpuhost if idle else self._both.gpuhost()
            clinic = self._both.clinic()
        self._both.finish(clinic, gpuhost)
        self._found.runs += 1

    def _start_again(self, clinic: Process, gpuhost: Process) -> tuple[Process, Process]:
        """Whoever was killed, and who had ended well but is needed again. The listening one first."""
        clinic_died, gpuhost_died = (p.poll() == -signal.SIGKILL for p in (clinic, gpuhost))
        if gpuhost_died or (clinic_died and gpuhost.poll() == 0):
            gpuhost = self._both.gpuhost()
        return (self._both.clinic() if clinic_died else clinic), gpuhost

    def _ended(self, clinic: Process, gpuhost: Process) -> bool:
        for process in (clinic, gpuhost):
            assert process.poll() in {None, 0, -signal.SIGKILL}, process.said
        return clinic.poll() == 0

    def _await_a_moment(self, clinic: Process, gpuhost: Process, *, within_s: float) -> None:
        until = time.monotonic() + self._chance.uniform(0.0, within_s)
        while time.monotonic() < until and not self._ended(clinic, gpuhost):
            time.sleep(min(0.01, max(0.0, until - time.monotonic())))

    def _kill(self, victims: Sequence[Process], *, others: Sequence[Process]) -> bool:
        """Kill, and let whoever lives on stand still while both logs are copied."""
        living = [victim for victim in victims if victim.poll() is None]
        for victim in living:
            victim.kill()
        for other in others:
            other.kill(signal.SIGSTOP)
        for victim in living:
            assert victim.wait() in {0, -signal.SIGKILL}, victim.said
        for other in others:
            _wait_until_stopped(other)
        try:
            shutil.rmtree(self._room, ignore_errors=True)
            self._copy("honest")
        finally:
            for other in others:
                other.kill(signal.SIGCONT)
        killed = any(victim.poll() == -signal.SIGKILL for victim in living)
        self._found.kills += killed
        return killed

    def _copy(self, name: str) -> None:
        for side, log in (
            ("clinic", self._both.clinic_log),
            ("gpuhost", self._both.gpuhost_log),
        ):
            copied = self._room / name / side
            copied.mkdir(parents=True)
            if log.exists():
                shutil.copytree(log, copied, dirs_exist_ok=True)

    def _copies(self, name: str, *, ours: str) -> Copies:
        theirs = "gpuhost" if ours == "clinic" else "clinic"
        owners = {"clinic": self._clinic, "gpuhost": self._gpuhost}
        folder = self._room / name
        return Copies(folder / ours, folder / theirs, owners[ours], owners[theirs])

    def _examine(self) -> None:
        """The honest logs are not accused; a falsified copy of each is found out."""
        honest = self._copies("honest", ours="clinic")
        judged = honest.judged()
        for report in (judged.here, judged.there):
            faults = {finding.name for finding in report.findings if finding.exit}
            assert report.exit in {Exit.CLEAN, Exit.UNCHECKABLE}, report.findings
            assert faults <= UNFINISHED, report.findings
            self._found.verified[report.exit.name.lower()] += 1
        begun = all(each.runs for each in (judged.here, judged.there))
        for difference in judged.differences:
            unbegun = difference.name == "nothing_in_common" and not begun
            assert unbegun or difference.name == "unreceipted_tail", difference
            self._found.differences[difference.name] += 1
        self._found.matched += judged.matched
        for side in ("clinic", "gpuhost"):
            self._falsify(side)

    def _falsify(self, side: str) -> None:
        shutil.rmtree(self._room / "forged", ignore_errors=True)
        shutil.copytree(self._room / "honest", self._room / "forged")
        copies = self._copies("forged", ours=side)
        for forgery in self._chance.sample(FORGERIES, len(FORGERIES)):
            if forgery(copies, self._chance):
                break
        else:  # there is nothing in the log yet
            assert not copies.lines
            return
        judged = copies.judged()
        name = forgery.__name__
        self._found.forged.setdefault(name, Counter())[judged.exit.name.lower()] += 1
        if forgery is flip_in_the_unsigned_tail:
            assert judged.here.exit is not Exit.CLEAN, (side, judged)
            return
        assert judged.exit in {Exit.INTEGRITY, Exit.MISMATCH}, (side, name, judged)

    def assert_clean(self) -> None:
        """Whatever happened: logs that are whole, signed to their end, and agree."""
        shutil.rmtree(self._room, ignore_errors=True)
        self._copy("honest")
        judged = self._copies("honest", ours="clinic").judged()
        assert judged.exit is Exit.CLEAN, judged
        assert {difference.name for difference in judged.differences} <= {"unreceipted_tail"}


def torment(
    times: int,
    *,
    undisturbed: Organisations,
    make: Callable[[Path], Organisations],
    folder: Path,
    within_s: float,
    chance: random.Random,
) -> Found:
    """So many kills, in as many runs as it takes; each ends as `undisturbed` did.

    make: a run of its own in a folder. within_s: of a start, a kill comes.
    """
    found = Found()
    while found.kills < times:
        both = make(folder / f"run-{found.runs}")
        try:
            ordeal = Ordeal(both, room=folder / "logs", chance=chance, found=found)
            ordeal.bear(min(A_RUN, times - found.kills), within_s=within_s)
            ordeal.assert_clean()
            assert_same(both, undisturbed)
        finally:
            both.close()
    return found


def assert_same(both: Organisations, undisturbed: Organisations) -> None:
    """Losses, scores, and weights and optimiser state of both parties, to the bit."""
    mine, theirs = both.metrics(), undisturbed.metrics()
    assert (mine["losses"], mine["scores"]) == (theirs["losses"], theirs["scores"])
    for run, other in (
        (both.run, undisturbed.run),
        (both.runs / "clinic-ward", undisturbed.runs / "clinic-ward"),
    ):
        for name in ("weights.safetensors", "optimiser.safetensors"):
            last = Path("checkpoints") / str(STEPS) / name
            assert (run / last).read_bytes() == (other / last).read_bytes(), run / last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        inputs = home / "inputs"
        inputs.mkdir()
        write_inputs(inputs)
        folder = home / "runs"
        folder.mkdir()
        with Template(home) as starter:

            def make(room: Path) -> Organisations:
                room.mkdir()
                return Organisations(room, inputs=inputs, starter=starter)

            undisturbed = make(folder / "undisturbed")
            clinic, gpuhost = undisturbed.both()
            began = time.monotonic()
            undisturbed.finish(clinic, gpuhost)
            whole_s = time.monotonic() - began
            undisturbed.close()
            began = time.monotonic()
            found = torment(
                wanted.times,
                undisturbed=undisturbed,
                make=make,
                folder=folder,
                within_s=WITHIN * whole_s,
                chance=random.Random(wanted.seed),
            )
            took_s = time.monotonic() - began
    result = {
        "kills": found.kills,
        "seed": wanted.seed,
        "runs": found.runs,
        "same_as_undisturbed": True,  # or an assertion would have ended it
        "honest_logs": dict(found.verified),
        "matched": found.matched,
        "differences": dict(found.differences),
        "falsified_logs": {name: dict(exits) for name, exits in sorted(found.forged.items())},
        "undisturbed_s": round(whole_s, 2),
        "seconds_a_kill": round(took_s / found.kills, 2),
    }
    print(json.dumps(result, indent=2))
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _wait_until_stopped(process: Process) -> None:
    until = time.monotonic() + _PATIENCE_S
    while process.poll() is None:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            return
        assert time.monotonic() < until, f"process {process.pid} does not stop"
        time.sleep(0.001)


def _edit(
    copies: Copies, chance: random.Random, new: Callable[[list[bytes], int], list[bytes]]
) -> bool:
    """Change the lines at a random place under a head, not the first."""
    covered = max(copies.heads, default=0)
    if covered < 2:
        return False
    copies.lines = new(copies.lines, chance.randrange(1, covered))
    return True


def _flip_within(copies: Copies, places: range, chance: random.Random) -> bool:
    if not places:
        return False
    data = bytearray(b"".join(copies.lines))
    data[chance.choice(places)] ^= 1 << chance.randrange(8)
    copies.lines = [bytes(data)]
    return True


def _read(line: bytes) -> object:
    try:
        return decode(line)
    except AuditError:  # torn
        return None


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
