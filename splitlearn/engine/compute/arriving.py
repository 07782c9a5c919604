"""How a compute party comes by its trunk's weights: from where they lie already, or from its peer.

Whatever they come from, they are taken only under the digest that the offer names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from torch import Tensor

from splitlearn.engine.conversation.talk import Talk
from splitlearn.engine.payloads.kept import DEFAULT_BYTES
from splitlearn.engine.payloads.weights import Inlet, keep, load_kept
from splitlearn.errors import IdentityError, ManifestError
from splitlearn.roles import Kind
from splitlearn.split.trunk import Trunk
from splitlearn.split.weights import (
    GROUPS,
    Group,
    digest,
    load_layers_from_folder,
    load_weights,
    trunk_groups,
    trunk_state,
)
from splitlearn.wire.messages import Offer, Resume

__all__ = ["RunPlace", "Sent", "fill", "take_weights"]

Sent: TypeAlias = Group | Literal["bases"]


@dataclass(frozen=True)
class RunPlace:
    """Where a compute party keeps one run, and where weights may lie already.

    checkpoints: the run's own folder; received: weights kept under their digest; models: model
    folders of the party, which may hold the very layers. cache_bytes: for rows that codecs keep.
    """

    checkpoints: Path
    received: Path
    models: tuple[Path, ...] = ()
    cache_bytes: int = DEFAULT_BYTES


def fill(trunk: Trunk, offer: Offer, place: RunPlace) -> tuple[Group, ...]:
    """Take the weights that lie here under the offered digest; the groups that have to be sent."""
    groups = trunk_groups(trunk)
    return tuple(g for g in GROUPS if groups[g] and not _filled(trunk, offer, place, group=g))


def _filled(trunk: Trunk, offer: Offer, place: RunPlace, *, group: Group) -> bool:
    wanted = offer.layers if group == "layers" else offer.bottlenecks
    for state in _candidates(offer, place, group=group, name=wanted):
        if digest(state) == wanted:
            load_weights(trunk, state, group=group)
            return True
    return False


def _candidates(
    offer: Offer, place: RunPlace, *, group: Group, name: str
) -> Iterator[dict[str, Tensor]]:
    kept = load_kept(place.received, name=name)
    if kept is not None:
        yield kept
    if group == "layers":
        for folder in place.models:
            try:
                yield load_layers_from_folder(folder, model=offer.model, cut=offer.cut)
            except ManifestError:  # another model: the trusted party sends its own
                continue


def take_weights(
    talk: Talk,
    trunk: Trunk,
    offer: Offer,
    place: RunPlace,
    needs: Sequence[Sent],
    *,
    expected: Mapping[str, Tensor],
) -> tuple[int, dict[str, Tensor]]:
    """Receive what was asked for, until RESUME names the step; that step, and the bases if asked for.

    expected: names and shapes of the bases.
    """
    wanted: dict[Sent, tuple[str, Mapping[str, Tensor]]] = {
        "layers": (offer.layers, trunk_state(trunk, group="layers")),
        "bottlenecks": (offer.bottlenecks, trunk_state(trunk, group="bottlenecks")),
        "bases": (offer.bases, expected),
    }
    inlet = Inlet({name: t for group in needs for name, t in wanted[group][1].items()})
    while (frame := talk.hear(Kind.WEIGHTS, Kind.RESUME)).kind is Kind.WEIGHTS:
        inlet.take(talk.parts(frame))
    whole = inlet.state()
    bases: dict[str, Tensor] = {}
    for group in needs:
        agreed, shapes = wanted[group]
        state = {name: whole[name] for name in shapes}
        if digest(state) != agreed:
            raise IdentityError(
                f"the {group} weights that {talk.channel.peer} sent have another digest than its "
                "offer names; the trusted party has to check its model folder"
            )
        keep(place.received, state, name=agreed)
        if group == "bases":
            bases = state
        else:
            load_weights(trunk, state, group=group)
    assert isinstance(frame.meta, Resume)
    talk.gate.witness.peer_holds(frame.meta.witnessed)
    return frame.meta.step, bases
