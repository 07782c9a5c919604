"""What a compute party has in hand for one run: a trunk ready for work, built from an offer, and its state.

An offer comes from a peer; what no model of ours fits is refused before anything takes memory.
"""

from dataclasses import dataclass, field

from torch import Tensor

from splitlearn.codecs import Codec
from splitlearn.engine.compute.bridges import Bridges
from splitlearn.engine.payloads.coders import Coders, spans_of
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.engine.state.optimiser import Stepper, build_stepper
from splitlearn.engine.state.versions import Versions, staleness_of
from splitlearn.errors import SessionError, WireError
from splitlearn.roles import Kind
from splitlearn.split.blueprint import build_trunk
from splitlearn.split.cache import MemoryCache, TrunkCache, check_cache
from splitlearn.split.crossing import Beside
from splitlearn.split.lora import check_targets
from splitlearn.split.side import tap
from splitlearn.split.trunk import Trunk
from splitlearn.wire.messages import Offer, StepTensor

__all__ = ["Loaded", "build_loaded", "go_to"]


@dataclass
class Loaded:
    """A trunk ready for work, with what belongs to it."""

    offer: Offer
    trunk: Trunk
    checkpoints: Checkpoints
    agreed: Coders | None = None
    stepper: Stepper = field(default_factory=lambda: Stepper(None, None))
    # The trunk's weights by version, from RESUME on.
    versions: Versions = field(init=False)
    # By step and micro-batch, of the steps under way: what entered the trunk, the last of it its own input,
    # its output, and where they belong.
    graphs: dict[tuple[int, int], tuple[tuple[Tensor, ...], Tensor, StepTensor]] = field(
        default_factory=dict
    )
    # Of the texts that are gone on with, until others begin or the conversation ends; and their memory,
    # where the trunk is a decoder's.
    cache: TrunkCache | MemoryCache | None = None
    beside: Beside | None = None
    # In a direct chain: the neighbours.
    bridges: Bridges | None = None

    @property
    def coders(self) -> Coders:
        assert self.agreed is not None, "a step before the parties agreed"
        return self.agreed

    def codec(
        self, kind: Kind, meta: StepTensor, *, samples: tuple[bytes, ...] | None = ()
    ) -> Codec:
        """The codec of a message about the examples of an activation, whose metadata are `meta`."""
        spans = spans_of(meta, lengths=meta.lengths)
        return self.coders.of(kind, phase=meta.phase, step=meta.step, samples=samples, spans=spans)

    def takes_memory(self, meta: StepTensor) -> bool:
        """Whether a memory comes with an activation: of texts that are gone on with, when they begin."""
        later = meta.phase == "generate" and meta.lengths[0] > meta.width
        return self.trunk.crossed and not later

    def going_on(self, meta: StepTensor) -> TrunkCache | MemoryCache | None:
        """The cache that new tokens of texts belong to; none in other phases, and none of an encoder.

        WireError where it would be too large. That it holds the tokens before, the session has checked.
        """
        if meta.phase != "generate" or not (self.trunk.causal or self.trunk.crossed):
            return None
        texts, tokens = len(meta.lengths), meta.lengths[0]
        if self.cache is None or tokens == meta.width:
            self.cache, self.beside = self.trunk.empty_cache(), None
        told = 0 if meta.memory is None else meta.memory.width
        memory = told if self.beside is None else self.beside.h_BSD.shape[1]
        layers = len(self.trunk.layers)
        check_cache(self.trunk.config, layers=layers, texts=texts, tokens=tokens, memory=memory)
        return self.cache

    def stepped(self, step: int) -> None:
        """Step number `step` is over here."""
        if self.bridges is not None:
            self.bridges.stepped(step)

    @property
    def trains(self) -> bool:
        return self.offer.trains_trunk and self.offer.purpose == "train"


def build_loaded(offer: Offer, checkpoints: Checkpoints) -> Loaded:
    """The offered trunk without weights; WireError for an offer that no model of ours fits."""
    trunk = build_trunk(offer.model, cut=offer.cut)
    if trunk.crossed and offer.detail.side is not None:
        raise WireError(
            f"the peer offers a {offer.model.model_type} in mode {offer.mode}; layers that attend to a "
            "memory are for any mode but side"
        )
    if offer.purpose == "generate" and not trunk.writes:
        raise WireError(
            f"the peer offers to go on with texts by a {offer.model.model_type} model, which sees the "
            "tokens after each and has no decoder; only one with a decoder can"
        )
    if offer.detail.memory_trains and not (trunk.crossed and offer.returns_input_gradient):
        raise WireError(
            "the peer offers to give back gradients by a memory where there is none, or none by its input"
        )
    if trunk.crossed and offer.detail.hops is not None:
        raise WireError(
            f"the peer offers a {offer.model.model_type} in a direct chain; nobody hands a memory on over a "
            "hop"
        )
    if offer.detail.lora is not None:
        check_targets(trunk, offer.detail.lora)
    if offer.detail.side is not None:
        trunk = tap(trunk, offer.detail.side, bases={})
    return Loaded(offer=offer, trunk=trunk, checkpoints=checkpoints)


def go_to(loaded: Loaded, step: int) -> None:
    """Put trunk and optimiser into the state after `step` steps.

    Step 0 is the offered weights as they are, never a checkpoint: another run of the same name may
    have left its own here.
    """
    offer, checkpoints = loaded.offer, loaded.checkpoints
    loaded.stepper = build_stepper(
        loaded.trunk.parameters(), optimiser=offer.optimiser, schedule=offer.schedule
    )
    if step and step not in checkpoints.held():
        raise SessionError(
            f"the trusted party resumes at step {step}; we hold {checkpoints.held() or 'none'}"
        )
    if step:
        checkpoints.load(step, model=loaded.trunk, stepper=loaded.stepper)
    loaded.versions = Versions(loaded.trunk, staleness=staleness_of(offer), step=step)
    if offer.purpose == "train":
        checkpoints.drop_after(step)
        if not step:
            checkpoints.save(0, model=loaded.trunk, stepper=loaded.stepper, extra={})
