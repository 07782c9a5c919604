"""Where a run goes on from, when what the two parties hold does not match."""

import shutil
from pathlib import Path

import pytest

from splitlearn.channel import pair
from splitlearn.engine.state.checkpoints import Checkpoints
from splitlearn.engine.state.optimiser import Stepper
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.errors import SessionError
from splitlearn.split.cut import Cut
from splitlearn.tasks.batches import Batch
from tests.rig import (
    ComputeThread,
    batch_of,
    compute_party,
    run_in_memory,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import tiny_batch, tiny_model

TOTAL = 2


def run_of(seed: int) -> TrustedRun:
    """Two steps of a model whose weights come from `seed`; its name is always the same."""
    return trusted_run(tiny_model("bert", seed=seed), cut=Cut(1, 3), total=TOTAL)


def steps(step: int) -> list[Batch]:
    return [batch_of(tiny_batch(tiny_model("bert"), seed=step))]


def test_a_run_begun_anew_takes_nothing_from_an_older_one_of_its_name(tmp_path: Path) -> None:
    fresh = run_in_memory(tmp_path / "fresh", run_of(5), steps=steps)
    both = tmp_path / "both"
    older = run_in_memory(both, run_of(0), steps=steps)
    assert older.losses != fresh.losses
    shutil.rmtree(both / "clinic")
    assert run_in_memory(both, run_of(5), steps=steps).losses == fresh.losses


def test_a_run_whose_peer_lost_its_checkpoints_ends_in_a_line_that_says_so(tmp_path: Path) -> None:
    run_in_memory(tmp_path, run_of(0), steps=steps)
    shutil.rmtree(tmp_path / "gpuhost" / "checkpoints")
    shutil.rmtree(tmp_path / "clinic" / "checkpoints" / "0")
    trusted, compute = trusted_party(tmp_path), compute_party(tmp_path)
    ours, theirs = pair()
    thread = ComputeThread(compute, theirs)
    engine = trusted_engine(run_of(0), trusted, ours)
    with pytest.raises(SessionError, match=r"no checkpoint .* \(ours are \(2,\), theirs \(\)\)"):
        engine.train(steps)
    ours.close(reason="the run was stopped here by a SessionError")
    thread.join(20)
    for party in (trusted, compute):
        party.log.close()


def test_a_crash_in_the_middle_of_a_removal_leaves_no_half_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, held = tiny_model("bert"), Checkpoints(tmp_path)
    for step in (4, 8):
        held.save(step, model=model, stepper=Stepper(None, None), extra={})

    def crash(place: Path, *, ignore_errors: bool = False) -> None:
        del ignore_errors
        for file in list(place.glob("w*")):
            file.unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", crash)
        with pytest.raises(KeyboardInterrupt):
            held.drop_after(4)
    assert held.held() == (4,)
    held.save(8, model=model, stepper=Stepper(None, None), extra={})
    assert held.held() == (4, 8)
