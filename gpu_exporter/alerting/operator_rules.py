"""The rules as objects of Prometheus Operator, for manifests without the chart."""

from __future__ import annotations

from collections.abc import Collection
from textwrap import indent

from gpu_exporter.alerting import banner, selection
from gpu_exporter.alerting.groups import as_text
from gpu_exporter.alerting.rules import groups
from gpu_exporter.catalogue import failure_modes
from gpu_exporter.catalogue.failure_modes.mode import Domain
from gpu_exporter.conditions.tree import Limits

NAMESPACE = "gpu-monitoring"
_HEAD = """apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {name}
  namespace: {namespace}
  labels:
    app.kubernetes.io/component: exporter
    app.kubernetes.io/name: gpu-exporter
    app.kubernetes.io/part-of: gpu-exporter
spec:
"""


def operator_rules(limits: Limits, domains: Collection[Domain], interval: str = "") -> str:
    """Return two PrometheusRules, as the chart makes them: all rules would soon be too large for one object."""
    chosen = selection.groups_of_domains(groups(limits, interval), domains)
    parts = {
        "gpu-exporter-recording": [group for group in chosen if group.is_recording],
        "gpu-exporter": [group for group in chosen if not group.is_recording],
    }
    objects = (
        _HEAD.format(name=name, namespace=NAMESPACE) + indent(as_text(part), "  ") for name, part in parts.items()
    )
    return banner.comment(failure_modes) + "---\n".join(objects)
