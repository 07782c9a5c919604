"""A run of a trusted party and several compute parties in one process, for tests."""

import copy
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from splitlearn.channel import pair
from splitlearn.channel.mailbox import DEFAULT_WINDOW
from splitlearn.channel.memory import MemoryChannel
from splitlearn.engine.events import Event
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.engine.state.optimiser import build_stepper
from splitlearn.engine.state.seeds import offer_seed, stage_seed
from splitlearn.engine.trusted.engine import TrustedEngine
from splitlearn.engine.trusted.line import Hop, Peer
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.identity import PartyName
from splitlearn.roles import Role
from splitlearn.split.anatomy import cut_stack, layers_of, stack_of
from splitlearn.split.blueprint import trunk_model
from splitlearn.split.cut import Cut, spec_of
from splitlearn.split.freeze import Mode, freeze, freeze_trunk, set_training
from splitlearn.split.lora import Where, adapt, blocks_of, trained_state, trunk_blocks
from splitlearn.split.stacks import parts_of
from splitlearn.split.stage import factor, split_chain
from splitlearn.split.weights import GROUPS, digest, trunk_state
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import Hops, LoraSpec, Neighbour
from tests.neighbours import Doors, Street
from tests.rig import TRUSTED, ComputeThread, Party, trusted_run


def chain_run(
    model: PreTrainedModel,
    *,
    cut: Cut,
    starts: Sequence[int],
    total: int,
    mode: Mode = "full",
    train_bottom: bool = True,
    order: str = "1f1b",
    in_flight: int = 8,
    lora: LoraSpec | None = None,
    where: Where = "trunk",
    direct: bool = False,
    **settings: object,
) -> TrustedRun:
    """The model taken apart for a run with a party for each part of its trunk; it is changed.

    direct: whether the parties send to one another.
    """
    both, sends = stack_of(model.config) == "both", mode in ("lora", "full")
    plain, alone = copy.deepcopy(model), cut
    if both:  # of which no party alone has layers
        cut_stack(plain, "decoder")
        alone = Cut(1, 2)
    whole = trusted_run(
        plain, cut=alone, total=total, mode=mode, train_bottom=train_bottom, **settings
    )
    # Everything but the trunk's parts is as in a run with one party.
    factor(model, cut=cut, bases={})
    blueprint = trunk_model(model)
    freeze(model, cut=cut, mode=mode, train_bottom=train_bottom)
    width = model.config.hidden_size
    parts = parts_of(model, cut=cut, starts=starts)
    local, trunks = split_chain(model, cut=cut, starts=starts, direct=direct)
    if lora is not None:
        adapt(blocks_of(local, cut=cut, where=where, train_bottom=train_bottom), lora)
        freeze(local, cut=cut, mode=mode, train_bottom=train_bottom)
    hops = []
    salts = [secrets.token_hex(32) for _ in starts]
    for party, (part, trunk) in enumerate(zip(parts, trunks, strict=True)):
        groups: dict[str, dict[str, Tensor]] = {
            g: {n: t.clone() for n, t in trunk_state(trunk, group=g).items()} for g in GROUPS
        }
        offer = msgspec.structs.replace(
            whole.offer,
            salt=secrets.token_hex(32),
            model=blueprint,
            cut=spec_of(part),
            returns_input_gradient=sends and (party > 0 or train_bottom),
            detail=msgspec.structs.replace(
                whole.offer.detail,
                lora=lora,
                memory_trains=trunk.crossed and sends and (train_bottom or both),
                hops=_hops(party, salts) if direct else None,
            ),
            seed=offer_seed(whole.offer.seed, party=party),
            layers=digest(groups["layers"]),
            bottlenecks=digest(groups["bottlenecks"]),
        )
        groups["bases"] = {}
        if lora is not None:
            adapt(trunk_blocks(trunk), lora)
            freeze_trunk(trunk, mode=mode)
            groups["adapters"] = trained_state(trunk)
        hops.append(Hop(offer, groups, part.entrance(width), part.exit(width)))
    return replace(
        whole,
        offer=hops[0].offer,
        local=local,
        groups=hops[0].groups,
        entrance=hops[0].entrance,
        exit=hops[0].exit,
        further=tuple(hops[1:]),
        order=order,
        in_flight=in_flight,
    )


def _hops(party: int, salts: Sequence[str]) -> Hops:
    def neighbour(other: int, salt: int) -> Neighbour | None:
        there = 0 <= other <= len(salts)
        return Neighbour(f"host{other}", "0" * 32, salts[salt]) if there else None

    return Hops(neighbour(party - 1, party - 1), neighbour(party + 1, party))


@dataclass
class Host:
    """A compute party of a chain: its two ends of a channel, both sides' logs, its thread.

    street: where it finds its neighbours, in a direct chain.
    """

    folder: Path
    name: str
    ours: MemoryChannel
    theirs: MemoryChannel
    clinic: Party
    street: Street | None
    deadline_s: float
    party: Party = field(init=False)
    doors: Doors | None = field(init=False)
    thread: ComputeThread = field(init=False)

    @classmethod
    def start(
        cls,
        folder: Path,
        name: str,
        *,
        policy: str,
        window: int = DEFAULT_WINDOW,
        street: Street | None = None,
        deadline_s: float = 20.0,
    ) -> "Host":
        ours, theirs = pair(window=window, names=("clinic", name))
        peer = PartyName(federation="fed.example", party=name, role=Role.COMPUTE)
        clinic = Party(folder / f"clinic-{name}", me=TRUSTED, peer=peer, policy=policy)
        host = cls(folder, name, ours, theirs, clinic, street, deadline_s)
        host._work()
        return host

    def again(self) -> MemoryChannel:
        """The trusted party comes back on this line as a new process would."""
        self.ours = self.ours.restart()
        return self.ours

    def reborn(self) -> None:
        """The trusted party was killed, and comes back as a new process over the same folder."""
        self.clinic.log.close()
        self.clinic = Party(
            self.clinic.folder, me=TRUSTED, peer=self.clinic.peer, policy=self.clinic.policy
        )
        self.again()

    def killed(self) -> None:
        """Kill it and start it anew."""
        self.party.log.close()
        if self.doors is not None and self.street is not None:
            self.doors.close()
            self.street.kill(self.name)
        self.theirs = self.theirs.restart()
        self._work()

    def close(self) -> None:
        """Wait for its good end."""
        self.thread.join(20)
        if self.thread.error is not None:
            raise self.thread.error
        self.party.log.close()
        self.clinic.log.close()
        if self.doors is not None:
            self.doors.close()

    def _work(self) -> None:
        self.party = Party(
            self.folder / self.name, me=self.clinic.peer, peer=TRUSTED, policy="compute.toml"
        )
        self.doors = None if self.street is None else Doors(self.street, self.party)
        self.thread = ComputeThread(
            self.party, self.theirs, neighbours=self.doors, deadline_s=self.deadline_s
        )


def names(run: TrustedRun) -> list[str]:
    return [f"host{number}" for number, _ in enumerate(run.hops)]


def hosts(
    folder: Path,
    run: TrustedRun,
    *,
    policy: str = "demo.toml",
    window: int = DEFAULT_WINDOW,
    street: Street | None = None,
) -> list[Host]:
    """As many compute parties as the run has, at work. window: of each one's channel.

    street: of a direct chain, where one is given; else it is made.
    """
    if street is None and run.offer.detail.hops is not None:
        street = Street(window)
    return [
        Host.start(folder, name, policy=policy, window=window, street=street) for name in names(run)
    ]


def chain_engine(
    folder: Path,
    run: TrustedRun,
    parties: Sequence[Host],
    *,
    observe: Callable[[Event], None] = lambda _: None,
) -> TrustedEngine:
    return TrustedEngine(
        run,
        peers=[Peer(host.ours, host.clinic.gate, host.again) for host in parties],
        checkpoints=Checkpoints(folder / "checkpoints"),
        observe=observe,
    )


@dataclass
class Ended:
    """What a run of a chain left. trunk: the weights that came home, of all parties."""

    losses: list[float]
    trunk: dict[str, Tensor]
    engine: TrustedEngine
    hosts: list[Host]


def run_chain(
    folder: Path,
    run: TrustedRun,
    *,
    steps: Callable[[int], Sequence[Batch]],
    policy: str = "demo.toml",
) -> Ended:
    """Train to the end over memory channels, and fetch the trunk."""
    parties = hosts(folder, run, policy=policy)
    engine = chain_engine(folder, run, parties)
    engine.train(steps)
    trunk = engine.finish(fetch=True)
    engine.end(None)
    for host in parties:
        host.close()
    return Ended(engine.losses, trunk, engine, parties)


class Reseeding:
    """An unsplit model that draws as the stages of a chain do: the torch generator is set anew where
    each stage begins. `at` says which step and micro-batch a forward is of.
    """

    def __init__(
        self, model: PreTrainedModel, *, cut: Cut, starts: Sequence[int], seed: int
    ) -> None:
        self._seed, self._at = seed, (0, 0)
        model.register_forward_pre_hook(lambda *_: self._draw(seed, "bottom"))
        layers = layers_of(model)
        for party, first in enumerate((cut.first, *starts)):
            self._hook(layers[first], offer_seed(seed, party=party), "trunk")
        self._hook(layers[cut.last], seed, "top")

    def at(self, step: int, micro_batch: int) -> None:
        self._at = (step, micro_batch)

    def _hook(self, layer: nn.Module, seed: int, stage: str) -> None:
        layer.register_forward_pre_hook(lambda *_: self._draw(seed, stage))

    def _draw(self, seed: int, stage: str) -> None:
        step, micro_batch = self._at
        torch.manual_seed(stage_seed(seed, step=step, micro_batch=micro_batch, stage=stage))


def train_reseeded(
    model: PreTrainedModel,
    *,
    steps: Callable[[int], Sequence[Batch]],
    run: TrustedRun,
    cut: Cut,
    starts: Sequence[int],
) -> tuple[list[float], Mapping[str, Tensor]]:
    """As `train_plain`, with dropout drawn stage by stage: losses and final weights."""
    freeze(model, cut=cut, mode=run.offer.mode, train_bottom=run.offer.returns_input_gradient)
    stepper = build_stepper(
        model.parameters(), optimiser=run.offer.optimiser, schedule=run.offer.schedule
    )
    set_training(model, training=True)
    reseeding = Reseeding(model, cut=cut, starts=starts, seed=run.offer.seed)
    losses = []
    with torch.random.fork_rng(devices=[]):
        for step in range(run.offer.schedule.total_steps):
            batches = steps(step)
            total = sum(batch.items for batch in batches)
            mean = torch.zeros(())
            for i, batch in enumerate(batches):
                reseeding.at(step, i)
                loss = model(**batch.inputs, **batch.labels)["loss"] * (batch.items / total)
                loss.backward()
                mean += loss.detach()
            stepper.step()
            losses.append(mean.item())
    return losses, model.state_dict()
