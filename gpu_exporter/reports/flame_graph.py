"""Flame graphs of folded stacks as SVG: the outermost frame on top, each as wide as its share of the time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from zlib import crc32

from gpu_exporter.io.decoding import printable
from gpu_exporter.reports.numbers import duration, percent

WIDTH, ROW = 1000.0, 18
# Narrower frames are not drawn, and deeper ones neither.
LEAST_WIDTH, MOST_DEPTH = 0.7, 48
LETTER, MOST_NAME = 6.3, 300
HUES = (8, 52)
# The rules that a page with flame graphs adds to its style.
FLAME_STYLE = """svg.flame{margin:.2rem 0 1rem}
.flame text{font:11px ui-monospace,monospace;fill:#1a1a1a;pointer-events:none}
"""


@dataclass
class FlameNode:
    """One frame under its callers, with the seconds of all that it contains."""

    name: str
    seconds: float = 0.0
    children: dict[str, FlameNode] = field(default_factory=dict)


def tree(stacks: Mapping[str, float]) -> FlameNode:
    """Return the tree of folded stacks: `frame;frame` from the outermost to the innermost -> seconds."""
    root = FlameNode("all")
    for stack, seconds in stacks.items():
        root.seconds += seconds
        node = root
        for name in stack.split(";"):
            node = node.children.setdefault(name, FlameNode(name))
            node.seconds += seconds
    return root


def flame_graph(stacks: Mapping[str, float], title: str) -> str:
    """Return an SVG of stacks. Each frame has its whole name, seconds and share as a tooltip."""
    root = _without_trunk(tree(stacks))
    frames = list(_frames(root, 0.0, WIDTH, 0, root.seconds or 1.0))
    rows = max((depth for depth, _ in frames), default=0) + 1
    body = "".join(text for _, text in frames)
    return (
        f'<svg class="flame" viewBox="0 0 {WIDTH:.0f} {rows * ROW}" role="img" aria-label="{_safe(title)}">'
        f"<title>{_safe(title)}</title>{body}</svg>"
    )


def _without_trunk(root: FlameNode) -> FlameNode:
    """Return the tree without the frames that all stacks begin with, such as `runpy` and `<module>`."""
    node = root
    while len(node.children) == 1:
        (child,) = node.children.values()
        if child.seconds < 0.999 * node.seconds or not child.children:
            break
        node = child
    return node


def _frames(node: FlameNode, left: float, width: float, depth: int, total: float) -> Iterator[tuple[int, str]]:
    """Yield the depth and the SVG of a frame and of those below it."""
    if width < LEAST_WIDTH or depth >= MOST_DEPTH:
        return
    name = printable(node.name, MOST_NAME)
    tooltip = f"{name}: {duration(node.seconds)}, {percent(node.seconds / total)}"
    letters = int((width - 6) / LETTER)
    text = name if len(name) <= letters else f"{name[: letters - 1]}…" if letters > 3 else ""
    label = f'<text x="{left + 3:.1f}" y="{depth * ROW + 13}">{_safe(text)}</text>' if text else ""
    yield (
        depth,
        f'<g><title>{_safe(tooltip)}</title><rect x="{left:.2f}" y="{depth * ROW}" width="{max(width - 0.4, 0.3):.2f}" '
        f'height="{ROW - 1}" fill="{_colour(node.name)}"/>{label}</g>',
    )
    at = left
    for child in sorted(node.children.values(), key=lambda each: -each.seconds):
        share = width * child.seconds / node.seconds if node.seconds else 0.0
        yield from _frames(child, at, share, depth + 1, total)
        at += share


def _colour(name: str) -> str:
    """Return a warm colour, the same for the same name."""
    number = crc32(name.encode(errors="replace"))
    return f"hsl({HUES[0] + number % (HUES[1] - HUES[0])} 75% {62 + number // 97 % 14}%)"


def _safe(text: str) -> str:
    return escape(text, quote=True)
