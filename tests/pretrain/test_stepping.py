import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from splitlearn.errors import AuditError, ManifestError
from splitlearn.pretrain.settings import TrainingSettings
from splitlearn.pretrain.stepping import Stepper


def made(*, width: int = 3, clip: float = 1.0) -> Stepper:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 4), nn.Linear(4, 1))
    settings = TrainingSettings(total_steps=20, learning_rate=0.1, warmup_steps=4, clip=clip)
    return Stepper(model, settings=settings)


def step(stepper: Stepper, value: float = 1.0) -> None:
    stepper.step(stepper.model(torch.full((2, 3), float(value))).square().sum(), name="generator")


def test_a_saved_state_goes_on_to_the_bit(tmp_path: Path) -> None:
    undisturbed, saved, loaded = made(), made(), made()
    for number in range(3):
        step(undisturbed, number)
        step(saved, number)
    saved.save(tmp_path / "state", extra={"index": 5})
    step(loaded)
    assert loaded.load(tmp_path / "state") == {"index": 5}
    assert loaded.steps == 3
    assert loaded.digest() == saved.digest()
    for number in range(3):
        step(undisturbed, number)
        step(loaded, number)
    assert loaded.digest() == undisturbed.digest() != saved.digest()


def test_the_digest_changes_with_any_part_of_the_state() -> None:
    stepper = made()
    digests = {stepper.digest()}
    step(stepper)
    digests.add(stepper.digest())
    stepper.steps += 1
    digests.add(stepper.digest())
    with torch.no_grad():
        next(stepper.model.parameters())[0, 0] += 1
    digests.add(stepper.digest())
    entry = next(iter(stepper._optimiser.state.values()))
    entry["exp_avg"][0] += 1
    digests.add(stepper.digest())
    assert len(digests) == 5


def test_the_rate_rises_and_falls_and_gradients_are_clipped() -> None:
    stepper = made(clip=1e-3)
    rates = []
    for _ in range(20):
        rates.append(stepper._optimiser.param_groups[0]["lr"])
        before = [p.detach().clone() for p in stepper.model.parameters()]
        loss = 1e6 * stepper.model(torch.ones(2, 3)).sum()
        loss.backward()
        stepper._optimiser.zero_grad()
        step(stepper)
        assert all(p.isfinite().all() for p in before)
    assert rates[0] == 0
    assert max(rates) == rates[4] == pytest.approx(0.1)
    assert rates == sorted(rates[:5]) + sorted(rates[5:], reverse=True)
    assert stepper._optimiser.param_groups[0]["lr"] == pytest.approx(0)


def test_only_matrices_decay() -> None:
    decays = {
        parameter.ndim: group["weight_decay"]
        for group in made()._optimiser.param_groups
        for parameter in group["params"]
    }
    assert decays == {2: 0.01, 1: 0.0}


def test_a_loss_that_is_no_number_steps_nothing_and_says_what_to_do() -> None:
    stepper = made()
    step(stepper)
    before = stepper.digest()
    with pytest.raises(ManifestError, match="lower learning rate or more warm-up steps"):
        step(stepper, float("nan"))
    assert stepper.digest() == before
    step(stepper)
    assert stepper.steps == 2


def test_a_crash_between_the_renames_loses_nothing(tmp_path: Path) -> None:
    first, second = made(), made()
    step(first)
    first.save(tmp_path / "state", extra={})
    (tmp_path / "state").rename(tmp_path / ".state.gone")
    (tmp_path / ".state.part").mkdir()
    second.load(tmp_path / "state")
    assert second.digest() == first.digest()
    step(second)
    second.save(tmp_path / "state", extra={})
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    first.load(tmp_path / "state")
    assert first.digest() == second.digest()


def test_a_state_of_another_model_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    stepper = made()
    step(stepper)
    stepper.save(tmp_path / "state", extra={})
    other = made(width=5)
    before = other.digest()
    with pytest.raises(ManifestError, match="another model"):
        other.load(tmp_path / "state")
    assert other.digest() == before
    (tmp_path / "state" / "weights.safetensors").write_bytes(b"damaged")
    with pytest.raises(ManifestError, match="cannot be used"):
        made().load(tmp_path / "state")
    with pytest.raises(ManifestError, match="cannot be used"):
        made().load(tmp_path / "none")


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError, match="choose another run folder"):
        made().save(tmp_path / "file" / "state", extra={})


def test_dropout_is_the_seeds_whoever_else_draws() -> None:
    stepper, found = made(), []
    outside = torch.random.get_rng_state()

    def draw() -> None:
        with stepper.dropping(5):
            found.append(torch.rand(3).tolist())

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(each == found[0] for each in found)
    assert torch.random.get_rng_state().equal(outside)
