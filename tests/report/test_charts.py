"""Charts: well-formed, told in words, and closed to whatever a log says."""

from xml.etree import ElementTree as ET

import pytest
from markupsafe import Markup

from splitlearn.report.charts import arrow, leakage_chart, meter, steps_chart, timeline_chart
from splitlearn.report.document import (
    Head,
    Heads,
    LeakageResult,
    LogFacts,
    Series,
    Steps,
)

NASTY = '"><script>x</script>\N{RIGHT-TO-LEFT OVERRIDE}'
LOG = LogFacts(
    origin=NASTY,
    key="",
    pinned=False,
    records=1000,
    covered=900,
    root="",
    unreadable=0,
    first=None,
    last=None,
)


def parsed(chart: Markup) -> ET.Element:
    root = ET.fromstring(str(chart))
    assert root.tag == "svg"
    return root


def texts(root: ET.Element) -> list[str]:
    return [each.text or "" for each in root.iter("text")]


def described(root: ET.Element) -> str:
    """A drawing names its title and description, which are there; the description."""
    named = {each.get("id"): each.text for each in root if each.tag in {"title", "desc"}}
    assert root.get("role") == "img"
    assert set(str(root.get("aria-labelledby")).split()) == set(named)
    return str(named[next(name for name in named if name and name.endswith("desc"))])


def steps(*series: Series, width: int = 1) -> Steps:
    return Steps(first=0, last=9, width=width, series=series, outside=0)


def test_sent_stands_above_the_line_and_received_hangs_below() -> None:
    out = Series(direction="out", kind="activation", bytes=(100, 50))
    into = Series(direction="in", kind="output", bytes=(100, 0))
    root = parsed(steps_chart(steps(out, into)))
    paths = {each.get("class"): each.get("d") for each in root.iter("path")}
    line = next(each for each in root.iter("line") if each.get("class") == "axis")
    middle = float(str(line.get("y1"))) - 22
    assert middle == 110
    assert paths["k-activation"] == (
        "M0.14 110.00v-110.00h0.72v110.00zM1.14 110.00v-55.00h0.72v55.00z"
    )
    assert paths["k-output"] == "M0.14 110.00v110.00h0.72v-110.00z"
    assert "activation sent 150" in described(root)
    assert "sent, at most 100\N{NO-BREAK SPACE}B in a step" in texts(root)


def test_kinds_are_stacked_and_one_way_fills_the_plot() -> None:
    first = Series(direction="out", kind="activation", bytes=(60,))
    second = Series(direction="out", kind="gradient", bytes=(60,))
    root = parsed(steps_chart(steps(first, second, width=8)))
    paths = {each.get("class"): each.get("d") for each in root.iter("path")}
    assert paths == {
        "k-activation": "M0.14 220.00v-110.00h0.72v110.00z",
        "k-gradient": "M0.14 110.00v-110.00h0.72v110.00z",
    }
    assert "in 8 steps" in " ".join(texts(root))


def test_the_small_direction_stays_visible() -> None:
    out = Series(direction="out", kind="activation", bytes=(1_000_000,))
    into = Series(direction="in", kind="output", bytes=(1,))
    root = parsed(steps_chart(steps(out, into)))
    (path,) = [each.get("d") for each in root.iter("path") if each.get("class") == "k-output"]
    assert float(str(path).split("v")[1].split("h")[0]) > 30


def test_a_text_from_a_log_cannot_leave_its_place() -> None:
    root = parsed(steps_chart(steps(Series(direction="out", kind=NASTY, bytes=(1,)))))
    assert not list(root.iter("script"))
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in described(root)


def test_heads_are_drawn_up_to_the_one_that_fits_and_marks_stay_apart() -> None:
    heads = Heads(
        total=3,
        listed=(
            Head(size=300, countersigned=(NASTY,)),
            Head(size=900, countersigned=()),
            Head(size=1000, countersigned=()),
        ),
        peers=(),
    )
    marks = {"gap": [500], "refusal": [501, 502, 503, 990], "redaction": []}
    root = parsed(timeline_chart(LOG, heads, marks=marks))
    ticks = [each.get("class") for each in root.iter("line")]
    assert ticks == ["head held", "head"]
    assert len(list(root.iter("circle"))) == 1
    placed = {
        (each.get("x"), each.get("y")) for each in root if "mark" in (each.get("class") or "")
    }
    assert placed == {
        ("50.00%", "74"),
        ("50.10%", "91"),
        ("50.20%", "108"),
        ("50.30%", "108"),
        ("99.00%", "74"),
    }
    assert "gap at record 500" in described(root)


def test_an_empty_log_has_a_timeline_too() -> None:
    root = parsed(timeline_chart(LOG, Heads(total=0, listed=(), peers=()), marks={}))
    assert "0 heads" in described(root)


def leakage(**changes: float | None) -> LeakageResult:
    said: dict[str, float | None] = {
        "tokens": 0.95,
        "tokens_limit": 0.5,
        "labels": 0.6,
        "labels_limit": None,
    }
    return LeakageResult(
        record=1,
        run="r",
        at="canary",
        suite=1,
        seed=0,
        scored=10,
        tokens_by=NASTY,
        labels_by="",
        report="0" * 64,
        **(said | changes),
    )


@pytest.mark.parametrize(
    ("of", "changes", "said"),
    [
        ("tokens", {}, "limit 0.500, over it"),
        ("tokens", {"tokens": 0.5}, "limit 0.500, kept"),
        ("labels", {}, "AUC 0.60 of labels told apart (no limit)"),
        ("labels", {"labels_limit": 0.55}, "over it"),
    ],
)
def test_leakage_says_in_words_whether_it_is_over_the_limit(
    of: str, changes: dict[str, float | None], said: str
) -> None:
    root = parsed(leakage_chart(leakage(**changes), of=of))
    assert said in described(root)
    over = [each for each in root.iter("rect") if each.get("class") == "leak over"]
    assert bool(over) is ("over it" in said)


def test_a_meter_and_an_arrow_are_ornaments_to_a_reader() -> None:
    for ornament in (meter(3.0), meter(-1.0), arrow("out", part=1.0), arrow("in", part=0.0)):
        assert parsed(ornament).get("aria-hidden") == "true"
    assert [each.get("width") for each in parsed(meter(3.0))] == ["100%", "100.00%"]
