"""A text gone on with through the split model, token by token, each party keeping its own layers' cache.

The loop is transformers' own `generate` over the local model, in a greenlet that stands still at each
remote stage. The first message has the rows of the whole prompt, each later one those of the newest
token; how many tokens the peers have already follows from lengths and width, and their sessions hold
us to it. No beams: a peer's cache is never put in another order.

A text goes through a remote encoder once: its peers keep nothing. Where the decoder is at home, what is
said of the text is chosen there, with beams if asked for. Where layers of the decoder are remote, their
parties get the encoder's output with the decoder's first token, and keep what they have of both.
"""

# B texts of equal length, T new tokens (U of a decoder above an encoder), S tokens so far, D width at a cut

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import ModelOutput

from splitlearn.engine.payloads.crossing import Target, crosses
from splitlearn.engine.state.device import CPU, Device
from splitlearn.engine.state.seeds import Draws
from splitlearn.engine.trusted.flight import Encoded, Flight
from splitlearn.engine.trusted.line import Line
from splitlearn.errors import ManifestError
from splitlearn.roles import Kind
from splitlearn.split.anatomy import stack_of
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
        above an encoder, where it begins and what it may not say. ManifestError for beams where a peer keeps
        something of a text.
        """
        if self.beams != 1 and (
            not model.config.is_encoder_decoder or stack_of(model.config) != "encoder"
        ):
            raise ManifestError(
                f"{self.beams} beams cannot be tried over a {model.config.model_type} model, whose peers "
                "keep keys and values in one order; take 1"
            )
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
    draws, read = Draws(sampling.seed, device=device.at), _Read()
    text = _batch(ids_BT)
    ids_BT = device.take(ids_BT)
    # A text goes through an encoder once.
    above = bool(local.config.is_encoder_decoder)
    again = [line for line in lines if not above or crosses(line.hop.offer)]
    flight = Flight(
        partial(GenerationMixin.generate, local),
        inputs={"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT)},
    )
    with torch.no_grad(), _chosen(local, sampling), _reading(local, read):
        try:
            with draws.drawing(), device.working():
                left = flight.to_cut()
            rounds = 0
            while not flight.landed:
                for line in again if rounds else lines:
                    out = left.float()
                    if crosses(line.hop.offer):
                        first = None if rounds else flight.memory
                        came = _with_memory(line, out, text, read, step=step, first=first)
                    else:
                        had, new = (0, text) if above else (read.had, _batch(read.ids_BU))
                        came = _alone(line, out, new, had=had, step=step)
                    with draws.drawing(), device.working():
                        left = flight.past_cut(device.take(came))
                rounds += 1
                told(rounds)
                for line in lines:
                    line.talk.settle_if_due()
        finally:
            if not flight.landed:
                # In here, or whether gradients are kept would be left as it stands there.
                flight.abandon()
    result: Tensor = left.cpu()
    begun = 1 if above else ids_BT.shape[1]
    told(result.shape[1] - begun)  # a decoder at home has said all of it by now
    return result


def _alone(line: Line, out_BTD: Tensor, new: Batch, *, had: int, step: int) -> Tensor:
    """What a party makes of the rows of new tokens of texts, after `had` of each that it keeps."""
    place = _place(new, had=had, step=step)
    line.tensors.send(Kind.ACTIVATION, out_BTD, new, place)
    return line.tensors.receive(Kind.OUTPUT, new, place)


def _with_memory(
    line: Line, out_BUD: Tensor, text: Batch, read: "_Read", *, step: int, first: Encoded | None
) -> Tensor:
    """The same of a party that attends to a memory, which is told it once, with the `first` tokens."""
    new = _batch(read.ids_BU)
    return line.both.go_on(
        out_BUD,
        text,
        _place(text, had=0, step=step),
        target=Target(new.inputs["input_ids"], new.lengths, read.had),
        beside_BSD=None if first is None else first.entered,
    )


def _batch(ids_BT: Tensor) -> Batch:
    """Texts of equal length."""
    return Batch(
        {"input_ids": ids_BT.cpu()}, labels={}, lengths=(ids_BT.shape[1],) * len(ids_BT), items=0
    )


def _place(new: Batch, *, had: int, step: int) -> StepTensor:
    return StepTensor(
        step=step,
        micro_batch=0,
        micro_batches=1,
        phase="generate",
        width=new.inputs["input_ids"].shape[1],
        packed=False,
        lengths=tuple(had + length for length in new.lengths),
        reply_to=0,
    )


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


@dataclass
class _Read:
    """The ids that the newest forward of what goes on with texts began with, (B, U); had: tokens of each text
    before them. The gate compares rows with the former, and peers keep the latter.
    """

    ids_BU: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.int64))
    had: int = 0

    def look(self, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.had += self.ids_BU.shape[1]
        self.ids_BU = args[0]


@contextmanager
def _reading(local: PreTrainedModel, read: _Read) -> Iterator[None]:
    """Have `read` told what the decoder begins each forward with."""
    decoder: Callable[[], PreTrainedModel] = local.get_decoder
    reads = decoder() if local.config.is_encoder_decoder else local
    words = reads.get_input_embeddings()
    assert isinstance(words, nn.Module)
    hook = words.register_forward_pre_hook(read.look)
    try:
        yield
    finally:
        hook.remove()
