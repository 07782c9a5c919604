"""The trusted party's step loop: bottom, gate, link, gate, top, loss, and back.

Owns text, labels, optimiser state and the pace of the run. Has a line to each compute party, one or a
chain of them, and passes on what goes from each to the next. Sends nothing but through its lines,
reads nothing but what their sessions allow, and after any restart of any process goes on from the
newest checkpoint that all parties hold, with the same numbers.
"""

# B batch, T tokens, D width at a cut, N rows that travel (packed: B x T without padding)

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice

import torch
from torch import Tensor
from transformers.utils.generic import ModelOutput

from splitlearn.channel.base import PeerRestarted
from splitlearn.engine.events import (
    Began,
    Evaluated,
    Finished,
    Observe,
    RolledBack,
    Saved,
    StepDone,
    Watched,
)
from splitlearn.engine.payloads.crossing import check_says
from splitlearn.engine.payloads.kept import Kept
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.engine.state.clipping import clip
from splitlearn.engine.state.optimiser import build_stepper
from splitlearn.engine.trusted.agreement import agree, in_turns
from splitlearn.engine.trusted.flight import connect
from splitlearn.engine.trusted.generation import Sampling, go_on, say
from splitlearn.engine.trusted.launch import Launcher
from splitlearn.engine.trusted.line import Line, Peer, lost_over
from splitlearn.engine.trusted.passage import Passage
from splitlearn.engine.trusted.run import TrustedRun, check_clipping
from splitlearn.engine.trusted.stale import Stretch
from splitlearn.engine.trusted.through import ways_of
from splitlearn.engine.trusted.tied import Tied
from splitlearn.engine.trusted.watching import Watch
from splitlearn.pipeline import Op
from splitlearn.roles import Kind
from splitlearn.split.freeze import set_training
from splitlearn.split.lookup import look_up_by_rows
from splitlearn.tasks.batches import Batch
from splitlearn.tasks.score import told

__all__ = ["EVALUATION_GROUP", "TrustedEngine"]

# Micro-batches of an evaluation that the session counts as one group.
EVALUATION_GROUP = 64


class TrustedEngine:
    """Runs one job against its compute parties."""

    def __init__(
        self,
        run: TrustedRun,
        *,
        peers: Sequence[Peer],
        checkpoints: Checkpoints,
        observe: Observe,
    ) -> None:
        """peers: one for each of `run.hops`, in that order."""
        check_clipping(run)
        run.local.to(run.device.at)  # type: ignore[arg-type]
        look_up_by_rows(run.local)
        self.run, self._checkpoints, self._observe = run, checkpoints, observe
        self._stepper = build_stepper(
            run.local.parameters(), optimiser=run.offer.optimiser, schedule=run.offer.schedule
        )
        connect(run.local)
        self._tied = Tied(run.local)
        self.losses: list[float] = []
        # Wall seconds of each step that this process did, those done again after a restart included.
        self.step_s: list[float] = []
        self._lines = [
            Line(
                hop,
                peer,
                packed=run.packed,
                noise=run.noise,
                deadline_s=run.deadline_s,
                overlap=run.overlap,
                kept=Kept(checkpoints.folder.parent, limit_bytes=run.cache_bytes),
                linking=run.linking,
                start=getattr(run.local.config, "decoder_start_token_id", None),
            )
            for hop, peer in zip(run.hops, peers, strict=True)
        ]
        self._begun = False
        self._watch: Watch | None = None
        # Optimiser steps done: a conversation leaves those out that were done without its peer.
        self._next_step = 0
        self._launch = Launcher(run, ways_of(self._lines), folder=checkpoints.folder.parent)

    @property
    def sent(self) -> Counter[Kind]:
        """Bytes of whole frames by kind, to all parties and over all conversations of this process."""
        return sum((line.sent for line in self._lines), Counter())

    @property
    def received(self) -> Counter[Kind]:
        """The same the other way."""
        return sum((line.received for line in self._lines), Counter())

    @property
    def rows(self) -> dict[str, int]:
        """Rows that crossed the first cut, by phase."""
        return self._launch.rows

    @property
    def errors(self) -> dict[Kind, list[float]]:
        """What codecs lost of what was sent, by kind: the sum over messages, and how many."""
        return lost_over(self._lines)

    def train(self, steps: Callable[[int], Sequence[Batch]], *, watch: Watch | None = None) -> None:
        """Train to the schedule's end, or to that of the watch's patience. Not with staleness and a watch.

        A peer that comes back as a new process only costs time.
        """
        self._watch = watch
        self._surviving_restarts(lambda: self._train(steps))

    def evaluate(
        self, batches: Sequence[Batch], *, saying: Sampling | None = None
    ) -> list[dict[str, Tensor]]:
        """What `told` keeps of the output for each batch, with the weights under way.

        Those are of the newest checkpoint, of the best where one is kept and the run is not for training.
        saying: have a decoder above an encoder also say a text for each row, "said"; nothing more is sent.
        ManifestError where layers of that decoder are remote.
        """
        if saying is not None:
            check_says(line.hop.offer for line in self._lines)
        outputs: list[dict[str, Tensor]] = []

        def work() -> None:
            outputs.clear()
            self._begin()
            outputs.extend(self._evaluate(batches, saying=saying))

        self._surviving_restarts(work)
        return outputs

    def generate(self, prompts: Sequence[Tensor], *, sampling: Sampling) -> list[Tensor]:
        """Prompts (B, T), each of texts of equal length, with what the model adds to them, or what a decoder
        above an encoder says of them. For a run offered to generate; its weights are those of `evaluate`.
        """
        outputs: list[Tensor] = []

        def work() -> None:
            outputs.clear()
            self._begin()
            set_training(self.run.local, training=False)
            outputs.extend(self._go_on(prompts, sampling=sampling))

        self._surviving_restarts(work)
        return outputs

    def finish(self, *, fetch: bool = False) -> dict[str, Tensor]:
        """Say goodbye; with `fetch`, take the trunk's trained weights along (none if frozen)."""
        trunk: dict[str, Tensor] = {}

        def work() -> None:
            trunk.clear()
            self._begin()
            for line in self._lines:
                line.finish(fetch=fetch)
            in_turns([line.parting(trunk) for line in self._lines])
            self._observe(Finished(self._next_step))

        self._surviving_restarts(work)
        return trunk

    def end(self, error: BaseException | None) -> None:
        """Close the logs' accounts of the conversations; call it once, whatever happened."""
        for line in self._lines:
            line.end(error)

    def _surviving_restarts(self, work: Callable[[], None]) -> None:
        while True:
            try:
                return work()
            except PeerRestarted as error:
                for line in self._lines:
                    if line.restarted:
                        self._observe(RolledBack(line.name))
                self.end(error)
                # Whoever did not restart has gone on past what is done again now.
                for line in self._lines:
                    line.anew()
                self._begun = False

    def _begin(self) -> None:
        """Agree on the job and on the step to go on from, unless that is done."""
        if self._begun:
            return
        run = self.run
        if not self._checkpoints.held():
            self._save(0)
        trains = run.offer.purpose == "train"
        mine = self._checkpoints.held() if trains else self._checkpoints.best()
        step = agree(self._lines, mine, trains=trains, observe=self._observe)
        extra = self._checkpoints.load(step, model=run.local, stepper=self._stepper)
        if trains:
            self._checkpoints.drop_after(step)
        self._stepper.clear()
        self._next_step = step
        self.losses = _floats(extra.get("losses"))
        if self._watch is not None:
            self._watch.restore(extra.get("scores"))
        for line in self._lines:
            line.ready()
            self._observe(Began(step, line.name))
        self._begun = True

    def _train(self, steps: Callable[[int], Sequence[Batch]]) -> None:
        self._begin()
        set_training(self.run.local, training=True)
        total = self.run.offer.schedule.total_steps
        stretch = self._stretch() if self.run.offer.schedule.staleness else None
        while (step := self._next_step) < total and not self._stopped:
            if stretch is None:
                self._train_step(steps(step))
                for line in self._lines:
                    line.talk.settle_if_due()
            else:
                stretch.settle()
                stretch.work(steps, first=step)
                self._next_step = self._lines[0].talk.session.next_step
            done = self._next_step
            best = self._look(done)
            if done % self.run.every == 0 or done in (best, total) or self._stopped:
                self._save(done, best=best)
                for line in self._lines:
                    line.save(done, best=best)
                for line in self._lines:
                    line.saved()
                self._observe(Saved(done))

    @property
    def _stopped(self) -> bool:
        return self._watch is not None and self._watch.stopped

    def _look(self, done: int) -> int | None:
        """Score held-out data, where that is due. The step to keep for its score, if one is."""
        watch = self._watch
        if watch is not None and watch.due(done):
            score = watch.take(done, list(self._evaluate(watch.batches)))
            set_training(self.run.local, training=True)
            self._observe(Watched(done, score))
        return None if watch is None else watch.best

    def _stretch(self) -> Stretch:
        """For steps that interleave: the same work, in an order that goes across them."""

        def updated(done: StepDone) -> None:
            self.losses.append(done.loss)
            self.step_s.append(done.seconds)
            self._observe(done)

        return Stretch(
            run=self.run,
            line=self._lines[0],
            stepper=self._stepper,
            bottom=self._launch.begin,
            backward=self._backward,
            updated=updated,
        )

    def _train_step(self, batches: Sequence[Batch]) -> None:
        began = time.perf_counter()
        step = self._next_step
        before = (self.sent.total(), self.received.total())
        total = sum(batch.items for batch in batches)
        under_way: dict[int, Passage] = {}
        recalled = self._launch.held(batches)
        mean = torch.zeros(())
        order = self._launch.order(len(batches), gradients=self.run.offer.trains_trunk)
        last = {action.micro_batch: action for action in order}
        both = self.run.offer.returns_input_gradient  # then what is shared trains at both ends
        for action in order:
            i = action.micro_batch
            batch = batches[i]
            if action.op is Op.BOTTOM:
                # A step is one step: once its last gradient is out a session counts the next one.
                place = self._launch.place(batch, i, len(batches), phase="train", step=step)
                under_way[i] = self._launch.begin(batch, place, recalled=recalled)
            elif action.op is Op.RELAY:
                under_way[i].relay(action.party)
            elif action.op is Op.TOP:
                output = under_way[i].top()
                loss = output["loss"] * (batch.items / total)
                with self._tied.top(i) if both else nullcontext():
                    self._backward(loss, output, batch, items=total)
                mean = mean + loss.detach()  # which may be on another device
                under_way[i].turn()
            else:
                held = self._tied.between if action.party else self._tied.bottom
                with held(i) if both else nullcontext():
                    under_way[i].backward(action.party)
            if action is last[i]:
                del under_way[i]
        norm = self._clip(step)
        self._stepper.step()
        self._next_step = step + 1
        for line in self._lines:
            line.talk.flush()
        self.losses.append(mean.item())
        self.step_s.append(time.perf_counter() - began)
        self._observe(
            StepDone(
                step,
                self.losses[-1],
                self.step_s[-1],
                self.sent.total() - before[0],
                self.received.total() - before[1],
                norm,
            )
        )

    def _clip(self, step: int) -> float | None:
        """The norm of the whole model's gradient, scaled down where it is longer than the job allows."""
        run = self.run
        if run.clip_norm is None:
            return None
        lines = self._lines if run.offer.trains_trunk else []
        return clip(self._stepper, limit=run.clip_norm, step=step, others=lines)

    def _backward(self, loss: Tensor, output: ModelOutput, batch: Batch, *, items: int) -> None:
        if self.run.noise is None:
            torch.autograd.backward(loss)
            return
        logits, labels = output["logits"], batch.labels["labels"]
        self.run.noise.backward(loss, logits=logits, labels=labels, items=items)

    def _evaluate(
        self, batches: Sequence[Batch], *, saying: Sampling | None = None
    ) -> Iterator[dict[str, Tensor]]:
        set_training(self.run.local, training=False)
        step, spoken = self._next_step, partial(say, self.run.local, device=self.run.device)
        remaining = iter(batches)
        done = 0
        with torch.no_grad():
            while group := list(islice(remaining, EVALUATION_GROUP)):
                under_way: dict[int, Passage] = {}
                recalled = self._launch.held(group)
                for action in self._launch.order(len(group), gradients=False):
                    i = action.micro_batch
                    if action.op is Op.BOTTOM:
                        of = len(group)
                        place = self._launch.place(group[i], i, of, phase="evaluate", step=step)
                        under_way[i] = self._launch.begin(group[i], place, recalled=recalled)
                    elif action.op is Op.RELAY:
                        under_way[i].relay(action.party)
                    else:
                        output = under_way.pop(i).top()
                        done += 1
                        self._observe(Evaluated(done))
                        kept = told(output, group[i])
                        if saying is not None:
                            kept["said"] = spoken(output, group[i], sampling=saying)
                        yield kept
                for line in self._lines:
                    line.talk.settle_if_due()

    def _go_on(self, prompts: Sequence[Tensor], *, sampling: Sampling) -> Iterator[Tensor]:
        further = partial(go_on, self.run.local, self._lines, device=self.run.device)
        for number, ids_BT in enumerate(prompts):
            told = partial(self._added, number * sampling.tokens)
            yield further(ids_BT, step=self._next_step, sampling=sampling, told=told)

    def _added(self, before: int, done: int) -> None:
        self._observe(Evaluated(before + done))

    def _save(self, step: int, *, best: int | None = None) -> None:
        extra: dict[str, object] = {"losses": self.losses}
        if self._watch is not None:
            extra |= {"scores": self._watch.state(), "stopped": self._watch.stopped}
        self._checkpoints.save(
            step, model=self.run.local, stepper=self._stepper, extra=extra, best=best
        )


def _floats(values: object) -> list[float]:
    return [float(v) for v in values] if isinstance(values, list) else []
