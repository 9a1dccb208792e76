"""Alerts can be read without the documentation: what happened to what, then what to do first."""

from __future__ import annotations

import re

import pytest

from gpu_exporter.alerting import rules, runbooks
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode
from gpu_exporter.catalogue.faults import MARGIN
from gpu_exporter.reports.markdown import untemplated
from tests.support.table import table_test

FIX = "fix: reword the entry of the mode in gpu_exporter/catalogue/failure_modes/"
# Phrases that had to be read twice, and contractions.
UNCLEAR = re.compile(
    r"It comes alone|When it is wrong|holds for|known from|\bour list\b|\bours\b|\bboard\b|says nothing of|of which|"
    r"\bXid\b|ought|what is not known|n't\b|\bit's\b",
)


@table_test("mode", MODES, lambda mode: mode.name)
def test_a_summary_names_what_is_affected(mode: FailureMode) -> None:
    """A GPU with its node, a job, or other labels; no placeholder is left."""
    summary = rules.alert(mode, {})["annotations"]["summary"]

    assert re.search(r"\$labels\.(node|workload|instance|namespace|cause)", summary), FIX
    assert "{gpu}" not in summary, FIX
    assert "{job}" not in summary, FIX
    assert summary.count("{{ end }}") == len(re.findall(r"\{\{ (?:if|with|range) ", summary)), FIX
    assert not summary.endswith("."), FIX


@table_test("mode", MODES, lambda mode: mode.name)
def test_a_description_is_sentences(mode: FailureMode) -> None:
    """It begins with what to do first; a value is in a sentence of its own. What to do may depend on the value."""
    description = rules.alert(mode, {})["annotations"]["description"]

    assert description.endswith("."), FIX
    if description == mode.annotations.get("description"):
        return
    assert description.startswith(mode.advice), FIX
    assert re.fullmatch(
        r"| Average [\w ]+ over 5 minutes: \{\{ \$value \| humanizePercentage \}\}\.", description[len(mode.advice) :]
    )


def test_texts_use_plain_words() -> None:
    """Alerts and runbooks have no phrases that need to be read twice."""
    texts = {mode.name: re.split("### (?:Limits|Data)", runbooks.runbook(mode))[0] for mode in MODES}
    texts |= {f"alert {mode.name}": str(rules.alert(mode, {})["annotations"]) for mode in MODES}

    assert {name: found[0] for name, text in texts.items() if (found := UNCLEAR.search(_prose(text)))} == {}, FIX


def _prose(text: str) -> str:
    """Return a text without its code, which may have other words."""
    return re.sub(r"`[^`]*`", "", text)


def test_only_alerts_on_activity_name_the_workload() -> None:
    """The health of a GPU is not the workload's, and distributed alerts have the job in their summary."""
    named = {mode.domain for mode in MODES if "(workload" in rules.alert(mode, {})["annotations"]["summary"]}

    assert named == {Domain.BOTTLENECK, Domain.COST}


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("XID {{ $labels.xid }} on it", "XID *xid* on it"),
        ("{{ $value | humanizePercentage }} of it", "*n* of it"),
        ("at {{ $labels.instance }}{{ with $labels.node }} (node {{ . }}){{ end }}: lost", "at *instance*: lost"),
        (
            "asks: {{ if eq $value 1.0 }}reset{{ else if eq $value 2.0 }}reboot{{ else }}action {{ $value }}{{ end }}",
            "asks: action *n*",
        ),
    ],
)
def test_templates_become_words(text: str, plain: str) -> None:
    """In the index of the runbooks, which has no labels."""
    assert untemplated(text) == plain


def test_the_thermal_margin_is_in_the_words_of_the_verdict() -> None:
    """Without a sign on either side of the temperature at which the GPU slows down."""
    summary = rules.alert(next(mode for mode in MODES if mode.name == MARGIN.mode), {})["annotations"]["summary"]
    below_zero, above_zero = summary.partition("{{ if lt $value 0.0 }}")[2].split("{{ else }}")
    assert [untemplated(text) for text in (below_zero, above_zero.removesuffix("{{ end }}"))] == [
        MARGIN.describe(value).removeprefix("it ").replace("7", "*n*") for value in (-7.0, 7.0)
    ]


def test_alerts_that_can_be_approximate_say_so() -> None:
    """Those that can fire without profiling counters, and read what utilisation or samples stand in for."""
    texts = {mode.name: rules.alert(mode, {})["annotations"].get("quality", "") for mode in MODES}
    said = {name for name, text in texts.items() if text}

    assert {"GpuHostBound", "GpuPcieBound", "GpuHostThrottled", "GpuAllocatedIdle", "GpuWaitsForRequests"} <= said
    assert said.isdisjoint({"GpuFakeLoad", "GpuMemoryBound", "GpuLost", "GpuThermalThrottling", "GpuMetricsMissing"})
    assert all(text.count("{{ with ") == text.count("{{ end }}") == 1 for text in texts.values() if text)
