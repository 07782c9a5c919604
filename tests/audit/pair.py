"""Two parties' logs of one run, written as a run writes them: both sides' records, heads and receipts."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitlearn.audit import Log, Party, Payload, Record, RunClose, RunOpen, Witness, read_records
from splitlearn.audit.checkpoint import format_verifier_key
from splitlearn.audit.records import Direction
from splitlearn.identity import PartyName
from splitlearn.policy import Policy, Rule
from splitlearn.roles import MAY_SEND, Kind, Role
from splitlearn.wire.messages import Offer
from tests.audit.test_records import PAYLOAD
from tests.door import COMPUTE, SIGNER, TRUSTED, offer

__all__ = ["CLINIC_KEY", "FARM_KEY", "Pair", "Side", "crash", "records", "segment"]

FARM_SIGNER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
CLINIC_KEY = format_verifier_key(TRUSTED.dns, public_key=SIGNER.public_key().public_bytes_raw())
FARM_KEY = format_verifier_key(COMPUTE.dns, public_key=FARM_SIGNER.public_key().public_bytes_raw())


def policy_of(me: Role, peer: Role) -> Policy:
    """Allows what a pair says, each kind by a rule of its own, and nothing else."""
    ways: tuple[tuple[Direction, tuple[Role, Role]], ...] = (
        ("out", (me, peer)),
        ("in", (peer, me)),
    )
    return Policy(
        name="pair",
        rules=tuple(
            Rule(
                id=rule_id(way, kind),
                direction=way,
                peer=peer,
                kinds=(kind,),
                max_message_bytes=2**20,
                max_run_bytes=2**40,
                dtypes=("I8",),
                codecs=("int8",),
                max_rows=100,
                max_columns=100,
                max_examples=100,
                max_length=100,
            )
            for way, ends in ways
            for kind in Kind
            if ends in MAY_SEND[kind]
        ),
    )


def rule_id(way: Direction, kind: Kind) -> str:
    return f"{way}-{kind}".replace("_", "-")


@dataclass
class Side:
    """One party with its log."""

    folder: Path
    me: PartyName
    peer: PartyName
    signer: Ed25519PrivateKey
    counts: dict[str, int] = field(default_factory=lambda: {"in": 0, "out": 0})

    def __post_init__(self) -> None:
        self.policy = policy_of(self.me.role, self.peer.role)
        self.start()

    def start(self) -> None:
        self.log = Log.open(
            self.folder, origin=self.me.dns, signer=self.signer, clock=lambda: 1.7e9
        )

    def begin(self, offered: Offer, **changes: object) -> None:
        self.counts = {"in": 0, "out": 0}
        self.run = offered.run
        self.witness = Witness(self.log, me=self.me, peer=self.peer, offer=offered)
        opened = RunOpen.of(
            offered,
            software="splitlearn test",
            me=Party(id=self.me.uri, role=self.me.role),
            peer=Party(id=self.peer.uri, role=self.peer.role),
            binding="e" * 64,
            log_key=self.log.verifier_key,
            policy_text=self.policy.canonical.decode(),
            vocabulary=None,
        )
        self.log.append(msgspec.structs.replace(opened, **changes))

    def note(self, direction: Direction, kind: Kind, *, commit: str, **changes: object) -> Payload:
        self.counts[direction] += 1
        record = msgspec.structs.replace(
            PAYLOAD,
            direction=direction,
            me=self.me.uri,
            peer=self.peer.uri,
            peer_role=self.peer.role,
            message=self.counts[direction],
            kind=kind,
            schema=f"{kind}/1",
            parts=PAYLOAD.parts if kind in {Kind.ACTIVATION, Kind.OUTPUT} else (),
            commit=commit,
            policy=self.policy.digest,
            rules=(rule_id(direction, kind),),
        )
        record = msgspec.structs.replace(record, **changes)
        self.log.append(record)
        self.witness.logged(direction, commit)
        return record

    def end(self, outcome: Literal["done", "failed", "interrupted"] = "done") -> None:
        self.log.append(
            RunClose(
                run=self.run,
                outcome=outcome,
                messages_out=self.counts["out"],
                messages_in=self.counts["in"],
                bytes_out=1000 * self.counts["out"],
                bytes_in=1000 * self.counts["in"],
                denied=0,
            )
        )
        self.log.close()


class Pair:
    """A clinic and a farm. What one says is in both logs, unless it is lost."""

    def __init__(
        self, folder: Path, *, seed: int = 0, farm_signer: Ed25519PrivateKey = FARM_SIGNER
    ) -> None:
        """seed: pairs of different ones say different things."""
        self.clinic = Side(folder / "clinic", TRUSTED, COMPUTE, SIGNER)
        self.farm = Side(folder / "farm", COMPUTE, TRUSTED, farm_signer)
        self._conversations = 0
        self._commits = 1000 * seed

    @property
    def folders(self) -> tuple[Path, Path]:
        return self.clinic.folder, self.farm.folder

    def begin(self) -> None:
        """A conversation under a number of its own."""
        self._conversations += 1
        offered = msgspec.structs.replace(offer(), conversation=f"{self._conversations:032x}")
        self.clinic.begin(offered)
        self.farm.begin(offered)
        self.clinic.witness.peer_holds(self.farm.witness.held)
        self.farm.witness.peer_holds(self.clinic.witness.held)

    def commit(self) -> str:
        self._commits += 1
        return hashlib.sha256(b"%d" % self._commits).hexdigest()

    def say(
        self, kind: Kind, *, by: Literal["clinic", "farm"] = "clinic", lost: bool = False
    ) -> None:
        """One message; `lost`: it left and never arrived."""
        sender, receiver = (self.clinic, self.farm) if by == "clinic" else (self.farm, self.clinic)
        commit = self.commit()
        sender.note("out", kind, commit=commit)
        if not lost:
            receiver.note("in", kind, commit=commit)

    def step(self) -> None:
        self.say(Kind.ACTIVATION)
        self.say(Kind.OUTPUT, by="farm")

    def settle(self) -> None:
        """Swap heads and receipts in the order of the engine."""
        clinic, farm = self.clinic, self.farm
        shown = clinic.witness.statement()
        self.say(Kind.SETTLE)
        first = farm.witness.take(shown, sent=farm.counts["out"])
        answer = farm.witness.statement()
        self.say(Kind.SETTLED, by="farm")
        clinic.witness.countersigned(first, by=answer.log_key)
        second = clinic.witness.take(answer, sent=clinic.counts["out"])
        self.say(Kind.COUNTERSIGNED)
        farm.witness.countersigned(second, by=shown.log_key)

    def end(self) -> None:
        self.say(Kind.FINISH)
        self.say(Kind.CLOSED, by="farm")
        self.clinic.end()
        self.farm.end()

    def run(self, *, steps: int = 4) -> "Pair":
        """A whole run that settles in its middle and at its end."""
        self.begin()
        for step in range(steps):
            self.step()
            if step == steps // 2:
                self.settle()
        self.settle()
        self.end()
        return self


def crash(side: Side) -> None:
    """The end of a process: no closing record, files and lock let go."""
    side.log._release()


def segment(folder: Path) -> Path:
    return folder / "log" / "000000.jsonl"


def records(folder: Path) -> list[Record]:
    return [record for _, record in read_records(folder)]
