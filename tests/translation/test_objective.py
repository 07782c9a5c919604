import torch
from torch.nn import functional
from transformers import BertConfig

from splitlearn.translation import DecoderShape, Objective, Source, TargetDecoder
from splitlearn.translation.frozen import build_bert
from splitlearn.translation.objective import loss_of, mask_targets
from splitlearn.translation.text import pad

TARGETS = pad([[2, 10, 11, 12, 3], [2, 13, 3], [2, 3]], fill=0)


def test_masks_fall_on_words_alone_and_follow_from_the_seed() -> None:
    masked = mask_targets(TARGETS, mask=4, seed=7)
    assert torch.equal(masked.ids_BT == 4, masked.chosen_BT)
    assert not masked.chosen_BT[:, 0].any()
    assert masked.chosen_BT[1].tolist() == [False, True, False, False, False]
    assert not masked.chosen_BT[2].any()
    assert torch.equal(mask_targets(TARGETS, mask=4, seed=7).chosen_BT, masked.chosen_BT)


def test_every_number_of_masks_is_as_likely_as_any_other() -> None:
    counts = [int(mask_targets(TARGETS, mask=4, seed=s).chosen_BT[0].sum()) for s in range(600)]
    assert all(150 < counts.count(number) < 250 for number in (1, 2, 3))


def test_the_loss_is_smoothed_cross_entropy_over_masked_words_and_that_of_lengths(
    config: BertConfig, writable: torch.Tensor
) -> None:
    shape = DecoderShape(inner=16, reach=4)
    half = TargetDecoder(build_bert(config, seed=1), words_V=writable, shape=shape, seed=2)
    source = Source(torch.randn(3, 6, 32), (6, 4, 5))
    masked = mask_targets(TARGETS, mask=4, seed=7)
    found = loss_of(
        half, source=source, targets=TARGETS, masked=masked, objective=Objective(length=0.5)
    )
    h_BTD = half(masked.ids_BT, lengths=TARGETS.lengths, source=source)
    wanted_M = TARGETS.ids_BT[masked.chosen_BT] - 10
    words = functional.cross_entropy(
        half.scores(h_BTD[masked.chosen_BT]), wanted_M, label_smoothing=0.1
    )
    longer_B = torch.tensor([5 - 6 + 1, 3 - 4 + 1, 2 - 5 + 1]) + 4
    lengths = functional.cross_entropy(half.length_scores(source), longer_B)
    assert torch.allclose(found, words + 0.5 * lengths)


def test_words_that_may_not_be_written_are_not_asked_for(config: BertConfig) -> None:
    shape = DecoderShape(inner=16, reach=4)
    half = TargetDecoder(
        build_bert(config, seed=1), words_V=torch.tensor([10, 11]), shape=shape, seed=2
    )
    source, targets = Source(torch.randn(1, 4, 32), (4,)), pad([[2, 12, 13, 3]], fill=0)
    masked = mask_targets(targets, mask=4, seed=1)
    loss = loss_of(
        half, source=source, targets=targets, masked=masked, objective=Objective(length=0.0)
    )
    assert loss.item() == 0.0
