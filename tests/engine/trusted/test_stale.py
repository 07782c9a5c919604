"""Interleaved steps of a whole run: repeated, killed, watched, and offered by a peer without manners.

That the numbers are right is in tests/exactness/test_stale.py.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest
import torch

from splitlearn.channel import pair
from splitlearn.channel.base import Released
from splitlearn.channel.memory import MemoryChannel
from splitlearn.codecs.base import to_part
from splitlearn.engine.conversation import talk
from splitlearn.engine.events import Began, Event, RolledBack, StepDone
from splitlearn.engine.state.versions import Versions
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.errors import SessionError
from splitlearn.roles import Kind
from splitlearn.split.cut import Cut
from splitlearn.tasks.batches import Batch
from splitlearn.wire import frames
from splitlearn.wire.frames import Frame
from splitlearn.wire.messages import Meta, Resume, StepTensor
from splitlearn.wire.tensors import encode
from tests.rig import (
    Around,
    ComputeThread,
    Killing,
    batch_of,
    compute_party,
    run_in_memory,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import tiny_batch, tiny_model

CUT = Cut(1, 3)
MODEL = tiny_model("bert", dropout=0.1)
Steps = Callable[[int], Sequence[Batch]]


def made(*, total: int = 7, staleness: int = 2, every: int = 4) -> TrustedRun:
    model = copy.deepcopy(MODEL)
    return trusted_run(model, cut=CUT, total=total, every=every, staleness=staleness)


def batches(step: int) -> Sequence[Batch]:
    return [
        batch_of(tiny_batch(MODEL, lengths=(5, 3), width=5, seed=9 * step + i)) for i in range(2)
    ]


def undisturbed(folder: Path, run: TrustedRun) -> tuple[list[float], dict[str, torch.Tensor]]:
    result = run_in_memory(folder / "undisturbed", run, steps=batches)
    return result.losses, result.trunk


@dataclass
class Spoken(Around):
    """The trusted party's end of a channel, and in which order it sent and took what."""

    said: list[tuple[Kind, int, int]] = field(default_factory=list)

    def send(self, released: Released, *, deadline_s: float) -> None:
        meta = frames.decode(bytes(released.raw)).meta
        if isinstance(meta, StepTensor):
            self.said.append((released.kind, meta.step, meta.micro_batch))
        self.inner.send(released, deadline_s=deadline_s)

    def receive(self, *, timeout_s: float) -> Frame:
        frame = self.inner.receive(timeout_s=timeout_s)
        if isinstance(frame.meta, StepTensor):
            self.said.append((frame.kind, frame.meta.step, frame.meta.micro_batch))
        return frame


def test_the_next_steps_activations_leave_before_this_ones_gradients_are_back(
    tmp_path: Path,
) -> None:
    ours, theirs = pair()
    spoken = Spoken(ours)
    thread = ComputeThread(compute_party(tmp_path), theirs)
    run = replace(made(total=4, staleness=1), overlap=False)
    engine = trusted_engine(run, trusted_party(tmp_path), spoken)
    engine.train(batches)
    engine.finish()
    thread.join(20)
    assert thread.error is None
    said = spoken.said
    assert said[:4] == [(Kind.ACTIVATION, step, i) for step in (0, 1) for i in (0, 1)]
    # One more than agreed would be too many: step 2 waits for step 0 and not for step 1.
    begun = said.index((Kind.ACTIVATION, 2, 0))
    assert said.index((Kind.INPUT_GRADIENT, 0, 1)) < begun
    assert begun < said.index((Kind.INPUT_GRADIENT, 1, 0))


def test_no_step_is_told_twice_or_out_of_order_and_all_bytes_are_some_steps(
    tmp_path: Path,
) -> None:
    told: list[Event] = []
    ours, theirs = pair()
    ComputeThread(compute_party(tmp_path), theirs)
    engine = trusted_engine(made(), trusted_party(tmp_path), ours, observe=told.append)
    engine.train(batches)
    done = [event for event in told if isinstance(event, StepDone)]
    assert [event.step for event in done] == list(range(7))
    assert [event.loss for event in done] == engine.losses
    assert len(engine.step_s) == 7
    assert sum(e.sent_bytes for e in done) == (
        engine.sent[Kind.ACTIVATION] + engine.sent[Kind.GRADIENT]
    )
    assert sum(e.received_bytes for e in done) == (
        engine.received[Kind.OUTPUT] + engine.received[Kind.INPUT_GRADIENT]
    )


class Killed(Exception):
    """What stands for a kill -9 with several steps under way."""


def test_a_killed_trusted_party_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    expected, weights = undisturbed(tmp_path, made(every=2))
    ours, theirs = pair()
    thread = ComputeThread(compute_party(tmp_path), theirs)

    def killing(step: int) -> Sequence[Batch]:
        if step == 5:
            raise Killed
        return batches(step)

    party = trusted_party(tmp_path)
    engine = trusted_engine(made(every=2), party, ours)
    with pytest.raises(Killed):
        engine.train(killing)
    party.log.close()
    told: list[Event] = []
    engine = trusted_engine(
        made(every=2), trusted_party(tmp_path), ours.restart(), observe=told.append
    )
    engine.train(batches)
    trunk = engine.finish(fetch=True)
    thread.join(20)
    assert thread.error is None
    assert Began(4, "compute") in told
    assert engine.losses == expected
    assert all(torch.equal(trunk[name], weights[name]) for name in weights)


@pytest.mark.parametrize("step", [1, 5])
def test_a_killed_compute_party_costs_only_time(tmp_path: Path, step: int) -> None:
    expected, weights = undisturbed(tmp_path, made())
    ours, theirs = pair()
    killing = Killing(batches, step, theirs, lambda: compute_party(tmp_path))
    told: list[Event] = []
    engine = trusted_engine(made(), trusted_party(tmp_path), ours, observe=told.append)
    engine.train(killing)
    trunk = engine.finish(fetch=True)
    assert told.count(RolledBack("compute")) == 1
    assert engine.losses == expected
    assert all(torch.equal(trunk[name], weights[name]) for name in weights)


def test_settlements_by_the_clock_drain_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every moment is late for a settlement, the numbers are the same."""
    expected, _ = undisturbed(tmp_path, made())
    monkeypatch.setattr(talk, "SETTLE_S", 0.0)
    assert run_in_memory(tmp_path, made(), steps=batches).losses == expected


def test_no_party_holds_more_versions_than_agreed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most: dict[int, int] = {}
    update = Versions.update

    def watched(self: Versions, step: int, *, stepper: object) -> None:
        update(self, step, stepper=stepper)  # type: ignore[arg-type]
        most[id(self)] = max(most.get(id(self), 0), self.live)

    monkeypatch.setattr(Versions, "update", watched)
    run_in_memory(tmp_path, made(total=9, every=9), steps=batches)
    assert list(most.values()) == [3, 3]


@dataclass
class Rude:
    """A trusted party without gate, session or manners, against a real compute party."""

    ours: MemoryChannel
    seq: int = 0

    def say(self, kind: Kind, meta: Meta, payload: bytes = b"") -> None:
        self.seq += 1
        raw = frames.encode(kind, seq=self.seq, meta=meta, payload=payload)
        self.ours.send(Released(kind=kind, seq=self.seq, raw=raw), deadline_s=5)


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_peer_that_runs_further_ahead_than_agreed_is_refused(
    tmp_path: Path, staleness: int
) -> None:
    run = made(staleness=staleness)
    ours, theirs = pair()
    thread = ComputeThread(compute_party(tmp_path), theirs)
    rude = Rude(ours)
    rude.say(Kind.OFFER, run.offer)
    assert ours.receive(timeout_s=5).kind is Kind.ACCEPT
    parts = tuple(to_part(n, t) for n, t in sorted(run.groups["layers"].items()))
    rude.say(Kind.WEIGHTS, msgspec.convert([0, 1], frames.META[Kind.WEIGHTS]), encode(parts))
    rude.say(Kind.RESUME, Resume(0, 0))
    h_ND = torch.zeros(4, 32)

    def activation(step: int) -> None:
        meta = StepTensor(step, 0, 1, "train", 4, True, (4,), 0)
        rude.say(Kind.ACTIVATION, meta, encode((to_part("x", h_ND),)))

    for step in range(staleness + 1):
        activation(step)
    answered = [ours.receive(timeout_s=20).kind for _ in range(staleness + 2)]
    assert answered == [Kind.READY] + [Kind.OUTPUT] * (staleness + 1)
    activation(staleness + 1)
    thread.join(20)
    assert isinstance(thread.error, SessionError)
    assert f"for train step {staleness + 1} while train step 0 is not finished" in str(thread.error)


@pytest.mark.parametrize("window", [1, 3])
def test_neither_order_nor_window_changes_a_number(tmp_path: Path, window: int) -> None:
    expected, _ = undisturbed(tmp_path, made())
    run = replace(made(), order="fill-drain", in_flight=window)
    assert run_in_memory(tmp_path, run, steps=batches).losses == expected
