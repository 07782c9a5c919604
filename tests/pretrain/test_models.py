from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertModel,
    ElectraForPreTraining,
)

from splitlearn.errors import AuditError, ManifestError
from splitlearn.pretrain.models import (
    build_discriminator,
    build_generator,
    export_model,
    positions_of,
    rename_embeddings,
)
from splitlearn.pretrain.permutation import Permutation
from splitlearn.pretrain.settings import ModelSettings
from splitlearn.pretrain.vocabulary import load_vocabulary
from tests.babble import WIDTH, lines, model, vocabulary

KNOWN = vocabulary()


def test_a_model_is_that_of_its_seed_and_leaves_torchs_own_alone() -> None:
    outside = torch.random.get_rng_state()
    first, again, other = (
        build_generator(model(16), vocabulary=KNOWN, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.random.get_rng_state().equal(outside)
    states = [each.state_dict() for each in (first, again, other)]
    assert all(states[0][name].equal(states[1][name]) for name in states[0])
    assert not all(states[0][name].equal(states[2][name]) for name in states[0])


def test_what_is_built_is_electra_with_the_vocabularys_sizes() -> None:
    maker = build_generator(model(16), vocabulary=KNOWN, seed=0)
    judge = build_discriminator(model(32), vocabulary=KNOWN, seed=0)
    assert maker.get_output_embeddings().weight is maker.get_input_embeddings().weight
    assert maker.config.vocab_size == judge.config.vocab_size == KNOWN.size
    assert isinstance(judge, ElectraForPreTraining)
    assert positions_of(judge) == WIDTH
    assert next(judge.parameters()).dtype == torch.float32


@pytest.mark.parametrize("kind", [build_generator, build_discriminator])
def test_an_exported_folder_loads_everywhere_and_here_again(tmp_path: Path, kind) -> None:
    built = kind(model(16), vocabulary=KNOWN, seed=3).eval()
    export_model(built, vocabulary=KNOWN, folder=tmp_path / "out" / "model")
    folder = tmp_path / "out" / "model"
    ids = torch.tensor([[KNOWN.cls, *KNOWN.encode(lines(1)[0]), KNOWN.sep]])
    base = AutoModel.from_pretrained(folder).eval()
    whole = kind(ModelSettings(path=str(folder)), vocabulary=KNOWN, seed=9).eval()
    with torch.no_grad():
        assert base(ids).last_hidden_state.equal(built.base_model(ids).last_hidden_state)
        assert whole(ids).logits.equal(built(ids).logits)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer(lines(1)[0])["input_ids"] == ids[0].tolist()
    assert tokenizer.pad_token_id == KNOWN.pad
    assert tokenizer.mask_token_id == KNOWN.mask
    assert tokenizer.model_max_length == WIDTH
    assert load_vocabulary(folder).digest == KNOWN.digest
    # Once more over the old one.
    export_model(built, vocabulary=KNOWN, folder=folder)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_a_generator_of_another_family_is_loaded(tmp_path: Path, family: str) -> None:
    sizes = {"vocab_size": KNOWN.size + 5, "max_position_embeddings": 40, "pad_token_id": KNOWN.pad}
    if family == "distilbert":
        sizes |= {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
    else:
        sizes |= {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        sizes |= {"intermediate_size": 32}
    other = AutoModelForMaskedLM.from_config(AutoConfig.for_model(family, **sizes))
    export_model(other, vocabulary=KNOWN, folder=tmp_path / family)
    settings = ModelSettings(path=str(tmp_path / family))
    loaded = build_generator(settings, vocabulary=KNOWN, seed=0)
    assert loaded.config.model_type == family
    assert positions_of(loaded) == (39 if family == "roberta" else 40)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    judge = build_discriminator(model(16), vocabulary=KNOWN, seed=3)
    export_model(judge, vocabulary=KNOWN, folder=tmp_path / "judge")
    settings = ModelSettings(path=str(tmp_path / "judge"))
    with pytest.raises(ManifestError, match="lacks 5 weights of a ElectraForMaskedLM"):
        build_generator(settings, vocabulary=KNOWN, seed=0)
    (tmp_path / "judge" / "tokenizer.json").write_text(
        KNOWN.text.replace("[MASK]", "<mask>"), encoding="utf-8"
    )
    with pytest.raises(ManifestError, match="take the vocabulary that the others have"):
        build_discriminator(settings, vocabulary=KNOWN, seed=0)
    (tmp_path / "judge" / "tokenizer.json").unlink()
    with pytest.raises(ManifestError, match="cannot be loaded"):
        build_discriminator(settings, vocabulary=KNOWN, seed=0)
    with pytest.raises(ManifestError, match="cannot be loaded"):
        build_generator(ModelSettings(path=str(tmp_path / "none")), vocabulary=KNOWN, seed=0)


def test_fewer_embeddings_than_ids_are_refused(tmp_path: Path) -> None:
    small = AutoModelForMaskedLM.from_config(
        AutoConfig.for_model(
            "bert",
            vocab_size=KNOWN.size - 1,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
        )
    )
    export_model(small, vocabulary=KNOWN, folder=tmp_path / "small")
    with pytest.raises(ManifestError, match="take a model of this vocabulary"):
        build_generator(ModelSettings(path=str(tmp_path / "small")), vocabulary=KNOWN, seed=0)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    judge = build_discriminator(model(16), vocabulary=KNOWN, seed=3)
    with pytest.raises(AuditError, match="export again"):
        export_model(judge, vocabulary=KNOWN, folder=tmp_path / "file" / "model")


def test_a_model_trained_on_renamed_ids_is_given_back_its_names() -> None:
    judge = build_discriminator(model(16), vocabulary=KNOWN, seed=3).eval()
    permutation = Permutation(bytes(32), size=KNOWN.size, special=KNOWN.special)
    ids = np.array([KNOWN.cls, *KNOWN.encode(lines(1)[0]), KNOWN.sep], dtype=np.int32)
    with torch.no_grad():
        secret = judge(torch.from_numpy(permutation.permute(ids)).long()[None]).logits
        rename_embeddings(judge, permutation=permutation)
        open_ = judge(torch.from_numpy(ids).long()[None]).logits
    assert open_.equal(secret)


def test_a_discriminator_may_begin_from_an_encoder_of_berts_kind(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bert = BertModel(
        BertConfig(
            vocab_size=KNOWN.size,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=48,
            max_position_embeddings=WIDTH,
        ),
        add_pooling_layer=False,  # many exports lack it
    ).eval()
    export_model(bert, vocabulary=KNOWN, folder=tmp_path / "bert")
    settings = ModelSettings(path=str(tmp_path / "bert"))
    found = build_discriminator(settings, vocabulary=KNOWN, seed=1).eval()
    assert isinstance(found, ElectraForPreTraining)
    ids = torch.tensor([[KNOWN.cls, *KNOWN.encode(lines(1)[0]), KNOWN.sep]])
    with torch.no_grad():
        assert found.electra(ids).last_hidden_state.equal(bert(ids).last_hidden_state)
    export_model(found, vocabulary=KNOWN, folder=tmp_path / "out")
    again = build_discriminator(
        ModelSettings(path=str(tmp_path / "out")), vocabulary=KNOWN, seed=2
    ).eval()
    assert again(ids).logits.equal(found(ids).logits)
