"""Render the Alertmanager example: routes, grouping and inhibition of the alerts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from gpu_exporter.alerting import banner
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.distributed import WAITS
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Severity
from gpu_exporter.catalogue.signals import HW_THERMAL, POWER_BRAKE, SW_THERMAL
from gpu_exporter.conditions.tree import PeerShare, terms

NOTE = """\
# An example: replace the receivers by your own, or copy routes and inhibit_rules into your configuration.
#
# Alertmanager treats labels that both alerts lack as equal. Every inhibition therefore requires a UUID or a node.
"""
# The names of these alerts in the Kubernetes and node_exporter mixins.
NODE_DOWN = ("NodeDown", "KubeNodeNotReady", "KubeNodeUnreachable")
PAGE, TICKET, DIGEST, NOBODY = "gpu-page", "gpu-ticket", "gpu-digest", "gpu-nobody"
BRAKES = {HW_THERMAL, SW_THERMAL, POWER_BRAKE}

Matchers = Sequence[str]


def alertmanager(modes: Sequence[FailureMode] = MODES) -> str:
    """Return alerts/examples/alertmanager.yaml, which is not a rule file."""
    content = {
        "route": _route(),
        "inhibit_rules": [*_causes(modes), *_implied(modes)],
        "receivers": [
            {"name": PAGE, "webhook_configs": [{"url": "http://127.0.0.1:9095/page"}]},
            {"name": TICKET, "webhook_configs": [{"url": "http://127.0.0.1:9095/ticket"}]},
            {"name": DIGEST, "webhook_configs": [{"url": "http://127.0.0.1:9095/digest", "send_resolved": False}]},
            {"name": NOBODY},
        ],
    }
    return banner.comment(sys.modules[__name__]) + NOTE + yaml.dump(content, sort_keys=False, width=1000)


def _route() -> Mapping[str, Any]:
    """Return the routes: info never notifies; one message per node for health and network, one per job for what slows
    it down, one per cluster for metrics that an exporter is not told to collect."""
    domain = [each.value for each in (Domain.BOTTLENECK, Domain.DISTRIBUTED)]
    return {
        "receiver": TICKET,
        "group_by": ["cluster", "alertname"],
        "group_wait": "30s",
        "group_interval": "5m",
        "repeat_interval": "12h",
        "routes": [
            {"receiver": NOBODY, "matchers": [_is("severity", Severity.INFO.value), _any("domain", _domains())]},
            {
                "receiver": PAGE,
                "matchers": [_is("severity", Severity.CRITICAL.value), _any("domain", _domains())],
                "group_by": ["cluster", "node"],
                "repeat_interval": "4h",
            },
            {
                "receiver": TICKET,
                "matchers": [_is("alertname", "GpuMetricsMissing")],
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


def _causes(modes: Sequence[FailureMode]) -> Iterator[Mapping[str, Any]]:
    yield _inhibit([_any("alertname", NODE_DOWN)], [_any("domain", _domains())], "node")
    # A GPU without data says nothing about the GPU while its exporter is down.
    down = [mode.name for mode in modes if mode.inject.fault == "down"]
    silent = [mode.name for mode in modes if mode.inject.fault in ("lost", "wedged") or mode.inject.absent]
    yield _inhibit([_any("alertname", down)], [_any("alertname", silent)], "node")
    yield _inhibit(
        [_is("severity", Severity.CRITICAL.value), _any("domain", _domains())],
        [_any("severity", [Severity.WARNING.value, Severity.INFO.value]), _any("domain", _domains())],
        "UUID",
    )
    brakes = [mode.name for mode in modes if BRAKES & set(mode.needs)]
    yield _inhibit([_any("alertname", brakes)], [_any("alertname", _waited_for(modes))], "UUID")


def _implied(modes: Sequence[FailureMode]) -> Iterator[Mapping[str, Any]]:
    """Yield inhibitions of implied modes. Of two modes that imply each other, the first in triage order stays."""
    order = [mode.name for mode in modes]
    for place, mode in enumerate(modes):
        later = [name for name in mode.implies if name in order[place:]]
        if later:
            yield _inhibit([_is("alertname", mode.name)], [_any("alertname", later)], "UUID")


def _inhibit(source: Matchers, target: Matchers, same: str) -> Mapping[str, Any]:
    there = f'{same}=~".+"'
    return {
        "source_matchers": [*source, there],
        "target_matchers": [*target, there],
        "equal": ["cluster", same],
    }


def _waited_for(modes: Sequence[FailureMode]) -> list[str]:
    """Return the names of the modes of a rank that others wait for."""
    return [
        mode.name
        for mode in modes
        if mode.condition and any(isinstance(term, PeerShare) and term.mark is WAITS for term in terms(mode.condition))
    ]


def _is(label: str, value: str) -> str:
    return f'{label}="{value}"'


def _any(label: str, values: Sequence[str]) -> str:
    return _is(label, values[0]) if len(values) == 1 else f'{label}=~"{"|".join(values)}"'
