"""Conditions in words."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue import bottlenecks as c
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS, bottleneck_is
from gpu_exporter.catalogue.conditions import (
    And,
    Calc,
    Compare,
    Condition,
    Fn,
    Limit,
    Mark,
    Or,
    Over,
    PeerMedian,
    PeerShare,
    Unless,
    limits_of,
    marks_of,
    terms,
)
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.render import prose

BUSY = Limit("busy", 0.85, "ratio", "")
FLOW = Limit("flow", 2.5e9, "bytes per second", "")
OLD = Limit("old", 600, "seconds", "")
MEAN = Over(s.SM_ACTIVE, Fn.MEAN, 300)
WAITS = Mark("waits", Compare(MEAN, ">", BUSY))
STALLED = Mark("stalled", Compare(MEAN, ">", BUSY))


@pytest.mark.parametrize(
    ("compare", "text"),
    [
        (Compare(MEAN, ">=", BUSY), "SM active, mean over 5 min, at least 0.85 (`busy`)"),
        (Compare(Over(s.NVLINK), "<", FLOW), "NVLink, less than 2.5 GB/s (`flow`)"),
        (Compare(Over(s.XID_FATAL, Fn.AGE), "<=", OLD), "age of Xid fatal, at most 10 min (`old`)"),
        (Compare(Over(s.UP), "<", 1.0), "up is 0"),
        (Compare(Over(s.RELEASED), "==", 1.0), "released is 1"),
        (Compare(Over(s.REMAP_PENDING), ">", 0.0), "row remap pending is 1"),
        (Compare(Over(s.ECC_DBE), ">", 0.0), "ECC uncorrectable, more than 0"),
        (Compare(Over(s.ECC_SBE, Fn.INCREASE, 3600), ">", 9.0), "growth of ECC correctable within 1 h, more than 9"),
        (
            Compare(Over(s.FB_FREE, Fn.PREDICT, 1800, ahead=3600), "<", 0.0),
            "device memory free in 1 h, by a straight line through the last 30 min, less than 0",
        ),
        (
            Compare(Over(s.GR_ACTIVE, Fn.MAX, 7200, whole=True), "<", BUSY),
            "engine active, highest of 2 h that are known from their beginning, less than 0.85 (`busy`)",
        ),
        (Compare(Over(s.PCIE_GEN), "<", Over(s.PCIE_MAX_GEN)), "PCIe generation, less than PCIe highest generation"),
        (
            Compare(Calc(MEAN, "-", PeerMedian(MEAN, WAITS)), ">", BUSY),
            "SM active - median of SM active over the job's ranks that wait, means over 5 min, more than 0.85 (`busy`)",
        ),
        (
            Compare(PeerShare(STALLED), ">", BUSY),
            "share of the job's other ranks that are stalled, more than 0.85 (`busy`)",
        ),
    ],
)
def test_a_comparison(compare: Compare, text: str) -> None:
    """Signal, function and window, operator, number with its unit, the name under which it can be changed."""
    assert prose.compare(compare, {}) == text


def test_a_changed_limit_is_said() -> None:
    """What is said is what is compared."""
    assert prose.compare(Compare(MEAN, ">=", BUSY), {"busy": 0.5}).endswith("at least 0.5 (`busy`)")


def test_a_tree_keeps_its_shape() -> None:
    """And within and, or within or are flat; what speaks against stands a level below what it speaks against."""
    low, high = Compare(Over(s.UTIL), "<", BUSY), Compare(Over(s.UTIL), ">", BUSY)
    tree = Or(And(low, And(high, low)), Or(high, Unless(low, high)))

    assert [(line.depth, line.text.split(",")[0]) for line in prose.lines(tree, {})] == [
        (0, "any of:"),
        (1, "all of:"),
        *[(2, "utilisation")] * 3,
        (1, "utilisation"),
        (1, "all of:"),
        (2, "utilisation"),
        (2, "and not (what is not known does not count):"),
        (3, "utilisation"),
    ]
    assert prose.sentence(tree, {}) == (
        "(utilisation < 0.85 and utilisation > 0.85 and utilisation < 0.85) or utilisation > 0.85"
        " or (utilisation < 0.85, unless utilisation > 0.85)"
    )


@pytest.mark.parametrize(("seconds", "text"), [(5, "5 s"), (90, "90 s"), (300, "5 min"), (7200, "2 h"), (86400, "1 d")])
def test_a_time(seconds: float, text: str) -> None:
    """In the largest unit that it is a whole number of."""
    assert prose.span(seconds) == text


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode.condition], ids=lambda mode: mode.name)
def test_every_condition_has_words_for_every_comparison(mode: object) -> None:
    """Each of its limits is named, and each of its signals."""
    condition: Condition = mode.condition  # type: ignore[attr-defined]
    text = "\n".join(line.text for line in prose.lines(condition, {}))
    text += "\n".join(line.text for mark in marks_of(condition) for line in prose.lines(mark.condition, {}))

    assert [limit.name for limit in limits_of(condition) if f"(`{limit.name}`)" not in text] == []
    assert [term for term in terms(condition) if isinstance(term, Over) and prose.title(term.signal) not in text] == []


@pytest.mark.drift
def test_titles_are_unique() -> None:
    """No two signals read the same."""
    titles = [prose.title(signal) for signal in SIGNALS]

    assert len(set(titles)) == len(titles), "fix: give one of the signals another title in gpu_exporter/render/prose.py"


def test_limits_are_found_wherever_they_are() -> None:
    """In the class that is meant, in what is asked of other ranks, and in what speaks against."""
    assert limits_of(bottleneck_is("pcie-bound")) == (c.FULL_PCIE,)
    assert limits_of(Compare(PeerShare(WAITS), ">", FLOW)) == (FLOW, BUSY)
    assert limits_of(Unless(Compare(MEAN, ">", BUSY), Compare(MEAN, ">", FLOW))) == (BUSY, FLOW)


def test_roots_of_a_signal() -> None:
    """What is divided by what, down to what is read."""
    found = prose.with_roots((s.PCIE_RX_USE,))

    assert found == (s.PCIE_RX_USE, s.PCIE_RX, s.PCIE_LINK, s.PCIE_WIDTH, s.PCIE_GEN)
    assert prose.derivation(s.PCIE_RX_USE.made[0]) == "PCIe RX / PCIe link"  # type: ignore[arg-type]


def test_every_class_has_a_sentence() -> None:
    """No class is without a question of its own."""
    sentences = [prose.sentence(each.condition, {}) for each in BOTTLENECKS]

    assert all(sentences)
    assert len(set(sentences)) == len(BOTTLENECKS)
