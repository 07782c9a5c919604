import pytest
import torch

from splitlearn.leakage import score
from splitlearn.leakage.known import Guess, Truth
from splitlearn.leakage.score import baselines, first_right, ranked, recovery
from tests.leakage.room import embeddings, known_of, looked_up, texts, victim
from tests.tiny import VOCABULARY


def guess(*candidates: tuple[int, ...]) -> Guess:
    return Guess("by hand", 7, 3, torch.tensor(candidates), budget={"seconds": 1.5})


@pytest.fixture
def known():
    table_VD = embeddings()
    return known_of(looked_up(table_VD), table_VD, text=((0, 5, 6, 1), (0, 7, 1)))


def test_shares_are_those_counted_by_hand(known) -> None:
    truth = Truth(
        ((0, 5, 8, 9, 1), (0, 6, 1)),
        ((True, True, False, True, False), (False, False, False)),
    )
    found = recovery(
        guess((0, 0), (5, 8), (5, 8), (9, 5), (0, 0), (0, 0), (5, 7), (0, 0)), truth, known=known
    )
    assert found.tokens == 4  # 5, 8, 9 and 6; begin and end are not text
    assert found.top1 == 2 / 4  # 5 and 9
    assert found.top20 == 3 / 4  # 8 too
    assert (found.unseen, found.unseen_top1) == (2, 1 / 2)  # of 8 and 9, the latter
    assert (found.slots, found.slots_top1) == (2, 1.0)  # 5 and 9; a mark on a special token is void
    assert (found.attack, found.version, found.seed) == ("by hand", 7, 3)
    assert found.budget == {"seconds": 1.5}


def test_where_nothing_is_unseen_or_marked_there_is_no_share(known) -> None:
    found = recovery(guess((0,), (5,), (1,)), Truth(((0, 5, 1),)), known=known)
    assert (found.unseen, found.unseen_top1, found.slots, found.slots_top1) == (0, None, 0, None)
    assert found.top1 == 1.0


def test_only_twenty_candidates_count(known) -> None:
    late = (0, 1, 2, 3, 4, *range(6, 21), 5)
    assert recovery(guess(late), Truth(((5,),)), known=known).top20 == 0.0
    assert recovery(guess(late[1:]), Truth(((5,),)), known=known).top20 == 1.0


def test_a_text_of_special_tokens_scores_nothing(known) -> None:
    found = recovery(guess((0,), (1,)), Truth(((0, 1),)), known=known)
    assert (found.tokens, found.top1, found.top20) == (0, 0.0, 0.0)
    assert first_right(torch.tensor([[0]]), torch.tensor([0]), special={0}) == 0.0


def test_ranking_by_chunks_is_ranking_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x_ND, keys_DV = torch.randn(50, 8), torch.randn(8, VOCABULARY)
    at_once = (x_ND @ keys_DV).argsort(dim=1, descending=True)[:, :10]
    monkeypatch.setattr(score, "CHUNK_SCORES", 7 * VOCABULARY)
    sizes: list[int] = []

    def scores(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return x @ keys_DV

    assert torch.equal(ranked(scores, x_ND, vocabulary=VOCABULARY, kept=10), at_once)
    assert max(sizes) == 7
    assert ranked(scores, x_ND[:0], vocabulary=VOCABULARY, kept=10).shape == (0, 10)


def test_baselines_are_the_most_frequent_tokens_and_chance() -> None:
    table_VD = embeddings()
    known = known_of(looked_up(table_VD), table_VD)
    seen, truth = victim(known, count=200)
    frequent, random = baselines(known, rows=len(seen.rows_NR), seed=0)
    assert frequent.ranked_NK[0, 0] == 2  # the entry that `texts` draws most
    found, chance = (recovery(guess, truth, known=known) for guess in (frequent, random))
    share = sum(text.count(2) for text in truth.ids) / found.tokens
    assert found.top1 == pytest.approx(share)
    assert 0 < chance.top1 < 0.06  # one of 58
    assert not set(random.ranked_NK.unique().tolist()) & known.special
    assert len(texts(3, seed=0)) == 3
