import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from splitlearn.split.memory import LINE_BYTES, align_file, own_memory
from tests.tiny import real_model_folder, tiny_model


def test_owned_weights_lie_on_cache_lines_and_keep_their_values() -> None:
    model = AutoModelForSequenceClassification.from_pretrained(real_model_folder(), num_labels=3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    identities = [id(p) for p in model.parameters()]
    own_memory(model)
    assert all(p.data_ptr() % LINE_BYTES == 0 for p in model.parameters())
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert [id(p) for p in model.parameters()] == identities


def test_weights_written_after_are_not_seen_through_the_old_memory() -> None:
    model = tiny_model("bert")
    weight = next(model.parameters())
    old = weight.data
    own_memory(model)
    old.fill_(3.0)
    assert not bool((weight == 3.0).any())


def test_an_aligned_file_holds_the_same_tensors_and_metadata(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    state = {
        "a.bias": torch.randn(3),
        "b.weight": torch.randn(5, 16),
        "c.weight": torch.randn(2, 7),
        "d": torch.arange(32, dtype=torch.int64),
        "e": torch.ones((), dtype=torch.float16),
    }
    save_file(state, file, metadata={"format": "pt"})
    align_file(file)
    found = load_file(file)
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    raw = file.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    assert header.pop("__metadata__") == {"format": "pt"}
    assert start % LINE_BYTES == 0
    for name in ("b.weight", "d"):
        assert header[name]["data_offsets"][0] % LINE_BYTES == 0


def test_transformers_maps_an_aligned_file_onto_cache_lines(tmp_path: Path) -> None:
    tiny_model("bert").save_pretrained(tmp_path)
    align_file(tmp_path / "model.safetensors")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    odd = [n for n, p in loaded.named_parameters() if p.data_ptr() % LINE_BYTES]
    assert odd == []
