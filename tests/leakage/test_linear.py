import pytest
import torch

from splitlearn.leakage.known import Known
from splitlearn.leakage.linear import Centre, fit_profile, means, nearest, ridge
from splitlearn.leakage.public import Corpus, study
from splitlearn.leakage.score import recovery
from tests.leakage.room import WIDTH, embeddings, encoder, known_of, looked_up, noise, victim

ATTACKS = [nearest, ridge, means]


def turned() -> Known:
    """Rows are embeddings turned by a random rotation that no public basis undoes."""
    table_VD = embeddings()
    rotation_DD = torch.linalg.qr(
        torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(5))
    )[0]
    return known_of(looked_up(table_VD, rotation_DD=rotation_DD), table_VD)


@pytest.mark.parametrize("attack", ATTACKS)
def test_rows_that_are_embeddings_are_read_whole(attack) -> None:
    table_VD = embeddings()
    known = known_of(looked_up(table_VD), table_VD)
    seen, truth = victim(known)
    guess = attack(known, seen, study(known, seed=0), seed=0)
    assert recovery(guess, truth, known=known).top1 == 1.0
    assert guess.held_out == 1.0


@pytest.mark.parametrize("attack", [ridge, means])
def test_an_unknown_rotation_is_inverted_by_what_learns_and_not_by_what_does_not(attack) -> None:
    known = turned()
    seen, truth = victim(known)
    public = study(known, seed=0)
    assert recovery(attack(known, seen, public, seed=0), truth, known=known).top1 == 1.0
    assert recovery(nearest(known, seen, public, seed=0), truth, known=known).top1 < 0.3


@pytest.mark.parametrize("attack", ATTACKS)
def test_rows_of_a_tiny_encoder_are_read_behind_its_first_layer(attack) -> None:
    known = encoder(layers=1)
    seen, truth = victim(known)
    assert (
        recovery(attack(known, seen, study(known, seed=0), seed=0), truth, known=known).top1 > 0.9
    )


@pytest.mark.parametrize("attack", ATTACKS)
def test_noise_tells_no_more_than_the_most_frequent_token(attack) -> None:
    known = known_of(noise(), embeddings())
    seen, truth = victim(known, count=200)
    found = recovery(attack(known, seen, study(known, seed=0), seed=0), truth, known=known)
    share = sum(text.count(2) for text in truth.ids) / found.tokens
    assert found.top1 < share + 0.05


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_same_seed_gives_the_same_candidates(attack) -> None:
    known = encoder(layers=1, rank=6)
    seen, _ = victim(known)
    a, b = (attack(known, seen, study(known, seed=4), seed=4) for _ in range(2))
    assert torch.equal(a.ranked_NK, b.ranked_NK)
    assert a.held_out == b.held_out


def test_means_find_entries_that_the_text_lacks_because_they_were_planted() -> None:
    known = encoder(layers=1)
    few = tuple(text for text in known.text if max(text) < 40)
    known = Known(
        forward=known.forward,
        embeddings_VD=known.embeddings_VD,
        expand=known.expand,
        text=few,
        special=known.special,
    )
    seen, truth = victim(known, count=200)
    found = recovery(means(known, seen, study(known, seed=0), seed=0), truth, known=known)
    assert found.unseen > 20
    assert found.unseen_top1 is not None
    assert found.unseen_top1 > 0.9


def test_a_row_is_taken_off_the_mean_of_its_place_where_that_was_seen_often() -> None:
    rows_NR = torch.arange(80.0)[:, None]
    centre = Centre.of(Corpus(rows_NR, torch.zeros(80, dtype=torch.int64), (2,) * 39 + (1, 1)))
    # Place 0 was seen 41 times and place 1 39 times; nothing was seen beyond.
    first, second = rows_NR[0:78:2].sum() + 78 + 79, rows_NR[1:78:2].mean()
    off = centre(torch.zeros(3, 1), torch.tensor([0, 1, 7]))
    torch.testing.assert_close(off[:, 0], -torch.stack([first / 41, second, rows_NR.mean()]))


def test_a_profile_weighs_directions_by_how_rows_of_one_entry_vary_in_them() -> None:
    known = encoder(layers=1, rank=6)
    profile = fit_profile(known, study(known, seed=0))
    x_NR = profile.centre(known.forward(torch.tensor([[0, 5, 6, 1]]), (4,)), torch.arange(4))
    apart = (x_NR[:, None] - profile.means_VR) @ profile.whiten_RR
    by_hand = (profile.prior_weight * profile.log_prior_V - apart.square().sum(2) / 2).argmax(1)
    assert torch.equal(profile.rank_centred(x_NR)[:, 0], by_hand)
