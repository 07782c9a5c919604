"""A generator's party in one round: its identity, log and models, and a channel to the discriminator.

Called by the Flower app for each round, in a process of its own, with a summons that says where to go;
what leaves is decided by the party's policy and the terms that the discriminator itself sends.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from splitlearn.errors import IdentityError

if TYPE_CHECKING:
    from splitlearn.engine.streams.rounds import RoundEvent, Source
    from splitlearn.gate import Gate
    from splitlearn.manifest import Generator
    from splitlearn.pretrain.generator import GeneratorTrainer
    from splitlearn.pretrain.permutation import Permutation
    from splitlearn.session import StreamSession
    from splitlearn.wire.ids import IdBatch
    from splitlearn.wire.messages import Round

__all__ = ["stream_round"]


def stream_round(
    settings: Path,
    descriptor: bytes,
    *,
    processes: int = 0,
    watch: Callable[["RoundEvent"], None] = lambda _: None,
) -> bytes:
    """Stream for the whole of one round; the report as JSON.

    settings: the party's generator.toml; processes: see `training.shared`. Raises what stopped it; what
    was trained until then is kept.
    """
    from parties.reach import Reach, farewell
    from parties.training import shared
    from splitlearn import __version__, policy
    from splitlearn.audit import Log
    from splitlearn.channel import PeerRestarted
    from splitlearn.engine.streams.generator import GeneratorEngine
    from splitlearn.gate import Gate
    from splitlearn.identity import Identity
    from splitlearn.manifest import load_generator, parse_summons
    from splitlearn.manifest.fields import PeerTable
    from splitlearn.roles import Role

    table = shared(load_generator(settings), processes=processes)
    summons = parse_summons(descriptor)
    rules, identity = policy.load(table.policy.file), Identity.load(table.identity.folder)
    folder = table.run.folder / summons.run
    peer = PeerTable.model_validate({"party": table.coordinator.party, "dial": summons.address})
    with ExitStack() as stack:
        models = _Models(table, file=settings, folder=folder, stack=stack)
        log = stack.enter_context(
            Log.open(
                folder / "audit", origin=identity.name.dns, signer=identity.log_key, clock=time.time
            )
        )
        reach = stack.enter_context(Reach(identity, peer=peer, role=Role.DISCRIMINATOR))
        channel = reach.find(run=summons.run, deadline_s=summons.deadline_s)
        stack.enter_context(farewell(channel))

        def open_gate(terms: "Round", session: "StreamSession") -> "Gate":
            found = channel.authorised
            if found is None:
                raise IdentityError(f"{channel.peer} has not proved who it is")
            return Gate.open(
                rules,
                log=log,
                session=session,
                me=identity.name,
                peer=found.name,
                binding=found.fingerprint,
                offer=terms,
                software=f"splitlearn {__version__}",
            )

        engine = GeneratorEngine(
            channel,
            language=table.data.language,
            vocabulary_digest=models.vocabulary.digest,
            batches=models.source,
            open_gate=open_gate,
            save=models.save,
            deadline_s=summons.deadline_s,
            save_every=table.run.save_every,
            watch=watch,
        )
        while True:
            try:
                report = engine.serve()
                break
            except PeerRestarted:
                continue
        models.export()
    return msgspec.json.encode(msgspec.structs.asdict(report))


class _Models:
    """The party's trainer, kept in its folder between rounds."""

    def __init__(self, table: "Generator", *, file: Path, folder: Path, stack: ExitStack) -> None:
        from parties.training import vocabulary_of
        from splitlearn.pretrain.permutation import Permutation, read_key

        self.vocabulary = vocabulary_of(table)
        self._table, self._file, self._folder, self._stack = table, file, folder, stack
        self._trainer: GeneratorTrainer | None = None
        key = table.vocabulary.permutation
        self._renamed: Permutation | None = None
        if key is not None:
            self._renamed = Permutation(
                read_key(key), size=self.vocabulary.size, special=self.vocabulary.special
            )

    def source(self, terms: "Round") -> "Source":
        """Batches as the round wants them, from where the party stood when it was last here."""
        from parties.training import Shape, generator_of, ranks_of

        shape = Shape(terms.examples, terms.width, terms.masked, terms.seed)
        ranks = self._stack.enter_context(ranks_of(self._table, file=self._file, shape=shape))
        scratch = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="splitlearn-"))
        trainer = self._trainer = generator_of(
            self._table,
            vocabulary=self.vocabulary,
            shape=shape,
            scratch=Path(scratch),
            ranks=ranks,
        )
        self._stack.callback(trainer.close)
        if (self._folder / "state").exists():
            trainer.load(self._folder / "state")
        if trainer.index < self._table.run.head_start:
            while trainer.index < self._table.run.head_start:
                trainer.step()  # its batches go nowhere
            self._keep(trainer)
        return _Source(trainer, self._renamed)

    def save(self, _: "Source") -> None:
        """Keep the exact state."""
        if self._trainer is not None:
            self._keep(self._trainer)

    def _keep(self, trainer: "GeneratorTrainer") -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        trainer.save(self._folder / "state")

    def export(self) -> None:
        """Leave the model as a folder that transformers loads."""
        if self._trainer is not None:
            self._trainer.export(self._folder / "model")


@dataclass
class _Source:
    """A trainer's batches, under the ids' secret names where the party has a key for them."""

    trainer: "GeneratorTrainer"
    renamed: "Permutation | None"

    @property
    def index(self) -> int:
        return self.trainer.index

    @property
    def size(self) -> int:
        return self.trainer.corpus.tokens()

    def skip_to(self, index: int) -> None:
        self.trainer.skip_to(index)

    def step(self) -> "tuple[IdBatch, float]":
        batch, loss = self.trainer.step()
        return self._named(batch), loss

    def held_out(self, number: int) -> "IdBatch":
        return self._named(self.trainer.held_out(number))

    def _named(self, batch: "IdBatch") -> "IdBatch":
        from splitlearn.wire.ids import IdBatch

        if self.renamed is None:
            return batch
        return IdBatch(self.renamed.permute(batch.ids), batch.replaced, batch.lengths)
