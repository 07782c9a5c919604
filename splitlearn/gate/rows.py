"""What goes through the door as rows: told from anything else, and read back as the peer will read it.

N rows, D columns
"""

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from splitlearn.errors import RefusedError, WireError
from splitlearn.policy import (
    STEP_KINDS,
    Private,
    check_finite,
    check_hidden,
    check_lengths,
    check_no_numbers,
)
from splitlearn.roles import Kind, Role
from splitlearn.wire import samples
from splitlearn.wire.frames import BEARS_TENSORS
from splitlearn.wire.ids import IdBatch
from splitlearn.wire.messages import Meta, Samples, StepTensor
from splitlearn.wire.tensors import Part

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from splitlearn.codecs import Codec

__all__ = [
    "check_arguments",
    "check_hashes",
    "check_rows",
    "error_of",
    "read_back",
    "rows_of",
    "same_bits",
    "texts_beside",
]


def check_arguments(
    kind: Kind,
    *,
    tensor: "Tensor | None",
    codec: "Codec | None",
    parts: tuple[Part, ...] | None,
    ids: IdBatch | None,
) -> None:
    """Refuse a message that comes with more or less than its kind carries."""
    given = (tensor is not None, codec is not None, parts is not None, ids is not None)
    rows, batch = kind in STEP_KINDS, kind is Kind.IDS
    expected = (rows, rows, kind in BEARS_TENSORS and not rows and not batch, batch)
    if given != expected:
        names = ("a tensor", "a codec", "parts", "ids")
        wanted = " and ".join(n for n, has in zip(names, expected, strict=True) if has) or "nothing"
        raise RefusedError(
            f"{kind} carries {wanted} beside its metadata, and was given something else; "
            "our own stage is at fault",
            rule="content.arguments",
        )


def check_rows(
    x_ND: "NDArray[np.float32]",
    *,
    role: Role,
    kind: Kind,
    meta: StepTensor,
    private: Private | None,
    coded: bool,
) -> None:
    """The content checks that a party of this role owes for the rows of a message of this kind."""
    if role is Role.DECODER:
        # Its gradients are by the other side's rows, of which it has no ids to compare with.
        check_finite(x_ND)
        check_no_numbers(x_ND, coded=coded)
        return
    if role not in _OWNERS:
        check_finite(x_ND)
        return
    if private is None:
        raise RefusedError(
            f"{kind} came without the ids and labels of its batch, so it cannot be checked; "
            "our own stage is at fault",
            rule="content.batch",
        )
    if (private.memory is None) is not (meta.memory is None):
        raise RefusedError(
            f"{kind} came with the rows of a memory and without its ids, or the other way round; our own "
            "stage is at fault",
            rule="content.batch",
        )
    if private.memory is not None and meta.memory is not None:
        # Each text's rows are held against its own ids, so that neither hides behind the other.
        rows, width, lengths = sum(private.memory.lengths), meta.memory.width, meta.memory.lengths
        # Of a memory real tokens travel, also where a text is gone on with.
        beside = msgspec.structs.replace(meta, width=width, lengths=lengths, packed=True)
        _check_own(x_ND[:rows], kind=kind, meta=beside, private=private.memory, coded=coded)
        x_ND = x_ND[rows:]
    _check_own(x_ND, kind=kind, meta=meta, private=private, coded=coded)


def _check_own(
    x_ND: "NDArray[np.float32]", *, kind: Kind, meta: StepTensor, private: Private, coded: bool
) -> None:
    """Rows of one text a batch row, against its ids and labels."""
    check_lengths(
        private,
        rows=x_ND.shape[0],
        width=meta.width,
        packed=meta.packed,
        lengths=_new_of(meta),
    )
    if kind is Kind.ACTIVATION and not meta.lengths:
        raise RefusedError(f"{kind} travels with its lengths", rule="content.lengths")
    check_hidden(
        x_ND,
        private=private,
        packed=meta.packed,
        gradient=kind is Kind.GRADIENT,
        coded=coded,
    )


def texts_beside(meta: Meta, private: Private | None) -> tuple[int, ...]:
    """Lengths of the texts of a memory, as they travel and as they are."""
    told = meta.memory.lengths if isinstance(meta, StepTensor) and meta.memory is not None else ()
    real = private.memory.lengths if private is not None and private.memory is not None else ()
    return (*told, *real)


def _new_of(meta: StepTensor) -> tuple[int, ...]:
    """The lengths beside a tensor, as far as its own rows go: of a text gone on with, the new tokens."""
    if meta.phase != "generate" or not meta.lengths or min(meta.lengths) < meta.width:
        return meta.lengths
    return (meta.width,) * len(meta.lengths)


# Those whose rows come from a text of their own, row for row.
_OWNERS = frozenset({Role.TRUSTED, Role.ENCODER})


def check_hashes(parts: tuple[Part, ...], *, meta: Samples) -> None:
    """Read our own hashes as the peer will; RefusedError for anything else in their place."""
    try:
        samples.unpack(parts, meta=meta)
    except WireError as error:
        raise RefusedError(f"no hashes of samples: {error}", rule="content.samples") from error


def rows_of(tensor: "Tensor") -> "NDArray[np.float32]":
    """The tensor as float32 in main memory; shares what already is. Refuses what is no rows."""
    if tensor.dim() != 2 or not tensor.is_floating_point():
        raise RefusedError(
            f"a tensor of {tensor.dtype} {tuple(tensor.shape)} is no hidden state; expected "
            "floating point of (rows, columns); our own stage is at fault",
            rule="content.floats",
        )
    rows = tensor.detach()
    if not (rows.element_size() == 4 and rows.is_cpu and rows.is_contiguous()):
        rows = rows.cpu().float().contiguous()
    x_ND: NDArray[np.float32] = rows.numpy()
    return x_ND


def same_bits(one_ND: "NDArray[np.float32]", other_ND: "NDArray[np.float32]") -> bool:
    """Whether both are the same to the bit, negative zeros told apart."""
    return np.array_equal(one_ND.view(np.uint32), other_ND.view(np.uint32))


def error_of(decoded_ND: "NDArray[np.float32]", x_ND: "NDArray[np.float32]") -> float:
    """Norm of the difference over the norm, to four digits; 1 where all was zero and is not any more.

    >>> error_of(np.float32([[3.0, 4.0]]), np.float32([[3.0, 0.0]]))
    1.333
    """
    with np.errstate(
        over="ignore"
    ):  # squares of float32's largest and smallest are none of its own
        norm, lost = _norm(x_ND), _norm(decoded_ND - x_ND)
    if not norm:
        return float(lost > 0)
    return float(f"{lost / norm:.4g}")


def _norm(x_ND: "NDArray[np.float32]") -> float:
    norm = float(np.linalg.norm(x_ND.ravel()))
    usual = _USUAL < norm < 1 / _USUAL
    return norm if usual else float(np.linalg.norm(x_ND.ravel().astype(np.float64)))


_USUAL = 1e-15


def read_back(
    parts: tuple[Part, ...], *, codec: "Codec", rows: int, columns: int
) -> "NDArray[np.float32]":
    """Decode our own bytes as the peer will, and refuse what the codec does not declare."""
    layout = codec.layout(rows=rows, width=columns)
    declared = [(slot.name, slot.dtype, slot.shape) for slot in layout]
    found = [
        (part.name, part.dtype, part.shape if slot.shape is not None else None)
        for part, slot in zip(parts, layout, strict=False)
    ]
    if found != declared or len(parts) != len(layout):
        raise RefusedError(
            f"codec {codec.name} wrote {len(parts)} parts that are not the {len(layout)} it "
            "declares; the codec is at fault",
            rule="content.layout",
        )
    try:
        return rows_of(codec.decode(parts, rows=rows, width=columns))
    except WireError as error:
        raise RefusedError(
            f"what codec {codec.name} wrote cannot be read back: {error}", rule="content.layout"
        ) from error
