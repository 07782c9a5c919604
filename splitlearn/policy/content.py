"""Do these rows look like text, ids or labels instead of a hidden state? Checks on values.

They stop accidents and patched stages, not an adversary who encodes with care: a hidden state that
passes is still the text to whoever owns the model. A few passes over the rows and samples of at most
SAMPLE_ROWS rows for the rest, so that a message of 2 MB takes about a millisecond.
Never keeps, shows or logs a value.
"""

# B examples, T padded tokens, N rows (N = sum of lengths where packed, else B x T), D columns, S sample

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from splitlearn.errors import RefusedError
from splitlearn.wire.tensors import Part, to_array

__all__ = [
    "SAMPLE_ROWS",
    "Private",
    "check_finite",
    "check_hidden",
    "check_lengths",
    "check_no_numbers",
    "check_row_norm",
    "check_weights",
]

Floats: TypeAlias = NDArray[np.float32]
Numbers: TypeAlias = NDArray[np.generic]

SAMPLE_ROWS = 64
# Fewer distinct rows than this say nothing about how many values a column takes.
MIN_SAMPLE_ROWS = 16
# A straight line through fewer points is no evidence.
MIN_LINE_POINTS = 8


@dataclass(frozen=True)
class Private:
    """What a micro-batch must not be recognisable by; given to the gate for comparison only.

    ids: (B, T) token ids, padded. labels: each (B,) or (B, T). lengths: real tokens of each example.
    memory: of another text, whose rows stand before these in one tensor. watched: whether the label guard
    looks, too; rows of a text that labels are made of tell them by nature.
    """

    ids: NDArray[np.integer] = field(repr=False)
    labels: tuple[NDArray[np.integer], ...] = field(repr=False)
    lengths: tuple[int, ...] = field(repr=False)
    memory: "Private | None" = field(default=None, repr=False)
    watched: bool = True


def check_lengths(
    private: Private, *, rows: int, width: int, packed: bool, lengths: tuple[int, ...]
) -> None:
    """Refuse a micro-batch whose side data are not exactly those of the batch it is made from.

    lengths: as they would travel; empty where the kind carries none. width: padded length T.
    """
    real = private.lengths
    whole = private.ids.shape == (len(real), width) and all(0 < n <= width for n in real)
    labels = all(label.shape in {(len(real),), (len(real), width)} for label in private.labels)
    if not (whole and labels):
        raise RefusedError(
            f"the batch to compare with has ids of shape {private.ids.shape} and {len(real)} lengths "
            f"where the message says width {width}; our own stage is at fault",
            rule="content.batch",
        )
    if lengths and lengths != real:
        raise RefusedError(
            f"the {len(lengths)} lengths beside the tensor are not those of the batch's "
            f"{len(real)} examples; our own stage is at fault",
            rule="content.lengths",
        )
    expected = sum(real) if packed else len(real) * width
    if rows != expected:
        raise RefusedError(
            f"the tensor has {rows} rows where the batch has {expected}; our own stage is at fault",
            rule="content.rows",
        )


def check_finite(x_ND: Floats) -> None:
    """Refuse NaN and infinity: a NaN has 22 bits of room for anything."""
    # One product shows both; only a finite number that overflows has to be looked at again.
    flat = x_ND.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.dot(flat, flat))
    if not np.isfinite(total) and not np.isfinite(flat).all():
        raise RefusedError(
            f"a tensor of shape {x_ND.shape} holds NaN or infinity; lower the learning rate, or look "
            "for the layer that divides by zero",
            rule="content.finite",
        )


def check_weights(parts: Sequence[Part]) -> None:
    """Refuse weights that are not floating-point numbers, or not all finite."""
    for part in parts:
        values = to_array(part)
        if part.dtype == "BF16":  # comes as uint16; an exponent of ones is NaN or infinity
            finite = bool(((values.view(np.uint16) & 0x7F80) != 0x7F80).all())
        else:
            finite = values.dtype.kind == "f" and bool(np.isfinite(values).all())
        if not finite:
            raise RefusedError(
                f"weights {part.name} of {part.dtype} {part.shape} are not all finite numbers in "
                "floating point; look at the run that made them",
                rule="content.finite",
            )


def check_row_norm(x_ND: Floats, *, limit: float) -> None:
    """Refuse a row longer than `limit`."""
    longest = float(np.sqrt(np.einsum("nd,nd->n", x_ND, x_ND, dtype=np.float64).max(initial=0.0)))
    if longest > limit:
        raise RefusedError(
            f"a row of a tensor of shape {x_ND.shape} has norm {longest:.3g}; allowed is {limit:g}",
            rule="content.max_row_norm",
        )


def check_hidden(
    x_ND: Floats, *, private: Private, packed: bool, gradient: bool, coded: bool
) -> None:
    """Refuse rows in which whole numbers, the batch's ids or its labels can be recognised.

    gradient: rows of a gradient, most of which may be zero, and whose columns follow the labels by
    nature. coded: the rows have been through a codec, which may have rounded them.
    """
    check_finite(x_ND)
    if not coded:
        _check_whole_numbers(x_ND)
    rows = _rows_of(private, packed=packed)
    ids_N = private.ids.reshape(-1)[rows].astype(np.float64)
    sample = _first_of_each(ids_N)
    sample_SD = x_ND[sample]
    if coded:
        _check_whole_columns(sample_SD)
    _check_line(sample_SD, ids_N[sample], rule="content.ids")
    starts = _starts(private, packed=packed)
    for label in private.labels:
        at = starts if label.ndim == 1 else slice(None)
        label_N = label if label.ndim == 1 else label.reshape(-1)[rows]
        _check_equal(x_ND[at], label_N)
    if gradient or coded:
        return
    _check_distinct(sample_SD)
    apart = _distinct_examples(private)
    first_SD = x_ND[starts[apart]]
    _check_distinct(first_SD)
    for label in private.labels:
        if label.ndim == 1:
            _check_line(first_SD, label[apart].astype(np.float64), rule="content.labels")


def check_no_numbers(x_ND: Floats, *, coded: bool) -> None:
    """Refuse rows with columns of whole numbers, such as ids. coded: as in `check_hidden`."""
    if coded:
        _check_whole_columns(x_ND[:: max(1, len(x_ND) // SAMPLE_ROWS)])
    else:
        _check_whole_numbers(x_ND)


# Floats from here on are whole anyway.
_FLOAT32_WHOLE = 2.0**23
# A float16 is whole from 1,024 on, a bfloat16 from 128.
_CODED_WHOLE = 128.0
# How far a column may stray from a straight line in the labels or ids, relative to its own spread,
# and still be one that a codec rounded.
_LINE_TOLERANCE = 0.02


def _check_whole_numbers(x_ND: Floats) -> None:
    """Real hidden states hold a whole number by accident once in millions of values."""
    # In blocks that stay in the processor's cache; nearly all messages end here.
    blocks = (x_ND[at : at + _BLOCK_ROWS] for at in range(0, len(x_ND), _BLOCK_ROWS))
    wholes = sum(int(np.count_nonzero(np.rint(block) == block)) for block in blocks)
    if wholes < _FEWEST:
        return
    zeros = x_ND.size - int(np.count_nonzero(x_ND))
    suspects = wholes - zeros
    if suspects < _FEWEST:
        return
    coarse = _is_coarse(x_ND)
    for column in np.flatnonzero((np.rint(x_ND) == x_ND).all(axis=0)):
        x_N = x_ND[:, column]
        seen = np.count_nonzero(x_N)
        if seen >= (MIN_LINE_POINTS if coarse else _FEWEST) and np.abs(x_N).max() < _FLOAT32_WHOLE:
            raise _looks_like(
                f"column {column} is", x_ND, what="whole numbers", rule="content.whole"
            )
    # Numbers in half precision are whole more often, but not most of them.
    share = 0.5 if coarse else _WHOLE_SHARE
    if suspects > _FEWEST + share * x_ND.size or suspects + zeros == x_ND.size:
        raise _looks_like(
            f"{suspects} values are", x_ND, what="whole numbers", rule="content.whole"
        )


# Nonzero whole numbers that are still taken for accidents, and the share of them in a large tensor.
_FEWEST = 2
_WHOLE_SHARE = 1e-4
_BLOCK_ROWS = 64


def _is_coarse(x_ND: Floats) -> bool:
    """Whether the values have been through half precision: the low mantissa bits are then zero."""
    stride = max(1, x_ND.size // 4096)
    bits = np.ascontiguousarray(x_ND.reshape(-1)[::stride]).view(np.uint32)
    return bool(np.mean((bits & 0x1FFF) == 0) > _COARSE_SHARE)


_COARSE_SHARE = 0.9


def _check_whole_columns(sample_SD: Floats) -> None:
    whole_D = (np.rint(sample_SD) == sample_SD).all(axis=0)
    seen_D = np.count_nonzero(sample_SD, axis=0) >= MIN_LINE_POINTS
    small_D = np.abs(sample_SD).max(axis=0, initial=0.0) < _CODED_WHOLE
    if (whole_D & seen_D & small_D).any():
        raise _looks_like("a column is", sample_SD, what="whole numbers", rule="content.whole")


# Rows that are enough to see classes: sorting them is the dearest of the checks.
DISTINCT_ROWS = 32


def _check_distinct(sample_SD: Floats) -> None:
    """Refuse a column that takes few values over rows that ought to differ all."""
    if len(sample_SD) < MIN_SAMPLE_ROWS:
        return
    sample_SD = sample_SD[:: max(1, len(sample_SD) // DISTINCT_ROWS)]
    # Of any half of the rows and one more, two are then alike: nearly all messages end here.
    if not _repeats(sample_SD[: len(sample_SD) // 2 + 1]).any():
        return
    distinct_D = len(sample_SD) - _repeats(sample_SD)
    few_D = (distinct_D > 1) & (distinct_D <= len(sample_SD) // 2)
    if not few_D.any():
        return
    # In half precision a column of large, close values takes few: then all columns have to.
    if few_D.all() or not _is_coarse(np.ascontiguousarray(sample_SD)):
        raise _looks_like(
            f"a column takes {int(distinct_D[few_D].min())} values over {len(sample_SD)} different",
            sample_SD,
            what="classes",
            rule="content.distinct",
        )


def _repeats(sample_SD: Floats) -> NDArray[np.intp]:
    """How many values of each column stand in it already."""
    # Along rows of memory: several times faster than down the columns.
    sorted_DS = np.sort(np.ascontiguousarray(sample_SD.T), axis=1)
    repeats_D: NDArray[np.intp] = np.count_nonzero(sorted_DS[:, 1:] == sorted_DS[:, :-1], axis=1)
    return repeats_D


def _check_line(sample_SD: Floats, private_S: NDArray[np.float64], *, rule: str) -> None:
    """Refuse a column that is a straight line in ids or labels: equal, scaled or shifted alike."""
    if len(private_S) < MIN_LINE_POINTS or not np.ptp(private_S):
        return
    p_S = private_S - private_S.mean()
    p_S /= np.sqrt(p_S @ p_S)
    # A coarse look in one product first; where it might err, because a column's mean is far larger
    # than its spread, the column is looked at again like a suspect.
    both = np.stack((np.full(len(p_S), len(p_S) ** -0.5), p_S)).astype(np.float32)
    mean_D, line_D = both @ sample_SD
    square_D = np.einsum("sd,sd->d", sample_SD, sample_SD)
    spread_D = square_D - mean_D**2
    suspects = np.flatnonzero(
        (square_D > 0) & ((line_D**2 > 0.98 * spread_D) | (spread_D < _UNSURE * square_D))
    )
    for column in suspects:
        x_S = sample_SD[:, column].astype(np.float64)
        largest = np.abs(x_S).max()
        x_S -= x_S.mean()
        slope = p_S @ x_S
        if not 0.99 * (x_S @ x_S) < slope**2:
            continue
        rest = np.abs(x_S - slope * p_S).max()
        # Against the typical spread and not the largest: one token far from all others makes any
        # column nearly a line.
        typical = np.median(np.abs(x_S - np.median(x_S)))
        if rest <= _LINE_TOLERANCE * typical + 1e-6 * largest:
            what = rule.partition(".")[2]
            raise _looks_like(f"column {column} follows", sample_SD, what=f"the {what}", rule=rule)


# Below this share of the squares, a spread computed in float32 is not to be trusted.
_UNSURE = 1e-3


def _check_equal(x_ND: Floats, private_N: Numbers) -> None:
    """Refuse a column that equals the labels. Ones that are zero throughout say nothing."""
    if len(x_ND) < 2 or np.count_nonzero(private_N) < _FEWEST:
        return
    wanted_N = private_N.astype(np.float32)
    # The first row that is not zero decides for nearly all columns.
    probe = int(np.flatnonzero(wanted_N)[0])
    for column in np.flatnonzero(x_ND[probe] == wanted_N[probe]):
        if (x_ND[:, column] == wanted_N).all():
            raise _looks_like(f"column {column} is", x_ND, what="the labels", rule="content.labels")


def _looks_like(found: str, x: Floats, *, what: str, rule: str) -> RefusedError:
    return RefusedError(
        f"{found} {what} in a tensor of {x.shape[-1]} columns, which is no hidden state; "
        "our own stage is at fault and nothing was sent",
        rule=rule,
    )


def _rows_of(private: Private, *, packed: bool) -> NDArray[np.intp] | slice:
    """Which of the B x T positions travel as rows, in order."""
    if not packed:
        return slice(None)
    width = private.ids.shape[1]
    real_BT = np.arange(width) < np.asarray(private.lengths)[:, None]
    return np.flatnonzero(real_BT)


def _starts(private: Private, *, packed: bool) -> NDArray[np.intp]:
    """The row of each example's first token."""
    sizes = private.lengths if packed else [private.ids.shape[1]] * len(private.lengths)
    return np.cumsum([0, *sizes[:-1]], dtype=np.intp)


def _first_of_each(ids_N: NDArray[np.float64]) -> NDArray[np.intp]:
    """Rows with different token ids, at most SAMPLE_ROWS, spread over the ids that occur."""
    first: NDArray[np.intp] = np.unique(ids_N, return_index=True)[1]
    if len(first) > SAMPLE_ROWS:
        first = first[np.linspace(0, len(first) - 1, SAMPLE_ROWS).astype(np.intp)]
    return first


def _distinct_examples(private: Private) -> NDArray[np.intp]:
    """Examples with different token ids, at most SAMPLE_ROWS."""
    rows = [row.tobytes() for row in private.ids[: 4 * SAMPLE_ROWS]]
    first = {row: index for index, row in reversed(list(enumerate(rows)))}
    return np.array(sorted(first.values())[:SAMPLE_ROWS], dtype=np.intp)
