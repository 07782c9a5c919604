"""What a log line says: one frozen struct for each type of record, JSON outside, strict both ways.

A record names what left, to whom and under which rule; it never holds a tensor's values or
statistics, a text, a label, a token id or the run's salt.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from splitlearn.audit.entries import (
    RECORD_VERSION,
    Bytes,
    Conversation,
    Digest,
    Direction,
    Entry,
    PartShape,
    Party,
    Positive,
    Share,
    Signature,
)
from splitlearn.audit.opening import RunOpen
from splitlearn.errors import AuditError
from splitlearn.roles import Kind, Role

__all__ = [
    "MAX_LINE_BYTES",
    "RECORD_VERSION",
    "Checkpointed",
    "Denied",
    "Dp",
    "Entry",
    "Gap",
    "HopHead",
    "Leakage",
    "PartShape",
    "Party",
    "Payload",
    "PeerCheckpoint",
    "PolicyChange",
    "Receipt",
    "Record",
    "Redaction",
    "RunClose",
    "RunOpen",
    "decode",
    "encode",
]

# A run.open with a long policy, or a payload of many weights, takes tens of KiB.
MAX_LINE_BYTES = 4 * 2**20


class Dp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Noise that a gradient was computed with; policy/accounting.py says what it is worth.

    Each example's gradient by its logits was clipped to L2 norm `clip` and got Gaussian noise of
    standard deviation `noise` times that. epoch: an example is in one step of each. unit: all labels
    of one example. relation: those labels replaced by others.
    """

    mechanism: Literal["gaussian"]
    clip: Positive
    noise: Positive
    epoch: Bytes
    unit: Literal["example"]
    relation: Literal["replace-labels"]


class Payload(Entry, frozen=True, kw_only=True, tag="payload"):
    """One message that was let out, or taken in. Appended before it is sent.

    message: its sequence number in the conversation. schema: kind and version of its layout.
    rows, columns: of the tensor it carries, before encoding. examples, longest: lengths, as counts.
    side: names of the metadata fields that travel in clear beside the tensors. wire_bytes: the whole
    frame. commit: HMAC-SHA-256 of the whole frame under the run's salt. binding: SHA-256 of the
    peer's certificate. blob: name of the sealed frame beside the log, where one is kept. dp: the noise in
    it, none where there is none. error: of our own messages, how far what the peer decodes is from the
    tensor, norm of the difference over the norm; none where nothing is lost.
    """

    run: str
    direction: Direction
    me: str
    peer: str
    peer_role: Role
    binding: str
    message: Bytes
    reply_to: Bytes = 0
    step: Bytes | None = None
    micro_batch: Bytes | None = None
    phase: str = ""
    kind: Kind
    schema: str
    codec: str = ""
    rows: Bytes = 0
    columns: Bytes = 0
    examples: Bytes = 0
    longest: Bytes = 0
    side: tuple[str, ...] = ()
    parts: tuple[PartShape, ...] = ()
    wire_bytes: Bytes
    commit: Digest
    blob: Annotated[str, msgspec.Meta(pattern=r"^(withheld|[0-9a-f]{64})\Z")] = "withheld"
    policy: Digest
    verdict: Literal["allow"] = "allow"
    rules: tuple[str, ...]
    dp: Dp | None = None
    # Left out where there is none, as in the records from before there was this field.
    error: Annotated[float, msgspec.Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET


class Denied(Entry, frozen=True, kw_only=True, tag="denied"):
    """A message that was stopped. Rule and shape, never content."""

    run: str
    direction: Direction
    peer: str
    kind: Kind
    rule: str
    policy: Digest
    parts: tuple[PartShape, ...] = ()


class Receipt(Entry, frozen=True, kw_only=True, tag="receipt"):
    """The peer signed that it took in our messages up to `last` of a conversation, with these bytes.

    chain: what the commits of messages 1 to last of direction `out` come to, see audit/receipts.py.
    signature: of the receipt's text by `key`, the peer's verifier key.
    """

    run: str
    conversation: Conversation
    peer: str
    last: Bytes
    chain: Digest
    key: str
    signature: Signature


class PeerCheckpoint(Entry, frozen=True, kw_only=True, tag="peer.checkpoint"):
    """A head of the peer's log, proved to extend the last one, countersigned and kept in peers/.

    key: the peer's verifier key. size, root: the peer's head. mine: size of the newest head of this
    log that the peer has countersigned, 0 for none yet.
    """

    run: str
    conversation: Conversation
    peer: str
    key: str
    size: Bytes
    root: Digest
    mine: Bytes = 0


class HopHead(Entry, frozen=True, kw_only=True, tag="hop.head"):
    """The head of another log of this party, that of what it says to a neighbour in a direct chain.

    conversation: with `neighbour`, a URI. key: verifier key of that log. So whoever countersigns a head of
    this log bears witness to that one, too.
    """

    run: str
    conversation: Conversation
    neighbour: str
    key: str
    size: Bytes
    root: Digest


class PolicyChange(Entry, frozen=True, kw_only=True, tag="policy.change"):
    """A run goes on under another policy than its conversation before. From here on the new one counts."""

    run: str
    before: Digest
    policy: Digest


class Redaction(Entry, frozen=True, kw_only=True, tag="redaction"):
    """The key of a sealed frame was destroyed, so nobody can read it any more. Its record stays.

    record: index of the payload record; blob: its name.
    """

    record: Bytes
    blob: Digest
    why: Literal["request", "retention", "mistake"]


class Leakage(Entry, frozen=True, kw_only=True, tag="leakage"):
    """What the attack suite got out of a run, or of public text before it: a lower bound.

    at: preflight (public text, before the run) or canary (frames of canary batches). suite: its
    version. tokens, labels: what the best attack recovered, top-1 share and AUC, none where there
    was nothing to attack; *_by: its name. scored: tokens it was scored on. report: SHA-256 of the
    report file. limits: of the policy, none where it has none.
    """

    run: str
    at: Literal["preflight", "canary"]
    suite: Bytes
    seed: Bytes
    scored: Bytes
    tokens: Share | None
    tokens_by: str = ""
    labels: Share | None
    labels_by: str = ""
    tokens_limit: Share | None = None
    labels_limit: Share | None = None
    report: Digest


class Checkpointed(Entry, frozen=True, kw_only=True, tag="checkpoint"):
    """A head was about to be signed: the head signed is that of the tree including this record.

    root: hex root of the tree of the `seq` records before this one, so that each line between two
    heads is bound by the log itself as well.
    """

    why: Literal["close", "interval", "records", "step"]
    root: Digest


class Gap(Entry, frozen=True, kw_only=True, tag="gap"):
    """The log was not closed: its process ended by surprise. What follows is a new process.

    torn_bytes: length of an unfinished last line, which was dropped.
    """

    torn_bytes: Bytes


class RunClose(Entry, frozen=True, kw_only=True, tag="run.close"):
    """A conversation ended on purpose: its totals since its run.open, whole frames in bytes."""

    run: str
    outcome: Literal["done", "failed", "interrupted", "refused"]
    messages_out: Bytes
    messages_in: Bytes
    bytes_out: Bytes
    bytes_in: Bytes
    denied: Bytes


Record: TypeAlias = (
    RunOpen
    | Payload
    | Denied
    | Receipt
    | PeerCheckpoint
    | HopHead
    | PolicyChange
    | Redaction
    | Leakage
    | Checkpointed
    | Gap
    | RunClose
)


def encode(record: Record) -> bytes:
    """One line, newline included."""
    return _ENCODER.encode(record) + b"\n"


def decode(line: bytes) -> Record:
    """Read a line without its newline. Raises AuditError if it is not a record of this version."""
    if len(line) > MAX_LINE_BYTES:
        raise AuditError(f"a line of {len(line)} bytes is no record; at most {MAX_LINE_BYTES} are")
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AuditError(f"the line is not a record of version {RECORD_VERSION}: {error}") from None


_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
