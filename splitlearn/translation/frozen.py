"""A pre-trained encoder of BERT's kind, loaded as it was trained, that stands still.

Layers are called one by one, so that an adapter can follow each. Nothing drops out: what stands still
gives the same rows in every epoch.
"""

# B examples, T tokens, D width

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, BertConfig, BertModel
from transformers.masking_utils import create_bidirectional_mask

from splitlearn.data.quiet import quiet
from splitlearn.errors import ManifestError

__all__ = ["Frozen", "build_bert", "load_bert", "real_tokens"]


class Frozen(nn.Module):
    """The embeddings and layers of a BertModel. Without its pooler."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.config = bert.config
        self.embeddings = bert.embeddings
        self.layers = bert.encoder.layer
        self.requires_grad_(False)
        self.eval()

    @property
    def words(self) -> nn.Embedding:
        """The embeddings of words, by id."""
        table = self.embeddings.word_embeddings
        assert isinstance(table, nn.Embedding)
        return table

    @property
    def width(self) -> int:
        return int(self.config.hidden_size)

    @property
    def positions(self) -> int:
        """Tokens of the longest example."""
        return int(self.config.max_position_embeddings)

    def norm_after(self, index: int) -> nn.LayerNorm:
        """The norm that ends a layer."""
        norm = self.layers[index].output.LayerNorm  # type: ignore[union-attr]  # a BertLayer
        assert isinstance(norm, nn.LayerNorm)
        return norm

    def train(self, mode: bool = True) -> "Frozen":  # noqa: ARG002 - torch's own signature
        """Stays as it is: nothing in here drops out."""
        return super().train(mode=False)

    def mask(self, h_BTD: Tensor, *, real_BT: Tensor) -> Tensor | None:
        """The library's own mask for its layers."""
        mask: Tensor | None = create_bidirectional_mask(
            config=self.config, inputs_embeds=h_BTD, attention_mask=real_BT
        )
        return mask


def real_tokens(lengths: tuple[int, ...], *, width: int) -> Tensor:
    """True at the real tokens of right-padded examples, (B, T) with T = width.

    >>> real_tokens((1, 3), width=3).tolist()
    [[True, False, False], [True, True, True]]
    """
    return torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]


def load_bert(path: str) -> BertModel:
    """From a folder or the hub, in float32 on the CPU.

    Raises ManifestError where there is none, or one of another kind.
    """
    local = Path(path).is_dir()
    try:
        kind = AutoConfig.from_pretrained(path, local_files_only=local).model_type
        if kind != "bert":
            raise ManifestError(
                f"model {path} is a {kind}; translation takes encoders of type bert, such as MiniLM"
            )
        with quiet():
            loaded: Any = BertModel.from_pretrained(  # a pair, by its last argument
                path,
                local_files_only=local,
                use_safetensors=True,
                dtype=torch.float32,
                add_pooling_layer=False,
                output_loading_info=True,
            )
        model, report = loaded
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        if isinstance(error, ManifestError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ManifestError(f"model {path} cannot be loaded: {reason}") from None
    if report["missing_keys"]:
        raise ManifestError(
            f"model {path} lacks {len(report['missing_keys'])} weights of an encoder, such as "
            f"{min(report['missing_keys'])}; take a whole one"
        )
    assert isinstance(model, BertModel)
    return model


def build_bert(config: BertConfig, *, seed: int) -> BertModel:
    """One from nothing, for a baseline and for tests; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel._from_config(  # type: ignore[no-untyped-call]  # noqa: SLF001 - the library's way
            config, attn_implementation="sdpa", dtype=torch.float32, add_pooling_layer=False
        )
    assert isinstance(model, BertModel)
    return model
