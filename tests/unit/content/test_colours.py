"""Colours that share a panel differ for everybody, also for those with one of the three kinds of colour blindness."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest

from content.dashboards import fleet, job, loops, panels
from content.dashboards.frame import GREY
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.causes import COLOURS
from gpu_exporter.traces import html_page

# The difference that CIE76 gives to colours that nobody takes for each other: 2.3 is just noticeable side by side.
LEAST = 15.0
Matrix = Sequence[Sequence[float]]
# How people see linear RGB whose cones for red, green or blue do not work. Source: Machado, Oliveira and Fernandes
# 2009, "A Physiologically-based Model for Simulation of Color Vision Deficiency", severity 1.0.
VISIONS: Mapping[str, Matrix] = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
# sRGB to XYZ with the white D65 at (1, 1, 1). Source: IEC 61966-2-1.
XYZ: Matrix = (
    (0.4124564 / 0.95047, 0.3575761 / 0.95047, 0.1804375 / 0.95047),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339 / 1.08883, 0.1191920 / 1.08883, 0.9503041 / 1.08883),
)
# The colours of each panel, by what they stand for.
PANELS: Mapping[str, Mapping[str, str]] = {
    "classes over time": {**dict(panels.LIMITS), "unknown": GREY},
    "classes on the live page": {**{each.name: each.colour for each in BOTTLENECKS}, "unknown": GREY},
    "where the GPU time went": {cause.value: colour for cause, colour in COLOURS.items()},
    "what a training loop does": loops.ACTIVITIES,
    "what a GPU does in a trace": {name: colour for name, _, colour in (*html_page.LAYERS, html_page.IDLE)},
    "verdicts": dict(panels.VERDICTS),
    "nodes over time": dict(fleet.PROBLEMS),
    "states of ranks": {colour: colour for _, colour in job.STATES},
}


def times(matrix: Matrix, vector: Sequence[float]) -> list[float]:
    """Return the product of a matrix and a vector."""
    return [sum(one * other for one, other in zip(row, vector, strict=True)) for row in matrix]


def lab(colour: str, vision: Matrix) -> list[float]:
    """Return the CIELAB coordinates of an sRGB colour such as #73bf69 as someone sees it. Source: CIE 15."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    seen = [min(1.0, max(0.0, share)) for share in times(vision, linear)]
    x, y, z = (t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116 for t in times(XYZ, seen))
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("panel", PANELS)
def test_colours_differ(panel: str, vision: str) -> None:
    seen = {name: lab(colour, VISIONS[vision]) for name, colour in PANELS[panel].items()}
    alike = {
        (one, other): round(math.dist(seen[one], seen[other]), 1)
        for one, other in combinations(seen, 2)
        if math.dist(seen[one], seen[other]) < LEAST
    }
    assert not alike


def test_the_difference_of_known_colours() -> None:
    """Black and white are 100 apart. Who cannot see red and green takes these for each other."""
    white, black = (lab(colour, VISIONS["usual"]) for colour in ("#ffffff", "#000000"))
    assert math.dist(white, black) == pytest.approx(100, abs=0.01)
    brown, green = "#9c755f", "#73bf69"
    assert math.dist(*(lab(each, VISIONS["usual"]) for each in (brown, green))) > LEAST
    red, olive = "#b0581c", "#6d7a1e"
    assert math.dist(*(lab(each, VISIONS["protanopia"]) for each in (red, olive))) < LEAST
