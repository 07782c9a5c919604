"""A frame taken apart: shapes as they are, values only as a spread."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from splitlearn.audit.dissect import BINS, LEAST_VALUES, Histogram, dissect, sparkline
from splitlearn.errors import AuditError
from splitlearn.roles import Kind
from splitlearn.wire import frames, tensors
from splitlearn.wire.messages import Empty, StepTensor

META = StepTensor(3, 1, 4, "train", 9, True, (9, 4), 0)


def frame(*parts: tensors.Part) -> bytes:
    payload = tensors.encode(parts)
    return frames.encode(Kind.ACTIVATION, seq=5, meta=META, payload=payload)


def histogram(array: np.ndarray) -> Histogram | None:
    (part,) = dissect(frame(tensors.from_array("x", array))).parts
    return part.histogram


def test_a_frame_says_what_it_is_and_each_part_its_shape() -> None:
    x_ND = np.random.default_rng(0).standard_normal((13, 32)).astype(np.float32)
    raw = frame(tensors.from_array("x", x_ND), tensors.from_array("shift", np.ones(1, np.int8)))
    found = dissect(raw)
    assert (found.kind, found.message, found.wire_bytes) == (Kind.ACTIVATION, 5, len(raw))
    assert found.place == "train step 3, micro-batch 1"
    assert "lengths" in found.meta
    x, shift = found.parts
    assert (x.name, x.dtype, x.shape, x.data_bytes) == ("x", "F32", (13, 32), 13 * 32 * 4)
    assert (shift.dtype, shift.shape, shift.histogram) == ("I8", (1,), None)
    assert x.histogram is not None
    assert sum(x.histogram.counts) == 13 * 32
    expected, _ = np.histogram(x_ND, bins=BINS, range=(x.histogram.low, x.histogram.high))
    assert list(x.histogram.counts) == list(expected)
    assert x.histogram.low <= x_ND.min()
    assert x.histogram.high >= x_ND.max()


@pytest.mark.parametrize(
    "array",
    [
        np.linspace(-3, 3, 100).astype(np.float16),
        np.linspace(-3, 3, 100),
        np.arange(-50, 50).astype(np.int8),
        np.arange(100).astype(np.int64) * 10**9,
        np.arange(100) % 2 == 0,
        np.full(100, 0.29, np.float32),
        np.zeros(100, np.float32),
        np.full(100, -1e-320),
        np.full(100, 1e-320),
    ],
    ids=lambda array: f"{array.dtype} {array[0]}",
)
def test_every_value_of_every_dtype_falls_into_a_bin(array: np.ndarray) -> None:
    found = histogram(array)
    assert found is not None
    assert sum(found.counts) == 100
    assert found.low <= array.min()
    assert found.high >= array.max()


def test_bfloat16_is_read_as_the_upper_half_of_float32() -> None:
    x = np.linspace(1, 2, 128, dtype=np.float32)
    found = histogram((x.view(np.uint32) >> 16).astype(np.uint16))
    assert found is not None
    assert (found.low, found.high) == (1.0, 2.0)


def test_the_ends_of_a_histogram_are_no_values_that_were_sent() -> None:
    found = histogram(np.linspace(-1.23456, 2.34567, 100).astype(np.float32))
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(-1.3), pytest.approx(2.4))


def test_what_is_not_finite_is_counted_apart() -> None:
    x = np.ones(100, np.float32)
    x[:7] = np.nan
    x[7] = np.inf
    found = histogram(x)
    assert found is not None
    assert (found.not_finite, sum(found.counts)) == (8, 92)
    assert histogram(np.full(100, np.nan)) is None
    assert histogram(np.array([-1.7e308, 1.7e308] * 50)) is None


def test_a_few_values_are_not_listed_as_a_histogram() -> None:
    assert histogram(np.ones(LEAST_VALUES - 1, np.float32)) is None
    assert histogram(np.ones(LEAST_VALUES, np.float32)) is not None


def test_a_message_without_tensors_has_no_parts() -> None:
    found = dissect(frames.encode(Kind.READY, seq=9, meta=Empty()))
    assert (found.kind, found.parts, found.place) == (Kind.READY, (), "")


@pytest.mark.parametrize("raw", [b"", b"SPLN", frame()[:-1], frame() + b"x"])
def test_what_is_no_frame_is_said_so(raw: bytes) -> None:
    with pytest.raises(AuditError, match="not a legal frame"):
        dissect(raw)


def test_a_sparkline_is_as_high_as_its_counts() -> None:
    assert sparkline([0, 1, 4, 8]) == " ▁▄█"
    assert sparkline([0, 0]) == "  "
    assert sparkline([]) == ""
    assert sparkline([1, 10**9])[0] == "▁"


def test_taking_a_frame_apart_needs_no_torch() -> None:
    program = "import sys, splitlearn.audit.dissect; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"
