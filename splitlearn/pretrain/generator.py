"""One language's generator: trains a masked LM on its own text and corrupts it for the discriminator.

One step is one forward pass: its loss trains, and the replacements are drawn from its logits, so a
batch is what ELECTRA's joint loop would have fed. What a step does depends on the seed, the step's
index and the weights before it, on nothing else.
"""

# B examples, T tokens of the padded width, N tokens of all examples, M masked ones, V vocabulary, D width

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from splitlearn.errors import ManifestError
from splitlearn.pretrain.corpus import Corpus, Example
from splitlearn.pretrain.masking import choose, corrupt, masked, sample
from splitlearn.pretrain.models import build_generator, export_model, positions_of
from splitlearn.pretrain.order import seed_of
from splitlearn.pretrain.padding import Padded, pad
from splitlearn.pretrain.ranks import Ranks
from splitlearn.pretrain.settings import GeneratorSettings
from splitlearn.pretrain.stepping import Stepper
from splitlearn.pretrain.text import open_text
from splitlearn.pretrain.vocabulary import Vocabulary
from splitlearn.wire.ids import IdBatch

__all__ = ["GeneratorTrainer", "MaskedPlaces", "check_width"]


class GeneratorTrainer:
    """A generator and where it is in its text. Make one by `build`.

    With several ranks, rank 0 calls what it likes and the others only `follow`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        corpus: Corpus,
        settings: GeneratorSettings,
        seed: int,
        ranks: Ranks | None = None,
    ) -> None:
        self.model, self.corpus, self.settings = model, corpus, settings
        self._seed, self._ranks = seed, ranks or Ranks()
        self._places = MaskedPlaces(model)
        self._wrapped = self._ranks.wrap(model)
        self._stepper = Stepper(model, settings=settings.training)
        self._index = 0

    @classmethod
    def build(
        cls,
        settings: GeneratorSettings,
        *,
        vocabulary: Vocabulary,
        seed: int,
        scratch: Path,
        ranks: Ranks | None = None,
    ) -> "GeneratorTrainer":
        """Model and text from their settings. `scratch`: a folder for what the text's reader unpacks.

        Raises ManifestError for text, model or vocabulary that cannot be used, or not together.
        """
        ranks = ranks or Ranks()
        model = build_generator(settings.model, vocabulary=vocabulary, seed=seed)
        check_width(model, width=settings.width, name="generator")
        corpus = Corpus(
            open_text(settings.text, scratch=scratch),
            vocabulary=vocabulary,
            width=settings.width,
            batch=settings.batch,
            seed=seed,
            held_out=settings.held_out,
        )
        model.to(ranks.device)  # type: ignore[arg-type]
        return cls(model, corpus=corpus, settings=settings, seed=seed, ranks=ranks)

    @property
    def index(self) -> int:
        """The number of the next batch."""
        return self._index

    @property
    def steps(self) -> int:
        """How many steps trained the model; skipped batches are not among them."""
        return self._stepper.steps

    def skip_to(self, index: int) -> None:
        """Go on with batch `index`: the ones before it are somebody's already. Never backwards."""
        if index < self._index:
            raise ManifestError(
                f"batch {index} of text {self.corpus.passages.name} is asked for, and {self._index} "
                "is the next; no batch is trained twice"
            )
        self._ranks.tell(_SKIP, np.array([index]))
        self._index = index

    def step(self) -> tuple[IdBatch, float]:
        """Train on the next batch; the batch corrupted, and the masked-LM loss (nats, mean over M).

        Raises ManifestError if the loss is no finite number; the index stays.
        """
        self._ranks.tell(_STEP, _NOTHING)
        batch = _Masked.of(self.corpus.batch(self._index), trainer=self, seed=self._seed_of("mask"))
        self.model.train()
        rows = self._ranks.share(len(batch.examples))
        with self._stepper.dropping(self._seed_of("dropout", self._ranks.rank)):
            logits_MV, targets_M, first = self._logits(batch, rows=rows, model=self._wrapped)
        total = functional.cross_entropy(logits_MV, targets_M, reduction="sum")
        # The gradients of the ranks are averaged, and each has its own places of the batch's M.
        share = total / batch.count
        self._stepper.step(share * self._ranks.world, name="generator")
        drawn_M = self._drawn(logits_MV.detach(), batch=batch, first=first)
        loss = float(self._ranks.add(share.detach().clone()))
        self._index += 1
        return corrupt(batch.examples, chosen_N=batch.chosen_N, drawn_M=drawn_M), loss

    def held_out(self, number: int) -> IdBatch:
        """Batch `number` of held-out text as the generator corrupts it now; trains nothing."""
        return self.held_out_loss(number)[0]

    def held_out_loss(self, number: int) -> tuple[IdBatch, float]:
        """The same with the masked-LM loss on it. At rank 0 alone."""
        seed = seed_of("held out", self._seed, number)
        batch = _Masked.of(self.corpus.held_out(number), trainer=self, seed=seed)
        self.model.train(mode=False)
        with torch.no_grad():
            rows = range(len(batch.examples))
            logits_MV, targets_M, _ = self._logits(batch, rows=rows, model=self.model)
            loss = float(functional.cross_entropy(logits_MV, targets_M))
        drawn_M = self._sampled(logits_MV, seed=seed_of("held out draw", self._seed, number))
        return corrupt(batch.examples, chosen_N=batch.chosen_N, drawn_M=drawn_M), loss

    def save(self, folder: Path) -> None:
        """The exact state, whole or absent. AuditError where it cannot be written."""
        if self._ranks.leads:
            self._stepper.save(folder, extra={"index": self._index})

    def load(self, folder: Path) -> None:
        """Into the saved state. ManifestError if it is none of this model."""
        self._ranks.tell(_LOAD, np.frombuffer(bytes(folder.absolute()), np.uint8).astype(np.int64))
        extra = self._stepper.load(folder)
        index = extra.get("index")
        if not isinstance(index, int):
            raise ManifestError(f"checkpoint {folder} is none of a generator; take another")
        self._index = index

    def export(self, folder: Path) -> None:
        """A folder of transformers with the tokenizer. AuditError where it cannot be written."""
        if self._ranks.leads:
            export_model(self.model, vocabulary=self.corpus.vocabulary, folder=folder)

    def digest(self) -> str:
        """sha256, in hex, of the exact state but for the index."""
        return self._stepper.digest()

    def follow(self) -> None:
        """What the ranks above 0 do until rank 0 closes: the same steps on their own rows."""
        while True:
            order, numbers = self._ranks.listen()
            if order == _STEP:
                self.step()
            elif order == _SKIP:
                self._index = int(numbers[0])
            elif order == _LOAD:
                self.load(Path(numbers.astype(np.uint8).tobytes().decode()))
            else:
                self._ranks.close()
                return

    def close(self) -> None:
        """Let the other ranks go."""
        self._ranks.close()

    def _seed_of(self, purpose: str, *parts: int) -> int:
        return seed_of(purpose, self._seed, self._index, *parts)

    def _logits(
        self, batch: "_Masked", *, rows: range, model: nn.Module
    ) -> tuple[Tensor, Tensor, int]:
        """Logits and targets at the masked places of these rows, and the number of the first place."""
        chosen_BT = batch.chosen_BT
        if rows:
            part = slice(rows.start, rows.stop)
        else:
            # A rank without rows adds nothing, and has to take part in the sum of gradients.
            part, chosen_BT = slice(0, 1), torch.zeros_like(chosen_BT)
        here_BT = chosen_BT[part]
        logits_MV = self._places.logits(
            model,
            ids_BT=batch.masked.ids_BT[part],
            attention_BT=batch.masked.attention[part],
            places_BT=here_BT,
        )[:, : self.corpus.vocabulary.size]
        first = int(batch.chosen_BT[: rows.start].sum())
        return logits_MV, batch.truth.ids_BT[part][here_BT], first

    def _drawn(self, logits_MV: Tensor, *, batch: "_Masked", first: int) -> NDArray[np.int32]:
        """The replacements of the whole batch; each rank draws its own places."""
        own_M = self._sampled(logits_MV, seed=self._seed_of("draw"), first=first)
        if self._ranks.world == 1:
            return own_M
        whole_M = torch.zeros(batch.count, dtype=torch.int64)
        whole_M[first : first + len(own_M)] = torch.from_numpy(own_M).long()
        added = self._ranks.add(whole_M.to(self._ranks.device))
        return added.cpu().numpy().astype(np.int32)

    def _sampled(self, logits_MV: Tensor, *, seed: int, first: int = 0) -> NDArray[np.int32]:
        return sample(
            logits_MV,
            vocabulary=self.corpus.vocabulary,
            seed=seed,
            first=first,
            temperature=self.settings.temperature,
        )


class MaskedPlaces:
    """Logits of a masked-LM model at some places only.

    A head works place by place, and its matrix, as wide as the vocabulary, is most of a small model's
    work: so the base model's output is narrowed to the wanted places before the head sees it.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._places_BT: Tensor | None = None
        base = model.base_model
        if base is model:
            raise ManifestError(f"a {type(model).__name__} has no masked-LM head")

        def narrow(_module: nn.Module, _inputs: object, output: ModelOutput) -> ModelOutput:
            if self._places_BT is not None:
                output["last_hidden_state"] = output["last_hidden_state"][self._places_BT][None]
            return output

        base.register_forward_hook(narrow)

    def logits(
        self, model: nn.Module, *, ids_BT: Tensor, attention_BT: Tensor, places_BT: Tensor
    ) -> Tensor:
        """(M, V) at the M places that are set, row by row."""
        self._places_BT = places_BT
        try:
            found: Tensor = model(input_ids=ids_BT, attention_mask=attention_BT).logits[0]
        finally:
            self._places_BT = None
        return found


def check_width(model: PreTrainedModel, *, width: int, name: str) -> None:
    """ManifestError if examples of `width` tokens, padded, are longer than the model takes."""
    limit = positions_of(model) // 8 * 8
    if width > limit:
        raise ManifestError(
            f"examples of {width} ids are longer than the {limit} that the {name} takes; make them "
            "shorter or give the model more positions"
        )


@dataclass(frozen=True)
class _Masked:
    """A batch with [MASK] in it. chosen: the M masked places, as (N,) and as (B, T)."""

    examples: list[Example]
    chosen_N: NDArray[np.bool_]
    chosen_BT: Tensor
    masked: Padded
    truth: Padded
    count: int

    @classmethod
    def of(cls, examples: list[Example], *, trainer: GeneratorTrainer, seed: int) -> "_Masked":
        vocabulary, share = trainer.corpus.vocabulary, trainer.settings.mask
        chosen_N = choose(examples, vocabulary=vocabulary, seed=seed, share=share)
        ids_N, lengths = np.concatenate(examples), [len(ids) for ids in examples]
        device = str(trainer.model.device)

        def padded(values_N: NDArray[np.int32], fill: int) -> Padded:
            return pad(values_N, lengths=lengths, fill=fill, device=device)

        return cls(
            examples=examples,
            chosen_N=chosen_N,
            chosen_BT=padded(chosen_N.astype(np.int32), 0).ids_BT.bool(),
            masked=padded(masked(ids_N, chosen_N, vocabulary=vocabulary), vocabulary.pad),
            truth=padded(ids_N, vocabulary.pad),
            count=int(chosen_N.sum()),
        )


_SKIP, _STEP, _LOAD = 1, 2, 3
_NOTHING = np.zeros(0, dtype=np.int64)
