import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForPreTraining

from splitlearn.errors import ManifestError, WireError
from splitlearn.pretrain.discriminator import DiscriminatorTrainer
from splitlearn.pretrain.scores import area_under_curve
from splitlearn.wire.ids import IdBatch, pack, unpack
from tests.babble import WIDTH, discriminator_settings, lines, vocabulary

KNOWN = vocabulary()


def made(*, seed: int = 1, learning_rate: float = 3e-3) -> DiscriminatorTrainer:
    settings = discriminator_settings(learning_rate=learning_rate)
    return DiscriminatorTrainer.build(settings, vocabulary=KNOWN, seed=seed)


def batch(number: int, *, count: int = 4) -> IdBatch:
    """Sentences in which every sixth place or so has an id that this language never has there."""
    rng = np.random.default_rng(number)
    examples, flags = [], []
    for line in lines(4_000)[number * count : number * count + count]:
        ids = np.array([KNOWN.cls, *KNOWN.encode(line), KNOWN.sep], dtype=np.int32)[:WIDTH]
        replaced = rng.random(len(ids)) < 0.17
        replaced[[0, -1]] = False
        other = rng.integers(5, KNOWN.size, len(ids)).astype(np.int32)
        replaced &= other != ids
        examples.append(np.where(replaced, other, ids).astype(np.int32))
        flags.append(replaced)
    return IdBatch(np.concatenate(examples), np.concatenate(flags), tuple(map(len, examples)))


def test_a_step_is_the_same_wherever_the_batch_was_made() -> None:
    here, there = made(), made()
    for number in range(3):
        some = batch(number)
        sent = unpack(
            pack(some, vocabulary=KNOWN.size), lengths=some.lengths, vocabulary=KNOWN.size
        )
        assert here.train(some) == there.train(sent)
    assert here.digest() == there.digest()
    assert here.steps == 3
    assert made(seed=2).train(batch(0)) != made().train(batch(0))


def test_what_a_step_reports_is_counted_over_ordinary_tokens() -> None:
    trainer, some = made(), batch(0)
    step = trainer.train(some)
    ordinary = ~np.isin(some.ids, list(KNOWN.special))
    assert step.tokens == len(some.ids)
    assert step.replaced == pytest.approx(some.replaced.sum() / ordinary.sum())
    assert 0 <= step.accuracy <= 1
    assert step.loss == pytest.approx(np.log(2), abs=0.2)


def test_the_score_rises_with_training_and_is_that_of_the_models_logits() -> None:
    trainer = made(learning_rate=1e-2)
    held = [batch(number) for number in range(900, 910)]
    before = trainer.score(held)
    for number in range(150):
        trainer.train(batch(number))
    digest, after = trainer.digest(), trainer.score(iter(held))
    assert trainer.digest() == digest
    assert before.auc is not None
    assert after.auc is not None
    assert after.auc > max(0.75, before.auc + 0.1)
    assert after.loss < before.loss
    logits, labels = [], []
    trainer.model.eval()
    for some in held:
        start = 0
        for length in some.lengths:
            ids = some.ids[start : start + length]
            with torch.no_grad():
                found = trainer.model(torch.from_numpy(ids).long()[None]).logits[0].numpy()
            ordinary = ~np.isin(ids, list(KNOWN.special))
            logits.append(found[ordinary])
            labels.append(some.replaced[start : start + length][ordinary])
            start += length
    flat = np.concatenate(logits), np.concatenate(labels)
    assert after.auc == pytest.approx(area_under_curve(flat[0], positive=flat[1]), abs=1e-4)
    assert after.accuracy == pytest.approx(((flat[0] > 0) == flat[1]).mean(), abs=1e-3)
    assert after.tokens == len(flat[0])


def test_a_score_of_one_kind_only_has_no_area_and_none_at_all_is_refused() -> None:
    some = batch(0)
    own = dataclasses.replace(some, replaced=np.zeros(len(some.ids), dtype=np.bool_))
    assert made().score([own]).auc is None
    with pytest.raises(ManifestError, match="no token to score"):
        made().score([])


def test_a_saved_discriminator_goes_on_to_the_bit(tmp_path: Path) -> None:
    undisturbed, saved, loaded = made(), made(), made()
    for number in range(2):
        undisturbed.train(batch(number))
        saved.train(batch(number))
    saved.save(tmp_path / "state")
    loaded.load(tmp_path / "state")
    assert loaded.steps == 2
    for number in range(2, 4):
        assert undisturbed.train(batch(number)) == loaded.train(batch(number))
    assert loaded.digest() == undisturbed.digest()


def test_an_exported_discriminator_is_electras(tmp_path: Path) -> None:
    trainer = made()
    trainer.train(batch(0))
    trainer.export(tmp_path / "model")
    loaded = AutoModelForPreTraining.from_pretrained(tmp_path / "model")
    assert type(loaded).__name__ == "ElectraForPreTraining"
    ids = torch.from_numpy(batch(5).ids[:9]).long()[None]
    trainer.model.eval()
    with torch.no_grad():
        assert loaded.eval()(ids).logits.equal(trainer.model(ids).logits)


def test_an_example_that_is_too_long_is_the_peers_fault_and_trains_nothing() -> None:
    trainer = made()
    before = trainer.digest()
    long = IdBatch(
        np.full(WIDTH + 1, 9, dtype=np.int32), np.zeros(WIDTH + 1, dtype=np.bool_), (WIDTH + 1,)
    )
    for refuse in (trainer.train, lambda some: trainer.score([some])):
        with pytest.raises(WireError, match="25 tokens came, and the discriminator takes 24"):
            refuse(long)
    assert trainer.digest() == before


def test_a_loss_that_is_no_number_is_said() -> None:
    trainer = made()
    with torch.no_grad():
        trainer.model.get_input_embeddings().weight.fill_(float("nan"))
    with pytest.raises(ManifestError, match="the discriminator's loss or gradient"):
        trainer.train(batch(0))
    assert trainer.steps == 0
