import torch
from torch import Tensor

from splitlearn.leakage.public import pad, positions_of, rows_of, study
from tests.leakage.room import SPECIAL, embeddings, encoder, known_of, looked_up, noise, texts
from tests.tiny import VOCABULARY


def test_rows_come_in_the_order_of_the_texts_whatever_their_lengths() -> None:
    known = encoder(layers=1)
    some = texts(9, seed=5)
    one_by_one = torch.cat([known.forward(torch.tensor([text]), (len(text),)) for text in some])
    torch.testing.assert_close(rows_of(known, some), one_by_one, atol=1e-5, rtol=1e-5)


def test_many_texts_go_through_the_bottom_in_several_batches() -> None:
    sizes: list[int] = []
    table_VD = embeddings()
    look_up = looked_up(table_VD)

    def forward(ids_BT: Tensor, lengths: tuple[int, ...]) -> Tensor:
        sizes.append(ids_BT.numel())
        return look_up(ids_BT, lengths)

    some = texts(1500, seed=5)
    rows_NR = rows_of(known_of(forward, table_VD), some)
    assert len(sizes) > 1
    assert max(sizes) <= 4096
    assert torch.equal(rows_NR, table_VD[[token for text in some for token in text]])


def test_padding_and_places_follow_the_lengths() -> None:
    ids_BT, lengths = pad([(4, 5), (6,)])
    assert ids_BT.tolist() == [[4, 5], [6, 0]]
    assert positions_of(lengths).tolist() == [0, 1, 0]
    assert positions_of(()).tolist() == []


def test_held_out_texts_are_none_that_were_trained_on() -> None:
    table_VD = embeddings()
    known = known_of(looked_up(table_VD), table_VD, text=tuple((0, v, v, 1) for v in range(2, 60)))
    public = study(known, seed=0)
    assert not set(public.held_out.ids_N.tolist()) & set(public.train.ids_N.tolist()) - SPECIAL
    assert len(public.held_out.lengths) == 6  # a tenth of 58 texts, begun ones whole
    assert public.counts_V.sum() == len(public.train.ids_N)


def test_every_entry_that_carries_text_is_planted_and_no_special_token_is_overwritten() -> None:
    table_VD = embeddings()
    known = known_of(looked_up(table_VD), table_VD, text=texts(40, seed=1, words=20))
    planted = study(known, seed=0).planted
    assert set(range(2, VOCABULARY)) <= set(planted.ids_N.tolist())
    ends = torch.tensor(planted.lengths).cumsum(0) - 1
    assert bool((planted.ids_N[ends] == 1).all())
    assert torch.equal(planted.rows_NR, table_VD[planted.ids_N])


def test_planting_stops_at_its_budget_and_at_texts_without_room() -> None:
    table_VD = embeddings()
    known = known_of(looked_up(table_VD), table_VD)
    planted = study(known, seed=0, planted_tokens=30).planted
    assert 30 <= len(planted.ids_N) < 30 + 12
    bare = known_of(noise(), table_VD, text=((0, 1), (0, 1), (0, 1)))
    assert set(study(bare, seed=0).planted.ids_N.tolist()) == {0, 1}


def test_the_same_seed_studies_the_same_and_another_does_not() -> None:
    table_VD = embeddings()
    known = known_of(looked_up(table_VD), table_VD)
    a, b, c = (study(known, seed=seed).planted.ids_N for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
