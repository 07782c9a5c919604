"""Speeds as a file: there and back, and one sentence for what is wrong."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.errors import ManifestError
from splitlearn.pipeline.speeds import (
    CodecSpeed,
    Line,
    PartySpeeds,
    Speeds,
    load_speeds,
    write_speeds,
)

numbers = st.floats(0, 3000, allow_subnormal=False)
lines = st.tuples(numbers, numbers)
parties = st.builds(
    PartySpeeds,
    layer=lines,
    layer_backward=lines,
    ends=lines,
    ends_backward=lines,
    layer_update_s=numbers,
    message=lines,
)
above = st.floats(1e-3, 1e5)


@given(
    trusted=parties,
    compute=st.none() | parties,
    codecs=st.dictionaries(
        st.sampled_from(["identity", "int8+zstd"]), st.tuples(above, numbers, above, above)
    ),
)
def test_what_was_written_reads_back(
    tmp_path_factory: pytest.TempPathFactory,
    trusted: PartySpeeds,
    compute: PartySpeeds | None,
    codecs: dict[str, tuple[float, float, float, float]],
) -> None:
    speeds = Speeds(
        tokens=10.0,
        padded=12.0,
        layers=6,
        width=384,
        trusted=trusted,
        compute=compute,
        codecs=codecs,
    )
    path = tmp_path_factory.mktemp("speeds") / "speeds.toml"
    path.write_text(write_speeds(speeds), encoding="utf-8")
    assert load_speeds(path) == speeds


def test_a_peer_of_whom_nothing_is_known_is_as_fast_as_we_are() -> None:
    ours, theirs = (PartySpeeds(layer=(x, x), layer_backward=(x, x)) for x in (1.0, 2.0))
    speeds = Speeds(tokens=1.0, padded=1.0, layers=2, width=8, trusted=ours)
    assert speeds.peer == ours
    assert speeds.model_copy(update={"compute": theirs}).peer == theirs


def test_a_codec_without_figures_has_none() -> None:
    party = PartySpeeds(layer=(0.0, 0.0), layer_backward=(0.0, 0.0))
    speeds = Speeds(
        tokens=1.0,
        padded=1.0,
        layers=2,
        width=8,
        trusted=party,
        codecs={"int8": (4.0, 0.01, 900.0, 800.0)},
    )
    assert speeds.codec("int8") == CodecSpeed(4.0, 0.01, 900.0, 800.0)
    assert speeds.codec("fp16") is None


@given(fixed=st.floats(0, 10), each=st.floats(0, 10), low=st.floats(1, 10), by=st.floats(1.5, 10))
def test_a_line_through_two_points_of_a_line_is_that_line(
    fixed: float, each: float, low: float, by: float
) -> None:
    line = Line(fixed, each)
    found = Line.through({low: line.at(low), low * by: line.at(low * by)})
    assert found.fixed_s == pytest.approx(fixed, abs=1e-6)
    assert found.each_s == pytest.approx(each, abs=1e-6)


@pytest.mark.parametrize(
    ("points", "fixed", "each"),
    [({4.0: 2.0}, 2.0, 0.0), ({1.0: 3.0, 4.0: 2.0}, 2.0, 0.0), ({1.0: 0.1, 4.0: 2.0}, 0.0, 0.5)],
)
def test_a_noisy_line_has_no_number_below_zero(
    points: dict[float, float], fixed: float, each: float
) -> None:
    assert Line.through(points) == Line(fixed, each)


PARTY = "[trusted]\nlayer = [0.1, 0]\nlayer_backward = [0.1, 0.2]\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "tokens = 9.0\npadded = 8.0\nlayers = 2\nwidth = 4\n" + PARTY,
            "less than the 9 of tokens",
        ),
        ("tokens = 9.0\nlayers = 2\nwidth = 4\n" + PARTY, "padded is missing"),
        (
            "tokens = 9.0\npadded = 9.0\nlayers = 2\nwidth = 4\n[trusted]\nlayer = [1]\n",
            r"trusted\.layer .*two numbers",
        ),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "speeds.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError, match=sentence):
        load_speeds(path)
