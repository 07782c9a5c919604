"""The record of a conversation's beginning: of a cut model, a hop, a round of ids, or a pair."""

import hashlib

import msgspec

from splitlearn.audit.entries import Bytes, Conversation, Digest, Entry, Party
from splitlearn.roles import Kind
from splitlearn.wire.ids import codec_name
from splitlearn.wire.messages import Bridge, Pairing, Round, Terms

__all__ = ["RunOpen"]


class RunOpen(Entry, frozen=True, kw_only=True, tag="run.open"):
    """A conversation begins: code, job, policy, parties. One run may have several, after restarts.

    job: digest of everything that decides the numbers. policy: digest of policy_text, which is the
    whole policy as canonical JSON, so that verdicts can be derived again from the log alone.
    binding: SHA-256 of the peer's certificate. log_key: verifier key of this log's heads.
    conversation: 16 random bytes that both parties' logs have in common; with run, direction and
    number of a message they name it in either log.
    cut: first and last layer of the trunk; bottlenecks: method and rank of the lower and the upper
    cut; layers, bases: digests of the trunk's weights and of its bottlenecks'. codec_bases: of the bases
    that codecs work in. codec_stages: codecs that come after, by first step. vocabulary: number of token
    ids, where this party knows it.

    A conversation in which a generator streams ids has no cut: it has the round's number and the digest
    of the vocabulary in their place. One between two compute parties has the first layer behind it.
    """

    run: str
    conversation: Conversation
    software: str
    me: Party
    peer: Party
    binding: str
    log_key: str
    policy: Digest
    policy_text: str
    job: Digest
    purpose: str
    mode: str
    model: str
    layers: Digest | msgspec.UnsetType = msgspec.UNSET
    bases: Digest | msgspec.UnsetType = msgspec.UNSET
    cut: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET
    bottlenecks: tuple[str, str] | msgspec.UnsetType = msgspec.UNSET
    codecs: dict[str, str]
    codec_bases: Digest | None = None
    codec_stages: dict[str, dict[str, str]] | msgspec.UnsetType = msgspec.UNSET
    vocabulary: int | None = None
    round: Bytes | msgspec.UnsetType = msgspec.UNSET
    vocabulary_digest: Digest | msgspec.UnsetType = msgspec.UNSET
    layer: Bytes | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(
        cls,
        offer: Terms,
        *,
        software: str,
        me: Party,
        peer: Party,
        binding: str,
        log_key: str,
        policy_text: str,
        vocabulary: int | None,
    ) -> "RunOpen":
        """The record of a conversation about `offer`; its salt stays out."""
        opened = cls(
            run=offer.run,
            conversation=offer.conversation,
            software=software,
            me=me,
            peer=peer,
            binding=binding,
            log_key=log_key,
            policy=hashlib.sha256(policy_text.encode()).hexdigest(),
            policy_text=policy_text,
            job=offer.job,
            purpose="pretrain",
            mode="ids",
            model="",
            codecs={},
            vocabulary=vocabulary,
        )
        if isinstance(offer, Bridge):
            return msgspec.structs.replace(
                opened,
                purpose=offer.purpose,
                mode=offer.mode,
                codecs={
                    Kind.ACTIVATION.value: offer.activation,
                    Kind.INPUT_GRADIENT.value: offer.input_gradient,
                },
                layer=offer.layer,
            )
        if isinstance(offer, Pairing):
            return msgspec.structs.replace(
                opened,
                purpose="translate",
                mode="full" if offer.trains else "features",
                codecs={
                    Kind.ACTIVATION.value: offer.activation,
                    Kind.GRADIENT.value: offer.gradient,
                },
            )
        if isinstance(offer, Round):
            return msgspec.structs.replace(
                opened,
                codecs={Kind.IDS.value: codec_name(offer.vocabulary)},
                vocabulary=offer.vocabulary,
                round=offer.number,
                vocabulary_digest=offer.vocabulary_digest,
            )
        return msgspec.structs.replace(
            opened,
            purpose=offer.purpose,
            mode=offer.mode,
            model=offer.model.model_type,
            layers=offer.layers,
            bases=offer.bottlenecks,
            cut=(offer.cut.first, offer.cut.last),
            bottlenecks=(
                f"{offer.cut.lower.method}:{offer.cut.lower.rank}",
                f"{offer.cut.upper.method}:{offer.cut.upper.rank}",
            ),
            codecs=msgspec.structs.asdict(offer.codecs),
            codec_bases=offer.bases,
            codec_stages={
                str(stage.step): msgspec.structs.asdict(stage.codecs)
                for stage in offer.detail.stages
            }
            or msgspec.UNSET,
        )
