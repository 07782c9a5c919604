"""Memory of a step is bounded by the window: live graphs are counted over 4 and over 64 micro-batches."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from splitlearn.engine.trusted import flight
from splitlearn.split.cut import Cut
from splitlearn.split.trunk import Trunk
from tests.chains import chain_run, run_chain
from tests.rig import batch_of
from tests.tiny import tiny_batch, tiny_model


@dataclass
class Alive:
    """How many of the tensors that it was shown are still there, and the most there were at once."""

    seen: list[weakref.ref[Tensor]] = field(default_factory=list)
    most: int = 0

    def show(self, tensor: Tensor) -> None:
        self.seen = [ref for ref in self.seen if ref() is not None] + [weakref.ref(tensor)]
        self.most = max(self.most, len(self.seen))


def most_graphs(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    micro_batches: int,
    in_flight: int,
    order: str,
    starts: tuple[int, ...] = (),
) -> tuple[int, int]:
    """Of one training step with everything training: at the trusted party, and at all compute parties
    together. starts: where the layers of further ones begin.
    """
    bottoms, trunks = Alive(), Alive()
    pause: Callable[[Tensor], Tensor] = flight.pause_at_cut

    def watched(h_BTD: Tensor) -> Tensor:
        if h_BTD.grad_fn is not None:  # what is passed on between two parties has no graph
            bottoms.show(h_BTD)
        return pause(h_BTD)

    def after(module: torch.nn.Module, _: object, output: object) -> None:
        if isinstance(module, Trunk) and isinstance(output, Tensor):
            trunks.show(output)

    parties = 1 + len(starts)
    model = tiny_model("bert", layers=2 + parties)
    cut = Cut(1, 1 + parties)
    run = chain_run(model, cut=cut, starts=starts, total=1, order=order, in_flight=in_flight)
    batches = [
        batch_of(tiny_batch(model, lengths=(4,), width=4, seed=i)) for i in range(micro_batches)
    ]
    with monkeypatch.context() as patch:
        patch.setattr(flight, "pause_at_cut", watched)
        hook = torch.nn.modules.module.register_module_forward_hook(after)
        try:
            run_chain(folder, run, steps=lambda _: batches)
        finally:
            hook.remove()
    return bottoms.most, trunks.most


def test_one_forward_one_backward_holds_as_many_graphs_over_64_micro_batches_as_over_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (
        most_graphs(tmp_path / str(m), monkeypatch, micro_batches=m, in_flight=1, order="1f1b")
        for m in (4, 64)
    )
    assert few[0] == many[0] <= 3
    assert few[1] == many[1] <= 2


def test_fill_drain_holds_every_bottom_and_no_more_trunks_than_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bottoms, trunks = most_graphs(
        tmp_path, monkeypatch, micro_batches=16, in_flight=2, order="fill-drain"
    )
    assert bottoms == 16
    assert trunks <= 3


def test_a_chain_holds_as_many_graphs_over_48_micro_batches_as_over_16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (
        most_graphs(
            tmp_path / str(m),
            monkeypatch,
            micro_batches=m,
            in_flight=2,
            order="1f1b",
            starts=(2, 3),
        )
        for m in (16, 48)
    )
    assert few[0] == many[0] <= 2 * 2 + 3
    assert many[1] <= few[1] + 3 <= 3 * (2 * 2 + 3)
