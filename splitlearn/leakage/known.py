"""What an attacker sees, what it knows beforehand, what it says, and how right that was.

Plain data, no sums. A Guess is made from Seen and Known alone; the Truth is only ever held against a
finished Guess, so that no attack can look at the answers.
"""

# N rows, B batch, T tokens, D width, R columns of a row, V vocabulary, K candidates

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Guess", "Known", "Recovery", "Seen", "TextReport", "Truth"]


@dataclass(frozen=True)
class Seen:
    """What a peer decoded from payloads: float32 rows of real tokens only, (N, R), text after text.

    `lengths` are the tokens of each text; they travel in the clear and sum to N.
    """

    rows_NR: Tensor
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        assert self.rows_NR.dim() == 2, "rows have two dimensions"
        assert len(self.rows_NR) == sum(self.lengths), "one row a token"


@dataclass(frozen=True)
class Known:
    """What an attacker has who owns the public base model and the job's public parts.

    forward: ids (B, T), padded on the right with any legal id, and real tokens a text, to the rows
    (N, R) that would be sent for them: bottom, narrow cut, codec and back. Float32, without gradient.
    embeddings_VD: the model's input embeddings, brought to full width.
    expand: rows (N, R) to (N, D) by the public basis; the rows themselves at full rank.
    text: the attacker's own texts as token ids, special tokens included as the model wants them.
    special: ids that carry no text ([CLS], [SEP], padding); never scored.
    causal: whether a row depends on no later token.
    table: only where nothing mixes tokens below the cut: a position in the text, as a tensor of one
    number, to the rows (V, R) of every vocabulary entry at it.
    """

    forward: Callable[[Tensor, tuple[int, ...]], Tensor]
    embeddings_VD: Tensor
    expand: Callable[[Tensor], Tensor]
    text: tuple[tuple[int, ...], ...]
    special: frozenset[int] = frozenset()
    causal: bool = False
    table: Callable[[Tensor], Tensor] | None = None

    @property
    def vocabulary(self) -> int:
        return len(self.embeddings_VD)


@dataclass(frozen=True)
class Truth:
    """The ids behind the rows seen, and which of them are like names, numbers and addresses."""

    ids: tuple[tuple[int, ...], ...]
    slots: tuple[tuple[bool, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.slots:
            lengths = [len(text) for text in self.ids]
            assert [len(text) for text in self.slots] == lengths, "one mark a token"


@dataclass(frozen=True)
class Guess:
    """What one attack says: for each row its candidates, best first, (N, K) int64.

    `held_out` is the attack's share of right first candidates on the attacker's own text, if it has
    measured that; `budget` is what it spent: seconds, and what else the attack counts.
    """

    attack: str
    version: int
    seed: int
    ranked_NK: Tensor
    held_out: float | None = None
    budget: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recovery:
    """How much of a text one attack recovered, as shares from 0 to 1 of the tokens scored.

    `unseen_top1` is over tokens that never occur in the attacker's text, `slots_top1` over those
    that Truth marks; None where there are none.
    """

    attack: str
    version: int
    seed: int
    budget: Mapping[str, float]
    tokens: int
    top1: float
    top20: float
    unseen: int
    unseen_top1: float | None
    slots: int
    slots_top1: float | None


@dataclass(frozen=True)
class TextReport:
    """All attacks that apply, strongest first, beside the baselines; `best` is the headline.

    A lower bound: a better attacker recovers more.
    """

    suite_version: int
    best: Recovery
    attacks: tuple[Recovery, ...]
    baselines: tuple[Recovery, ...]
