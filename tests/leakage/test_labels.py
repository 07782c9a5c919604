"""Attacks on true gradients of a small classifier in training, and on gradients that hold nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from splitlearn.leakage.labels import (
    LabelRecovery,
    SeenGradients,
    attack_labels,
    clustering_attack,
    cosine_attack,
    norm_attack,
    read_next_tokens,
    span_test,
    spectral_attack,
)
from tests.tiny import tiny_model

EXAMPLES = 200


def examples(count: int, *, seed: int) -> tuple[dict[str, Tensor], Tensor, tuple[int, ...]]:
    """Random ids, one of which says the class; as many of one class as of the other."""
    draws = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, 10, (count,), generator=draws)
    labels = torch.arange(count) % 2
    ids = torch.randint(5, 50, (count, 9), generator=draws)
    at = 1 + (torch.rand(count, generator=draws) * (lengths - 1)).long()
    ids[torch.arange(count), at] = 50 + 5 * labels + torch.randint(5, (count,), generator=draws)
    mask = (torch.arange(9) < lengths[:, None]).long()
    inputs = {"input_ids": ids * mask + (1 - mask), "attention_mask": mask}
    return inputs, labels, tuple(lengths.tolist())


@dataclass(frozen=True)
class Victim:
    """What a peer behind the third of four layers got, and what it was not told."""

    g_ND: Tensor
    lengths: tuple[int, ...]
    labels: list[int]

    def seen(self, g_ND: Tensor | None = None) -> SeenGradients:
        return SeenGradients(self.g_ND if g_ND is None else g_ND, self.lengths)


@pytest.fixture(scope="module")
def victim() -> Victim:
    """A BERT of width 32 after ten steps; one layer, pooler and head lie above the cut."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = tiny_model("bert")
        model.classifier, model.num_labels, model.config.num_labels = nn.Linear(32, 2), 2, 2
        optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
        for step in range(10):
            inputs, labels, _ = examples(32, seed=1000 + step)
            model(**inputs, labels=labels).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
    inputs, labels, lengths = examples(EXAMPLES, seed=7)
    kept: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        h_BTD = output[0] if isinstance(output, tuple) else output
        h_BTD.retain_grad()
        kept.append(h_BTD)

    model.bert.encoder.layer[2].register_forward_hook(keep)
    model(**inputs, labels=labels).loss.backward()
    assert kept[0].grad is not None
    return Victim(kept[0].grad[inputs["attention_mask"].bool()], lengths, labels.tolist())


def noisy(g_ND: Tensor, *, times: float, seed: int = 1) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return g_ND + times * g_ND.square().mean().sqrt() * torch.randn(g_ND.shape, generator=draws)


def test_gradients_tell_the_labels_to_somebody_who_knows_nothing(victim: Victim) -> None:
    report = attack_labels(victim.seen(), labels=victim.labels, seed=0)
    by_name = {found.attack: found for found in report.attacks}
    assert by_name.keys() == {"spectral", "clustering", "cosine", "norm"}
    for name in ("spectral", "clustering", "cosine"):
        assert by_name[name].auc == pytest.approx(1.0, abs=0.01), name
        assert by_name[name].accuracy > 0.98, name
    assert report.best.auc == max(found.auc for found in report.attacks if found.auc is not None)
    assert (report.baselines[0].auc, report.baselines[0].accuracy) == (0.5, 0.5)


def test_one_column_is_enough(victim: Victim) -> None:
    _, _, v_DD = torch.linalg.svd(victim.g_ND, full_matrices=False)
    found = spectral_attack(victim.seen(victim.g_ND @ v_DD[:1].T), labels=victim.labels, seed=0)
    assert found.auc is not None
    assert found.auc >= 0.95


def test_noise_of_eight_times_the_rms_is_not_enough_to_hide_labels(victim: Victim) -> None:
    seen = victim.seen(noisy(victim.g_ND, times=8))
    found = spectral_attack(seen, labels=victim.labels, seed=0)
    assert found.auc is not None
    assert found.auc >= 0.95
    # Nor is it a cure that a weaker attack fails.
    norm = norm_attack(seen, labels=victim.labels, seed=0)
    assert norm.auc is not None
    assert norm.auc < 0.65


def test_labels_that_are_others_than_the_gradients_are_found_by_chance_only(
    victim: Victim,
) -> None:
    shuffled = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(3)).tolist()
    labels = [victim.labels[i] for i in shuffled]
    for found in attack_labels(victim.seen(), labels=labels, seed=0).attacks:
        # Sign and view count in the attacker's favour; four standard errors are 0.16.
        assert found.auc is not None
        assert 0.4 < found.auc < 0.66, found.attack
        assert found.accuracy < 0.66, found.attack


def test_noise_that_drowns_all_leaves_chance(victim: Victim) -> None:
    found = attack_labels(
        victim.seen(noisy(victim.g_ND, times=1e4)), labels=victim.labels, seed=0
    ).best
    assert found.auc is not None
    assert found.auc < 0.66


def three_classes(*, apart: float) -> tuple[SeenGradients, list[int]]:
    draws = torch.Generator().manual_seed(0)
    labels = [i % 3 for i in range(90)]
    centres = torch.randn(3, 16, generator=draws)
    rows = torch.randn(90, 16, generator=draws) + apart * centres[torch.tensor(labels)]
    return SeenGradients(rows, (1,) * 90), labels


@pytest.mark.parametrize("attack", [spectral_attack, clustering_attack, cosine_attack])
def test_more_classes_than_two_are_told_apart_one_against_the_rest(attack: object) -> None:
    seen, labels = three_classes(apart=8.0)
    found = attack(seen, labels=labels, seed=0)  # type: ignore[operator]
    assert found.auc > 0.95
    assert found.accuracy > 0.95


def test_eight_classes_are_matched_to_their_clusters() -> None:
    labels = [i % 8 for i in range(80)]
    rows = 10 * torch.eye(8)[torch.tensor(labels)]
    found = clustering_attack(SeenGradients(rows, (1,) * 80), labels=labels, seed=0)
    assert (found.auc, found.accuracy) == (1.0, 1.0)


def test_an_attack_says_what_it_was_and_says_the_same_again(victim: Victim) -> None:
    one, two = (cosine_attack(victim.seen(), labels=victim.labels, seed=5) for _ in range(2))
    assert one == two
    assert (one.attack, one.version, one.seed, one.examples) == ("cosine", 1, 5, EXAMPLES)
    assert one.budget["labels_known"] == 2


def test_one_class_alone_and_labels_of_other_examples_are_our_own_mistakes() -> None:
    seen = SeenGradients(torch.ones(4, 2), (2, 2))
    with pytest.raises(AssertionError, match="one class"):
        attack_labels(seen, labels=[1, 1], seed=0)
    with pytest.raises(AssertionError, match="one label an example"):
        attack_labels(seen, labels=[1, 0, 1], seed=0)
    with pytest.raises(AssertionError, match="one row a token"):
        SeenGradients(torch.ones(4, 2), (2, 1))


@dataclass(frozen=True)
class Speaker:
    """A causal model's hidden states below the head, their gradients, and the tokens asked for."""

    h_ND: Tensor
    g_ND: Tensor
    head_VD: Tensor
    targets: list[int]


@pytest.fixture(scope="module")
def speaker() -> Speaker:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=300, n_embd=32, n_layer=1, n_head=4, n_positions=32)
        model = GPT2LMHeadModel(config)
        ids = torch.randint(300, (8, 20))
        h_BTD = model.transformer(ids[:, :-1]).last_hidden_state.detach().requires_grad_()
        logits_BTV = model.lm_head(h_BTD)
        nn.functional.cross_entropy(logits_BTV.flatten(0, 1), ids[:, 1:].flatten()).backward()
    assert h_BTD.grad is not None
    return Speaker(
        h_BTD.detach().flatten(0, 1),
        h_BTD.grad.flatten(0, 1),
        model.lm_head.weight.detach(),
        ids[:, 1:].flatten().tolist(),
    )


def read(speaker: Speaker, *, rank: int, targets: Sequence[int] | None = None) -> LabelRecovery:
    """With a basis of the hidden states' main directions, as a low-rank cut has it."""
    _, _, v_DD = torch.linalg.svd(speaker.h_ND, full_matrices=False)
    basis_RD = v_DD[:rank]
    return read_next_tokens(
        speaker.g_ND @ basis_RD.T,
        head_VD=speaker.head_VD,
        targets=targets or speaker.targets,
        basis_RD=basis_RD,
    )


def test_the_public_head_reads_next_tokens_off_gradients(speaker: Speaker) -> None:
    found = read_next_tokens(speaker.g_ND, head_VD=speaker.head_VD, targets=speaker.targets)
    assert found.accuracy > 0.99
    assert found.auc is None


def test_rank_eight_hides_no_next_token_and_rank_one_some(speaker: Speaker) -> None:
    assert read(speaker, rank=8).accuracy > 0.9
    assert read(speaker, rank=1).accuracy < 0.5


def test_tokens_that_were_not_asked_for_are_not_read(speaker: Speaker) -> None:
    others = [(target + 150) % 300 for target in speaker.targets]
    found = read(speaker, rank=8, targets=others)
    assert found.accuracy < 0.05
    assert found.top20 is not None
    assert found.top20 < 0.25


def spanned(*, rank: int) -> LabelRecovery:
    """A message of twelve tokens at cut 0, and a basis of its rows; all tokens at all positions."""
    model = tiny_model("bert")
    embed = model.bert.embeddings.eval()
    draws = torch.Generator().manual_seed(4)
    ids = torch.randperm(55, generator=draws)[:12] + 5
    with torch.no_grad():
        h_ND = embed(ids[None])[0]
        everything = torch.stack([embed(torch.full((1, 12), token))[0] for token in range(60)])
    _, _, v_DD = torch.linalg.svd(h_ND, full_matrices=False)
    return span_test(
        v_DD[:rank],
        candidates_MD=everything.flatten(0, 1),
        tokens=torch.arange(60).repeat_interleave(12).tolist(),
        present=ids.tolist(),
    )


def test_a_basis_of_a_messages_rows_tells_its_tokens_by_itself() -> None:
    found = spanned(rank=12)
    assert (found.accuracy, found.auc) == (1.0, 1.0)
    assert (found.attack, found.examples, found.budget["rank"]) == ("span", 12, 12)
    assert spanned(rank=3).accuracy < 1
