"""What does not change while a trusted party's run lives: the job, cut and prepared, as its engine has it."""

from dataclasses import dataclass, field

from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.channel.mailbox import DEFAULT_WINDOW
from splitlearn.engine.payloads.kept import DEFAULT_BYTES
from splitlearn.engine.payloads.noise import LabelNoise
from splitlearn.engine.state.device import CPU, Device
from splitlearn.engine.trusted.line import Hop
from splitlearn.errors import ManifestError
from splitlearn.wire.messages import Offer

__all__ = ["IN_FLIGHT", "TrustedRun", "check_clipping"]

# Activations under way at once, unless the job says otherwise. A job may ask for no more than half
# the channel's window, so that neither party can fill the other's credit with answers while it waits
# for its own: as many gradients are under way as activations. In a chain the parties share them.
IN_FLIGHT = DEFAULT_WINDOW // 4


@dataclass(frozen=True)
class TrustedRun:
    """A run, ready to start.

    local: the model with a RemoteStage for each compute party. offer, groups, entrance, exit: what the
    first one is asked to do, as in Hop; purpose, mode, optimiser and schedule of its offer are those of
    all. further: the same of the others, in the order of their layers. packed: whether padding is left
    out; every: steps between checkpoints; noise: on what labels decide, where the job asks for it;
    order, in_flight: schedule of a step's micro-batches, and activations under way at once; overlap:
    whether they are encoded, logged and sent beside the sums. cache_bytes: for rows that codecs keep
    between epochs; linking: the secret behind the pseudonyms of samples. clip_norm: how long the whole
    model's gradient may be at most; where the trunk trains, offers say that it is clipped. device: of
    `local`, which the engine moves there.
    """

    offer: Offer
    local: PreTrainedModel
    groups: dict[str, dict[str, Tensor]]
    entrance: int
    exit: int
    packed: bool
    every: int
    deadline_s: float
    noise: LabelNoise | None = None
    order: str = "1f1b"
    in_flight: int = IN_FLIGHT
    overlap: bool = True
    further: tuple[Hop, ...] = ()
    cache_bytes: int = DEFAULT_BYTES
    linking: bytes = field(default=b"", repr=False)
    clip_norm: float | None = None
    device: Device = CPU

    @property
    def hops(self) -> tuple[Hop, ...]:
        """All compute parties', in the order of their layers."""
        return (Hop(self.offer, self.groups, self.entrance, self.exit), *self.further)


def check_clipping(run: TrustedRun) -> None:
    """A run that clips says so to all whose gradients are clipped."""
    clips = run.clip_norm is not None
    if clips and run.offer.schedule.staleness:
        raise ManifestError("clip_norm needs steps that end before others begin; take staleness 0")
    agreed = clips and run.offer.trains_trunk
    if any(hop.offer.detail.clips is not agreed for hop in run.hops):
        raise ManifestError(
            "clip_norm of a run and clips in the details of its offers have to be given together, where "
            "the trunk trains"
        )
