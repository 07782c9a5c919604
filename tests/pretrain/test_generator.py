from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from splitlearn.errors import ManifestError
from splitlearn.pretrain.generator import GeneratorTrainer, MaskedPlaces, check_width
from splitlearn.pretrain.models import build_generator
from splitlearn.wire.ids import IdBatch, pack
from tests.babble import WIDTH, generator_settings, model, text_file, vocabulary

KNOWN = vocabulary()
Maker = Callable[..., GeneratorTrainer]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    folder = tmp_path_factory.mktemp("text")
    text = text_file(folder)

    def made(*, seed: int = 1, learning_rate: float = 3e-3) -> GeneratorTrainer:
        settings = generator_settings(text, learning_rate=learning_rate)
        return GeneratorTrainer.build(
            settings, vocabulary=KNOWN, seed=seed, scratch=folder / "scratch"
        )

    return made


def same(first: IdBatch, second: IdBatch) -> bool:
    return (
        np.array_equal(first.ids, second.ids)
        and np.array_equal(first.replaced, second.replaced)
        and first.lengths == second.lengths
    )


def test_a_step_trains_and_corrupts_and_a_run_can_be_repeated(make: Maker) -> None:
    first, again, other = make(), make(), make(seed=2)
    for index in range(3):
        assert first.index == first.steps == index
        (batch, loss), (twin, same_loss) = first.step(), again.step()
        assert same(batch, twin)
        assert loss == same_loss
        own = np.concatenate(first.corpus.batch(index))
        assert np.array_equal(batch.replaced, batch.ids != own)
        assert 0.05 < batch.replaced.mean() <= 0.16
        pack(batch, vocabulary=KNOWN.size)
    assert first.digest() == again.digest()
    assert not same(other.step()[0], batch)


def test_the_loss_falls_on_text_that_never_trained(make: Maker) -> None:
    trainer = make(learning_rate=1e-2)
    before = np.mean([trainer.held_out_loss(number)[1] for number in range(3)])
    for _ in range(60):
        trainer.step()
    after = np.mean([trainer.held_out_loss(number)[1] for number in range(3)])
    assert after < before - 0.5


def test_held_out_batches_train_nothing_and_stay_the_same(make: Maker) -> None:
    trainer = make()
    trainer.step()
    before = trainer.digest()
    first = trainer.held_out(1)
    assert same(first, trainer.held_out(1))
    assert not same(first, trainer.held_out(0))
    assert trainer.digest() == before
    assert trainer.index == 1
    undisturbed = make()
    undisturbed.step()
    assert same(trainer.step()[0], undisturbed.step()[0])


def test_a_saved_generator_goes_on_to_the_bit(make: Maker, tmp_path: Path) -> None:
    undisturbed, saved, loaded = make(), make(), make()
    for _ in range(2):
        undisturbed.step()
        saved.step()
    saved.save(tmp_path / "state")
    loaded.load(tmp_path / "state")
    assert loaded.index == 2
    for _ in range(2):
        (batch, loss), (twin, same_loss) = undisturbed.step(), loaded.step()
        assert same(batch, twin)
        assert loss == same_loss
    assert loaded.digest() == undisturbed.digest()


def test_batches_are_skipped_forwards_and_never_made_twice(make: Maker) -> None:
    trainer = make()
    trainer.step()
    trainer.skip_to(7)
    assert (trainer.index, trainer.steps) == (7, 1)
    batch, _ = trainer.step()
    own = np.concatenate(trainer.corpus.batch(7))
    assert np.array_equal(batch.ids != own, batch.replaced)
    with pytest.raises(ManifestError, match="no batch is trained twice"):
        trainer.skip_to(7)
    trainer.skip_to(8)


def test_an_exported_generator_loads(make: Maker, tmp_path: Path) -> None:
    trainer = make()
    trainer.step()
    trainer.export(tmp_path / "model")
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    ids = torch.tensor([[KNOWN.cls, KNOWN.mask, KNOWN.sep]])
    trainer.model.eval()
    with torch.no_grad():
        assert loaded.eval()(ids).logits.equal(trainer.model(ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").mask_token_id == KNOWN.mask


def test_a_state_without_an_index_is_none_of_a_generator(make: Maker, tmp_path: Path) -> None:
    trainer = make()
    trainer._stepper.save(tmp_path / "state", extra={})
    with pytest.raises(ManifestError, match="none of a generator"):
        trainer.load(tmp_path / "state")


def test_a_rate_that_is_too_high_is_said(make: Maker) -> None:
    trainer = make()
    with torch.no_grad():
        trainer.model.get_input_embeddings().weight.fill_(float("nan"))
    with pytest.raises(ManifestError, match="the generator's loss or gradient is no finite number"):
        trainer.step()
    assert trainer.index == 0


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
def test_logits_at_some_places_are_those_of_the_whole_model(family: str) -> None:
    sizes = {"vocab_size": 50, "max_position_embeddings": 20, "pad_token_id": 0}
    if family == "distilbert":
        sizes |= {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
    else:
        sizes |= {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        sizes |= {"intermediate_size": 32}
    whole = AutoModelForMaskedLM.from_config(AutoConfig.for_model(family, **sizes)).eval()
    places = MaskedPlaces(whole)
    ids = torch.randint(5, 50, (3, 8), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    wanted = torch.rand(3, 8, generator=torch.Generator().manual_seed(1)) < 0.3
    some = places.logits(whole, ids_BT=ids, attention_BT=mask, places_BT=wanted)
    all_ = whole(input_ids=ids, attention_mask=mask).logits
    assert all_.shape == (3, 8, 50)
    torch.testing.assert_close(some, all_[wanted])


def test_a_model_without_a_head_and_one_that_is_too_short_are_refused() -> None:
    maker = build_generator(model(16), vocabulary=KNOWN, seed=0)
    with pytest.raises(ManifestError, match="no masked-LM head"):
        MaskedPlaces(maker.base_model)
    check_width(maker, width=WIDTH, name="generator")
    with pytest.raises(ManifestError, match="longer than the 24 that the generator takes"):
        check_width(maker, width=WIDTH + 1, name="generator")
