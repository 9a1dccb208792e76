"""Conditions in words."""

from __future__ import annotations

import re

import pytest

from gpu_exporter.alerting import rules
from gpu_exporter.alerting.runbooks import derivation, with_roots
from gpu_exporter.catalogue import bottlenecks as c
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS, bottleneck_is
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.conditions import prose
from gpu_exporter.conditions.tree import (
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
    terms,
)
from gpu_exporter.conditions.words import CLAUSES, STATES
from tests.support.table import table_test

BUSY = Limit("busy", 0.85, "ratio", "")
FLOW = Limit("flow", 2.5e9, "bytes per second", "")
OLD = Limit("old", 600, "seconds", "")
TWICE = Limit("twice", 2.0, "ratio", "")
MEAN = Over(s.SM_ACTIVE, Fn.MEAN, 300)
WAITS = Mark("waits", Compare(MEAN, ">", BUSY))
STALLED = Mark("stalled", Compare(MEAN, ">", BUSY))


@pytest.mark.parametrize(
    ("compare", "text"),
    [
        (Compare(MEAN, ">=", BUSY), "SM activity is at least 85 % (`busy`) on average over the last 5 minutes"),
        (Compare(Over(s.NVLINK), "<", FLOW), "NVLink traffic is below 2.5 GB/s (`flow`)"),
        (Compare(Over(s.XID_UNKNOWN), "<", OLD), "time since the last undocumented XID is below 10 min (`old`)"),
        (Compare(Over(s.UP), "<", 1.0), "the GPU does not answer"),
        (Compare(Over(s.UNOBSERVED), "==", 1.0), "the exporter cannot tell, or has released the driver"),
        (Compare(Over(s.REMAP_PENDING), ">", 0.0), "a row remap is pending"),
        (Compare(Over(s.ECC_DBE), ">", 0.0), "there are uncorrectable ECC errors"),
        (Compare(Over(s.FABRIC), "!=", 3), "NVSwitch fabric state is not 3"),
        (
            Compare(Over(s.NVLINK_CRC, Fn.INCREASE, 900), ">", 0.0),
            "within the last 15 minutes, NVLink CRC errors have increased",
        ),
        (
            Compare(Over(s.ECC_SBE, Fn.INCREASE, 3600), ">", 9.0),
            "within the last hour, corrected ECC errors have increased by more than 9",
        ),
        (
            Compare(Over(s.FB_FREE, Fn.PREDICT, 1800, ahead=3600), "<", 0.0),
            "free device memory will be below 0 in 1 h if the trend of the last 30 minutes continues",
        ),
        (
            Compare(Over(s.GR_ACTIVE, Fn.MAX, 7200, whole=True), "<", BUSY),
            "engine activity stayed below 85 % (`busy`) for the last 2 hours (needs data for that whole time)",
        ),
        (
            Compare(Over(s.FB_USE, Fn.MIN, 3600), ">=", BUSY),
            "device memory use stayed at least 85 % (`busy`) for the last hour",
        ),
        (
            Compare(Over(s.PCIE_RX_USE, Fn.MAX, 7200), ">=", BUSY),
            "PCIe link use to the GPU was at least 85 % (`busy`) at some time within the last 2 hours",
        ),
        (
            Compare(Over(s.SM_ACTIVE, Fn.STDDEV, 300), "<", BUSY),
            "the standard deviation of SM activity is below 85 % (`busy`) over the last 5 minutes",
        ),
        (Compare(Over(s.PCIE_GEN), "<", Over(s.PCIE_MAX_GEN)), "PCIe generation is below the maximum PCIe generation"),
        (
            Compare(Calc(Over(s.NVLINK_LINKS), "-", Over(s.NVLINK_UP)), ">", 0.0),
            "the number of NVLinks is above the number of NVLinks that are up",
        ),
        (
            Compare(Calc(MEAN, "-", PeerMedian(MEAN, WAITS)), ">", BUSY),
            "SM activity of this rank is more than 85 percentage points (`busy`) above the median SM activity of the "
            "job's ranks that wait, on average over the last 5 minutes",
        ),
        (
            Compare(Calc(Over(s.NVLINK), "/", PeerMedian(Over(s.NVLINK), WAITS)), "<", BUSY),
            "NVLink traffic of this rank is less than 85 % (`busy`) of the median NVLink traffic of the job's ranks "
            "that wait",
        ),
        (
            Compare(Calc(Over(s.NVLINK_TX), "/", Over(s.NVLINK_RX)), ">", TWICE),
            "NVLink traffic sent is more than 2 times (`twice`) NVLink traffic received",
        ),
        (
            Compare(Calc(Calc(Over(s.FP64_ACTIVE), "+", Over(s.FP32_ACTIVE)), "+", MEAN), ">=", BUSY),
            "the sum of FP64 activity, FP32 activity and SM activity is at least 85 % (`busy`), on average over the "
            "last 5 minutes",
        ),
        (Compare(PeerShare(STALLED), ">", BUSY), "more than 85 % (`busy`) of the job's other ranks are stalled"),
        (Compare(PeerShare(WAITS), ">", 0.0), "some of the job's other ranks wait"),
        (Compare(PeerShare(WAITS), ">=", 1.0), "all of the job's other ranks wait"),
    ],
)
def test_a_comparison(compare: Compare, text: str) -> None:
    """An English statement with the limit, its unit, its name and the window."""
    assert prose.compare(compare, {}) == text


def test_a_changed_limit() -> None:
    """The text has the number that is compared."""
    assert "at least 50 % (`busy`)" in prose.compare(Compare(MEAN, ">=", BUSY), {"busy": 0.5})


VERBS = re.compile(
    r"\b(is|are|was|will|have|has|stayed|does|answers?|wait|spins?|talk|communicate|launch|launches|idles|exchanges?|hangs"
    r"|moves|differs)\b"
)


@table_test("condition", [mode.condition for mode in MODES if mode.condition])
def test_no_comparison_falls_back_to_symbols(condition: Condition) -> None:
    """Every comparison of the catalogue is a sentence with a verb and no operator."""
    texts = [line.text for line in prose.lines(condition, {}) if not line.text.endswith((":", "and"))]

    assert [text for text in texts if re.search(r" [-+*/<>=≤≥] ", text)] == []
    assert [text for text in texts if not VERBS.search(text)] == []


def test_nesting() -> None:
    """Nested `and` and `or` are flattened; exceptions are one level below their condition."""
    low, high = Compare(Over(s.UTIL), "<", BUSY), Compare(Over(s.UTIL), ">", BUSY)
    tree = Or(And(low, And(high, low)), Or(high, Unless(low, high)))

    assert [(line.depth, re.sub(" is (?:below|above).*", "", line.text)) for line in prose.lines(tree, {})] == [
        (0, "any of these is true:"),
        (1, "all of these are true:"),
        *[(2, "GPU utilisation")] * 3,
        (1, "GPU utilisation"),
        (1, "all of these are true:"),
        (2, "GPU utilisation"),
        (2, "unless this is true (ignored without data):"),
        (3, "GPU utilisation"),
    ]
    assert prose.sentence(tree, {}) == (
        "(GPU utilisation < 85 % and GPU utilisation > 85 % and GPU utilisation < 85 %) or GPU utilisation > 85 %"
        " or (GPU utilisation < 85 %, unless GPU utilisation > 85 %)"
    )


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (And, "unless all of these are true (ignored if data for one of them is missing):"),
        (Or, "unless any of these is true (each is ignored without data):"),
    ],
)
def test_exceptions_are_one_level_deep(kind: type[And | Or], words: str) -> None:
    low, high = Compare(Over(s.UTIL), "<", BUSY), Compare(Over(s.UTIL), ">", BUSY)

    assert [(line.depth, line.text) for line in prose.lines(Unless(low, kind(low, high)), {})][2:] == [
        (1, words),
        (2, "GPU utilisation is below 85 % (`busy`)"),
        (2, "GPU utilisation is above 85 % (`busy`)"),
    ]


def test_an_exception_of_an_exception_is_no_double_negation() -> None:
    low, high = Compare(Over(s.UTIL), "<", BUSY), Compare(Over(s.UTIL), ">", BUSY)

    texts = [line.text for line in prose.lines(Unless(low, Unless(high, low)), {})]

    assert [text for text in texts if "without data" in text] == [
        "unless this is true (ignored without data):",
        "but not if this is true (ignored without data):",
    ]


@table_test("mode", [mode for mode in MODES if mode.condition], lambda mode: mode.name)
def test_texts_name_all_limits_and_signals(mode: object) -> None:
    """Each of its limits is named, and each of its signals."""
    condition: Condition = mode.condition  # type: ignore[attr-defined]
    text = "\n".join(line.text for line in prose.lines(condition, {}))
    text += "\n".join(line.text for _, defined in prose.definitions((condition,), {}) for line in defined)

    assert [limit.name for limit in limits_of(condition) if f"(`{limit.name}`)" not in text] == []
    signals = [term.signal for term in terms(condition) if isinstance(term, Over)]
    words = {signal.name: (prose.title(signal), *STATES.get(signal.name, ())) for signal in signals}
    assert [name for name, options in words.items() if not any(option in text for option in options)] == []


@pytest.mark.drift
def test_titles_are_unique() -> None:
    """No two signals have the same title, and none has the place of a value."""
    titles = [prose.title(signal) for signal in SIGNALS]

    assert len(set(titles)) == len(titles), "fix: give one of the signals a title in gpu_exporter/conditions/words.py"
    assert [each for each in titles if "{}" in each] == [], "fix: give it a title in gpu_exporter/conditions/words.py"


def test_limits_of_nested_conditions() -> None:
    """In a class, in a condition on other ranks, and in an exception."""
    assert limits_of(bottleneck_is("pcie-bound")) == (c.FULL_PCIE,)
    assert limits_of(Compare(PeerShare(WAITS), ">", FLOW)) == (FLOW, BUSY)
    assert limits_of(Unless(Compare(MEAN, ">", BUSY), Compare(MEAN, ">", FLOW))) == (BUSY, FLOW)


def test_roots_of_a_signal() -> None:
    """The signals that it is computed from, down to those that are read."""
    found = with_roots((s.PCIE_RX_USE,))

    assert found == (s.PCIE_RX_USE, s.PCIE_RX, s.PCIE_LINK, s.PCIE_WIDTH, s.PCIE_GEN)
    assert derivation(s.PCIE_RX_USE.definitions[0]) == "PCIe traffic to the GPU / PCIe link capacity"  # type: ignore[arg-type]


def test_every_class_has_a_sentence() -> None:
    """Each class has its own."""
    sentences = [prose.sentence(each.condition, {}) for each in BOTTLENECKS]

    assert all(sentences)
    assert len(set(sentences)) == len(BOTTLENECKS)


def test_shared_conditions_are_referred_to_and_defined_once() -> None:
    """A condition that several rules use is a clause in them, and has one definition."""
    inner = c.TRAFFIC
    outer = And(Compare(MEAN, ">", BUSY), inner, Or(inner, Compare(MEAN, "<", BUSY)))

    assert [line.text for line in prose.lines(outer, {})].count("the GPU *exchanges data*") == 2
    ((what, defined),) = prose.definitions((outer,), {})
    assert what == "The GPU *exchanges data*"
    assert defined[0].text == "any of these is true:"


def test_every_shared_condition_has_a_clause() -> None:
    assert {condition.name for condition in rules.shared_conditions().values()} == set(CLAUSES), (
        "fix: add or delete the clause in gpu_exporter/conditions/words.py"
    )
