"""A discriminator's party for a whole run: rounds, their generators at the door, what is left behind.

Called by the Flower app in a process of its own. Goes on from the newest checkpoint, so it may be
killed at any time and called again.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from splitlearn.errors import ChannelError, IdentityError

if TYPE_CHECKING:
    from splitlearn.audit import Log
    from splitlearn.channel import Conversation, Listener
    from splitlearn.coordination.summon import Summon
    from splitlearn.engine.streams.roster import Arrival
    from splitlearn.engine.streams.rounds import Terms
    from splitlearn.gate import Gate
    from splitlearn.identity import Identity
    from splitlearn.manifest import Pretrain
    from splitlearn.policy import Policy
    from splitlearn.pretrain.vocabulary import Vocabulary
    from splitlearn.session import StreamSession
    from splitlearn.wire.messages import Round

__all__ = ["conduct"]


def conduct(job: Path, summon: "Summon", *, processes: int = 0) -> None:
    """Do the rounds of the job that are not done yet; export the model, and say that it is finished.

    processes: see `training.shared`. Raises what stopped it. Written below the job's run folder:
    checkpoints/, audit-PARTY/ for each generator, events.jsonl, model/ and finished.json.
    """
    from parties.recording import Recorder
    from parties.training import discriminator_of, ranks_of, shared, vocabulary_of
    from splitlearn import policy
    from splitlearn.engine.streams.discriminator import DiscriminatorEngine
    from splitlearn.identity import Identity
    from splitlearn.manifest import load_pretrain

    settings = shared(load_pretrain(job), processes=processes)
    rules, identity = policy.load(settings.policy.file), Identity.load(settings.identity.folder)
    folder = settings.run.folder
    vocabulary = vocabulary_of(settings)
    terms = _terms(settings, vocabulary=vocabulary)
    with ExitStack() as stack:
        ranks = stack.enter_context(ranks_of(settings, file=job))
        learner = discriminator_of(settings, vocabulary=vocabulary, ranks=ranks)
        stack.callback(learner.close)
        door = stack.enter_context(
            _Door.opened(settings, identity=identity, rules=rules, summon=summon)
        )
        recorder = stack.enter_context(Recorder(folder, moved=door.moved))
        door.told = recorder.refused
        engine = DiscriminatorEngine(
            learner,
            terms=terms,
            folder=folder / "checkpoints",
            arrivals=door.arrivals,
            watch=recorder,
        )
        recorder.begin(settings, engine.progress)
        while engine.progress.round < settings.rounds.count:
            with door.called(number=engine.progress.round):
                progress = engine.round()
            recorder.round(progress)
        learner.export(folder / "model")
        recorder.finish(engine.progress)


def _terms(settings: "Pretrain", *, vocabulary: "Vocabulary") -> "Terms":
    from splitlearn.engine.streams.rounds import Terms

    rounds, batch = settings.rounds, settings.batch
    return Terms(
        run=settings.run.name,
        job=settings.digest(vocabulary=vocabulary.digest),
        vocabulary=vocabulary.size,
        vocabulary_digest=vocabulary.digest,
        seed=settings.run.seed,
        examples=batch.examples,
        width=batch.width,
        masked=batch.masked,
        steps=rounds.steps,
        held_out=rounds.held_out,
        alpha=settings.mix.alpha,
        by=settings.mix.by,
        deadline_s=rounds.deadline_s,
        silence_s=rounds.silence_s,
        gather_s=rounds.gather_s,
        least=rounds.least,
        buffer=rounds.buffer,
        save_every=rounds.save_every,
    )


class _Door:
    """Where generators come in: summoned by Flower, dialling our own listener, each with a log of its own."""

    def __init__(
        self,
        settings: "Pretrain",
        *,
        identity: "Identity",
        rules: "Policy",
        summon: "Summon",
        listener: "Listener",
    ) -> None:
        self.told: Callable[[str, str], None] = lambda _party, _why: None
        self._settings, self._identity, self._rules = settings, identity, rules
        self._summon, self._listener = summon, listener
        self._folder = settings.run.folder
        self._secret = _secret(self._folder)
        self._logs: dict[str, Log] = {}
        self._channels: list[Conversation] = []
        self._moved = 0

    @classmethod
    @contextmanager
    def opened(
        cls, settings: "Pretrain", *, identity: "Identity", rules: "Policy", summon: "Summon"
    ) -> Iterator["_Door"]:
        """The door, while the context lasts."""
        from splitlearn.channel import Listener
        from splitlearn.identity import kept_fresh
        from splitlearn.roles import Role

        with kept_fresh(identity, report=_say):
            listener = Listener(
                str(settings.listen.address),
                identity=identity,
                expect_roles=frozenset({Role.GENERATOR}),
                run=settings.run.name,
                report=_say,
            )
            door = cls(settings, identity=identity, rules=rules, summon=summon, listener=listener)
            try:
                yield door
            finally:
                listener.close()
                for log in door._logs.values():
                    log.close()

    @contextmanager
    def called(self, *, number: int) -> Iterator[None]:
        """Everybody who is there, or comes while the context lasts, is called to the round."""
        from splitlearn.manifest import Summons

        rounds, listen = self._settings.rounds, self._settings.listen
        address = listen.advertise or listen.address
        if not address.port:  # any free one, for tests
            address = type(address)(host=address.host, port=self._listener.port)
        summons = Summons(
            run=self._settings.run.name,
            number=number,
            address=str(address),
            deadline_s=rounds.deadline_s + 2 * rounds.silence_s,
        )
        self._summon.open(summons.encoded, ttl_s=summons.deadline_s)
        try:
            yield
        finally:
            self._poll()
            self._summon.close()

    def arrivals(self, timeout_s: float) -> "Arrival | None":
        """The next generator that dials, within so many seconds."""
        from splitlearn.engine.streams.roster import Arrival

        self._poll()
        try:
            channel = self._listener.accept(timeout_s=timeout_s)
        except ChannelError:
            return None
        self._channels.append(channel)
        if channel.authorised is None:
            raise IdentityError(f"{channel.peer} has not proved who it is")
        party = channel.authorised.name.party
        return Arrival(
            channel=channel,
            party=party,
            salt=hmac.digest(self._secret, f"salt of {party}".encode(), hashlib.sha256).hex(),
            open_gate=lambda terms, session: self._gate(channel, terms, session),
        )

    def moved(self) -> int:
        """Bytes that came off the links of all generators so far, with handshakes and control."""
        return sum(channel.bytes_received for channel in self._channels)

    def _poll(self) -> None:
        """Call who came late, and hear who could not come. That Flower is away stops no round."""
        try:
            replies = self._summon.poll()
        except ChannelError:
            return
        for reply in replies:
            if reply.refusal is not None:
                self.told(reply.party, reply.refusal)

    def _gate(self, channel: "Conversation", terms: "Round", session: "StreamSession") -> "Gate":
        from splitlearn import __version__
        from splitlearn.audit import Log
        from splitlearn.gate import Gate

        peer = channel.authorised
        assert peer is not None, "looked at when it came"
        party = peer.name.party
        if party not in self._logs:
            self._logs[party] = Log.open(
                self._folder / f"audit-{party}",
                origin=self._identity.name.dns,
                signer=self._identity.log_key,
                clock=time.time,
            )
        return Gate.open(
            self._rules,
            log=self._logs[party],
            session=session,
            me=self._identity.name,
            peer=peer.name,
            binding=peer.fingerprint,
            offer=terms,
            software=f"splitlearn {__version__}",
        )


def _secret(folder: Path) -> bytes:
    """What the salts of this run's logs are drawn from: 32 bytes that stay in its folder."""
    from splitlearn.identity import files

    place = files.make_folder(folder) / "run.json"
    if place.exists():
        return bytes.fromhex(msgspec.json.decode(files.read_private(place), type=str))
    secret = secrets.token_bytes(32)
    files.write(place, msgspec.json.encode(secret.hex()))
    return secret


def _say(sentence: str) -> None:
    from parties.console import console

    console.print(sentence, markup=False)
