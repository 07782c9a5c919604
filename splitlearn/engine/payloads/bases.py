"""The bases that codecs work in: fitted to public text by one party, known to both by one digest.

They travel as a group of weights beside the trunk's own. Activations and outputs have one each;
gradients gain next to nothing from one and have none.
"""

# D width

from collections.abc import Mapping

import torch
from torch import Tensor

from splitlearn.codecs import Basis, Codec, build
from splitlearn.errors import WireError
from splitlearn.manifest import links, needs_basis
from splitlearn.roles import Kind
from splitlearn.split import PcaBasis
from splitlearn.wire.messages import Offer

__all__ = ["IN_BASIS", "codecs_of", "expected_bases", "state_of"]

IN_BASIS = (Kind.ACTIVATION, Kind.OUTPUT)


def state_of(bases: Mapping[Kind, PcaBasis]) -> dict[str, Tensor]:
    """Tensors by name, as they are digested and sent.

    Vectors in float16: half the bytes, and 0.0003 of error where codecs are asked for 0.001 at the
    least. The mean may hold numbers that float16 does not.
    """
    out = {}
    for kind, basis in bases.items():
        out[f"{kind.value}.mean"] = basis.mean.contiguous()
        out[f"{kind.value}.vectors"] = basis.components.half().contiguous()
    return out


def expected_bases(offer: Offer, *, width: int) -> dict[str, Tensor]:
    """Names and shapes of the bases that an offer's codecs work in, on the meta device.

    WireError where an offer names a codec that there is not, or for gradients one in a basis or one of
    what changed.
    """
    out = {}
    for kind in _STEP_KINDS:
        name = getattr(offer.codecs, kind.value)
        if links(name) and kind not in IN_BASIS:
            raise WireError(f"the peer names codec {name} for {kind.value}s, which it is not for")
        if not needs_basis(name) or kind not in IN_BASIS:
            build(name)
            continue
        out[f"{kind.value}.mean"] = torch.empty(width, device="meta")
        out[f"{kind.value}.vectors"] = torch.empty(width, width, dtype=torch.float16, device="meta")
    for stage in offer.detail.stages:
        for kind in _STEP_KINDS:
            name = getattr(stage.codecs, kind.value)
            # What a stage did not name is as before it.
            if (links(name) or needs_basis(name)) and name != getattr(offer.codecs, kind.value):
                raise WireError(
                    f"the peer names codec {name} for {kind.value}s of a later stage, which it is not for"
                )
            if not needs_basis(name):
                build(name)
    return out


def codecs_of(names: Mapping[str, str], state: Mapping[str, Tensor]) -> dict[Kind, Codec]:
    """The codec of each kind of tensor. names: by kind, as an offer has them; state: of the bases."""
    out: dict[Kind, Codec] = {}
    for kind in _STEP_KINDS:
        named, mean = names[kind.value], state.get(f"{kind.value}.mean")
        basis = None
        if mean is not None and needs_basis(named):
            basis = Basis(mean, state[f"{kind.value}.vectors"].float())
        out[kind] = build(named, basis=basis)
    return out


_STEP_KINDS = (*IN_BASIS, Kind.GRADIENT, Kind.INPUT_GRADIENT)
