"""Mode "side": split against unsplit to the bit, permuted labels, and outputs that are kept."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import PreTrainedModel

from splitlearn.audit.log import read_lines
from splitlearn.audit.records import Payload, decode
from splitlearn.channel import pair
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.roles import Kind
from splitlearn.split.bottleneck import PcaBasis, fit_pca
from splitlearn.split.cut import Bottleneck, Cut
from splitlearn.split.freeze import Mode, freeze
from splitlearn.split.merge import merged
from splitlearn.split.side import put_side, tap
from splitlearn.split.stage import factor, split
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import SideSpec
from tests.exactness.test_engine import STEPS, batches, commits
from tests.rig import (
    ComputeThread,
    batch_of,
    compute_party,
    run_in_memory,
    train_unsplit,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import tiny_batch, tiny_model

CUT = Cut(1, 3)
SPEC = SideSpec(taps=(1, 2), rank=8)


def bases(model: PreTrainedModel, spec: SideSpec = SPEC) -> dict[int, PcaBasis]:
    public = [tiny_batch(model, seed=s).inputs for s in range(4)]
    return {layer: fit_pca(model, public, layer=layer + 1, rank=spec.rank) for layer in spec.taps}


def side_run(
    *,
    total: int = STEPS,
    dropout: float = 0.0,
    family: str = "bert",
    cut: Cut = CUT,
    **more: object,
) -> TrustedRun:
    model = tiny_model(family, dropout=dropout)
    return trusted_run(
        model,
        cut=cut,
        total=total,
        mode="side",
        train_bottom=False,
        side=SPEC,
        taps=bases(model),
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize(
    ("family", "cut"),
    [
        ("bert", CUT),
        ("distilbert", CUT),
        ("bart", CUT),
        ("t5", CUT),
        ("bert", Cut(1, 3, lower=Bottleneck("sft", 8))),
    ],
    ids=["bert", "distilbert", "bart", "t5", "narrow"],
)
def test_a_split_run_with_a_side_network_is_the_unsplit_run(
    tmp_path: Path, family: str, cut: Cut, micro: int
) -> None:
    model = tiny_model(family)
    taps = bases(model)
    local, trunk = split(factor(copy.deepcopy(model), cut=cut, bases={}), cut=cut)
    put_side(local, SPEC, width=32, basis=taps[2], seed=0)
    whole = merged(local, trunk=tap(trunk, SPEC, bases=taps), cut=cut)
    freeze(whole, cut=cut, mode="side", train_bottom=False)
    run = side_run(family=family, cut=cut)
    steps: Callable[[int], list[Batch]] = lambda step: batches(model, step, micro=micro)  # noqa: E731
    expected = train_unsplit(whole, run, steps=steps)
    result = run_in_memory(tmp_path, run, steps=steps)
    assert result.losses == expected
    assert result.trunk == {}
    assert len(set(expected)) == STEPS
    trained = merged(result.local, trunk=tap(trunk, SPEC, bases=taps), cut=cut)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, trained.state_dict()[name]), name


def test_permuted_labels_give_byte_identical_egress(all_else_equal: Path) -> None:
    seen = []
    model = tiny_model("bert")
    for shift in (0, 1):
        run = side_run(dropout=0.1)
        run = replace(run, offer=msgspec.structs.replace(run.offer, salt="ab" * 32), overlap=False)

        def steps(step: int, shift: int = shift) -> list[Batch]:
            return [
                replace(b, labels={n: (t + shift) % 3 for n, t in b.labels.items()})
                for b in batches(model, step)
            ]

        room = all_else_equal / str(shift)
        result = run_in_memory(room, run, steps=steps, policy="strict.toml", clock=lambda: 1.7e9)
        seen.append((commits(room / "clinic"), result.losses))
    (one, losses), (other, other_losses) = seen
    assert one == other
    kinds = [kind for kind, _ in one]
    assert kinds.count("activation") == 2 * STEPS
    assert "gradient" not in kinds
    assert losses != other_losses


EPOCH = 3


def epochs(model: PreTrainedModel) -> Callable[[int], Sequence[Batch]]:
    """The same examples every EPOCH steps, in batches of other partners from epoch to epoch."""
    made = [tiny_batch(model, lengths=(9, 4, 6, 7), width=9, seed=s) for s in range(EPOCH)]

    def steps(step: int) -> list[Batch]:
        tiny = made[step % EPOCH]
        whole, turn = batch_of(tiny), step // EPOCH % 4
        order = [(i + turn) % 4 for i in range(4)]
        rows = torch.tensor(order)
        out = []
        for half in (rows[:2], rows[2:]):
            lengths = tuple(whole.lengths[i] for i in half)
            width = max(lengths)
            inputs = {n: t[half, :width] for n, t in whole.inputs.items()}
            labels = {n: t[half] for n, t in whole.labels.items()}
            out.append(Batch(inputs=inputs, labels=labels, lengths=lengths, items=2))
        return out

    return steps


def sent_steps(folder: Path) -> list[int]:
    found = [decode(line) for line, _ in read_lines(folder / "audit")]
    return [
        one.step
        for one in found
        if isinstance(one, Payload) and one.kind is Kind.ACTIVATION and one.direction == "out"
    ]


@pytest.mark.parametrize("mode", ["side", "features"])
def test_after_the_first_epoch_nothing_is_sent(tmp_path: Path, mode: Mode) -> None:
    model = tiny_model("bert")
    if mode == "side":
        run = side_run(total=10, repeats=True)
    else:
        run = trusted_run(
            tiny_model("bert"), cut=CUT, total=10, mode=mode, train_bottom=False, repeats=True
        )
    result = run_in_memory(tmp_path, run, steps=epochs(model))
    assert sent_steps(tmp_path / "clinic") == [0, 0, 1, 1, 2, 2]
    assert len(result.losses) == 10
    assert result.losses[-1] < result.losses[0]
    # Both parties counted on and saved at the same steps.
    for party in ("clinic", "gpuhost"):
        assert {p.name for p in (tmp_path / party / "checkpoints").iterdir()} == {"8", "10"}


def test_a_resumed_run_with_kept_outputs_is_the_undisturbed_one(tmp_path: Path) -> None:
    model = tiny_model("bert")
    undisturbed = run_in_memory(
        tmp_path / "one", side_run(total=10, repeats=True), steps=epochs(model)
    )
    room = tmp_path / "two"
    ours, theirs = pair()
    stop = RuntimeError("killed")

    def dying(step: int) -> Sequence[Batch]:
        if step == 6:  # in the second epoch, two steps past a checkpoint
            raise stop
        return epochs(model)(step)

    party, peer = trusted_party(room), compute_party(room)
    thread = ComputeThread(peer, theirs, deadline_s=5)
    engine = trusted_engine(side_run(total=10, repeats=True), party, ours)
    with pytest.raises(RuntimeError, match="killed"):
        engine.train(dying)
    engine.end(stop)
    ours.close()
    thread.join(20)
    party.log.close()
    peer.log.close()
    result = run_in_memory(room, side_run(total=10, repeats=True), steps=epochs(model))
    assert result.losses == undisturbed.losses
    assert sent_steps(room / "clinic") == [0, 0, 1, 1, 2, 2]


def test_what_finds_no_room_is_asked_for_again(tmp_path: Path) -> None:
    run = replace(side_run(total=6, repeats=True), cache_bytes=4_000)
    run_in_memory(tmp_path, run, steps=epochs(tiny_model("bert")))
    sent = sent_steps(tmp_path / "clinic")
    assert sent[:6] == [0, 0, 1, 1, 2, 2]
    assert 6 < len(sent) < 12
