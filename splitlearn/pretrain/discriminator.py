"""The discriminator: tells replaced tokens from a text's own, on batches of whatever language comes.

What a step does depends on the batch, the seed, and the steps before it; not on where the batch was
made. Languages are the caller's matter.
"""

# B examples, T tokens of the padded width, N tokens of all examples

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from splitlearn.errors import ManifestError, WireError
from splitlearn.pretrain.models import build_discriminator, export_model, positions_of
from splitlearn.pretrain.order import seed_of
from splitlearn.pretrain.padding import pad
from splitlearn.pretrain.ranks import Ranks
from splitlearn.pretrain.scores import area_under_curve
from splitlearn.pretrain.settings import DISCRIMINATOR_WEIGHT, DiscriminatorSettings
from splitlearn.pretrain.stepping import Stepper
from splitlearn.pretrain.vocabulary import Vocabulary
from splitlearn.wire.ids import IdBatch

__all__ = ["DiscriminatorTrainer", "Score", "Step"]


@dataclass(frozen=True)
class Step:
    """One training step. loss: binary cross entropy in nats, mean over all tokens, before its weight.

    accuracy, replaced: shares of the ordinary tokens that were judged right, and were replaced.
    tokens: all of the batch, special ones included.
    """

    loss: float
    accuracy: float
    replaced: float
    tokens: int


@dataclass(frozen=True)
class Score:
    """Of several batches, over their ordinary tokens: special ones are never replaced, so they'd be free.

    auc: None where nothing, or everything, was replaced. loss: mean binary cross entropy in nats.
    """

    auc: float | None
    accuracy: float
    loss: float
    tokens: int


class DiscriminatorTrainer:
    """A discriminator under training. Make one by `build`.

    With several ranks, rank 0 calls what it likes and the others only `follow`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        vocabulary: Vocabulary,
        settings: DiscriminatorSettings,
        seed: int,
        ranks: Ranks | None = None,
    ) -> None:
        self.model, self.vocabulary, self.settings = model, vocabulary, settings
        self._seed, self._ranks = seed, ranks or Ranks()
        self._wrapped = self._ranks.wrap(model)
        self._stepper = Stepper(model, settings=settings.training)
        self._special = np.array(sorted(vocabulary.special), dtype=np.int32)
        self._limit = positions_of(model) // 8 * 8

    @classmethod
    def build(
        cls,
        settings: DiscriminatorSettings,
        *,
        vocabulary: Vocabulary,
        seed: int,
        ranks: Ranks | None = None,
    ) -> "DiscriminatorTrainer":
        """Raises ManifestError for a model that cannot be built or loaded with this vocabulary."""
        ranks = ranks or Ranks()
        model = build_discriminator(settings.model, vocabulary=vocabulary, seed=seed)
        model.to(ranks.device)  # type: ignore[arg-type]
        return cls(model, vocabulary=vocabulary, settings=settings, seed=seed, ranks=ranks)

    @property
    def steps(self) -> int:
        """How many steps trained the model."""
        return self._stepper.steps

    def train(self, batch: IdBatch) -> Step:
        """One step of replaced-token detection.

        Raises WireError for examples longer than the model takes, ManifestError if the loss is no
        finite number: then nothing was stepped.
        """
        self._check(batch)
        if self._ranks.world > 1:
            self._ranks.tell(_TRAIN, _numbers(batch))
        self.model.train()
        rows = self._ranks.share(len(batch.lengths))
        part = _rows(batch, rows or range(1))
        with self._stepper.dropping(seed_of("dropout", self._seed, self.steps, self._ranks.rank)):
            logits_N = self._logits(part, model=self._wrapped)
        labels_N = torch.from_numpy(part.replaced).to(logits_N)
        # A rank without rows adds nothing, and has to take part in the sum of gradients.
        weight = 1.0 if rows else 0.0
        total = functional.binary_cross_entropy_with_logits(logits_N, labels_N, reduction="sum")
        share = weight * total / len(batch.ids)
        # The gradients of the ranks are averaged, and each has its own tokens of the batch's N.
        self._stepper.step(DISCRIMINATOR_WEIGHT * share * self._ranks.world, name="discriminator")
        right_N = (logits_N.detach() > 0).cpu().numpy() == part.replaced
        right = weight * float(right_N[self._ordinary(part)].sum())
        sums = torch.tensor([float(share.detach()), right], dtype=torch.float64)
        loss, right = self._ranks.add(sums.to(self._ranks.device)).tolist()
        ordinary = max(1, int(self._ordinary(batch).sum()))
        return Step(
            loss=loss,
            accuracy=right / ordinary,
            replaced=int(batch.replaced.sum()) / ordinary,
            tokens=len(batch.ids),
        )

    def score(self, batches: Iterable[IdBatch]) -> Score:
        """How well it tells, without training; at rank 0 alone. ManifestError where no token came."""
        self.model.train(mode=False)
        logits, labels = [], []
        for batch in batches:
            self._check(batch)
            ordinary_N = self._ordinary(batch)
            with torch.no_grad():
                logits_N = self._logits(batch, model=self.model).cpu().numpy()
            logits.append(logits_N[ordinary_N])
            labels.append(batch.replaced[ordinary_N])
        if not sum(map(len, logits)):
            raise ManifestError("no token to score; hold out a larger share of the text")
        logits_N, labels_N = np.concatenate(logits), np.concatenate(labels)
        loss = functional.binary_cross_entropy_with_logits(
            torch.from_numpy(logits_N), torch.from_numpy(labels_N).float()
        )
        return Score(
            auc=area_under_curve(logits_N, positive=labels_N),
            accuracy=float(((logits_N > 0) == labels_N).mean()),
            loss=float(loss),
            tokens=len(logits_N),
        )

    def save(self, folder: Path) -> None:
        """The exact state, whole or absent. AuditError where it cannot be written."""
        if self._ranks.leads:
            self._stepper.save(folder, extra={})

    def load(self, folder: Path) -> None:
        """Into the saved state. ManifestError if it is none of this model."""
        self._ranks.tell(_LOAD, np.frombuffer(bytes(folder.absolute()), np.uint8).astype(np.int64))
        self._stepper.load(folder)

    def export(self, folder: Path) -> None:
        """An ElectraForPreTraining folder with the tokenizer. AuditError where it cannot be written."""
        if self._ranks.leads:
            export_model(self.model, vocabulary=self.vocabulary, folder=folder)

    def digest(self) -> str:
        """sha256, in hex, of the exact state: steps, weights, optimiser."""
        return self._stepper.digest()

    def follow(self) -> None:
        """What the ranks above 0 do until rank 0 closes: the same steps on their own rows."""
        while True:
            order, numbers = self._ranks.listen()
            if order == _TRAIN:
                self.train(_batch(numbers))
            elif order == _LOAD:
                self.load(Path(numbers.astype(np.uint8).tobytes().decode()))
            else:
                self._ranks.close()
                return

    def close(self) -> None:
        """Let the other ranks go."""
        self._ranks.close()

    def _check(self, batch: IdBatch) -> None:
        if max(batch.lengths) > self._limit:
            raise WireError(
                f"an example of {max(batch.lengths)} tokens came, and the discriminator takes "
                f"{self._limit}; the generator's width has to be at most that"
            )

    def _logits(self, batch: IdBatch, *, model: nn.Module) -> Tensor:
        """(N,) of the real tokens, example after example."""
        padded = pad(
            batch.ids,
            lengths=batch.lengths,
            fill=self.vocabulary.pad,
            device=str(self.model.device),
        )
        logits_BT = model(input_ids=padded.ids_BT, attention_mask=padded.attention).logits
        found_N: Tensor = logits_BT[padded.real_BT]
        return found_N

    def _ordinary(self, batch: IdBatch) -> NDArray[np.bool_]:
        return ~np.isin(batch.ids, self._special)


_TRAIN, _LOAD = 1, 2


def _rows(batch: IdBatch, rows: range) -> IdBatch:
    """Some examples of a batch, contiguous."""
    ends = np.cumsum((0, *batch.lengths))
    part = slice(ends[rows.start], ends[rows.stop])
    return IdBatch(batch.ids[part], batch.replaced[part], batch.lengths[rows.start : rows.stop])


def _numbers(batch: IdBatch) -> NDArray[np.int64]:
    """A batch for the other ranks: how many lengths, the lengths, ids, flags."""
    lengths = np.array([len(batch.lengths), *batch.lengths], dtype=np.int64)
    return np.concatenate([lengths, batch.ids.astype(np.int64), batch.replaced.astype(np.int64)])


def _batch(numbers: NDArray[np.int64]) -> IdBatch:
    count = int(numbers[0])
    ids, replaced = np.split(numbers[1 + count :], 2)
    return IdBatch(
        ids.astype(np.int32), replaced.astype(np.bool_), tuple(numbers[1 : 1 + count].tolist())
    )
