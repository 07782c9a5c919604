"""A split model put together again, and its folder on disk.

Without a bottleneck the folder is a plain transformers folder. With one the model is no longer what
its model type says, so its weights lie under a name that transformers does not look for: loading it
as a plain model fails at once, where otherwise it would run with some weights at random.
"""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol, cast

import msgspec
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from splitlearn.data.quiet import quiet
from splitlearn.errors import ManifestError
from splitlearn.split.anatomy import depth_of, family_of, layers_of, replace_layers
from splitlearn.split.crossing import take_back
from splitlearn.split.cut import Cut, fault
from splitlearn.split.families import FAMILIES
from splitlearn.split.memory import align_file, own_memory
from splitlearn.split.side import Ladder, SideStage, ladder_in, lay_ladder
from splitlearn.split.stage import RemoteStage, Slots, lay_out, slots_of, uncuttable
from splitlearn.split.trunk import Trunk
from splitlearn.wire.messages import SideSpec

__all__ = [
    "CUT_FILE",
    "WEIGHTS_FILE",
    "Tokenizer",
    "joined_trunk",
    "load_merged",
    "merged",
    "save_merged",
]

CUT_FILE = "splitlearn_cut.json"
WEIGHTS_FILE = "splitlearn.safetensors"


class Tokenizer(Protocol):
    """What is asked of a tokenizer here."""

    def save_pretrained(self, save_directory: str) -> object: ...


def merged(local: PreTrainedModel, *, trunk: Trunk, cut: Cut) -> PreTrainedModel:
    """The unsplit model, bottlenecks in place, in evaluation mode. Both parts are copied, not gradients."""
    model = copy.deepcopy(local)
    slots = slots_of(model, cut=cut)
    assert isinstance(slots.trunk[0], RemoteStage)
    # Where a layer refers to the trunk's config, its copy refers to the model's.
    inner = [
        copy.deepcopy(part, {id(trunk.config): model.config}) for part in Trunk.in_order(trunk)
    ]
    stage = slots_of(local, cut=cut).trunk[0]
    if isinstance(stage, SideStage):
        inner = [ladder_in(stage, trunk, inner)]
    elif any(not isinstance(module, RemoteStage) for module in slots.trunk):
        inner = _among(slots, dict(zip(map(int, trunk.layers), inner, strict=True)))
    replace_layers(model, [*slots.bottom, *inner, *slots.top])
    take_back(model)
    model.requires_grad_(True)
    model.zero_grad()
    return cast(PreTrainedModel, model.train(False))


def _among(slots: Slots, layers: Mapping[int, nn.Module]) -> list[nn.Module]:
    """The layers of several parties in their order, with those of ours that stand between two of them."""
    inner: list[nn.Module] = []
    for first, module in slots.layers.items():
        if isinstance(module, RemoteStage):
            inner += [layers[index] for index in range(first, first + module.span)]
        else:
            inner.append(module)
    return inner


def joined_trunk(parts: Sequence[Trunk]) -> Trunk:
    """The parts of one trunk as one, for a merged model; nothing is copied."""
    layers = {int(index): layer for part in parts for index, layer in part.layers.items()}
    first, last = parts[0], parts[-1]
    return Trunk(
        first.config, layers=layers, receive=first.receive, send=last.send, table=first.table
    )


def save_merged(
    folder: Path, *, model: PreTrainedModel, cut: Cut, tokenizer: Tokenizer | None = None
) -> None:
    """Writes a merged model so that `load_merged(folder)` gives its logits to the bit.

    The folder is new, or holds an export of the same kind. ManifestError if not, or not writable.
    """
    side = _side_of(model)
    own = cut.narrow or side is not None
    other = "model.safetensors" if own else CUT_FILE
    if (folder / other).exists():
        raise ManifestError(
            f"{folder} already holds {other}, which this model would not replace; choose a new folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if own:
            model.config.architectures = [type(model).__name__]
            with _as_published(model.config):
                model.config.save_pretrained(str(folder))
            state = {name: t.contiguous() for name, t in model.state_dict().items()}
            for name in _twins(model):  # a head that is the embeddings is written once
                del state[name]
            save_file(state, folder / WEIGHTS_FILE, metadata={"format": "pt"})
            note = msgspec.json.encode(_Note(version=1, cut=cut, side=side))
            (folder / CUT_FILE).write_bytes(msgspec.json.format(note, indent=2))
        else:
            with quiet():
                model.save_pretrained(str(folder))
            for file in sorted(folder.glob("*.safetensors")):
                align_file(file)
        _keep_attention(folder / "config.json", model.config)
        if tokenizer is not None:
            tokenizer.save_pretrained(str(folder))
    except (OSError, SafetensorError) as error:
        raise ManifestError(f"the merged model cannot be written to {folder}: {error}") from None


def load_merged(folder: str | Path) -> PreTrainedModel:
    """The merged model in `folder`, whole, in evaluation mode, ready to be called like any other.

    Reads what `save_merged` wrote, with a bottleneck or without. ManifestError if it is not that.
    """
    folder = Path(folder)
    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)
        auto = _auto_class(config)
        if (folder / CUT_FILE).is_file():
            note = msgspec.json.decode((folder / CUT_FILE).read_bytes(), type=_Note)
            model = _with_slots(auto.from_config(config), cut=note.cut, side=note.side)
            state = load_file(folder / WEIGHTS_FILE)
            # A head that is written is one of its own, whatever the config makes of it.
            twins = {name: twin for name, twin in _twins(model).items() if name not in state}
            state |= {name: state[twin] for name, twin in twins.items()}
            model.load_state_dict(state, strict=True, assign=True)
            for name, twin in twins.items():
                owner, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(owner), leaf, model.get_parameter(twin))
        else:
            model = auto.from_pretrained(str(folder), local_files_only=True, use_safetensors=True)
    except _NOT_A_MODEL as error:
        first_line = str(error).strip().partition("\n")[0]
        raise ManifestError(f"{folder} is not the folder of a merged model: {first_line}") from None
    own_memory(model)
    return cast(PreTrainedModel, model.train(False))


# What transformers, safetensors and torch raise for a folder that is not what it should be.
_NOT_A_MODEL = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
)


class _Side(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What rebuilds a side network: tapped layers, their rank, the network's width."""

    taps: tuple[int, ...]
    rank: int
    width: int


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What CUT_FILE says."""

    version: Literal[1]
    cut: Cut
    side: _Side | None = None


class _Auto(Protocol):
    """What is asked of transformers' auto classes here, which say nothing of their types."""

    def from_config(self, config: PretrainedConfig) -> PreTrainedModel: ...

    def from_pretrained(
        self, folder: str, *, local_files_only: bool, use_safetensors: bool
    ) -> PreTrainedModel: ...


_AUTO: dict[str, _Auto] = {
    "ForSequenceClassification": cast(_Auto, transformers.AutoModelForSequenceClassification),
    "ForTokenClassification": cast(_Auto, transformers.AutoModelForTokenClassification),
    "ForQuestionAnswering": cast(_Auto, transformers.AutoModelForQuestionAnswering),
    "ForCausalLM": cast(_Auto, transformers.AutoModelForCausalLM),
    "LMHeadModel": cast(_Auto, transformers.AutoModelForCausalLM),
    "ForConditionalGeneration": cast(_Auto, transformers.AutoModelForSeq2SeqLM),
    "MTModel": cast(_Auto, transformers.AutoModelForSeq2SeqLM),
}


def _auto_class(config: PretrainedConfig) -> _Auto:
    name = (config.architectures or ["none"])[0]
    for ending, auto in _AUTO.items():
        if name.endswith(ending):
            return auto
    raise ValueError(f"its architecture is {name}, expected one of {', '.join(_AUTO)}")


def _with_slots(model: PreTrainedModel, *, cut: Cut, side: _Side | None) -> PreTrainedModel:
    """The model with the cut's bottlenecks among its layers, all of those without weights."""
    config, family = model.config, family_of(model)
    found = fault(cut, layers=depth_of(model), width=config.hidden_size) or uncuttable(
        cut, family=family
    )
    if found is not None:
        raise ValueError(found)
    layers = [layer.to("meta") for layer in layers_of(model)]
    slots = lay_out(layers, cut=cut, halves=family.halves, width=config.hidden_size, bases={})
    replace_layers(model, [*slots.bottom, *slots.trunk, *slots.top])
    if side is not None:
        with torch.device("meta"):
            lay_ladder(model, cut=cut, spec=SideSpec(side.taps, side.rank), width=side.width)
    return model


def _twins(model: PreTrainedModel) -> dict[str, str]:
    """Names of weights that are another's under a second name, and that other's name."""
    first: dict[int, str] = {}
    twins: dict[str, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if id(weight) in first:
            twins[name] = first[id(weight)]
        first.setdefault(id(weight), name)
    return twins


@contextmanager
def _as_published(config: PretrainedConfig) -> Iterator[None]:
    """The config as the library knows it: with a type for each of its own layers and no more."""
    types = getattr(config, "layer_types", None)
    if types is not None:
        config.layer_types = types[: config.num_hidden_layers]
    try:
        yield
    finally:
        if types is not None:
            config.layer_types = types


def _side_of(model: PreTrainedModel) -> _Side | None:
    for module in layers_of(model):
        if isinstance(module, Ladder):
            return _Side(module.taps, module.network.rank, module.network.width)
    return None


def _keep_attention(file: Path, config: PretrainedConfig) -> None:
    """transformers forgets which attention a model was run with, and the two differ in the last bits."""
    written = json.loads(file.read_text())
    written["attn_implementation"] = getattr(
        config, FAMILIES[config.model_type].fields["attention"]
    )
    # Training keeps no keys and values and may join texts; whoever loads the model generates.
    written.pop("joined_texts", None)
    written.pop("cut_stack", None)
    if "use_cache" in written:
        written["use_cache"] = True
    file.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
