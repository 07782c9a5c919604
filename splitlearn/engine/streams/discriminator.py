"""The discriminator's loop: draw a language, take the next batch of its stream, train; score; keep.

Which language a step trains on follows from seed, step and who streams, never from how fast a link is:
with all generators there, the same run twice is the same to the bit. Who is late for longer than the
silence that is allowed loses its turn, not the round.
"""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from splitlearn.engine.streams.progress import Member, Progress, Shelf
from splitlearn.engine.streams.roster import Arrival, Roster
from splitlearn.engine.streams.rounds import Kept, Learner, Scored, Terms, Trained, WatchRound
from splitlearn.engine.streams.stream import Stream
from splitlearn.errors import ManifestError
from splitlearn.pretrain import draw, shares
from splitlearn.wire.ids import IdBatch

__all__ = ["DiscriminatorEngine", "KeptLearner"]

# Seconds. The rest of a batch's wait is looked at in pieces, so that a newcomer is asked soon.
_LOOK_S = 1.0


class KeptLearner(Learner, Protocol):
    """A learner that can be put on a shelf. `digest`: of weights and optimiser, SHA-256 in hex."""

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...

    def digest(self) -> str: ...


@dataclass
class _Turn:
    """One step's batch: whose, and how long it took to come."""

    stream: Stream
    index: int
    batch: IdBatch
    waited_s: float


class DiscriminatorEngine:
    """Rounds over whoever streams. Goes on from the newest checkpoint below `folder`."""

    def __init__(
        self,
        learner: KeptLearner,
        *,
        terms: Terms,
        folder: Path,
        arrivals: Callable[[float], Arrival | None],
        watch: WatchRound = lambda _: None,
    ) -> None:
        """Raises ManifestError if the folder holds another job's checkpoints."""
        self._learner, self._terms, self._arrivals, self._watch = learner, terms, arrivals, watch
        self._shelf = Shelf(folder)
        self.progress = self._shelf.load(self._load) or Progress(job=terms.job)
        if self.progress.job != terms.job:
            raise ManifestError(
                f"{folder} holds the checkpoints of another job; choose another run folder, or remove "
                "that one to begin anew"
            )
        self._members = dict(self.progress.members)
        self._languages = {party: member.language for party, member in self._members.items()}
        # Highest index taken, trained on or not: what was lost with a checkpoint is not taken again.
        self._following = {party: member.following for party, member in self._members.items()}

    def round(self) -> Progress:
        """One round, or the rest of one: train, score, hear reports, keep.

        Raises ChannelError where too few generators came, AuditError where a log or a checkpoint
        cannot be written. What was trained since the last checkpoint is lost then.
        """
        progress, terms = self.progress, self._terms
        end_s = time.monotonic() + terms.deadline_s
        with Roster(
            self._arrivals,
            terms=terms,
            number=progress.round,
            languages=self._languages,
            following=lambda party: self._following.get(party, 0),
            watch=self._watch,
        ) as roster:
            roster.gather(least=terms.least, more_s=terms.gather_s, until_s=end_s)
            losses = self._train(roster, end_s=end_s)
            scores = self._score(roster, end_s=end_s)
            self._end(roster)
        summary: dict[str, object] = {
            "round": progress.round,
            "steps": self.progress.in_round,
            "loss": {name: _mean(values) for name, values in sorted(losses.items())},
            "scores": {name: msgspec.to_builtins(score) for name, score in sorted(scores.items())},
        }
        self._keep(
            round=progress.round + 1,
            in_round=0,
            history=(*self.progress.history, summary),
        )
        return self.progress

    def _train(self, roster: Roster, *, end_s: float) -> dict[str, list[float]]:
        terms = self._terms
        losses: dict[str, list[float]] = {}
        chances = self._chances(roster)
        self._plan(roster, chances)
        while self.progress.in_round < terms.steps and time.monotonic() < end_s:
            turn = self._turn(roster, chances, end_s=end_s)
            if turn is None:
                chances = self._chances(roster)
                continue
            learnt = self._learner.train(turn.batch)
            language = turn.stream.language
            losses.setdefault(language, []).append(learnt.loss)
            self._count(turn)
            self._watch(
                Trained(
                    step=self.progress.step,
                    language=language,
                    loss=learnt.loss,
                    accuracy=learnt.accuracy,
                    replaced=learnt.replaced,
                    tokens=learnt.tokens,
                    waited_s=turn.waited_s,
                    fill={name: each.fill for name, each in roster.streams().items()},
                )
            )
            if self.progress.step % terms.save_every == 0:
                self._keep()
        return losses

    def _turn(self, roster: Roster, chances: dict[str, float], *, end_s: float) -> _Turn | None:
        """The batch of the step that comes next; None where who streams has changed since the plan."""
        began_s = time.monotonic()
        here = roster.streams()
        if any(True for _ in roster.heard()) or here.keys() != chances.keys():
            if not here:
                roster.wait(min(_LOOK_S, max(0.0, end_s - began_s)))
            here = roster.streams()
            chances.clear()
            chances.update(self._chances(roster))
            self._plan(roster, chances)
        if not chances:
            return None
        stream = here[draw(chances, seed=self._terms.seed, step=self.progress.step)]
        if not stream.due:
            stream.ask(train=1)
        silent_s = min(began_s + self._terms.silence_s, end_s)
        while True:
            now_s = time.monotonic()
            found = stream.take(timeout_s=max(0.0, min(_LOOK_S, silent_s - now_s)))
            if found is not None:
                return _Turn(stream, *found, time.monotonic() - began_s)
            if stream.over or now_s >= silent_s:
                roster.silence(stream, waited_s=now_s - began_s)
                return None

    def _plan(self, roster: Roster, chances: dict[str, float]) -> None:
        """Ask each stream for what the rest of the round will take from it, if nobody comes or goes."""
        if not chances:
            return
        first, rest = self.progress.step, self._terms.steps - self.progress.in_round
        seed = self._terms.seed
        planned = Counter(draw(chances, seed=seed, step=first + i) for i in range(rest))
        for language, stream in roster.streams().items():
            more = planned.get(language, 0) - stream.due
            if more > 0:
                stream.ask(train=more)

    def _chances(self, roster: Roster) -> dict[str, float]:
        """Each language's share of the steps, by size of its text or by its generator's loss."""
        here = roster.streams()
        for stream in here.values():
            self._members.setdefault(
                stream.call.party,
                Member(language=stream.language, size=max(1, stream.size)),
            )
        if not here:
            return {}
        members = {name: self._members[stream.call.party] for name, stream in here.items()}
        sizes = {name: float(max(1, member.size)) for name, member in members.items()}
        if self._terms.by == "loss" and all(member.loss > 0 for member in members.values()):
            sizes = {name: member.loss for name, member in members.items()}
        return shares(sizes, alpha=self._terms.alpha)

    def _count(self, turn: _Turn) -> None:
        party = turn.stream.call.party
        member = self._members[party]
        self._following[party] = turn.index + 1
        self._members[party] = msgspec.structs.replace(
            member,
            following=turn.index + 1,
            batches=member.batches + 1,
            tokens=member.tokens + sum(turn.batch.lengths),
        )
        self.progress = msgspec.structs.replace(
            self.progress, step=self.progress.step + 1, in_round=self.progress.in_round + 1
        )

    def _score(self, roster: Roster, *, end_s: float) -> dict[str, Scored]:
        """Held-out batches of each language that streams; whoever is silent goes without a score."""
        wanted = self._terms.held_out
        here = roster.streams()
        for stream in here.values():
            stream.ask(evaluate=wanted)
        scores: dict[str, Scored] = {}
        for language, stream in here.items():
            batches: list[IdBatch] = []
            while len(batches) < wanted:
                left_s = max(1.0, end_s - time.monotonic())
                batch = stream.take_held_out(timeout_s=min(self._terms.silence_s, left_s))
                if batch is None:
                    break
                batches.append(batch)
            if not batches:
                roster.silence(stream, waited_s=self._terms.silence_s)
                continue
            score = self._learner.score(batches)
            scores[language] = Scored(
                round=self.progress.round,
                language=language,
                auc=score.auc,
                accuracy=score.accuracy,
                loss=score.loss,
                tokens=score.tokens,
            )
            self._watch(scores[language])
        return scores

    def _end(self, roster: Roster) -> None:
        """Tell everybody that it is enough, and take the reports of those that answer in time."""
        streams = [stream for stream in roster.everybody() if not stream.over]
        for stream in streams:
            stream.enough()
        end_s = time.monotonic() + self._terms.silence_s
        for stream in streams:
            stream.join(timeout_s=max(0.1, end_s - time.monotonic()))
            party, report = stream.call.party, stream.report
            if report is not None and report.batches and party in self._members:
                self._members[party] = msgspec.structs.replace(
                    self._members[party], loss=report.loss
                )

    def _keep(self, **changes: object) -> None:
        self.progress = msgspec.structs.replace(
            self.progress,
            members=dict(self._members),
            digest=self._learner.digest(),
            **changes,
        )
        self._shelf.save(self.progress, self._learner.save)
        self._watch(Kept(self.progress.step))

    def _load(self, folder: Path) -> str:
        self._learner.load(folder)
        return self._learner.digest()


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
