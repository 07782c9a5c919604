"""Reads labels off gradients: what a peer that got them learns about what it was never sent.

Each attack looks at one example's gradient rows in several views and forms an opinion without the
labels; only then the truth is held against it, and whatever is undetermined (which view, which sign,
which cluster is which class) counts in the attacker's favour. So chance scores a little above one
half on few examples, and every figure is a lower bound on what a better attacker gets. For losses by
token there is a reading of targets through the public head, and a test of any basis that travels.
"""

# N rows (packed), B examples, D columns, C classes, V vocabulary, R rank, K clusters, M candidates

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import torch
from torch import Tensor
from torch.nn.functional import normalize

__all__ = [
    "LabelRecovery",
    "LabelReport",
    "SeenGradients",
    "attack_labels",
    "clustering_attack",
    "cosine_attack",
    "norm_attack",
    "read_next_tokens",
    "span_test",
    "spectral_attack",
]

# Rises whenever an attack changes: figures of different versions are not comparable.
VERSION = 1
# Examples of each class that the cosine attack is tried with, one at a time.
CLUES = 16
# Starts of k-means, and rounds of each.
STARTS, ROUNDS = 8, 50
# More classes than this are matched to clusters one after another, not in the best of all ways.
MATCHED_EXACTLY = 6


@dataclass(frozen=True)
class SeenGradients:
    """What a peer decoded: float32 gradient rows of real tokens, (N, D), example after example.

    `lengths` are the rows of each example and sum to N. Gradients of several messages may be put
    together, if each is of the same mean: rows of a step of other size want scaling first.
    """

    g_ND: Tensor
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        assert self.g_ND.dim() == 2, "rows have two dimensions"
        assert len(self.g_ND) == sum(self.lengths), "one row a token"


@dataclass(frozen=True)
class LabelRecovery:
    """What one attack got.

    auc: area under the ROC curve, of one class against the rest and averaged over classes, 0.5 for
    chance; None where an attack ranks nothing. accuracy: share of labels, or of tokens, right at the
    first guess. top20: share right within twenty. budget: what the attacker was given or spent.
    """

    attack: str
    version: int
    seed: int
    budget: Mapping[str, float]
    examples: int
    auc: float | None
    accuracy: float
    top20: float | None = None


@dataclass(frozen=True)
class LabelReport:
    """All attacks, strongest first, beside what is right without looking; `best` is the headline."""

    best: LabelRecovery
    attacks: tuple[LabelRecovery, ...]
    baselines: tuple[LabelRecovery, ...]


def attack_labels(seen: SeenGradients, *, labels: Sequence[int], seed: int) -> LabelReport:
    """Runs every attack on one label an example, two classes at least; the largest AUC is the headline."""
    assert len(labels) == len(seen.lengths), "one label an example"
    assert len(set(labels)) > 1, "one class alone has nothing to be told apart"
    attacks = [
        attack(seen, labels=labels, seed=seed)
        for attack in (spectral_attack, clustering_attack, cosine_attack, norm_attack)
    ]
    attacks.sort(key=lambda found: found.auc or 0.0, reverse=True)
    most = max(labels.count(label) for label in set(labels)) / len(labels)
    majority = LabelRecovery("majority", VERSION, seed, {}, len(labels), 0.5, most)
    return LabelReport(attacks[0], tuple(attacks), (majority,))


def norm_attack(seen: SeenGradients, *, labels: Sequence[int], seed: int) -> LabelRecovery:
    """How long an example's gradient is (Li et al., 2102.08504). Knows nothing."""
    lengths_B = torch.stack([rows.norm() for rows in _examples(seen)])
    opinion = _Opinion(lengths_B.log()[:, None].nan_to_num(neginf=-100.0))
    return _held_against("norm", [opinion], labels=labels, seed=seed)


def spectral_attack(seen: SeenGradients, *, labels: Sequence[int], seed: int) -> LabelRecovery:
    """Where an example stands along the directions that gradients vary most in. Knows nothing.

    By the singular vectors of one row an example, around their mean and around zero: the gradients
    of two classes point opposite ways, whatever direction that is. Noise that is alike in all
    directions hides little of the one that matters.
    """
    classes = len(set(labels))
    opinions = []
    for x_BD in _views(seen):
        for around_BD in (x_BD - x_BD.mean(0), x_BD):
            _, _, v_DD = torch.linalg.svd(around_BD, full_matrices=False)
            scores_BK = around_BD @ v_DD[: max(1, classes - 1)].T
            # Two classes lie on the two sides; more are left to k-means.
            sides_B = (scores_BK[:, 0] > 0).long() if classes == 2 else None
            opinions.append(_Opinion(scores_BK, clusters_B=sides_B))
    return _held_against("spectral", opinions, labels=labels, seed=seed)


def clustering_attack(seen: SeenGradients, *, labels: Sequence[int], seed: int) -> LabelRecovery:
    """Which of as many clusters as classes an example's direction falls into. Knows nothing else."""
    classes = len(set(labels))
    opinions = []
    for x_BD in _views(seen):
        for around_BD in (normalize(x_BD), normalize(x_BD - x_BD.mean(0))):
            centres_KD = _k_means(around_BD, classes, seed=seed)
            scores_BK = -torch.cdist(around_BD, centres_KD)
            # Nearer to this one than to any other.
            margins_BK = torch.stack(
                [
                    scores_BK[:, k] - scores_BK[:, torch.arange(len(centres_KD)) != k].max(1).values
                    for k in range(len(centres_KD))
                ],
                dim=1,
            )
            opinions.append(_Opinion(margins_BK, clusters_B=scores_BK.argmax(1)))
    return _held_against("clustering", opinions, labels=labels, seed=seed)


def cosine_attack(seen: SeenGradients, *, labels: Sequence[int], seed: int) -> LabelRecovery:
    """How alike a gradient is to one whose label is known (Li et al., 2102.08504).

    Knows the label of one example of each class; the mean over CLUES choices of it, the known ones
    not scored. The best view counts.
    """
    labels_B = torch.tensor(labels)
    generator = torch.Generator().manual_seed(seed)
    chosen = []
    for label in sorted(set(labels)):
        of_class = (labels_B == label).nonzero()[:, 0]
        picks = torch.randint(len(of_class), (CLUES,), generator=generator)
        chosen.append(of_class[picks])
    clues_SC = torch.stack(chosen, dim=1)
    best = (0.0, 0.0)
    for x_BD in _views(seen):
        cosines_BB = normalize(x_BD) @ normalize(x_BD).T
        found = []
        for clues_C in clues_SC:
            scored_B = torch.ones(len(labels), dtype=torch.bool)
            scored_B[clues_C] = False
            if not scored_B.any():
                continue
            scores_BC, truth_B = cosines_BB[scored_B][:, clues_C], labels_B[scored_B]
            ranked = [
                _auc(scores_BC[:, c] - _others(scores_BC, c), truth_B == labels_B[clue])
                for c, clue in enumerate(clues_C)
            ]
            right = labels_B[clues_C][scores_BC.argmax(1)] == truth_B
            found.append((sum(ranked) / len(ranked), float(right.double().mean())))
        mean = tuple(sum(column) / max(1, len(found)) for column in zip(*found, strict=True))
        best = max(best, (mean[0], mean[1]) if found else (0.5, 0.0))
    budget = {"labels_known": float(len(set(labels))), "choices": float(CLUES)}
    return LabelRecovery("cosine", VERSION, seed, budget, len(labels), *best)


def read_next_tokens(
    g_ND: Tensor,
    *,
    head_VD: Tensor,
    targets: Sequence[int],
    basis_RD: Tensor | None = None,
    seed: int = 0,
) -> LabelRecovery:
    """Which token each row's loss asked for, by the public head. Knows no target.

    The gradient by the logits is p - onehot, so minus the gradient below the head is the target's
    row of the head, less a mean of rows. basis_RD: where gradients are of codes z with h = z basis.
    Best of plain and centred rows by product, cosine and whitened cosine; layers between the cut and
    the head make it weaker.
    """
    head_VR = head_VD.double() if basis_RD is None else head_VD.double() @ basis_RD.double().T
    rows_NR, targets_N = -g_ND.double(), torch.tensor(targets)
    assert rows_NR.shape == (len(targets), head_VR.shape[1]), "one row a target"
    centred_VR = head_VR - head_VR.mean(0)
    values_R, vectors_RR = torch.linalg.eigh(centred_VR.T @ centred_VR)
    floor = values_R[-1] * 1e-9
    whiten_RR = vectors_RR / values_R.clamp(min=floor).sqrt()
    best = (-1.0, 0.0)
    variants = 0
    for around_NR in (rows_NR, rows_NR - rows_NR.mean(0)):
        for entries_VR, of_NR in (
            (head_VR, around_NR),
            (normalize(centred_VR), around_NR),
            (normalize(centred_VR @ whiten_RR), around_NR @ whiten_RR),
        ):
            variants += 1
            shares = [0, 0]
            for rows, wanted in zip(
                torch.split(of_NR, 256), torch.split(targets_N, 256), strict=True
            ):
                top = (rows @ entries_VR.T).topk(min(20, len(entries_VR)), dim=1).indices
                right = top == wanted[:, None]
                shares[0] += int(right[:, 0].sum())
                shares[1] += int(right.any(1).sum())
            best = max(best, (shares[0] / len(targets), shares[1] / len(targets)))
    budget = {"variants": float(variants), "columns": float(rows_NR.shape[1])}
    return LabelRecovery(
        "next-tokens", VERSION, seed, budget, len(targets), None, best[0], top20=best[1]
    )


def span_test(
    basis_RD: Tensor,
    *,
    candidates_MD: Tensor,
    tokens: Sequence[int],
    present: Sequence[int],
    seed: int = 0,
) -> LabelRecovery:
    """Which tokens a message has, by the basis that travels with it and nothing else.

    A basis made of a message's own rows spans them, so a candidate row (of token `tokens[m]`, at some
    position) that lies in it was there. accuracy: share of the tokens present among as many that lie
    nearest to the span; auc: of all tokens by that.
    """
    q_DR, _ = torch.linalg.qr(basis_RD.double().T)
    rows_MD = normalize(candidates_MD.double())
    outside_M = 1 - (rows_MD @ q_DR).square().sum(1)
    tokens_M = torch.tensor(tokens)
    count = int(tokens_M.max()) + 1
    outside_V = torch.full((count,), torch.inf, dtype=torch.float64)
    outside_V.scatter_reduce_(0, tokens_M, outside_M, "amin")
    present_V = torch.zeros(count, dtype=torch.bool)
    present_V[torch.tensor(sorted(set(present)))] = True
    listed_V = outside_V.isfinite()
    nearest = outside_V.argsort()[: int(present_V.sum())]
    budget = {"candidates": float(len(tokens)), "rank": float(len(basis_RD))}
    return LabelRecovery(
        attack="span",
        version=VERSION,
        seed=seed,
        budget=budget,
        examples=int(present_V.sum()),
        auc=_auc(-outside_V[listed_V], present_V[listed_V]),
        accuracy=float(present_V[nearest].double().mean()),
    )


@dataclass(frozen=True)
class _Opinion:
    """What an attack says before it is told anything: scores (B, K), and groups where it has them."""

    scores_BK: Tensor
    clusters_B: Tensor | None = field(default=None)


def _examples(seen: SeenGradients) -> Iterator[Tensor]:
    # Row norms of 1e-6 and their squares are ordinary here.
    return iter(torch.split(seen.g_ND.double(), list(seen.lengths)))


def _views(seen: SeenGradients) -> list[Tensor]:
    """One row an example, (B, D), in each way of taking it: the first, the sum, the longest."""
    takes: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda rows: rows[0],
        lambda rows: rows.sum(0),
        lambda rows: rows[rows.norm(dim=1).argmax()],
    )
    return [torch.stack([take(rows) for rows in _examples(seen)]) for take in takes]


def _held_against(
    attack: str, opinions: Sequence[_Opinion], *, labels: Sequence[int], seed: int
) -> LabelRecovery:
    """The best opinion's figures: any column, with either sign, may mean any class."""
    labels_B = torch.tensor(labels)
    classes = sorted(set(labels))
    best = (-1.0, 0.0)
    for opinion in opinions:
        columns = opinion.scores_BK.T
        aucs = [_auc(column, labels_B == label) for label in classes for column in columns]
        worst = [max(auc, 1 - auc) for auc in aucs]
        of_class = [max(worst[at : at + len(columns)]) for at in range(0, len(worst), len(columns))]
        clusters_B = opinion.clusters_B
        if clusters_B is None:
            centres_KD = _k_means(opinion.scores_BK, len(classes), seed=seed)
            clusters_B = torch.cdist(opinion.scores_BK, centres_KD).argmin(1)
        found = (sum(of_class) / len(classes), _matched(clusters_B, labels_B, classes=classes))
        best = max(best, found)
    return LabelRecovery(attack, VERSION, seed, {"views": len(opinions)}, len(labels), *best)


def _others(scores_BC: Tensor, c: int) -> Tensor:
    """The best score of any class but `c`."""
    return scores_BC[:, torch.arange(scores_BC.shape[1]) != c].max(1).values


def _auc(scores_B: Tensor, positive_B: Tensor) -> float:
    """The chance that one of the class scores above one of the others, ties halved."""
    ones, zeros = int(positive_B.sum()), int((~positive_B).sum())
    if not ones or not zeros:
        return 0.5
    _, inverse_B, counts = torch.unique(scores_B, return_inverse=True, return_counts=True)
    ranks_B = (counts.cumsum(0) - (counts - 1) / 2).double()[inverse_B]
    return float((ranks_B[positive_B].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def _k_means(x_BD: Tensor, clusters: int, *, seed: int) -> Tensor:
    """The centres (K, D) of the tightest of several starts."""
    generator = torch.Generator().manual_seed(seed)
    best, tightest = x_BD[:clusters], float("inf")
    for _ in range(STARTS):
        at = torch.randint(len(x_BD), (1,), generator=generator)
        while len(at) < clusters:  # k-means++: far from those that are there
            far_B = torch.cdist(x_BD, x_BD[at]).min(1).values.square() + 1e-30
            at = torch.cat((at, torch.multinomial(far_B, 1, generator=generator)))
        centres_KD = x_BD[at]
        for _ in range(ROUNDS):
            nearest_B = torch.cdist(x_BD, centres_KD).argmin(1)
            moved_KD = torch.stack(
                [
                    x_BD[nearest_B == k].mean(0) if (nearest_B == k).any() else centres_KD[k]
                    for k in range(clusters)
                ]
            )
            if torch.equal(moved_KD, centres_KD):
                break
            centres_KD = moved_KD
        spread = float(torch.cdist(x_BD, centres_KD).min(1).values.square().sum())
        if spread < tightest:
            best, tightest = centres_KD, spread
    return best


def _matched(clusters_B: Tensor, labels_B: Tensor, *, classes: Sequence[int]) -> float:
    """Share of labels right if each cluster is given the class that suits best, each once."""
    counts = torch.stack(
        [((labels_B == label)[:, None] & (clusters_B[:, None] == torch.arange(len(classes)))).sum(0)
         for label in classes]
    )  # fmt: skip
    if len(classes) <= MATCHED_EXACTLY:
        ways = permutations(range(len(classes)))
        right = max(sum(int(counts[c, k]) for c, k in enumerate(way)) for way in ways)
        return right / len(labels_B)
    right = 0
    for _ in classes:
        c, k = divmod(int(counts.argmax()), len(classes))
        right += int(counts[c, k])
        counts[c, :], counts[:, k] = -1, -1
    return right / len(labels_B)
