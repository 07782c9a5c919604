"""A simulated step as a picture: one lane a party and a wire, time from left to right. SVG, no script."""

from collections.abc import Sequence
from html import escape

from splitlearn.pipeline.chain import Run, Span

__all__ = ["timeline"]

_WIDTH, _LEFT, _RIGHT, _TOP, _LANE, _BAR = 1000, 150, 40, 56, 34, 24
_LEAST_LABEL = 16
_TICKS = 8
_COLOURS = {
    "bottom": "#2f6fab",
    "relay": "#7d6bb0",
    "top": "#3d8f57",
    "relay_backward": "#b3a6d6",
    "bottom_backward": "#8aa7c4",
    "forward": "#5b7fb5",
    "backward": "#c07a3a",
    "update": "#555555",
    "settle": "#999999",
}
_SAID = {
    "bottom": "bottom forward",
    "relay": "relay",
    "top": "top, loss and its backward",
    "relay_backward": "relay back",
    "bottom_backward": "bottom backward",
    "forward": "forward",
    "backward": "backward",
    "update": "optimiser",
    "settle": "settling",
}


def timeline(run: Run, *, title: str, step: int = 1) -> str:
    """The SVG of one step of `run` (the last one, if it has fewer).

    Bars bear the number of their micro-batch where there is room; a bar's title says the rest.
    """
    step = min(step, len(run.ends_s) - 1)
    spans = [span for span in run.spans if span.step == step]
    begin_s = min((span.begin_s for span in spans), default=0.0)
    end_s = max((span.end_s for span in spans), default=1.0)
    scale = (_WIDTH - _LEFT - _RIGHT) / max(end_s - begin_s, 1e-9)
    lanes = _lanes(spans)
    height = _TOP + _LANE * len(lanes) + 58
    pieces = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            'font-family="sans-serif" font-size="12" role="img">'
        ),
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    bottom = _TOP + _LANE * len(lanes)
    unit, per_unit = ("s", 1.0) if end_s - begin_s >= 1 else ("ms", 1e3)
    for tick in range(_TICKS + 1):
        at_s = (end_s - begin_s) * tick / _TICKS
        x = _LEFT + scale * at_s
        pieces.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{bottom}" stroke="#e3e3e3"/>'
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#444">'
            f"{at_s * per_unit:.3g}{' ' + unit if tick == _TICKS else ''}</text>"
        )
    for place, lane in enumerate(lanes):
        y = _TOP + _LANE * place
        pieces.append(f'<text x="{_LEFT - 8}" y="{y + 16}" text-anchor="end">{escape(lane)}</text>')
        pieces += [
            _bar(span, x=_LEFT + scale * (span.begin_s - begin_s), scale=scale, y=y)
            for span in spans
            if span.lane == lane
        ]
    pieces += _legend(spans, y=bottom + 40)
    pieces.append("</svg>")
    return "\n".join(pieces) + "\n"


def _lanes(spans: Sequence[Span]) -> list[str]:
    """Parties first, the trusted one above; then the wires."""
    return sorted(
        {span.lane for span in spans}, key=lambda lane: (">" in lane, lane != "trusted", lane)
    )


def _bar(span: Span, *, x: float, scale: float, y: int) -> str:
    width = max(scale * (span.end_s - span.begin_s), 0.5)
    said = f"{_SAID.get(span.what, span.what)}, micro-batch {span.micro_batch}"
    took = f"{1e3 * (span.end_s - span.begin_s):.3g} ms"
    bar = (
        f'<g><title>{escape(said)}: {took}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
        f'height="{_BAR}" rx="2" fill="{_COLOURS.get(span.what, "#888888")}" stroke="#ffffff" '
        'stroke-width="0.5"/>'
    )
    if width >= _LEAST_LABEL and span.what not in {"update", "settle"}:
        bar += (
            f'<text x="{x + width / 2:.1f}" y="{y + 16}" text-anchor="middle" fill="#ffffff">'
            f"{span.micro_batch}</text>"
        )
    return bar + "</g>"


def _legend(spans: Sequence[Span], *, y: int) -> list[str]:
    pieces, x = [], _LEFT
    for what in [what for what in _COLOURS if any(span.what == what for span in spans)]:
        pieces.append(
            f'<rect x="{x}" y="{y - 10}" width="12" height="12" rx="2" fill="{_COLOURS[what]}"/>'
            f'<text x="{x + 17}" y="{y}" fill="#333">{escape(_SAID[what])}</text>'
        )
        x += 34 + 7 * len(_SAID[what])
    return pieces
