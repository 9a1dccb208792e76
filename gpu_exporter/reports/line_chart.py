"""Line charts over time as SVG: a mean, and a band around it from the lowest to the highest value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import groupby

WIDTH, HEIGHT = 360, 110
LEFT, RIGHT, TOP, BOTTOM = 4, 4, 14, 16
# A line has at most so many points: the mean of an interval, within a band from its lowest to its highest value.
MOST_POINTS = 180
# A line is interrupted where no value came for so many intervals.
GAP = 5
# The rules that a page with charts adds to its style.
CHART_STYLE = """figure{margin:0}figcaption{font-size:.85em;color:var(--soft)}figcaption b{color:var(--text)}
.none{color:var(--soft);font-size:.85em;margin:0}
figure text{font:10px system-ui,sans-serif;fill:var(--soft)}
.plot{fill:var(--plot)}.band{fill:var(--band)}polyline.value{fill:none;stroke:var(--line);stroke-width:1.5}
circle.value{fill:var(--line)}.limit{stroke:var(--critical);stroke-width:1;stroke-dasharray:4 3}
"""


def line_chart(
    title: str,
    name: str,
    points: Sequence[tuple[float, float]],
    span: tuple[float, float],
    amount: Callable[[float], str],
    *,
    top: float | None = None,
    limit: float | None = None,
) -> str:
    """Return a line from the time `span[0]` to `span[1]`; a sentence if there are no points.

    `amount` writes a value as text, `top` is the upper end of the scale, and a dashed line is drawn at `limit`.
    """
    if not points:
        return f'<figure><figcaption>{escape(name)}</figcaption><p class="none">not measured</p></figure>'
    values = [value for _, value in points]
    low, high, mean = min(values), max(values), sum(values) / len(values)
    top = top or max(high, limit or 0.0) or 1.0
    about = f"mean {amount(mean)}, {amount(low)} to {amount(high)}"
    label = escape(f"{title}, {name}: {about}", quote=True)
    drawn = "".join(_line(points, top, span))
    ruler = ""
    if limit is not None:
        y = _y(limit, top)
        ruler = f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    base = HEIGHT - BOTTOM
    return (
        f"<figure><figcaption><b>{escape(name)}</b> {escape(about)}</figcaption>"
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<rect class="plot" x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{base - TOP}"/>{ruler}{drawn}'
        f'<text x="{LEFT}" y="{TOP - 4}">{escape(amount(top))}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 4}">0 s</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{span[1] - span[0]:.0f} s</text></svg></figure>'
    )


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - min(max(value / top, 0.0), 1.0))


def _line(points: Sequence[tuple[float, float]], top: float, span: tuple[float, float]) -> Iterator[str]:
    """Yield a band and a line for each uninterrupted part of the points."""
    begin, seconds = span[0], max(span[1] - span[0], 1e-9)
    width = seconds / MOST_POINTS
    intervals = [
        (place, [value for _, value in group])
        for place, group in groupby(points, key=lambda point: int((point[0] - begin) / width))
    ]
    usual = max(1, len(intervals) and (intervals[-1][0] - intervals[0][0]) // len(intervals))
    for part in _parts(intervals, GAP * (usual + 1)):
        xs = [LEFT + (WIDTH - LEFT - RIGHT) * min((place + 0.5) / MOST_POINTS, 1.0) for place, _ in part]
        highs = [f"{x:.1f},{_y(max(values), top):.1f}" for x, (_, values) in zip(xs, part, strict=True)]
        lows = [f"{x:.1f},{_y(min(values), top):.1f}" for x, (_, values) in zip(xs, part, strict=True)]
        means = [f"{x:.1f},{_y(sum(values) / len(values), top):.1f}" for x, (_, values) in zip(xs, part, strict=True)]
        if len(part) == 1:
            yield f'<circle class="value" cx="{xs[0]:.1f}" cy="{means[0].partition(",")[2]}" r="1.5"/>'
            continue
        yield f'<polygon class="band" points="{" ".join([*highs, *reversed(lows)])}"/>'
        yield f'<polyline class="value" points="{" ".join(means)}"/>'


def _parts(intervals: Sequence[tuple[int, list[float]]], longest: int) -> Iterator[Sequence[tuple[int, list[float]]]]:
    begin = 0
    for place in range(1, len(intervals) + 1):
        if place == len(intervals) or intervals[place][0] - intervals[place - 1][0] > longest:
            yield intervals[begin:place]
            begin = place
