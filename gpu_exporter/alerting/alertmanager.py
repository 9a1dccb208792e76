"""Render the Alertmanager example: routes, grouping and inhibition of the alerts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from gpu_exporter.alerting import banner
from gpu_exporter.catalogue.failure_modes import FLEET_CAUSES, MODES
from gpu_exporter.catalogue.failure_modes.fleet import CAUSE, FLEET_FAULT, XID
from gpu_exporter.catalogue.failure_modes.health import METRICS_MISSING
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Place, Severity
from gpu_exporter.catalogue.failure_modes.relation import LABELS, effects

NOTE = """\
# An example: replace the receivers by your own, or copy routes and inhibit_rules into your configuration.
#
# Alertmanager treats labels that both alerts lack as equal. Every inhibition therefore requires a UUID, a node or a
# workload.
"""
# The names of these alerts in the Kubernetes and node_exporter mixins.
NODE_DOWN = ("NodeDown", "KubeNodeNotReady", "KubeNodeUnreachable")
PAGE, TICKET, DIGEST, NOBODY = "gpu-page", "gpu-ticket", "gpu-digest", "gpu-nobody"
NOTIFYING = [each.value for each in Severity if each is not Severity.INFO]

Matchers = Sequence[str]


def alertmanager(modes: Sequence[FailureMode] = MODES) -> str:
    """Return alerts/examples/alertmanager.yaml, which is not a rule file."""
    content = {
        "route": _route(),
        "inhibit_rules": list(_inhibitions(modes)),
        "receivers": [
            {"name": PAGE, "webhook_configs": [{"url": "http://127.0.0.1:9095/page"}]},
            {"name": TICKET, "webhook_configs": [{"url": "http://127.0.0.1:9095/ticket"}]},
            {"name": DIGEST, "webhook_configs": [{"url": "http://127.0.0.1:9095/digest", "send_resolved": False}]},
            {"name": NOBODY},
        ],
    }
    return banner.comment(sys.modules[__name__]) + NOTE + yaml.dump(content, sort_keys=False, width=1000)


def _route() -> Mapping[str, Any]:
    """Return the routes: info never notifies.

    There is one message for each node about health and network, for each job about what slows it down, and for each
    cluster about metrics that its exporters are not configured to collect.
    """
    domain = [each.value for each in (Domain.BOTTLENECK, Domain.DISTRIBUTED)]
    return {
        "receiver": TICKET,
        "group_by": ["cluster", "alertname"],
        "group_wait": "30s",
        "group_interval": "5m",
        "repeat_interval": "12h",
        "routes": [
            {"receiver": NOBODY, "matchers": [_is("severity", Severity.INFO.value), _any("domain", _domains())]},
            # Before the pages of its nodes leave.
            {
                "receiver": PAGE,
                "matchers": [_is("alertname", FLEET_FAULT)],
                "group_by": ["cluster"],
                "group_wait": "0s",
                "repeat_interval": "4h",
            },
            {
                "receiver": PAGE,
                "matchers": [_is("severity", Severity.CRITICAL.value), _any("domain", _domains())],
                "group_by": ["cluster", "node"],
                "repeat_interval": "4h",
            },
            {
                "receiver": TICKET,
                "matchers": [_is("alertname", METRICS_MISSING)],
                "group_by": ["cluster", "alertname"],
                "group_wait": "10m",
                "repeat_interval": "4d",
            },
            {
                "receiver": TICKET,
                "matchers": [_any("domain", [Domain.HEALTH.value, Domain.NETWORK.value])],
                "group_by": ["cluster", "node"],
            },
            {
                "receiver": TICKET,
                "matchers": [_any("domain", domain)],
                "group_by": ["cluster", "namespace", "workload"],
                "group_interval": "15m",
            },
            {
                "receiver": DIGEST,
                "matchers": [_is("domain", Domain.COST.value)],
                "group_by": ["cluster", "namespace"],
                "group_wait": "10m",
                "group_interval": "1h",
                "repeat_interval": "24h",
            },
        ],
    }


def _domains() -> list[str]:
    return [each.value for each in Domain]


def _inhibitions(modes: Sequence[FailureMode]) -> Iterator[Mapping[str, Any]]:
    """Yield what is silent because its cause notifies: everything on a node that is down, a fault of single nodes that
    many nodes have, and effects of a mode.

    Info notifies nobody, so it silences nothing.
    """
    yield _inhibit([_any("alertname", NODE_DOWN)], [_any("domain", _domains())], ("node",))
    for name in FLEET_CAUSES:
        fault = _inhibit([_is("alertname", FLEET_FAULT), _is(CAUSE, name)], [_is("alertname", name)], ())
        yield {**fault, "equal": ["cluster", XID]}
    notifying = [mode.name for mode in modes if mode.severity is not Severity.INFO]
    of_modes = effects(modes)
    sources: dict[tuple[Place, tuple[str, ...]], list[str]] = {}
    for place in Place:
        for name in notifying:
            targets = tuple(mode.name for mode in modes if place in of_modes[name].get(mode.name, ()))
            if targets:
                sources.setdefault((place, targets), []).append(name)
    for (place, targets), names in sources.items():
        source = [_any("alertname", names), _any("severity", NOTIFYING)]
        yield _inhibit(source, [_any("alertname", targets)], LABELS[place])


def _inhibit(source: Matchers, target: Matchers, same: Sequence[str]) -> Mapping[str, Any]:
    there = [f'{label}=~".+"' for label in same[-1:]]
    return {
        "source_matchers": [*source, *there],
        "target_matchers": [*target, *there],
        "equal": ["cluster", *same],
    }


def _is(label: str, value: str) -> str:
    return f'{label}="{value}"'


def _any(label: str, values: Sequence[str]) -> str:
    return _is(label, values[0]) if len(values) == 1 else f'{label}=~"{"|".join(values)}"'
