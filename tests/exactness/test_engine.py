"""Ten steps through gates, logs, sessions and a channel against ten steps of the unsplit model.

Losses and final weights must be equal to the bit: float32, identity codec, no low-rank cut, no
dropout, one thread. tests/exactness/test_in_process.py compares gradients stage by stage.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from splitlearn.audit.log import read_lines
from splitlearn.audit.records import Payload, decode
from splitlearn.channel import Channel, Listener, connect, pair
from splitlearn.engine.plain import evaluate_plain
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.roles import Kind, Role
from splitlearn.split.blueprint import build_trunk
from splitlearn.split.cut import Bottleneck, Cut
from splitlearn.split.freeze import Mode, freeze
from splitlearn.split.merge import merged
from splitlearn.split.weights import GROUPS, load_weights, trunk_groups
from splitlearn.tasks.batches import Batch
from splitlearn.wire import frames
from splitlearn.wire.frames import Frame
from tests.federation import make_identity
from tests.rig import (
    Around,
    ComputeThread,
    Result,
    batch_of,
    compute_party,
    run_in_memory,
    train_unsplit,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import DECODERS, TASKS, WRITERS, joined_batch, tiny_batch, tiny_model

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra")
CUTS = (Cut(1, 2), Cut(2, 3), Cut(1, 3))
STEPS = 10


def batches(model: PreTrainedModel, step: int, *, micro: int = 2) -> list[Batch]:
    """Different padded micro-batches at each step."""
    return [
        batch_of(tiny_batch(model, lengths=(9 - i, 4 + step % 3, 6), width=9, seed=100 * step + i))
        for i in range(micro)
    ]


def whole_weights(
    result: Result, run_cut: Cut, offer_trunk: dict[str, Tensor]
) -> dict[str, Tensor]:
    trunk = build_trunk(result.engine.run.offer.model, cut=result.engine.run.offer.cut)
    # What never trains does not come home.
    every = {**result.engine.run.groups["layers"], **offer_trunk}
    for group in GROUPS:
        names = trunk_groups(trunk)[group]
        load_weights(trunk, {name: every[name] for name in names}, group=group)
    return merged(result.local, trunk=trunk, cut=run_cut).state_dict()


def plain(
    model: PreTrainedModel, *, cut: Cut, mode: Mode, train_bottom: bool, seed: int = 0
) -> tuple[list[float], dict[str, Tensor]]:
    freeze(model, cut=cut, mode=mode, train_bottom=train_bottom)
    run = trusted_run(copy.deepcopy(model), cut=cut, total=STEPS)
    losses = train_unsplit(model, run, steps=lambda step: batches(model, step), seed=seed)
    return losses, model.state_dict()


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_split_run_is_the_unsplit_run(tmp_path: Path, family: str, task: str, cut: Cut) -> None:
    model = tiny_model(family, task=task)
    expected, weights = plain(copy.deepcopy(model), cut=cut, mode="full", train_bottom=True)
    run = trusted_run(model, cut=cut, total=STEPS)
    result = run_in_memory(tmp_path, run, steps=lambda step: batches(model, step))
    assert result.losses == expected
    found = whole_weights(result, cut, result.trunk)
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, found[name]), name


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("family", [*DECODERS, *WRITERS])
def test_a_split_decoders_run_is_the_unsplit_run(tmp_path: Path, family: str, micro: int) -> None:
    """With the head tied to embeddings that train: both parts' gradients go into one weight."""

    def steps(step: int) -> list[Batch]:
        return batches(model, step, micro=micro)

    assert_a_decoders_run(tmp_path, model := tiny_model(family), steps=steps)


@pytest.mark.parametrize("family", ["gpt2", "mistral"])
def test_texts_joined_to_rows_train_as_in_the_unsplit_run(tmp_path: Path, family: str) -> None:
    def steps(step: int) -> list[Batch]:
        rows = [((4, 3, 5, 2), 8), ((2, 2, 2, 7, 1), 9)]
        return [
            batch_of(joined_batch(lengths=lengths, width=width, seed=2 * step + i))
            for i, (lengths, width) in enumerate(rows)
        ]

    model = tiny_model(family)
    model.config.joined_texts = True
    assert_a_decoders_run(tmp_path, model, steps=steps)


def assert_a_decoders_run(
    tmp_path: Path, model: PreTrainedModel, *, steps: Callable[[int], list[Batch]]
) -> None:
    cut, whole = Cut(1, 3), copy.deepcopy(model)
    freeze(whole, cut=cut, mode="full", train_bottom=True)
    run = trusted_run(model, cut=cut, total=STEPS)
    expected = train_unsplit(whole, run, steps=steps)
    result = run_in_memory(tmp_path, run, steps=steps)
    assert result.losses == expected
    found = whole_weights(result, cut, result.trunk)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, found[name]), name


@pytest.mark.parametrize(("mode", "train_bottom"), [("features", False), ("full", False)])
def test_a_frozen_part_is_frozen_on_both_sides(
    tmp_path: Path, mode: Mode, train_bottom: bool
) -> None:
    model, cut = tiny_model("bert"), Cut(1, 3)
    expected, weights = plain(copy.deepcopy(model), cut=cut, mode=mode, train_bottom=train_bottom)
    run = trusted_run(model, cut=cut, total=STEPS, mode=mode, train_bottom=train_bottom)
    before = {**run.groups["layers"]}
    result = run_in_memory(tmp_path, run, steps=lambda step: batches(model, step))
    assert result.losses == expected
    assert (result.trunk == {}) is (mode == "features")
    found = whole_weights(result, cut, result.trunk or before)
    for name, tensor in weights.items():
        assert torch.equal(tensor, found[name]), name


@contextmanager
def over_tls(folder: Path, *, run: str) -> Iterator[tuple[Channel, Channel]]:
    """The clinic's end of a real channel and gpuhost's."""
    trusted = make_identity(folder, "clinic", Role.TRUSTED)
    compute = make_identity(folder, "gpuhost", Role.COMPUTE)
    listener = Listener(
        "127.0.0.1:0",
        identity=compute,
        expect_roles=frozenset({Role.TRUSTED}),
        peer=trusted.name,
    )
    try:
        ours = connect(
            f"127.0.0.1:{listener.port}",
            identity=trusted,
            peer=compute.name,
            run=run,
            deadline_s=10,
        )
        yield ours, listener.accept(timeout_s=10)
        ours.close()
    finally:
        listener.close()


def test_over_the_real_channel_the_bits_are_the_same(tmp_path: Path) -> None:
    model, cut = tiny_model("bert", task="question-answering"), Cut(1, 3)
    expected, _ = plain(copy.deepcopy(model), cut=cut, mode="full", train_bottom=True)
    run = trusted_run(model, cut=cut, total=STEPS)
    with over_tls(tmp_path, run=run.offer.run) as (ours, theirs):
        thread = ComputeThread(compute_party(tmp_path), theirs)
        engine = trusted_engine(run, trusted_party(tmp_path), ours)
        engine.train(lambda step: batches(model, step))
        engine.finish()
        thread.join(20)
    assert thread.error is None
    assert engine.losses == expected


def test_with_dropout_the_same_seed_gives_the_same_losses_twice(tmp_path: Path) -> None:
    losses = []
    for attempt, seed in (("a", 0), ("b", 0), ("c", 1)):
        model = tiny_model("bert", dropout=0.2)
        run = trusted_run(model, cut=Cut(1, 3), total=STEPS, seed=seed)
        result = run_in_memory(
            tmp_path / attempt, run, steps=lambda step, m=model: batches(m, step)
        )
        losses.append(result.losses)
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_an_evaluation_gives_the_unsplit_models_logits(tmp_path: Path) -> None:
    model, cut = tiny_model("roberta"), Cut(1, 3)
    whole = copy.deepcopy(model)
    rows = [batches(model, step)[0] for step in range(70)]
    run = trusted_run(model, cut=cut, total=1)
    parties = trusted_party(tmp_path), compute_party(tmp_path)
    ours, theirs = pair()
    ComputeThread(parties[1], theirs)
    engine = trusted_engine(run, parties[0], ours)
    found = engine.evaluate(rows)
    expected = evaluate_plain(whole, batches=rows, observe=lambda _: None)
    assert len(found) == len(rows)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one["logits"], other["logits"])


def commits(party_folder: Path) -> list[tuple[str, str]]:
    """Kind and bytes of each payload that left, and with one salt its commitment."""
    records = (decode(line) for line, _ in read_lines(party_folder / "audit"))
    out = [r for r in records if isinstance(r, Payload) and r.direction == "out"]
    return [(r.kind, r.commit) for r in out]


def permuted(shift: int, *, codec: str) -> tuple[TrustedRun, Callable[[int], Sequence[Batch]]]:
    """A run in `features` mode and its batches, each label `shift` classes on."""
    model = tiny_model("bert", dropout=0.1)
    run = trusted_run(
        model,
        cut=Cut(1, 3, upper=Bottleneck("sft", 4)),
        total=STEPS,
        mode="features",
        train_bottom=False,
        codec=codec,
    )
    # All in turn: the head in a settlement is one of a log in one order.
    run = replace(run, offer=msgspec.structs.replace(run.offer, salt="ab" * 32), overlap=False)

    def steps(step: int) -> list[Batch]:
        return [
            replace(b, labels={n: (t + shift) % 3 for n, t in b.labels.items()})
            for b in batches(model, step)
        ]

    return run, steps


@pytest.mark.parametrize("codec", ["identity", "int8+zstd"])
def test_in_features_mode_permuted_labels_give_byte_identical_egress(
    all_else_equal: Path, codec: str
) -> None:
    seen = []
    for shift in (0, 1):
        run, steps = permuted(shift, codec=codec)
        room = all_else_equal / str(shift)
        result = run_in_memory(room, run, steps=steps, policy="strict.toml", clock=lambda: 1.7e9)
        seen.append((commits(room / "clinic"), result.losses))
    (one, losses), (other, other_losses) = seen
    assert one == other
    assert "settle" in [kind for kind, _ in one]
    assert [kind for kind, _ in one].count("activation") == 2 * STEPS
    assert losses != other_losses


@dataclass
class Tap(Around):
    """The far end of a channel, and every byte of a frame that came out of it."""

    heard: list[bytes] = field(default_factory=list)

    def receive(self, *, timeout_s: float) -> Frame:
        frame = self.inner.receive(timeout_s=timeout_s)
        self.heard.append(bytes(frame.raw))
        return frame


@pytest.mark.parametrize("codec", ["identity", "int8+zstd"])
def test_in_features_mode_permuted_labels_give_the_same_bytes_over_the_real_channel(
    all_else_equal: Path, codec: str
) -> None:
    seen = []
    for shift in (0, 1):
        run, steps = permuted(shift, codec=codec)
        room = all_else_equal / str(shift)
        party = trusted_party(room, policy="strict.toml", clock=lambda: 1.7e9)
        peer = compute_party(room, clock=lambda: 1.7e9)
        with over_tls(room, run=run.offer.run) as (ours, theirs):
            tap = Tap(theirs)
            thread = ComputeThread(peer, tap, overlap=run.overlap)
            engine = trusted_engine(run, party, ours)
            engine.train(steps)
            engine.finish()
            thread.join(20)
        assert thread.error is None
        seen.append((tap.heard, engine.losses))
    (one, losses), (other, other_losses) = seen
    assert one == other
    kinds = [frames.decode(raw).kind for raw in one]
    assert kinds.count(Kind.ACTIVATION) == 2 * STEPS
    assert Kind.SETTLE in kinds
    assert Kind.GRADIENT not in kinds
    assert losses != other_losses


def test_the_cuts_of_this_file_are_first_middle_and_last() -> None:
    layers = 4
    assert {c.first for c in CUTS} >= {1, layers // 2}
    assert max(c.last for c in CUTS) == layers - 1
    assert len(list(itertools.product(FAMILIES, TASKS, CUTS))) == 54
