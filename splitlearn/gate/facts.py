"""What a policy is asked about a message: what is known of it before and after it was written."""

from collections.abc import Sequence

import msgspec

from splitlearn.gate.rows import texts_beside
from splitlearn.manifest.chains import SAMPLES
from splitlearn.policy import STEP_KINDS, Direction, Facts, Private
from splitlearn.roles import Kind, Role
from splitlearn.wire.ids import codec_name
from splitlearn.wire.messages import Ids, Meta, StepTensor
from splitlearn.wire.tensors import Part

__all__ = ["facts_of", "with_bytes"]


def facts_of(
    kind: Kind,
    direction: Direction,
    meta: Meta,
    *,
    peer: Role,
    vocabulary: int,
    private: Private | None,
) -> Facts:
    """What is known of a message before its tensor is looked at.

    vocabulary: of the round, for a generator's batch.
    """
    travelling = meta.lengths if isinstance(meta, StepTensor | Ids) else ()
    lengths = private.lengths if private is not None else travelling
    longest = (*lengths, *travelling, *texts_beside(meta, private))
    facts = Facts(
        direction=direction,
        peer=peer,
        kind=kind,
        examples=max(len(lengths), len(travelling)),
        longest=max(longest, default=0),
        generated=kind is Kind.ACTIVATION
        and isinstance(meta, StepTensor)
        and meta.phase == "generate",
    )
    if isinstance(meta, Ids):
        # As rows of one column: one id for each token.
        name = codec_name(vocabulary)
        return msgspec.structs.replace(facts, codec=name, rows=sum(meta.lengths), columns=1)
    return facts


def with_bytes(facts: Facts, *, parts: Sequence[Part], wire_bytes: int) -> Facts:
    """The same of the message as it is written. wire_bytes: of the whole frame, 0 before there is one."""
    return msgspec.structs.replace(
        facts,
        dtypes=frozenset(part.dtype for part in parts),
        wire_bytes=wire_bytes,
        linked=facts.kind in STEP_KINDS and any(part.name == SAMPLES for part in parts),
    )
