"""The report's charts as inline SVG: widths in per cent, text in pixels, so they fit a phone and a page.

Colours come from the page's style by class name. Each drawing has a title and a description, and says
in words what it shows. No text from a log is written but through `visible` and an escape.
"""

from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup, escape

from splitlearn.report.document import Heads, LeakageResult, LogFacts, Series, Steps
from splitlearn.report.words import count, plural, share, size, visible

__all__ = ["arrow", "leakage_chart", "meter", "steps_chart", "timeline_chart"]

# Height of the plot of bytes per step, in pixels, and the least part that a direction gets of it.
PLOT_PX = 220
LEAST_SHARE = 0.18
# Up to so many bins are drawn as bars with gaps between; more are one outline.
MAX_BARS = 80
# Rows of marks below the line of heads.
MAX_LANES = 3


def steps_chart(steps: Steps) -> Markup:
    """Bytes per bin of steps: what was sent stands above the line, what was received hangs below."""
    out = [each for each in steps.series if each.direction == "out"]
    into = [each for each in steps.series if each.direction == "in"]
    bins = max((len(each.bytes) for each in steps.series), default=0)
    top, bottom = _peak(out, bins), _peak(into, bins)
    above = _split(top, bottom)
    middle = round(PLOT_PX * above)
    plot = _tag(
        "svg",
        {
            "x": 0,
            "y": 22,
            "width": "100%",
            "height": PLOT_PX,
            "viewBox": f"0 0 {max(bins, 1)} {PLOT_PX}",
            "preserveAspectRatio": "none",
        },
        *_areas(out, bins=bins, base=middle, scale=-middle / max(top, 1)),
        *_areas(into, bins=bins, base=middle, scale=(PLOT_PX - middle) / max(bottom, 1)),
    )
    each = "a step" if steps.width == 1 else f"{count(steps.width)} steps"
    labels = [
        _text(f"sent, at most {size(top)} in {each}", x=0, y=14),
        _text(f"received, at most {size(bottom)} in {each}", x=0, y=PLOT_PX + 40),
        _text(f"step {count(steps.first)}", x=0, y=PLOT_PX + 60),
        _text(f"step {count(steps.last)}", x="100%", y=PLOT_PX + 60, end=True),
    ]
    totals = [f"{_way(one)} {size(sum(one.bytes))}" for one in steps.series]
    return _drawing(
        "steps",
        "Bytes per training step",
        f"From step {steps.first} to {steps.last}, {steps.width} steps a bin: {', '.join(totals)}.",
        plot,
        _line(middle + 22, css="axis"),
        *labels,
        height=PLOT_PX + 68,
    )


def timeline_chart(log: LogFacts, heads: Heads, *, marks: Mapping[str, Sequence[int]]) -> Markup:
    """Signed heads along the records. marks: indices of records by the name of what happened there."""
    records = max(log.records, 1)

    def at(index: int) -> str:
        return f"{100 * min(index, records) / records:.2f}%"

    pieces = [
        _tag("rect", {"class": "bare", "x": 0, "y": 46, "width": "100%", "height": 12, "rx": 3}),
        _tag(
            "rect",
            {"class": "covered", "x": 0, "y": 46, "width": at(log.covered), "height": 12, "rx": 3},
        ),
    ]
    for head in heads.listed:
        if head.size > log.covered:
            continue
        held = bool(head.countersigned)
        css = "head held" if held else "head"
        x = at(head.size)
        pieces.append(
            _tag("line", {"class": css, "x1": x, "x2": x, "y1": 30 if held else 38, "y2": 58})
        )
        if held:
            pieces.append(_tag("circle", {"class": css, "cx": x, "cy": 28, "r": 4.5}))
    lanes: list[int] = []
    for index, name in sorted((index, name) for name, each in marks.items() for index in each):
        lane = _lane(lanes, at=index, clear=max(1, records // 40))
        mark = {"x": at(index), "y": 74 + 17 * lane, "class": f"mark {name}", "overflow": "visible"}
        pieces.append(_tag("svg", mark, _tag("path", {"d": _MARKS[name]})))
    foot = 87 + 17 * max(1, len(lanes))
    pieces += [
        _text("record 0", x=0, y=foot),
        _text(f"record {count(log.records)}", x="100%", y=foot, end=True),
        _text(f"{count(log.covered)} of {plural(log.records, 'record')} under a head", x=0, y=14),
    ]
    vouched = sum(bool(head.countersigned) for head in heads.listed)
    happened = [f"{name} at record {index}" for name, places in marks.items() for index in places]
    return _drawing(
        "heads",
        "Signed heads along the log",
        f"{heads.total} heads, {vouched} of those drawn countersigned, over {log.covered} of "
        f"{log.records} records. {'; '.join(happened[:20])}",
        *pieces,
        height=foot + 8,
    )


def leakage_chart(result: LeakageResult, *, of: str) -> Markup:
    """One measure on a scale from nothing to everything, with its limit. of: tokens or labels."""
    tokens = of == "tokens"
    value = (result.tokens if tokens else result.labels) or 0.0
    limit = result.tokens_limit if tokens else result.labels_limit
    over = limit is not None and value > limit
    said = share(value) if tokens else f"AUC {value:.2f}"
    name = "tokens read back" if tokens else "labels told apart"
    pieces = [
        _tag("rect", {"class": "bare", "x": 0, "y": 26, "width": "100%", "height": 16, "rx": 3}),
        _tag(
            "rect",
            {
                "class": "leak over" if over else "leak",
                "x": 0,
                "y": 26,
                "width": f"{100 * value:.2f}%",
                "height": 16,
                "rx": 3,
            },
        ),
        _text(f"{said} of {name}" if tokens else f"{said}, {name}", x=0, y=16, css="strong"),
    ]
    if not tokens:
        pieces.append(_upright(0.5, y1=22, y2=46, css="chance"))
    if limit is None:
        pieces.append(_text("the policy sets no limit", x=0, y=60))
    else:
        pieces.append(_upright(limit, y1=20, y2=48, css="limit"))
        told = share(limit) if tokens else f"{limit:.2f}"
        x, end = f"{100 * limit:.2f}%", limit > 0.5
        pieces.append(_text(f"limit {told}", x=x, y=60, end=end, css="limit"))
    kept = "no limit" if limit is None else f"limit {limit:.3f}, {'over it' if over else 'kept'}"
    return _drawing(
        f"leakage-{result.record}-{of}",
        f"Leakage of {of}",
        f"{said} of {name} ({kept}).",
        *pieces,
        height=66,
    )


def meter(part: float, *, css: str = "") -> Markup:
    """A thin bar for a table cell; the number stands beside it, so it says nothing to a reader."""
    width = max(0.0, min(1.0, part))
    return _tag(
        "svg",
        {"class": "meter", "width": "100%", "height": 6, "aria-hidden": "true"},
        _tag("rect", {"class": "bare", "width": "100%", "height": 6, "rx": 2}),
        _tag(
            "rect",
            {"class": css or "fill", "width": f"{100 * width:.2f}%", "height": 6, "rx": 2},
        ),
    )


def arrow(direction: str, *, part: float) -> Markup:
    """An arrow to the right for out, to the left for in, the thicker the larger its part of all."""
    thick = 2 + 10 * max(0.0, min(1.0, part)) ** 0.5
    half = thick / 2 + 5
    right = direction == "out"
    tip = (
        f"M0 0L-14 {half:.1f}L-14 {-half:.1f}Z" if right else f"M0 0L14 {half:.1f}L14 {-half:.1f}Z"
    )
    return _tag(
        "svg",
        {"class": f"arrow {direction}", "width": "100%", "height": 28, "aria-hidden": "true"},
        # Moved by twelve pixels, so that a thick shaft ends inside the tip.
        _tag(
            "svg",
            {"x": -12 if right else 12, "width": "100%", "height": 28},
            _tag(
                "line",
                {"x1": 0, "x2": "100%", "y1": 14, "y2": 14, "stroke-width": f"{thick:.1f}"},
            ),
        ),
        _tag(
            "svg",
            {"x": "100%" if right else 0, "y": 14, "overflow": "visible"},
            _tag("path", {"d": tip}),
        ),
    )


_MARKS = {
    "gap": "M-6 -6L6 6M-6 6L6 -6",
    "redaction": "M-6 -5H6V5H-6Z",
    "refusal": "M0 -7L7 6H-7Z",
    "policy": "M0 -7L7 0L0 7L-7 0Z",
}


def _lane(lanes: list[int], *, at: int, clear: int) -> int:
    """The first of three lanes whose last mark is `clear` records away; the last one if none is."""
    for lane, last in enumerate(lanes):
        if at - last >= clear:
            lanes[lane] = at
            return lane
    if len(lanes) < MAX_LANES:
        lanes.append(at)
    return len(lanes) - 1


def _drawing(name: str, title: str, description: str, *pieces: Markup, height: int) -> Markup:
    return _tag(
        "svg",
        {
            "class": "chart",
            "role": "img",
            "width": "100%",
            "height": height,
            "aria-labelledby": f"chart-{name}-title chart-{name}-desc",
        },
        _tag("title", {"id": f"chart-{name}-title"}, escape(title)),
        _tag("desc", {"id": f"chart-{name}-desc"}, escape(visible(description, limit=4000))),
        *pieces,
    )


def _tag(name: str, attributes: Mapping[str, object], *children: Markup) -> Markup:
    """An element; `name` and the attributes' names are ours, everything else is escaped."""
    inside = Markup("").join(children)
    said = "".join(f' {key}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{said}>{inside}</{name}>")  # noqa: S704


def _text(words: str, *, x: object, y: float, end: bool = False, css: str = "") -> Markup:
    attributes = {"x": x, "y": y, "text-anchor": "end" if end else "start"}
    return _tag("text", attributes | ({"class": css} if css else {}), escape(visible(words)))


def _line(y: float, *, css: str) -> Markup:
    return _tag("line", {"class": css, "x1": 0, "x2": "100%", "y1": y, "y2": y})


def _upright(part: float, *, y1: float, y2: float, css: str) -> Markup:
    x = f"{100 * part:.2f}%"
    return _tag("line", {"class": css, "x1": x, "x2": x, "y1": y1, "y2": y2})


def _way(series: Series) -> str:
    return f"{series.kind.replace('_', ' ')} {'sent' if series.direction == 'out' else 'received'}"


def _peak(series: Sequence[Series], bins: int) -> int:
    return max((sum(each.bytes[index] for each in series) for index in range(bins)), default=0)


def _split(top: int, bottom: int) -> float:
    """Part of the plot above the line, so that both directions have one scale where they can."""
    if not top or not bottom:
        return float(bool(top))
    return min(max(top / (top + bottom), LEAST_SHARE), 1 - LEAST_SHARE)


def _areas(series: Sequence[Series], *, bins: int, base: float, scale: float) -> Iterable[Markup]:
    """Stacked bars from the line outwards, one path a kind."""
    stack = [0.0] * bins
    gap = 0.14 if bins <= MAX_BARS else 0.0
    for each in series:
        path = []
        for index, amount in enumerate(each.bytes):
            if amount:
                low, height = base + stack[index] * scale, amount * scale
                path.append(
                    f"M{index + gap:.2f} {low:.2f}v{height:.2f}h{1 - 2 * gap:.2f}v{-height:.2f}z"
                )
            stack[index] += amount
        yield _tag("path", {"class": f"k-{each.kind}", "d": "".join(path)})
