import torch

from splitlearn.leakage.linear import fit_profile, means
from splitlearn.leakage.public import study
from splitlearn.leakage.refine import refine
from splitlearn.leakage.score import recovery
from tests.leakage.room import embeddings, encoder, known_of, noise, victim


def test_refinement_finds_what_the_attack_before_it_missed() -> None:
    known = encoder(layers=2, rank=3)
    public = study(known, seed=0)
    profile = fit_profile(known, public)
    seen, truth = victim(known)
    start = means(known, seen, public, seed=0, profile=profile)
    guess = refine(known, seen, start, profile, seed=0)
    before, after = (recovery(found, truth, known=known) for found in (start, guess))
    assert before.top1 < 0.9
    assert after.top1 > before.top1 + 0.1
    assert 0 < guess.budget["found"] <= 1


def test_a_guess_that_matches_every_row_is_left_alone() -> None:
    known = encoder(layers=2)
    public = study(known, seed=0)
    profile = fit_profile(known, public)
    seen, truth = victim(known)
    start = means(known, seen, public, seed=0, profile=profile)
    ids_N = torch.tensor([token for text in truth.ids for token in text])
    start.ranked_NK[:, 0] = ids_N
    guess = refine(known, seen, start, profile, seed=0)
    assert torch.equal(guess.ranked_NK[:, 0], ids_N)
    assert guess.budget["found"] == 1.0
    assert guess.budget["forward_tokens"] == 2 * len(ids_N)  # a look, and no trial


def test_candidates_are_each_named_once() -> None:
    known = encoder(layers=2, rank=4)
    public = study(known, seed=0)
    profile = fit_profile(known, public)
    seen, _ = victim(known, count=5)
    start = means(known, seen, public, seed=0, profile=profile)
    for candidates in refine(known, seen, start, profile, seed=0).ranked_NK.tolist():
        assert len(set(candidates)) == len(candidates)


def test_refinement_stops_at_its_budget() -> None:
    known = encoder(layers=2, rank=3)
    public = study(known, seed=0)
    profile = fit_profile(known, public)
    seen, _ = victim(known)
    start = means(known, seen, public, seed=0, profile=profile)
    guess = refine(known, seen, start, profile, seed=0, budget_tokens=1000)
    assert guess.budget["forward_tokens"] <= 1000 + len(seen.rows_NR)


def test_noise_tells_no_more_than_the_most_frequent_token() -> None:
    known = known_of(noise(columns=4), embeddings(), expand=lambda rows: rows @ embeddings()[:4])
    public = study(known, seed=0)
    profile = fit_profile(known, public)
    seen, truth = victim(known, count=60)
    start = means(known, seen, public, seed=0, profile=profile)
    found = recovery(refine(known, seen, start, profile, seed=0), truth, known=known)
    share = sum(text.count(2) for text in truth.ids) / found.tokens
    assert found.top1 < share + 0.05
