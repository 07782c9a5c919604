"""What an offer is made into, what no offer may ask for, and the state that a run goes on from."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from splitlearn.engine.compute.loaded import Loaded, build_loaded, go_to
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.errors import SessionError, WireError
from splitlearn.split.cut import Cut
from splitlearn.split.weights import GROUPS, load_weights
from splitlearn.wire.messages import Hops, Neighbour, Offer
from tests.crossed import crossed_model
from tests.rig import trusted_run
from tests.tiny import tiny_model

CUT = Cut(1, 3)
HOPS = Hops(None, Neighbour("farm", "b" * 32, "e" * 64))


def offer(family: str, **changes: Any) -> Offer:
    """To train that model; changes: of the offer, or of its detail."""
    model = crossed_model("bart") if family == "bart-decoder" else tiny_model(family)
    made = trusted_run(model, cut=CUT, total=4).offer
    of = {key: value for key, value in changes.items() if key in Offer.__struct_fields__}
    rest = {key: value for key, value in changes.items() if key not in of}
    return msgspec.structs.replace(made, **of, detail=msgspec.structs.replace(made.detail, **rest))


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (("bert", {"purpose": "generate"}), "sees the tokens after each and has no decoder"),
        (("bart-decoder", {"hops": HOPS}), "nobody hands a memory on over a hop"),
        (("bert", {"memory_trains": True}), "gradients by a memory where there is none"),
        (
            ("bart-decoder", {"memory_trains": True, "returns_input_gradient": False}),
            "gradients by a memory where there is none, or none by its input",
        ),
    ],
)
def test_what_no_trunk_of_ours_does_is_refused_before_it_is_built(
    tmp_path: Path, made: tuple[str, dict[str, Any]], sentence: str
) -> None:
    family, changes = made
    with pytest.raises(WireError, match=sentence):
        build_loaded(offer(family, **changes), Checkpoints(tmp_path))


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "bart-decoder"])
def test_a_trunk_is_a_shape_until_its_weights_come(tmp_path: Path, family: str) -> None:
    loaded = build_loaded(offer(family), Checkpoints(tmp_path))
    assert {weight.device.type for weight in loaded.trunk.parameters()} == {"meta"}
    assert loaded.trains
    assert [int(number) for number in loaded.trunk.layers] == [1, 2]


def filled(folder: Path) -> Loaded:
    run = trusted_run(tiny_model("bert"), cut=CUT, total=4)
    loaded = build_loaded(run.offer, Checkpoints(folder))
    for group in GROUPS:
        load_weights(loaded.trunk, run.groups[group], group=group)
    return loaded


def test_a_run_goes_on_from_its_own_checkpoint_and_from_no_other(tmp_path: Path) -> None:
    loaded = filled(tmp_path)
    go_to(loaded, 0)
    assert loaded.checkpoints.held() == (0,)
    weight = next(loaded.trunk.parameters())
    before = weight.detach().clone()
    with torch.no_grad():
        weight.add_(1.0)
    loaded.checkpoints.save(2, model=loaded.trunk, stepper=loaded.stepper, extra={})
    again = filled(tmp_path)
    go_to(again, 2)
    assert torch.equal(next(again.trunk.parameters()), before + 1)
    # Step 0 is the weights as offered, and what came after them is gone.
    anew = filled(tmp_path)
    go_to(anew, 0)
    assert torch.equal(next(anew.trunk.parameters()), before)
    assert anew.checkpoints.held() == (0,)
    with pytest.raises(SessionError, match="resumes at step 2; we hold"):
        go_to(filled(tmp_path), 2)
