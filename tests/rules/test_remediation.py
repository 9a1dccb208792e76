"""Alerts on the remediation controller: each fires where it is injected, and none without a controller.

Each controller is in a namespace of its own, so that few runs of promtool suffice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from gpu_exporter.catalogue.failure_modes import remediation
from gpu_exporter.catalogue.failure_modes.mode import Ramp
from tests.rules.promtool import Case, Expect, check
from tests.rules.series import Device, minutes
from tests.rules.shapes import STEP

LASTS = 100.0
STEPS = round(LASTS * 60 / STEP)
FIRED = 'group by (alertname, namespace, node) (last_over_time(ALERTS{alertstate="firing"}[1d]))'
NOW = 'group by (alertname, namespace, node) (ALERTS{alertstate="firing"})'
BREAKER = "cluster:remediation_breaker:count"
HELD = 'gpu_remediation_node_state_since_timestamp_seconds{pool="a",node="n",reason="held"}'
CYCLE = "gpu_remediation_last_cycle_timestamp_seconds"
NODES = 'gpu_remediation_nodes{{pool="a",reason="{}"}}'
# The end of the last cycle of a controller that works follows the clock.
WORKS = {CYCLE: f"0+{STEP}x{STEPS}"}
Series = Mapping[str, str]


def values(of: float | Ramp) -> str:
    """Return a value over the whole test, in promtool's format."""
    return f"{of.start:g}+{of.per_second * STEP:g}x{STEPS}" if isinstance(of, Ramp) else f"{of:g}+0x{STEPS}"


def scraped(namespace: str, series: Series, instance: str = "10.0.0.7:9401") -> list[Series]:
    """Return the series of a controller with the labels of its target."""
    target = f'job="gpu-remediation",namespace="{namespace}",instance="{instance}"'
    found: list[Series] = []
    for text, of in series.items():
        name, _, labels = text.rstrip("}").partition("{")
        found.append({"series": f"{name}{{{target},{labels}}}".replace(",}", "}"), "values": of})
    return found


def check_series(folder: Path, series: Iterable[Series], *expected: Expect) -> None:
    """Check results at the end, with a healthy GPU in the cluster."""
    check(folder, [Case("remediation", [Device("well", 0, [minutes(LASTS)])], expected, more=list(series))])


def alert(name: str, namespace: str, node: str = "") -> tuple[Mapping[str, str], float]:
    return {"alertname": name, "namespace": namespace, "node": node}, 1.0


def test_injected_series_fire(tmp_path: Path) -> None:
    """The series of each catalogue entry fire its alert, and no other."""
    series, fired = [], []
    for mode in remediation.MODES:
        series += scraped(mode.name.lower(), {name: values(value) for name, value in mode.inject.series.items()})
        node = "node-7" if "node=" in str(mode.inject.series) else ""
        fired.append(alert(mode.name, mode.name.lower(), node))
    one_breaker = Expect(f"sum({BREAKER})", [({}, 1.0)])
    check_series(tmp_path, series, Expect(FIRED, fired), one_breaker)


def test_without_a_controller(tmp_path: Path) -> None:
    """There is no series, no alert and no error."""
    check_series(tmp_path, [], Expect('{__name__=~".*:remediation_.+"}'), Expect(FIRED))


def test_what_fires_and_what_does_not(tmp_path: Path) -> None:
    """Controllers that work, are replaced, or stop, and nodes that a person uses for less than an hour or longer.

    With a controller whose breaker is closed, the count is 0; without one, it is absent.
    """
    works = {
        **WORKS,
        'gpu_remediation_leader{pod="a"}': values(1),
        'gpu_remediation_leader{pod="b"}': values(0),
        NODES.format("healthy"): values(9),
        NODES.format("unknown"): values(1),
        'gpu_remediation_cordoned_since_timestamp_seconds{pool="a",node="n"}': values(0),
        'gpu_remediation_draining_since_timestamp_seconds{pool="a",node="n"}': values(0),
        HELD.replace("held", "awaiting_repair"): values(0),
        'gpu_remediation_budget_remaining{pool="a"}': values(0),
        'gpu_remediation_errors_total{reason="conflict"}': values(Ramp(0, 1 / 30)),
        'gpu_remediation_errors_total{reason="timeout"}': f"0+0x60 4+0x{STEPS - 61}",
    }
    begins = 205 * STEP
    series = [
        *scraped("works", works),
        *scraped("rollout", {CYCLE: f"0+{STEP}x100 _x{STEPS - 100}"}),
        *scraped("rollout", {CYCLE: f"0+0x104 {105 * STEP}+{STEP}x{STEPS - 105}"}, "10.0.0.8:9401"),
        *scraped("gone", {CYCLE: f"0+{STEP}x{STEPS - 60} _x60"}),
        *scraped("fails", {CYCLE: f"0+{STEP}x{STEPS - 60} {(STEPS - 60) * STEP}+0x60"}),
        *scraped("visited", {**WORKS, HELD: f"_x{STEPS - 100} {begins}+0x100"}),
        *scraped("used", {**WORKS, HELD: f"_x{STEPS - 160} {begins}+0x160"}),
    ]
    stopped = [alert("GpuRemediationNotRunning", namespace) for namespace in ("fails", "gone")]
    fires = [*stopped, alert("GpuRemediationHeld", "used", "n")]
    check_series(tmp_path, series, Expect(FIRED, fires), Expect(NOW, fires), Expect(f"sum({BREAKER})", [({}, 0.0)]))


def test_what_a_blind_controller_is(tmp_path: Path) -> None:
    """One that knows nothing about several nodes of a pool, or all, or sees none; one node of several is not enough."""
    unknown, healthy = map(NODES.format, ("unknown", "healthy"))
    cases = {
        "blind": {unknown: values(5)},
        "half": {unknown: values(2), healthy: values(2)},
        "only": {unknown: values(1)},
        "selectors": {},
        "one": {unknown: values(1), healthy: values(2)},
        "few": {unknown: values(2), healthy: values(30)},
        "repaired": {
            unknown: f"5+0x{STEPS - 60} _x60",
            healthy: f"_x{STEPS - 60} 5+0x60",
        },
        "rollout": {unknown: f"5+0x20 _x{STEPS - 20}", healthy: values(9)},
    }
    leads = {**WORKS, "gpu_remediation_leader": values(1)}
    series = [one for name, case in cases.items() for one in scraped(name, {**leads, **case})]
    now = 'max by (namespace) (ALERTS{alertname="GpuRemediationBlind", alertstate="firing"})'
    blind = [({"namespace": name}, 1.0) for name in ("blind", "half", "only", "selectors")]
    check_series(tmp_path, series, Expect(now, blind))
