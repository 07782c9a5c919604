import pytest
import torch

from splitlearn.leakage.inverter import inverter
from splitlearn.leakage.public import study
from splitlearn.leakage.score import recovery
from tests.leakage.room import embeddings, encoder, known_of, noise, victim


@pytest.mark.parametrize("kind", ["mlp", "transformer"])
def test_a_trained_inverter_reads_a_tiny_encoder(kind) -> None:
    known = encoder(layers=1)
    seen, truth = victim(known)
    guess = inverter(known, seen, study(known, seed=0), seed=0, kind=kind, steps=150)
    assert recovery(guess, truth, known=known).top1 > 0.9
    assert guess.attack == f"inverter-{kind}"
    assert guess.budget["steps"] == 150
    assert guess.budget["examples"] > 150 * 400


def test_more_steps_recover_more() -> None:
    known = encoder(layers=1, rank=6)
    public = study(known, seed=0)
    seen, truth = victim(known, count=100)
    few, many = (
        recovery(inverter(known, seen, public, seed=0, kind="mlp", steps=steps), truth, known=known)
        for steps in (2, 50)
    )
    assert many.top1 > few.top1 + 0.2


def test_the_same_seed_gives_the_same_candidates_and_leaves_the_global_state() -> None:
    known = encoder(layers=1, rank=6)
    public = study(known, seed=0)
    seen, _ = victim(known)
    state = torch.get_rng_state()
    a, b, c = (inverter(known, seen, public, seed=seed, steps=5).ranked_NK for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(torch.get_rng_state(), state)


def test_noise_tells_no_more_than_the_most_frequent_token() -> None:
    known = known_of(noise(), embeddings())
    seen, truth = victim(known, count=200)
    found = recovery(
        inverter(known, seen, study(known, seed=0), seed=0, steps=30), truth, known=known
    )
    share = sum(text.count(2) for text in truth.ids) / found.tokens
    assert found.top1 < share + 0.05
