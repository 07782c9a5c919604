"""How fast this machine is at a job's model: layer by layer, codec by codec, for the planner.

Works on the job's own examples, in this process; nothing is sent and nothing is kept. Medians of a few
rounds at two sizes of micro-batch, so that what a micro-batch costs at all is told from what a token
costs.
"""

# B batch, T tokens, D width, N rows

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from splitlearn.audit import Log
from splitlearn.codecs import Basis, build
from splitlearn.engine.job.carrying import carrying
from splitlearn.engine.job.examples import Data
from splitlearn.engine.job.prepare import specs
from splitlearn.engine.job.public import codec_basis
from splitlearn.engine.state.optimiser import build_stepper
from splitlearn.errors import RefusedError
from splitlearn.gate import Gate, Private
from splitlearn.identity import PartyName
from splitlearn.identity.party import Keys
from splitlearn.manifest import Job, links, needs_basis
from splitlearn.pipeline.speeds import Line, PartySpeeds, Speeds
from splitlearn.policy import Policy
from splitlearn.roles import Kind, Role
from splitlearn.session import Session
from splitlearn.split.anatomy import layers_of
from splitlearn.split.lookup import look_up_by_rows
from splitlearn.split.rows import mask_of
from splitlearn.tasks import Batch, batch
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

__all__ = ["measure_job", "measure_speeds"]

_ROUNDS = 5
# The smaller micro-batch is this part of the larger one.
_PART = 4
_MOST_EXAMPLES = 32
# Steps whose padding is looked at.
_LOOK_STEPS = 4


def measure_job(
    job: Job, data: Data, model: PreTrainedModel, *, policy: Policy, codecs: Iterable[str]
) -> Speeds:
    """Speeds of this machine at a job's `model`, whole as loaded, on the job's own examples.

    Of `codecs` and of those that the job names; of codecs in a basis if it has a public text.
    """
    large = min(_MOST_EXAMPLES, len(data.train.examples), max(2, job.schedule.batch_size))
    pad_id = data.tokenizer.pad_token_id
    batches = [
        batch(data.train.examples[:size], pad_id=pad_id if isinstance(pad_id, int) else 0)
        for size in sorted({max(1, large // _PART), large})
    ]
    tokens, padded = _lengths(data)
    optimiser, _ = specs(job, steps=1)
    layer = job.trunk(layers=len(layers_of(model)))[0]
    basis = codec_basis(job, model, data.tokenizer, layer=layer)
    codec = job.codec
    named = [codec.activation, codec.output, codec.gradient, codec.input_gradient]
    if job.chain:
        named += [codec.inner, codec.inner_gradient]
    return measure_speeds(
        model,
        batches,
        layer=layer,
        basis=None if basis is None else Basis(basis.mean, basis.components),
        optimiser=optimiser,
        policy=policy,
        codecs=dict.fromkeys((*named, *codecs)),
        tokens=tokens,
        padded=padded,
    )


def measure_speeds(
    model: PreTrainedModel,
    batches: Sequence[Batch],
    *,
    layer: int,
    optimiser: OptimiserSpec,
    policy: Policy,
    codecs: Iterable[str],
    tokens: float,
    padded: float,
    basis: Basis | None = None,
) -> Speeds:
    """Speeds at micro-batches of a smaller and a larger size; the model's gradients are gone afterwards.

    layer: the one whose input `codecs` are tried on, those in a basis only where there is a `basis`.
    tokens, padded: of an example.
    """
    look_up_by_rows(model)
    layers = layers_of(model)
    within = [weight for layer_ in layers for weight in layer_.parameters()]
    inside = {id(weight) for weight in within}
    around = [weight for weight in model.parameters() if id(weight) not in inside]
    passes = [_passes(model, made, layer=layer) for made in batches]
    amounts = [float(made.inputs["input_ids"].numel()) for made in batches]

    def line(read: Callable[[_Pass], float]) -> tuple[float, float]:
        points = {
            amount: statistics.median(read(found) for found in some)
            for amount, some in zip(amounts, passes, strict=True)
        }
        fitted = Line.through(points)
        return fitted.fixed_s, fitted.each_s

    return Speeds(
        tokens=tokens,
        padded=padded,
        layers=len(layers),
        width=model.config.hidden_size,
        trusted=PartySpeeds(
            layer=line(lambda one: one.layer_s),
            layer_backward=line(lambda one: one.layer_backward_s),
            ends=line(lambda one: one.embed_s + one.head_s),
            ends_backward=line(lambda one: one.embed_backward_s),
            layer_update_s=_update_s(within, optimiser=optimiser) / len(layers),
            ends_update_s=_update_s(around, optimiser=optimiser),
            message=_message(policy, batches, width=model.config.hidden_size),
            carry=carrying(),
        ),
        codecs={
            name: _codec(name, passes[-1][0].rows_ND, basis=basis)
            for name in codecs
            if (basis is not None or not needs_basis(name)) and not links(name)
        },
    )


def _lengths(data: Data) -> tuple[float, float]:
    """Tokens of an example, without padding and with it."""
    steps = [data.steps(step) for step in range(min(_LOOK_STEPS, data.steps.total))]
    made = [one for step in steps for one in step]
    examples = sum(len(one.lengths) for one in made)
    return (
        sum(sum(one.lengths) for one in made) / examples,
        sum(one.inputs["input_ids"].numel() for one in made) / examples,
    )


def _clock_s() -> float:
    """Processor seconds where one thread does the work, so that other programs do not count."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


@dataclass
class _Pass:
    """Seconds of one forward and backward, those of layers for one of them, and the rows before `layer`."""

    embed_s: float = 0.0
    embed_backward_s: float = 0.0
    head_s: float = 0.0
    layer_s: float = 0.0
    layer_backward_s: float = 0.0
    rows_ND: Tensor = field(default_factory=lambda: torch.empty(0))


def _passes(model: PreTrainedModel, made: Batch, *, layer: int) -> list[_Pass]:
    """Gradients accumulate from one to the next, as those of micro-batches do."""
    model.train()
    model.requires_grad_(True)
    found = [_one_pass(model, made, layer=layer) for _ in range(_ROUNDS + 1)]
    model.zero_grad(set_to_none=True)
    return found[1:]


def _one_pass(model: PreTrainedModel, made: Batch, *, layer: int) -> _Pass:
    """Embeddings, layers and head with a graph of their own each, so that each backward is timed alone.

    All layers together: one alone would find in a processor's caches what a run does not.
    """
    layers = layers_of(model)
    found = _Pass()
    at: dict[str, float] = {}
    ends: dict[str, tuple[Tensor, Tensor]] = {}  # the tensor with its graph, and without

    def cut_off(name: str, h_BTD: Tensor) -> Tensor:
        ends[name] = h_BTD, h_BTD.detach().requires_grad_(True)
        return ends[name][1]

    def enter(
        _: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[Tensor, ...], dict[str, object]]:
        at["embedded"] = _clock_s()
        h_BTD = cut_off("embedded", _hidden(args, kwargs))
        return ((h_BTD, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": h_BTD})

    def look(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, object]) -> None:
        found.rows_ND = _hidden(args, kwargs).detach()

    def leave(_: nn.Module, __: tuple[Tensor, ...], output: object) -> object:
        h_BTD = cut_off("left", _first(output))
        at["left"] = _clock_s()
        return (h_BTD, *output[1:]) if isinstance(output, tuple) else h_BTD

    hooks = [
        layers[0].register_forward_pre_hook(enter, with_kwargs=True),
        layers[layer].register_forward_pre_hook(look, with_kwargs=True),
        layers[-1].register_forward_hook(leave),
    ]
    began_s = _clock_s()
    try:
        output = model(**made.inputs, **made.labels)
    finally:
        for hook in hooks:
            hook.remove()
    output["loss"].backward()
    found.head_s = _clock_s() - at["left"]
    found.embed_s = at["embedded"] - began_s
    found.layer_s = (at["left"] - at["embedded"]) / len(layers)
    found.layer_backward_s = _backward_s(*ends["left"]) / len(layers)
    found.embed_backward_s = _backward_s(*ends["embedded"])
    kept = mask_of(made.lengths, width=found.rows_ND.shape[1])
    found.rows_ND = found.rows_ND[kept].contiguous()
    return found


def _backward_s(h_BTD: Tensor, leaf_BTD: Tensor) -> float:
    began_s = _clock_s()
    torch.autograd.backward(h_BTD, leaf_BTD.grad)
    return _clock_s() - began_s


def _hidden(args: tuple[Tensor, ...], kwargs: dict[str, object]) -> Tensor:
    hidden = args[0] if args else kwargs["hidden_states"]
    assert isinstance(hidden, Tensor), "a layer of our families takes the hidden state first"
    return hidden


def _first(output: object) -> Tensor:
    found = output[0] if isinstance(output, tuple) else output
    assert isinstance(found, Tensor), "a layer of our families returns the hidden state first"
    return found


def _update_s(weights: Iterable[nn.Parameter], *, optimiser: OptimiserSpec) -> float:
    """The optimiser's work on copies of `weights`."""
    copied = [nn.Parameter(weight.detach().clone()) for weight in weights]
    schedule = ScheduleSpec("constant", 0, 1 + _ROUNDS)
    stepper = build_stepper(copied, optimiser=optimiser, schedule=schedule)
    seconds = []
    for _ in range(1 + _ROUNDS):
        for weight in copied:
            weight.grad = torch.ones_like(weight)
        began_s = _clock_s()
        stepper.step()
        seconds.append(_clock_s() - began_s)
    return statistics.median(seconds[1:])


def _codec(name: str, rows_ND: Tensor, *, basis: Basis | None) -> tuple[float, float, float, float]:
    codec = build(name, basis=basis if needs_basis(name) else None)
    rows, width = rows_ND.shape
    parts = codec.encode(rows_ND)
    decoded_ND = codec.decode(parts, rows=rows, width=width)
    encode_s = _median_s(lambda: codec.encode(rows_ND))
    decode_s = _median_s(lambda: codec.decode(parts, rows=rows, width=width))
    return (
        rows_ND.nbytes / sum(len(part.data) for part in parts),
        float((decoded_ND - rows_ND).norm() / rows_ND.norm()),
        rows_ND.nbytes / 1e6 / max(encode_s, 1e-9),
        rows_ND.nbytes / 1e6 / max(decode_s, 1e-9),
    )


def _median_s(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_ROUNDS):
        began_s = _clock_s()
        work()
        seconds.append(_clock_s() - began_s)
    return statistics.median(seconds)


def _message(policy: Policy, batches: Sequence[Batch], *, width: int) -> tuple[float, float]:
    """Seconds through a real gate, log on disk included, without a codec; per float32 byte.

    Nothing for a policy that lets no such rows out: the run itself would not begin.
    """
    rounds = 3 * len(batches)
    with tempfile.TemporaryDirectory() as name:
        try:
            release = _gate(policy, Path(name), width=width)
            points: dict[float, list[float]] = {}
            for i in range(rounds):
                made = batches[i % len(batches)]
                rows_ND = torch.randn((sum(made.lengths), width))
                began_s = time.perf_counter()
                release(rows_ND, made, i, rounds)
                points.setdefault(float(rows_ND.nbytes), []).append(time.perf_counter() - began_s)
        except RefusedError:
            return 0.0, 0.0
    # The quickest: waiting for the disk is part of it, other programs are not.
    line = Line.through({size: min(seconds) for size, seconds in points.items()})
    return line.fixed_s, line.each_s


def _gate(policy: Policy, folder: Path, *, width: int) -> Callable[[Tensor, Batch, int, int], None]:
    """A trusted party's gate in the middle of a run with nobody."""
    me, peer = (
        PartyName(federation="plan.invalid", party="nobody", role=role)
        for role in (Role.TRUSTED, Role.COMPUTE)
    )
    session = Session(me=Role.TRUSTED, peer=Role.COMPUTE)
    offer = _offer(width)
    log = Log.open(
        folder / "log", origin=me.dns, signer=Keys.obtain(folder / "keys").log, clock=time.time
    )
    gate = Gate.open(
        policy,
        log=log,
        session=session,
        me=me,
        peer=peer,
        binding="0" * 64,
        offer=offer,
        software="plan",
    )
    gate.release(Kind.OFFER, meta=offer)
    session.check(Kind.ACCEPT, Accept((), (), 0), seq=1)
    gate.release(Kind.RESUME, meta=Resume(0, 0))
    session.check(Kind.READY, Empty(), seq=2)
    codec = build("identity")

    def release(rows_ND: Tensor, made: Batch, i: int, of: int) -> None:
        gate.release(
            Kind.ACTIVATION,
            meta=StepTensor(
                step=0,
                micro_batch=i,
                micro_batches=of,
                phase="train",
                width=made.inputs["input_ids"].shape[1],
                packed=True,
                lengths=made.lengths,
                reply_to=0,
            ),
            tensor=rows_ND,
            codec=codec,
            private=Private(
                ids=made.inputs["input_ids"].numpy(),
                labels=tuple(labels.numpy() for labels in made.labels.values()),
                lengths=made.lengths,
            ),
        )

    return release


def _offer(width: int) -> Offer:
    none = BottleneckSpec("none", 0)
    return Offer(
        run="plan",
        conversation="0" * 32,
        job="0" * 64,
        salt="0" * 64,
        purpose="train",
        mode="full",
        returns_input_gradient=True,
        model=TrunkModel("bert", {"width": width}),
        cut=CutSpec(1, 2, none, none),
        codecs=CodecSpec("identity", "identity", "identity", "identity"),
        optimiser=OptimiserSpec("sgd", 0.0, 0.0, 0.0, 0.0, 1e-8),
        schedule=ScheduleSpec("constant", 0, 1),
        seed=0,
        layers="0" * 64,
        bottlenecks="0" * 64,
        bases="0" * 64,
        held=(),
    )
