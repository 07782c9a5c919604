"""Who takes part, what they say to each other, and who may say what to whom.

Tables only. A message kind that is not in `MAY_SEND` cannot be sent by anybody.
"""

from enum import StrEnum

__all__ = ["CODES", "KINDS", "MAY_SEND", "Kind", "Role", "may_send"]


class Role(StrEnum):
    """What a party does in a federation. One certificate carries one role."""

    TRUSTED = "trusted"
    COMPUTE = "compute"
    GENERATOR = "generator"
    DISCRIMINATOR = "discriminator"
    ENCODER = "encoder"
    DECODER = "decoder"
    AUDITOR = "auditor"
    REGISTRAR = "registrar"


class Kind(StrEnum):
    """A message between two parties. Tensor-bearing kinds are marked with what they carry."""

    OFFER = "offer"  # the job, as far as the peer has to know it
    ACCEPT = "accept"  # what the peer already holds
    WEIGHTS = "weights"  # tensors: a shard of the trunk's weights
    RESUME = "resume"  # the step both sides go on from
    READY = "ready"
    ACTIVATION = "activation"  # tensor: bottom's output into the trunk, or an encoder's output
    OUTPUT = "output"  # tensor: trunk's output, into the top
    GRADIENT = "gradient"  # tensor: loss by trunk's output, or by an encoder's
    INPUT_GRADIENT = "input_gradient"  # tensor: loss by trunk's input
    CHECKPOINT = "checkpoint"  # save the state after this step
    SAVED = "saved"
    FINISH = "finish"
    CLOSED = "closed"
    SETTLE = "settle"  # signed head of my log, and a receipt for what you sent
    SETTLED = "settled"  # the same of mine, and a countersignature
    COUNTERSIGNED = "countersigned"
    ROUND = "round"  # the terms under which a generator streams
    ENLIST = "enlist"  # the language and vocabulary that it has
    ASK = "ask"  # batches wanted so far: the only thing that flows back
    IDS = "ids"  # token ids, corrupted, and which of them were replaced
    ENOUGH = "enough"  # the round is over
    REPORT = "report"  # what the generator did in it, as totals
    PAIRING = "pairing"  # the terms under which an encoder serves a decoder
    SAMPLES = "samples"  # tensors: keyed hashes of sample ids
    WANT = "want"  # the samples whose rows are wanted next
    NORM = "norm"  # how long the gradient of the trunk's weights is, where it is clipped
    SCALE = "scale"  # what all parties multiply their gradients by
    BRIDGE = "bridge"  # the terms under which two compute parties of a chain are neighbours


# The byte that stands for a kind in a frame header. Never renumber; only append.
CODES: dict[Kind, int] = {kind: code for code, kind in enumerate(Kind, start=1)}
KINDS: dict[int, Kind] = {code: kind for kind, code in CODES.items()}

_DOWN = (Role.TRUSTED, Role.COMPUTE)
_UP = (Role.COMPUTE, Role.TRUSTED)
# From one compute party of a chain to the next, and back: which end says what is the session's.
_ALONG = (Role.COMPUTE, Role.COMPUTE)
_STREAM = (Role.GENERATOR, Role.DISCRIMINATOR)
_BACK = (Role.DISCRIMINATOR, Role.GENERATOR)
_ASKING = (Role.DECODER, Role.ENCODER)
_SERVING = (Role.ENCODER, Role.DECODER)

MAY_SEND: dict[Kind, frozenset[tuple[Role, Role]]] = {
    Kind.OFFER: frozenset({_DOWN}),
    Kind.ACCEPT: frozenset({_UP, _SERVING, _ALONG}),
    Kind.WEIGHTS: frozenset({_DOWN, _UP}),
    Kind.RESUME: frozenset({_DOWN, _ASKING, _ALONG}),
    Kind.READY: frozenset({_UP, _SERVING, _ALONG}),
    Kind.ACTIVATION: frozenset({_DOWN, _SERVING, _ALONG}),
    Kind.OUTPUT: frozenset({_UP}),
    Kind.GRADIENT: frozenset({_DOWN, _ASKING}),
    Kind.INPUT_GRADIENT: frozenset({_UP, _ALONG}),
    Kind.CHECKPOINT: frozenset({_DOWN, _ASKING}),
    Kind.SAVED: frozenset({_UP, _SERVING}),
    Kind.FINISH: frozenset({_DOWN, _ASKING, _ALONG}),
    Kind.CLOSED: frozenset({_UP, _BACK, _SERVING, _ALONG}),
    Kind.SETTLE: frozenset({_DOWN, _STREAM, _ASKING, _ALONG}),
    Kind.SETTLED: frozenset({_UP, _BACK, _SERVING, _ALONG}),
    Kind.COUNTERSIGNED: frozenset({_DOWN, _STREAM, _ASKING, _ALONG}),
    Kind.ROUND: frozenset({_BACK}),
    Kind.ENLIST: frozenset({_STREAM}),
    Kind.ASK: frozenset({_BACK}),
    Kind.IDS: frozenset({_STREAM}),
    Kind.ENOUGH: frozenset({_BACK}),
    Kind.REPORT: frozenset({_STREAM}),
    Kind.PAIRING: frozenset({_ASKING}),
    Kind.SAMPLES: frozenset({_ASKING, _SERVING}),
    Kind.WANT: frozenset({_ASKING}),
    Kind.NORM: frozenset({_UP}),
    Kind.SCALE: frozenset({_DOWN}),
    Kind.BRIDGE: frozenset({_ALONG}),
}


def may_send(kind: Kind, *, sender: Role, receiver: Role) -> bool:
    """Whether `sender` may say `kind` to `receiver`.

    >>> may_send(Kind.ACTIVATION, sender=Role.TRUSTED, receiver=Role.COMPUTE)
    True
    >>> may_send(Kind.ACTIVATION, sender=Role.COMPUTE, receiver=Role.TRUSTED)
    False
    """
    return (sender, receiver) in MAY_SEND[kind]
