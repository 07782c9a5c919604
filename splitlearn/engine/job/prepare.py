"""From a job file to a run that is ready to start: data read, model cut, offer written.

Nothing here talks to a peer. Whatever is wrong with the files is found here, before anything starts.
"""

# B batch, T tokens

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.engine.job.claim import Claim, claim_folder
from splitlearn.engine.job.examples import Data, data_of, protected
from splitlearn.engine.job.modes import adapt_own, lora_of, side_of
from splitlearn.engine.job.public import codec_bases, cut_bases, tapped_bases
from splitlearn.engine.payloads.bases import state_of
from splitlearn.engine.payloads.noise import LabelNoise
from splitlearn.engine.state.device import find_device
from splitlearn.engine.state.seeds import offer_seed
from splitlearn.engine.trusted.line import Hop
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.manifest import Job
from splitlearn.manifest.cuts import BottleneckTable
from splitlearn.manifest.hops import codecs_at, returns_at
from splitlearn.policy import Policy, foresee, plan_of_offer
from splitlearn.roles import Kind
from splitlearn.split import (
    GROUPS,
    Bottleneck,
    Cut,
    PcaBasis,
    Trunk,
    adapt,
    digest,
    factor,
    freeze,
    freeze_trunk,
    merged,
    own_memory,
    place,
    put_side,
    reads_padding,
    spec_of,
    split_chain,
    tap,
    trained_state,
    trunk_blocks,
    trunk_model,
    trunk_state,
)
from splitlearn.split.anatomy import depth_of, family_of
from splitlearn.split.stacks import parts_of
from splitlearn.wire.messages import (
    CodecSpec,
    CodecStage,
    Detail,
    Hops,
    LoraSpec,
    Neighbour,
    Offer,
    OptimiserSpec,
    ScheduleSpec,
    SideSpec,
    TrunkModel,
)

__all__ = [
    "Prepared",
    "check_policy",
    "prepare",
    "specs",
    "unsplit",
]


@dataclass(frozen=True)
class Prepared:
    """A run and its data. model: the local part, as `run.local` is. cut: of the whole trunk, whoever
    hosts it. bases: of its "pca" cuts.
    """

    run: TrustedRun
    data: Data
    cut: Cut
    model: PreTrainedModel = field(repr=False)
    bases: Mapping[str, PcaBasis] = field(repr=False)


def prepare(job: Job) -> Prepared:
    """Read, cut, freeze and describe. ManifestError for whatever does not fit.

    The run folder is claimed for these inputs: a folder that holds another run is refused.
    """
    device = find_device(job.run.device, precision=job.run.precision, file=job.file)
    data, model = data_of(job)
    cut = _cut(job, model)
    job.spans(layers=depth_of(model))
    _check_task(job, model)
    _check_tied(job, model)
    blueprint = trunk_model(model)
    bases = dict(cut_bases(job, model, cut, data.tokenizer))
    in_codecs = dict(codec_bases(job, model, cut, data.tokenizer))
    side = side_of(job, model, cut)
    tapped = {} if side is None else dict(tapped_bases(job, model, side, data.tokenizer))
    factor(model, cut=cut, bases=bases)
    lora = lora_of(job, model, cut)
    local, trunks = split_chain(model, cut=cut, starts=job.starts, direct=job.direct)
    if lora is not None:
        adapt_own(job, local, cut, lora)
    if side is not None:
        trunks = (_beside(job, local, trunks[0], side, tapped),)
    freeze(local, cut=cut, mode=job.cut.mode, train_bottom=job.cut.train_bottom)
    claim = claim_folder(job)
    parts = list(zip(parts_of(model, cut=cut, starts=job.starts), trunks, strict=True))
    hops = [
        _hop(
            job,
            part,
            trunk,
            party=party,
            model=blueprint,
            bases={kind: basis for kind, basis in in_codecs.items() if _ends(kind, party, parts)},
            claim=claim,
            steps=data.steps.total,
            lora=lora,
            side=side,
        )
        for party, (part, trunk) in enumerate(parts)
    ]
    run = TrustedRun(
        offer=hops[0].offer,
        local=local,
        groups=hops[0].groups,
        entrance=hops[0].entrance,
        exit=hops[0].exit,
        further=tuple(hops[1:]),
        packed=not reads_padding(model),
        every=job.checkpoint.every_steps,
        deadline_s=job.run.deadline_s,
        noise=_noise(job, data),
        order=job.schedule.order,
        in_flight=job.schedule.in_flight,
        overlap=job.schedule.overlap,
        cache_bytes=job.codec.cache_mb * 2**20,
        linking=bytes.fromhex(claim.labels),
        clip_norm=job.optimiser.clip_norm,
        device=device,
    )
    data = protected(job, data, secret=bytes.fromhex(claim.labels))
    return Prepared(run=run, data=data, cut=cut, model=local, bases=bases)


def _ends(kind: Kind, party: int, parts: Sequence[object]) -> bool:
    """Whether the basis for this kind is of that party's conversation: they are of the outer ends."""
    return party == (0 if kind is Kind.ACTIVATION else len(parts) - 1)


def _hop(
    job: Job,
    cut: Cut,
    trunk: Trunk,
    *,
    party: int,
    model: TrunkModel,
    bases: Mapping[Kind, PcaBasis],
    claim: Claim,
    steps: int,
    lora: LoraSpec | None,
    side: SideSpec | None,
) -> Hop:
    """What compute party number `party` is asked to do. cut, trunk: its own part."""
    groups: dict[str, dict[str, Tensor]] = {g: trunk_state(trunk, group=g) for g in GROUPS}
    groups["bases"] = state_of(bases)
    if lora is not None:
        adapt(trunk_blocks(trunk), lora)
        freeze_trunk(trunk, mode=job.cut.mode)
        trained = trained_state(trunk)
        groups["adapters"] = {n: t for n, t in trained.items() if n not in groups["bottlenecks"]}
    optimiser, schedule = specs(job, steps=steps)
    width = trunk.config.hidden_size
    offer = Offer(
        run=job.run.name,
        conversation="0" * 32,  # the engine draws one for each conversation
        job=job.digest(),
        salt=claim.salt_of(party),
        purpose="train",
        mode=job.cut.mode,
        returns_input_gradient=returns_at(job, party=party),
        model=model,
        cut=spec_of(cut),
        codecs=CodecSpec(**codecs_at(job, party=party)),
        optimiser=optimiser,
        schedule=schedule,
        seed=offer_seed(job.run.seed, party=party),
        layers=digest(groups["layers"]),
        bottlenecks=digest(groups["bottlenecks"]),
        bases=digest(groups["bases"]),
        held=(),
        detail=Detail(
            lora=lora,
            side=side,
            repeats=job.cut.keeps_outputs,
            stages=_stages(job, party=party, steps=steps),
            clips=job.clips_trunk,
            memory_trains=trunk.crossed and job.cut.trains_memory,
            hops=_hops(job, party=party, claim=claim),
        ),
    )
    back = cut.exit(width) if side is None else len(side.taps) * side.rank
    return Hop(offer, groups, cut.entrance(width), back)


def _hops(job: Job, *, party: int, claim: Claim) -> Hops | None:
    """Whom compute party number `party` has next to it, where they send to one another."""
    if not job.direct:
        return None

    def neighbour(other: int) -> Neighbour | None:
        if not 0 <= other < len(job.peers):
            return None
        # The engine draws a bridge for each conversation.
        salt = claim.salt_of_hop(max(party, other))
        return Neighbour(job.peers[other].party, "0" * 32, salt)

    return Hops(neighbour(party - 1), neighbour(party + 1))


def _stages(job: Job, *, party: int, steps: int) -> tuple[CodecStage, ...]:
    """Later codecs by their first step; ManifestError for a stage that would begin with no step."""
    made = list[CodecStage]()
    for stage, codec in zip(job.codec.stage, job.codec.later, strict=True):
        first = stage.step(total=steps)
        if first >= steps or (made and first <= made[-1].step):
            raise job.fault(
                "codec.stage.after",
                f"is {stage.after}, which is step {first} of {steps} here and leaves a stage without a step; "
                "lower it, or leave the stage out",
            )
        made.append(CodecStage(first, CodecSpec(**codecs_at(job, party=party, codec=codec))))
    return tuple(made)


def _beside(
    job: Job,
    local: PreTrainedModel,
    trunk: Trunk,
    side: SideSpec,
    bases: Mapping[int, PcaBasis],
) -> Trunk:
    """Put a network beside the trunk into the local part; the trunk with its taps."""
    basis, table = bases[side.taps[-1]], job.cut.side
    put_side(local, side, width=table.width, basis=basis, seed=job.run.seed)
    return tap(trunk, side, bases=bases)


def unsplit(job: Job, *, beside: bool = True) -> tuple[Data, PreTrainedModel]:
    """The same data and the same model, whole and without bottlenecks, the same parts frozen.

    beside: in mode "side", with its network; else the layers alone, as in mode "features".
    """
    data, model = data_of(job)
    cut, mode = _cut(job, model), job.cut.mode
    whole = Cut(cut.first, cut.last)
    side = side_of(job, model, whole) if beside else None
    if (lora := lora_of(job, model, whole)) is not None:
        adapt_own(job, model, whole, lora)
    if side is not None:
        tapped = dict(tapped_bases(job, model, side, data.tokenizer))
        local, (trunk,) = split_chain(model, cut=whole, starts=())
        trunk = _beside(job, local, trunk, side, tapped)
        model = merged(local, trunk=trunk, cut=whole)
    elif mode == "side":
        mode = "features"
    freeze(model, cut=whole, mode=mode, train_bottom=job.cut.train_bottom)
    own_memory(model)  # as a split model's weights lie, so that the bits are the same
    return data, model


def specs(job: Job, *, steps: int) -> tuple[OptimiserSpec, ScheduleSpec]:
    """Optimiser and schedule as an offer names them."""
    optimiser, schedule = job.optimiser, job.schedule
    return (
        OptimiserSpec(
            name=optimiser.name,
            learning_rate=optimiser.learning_rate,
            weight_decay=optimiser.weight_decay,
            beta1=optimiser.beta1,
            beta2=optimiser.beta2,
            epsilon=optimiser.epsilon,
        ),
        ScheduleSpec(
            name=schedule.name,
            warmup_steps=schedule.warmup_steps,
            total_steps=steps,
            staleness=schedule.staleness,
        ),
    )


def check_policy(policy: Policy, *offers: Offer) -> None:
    """RefusedError, before anything is sent, if the job needs a message that no rule allows.

    offers: to each compute party.
    """
    for offer in offers:
        for verdict in foresee(policy, plan_of_offer(offer)):
            if verdict.certain and verdict.refusals:
                raise verdict.refusals[0]


def _check_task(job: Job, model: PreTrainedModel) -> None:
    """Other heads on a decoder read their last token by the ids; nothing here has tried them."""
    family = family_of(model)
    writes = "causal-language-modelling" if family.causal else "sequence-to-sequence"
    if (family.causal or family.walker) and job.model.task != writes:
        raise job.fault(
            "model.task", f"is {job.model.task}; of a {family.model_type} model it takes {writes}"
        )


def _check_tied(job: Job, model: PreTrainedModel) -> None:
    """Stale steps add a tied head's gradients in another order than one model would."""
    tied = getattr(model.config, "tie_word_embeddings", False) and job.writes
    if tied and job.schedule.staleness and job.cut.train_bottom:
        raise job.fault(
            "schedule.staleness",
            f"is {job.schedule.staleness}, and this model's head is its embeddings, which train at both "
            "ends of a step; take 0, or cut.train_bottom = false",
        )


def _noise(job: Job, data: Data) -> LabelNoise | None:
    clip, noise = job.privacy.gradient_clip, job.privacy.gradient_noise
    if clip is None or noise is None:
        return None
    return LabelNoise(clip=clip, noise=noise, steps_per_epoch=data.steps.per_epoch)


def _cut(job: Job, model: PreTrainedModel) -> Cut:
    return place(
        bottom=job.cut.bottom,
        top=job.cut.top,
        layers=depth_of(model),
        width=model.config.hidden_size,
        lower=_bottleneck(job.cut.lower),
        upper=_bottleneck(job.cut.upper),
    )


def _bottleneck(table: BottleneckTable) -> Bottleneck:
    return Bottleneck(table.method, table.rank)
