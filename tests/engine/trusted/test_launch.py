"""Where a micro-batch stands and when it goes; whole steps are held to in tests/exactness."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from splitlearn.engine.payloads.exchange import rows_in
from splitlearn.engine.trusted.flight import pause_at_cut
from splitlearn.engine.trusted.launch import Launcher
from splitlearn.engine.trusted.line import Line
from splitlearn.pipeline import Op
from splitlearn.roles import Kind
from splitlearn.split.anatomy import layers_of
from splitlearn.split.cut import Cut
from splitlearn.split.freeze import Mode
from splitlearn.split.stage import remote_stage
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import StepTensor
from tests.rig import batch_of, trusted_run
from tests.tiny import tiny_batch, tiny_model

BATCH = batch_of(tiny_batch(tiny_model("bert"), lengths=(9, 4, 6)))


@dataclass
class Tensors:
    """What stands for a line's: notes what is sent, and never answers."""

    sent: list[Kind] = field(default_factory=list)

    def send(self, kind: Kind, *_: object) -> None:
        self.sent.append(kind)

    def rows(self, batch: Batch, place: StepTensor) -> int:
        return rows_in(batch, place)


def launcher(
    folder: Path,
    tensors: Tensors,
    *,
    mode: Mode = "features",
    repeats: bool = False,
    family: str = "bert",
) -> Launcher:
    run = trusted_run(
        tiny_model(family), cut=Cut(1, 3), total=2, mode=mode, train_bottom=False, repeats=repeats
    )
    remote_stage(run.local).exchange = pause_at_cut
    lines = cast(Sequence[Line], [SimpleNamespace(tensors=tensors)])
    return Launcher(run, lines, folder=folder)


def place(phase: str) -> StepTensor:
    return StepTensor(0, 0, 1, phase, 9, True, BATCH.lengths, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", ["train", "evaluate"])
def test_a_forward_begins_with_its_activation_and_its_rows_are_counted(
    phase: str, tmp_path: Path
) -> None:
    tensors = Tensors()
    launch = launcher(tmp_path, tensors)
    launch.begin(BATCH, place(phase))
    assert tensors.sent == [Kind.ACTIVATION]
    assert launch.rows == {"train": 0, "evaluate": 0} | {phase: sum(BATCH.lengths)}


@pytest.mark.parametrize("family", ["bert", "distilbert", "gpt2", "llama", "marian", "t5"])
def test_what_is_kept_whole_is_asked_of_nobody_and_needs_no_bottom(
    family: str, tmp_path: Path
) -> None:
    tensors = Tensors()
    launch = launcher(tmp_path, tensors, repeats=True, family=family)
    batch = batch_of(tiny_batch(tiny_model(family), lengths=(9, 4, 6)))
    assert not launch.held([batch])
    assert launch._outputs is not None
    launch._outputs.put(batch, torch.randn((3, 9, 32)))
    assert launch.held([batch])
    ran: list[bool] = []
    layers_of(launch._run.local)[0].register_forward_hook(lambda *_: ran.append(True))
    loss = launch.begin(batch, place("train"), recalled=True).top()["loss"]
    assert tensors.sent == []
    assert launch.rows["train"] == 0
    # The bottom's output is of no use to anybody, but T5's first layer has the table of all others.
    assert bool(ran) is (family == "t5")
    passage = launch.begin(batch, place("train"))
    assert ran
    passage._recalled = True  # what came back, beside a bottom that ran
    assert torch.equal(passage.top()["loss"], loss)


def test_gradients_stand_in_the_order_only_where_they_leave(tmp_path: Path) -> None:
    launch = launcher(tmp_path, Tensors(), mode="full")
    ops = {action.op for action in launch.order(3, gradients=True)}
    assert ops == {Op.BOTTOM, Op.TOP}  # the bottom stands still: nothing comes back to it
    assert not launch.held([BATCH])
