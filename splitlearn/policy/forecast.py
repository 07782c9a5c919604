"""Which messages will a job need, and what does a policy say to each of them? Asked before a run.

A message is judged at the largest that the job allows, so what is refused here may pass in a run
whose texts are short. What is not known before a model is fetched is left open. Sends nothing,
reads nothing but a model folder's config.json.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from splitlearn.errors import RefusedError, WireError
from splitlearn.manifest.chains import Chain, chain_of, links
from splitlearn.manifest.cuts import GRADIENTS
from splitlearn.manifest.hops import codecs_at, returns_at
from splitlearn.policy.rules import STEP_KINDS, Direction, Facts, Ledger, Policy, Rule
from splitlearn.roles import MAY_SEND, Kind, Role
from splitlearn.wire.frames import BEARS_TENSORS

if TYPE_CHECKING:
    from splitlearn.manifest import Job
    from splitlearn.wire.messages import Offer

__all__ = ["Plan", "Verdict", "foresee", "lasts", "plan_of_offer", "plans_of_job"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What of a job decides the messages with one compute party. Zero where it is not known.

    party: its name, empty where it does not matter. narrow: a low-rank cut has weights of its own,
    which the peer cannot have. codecs: those that the run begins with; later: of each stage after.
    columns: width or rank of each kind's rows. examples, longest: of the
    largest micro-batch and of its longest text.
    unknown: sentences about what could not be found out. generates: the model goes on with texts.
    clips: gradients are clipped by their norm over all parties. beside: kinds whose rows are of two texts.
    rows: kinds of rows that are exchanged with this party; in a direct chain not with each all of them.
    """

    mode: Literal["features", "side", "lora", "full"]
    returns_input_gradient: bool
    narrow: bool
    codecs: Mapping[Kind, str]
    columns: Mapping[Kind, int]
    examples: int = 0
    longest: int = 0
    unknown: tuple[str, ...] = ()
    party: str = ""
    generates: bool = False
    clips: bool = False
    beside: frozenset[Kind] = frozenset()
    later: tuple[Mapping[Kind, str], ...] = ()
    rows: frozenset[Kind] = STEP_KINDS

    @property
    def sends_gradients(self) -> bool:
        """Whether something at the peer trains, so that gradients leave."""
        return self.mode in GRADIENTS


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a policy says to one kind of message.

    facts: the message at its largest. certain: every such run has it; else the peer decides. rule:
    the one that is about it. refusals: every reason why it would not pass; none if it would.
    """

    facts: Facts
    certain: bool
    rule: Rule | None
    refusals: tuple[RefusedError, ...]


def plans_of_job(job: "Job") -> tuple[Plan, ...]:
    """The plans of a job file, one for each compute party, in the order of their layers.

    ManifestError if the model has not the layers that the cut or the chain names.
    """
    unknown = []
    width, layers = _sizes(job.model.path, stack=job.cut.stack)
    if layers:
        job.spans(layers=layers)
    if not width:
        unknown.append(
            f"the model {job.model.path} is no folder with a config.json that tells its width, so "
            "what travels at full width is not judged by its columns or bytes; a run looks again"
        )
    cut, schedule = job.cut, job.schedule
    largest = -(-schedule.batch_size // schedule.micro_batches)
    plans = []
    for party, peer in enumerate(job.peers):
        # A bottleneck is at an outer end of the chain; between its parties rows are of full width.
        lower = 0 if party else cut.lower.rank
        upper = cut.exit_rank if party == len(job.chain) else 0
        codecs = codecs_at(job, party=party)
        plans.append(
            Plan(
                mode=cut.mode,
                returns_input_gradient=returns_at(job, party=party),
                narrow=bool(lower or upper),
                codecs=_by_kind(codecs),
                columns=_columns(lower=lower or width, upper=upper or width),
                # Held-out examples travel a whole batch at a time.
                examples=largest if job.data.evaluate is None else schedule.batch_size,
                longest=job.data.max_length,
                unknown=tuple(unknown),
                party=peer.party,
                clips=job.clips_trunk,
                beside=_beside(_crossed(job, party), trains=job.cut.trains_memory),
                later=tuple(
                    _by_kind(codecs_at(job, party=party, codec=codec)) for codec in job.codec.later
                ),
                rows=_rows(first=not party, last=party == len(job.chain))
                if job.direct
                else STEP_KINDS,
            )
        )
    return tuple(plans)


def plan_of_offer(offer: "Offer") -> Plan:
    """The plan of a run that is ready to start; sizes of micro-batches are left to the gate."""
    lower, upper, side = offer.cut.lower.rank, offer.cut.upper.rank, offer.detail.side
    if side is not None:
        upper = len(side.taps) * side.rank
    stated = offer.model.fields.get("width", 0)
    width = stated if isinstance(stated, int) else 0
    hops = offer.detail.hops
    return Plan(
        mode=offer.mode,
        returns_input_gradient=offer.returns_input_gradient,
        narrow=bool(lower or upper),
        codecs=_by_kind(msgspec.structs.asdict(offer.codecs)),
        later=tuple(_by_kind(msgspec.structs.asdict(s.codecs)) for s in offer.detail.stages),
        columns=_columns(lower=lower or width, upper=upper or width),
        generates=offer.purpose == "generate",
        clips=offer.detail.clips,
        beside=_beside(
            offer.model.takes_memory(offer.cut.first), trains=offer.detail.memory_trains
        ),
        rows=STEP_KINDS
        if hops is None
        else _rows(first=hops.before is None, last=hops.after is None),
    )


def _rows(*, first: bool, last: bool) -> frozenset[Kind]:
    """What is exchanged with a party at an end of a direct chain; with others nothing is."""
    there = {Kind.ACTIVATION, Kind.INPUT_GRADIENT} if first else set[Kind]()
    return frozenset(there | ({Kind.OUTPUT, Kind.GRADIENT} if last else set()))


def foresee(policy: Policy, plan: Plan) -> tuple[Verdict, ...]:
    """A verdict on every kind of message between a trusted party and its compute party.

    A kind that changes its codec during the run has one for each.
    """
    found = []
    for kind, direction, certain in _needed(plan):
        names = [codecs[kind] for codecs in (plan.codecs, *plan.later) if kind in codecs]
        for name in dict.fromkeys(names) or [""]:
            staged = replace(plan, codecs={**plan.codecs, kind: name})
            found.append(_verdict(policy, _facts(kind, direction, plan=staged), certain=certain))
    return tuple(found)


def _by_kind(codecs: Mapping[str, str]) -> dict[Kind, str]:
    return {kind: codecs[kind.value] for kind in STEP_KINDS}


def lasts(verdict: Verdict, *, messages: int) -> int | None:
    """Steps of so many messages for which the rule's bytes last at the least; None if not known."""
    rule, step_bytes = verdict.rule, verdict.facts.wire_bytes * messages
    return rule.max_run_bytes // step_bytes if rule is not None and step_bytes else None


def _needed(plan: Plan) -> list[tuple[Kind, Direction, bool]]:
    """Kind, direction and whether it comes for certain, as a trusted party sees it: what leaves first."""
    out: list[tuple[Kind, Direction, bool]] = []
    into: list[tuple[Kind, Direction, bool]] = []
    full = plan.sends_gradients
    for kind, pairs in MAY_SEND.items():
        if (kind in _CLIPPING and not plan.clips) or kind in STEP_KINDS - plan.rows:
            continue
        returns = plan.returns_input_gradient if kind is Kind.INPUT_GRADIENT else True
        if (Role.TRUSTED, Role.COMPUTE) in pairs and (full or kind is not Kind.GRADIENT):
            out.append((kind, "out", plan.narrow or kind is not Kind.WEIGHTS))
        if (Role.COMPUTE, Role.TRUSTED) in pairs and returns and (full or kind is not Kind.WEIGHTS):
            into.append((kind, "in", True))
    return out + into


_CLIPPING = frozenset({Kind.NORM, Kind.SCALE})


def _facts(kind: Kind, direction: Direction, *, plan: Plan) -> Facts:
    if kind not in STEP_KINDS:
        dtypes = frozenset({"F32"}) if kind in BEARS_TENSORS else frozenset[str]()
        return Facts(direction=direction, peer=Role.COMPUTE, kind=kind, dtypes=dtypes)
    texts = 2 if kind in plan.beside else 1
    rows, columns = texts * plan.examples * plan.longest, plan.columns[kind]
    codec = plan.codecs[kind]
    known = rows and columns
    return Facts(
        direction=direction,
        peer=Role.COMPUTE,
        kind=kind,
        codec=codec,
        dtypes=_dtypes(codec),
        linked=kind is Kind.ACTIVATION and links(codec),
        generated=kind is Kind.ACTIVATION and plan.generates,
        rows=rows,
        columns=columns,
        examples=plan.examples,
        longest=plan.longest,
        wire_bytes=_wire_bytes(
            codec, rows=rows, columns=columns, examples=plan.examples, texts=texts
        )
        if known
        else 0,
    )


def _verdict(policy: Policy, facts: Facts, *, certain: bool) -> Verdict:
    rule = policy.rule_for(facts.kind, direction=facts.direction, peer=facts.peer)
    ledger = Ledger(policy, spent={})
    if rule is not None:
        refusals = tuple(ledger.faults(facts, rule=rule))
    else:
        refusals = (
            RefusedError(
                f"the job needs {facts.kind} to go {facts.direction}, and policy {policy.name!r} has "
                "no rule for that; change the job or the policy",
                rule="no-rule",
            ),
        )
    return Verdict(facts=facts, certain=certain, rule=rule, refusals=refusals)


def _packed(rows: int, columns: int, _: float, *, bits: int, group: int) -> int:
    return rows * (-(-columns * bits // 8) + 2 * (-(-columns // group) if group else 1))


def _kept(width: int, share: float) -> int:
    return max(1, round(share * width))


def _zstd(size: int) -> int:
    """What cannot be compressed grows by this much at most (ZSTD_compressBound)."""
    return size + (size >> 8) + 64


# What the codecs room writes, by the family of a chain: dtypes of the parts, and at most how many bytes
# for rows, columns and the number in the chain's name.
_WRITTEN: Mapping[str, tuple[frozenset[str], Callable[[int, int, float], int]]] = {
    "identity": (frozenset({"F32"}), lambda n, d, _: 4 * n * d),
    "fp16": (frozenset({"F16", "I8"}), lambda n, d, _: 2 * n * d + 1),
    "bf16": (frozenset({"BF16"}), lambda n, d, _: 2 * n * d),
    "int8": (frozenset({"I8", "F32"}), lambda n, d, _: n * (d + 4)),
    **{
        name: (frozenset({"U8", "BF16"}), partial(_packed, bits=bits, group=group))
        for name, bits, group in (
            *(("int8-g64", 8, 64), ("int4", 4, 0), ("int4-g64", 4, 64), ("hadamard-int4", 4, 0)),
            *(("int2", 2, 0), ("int2-g64", 2, 64), ("hadamard-int2", 2, 0)),
        )
    },
    # Rows take most the first time, in int8.
    **{
        f"delta-{then}": (frozenset({"I8", "F32", "U8", "BF16"}), lambda n, d, _: n * (d + 4))
        for then in ("int4", "int4-g64", "int2-g64")
    },
    "topk-": (
        frozenset({"F16", "I8", "U8"}),
        lambda n, d, k: n * (2 * _kept(d, k) + -(-d // 8)) + 1,
    ),
    "randk-": (frozenset({"F16", "I8", "U8"}), lambda n, d, k: 2 * n * _kept(d, k) + 9),
    "svd-": (frozenset({"F16", "I8"}), lambda n, d, q: 2 * (n + d) * _kept(min(n, d), q) + 2),
    "lowrank-": (
        frozenset({"F16", "I8"}),
        lambda n, d, rank: 2 * (n + d) * min(n, d, int(rank)) + 2,
    ),
    # A byte for each value, two beside it where it is large, one for each row or column, all by zstd.
    "pca-": (frozenset({"F16", "I8"}), lambda n, d, q: 2 * n * _kept(d, q) + 1),
    **{
        f"{before}transform-{target}": (
            frozenset({"U8"}),
            lambda n, d, _: _zstd(3 * n * d + max(n, d)) + 256,
        )
        for before in ("", "pca-")
        for target in "eb"
    },
}
# Frame header, metadata before its lengths, container header of four parts: less than 512 bytes.
_AROUND_BYTES = 512
# A pseudonym, beside rows that are written by what changed in their sample.
_NAME_BYTES = 8
# A length takes up to 5 bytes in msgpack, and no batch has more lengths than this.
_LENGTH_BYTES = 5 * 4_096


def _dtypes(codec: str) -> frozenset[str]:
    chain = _chain(codec)
    return frozenset({"U8"}) if chain.stage else _WRITTEN[chain.family][0]


def _wire_bytes(codec: str, *, rows: int, columns: int, examples: int = 0, texts: int = 1) -> int:
    """No message of so many rows has more bytes."""
    chain = _chain(codec)
    size = _WRITTEN[chain.family][1](rows, columns, chain.number or 0.0)
    if chain.stage:
        size = _zstd(size)
    if links(codec):
        size += _NAME_BYTES * examples
    return size + _AROUND_BYTES + min(5 * rows, texts * _LENGTH_BYTES)


def _chain(codec: str) -> Chain:
    chain = chain_of(codec)
    if chain is None:
        raise WireError(f"the peer names codec {codec!r}, which this version has not")
    return chain


def _columns(*, lower: int, upper: int) -> dict[Kind, int]:
    return {
        Kind.ACTIVATION: lower,
        Kind.INPUT_GRADIENT: lower,
        Kind.OUTPUT: upper,
        Kind.GRADIENT: upper,
    }


def _crossed(job: "Job", party: int) -> bool:
    """Whether that party gets layers of a decoder. Of both stacks unknown, all but the first may."""
    if job.cut.stack != "both":
        return job.cut.stack == "decoder"
    _, border = _sizes(job.model.path, stack="encoder")
    return party > 0 and job.starts[party - 1] >= border


def _beside(crossed: bool, *, trains: bool) -> frozenset[Kind]:
    """Kinds whose rows are of an encoder's text and of its decoder's, where layers of a decoder are cut."""
    if not crossed:
        return frozenset()
    backward = {Kind.GRADIENT, Kind.INPUT_GRADIENT} if trains else set()
    return frozenset({Kind.ACTIVATION} | backward)


# A config.json of 10,000 label names takes less.
_CONFIG_BYTES = 4 * 2**20


def _sizes(model: str, *, stack: str = "encoder") -> tuple[int, int]:
    """Width and number of layers of a model folder; zero for a hub name or where it does not say."""
    folder = Path(model)
    if not folder.is_absolute():
        return 0, 0
    try:
        with (folder / "config.json").open("rb") as file:
            config: Any = json.loads(file.read(_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return 0, 0
    if not isinstance(config, dict):
        return 0, 0
    width = _first(config, "hidden_size", "dim", "n_embd", "d_model")
    # T5's decoder has as many as its encoder where nothing is said.
    above = _first(config, "decoder_layers", "num_decoder_layers", "num_layers")
    if stack == "decoder":
        return width, above
    layers = _first(
        config, "num_hidden_layers", "n_layers", "n_layer", "encoder_layers", "num_layers"
    )
    return width, layers + above if stack == "both" and layers and above else layers


def _first(config: dict[str, object], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if type(value) is int and value > 0:
            return value
    return 0
