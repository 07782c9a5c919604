"""The plain ELECTRA loop: both models in one process under one joint loss, written straight down.

What a run over a link is held against. It shares settings, text and draws with the trainers, and none
of their steps.
"""

# B examples, T tokens of the padded width, M masked ones, V vocabulary

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import get_scheduler

from splitlearn.pretrain.corpus import Corpus
from splitlearn.pretrain.generator import MaskedPlaces
from splitlearn.pretrain.masking import choose, masked, sample
from splitlearn.pretrain.models import build_discriminator, build_generator
from splitlearn.pretrain.order import seed_of
from splitlearn.pretrain.settings import (
    DISCRIMINATOR_WEIGHT,
    DiscriminatorSettings,
    GeneratorSettings,
    TrainingSettings,
)

__all__ = ["plain_losses"]


def plain_losses(
    corpus: Corpus,
    *,
    generator: GeneratorSettings,
    discriminator: DiscriminatorSettings,
    seed: int,
    discriminator_seed: int,
    steps: int,
) -> Iterator[tuple[float, float]]:
    """The masked-LM and the replaced-token loss of each step, on the CPU.

    loss = 1.0 * MLM + 50.0 * BCE (arXiv 2003.10555); its gradient reaches each model through its own
    term only, since none passes a draw. Each model has its own optimiser and clipping.
    """
    vocabulary = corpus.vocabulary
    maker = build_generator(generator.model, vocabulary=vocabulary, seed=seed).train()
    judge = build_discriminator(
        discriminator.model, vocabulary=vocabulary, seed=discriminator_seed
    ).train()
    # A head that sees all places sums its gradients in another order: equal, but not to the bit.
    places = MaskedPlaces(maker)
    optimisers = [
        _optimiser(maker, generator.training),
        _optimiser(judge, discriminator.training),
    ]
    for step in range(steps):
        examples = corpus.batch(step)
        chosen = choose(
            examples, vocabulary=vocabulary, seed=seed_of("mask", seed, step), share=generator.mask
        )
        width = -(-max(map(len, examples)) // 8) * 8
        truth_BT = np.full((len(examples), width), vocabulary.pad)
        real_BT = np.zeros(truth_BT.shape, dtype=np.bool_)
        for row, ids in enumerate(examples):
            truth_BT[row, : len(ids)] = ids
            real_BT[row, : len(ids)] = True
        chosen_BT = np.zeros(truth_BT.shape, dtype=np.bool_)
        chosen_BT[real_BT] = chosen
        hidden_BT = torch.from_numpy(masked(truth_BT, chosen_BT, vocabulary=vocabulary)).long()
        attention_BT = torch.from_numpy(real_BT).long()

        torch.manual_seed(seed_of("dropout", seed, step, 0))
        logits_MV = places.logits(
            maker,
            ids_BT=hidden_BT,
            attention_BT=attention_BT,
            places_BT=torch.from_numpy(chosen_BT),
        )[:, : vocabulary.size]
        targets_M = torch.from_numpy(truth_BT[chosen_BT]).long()
        mlm = functional.cross_entropy(logits_MV, targets_M, reduction="sum") / len(targets_M)

        drawn_M = sample(
            logits_MV.detach(),
            vocabulary=vocabulary,
            seed=seed_of("draw", seed, step),
            temperature=generator.temperature,
        )
        corrupted_BT = truth_BT.copy()
        corrupted_BT[chosen_BT] = drawn_M
        labels_BT = torch.from_numpy(corrupted_BT != truth_BT).float()
        torch.manual_seed(seed_of("dropout", discriminator_seed, step, 0))
        judged_BT = judge(
            input_ids=torch.from_numpy(corrupted_BT).long(), attention_mask=attention_BT
        ).logits
        real = torch.from_numpy(real_BT)
        bce = functional.binary_cross_entropy_with_logits(
            judged_BT[real], labels_BT[real], reduction="sum"
        ) / int(real.sum())

        (1.0 * mlm + DISCRIMINATOR_WEIGHT * bce).backward()  # type: ignore[no-untyped-call]
        for model, (optimiser, schedule), settings in zip(
            (maker, judge),
            optimisers,
            (generator.training, discriminator.training),
            strict=True,
        ):
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
        yield float(mlm.detach()), float(bce.detach())


def _optimiser(
    model: nn.Module, settings: TrainingSettings
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimiser = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )
    schedule = get_scheduler(
        settings.schedule,
        optimiser,
        num_warmup_steps=settings.warmup_steps,
        num_training_steps=settings.total_steps,
    )
    return optimiser, schedule
