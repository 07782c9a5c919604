import numpy as np
import pytest
import torch

from splitlearn.errors import ManifestError
from splitlearn.pretrain.masking import choose, corrupt, masked, sample
from tests.babble import lines, vocabulary

KNOWN = vocabulary()


def examples(number: int = 8) -> list[np.ndarray]:
    return [
        np.array([KNOWN.cls, *KNOWN.encode(line), KNOWN.sep], dtype=np.int32)
        for line in lines(number)
    ]


def test_fifteen_percent_of_the_ordinary_tokens_of_each_example_are_masked() -> None:
    some = examples(50)
    chosen = choose(some, vocabulary=KNOWN, seed=1)
    for ids, marks in zip(some, np.split(chosen, np.cumsum(list(map(len, some)))), strict=False):
        assert marks.sum() == max(1, round(0.15 * (len(ids) - 2)))
        assert not marks[[0, -1]].any()
    assert chosen.tolist() == choose(some, vocabulary=KNOWN, seed=1).tolist()
    assert chosen.tolist() != choose(some, vocabulary=KNOWN, seed=2).tolist()


def test_every_ordinary_place_is_masked_as_often_as_another() -> None:
    one = examples(1)
    times = sum(choose(one, vocabulary=KNOWN, seed=seed).astype(int) for seed in range(2_000))
    ordinary = times[1:-1]
    assert 0.8 * ordinary.mean() < ordinary.min()
    assert ordinary.max() < 1.2 * ordinary.mean()


def test_masked_ids_are_hidden_and_no_others() -> None:
    ids = np.concatenate(examples(4))
    chosen = choose(examples(4), vocabulary=KNOWN, seed=3)
    hidden = masked(ids, chosen, vocabulary=KNOWN)
    assert set(hidden[chosen].tolist()) == {KNOWN.mask}
    assert (hidden[~chosen] == ids[~chosen]).all()
    assert hidden.dtype == np.int32


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_what_is_drawn_follows_the_softmax(temperature: float) -> None:
    logits = torch.randn(1, KNOWN.size, generator=torch.Generator().manual_seed(0))
    drawn = sample(logits.expand(20_000, -1), vocabulary=KNOWN, seed=4, temperature=temperature)
    found = np.bincount(drawn, minlength=KNOWN.size) / len(drawn)
    logits[:, sorted(KNOWN.special)] = -torch.inf
    expected = (logits[0].double() / temperature).softmax(0).numpy()
    assert np.abs(found - expected).sum() < 0.1
    assert found[sorted(KNOWN.special)].sum() == 0


def test_logits_beyond_the_vocabulary_are_not_drawn_and_extremes_are_exact() -> None:
    logits = torch.full((50, KNOWN.size + 30), -1e9)
    logits[:, KNOWN.size :] = 1e9
    logits[:, KNOWN.size - 1] = 0.0
    assert set(sample(logits, vocabulary=KNOWN, seed=1).tolist()) == {KNOWN.size - 1}


def test_several_processes_draw_what_one_would() -> None:
    logits = torch.randn(9, KNOWN.size, generator=torch.Generator().manual_seed(1))
    whole = sample(logits, vocabulary=KNOWN, seed=5)
    parts = [
        sample(logits[start:stop], vocabulary=KNOWN, seed=5, first=start)
        for start, stop in ((0, 4), (4, 4), (4, 9))
    ]
    assert np.concatenate(parts).tolist() == whole.tolist()


def test_no_gradient_passes_the_draw() -> None:
    logits = torch.randn(3, KNOWN.size, requires_grad=True)
    sample(logits, vocabulary=KNOWN, seed=1)
    assert logits.grad is None


def test_a_place_is_replaced_only_where_the_draw_is_another_id() -> None:
    some = examples(3)
    ids = np.concatenate(some)
    chosen = choose(some, vocabulary=KNOWN, seed=6)
    drawn = ids[chosen].copy()
    drawn[0] = KNOWN.size - 1 if drawn[0] != KNOWN.size - 1 else KNOWN.size - 2
    batch = corrupt(some, chosen_N=chosen, drawn_M=drawn)
    assert batch.replaced.sum() == 1
    assert batch.lengths == tuple(map(len, some))
    assert np.flatnonzero(batch.replaced)[0] == np.flatnonzero(chosen)[0]
    assert (batch.ids[~batch.replaced] == ids[~batch.replaced]).all()


def test_settings_and_texts_that_mask_nothing_are_refused() -> None:
    with pytest.raises(ManifestError, match="more than 0 and less than 1"):
        choose(examples(1), vocabulary=KNOWN, seed=0, share=1.0)
    with pytest.raises(ManifestError, match="temperature of 0"):
        sample(torch.zeros(1, KNOWN.size), vocabulary=KNOWN, seed=0, temperature=0)
    unknown = [np.array([KNOWN.cls, KNOWN.unk, KNOWN.sep], dtype=np.int32)]
    with pytest.raises(ManifestError, match="nothing to mask"):
        choose(unknown, vocabulary=KNOWN, seed=0)
