"""A whole run of two parties in one process, for tests: real gates, logs and sessions, memory channel."""

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor
from transformers import PreTrainedModel

from splitlearn import policy
from splitlearn.audit import Log
from splitlearn.channel import Channel, PeerRestarted, Released, pair
from splitlearn.channel.memory import MemoryChannel
from splitlearn.engine.compute.arriving import RunPlace
from splitlearn.engine.compute.bridge import Neighbours
from splitlearn.engine.compute.engine import ComputeEngine
from splitlearn.engine.events import Event
from splitlearn.engine.payloads.bases import state_of
from splitlearn.engine.plain import train_plain
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.engine.state.device import CPU, Device
from splitlearn.engine.trusted.engine import TrustedEngine
from splitlearn.engine.trusted.line import Peer
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.gate import Gate
from splitlearn.identity import PartyName
from splitlearn.roles import Kind, Role
from splitlearn.session import Session
from splitlearn.split.blueprint import trunk_model
from splitlearn.split.bottleneck import PcaBasis
from splitlearn.split.cut import Cut, spec_of
from splitlearn.split.freeze import Mode, freeze, freeze_trunk
from splitlearn.split.lora import Where, adapt, blocks_of, trained_state, trunk_blocks
from splitlearn.split.rows import reads_padding
from splitlearn.split.side import put_side, tap
from splitlearn.split.stage import factor, split
from splitlearn.split.weights import GROUPS, digest, trunk_state
from splitlearn.tasks.batches import Batch
from splitlearn.wire.frames import Frame
from splitlearn.wire.messages import (
    CodecSpec,
    Detail,
    LoraSpec,
    Offer,
    OptimiserSpec,
    ScheduleSpec,
    SideSpec,
)

TRUSTED = PartyName(federation="fed.example", party="clinic", role=Role.TRUSTED)
COMPUTE = PartyName(federation="fed.example", party="gpuhost", role=Role.COMPUTE)
ADAMW = OptimiserSpec("adamw", 1e-3, 0.01, 0.9, 0.999, 1e-8)
POLICIES = Path(policy.__file__).parents[2] / "parties" / "policies"


def at(place: RunPlace) -> Callable[[Offer], RunPlace]:
    """One place for whatever is offered."""
    return lambda _: place


def batch_of(tiny: object) -> Batch:
    """A Batch from a tests.tiny batch."""
    labels: Mapping[str, Tensor] = tiny.labels  # type: ignore[attr-defined]
    lengths: tuple[int, ...] = tiny.lengths  # type: ignore[attr-defined]
    each_token = "labels" in labels and labels["labels"].dim() == 2
    items = int((labels["labels"] != -100).sum()) if each_token else len(lengths)
    inputs: Mapping[str, Tensor] = tiny.inputs  # type: ignore[attr-defined]
    return Batch(
        inputs=dict(inputs),
        labels=dict(labels),
        lengths=lengths,
        items=items,
        next_token=tiny.next_token,  # type: ignore[attr-defined]
        joined=tiny.joined,  # type: ignore[attr-defined]
        target=tiny.target,  # type: ignore[attr-defined]
    )


def trusted_run(
    model: PreTrainedModel,
    *,
    cut: Cut,
    total: int,
    mode: Mode = "full",
    train_bottom: bool = True,
    codec: str = "identity",
    bases: Mapping[str, PcaBasis] | None = None,
    codec_bases: Mapping[Kind, PcaBasis] | None = None,
    seed: int = 0,
    every: int = 4,
    deadline_s: float = 20.0,
    optimiser: OptimiserSpec = ADAMW,
    run: str = "run",
    staleness: int = 0,
    lora: LoraSpec | None = None,
    where: Where = "trunk",
    side: SideSpec | None = None,
    taps: Mapping[int, PcaBasis] | None = None,
    repeats: bool = False,
    clip_norm: float | None = None,
) -> TrustedRun:
    """The model taken apart for a run; it is changed.

    lora, where: adapters, in mode "lora"; side, taps: in mode "side", with bases by layer.
    """
    blueprint = trunk_model(model)
    factor(model, cut=cut, bases=bases or {})
    width = model.config.hidden_size
    local, trunk = split(model, cut=cut)
    if lora is not None:
        adapt(blocks_of(local, cut=cut, where=where, train_bottom=train_bottom), lora)
    if side is not None:
        assert taps is not None
        put_side(local, side, width=32, basis=taps[side.taps[-1]], seed=seed)
        trunk = tap(trunk, side, bases=taps)
    freeze(local, cut=cut, mode=mode, train_bottom=train_bottom)
    groups: dict[str, dict[str, Tensor]] = {
        g: {n: t.clone() for n, t in trunk_state(trunk, group=g).items()} for g in GROUPS
    }
    groups["bases"] = state_of(codec_bases or {})
    if lora is not None:
        adapt(trunk_blocks(trunk), lora)
        freeze_trunk(trunk, mode=mode)
        trained = trained_state(trunk)
        groups["adapters"] = {n: t for n, t in trained.items() if n not in groups["bottlenecks"]}
    offer = Offer(
        run=run,
        conversation="c" * 32,
        job=digest({}),
        salt=secrets.token_hex(32),
        purpose="train",
        mode=mode,
        returns_input_gradient=mode in ("lora", "full") and train_bottom,
        model=blueprint,
        cut=spec_of(cut),
        codecs=CodecSpec(codec, codec, codec, codec),
        optimiser=optimiser,
        schedule=ScheduleSpec("linear", 2, total, staleness),
        seed=seed,
        layers=digest(groups["layers"]),
        bottlenecks=digest(groups["bottlenecks"]),
        bases=digest(groups["bases"]),
        held=(),
        detail=Detail(
            lora=lora,
            side=side,
            repeats=repeats,
            clips=clip_norm is not None and mode in ("lora", "full"),
            memory_trains=trunk.crossed and mode in ("lora", "full") and train_bottom,
        ),
    )
    return TrustedRun(
        offer=offer,
        local=local,
        groups=groups,
        entrance=cut.entrance(width),
        exit=cut.exit(width) if side is None else len(side.taps) * side.rank,
        packed=not reads_padding(model),
        every=every,
        deadline_s=deadline_s,
        clip_norm=clip_norm,
    )


@dataclass
class Party:
    """One side's log and gates. Made again over the same folder, it is that party after a restart."""

    folder: Path
    me: PartyName
    peer: PartyName
    policy: str
    clock: Callable[[], float] = time.time
    log: Log = field(init=False)

    def __post_init__(self) -> None:
        key = self.folder / "key"
        self.folder.mkdir(parents=True, exist_ok=True)
        if not key.exists():
            key.write_bytes(Ed25519PrivateKey.generate().private_bytes_raw())
        self.log = Log.open(
            self.folder / "audit",
            origin=self.me.dns,
            signer=Ed25519PrivateKey.from_private_bytes(key.read_bytes()),
            clock=self.clock,
        )

    def gate(self, offer: Offer, session: Session) -> Gate:
        return Gate.open(
            policy.load(POLICIES / self.policy),
            log=self.log,
            session=session,
            me=self.me,
            peer=self.peer,
            binding="0" * 64,
            offer=offer,
            software="splitlearn-tests",
        )


def trusted_party(
    folder: Path, *, policy: str = "demo.toml", clock: Callable[[], float] = time.time
) -> Party:
    return Party(folder / "clinic", me=TRUSTED, peer=COMPUTE, policy=policy, clock=clock)


def compute_party(
    folder: Path, *, policy: str = "compute.toml", clock: Callable[[], float] = time.time
) -> Party:
    return Party(folder / "gpuhost", me=COMPUTE, peer=TRUSTED, policy=policy, clock=clock)


def trusted_engine(
    run: TrustedRun,
    party: Party,
    channel: Channel,
    *,
    observe: Callable[[Event], None] = lambda _: None,
    checkpoints: Path | None = None,
) -> TrustedEngine:
    return TrustedEngine(
        run,
        peers=[Peer(channel, party.gate)],
        checkpoints=Checkpoints(checkpoints or party.folder / "checkpoints"),
        observe=observe,
    )


class ComputeThread(threading.Thread):
    """A compute party that serves until its channel ends; `error` is what ended it."""

    def __init__(
        self,
        party: Party,
        channel: Channel,
        *,
        models: Sequence[Path] = (),
        deadline_s: float = 20.0,
        observe: Callable[[Event], None] = lambda _: None,
        overlap: bool = True,
        neighbours: Neighbours | None = None,
        device: Device = CPU,
    ) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        place = RunPlace(
            checkpoints=party.folder / "checkpoints",
            received=party.folder / "received",
            models=tuple(models),
        )
        self.engine = ComputeEngine(
            channel,
            open_gate=party.gate,
            place_of=at(place),
            deadline_s=deadline_s,
            observe=observe,
            overlap=overlap,
            neighbours=neighbours,
            device=device,
        )
        self.start()

    def run(self) -> None:
        while True:
            try:
                self.engine.serve()
            except PeerRestarted:
                continue
            except BaseException as error:  # noqa: BLE001 - told to whoever joins the thread
                self.error = error
            return


@dataclass
class Around:
    """A channel that hands everything on to another; what a test watches or breaks, it overrides."""

    inner: Channel

    @property
    def peer(self) -> str:
        return self.inner.peer

    @property
    def bytes_sent(self) -> int:
        return self.inner.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self.inner.bytes_received

    @property
    def over(self) -> bool:
        return self.inner.over

    def send(self, released: Released, *, deadline_s: float) -> None:
        self.inner.send(released, deadline_s=deadline_s)

    def receive(self, *, timeout_s: float) -> Frame:
        return self.inner.receive(timeout_s=timeout_s)

    def renew(self) -> None:
        self.inner.renew()

    def close(self, *, reason: str | None = None) -> None:
        self.inner.close(reason=reason)


@dataclass
class Result:
    """What a run left. trunk: the compute party's weights at the end (empty if frozen)."""

    losses: list[float]
    trunk: dict[str, Tensor]
    local: PreTrainedModel
    trusted: Party
    compute: Party
    engine: TrustedEngine


def run_in_memory(
    tmp_path: Path,
    run: TrustedRun,
    *,
    steps: Callable[[int], Sequence[Batch]],
    policy: str = "demo.toml",
    compute_policy: str = "compute.toml",
    clock: Callable[[], float] = time.time,
    device: Device = CPU,
) -> Result:
    """Train to the end over a memory channel. device: of the compute party."""
    trusted = trusted_party(tmp_path, policy=policy, clock=clock)
    compute = compute_party(tmp_path, policy=compute_policy, clock=clock)
    ours, theirs = pair()
    thread = ComputeThread(compute, theirs, overlap=run.overlap, device=device)
    engine = trusted_engine(run, trusted, ours)
    engine.train(steps)
    trunk = engine.finish(fetch=True)
    thread.join(20)
    if thread.error is not None:
        raise thread.error
    for party in (trusted, compute):
        party.log.close()
    return Result(engine.losses, trunk, run.local, trusted, compute, engine)  # type: ignore[arg-type]


def train_unsplit(
    model: PreTrainedModel,
    run: TrustedRun,
    *,
    steps: Callable[[int], Sequence[Batch]],
    seed: int = 0,
    clip_norm: float | None = None,
    observe: Callable[[Event], None] = lambda _: None,
) -> list[float]:
    """Losses of the plain loop with a run's optimiser and schedule; the whole model is trained by it."""
    return train_plain(
        model,
        steps=steps,
        optimiser=run.offer.optimiser,
        schedule=run.offer.schedule,
        seed=seed,
        observe=observe,
        clip_norm=clip_norm,
    )


class Killing:
    """The steps of a run whose compute party dies at one of them and comes back."""

    def __init__(
        self,
        steps: Callable[[int], Sequence[Batch]],
        step: int,
        channel: MemoryChannel,
        party: Callable[[], Party],
    ) -> None:
        """channel: the party's end. party: as it is made, and made anew."""
        self.times = 0
        self._steps, self._step, self._channel, self._party = steps, step, channel, party
        self._alive = party()
        ComputeThread(self._alive, channel)

    def __call__(self, now: int) -> Sequence[Batch]:
        """The batches of a step."""
        if now == self._step and not self.times:
            self.times += 1
            self._alive.log.close()
            ComputeThread(self._party(), self._channel.restart())
        return self._steps(now)
