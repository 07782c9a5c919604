"""Seeds that depend on the place in the run and on nothing else."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.engine.state.seeds import Draws, offer_seed, seeded, stage_seed

places = st.tuples(
    st.integers(0, 10), st.integers(0, 10**7), st.integers(0, 4095), st.sampled_from("abc")
)


@given(places, places)
def test_two_places_have_two_seeds(
    one: tuple[int, int, int, str], two: tuple[int, int, int, str]
) -> None:
    seeds = [
        stage_seed(seed, step=step, micro_batch=mb, stage=stage)
        for seed, step, mb, stage in (one, two)
    ]
    assert (seeds[0] == seeds[1]) is (one == two)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_place_done_again_draws_the_same_numbers() -> None:
    drawn = []
    for _ in range(2):
        with seeded(3, step=5, micro_batch=1, stage="trunk"):
            drawn.append(torch.rand(4))
        torch.rand(100)
    assert torch.equal(*drawn)


def test_each_party_of_a_chain_is_offered_a_seed_of_its_own() -> None:
    for seed in (*range(50), 10**7):
        offered = [offer_seed(seed, party=party) for party in range(8)]
        assert offered[0] == seed
        assert len(set(offered)) == 8
        assert all(0 <= each <= 10**7 for each in offered)


def test_a_stream_goes_on_where_it_stopped_whatever_else_is_drawn_in_between() -> None:
    alone = torch.rand(6, generator=torch.Generator().manual_seed(4))
    draws, parts = Draws(4), []
    before = torch.get_rng_state()
    for _ in range(3):
        with draws.drawing():
            parts.append(torch.rand(2))
    assert torch.equal(torch.get_rng_state(), before)
    with seeded(0, step=0, micro_batch=0, stage="trunk"):
        torch.rand(5)
    assert torch.equal(torch.cat(parts), alone)
