"""Logs for the report's tests: written by the real log, with every type of record in them."""

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitlearn import policy
from splitlearn.audit import (
    Denied,
    Leakage,
    Log,
    PartShape,
    Party,
    Payload,
    PeerCheckpoint,
    PolicyChange,
    Receipt,
    Record,
    Report,
    RunClose,
    RunOpen,
    verify,
)
from splitlearn.audit.blobs import Blobs
from splitlearn.audit.checkpoint import Checkpoint, cosign, format_verifier_key
from splitlearn.audit.receipts import Chain, Claim
from splitlearn.audit.redact import redact
from splitlearn.report import Document, collect
from splitlearn.roles import Kind, Role

ROOT = Path(__file__).parents[2]
ORIGIN = "example.org/clinic/news"
SIGNER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PEER_SIGNER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
KEY = format_verifier_key(ORIGIN, public_key=SIGNER.public_key().public_bytes_raw())
ME = "spiffe://example.org/party/clinic/role/trusted"
PEER = "spiffe://example.org/party/farm/role/compute"
PEER_KEY = format_verifier_key(
    "compute.farm.example.org", public_key=PEER_SIGNER.public_key().public_bytes_raw()
)
POLICY = policy.load(ROOT / "parties" / "policies" / "demo.toml")
WIDER = msgspec.structs.replace(POLICY, name="wider")
TALK = "1" * 32


class Clock:
    """Half a second a record."""

    def __init__(self) -> None:
        self.now = 1.76e9

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


OPEN = RunOpen(
    run="news",
    conversation=TALK,
    software="splitlearn 0.1.0",
    me=Party(id=ME, role=Role.TRUSTED),
    peer=Party(id=PEER, role=Role.COMPUTE),
    binding="e" * 64,
    log_key=KEY,
    policy=POLICY.digest,
    policy_text=POLICY.canonical.decode(),
    job="a" * 64,
    purpose="train",
    mode="full",
    model="bert",
    layers="c" * 64,
    bases="d" * 64,
    cut=(1, 5),
    bottlenecks=("pca:64", "none:0"),
    codecs={"activation": "int8+zstd", "output": "fp16", "gradient": "fp16"},
    vocabulary=30_522,
)
PAYLOAD = Payload(
    run="news",
    direction="out",
    me=ME,
    peer=PEER,
    peer_role=Role.COMPUTE,
    binding="e" * 64,
    message=1,
    kind=Kind.ACTIVATION,
    schema="activation/1",
    codec="int8",
    rows=256,
    columns=64,
    examples=8,
    longest=64,
    parts=(PartShape(name="x", dtype="I8", shape=(256, 64), data_bytes=16_384),),
    wire_bytes=16_900,
    commit="f" * 64,
    policy=POLICY.digest,
    rules=("activation",),
)
DENIED = Denied(
    run="news",
    direction="out",
    peer=PEER,
    kind=Kind.ACTIVATION,
    rule="content.finite",
    policy=POLICY.digest,
    parts=(PartShape(name="rows", dtype="F32", shape=(256, 64), data_bytes=65_536),),
)


def opened(folder: Path, *, clock: Clock | None = None) -> Log:
    return Log.open(folder, origin=ORIGIN, signer=SIGNER, clock=clock or Clock())


def write(folder: Path, *records: Record) -> Path:
    """A log of exactly these records, closed properly."""
    with opened(folder) as log:
        for record in records:
            log.append(record)
    return folder


def document(folder: Path, *, key: str | None = KEY) -> Document:
    """What a report says of `folder`."""
    return collect(
        folder, checked(folder, key=key), verifier_key=key, software="splitlearn 0.1.0", made=MADE
    )


def checked(folder: Path, *, key: str | None = KEY) -> Report:
    return verify(folder, verifier_key=key)


MADE = "2026-01-02 03:04:05 UTC"


class Talk:
    """One conversation written into a log: messages are numbered and totals counted."""

    def __init__(self, log: Log, opened: RunOpen = OPEN) -> None:
        self.log = log
        self.opened = opened
        self.last = {"in": 0, "out": 0}
        self.bytes = {"in": 0, "out": 0}
        self.denied = 0
        self.chain = Chain()
        log.append(opened)

    def send(self, kind: Kind, *, direction: str = "out", **changes: object) -> int:
        """Append a payload; its record's index."""
        self.last[direction] += 1
        record = msgspec.structs.replace(
            PAYLOAD,
            run=self.opened.run,
            direction=direction,
            kind=kind,
            message=self.last[direction],
            policy=self.opened.policy,
            rules=changes.pop("rules", (_RULES.get((direction, kind), "run"),)),
            **changes,
        )
        self.bytes[direction] += record.wire_bytes
        if direction == "out":
            self.chain.add(record.commit)
        return self.log.append(record)

    def steps(self, steps: Iterable[int], *, size: int = 16_900) -> None:
        """Whole training steps of four messages each."""
        for step in steps:
            wave = 1 + 0.25 * math.sin(step / 9)
            for direction, kind, part in (
                ("out", Kind.ACTIVATION, 1.0),
                ("in", Kind.OUTPUT, 0.9),
                ("out", Kind.GRADIENT, 0.5),
                ("in", Kind.INPUT_GRADIENT, 0.25),
            ):
                self.send(kind, direction=direction, step=step, wire_bytes=int(size * part * wave))

    def deny(self, record: Denied = DENIED) -> int:
        self.denied += 1
        return self.log.append(record)

    def close(self, outcome: str = "done") -> None:
        self.log.append(
            RunClose(
                run=self.opened.run,
                outcome=outcome,
                messages_out=self.last["out"],
                messages_in=self.last["in"],
                bytes_out=self.bytes["out"],
                bytes_in=self.bytes["in"],
                denied=self.denied,
            )
        )

    def swap(self, *, size: int) -> None:
        """What two parties' countersigning leaves in this log and beside it."""
        head = self.log.checkpoint()
        note = self.log.folder / "checkpoints" / f"{head.size}.note"
        name = PEER_KEY.split("+")[0]
        note.write_text(cosign(note.read_text(), name=name, key=PEER_SIGNER))
        root = hashlib.sha256(str(size).encode()).digest()
        theirs = Checkpoint(origin=name, size=size, root=root).sign(PEER_SIGNER)
        place = self.log.folder / "peers" / f"{name}-{'0' * 16}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "verifier.key").write_text(PEER_KEY + "\n")
        (place / f"{size}.note").write_text(cosign(theirs, name=ORIGIN, key=SIGNER))
        run, talk, last = self.opened.run, self.opened.conversation, self.last["out"]
        chain = self.chain.at(last)
        claim = Claim(run, talk, ME, PEER, last, chain)
        self.log.append(
            Receipt(
                run=run,
                conversation=talk,
                peer=PEER,
                last=last,
                chain=chain,
                key=PEER_KEY,
                signature=claim.sign(PEER_SIGNER),
            )
        )
        self.log.append(
            PeerCheckpoint(
                run=run,
                conversation=talk,
                peer=PEER,
                key=PEER_KEY,
                size=size,
                root=root.hex(),
                mine=head.size,
            )
        )


_RULES = {
    ("out", Kind.ACTIVATION): "activation",
    ("in", Kind.OUTPUT): "output",
    ("out", Kind.GRADIENT): "gradient",
    ("in", Kind.INPUT_GRADIENT): "output",
    ("out", Kind.WEIGHTS): "trunk-weights",
    ("in", Kind.ACCEPT): "answers",
}


def eventful(folder: Path, *, steps: int = 120) -> Path:
    """A run with everything in it: countersigned heads, a gap, a redaction, a refusal, leakage, noise."""
    clock = Clock()
    log = opened(folder, clock=clock)
    log.append(leakage(at="preflight", tokens=0.74, limit=0.9))
    talk = Talk(log)
    talk.send(Kind.OFFER, wire_bytes=2_100)
    talk.send(Kind.ACCEPT, direction="in", wire_bytes=700)
    for _ in range(3):
        talk.send(Kind.WEIGHTS, wire_bytes=28_000_000)
    first = steps // 2
    talk.steps(range(first))
    talk.swap(size=200)
    log._release()  # the process ends by surprise
    log = opened(folder, clock=clock)
    log.append(PolicyChange(run="news", before=POLICY.digest, policy=WIDER.digest))
    talk = Talk(
        log,
        msgspec.structs.replace(
            OPEN,
            conversation="2" * 32,
            policy=WIDER.digest,
            policy_text=WIDER.canonical.decode(),
        ),
    )
    talk.send(Kind.RESUME, wire_bytes=300)
    blob = Blobs.open(folder, create=True).keep(b"a frame of a canary batch")
    kept = talk.send(Kind.ACTIVATION, step=first, blob=blob)
    talk.steps(range(first, steps))
    talk.swap(size=400)
    log.append(leakage(at="canary", tokens=0.9134, limit=0.9))
    talk.deny()
    talk.close("refused")
    log.close()
    redact(folder, kept, why="request", origin=ORIGIN, signer=SIGNER, clock=clock)
    return folder


def leakage(*, at: str, tokens: float | None, limit: float | None) -> Leakage:
    return Leakage(
        run="news",
        at=at,
        suite=1,
        seed=7,
        scored=4_096,
        tokens=tokens,
        tokens_by="ridge+nearest",
        labels=0.98 if at == "canary" else None,
        labels_by="spectral" if at == "canary" else "",
        tokens_limit=limit,
        labels_limit=0.7 if at == "canary" else None,
        report="6" * 64,
    )
