from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from splitlearn.codecs import NOBODY, About, Delta, build
from splitlearn.errors import WireError
from splitlearn.manifest.chains import SAMPLES
from splitlearn.wire import tensors
from splitlearn.wire.limits import MAX_FRAME_BYTES
from splitlearn.wire.tensors import Part

NAMES = ("delta-int4", "delta-int4-g64", "delta-int2-g64", "delta-int4+zstd")
A, B, C = (bytes([i]) * 8 for i in (1, 2, 3))
WIDTH = 20


@dataclass
class Shelf:
    """A memory in a dictionary."""

    rows: dict[bytes, Tensor] = field(default_factory=dict)

    def get(self, sample: bytes, *, rows: int, width: int) -> Tensor | None:
        found = self.rows.get(sample)
        return found if found is not None and found.shape == (rows, width) else None

    def put(self, sample: bytes, x_ND: Tensor) -> None:
        self.rows[sample] = x_ND.clone()


@dataclass
class Two:
    """A sender and a receiver of one kind of message, each with a memory."""

    name: str
    named: bool = True
    mine: Shelf = field(default_factory=Shelf)
    theirs: Shelf = field(default_factory=Shelf)

    def send(self, x_ND: Tensor, samples: tuple[bytes, ...], spans: tuple[int, ...]) -> Tensor:
        """Across the wire and back, both ends as engine and gate go about it."""
        delta = build(self.name)
        assert isinstance(delta, Delta)
        out = delta.about(self.mine, samples=samples, spans=spans, named=self.named)
        raw = tensors.encode(out.encode(x_ND))
        rows, width = x_ND.shape
        shapes = [(p.name, p.dtype, p.shape) for p in tensors.decode(raw)]
        assert [(s.name, s.dtype) for s in out.layout(rows=rows, width=width)] == [
            (name, dtype) for name, dtype, _ in shapes
        ]
        read_back_ND = out.decode(tensors.decode(raw), rows=rows, width=width)
        assert out.keep() == samples
        known = None if self.named else samples
        into = delta.about(self.theirs, samples=known, spans=spans, named=self.named)
        y_ND = into.decode(tensors.decode(raw), rows=rows, width=width)
        assert into.keep() == samples
        assert torch.equal(read_back_ND, y_ND)
        assert self.mine.rows.keys() == self.theirs.rows.keys()
        for sample, kept_ND in self.mine.rows.items():
            assert torch.equal(kept_ND, self.theirs.rows[sample])
        return y_ND


def drawn(rows: int, *, seed: int = 0, width: int = WIDTH) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def error(y_ND: Tensor, x_ND: Tensor) -> float:
    return float((y_ND - x_ND).norm() / x_ND.norm())


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_rows_that_come_again_get_nearer_each_time(name: str, named: bool) -> None:
    two, x_ND = Two(name, named), drawn(9)
    errors = [error(two.send(x_ND, (A, B), (4, 5)), x_ND) for _ in range(3)]
    assert errors[0] < 0.01
    assert errors[2] < errors[1] < errors[0] / 2


@pytest.mark.parametrize("name", NAMES)
def test_a_change_costs_the_error_of_the_change_alone(name: str) -> None:
    two, x_ND = Two(name), drawn(9)
    two.send(x_ND, (A, B), (4, 5))
    moved_ND = x_ND + 0.05 * drawn(9, seed=1)
    assert error(two.send(moved_ND, (A, B), (4, 5)), moved_ND) < 0.05 * 0.5


def test_old_and_new_samples_share_a_message_in_any_order_of_them() -> None:
    two = Two("delta-int4")
    x_ND = drawn(4)
    two.send(x_ND, (A,), (4,))
    both_ND = torch.cat((drawn(3, seed=2), x_ND, drawn(2, seed=3)))
    y_ND = two.send(both_ND, (B, A, C), (3, 4, 2))
    assert error(y_ND[3:7], x_ND) < 0.003
    assert error(y_ND[:3], both_ND[:3]) < 0.01
    assert set(two.mine.rows) == {A, B, C}
    again_ND = two.send(torch.cat((x_ND, both_ND[:3])), (A, B), (4, 3))
    assert error(again_ND[4:], both_ND[:3]) < 0.003


def test_a_sample_of_another_length_starts_anew_and_nobody_is_kept() -> None:
    two = Two("delta-int2-g64")
    two.send(drawn(4), (A,), (4,))
    x_ND = drawn(6, seed=1)
    assert error(two.send(x_ND, (A, NOBODY), (5, 1)), x_ND) < 0.01
    assert set(two.mine.rows) == {A}
    assert two.mine.rows[A].shape == (5, WIDTH)


def test_what_is_not_sent_or_opened_to_the_end_changes_no_memory() -> None:
    delta, shelf = build("delta-int4"), Shelf()
    assert isinstance(delta, Delta)
    about = delta.about(shelf, samples=(A,), spans=(3,), named=True)
    about.decode(about.encode(drawn(3)), rows=3, width=WIDTH)
    assert shelf.rows == {}


def test_by_itself_a_codec_of_changes_is_int8_and_remembers_nothing() -> None:
    delta, x_ND = build("delta-int4"), drawn(5)
    parts = [delta.encode(x_ND) for _ in range(2)]
    assert tensors.encode(parts[0]) == tensors.encode(parts[1])
    whole = build("int8")
    expected = whole.decode(whole.encode(x_ND), rows=5, width=WIDTH)
    assert torch.equal(delta.decode(parts[0], rows=5, width=WIDTH), expected)


def met(named: bool = True) -> tuple[About, tuple[Part, ...]]:
    """A receiver that has A, and what it gets about A and B, of 3 and 2 rows."""
    two = Two("delta-int4", named)
    two.send(drawn(3), (A,), (3,))
    delta = build("delta-int4")
    assert isinstance(delta, Delta)
    out = delta.about(two.mine, samples=(A, B), spans=(3, 2), named=named)
    parts = tensors.decode(tensors.encode(out.encode(drawn(5, seed=1))))
    known = None if named else (A, B)
    return delta.about(two.theirs, samples=known, spans=(3, 2), named=named), parts


def test_a_part_that_is_missing_or_one_too_many_is_refused() -> None:
    for left_out in range(len(met()[1])):
        into, parts = met()
        with pytest.raises(WireError):
            into.decode([p for i, p in enumerate(parts) if i != left_out], rows=5, width=WIDTH)
    into, parts = met()
    with pytest.raises(WireError):
        into.decode([*parts, parts[-1]], rows=5, width=WIDTH)
    into, parts = met(named=False)
    names = Part(SAMPLES, "U8", (2, 8), A + B)
    with pytest.raises(WireError):
        into.decode([names, *parts], rows=5, width=WIDTH)


@pytest.mark.parametrize(
    "names",
    [
        Part(SAMPLES, "U8", (3, 8), A + B + C),
        Part(SAMPLES, "U8", (16,), A + B),
        Part(SAMPLES, "I8", (2, 8), A + B),
        Part("names", "U8", (2, 8), A + B),
        Part(SAMPLES, "U8", (2, 8), B + C),  # neither is known, so all rows would have to be new
        Part(SAMPLES, "U8", (2, 8), B + A),  # A has three rows, not two
    ],
)
def test_names_that_do_not_fit_what_follows_are_refused(names: Part) -> None:
    into, parts = met()
    with pytest.raises(WireError):
        into.decode([names, *parts[1:]], rows=5, width=WIDTH)


def test_our_own_bytes_naming_other_samples_than_meant_are_refused() -> None:
    delta = build("delta-int4")
    assert isinstance(delta, Delta)
    out = delta.about(Shelf(), samples=(A,), spans=(3,), named=True)
    parts = out.encode(drawn(3))
    with pytest.raises(WireError, match="other samples"):
        out.decode([replace(parts[0], data=B), *parts[1:]], rows=3, width=WIDTH)


@pytest.mark.parametrize(("rows", "width"), [(4, WIDTH), (6, WIDTH), (5, 8), (MAX_FRAME_BYTES, 9)])
def test_rows_or_width_other_than_agreed_are_refused(rows: int, width: int) -> None:
    into, parts = met()
    with pytest.raises(WireError):
        into.decode(parts, rows=rows, width=width)


@given(
    st.sampled_from(NAMES),
    st.lists(st.tuples(st.sampled_from((A, B, C, NOBODY)), st.integers(1, 4)), min_size=1),
    st.integers(1, 70),
    st.floats(-44, 38, allow_nan=False),
)
def test_any_finite_rows_come_back_finite_and_both_ends_keep_the_same(
    name: str, about: list[tuple[bytes, int]], width: int, power: float
) -> None:
    two = Two(name)
    samples, spans = zip(*about, strict=True)
    for seed in (0, 1):
        x_ND = (drawn(sum(spans), seed=seed, width=width) * 10.0**power).clamp(-3e38, 3e38)
        assert bool(two.send(x_ND, samples, spans).isfinite().all())
