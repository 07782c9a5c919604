"""From an encoder's or a decoder's settings to what its engine runs: sentences, halves, terms, secrets.

Both parties' commands begin here, and so does the run in one process that they are compared with.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from splitlearn.errors import ManifestError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from splitlearn.channel import Conversation
    from splitlearn.engine.pair.pairing import Corpus, DecoderRun, EncoderHalf
    from splitlearn.gate import Gate
    from splitlearn.identity import Identity
    from splitlearn.manifest.pairs import Decoder, Encoder, SideTable
    from splitlearn.session import PairSession
    from splitlearn.translation import SourceEncoder
    from splitlearn.wire.messages import Pairing

__all__ = ["Claim", "claim_of", "corpus_of", "decoder_run", "encoder_of", "gates", "half_of"]


class Claim(msgspec.Struct, frozen=True):
    """run.json of a decoder's run folder: which job it is of, and the secret that its keys come from."""

    job: str
    secret: str

    def key(self, purpose: str) -> str:
        """64 hex digits for a purpose; one tells nothing of another."""
        return hmac.digest(bytes.fromhex(self.secret), purpose.encode(), "sha256").hex()


def claim_of(folder: Path, *, job: str) -> Claim:
    """The claim of a run folder, made at the first call. ManifestError if it is another job's."""
    from splitlearn.identity import files

    place = files.make_folder(folder) / "run.json"
    if not place.exists():
        claim = Claim(job, secrets.token_hex(32))
        files.write(place, msgspec.json.encode(claim))
        return claim
    try:
        claim = msgspec.json.decode(files.read_private(place), type=Claim)
    except msgspec.MsgspecError as error:
        raise ManifestError(f"{place} is not a run's: {error}; choose another run.folder") from None
    if claim.job != job:
        raise ManifestError(
            f"run folder {folder} holds a run of other settings or data; choose another run.folder, or "
            "remove that one to begin anew"
        )
    return claim


def corpus_of(data: "SideTable", *, tokenizer: "PreTrainedTokenizerBase") -> "Corpus":
    """One side's sentences, as ids of its tokenizer. Raises ManifestError for data that do not fit."""
    from splitlearn.engine.pair.pairing import Corpus
    from splitlearn.translation.reading import read_texts
    from splitlearn.translation.text import Sentences

    sides = []
    for source, split, first in (
        (data.train, "train", data.first),
        (data.evaluate, "validation", data.first_evaluate),
    ):
        texts = read_texts(source, split=split, text=data.text, sample=data.id, first=first)
        # Held-out samples of two files may be numbered as those to train on are.
        named = {f"{split}/{name}": text for name, text in texts.items()}
        sides.append(Sentences(named, tokenizer=tokenizer, max_length=data.max_length))
    if not len(sides[0]):
        raise ManifestError(
            f"no text of {data.train.text} has at most data.max_length = {data.max_length} pieces"
        )
    return Corpus(*sides)


def encoder_of(settings: "Encoder", *, trains: bool, seed: int) -> "SourceEncoder":
    """The encoder as it is before training."""
    from splitlearn.translation import EncoderShape, SourceEncoder
    from splitlearn.translation.frozen import load_bert

    shape = EncoderShape(inner=settings.adapters.inner, trains=trains)
    return SourceEncoder(load_bert(settings.model.path), shape=shape, seed=seed)


def half_of(
    settings: "Encoder", *, corpus: "Corpus", folder: Path
) -> "Callable[[Pairing], EncoderHalf]":
    """What a run's terms make of an encoder party: a fresh half each time. folder: of the run."""
    from splitlearn.engine.pair.pairing import EncoderHalf

    def half(terms: "Pairing") -> "EncoderHalf":
        # Another job of the same name has its checkpoints elsewhere.
        place = folder / "checkpoints" / terms.job[:16]
        encoder = encoder_of(settings, trains=terms.trains, seed=terms.seed)
        return EncoderHalf(encoder, corpus, place)

    return half


def decoder_run(settings: "Decoder") -> "DecoderRun":
    """The run that decoder.toml describes; its folder is claimed for it."""
    from splitlearn.engine.pair.pairing import DecoderRun
    from splitlearn.translation import DecoderShape, Objective, TargetDecoder
    from splitlearn.translation.frozen import load_bert
    from splitlearn.translation.text import Special, load_tokenizer
    from splitlearn.wire.messages import OptimiserSpec, Pairing, ScheduleSpec

    run, adapters, schedule = settings.run, settings.adapters, settings.schedule
    optimiser = settings.optimiser
    tokenizer = load_tokenizer(settings.model.path)
    corpus = corpus_of(settings.data, tokenizer=tokenizer)
    job = settings.digest(corpus=_digest(corpus))
    claim = claim_of(run.folder, job=job)
    decoder = TargetDecoder(
        load_bert(settings.model.path),
        words_V=corpus.train.words(),
        shape=DecoderShape(inner=adapters.inner, reach=adapters.reach),
        seed=run.seed + 1,
    )
    terms = Pairing(
        run=run.name,
        conversation="0" * 32,  # each conversation draws its own
        job=job,
        salt=claim.key("salt"),
        naming=claim.key("naming"),
        trains=adapters.encoder_trains,
        width=decoder.frozen.width,
        examples=max(schedule.batch_size, EVALUATED),
        length=1_024,
        activation=settings.codec.activation,
        gradient=settings.codec.gradient,
        optimiser=OptimiserSpec(
            name="adamw",
            learning_rate=optimiser.learning_rate,
            weight_decay=0.0,  # Adam
            beta1=optimiser.beta1,
            beta2=optimiser.beta2,
            epsilon=optimiser.epsilon,
        ),
        schedule=ScheduleSpec(schedule.name, optimiser.warmup_steps, schedule.steps),
        seed=run.seed,
        held=(),
    )
    return DecoderRun(
        terms=terms,
        decoder=decoder,
        corpus=corpus,
        special=Special.of(tokenizer),
        batch=schedule.batch_size,
        every=schedule.save_every,
        deadline_s=run.deadline_s,
        objective=Objective(smoothing=optimiser.smoothing, length=optimiser.length),
        cache_bytes=adapters.cache_mb * 2**20,
        iterations=settings.decoding.iterations,
        candidates=settings.decoding.candidates,
        evaluated=EVALUATED,
    )


# Samples of one question in an evaluation.
EVALUATED = 32


def gates(
    channel: "Conversation", *, policy: Path, identity: "Identity", folder: Path
) -> "tuple[Callable[[Pairing, PairSession], Gate], Callable[[], None]]":
    """How a conversation's gate is opened, and how the log behind it is closed. folder: of the log.

    Raises IdentityError for a peer that has not proved who it is.
    """
    import time

    from splitlearn import __version__
    from splitlearn import policy as policies
    from splitlearn.audit import Log
    from splitlearn.errors import IdentityError
    from splitlearn.gate import Gate

    peer = channel.authorised
    if peer is None:
        raise IdentityError(f"{channel.peer} has not proved who it is")
    rules = policies.load(policy)
    log = Log.open(folder, origin=identity.name.dns, signer=identity.log_key, clock=time.time)

    def open_gate(terms: "Pairing", session: "PairSession") -> "Gate":
        return Gate.open(
            rules,
            log=log,
            session=session,
            me=identity.name,
            peer=peer.name,
            binding=peer.fingerprint,
            offer=terms,
            software=f"splitlearn {__version__}",
        )

    return open_gate, log.close


def _digest(corpus: "Corpus") -> str:
    """Of which samples take part and how long they are: it decides batches, and tells no text."""
    found = hashlib.sha256()
    for sentences in (corpus.train, corpus.evaluate):
        for sample in sentences.samples:
            found.update(f"{sample}\t{sentences.length(sample)}\n".encode())
    return found.hexdigest()
