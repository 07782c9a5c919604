"""A discriminator that begins from an encoder of BERT's kind: ELECTRA's layers are BERT's, by other names.

What the encoder knows of text is kept; only the head that tells replaced tokens is new.
"""

import torch
from transformers import BertModel, ElectraConfig, ElectraForPreTraining

from splitlearn.errors import ManifestError

__all__ = ["discriminator_from_bert"]

# What both configurations call the same. ELECTRA puts a projection behind embeddings of another width
# than the layers'; BERT's have the layers' width, so there is none.
_SAME = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "pad_token_id",
)


def discriminator_from_bert(encoder: BertModel, *, seed: int) -> ElectraForPreTraining:
    """An ElectraForPreTraining whose base model computes what `encoder` does, with a head drawn by `seed`.

    Raises ManifestError for an encoder that ELECTRA's layers cannot stand for.
    """
    config = encoder.config
    electra = ElectraConfig(
        embedding_size=config.hidden_size, **{name: getattr(config, name) for name in _SAME}
    )
    # transformers passes the attention's implementation on by this name only.
    electra._attn_implementation = config._attn_implementation  # noqa: SLF001
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: ElectraForPreTraining = ElectraForPreTraining(electra).float()  # type: ignore[no-untyped-call]
    weights = {
        name: tensor
        for name, tensor in encoder.state_dict().items()
        if not name.startswith("pooler.")
    }
    try:
        model.electra.load_state_dict(weights)
    except RuntimeError as error:
        raise ManifestError(
            f"a {type(encoder).__name__} of {config.num_hidden_layers} layers is none that an ELECTRA "
            f"discriminator can begin from: {next(iter(str(error).splitlines()))}"
        ) from None
    return model
