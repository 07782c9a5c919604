"""A gate with everything around it real but the network: policy, log, session and codecs."""

import secrets
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from splitlearn.audit import Log
from splitlearn.audit.log import read_lines
from splitlearn.audit.records import Record, decode
from splitlearn.channel.base import Released
from splitlearn.codecs import Codec, build
from splitlearn.errors import SplitLearnError
from splitlearn.gate import Gate, Private
from splitlearn.identity import PartyName
from splitlearn.policy import Ledger, Policy, load
from splitlearn.roles import Kind, Role
from splitlearn.session import Session
from splitlearn.wire import frames
from splitlearn.wire.frames import Frame
from splitlearn.wire.messages import (
    Accept,
    BottleneckSpec,
    CodecSpec,
    CutSpec,
    Empty,
    Offer,
    OptimiserSpec,
    Resume,
    ScheduleSpec,
    StepTensor,
    TrunkModel,
)

POLICIES = Path(__file__).parent.parent / "parties" / "policies"
SIGNER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TRUSTED = PartyName(federation="example.org", party="clinic", role=Role.TRUSTED)
COMPUTE = PartyName(federation="example.org", party="farm", role=Role.COMPUTE)
WIDTH = 32


def offer() -> Offer:
    none = BottleneckSpec("none", 0)
    return Offer(
        run="news",
        conversation="c" * 32,
        job="a" * 64,
        salt="b" * 64,
        purpose="train",
        mode="full",
        returns_input_gradient=True,
        model=TrunkModel("bert", {"hidden_size": WIDTH}),
        cut=CutSpec(1, 2, none, BottleneckSpec("pca", 8)),
        codecs=CodecSpec("identity", "identity", "identity", "identity"),
        optimiser=OptimiserSpec("adamw", 1e-4, 0.0, 0.9, 0.999, 1e-8),
        schedule=ScheduleSpec("linear", 0, 10),
        seed=0,
        layers="c" * 64,
        bottlenecks="d" * 64,
        bases="e" * 64,
        held=(),
    )


def records(folder: Path) -> list[Record]:
    """What a log folder holds."""
    return [decode(line) for line, _ in read_lines(folder)]


@dataclass
class Rows:
    """A micro-batch as the stage hands it over: hidden state, side data, and what is private."""

    x_ND: Tensor
    meta: StepTensor
    private: Private


def rows(
    *, lengths: tuple[int, ...] = (9, 4, 6, 9), width: int = 9, seed: int = 0, micro_batch: int = 0
) -> Rows:
    """Packed normal rows with random ids and two classes of examples."""
    generator = np.random.default_rng(seed)
    x_ND = torch.from_numpy(generator.standard_normal((sum(lengths), WIDTH)).astype(np.float32))
    ids = generator.integers(5, 30_000, (len(lengths), width))
    labels = np.arange(len(lengths)) % 2
    meta = StepTensor(0, micro_batch, 4, "train", width, True, lengths, 0)
    return Rows(x_ND, meta, Private(ids=ids, labels=(labels,), lengths=lengths))


@dataclass
class Door:
    """A trusted party's gate in the middle of a run, and a tap on what it let out."""

    folder: Path
    policy: Policy = field(default_factory=lambda: load(POLICIES / "demo.toml"))
    opened: bool = True
    ledger: Ledger | None = None

    def __post_init__(self) -> None:
        self.tap: list[Released] = []
        self.offer = msgspec.structs.replace(offer(), conversation=secrets.token_hex(16))
        self.session = Session(me=Role.TRUSTED, peer=Role.COMPUTE)
        self.peer = Session(me=Role.COMPUTE, peer=Role.TRUSTED)
        self.log = Log.open(
            self.folder, origin="example.org/clinic/news", signer=SIGNER, clock=lambda: 1.7e9
        )
        self.gate = Gate.open(
            self.policy,
            log=self.log,
            session=self.session,
            me=TRUSTED,
            peer=COMPUTE,
            binding="e" * 64,
            offer=self.offer,
            software="splitlearn test",
            vocabulary=30_000,
            ledger=self.ledger,
        )
        if self.opened:
            self.agree()
            self.say(Kind.RESUME, Resume(0, 0))
            self.hear(Kind.READY, Empty())

    def agree(self) -> None:
        self.say(Kind.OFFER, self.offer)
        self.hear(Kind.ACCEPT, Accept((), (), 0))

    def say(self, kind: Kind, meta: object, **more: object) -> Released:
        released = self.gate.release(kind, meta=meta, **more)  # type: ignore[arg-type]
        self.tap.append(released)
        frame = frames.decode(released.raw)
        self.peer.check(frame.kind, frame.meta, seq=frame.seq)
        return released

    def send(self, batch: Rows, *, codec: Codec | None = None) -> Released:
        return self.say(
            Kind.ACTIVATION,
            batch.meta,
            tensor=batch.x_ND,
            codec=codec or build("identity"),
            private=batch.private,
        )

    def answer(self, kind: Kind, meta: object, payload: bytes = b"") -> Frame:
        """A frame as the peer would send it."""
        seq = self.peer.stamp(kind, meta)  # type: ignore[arg-type]
        return frames.decode(frames.encode(kind, seq=seq, meta=meta, payload=payload))  # type: ignore[arg-type]

    def hear(self, kind: Kind, meta: object, payload: bytes = b"") -> Frame:
        frame = self.answer(kind, meta, payload)
        self.gate.admit(frame)
        return frame

    def refuses(self, kind: Kind, meta: object, **more: object) -> SplitLearnError:
        """The error of a message that must not pass; nothing of it may be on the tap."""
        before = len(self.tap)
        try:
            self.say(kind, meta, **more)
        except SplitLearnError as error:
            assert len(self.tap) == before
            return error
        raise AssertionError(f"{kind} was let through")

    @property
    def records(self) -> list[Record]:
        return records(self.folder)
