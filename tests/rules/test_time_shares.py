"""The time shares of a GPU whose series end one after another: they add up to 1, or there are none."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpu_exporter.alerting.levels import recorded_names
from gpu_exporter.catalogue.bottlenecks import GR, SM
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.signals import FB_USED, NVLINK, SM_ACTIVE
from gpu_exporter.catalogue.time_shares import RECORD, TIME_SHARES
from gpu_exporter.conditions.evaluate import value
from gpu_exporter.conditions.formulas import results
from gpu_exporter.conditions.signal import PRESENCE_INFO
from tests import ROOT
from tests.rules.needed import rule_groups
from tests.rules.promtool import Case, Expect, check
from tests.rules.series import Device, minutes, rank
from tests.rules.test_conditions import draw
from tests.support.tools import is_long

STEP, STEPS, GPUS = 120, 12, 60 if is_long() else 20
# Every share needs these; all others count as 0 if they are unknown.
NEEDED = {PRESENCE_INFO, GR.record, SM.record}
SHARES = (0.0, 0.01, 0.3, 0.655, 0.9, 1.0)
LEVELS: Mapping[str, Sequence[float]] = {NVLINK.name: (0.0, 2e9), FB_USED.name: (0.0, 6e10)}


def group() -> Mapping[str, Any]:
    """Return the committed group of the rules of the shares."""
    (found,) = (each for each in rule_groups((ROOT / "alerts/recording.yaml",)) if each["name"] == "gpu-time")
    return found


def operands() -> list[str]:
    """Return the recorded series that the shares are computed from."""
    return sorted({name for rule in group()["rules"] for name in recorded_names(rule["expr"])} - {RECORD})


class Span(NamedTuple):
    """A series of one GPU: it exists at steps from `begin` to before `end`."""

    name: str
    gpu: int
    value: float
    begin: int
    end: int

    def rendered(self) -> Mapping[str, str]:
        """Return it in promtool's format; it ends as a series does that a rule no longer records."""
        values = ["_"] * self.begin + [f"{self.value:g}"] * (self.end - self.begin) + ["stale"]
        return {"series": f'{self.name}{{UUID="GPU-{self.gpu}"}}', "values": " ".join(values)}


def spans(chance: random.Random) -> Iterator[Span]:
    """Yield the series of some GPUs, each with a beginning and an end of its own."""
    for gpu in range(GPUS):
        for name in operands():
            holds = name.endswith(":holds")
            choices = (1.0,) if holds else LEVELS.get(name.split(":")[1], SHARES)
            likely = 0.3 if holds else 0.95
            if chance.random() < likely:
                begin = chance.choice((0, 0, 0, 1, 3))
                yield Span(name, gpu, chance.choice(choices), begin, chance.randint(begin + 1, STEPS))


class Ends(NamedTuple):
    """A test in promtool's format: whether the shares are whole at each step."""

    name: str
    spans: list[Span]

    def rendered(self) -> Mapping[str, Any]:
        """Return what must be true of the shares at each step."""
        tests = []
        for step in range(STEPS):
            there = [
                {each.name for each in self.spans if each.gpu == gpu and each.begin <= step < each.end}
                for gpu in range(GPUS)
            ]
            whole = sum(names >= NEEDED for names in there)
            expected = [
                Expect(f"count without (cause) ({RECORD}) != {len(TIME_SHARES)}"),
                Expect(f"abs(sum without (cause) ({RECORD}) - 1) > 1e-9"),
                Expect(f'count ({RECORD}{{cause="useful"}})', [({}, float(whole))] if whole else []),
            ]
            tests += [each.rendered(step * STEP) for each in expected]
        series = [each.rendered() for each in self.spans]
        return {"name": self.name, "interval": f"{STEP}s", "input_series": series, "promql_expr_test": tests}


@settings(
    max_examples=3 if is_long() else 1, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(seed=st.integers(0, 2**32))
def test_shares_are_whole_while_their_operands_end(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Rules record the operands at different times, so one can end minutes before another."""
    folder = tmp_path_factory.mktemp("ends")
    rules = folder / "rules.yaml"
    rules.write_text(json.dumps({"groups": [group()]}))
    check(folder, [Ends(f"seed {seed}", list(spans(random.Random(seed))))], rules=[rules], interval=f"{STEP}s")


def test_shares_are_whole_in_python() -> None:
    """Without SM activity there are none, because then nothing says how much of the time is useful."""
    without_sm = 0
    for fleet in map(draw, map(random.Random, range(4 if is_long() else 2))):
        for gpu in fleet.gpus:
            found = [results(share, fleet).get(gpu) for share in TIME_SHARES.values()]
            numbers = [number for number in found if number is not None]
            assert not numbers or (len(numbers) == len(found) and sum(numbers) == pytest.approx(1.0)), gpu
            assert bool(numbers) is all(value(term, fleet, gpu) is not None for term in (GR, SM)), gpu
            without_sm += value(GR, fleet, gpu) is not None and not numbers
    assert without_sm > 0


def test_a_lost_gpu_is_not_throttled_and_works_until_it_is_lost(tmp_path: Path) -> None:
    """Its counters end while its identity remains: a rate over what is left of the window would be too low."""
    story = [minutes(20), minutes(1, fault="lost")]
    expected = [
        Expect(f'max_over_time({RECORD}{{cause="{Cause.THROTTLED.value}"}}[30m]) > 0'),
        Expect(f"min_over_time({SM_ACTIVE.record}[5m]) < 0.99 * max_over_time({SM_ACTIVE.record}[5m])"),
    ]
    check(tmp_path, [Case("lost", [Device("lost", 0, story, owner=rank("lost"))], expected)], interval="15s")
