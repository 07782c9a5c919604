"""A text gone on with through the split model, token by token, each party keeping its own layers' cache.

The loop is transformers' own `generate` over the local model, in a greenlet that stands still at each
remote stage. The first message has the rows of the whole prompt, each later one those of the newest
token; how many tokens the peers have already follows from lengths and width, and their sessions hold
us to it. No beams: a peer's cache is never put in another order.

Where a decoder stands above the remote encoder, the first message is the only one: a text goes through
the encoder once, peers keep nothing, and what is said of it is chosen at home, with beams if asked for.
"""

# B texts of equal length, T new tokens, S tokens so far, D width at a cut

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from greenlet import greenlet
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import ModelOutput

from splitlearn.engine.device import CPU, Device
from splitlearn.engine.line import Line
from splitlearn.engine.seeds import Draws
from splitlearn.errors import ManifestError
from splitlearn.roles import Kind
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import StepTensor

__all__ = ["Sampling", "go_on", "say"]


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. tokens: most that are added to a text. temperature: 0 takes the most
    likely one; else tokens are drawn, from those that together have the probability top_p, by `seed`. beams:
    how many texts are tried side by side, where no peer keeps anything of them; else 1.
    """

    tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    beams: int = 1

    def config(self, model: PreTrainedModel) -> GenerationConfig:
        """The same for transformers; of the model's own settings only where a text ends, and, of a decoder
        above an encoder, where it begins and what it may not say. ManifestError for beams elsewhere.
        """
        drawn = {"temperature": self.temperature, "top_p": self.top_p, "top_k": 0}
        common = {
            "max_new_tokens": self.tokens,
            "do_sample": self.temperature > 0,
            "use_cache": True,
            **(drawn if self.temperature > 0 else {}),
        }
        if model.config.is_encoder_decoder:
            own = {name: _own(model, name) for name in _OWN}
            return GenerationConfig(num_beams=self.beams, **own, **common)  # type: ignore[no-untyped-call]
        if self.beams != 1:
            raise ManifestError(
                f"{self.beams} beams cannot be tried over a {model.config.model_type} model, whose peers "
                "keep keys and values in one order; take 1"
            )
        end = _own(model, "eos_token_id")
        first = end[0] if isinstance(end, list) else end
        return GenerationConfig(eos_token_id=end, pad_token_id=first, **common)  # type: ignore[no-untyped-call]


def _own(model: PreTrainedModel, name: str) -> object:
    found = getattr(model.generation_config, name, None)
    return getattr(model.config, name, None) if found is None else found


# Of a model's own settings, what belongs to its vocabulary and not to a taste.
_OWN = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "bad_words_ids",
)


def go_on(
    local: PreTrainedModel,
    lines: Sequence[Line],
    ids_BT: Tensor,
    *,
    step: int,
    sampling: Sampling,
    device: Device = CPU,
    told: Callable[[int], None] = lambda _: None,
) -> Tensor:
    """The texts with what the model adds to them, (B, S); or what a decoder above an encoder says of them.

    lines: the compute parties, in the order of their layers. step: optimiser steps done. device: of the
    local model. told: hears how many tokens have been added.
    """
    draws = Draws(sampling.seed, device=device.at)
    ids_BT = device.take(ids_BT)
    texts, had = ids_BT.shape
    begun = 1 if local.config.is_encoder_decoder else had
    generate: Callable[..., Tensor] = GenerationMixin.generate
    inputs = {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT)}
    work = greenlet(lambda: generate(local, **inputs))
    with torch.no_grad(), _chosen(local, sampling), _embedded(local) as embedded:
        try:
            with draws.drawing(), device.working():
                left = work.switch()
            tokens = 0
            while not work.dead:
                new_BT = embedded.pop().cpu()
                width = new_BT.shape[1]
                tokens += width
                batch = Batch({"input_ids": new_BT}, labels={}, lengths=(width,) * texts, items=0)
                place = StepTensor(
                    step=step,
                    micro_batch=0,
                    micro_batches=1,
                    phase="generate",
                    width=width,
                    packed=False,
                    lengths=(tokens,) * texts,
                    reply_to=0,
                )
                for line in lines:
                    line.tensors.send(Kind.ACTIVATION, left.float(), batch, place)
                    entered = device.take(line.tensors.receive(Kind.OUTPUT, batch, place))
                    with draws.drawing(), device.working():
                        left = work.switch(entered)
                told(tokens - had + 1)
                for line in lines:
                    line.settle_if_due()
        finally:
            if not work.dead:
                # In here, or whether gradients are kept would be left as it stands there.
                work.throw()
    result: Tensor = left.cpu()
    told(result.shape[1] - begun)  # a decoder at home has said all of it by now
    return result


def say(
    local: PreTrainedModel,
    output: ModelOutput,
    batch: Batch,
    *,
    sampling: Sampling,
    device: Device = CPU,
) -> Tensor:
    """What a decoder above an encoder says of a batch whose `output` is there, (B, U), its first token too.

    Rows that end early are padded on the right. Nothing is sent: the encoder's last hidden states came
    with the output.
    """
    generate: Callable[..., Tensor] = GenerationMixin.generate
    rows = BaseModelOutput(last_hidden_state=output["encoder_last_hidden_state"])
    mask_BT = device.take(batch.inputs["attention_mask"])
    draws = Draws(sampling.seed, device=device.at)
    with torch.no_grad(), _chosen(local, sampling), draws.drawing(), device.working():
        return generate(local, encoder_outputs=rows, attention_mask=mask_BT).cpu()


@contextmanager
def _chosen(local: PreTrainedModel, sampling: Sampling) -> Iterator[None]:
    """In place of the model's own settings, which the library would add to ours."""
    own, local.generation_config = local.generation_config, sampling.config(local)
    try:
        yield
    finally:
        local.generation_config = own


@contextmanager
def _embedded(local: PreTrainedModel) -> Iterator[list[Tensor]]:
    """The ids that the newest forward began with: what the gate compares its rows with."""
    seen: list[Tensor] = []
    reads = local.get_encoder() if local.config.is_encoder_decoder else local
    words = reads.get_input_embeddings()
    assert isinstance(words, nn.Module)

    def look(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen[:] = [args[0]]

    hook = words.register_forward_pre_hook(look)
    try:
        yield seen
    finally:
        hook.remove()
