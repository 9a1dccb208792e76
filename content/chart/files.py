"""Catalogues -> the rendered files of the Helm chart: Chart.yaml, values, schema, rules with named limits, README."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from content.chart import readme as readme_text
from content.chart import values as v
from content.chart.schemas import PULL_SECRETS, REGISTRY, Schema
from content.chart.values import Value
from gpu_exporter.alerting import allocation, banner, rules
from gpu_exporter.alerting.limits import user_limits
from gpu_exporter.catalogue import project
from gpu_exporter.catalogue.failure_modes.mode import Domain
from gpu_exporter.conditions.tree import Limits
from gpu_exporter.reports.markdown import table
from gpu_exporter.version import __version__

FOLDER = "helm/gpu-exporter"
# The oldest Kubernetes that has everything the templates use.
KUBERNETES = ">=1.25.0-0"
DRAFT = "http://json-schema.org/draft-07/schema#"
# Values that a parent chart passes to all its dependencies.
GLOBAL: Schema = {
    "type": "object",
    "description": "Values of all charts of a release: imageRegistry, imagePullSecrets.",
    "properties": {"imageRegistry": REGISTRY, "imagePullSecrets": PULL_SECRETS},
}
ENABLED: Schema = {"type": "boolean", "description": "For the `condition` of a parent chart."}
WIDTH = 110

Tree = dict[str, "Tree | Value"]


class _Placeholder(float):
    """A limit that renders as its name, which the chart's template replaces by a value."""

    name: str

    def __new__(cls, name: str, value: float) -> _Placeholder:
        made = super().__new__(cls, value)
        made.name = name
        return made

    def __format__(self, spec: str) -> str:
        return f"$({self.name})"


def chart() -> str:
    """Return Chart.yaml."""
    content = {
        "apiVersion": "v2",
        "name": "gpu-exporter",
        "description": "Prometheus exporter that shows why NVIDIA GPUs are slow, broken or wasted",
        "type": "application",
        "version": __version__,
        "appVersion": __version__,
        "kubeVersion": KUBERNETES,
        **({"home": project.REPOSITORY, "sources": [project.REPOSITORY]} if project.REPOSITORY else {}),
        "keywords": ["gpu", "nvidia", "dcgm", "prometheus", "monitoring"],
        "annotations": {"artifacthub.io/license": "Apache-2.0", "artifacthub.io/category": "monitoring-logging"},
    }
    return banner.comment(sys.modules[__name__]) + yaml.safe_dump(content, sort_keys=False, width=WIDTH)


def named_limits() -> Limits:
    """Return all limits by name, rendered as `$(name)`."""
    return {limit.name: _Placeholder(limit.name, limit.value) for limit in user_limits()}


def bundle() -> str:
    """Return files/rules.yaml: all rules, with `$(name)` for what values change, and the defaults of these."""
    text = rules.bundle(named_limits())
    for name, pattern in (("resources", allocation.RESOURCES), ("toleratedTaints", allocation.TOLERATED)):
        text = text.replace(f'"{pattern}"', f'"$({name})"')
    defaults = {
        "limits": {limit.name: v.limit(limit).default for limit in user_limits()},
        "resources": allocation.RESOURCES,
        "toleratedTaints": list(allocation.TOLERATED_TAINTS),
        "domains": [domain.value for domain in Domain],
        "countedGroups": list(rules.OWN_INTERVAL),
    }
    return text + yaml.safe_dump(defaults, sort_keys=False)


def _tree(values: Iterable[Value]) -> Tree:
    root: Tree = {}
    for value in values:
        *parents, last = value.path.split(".")
        node = root
        for name in parents:
            child = node.setdefault(name, {})
            assert isinstance(child, dict), f"{value.path} is below a value"
            node = child
        node[last] = value
    return root


def values_yaml() -> str:
    """Return values.yaml: every value with its default and help."""
    return banner.comment(v) + "\n".join(_lines(_tree(v.values()), 0)) + "\n"


def defaults() -> str:
    """Return files/defaults.yaml: what templates need even if a key is empty.

    Without `priorityClassName`, and without objects and lists with content: an empty key removes these.
    """
    return banner.comment(v) + yaml.safe_dump(_needed(_tree(v.BY_HAND)), sort_keys=False, width=WIDTH)


def _needed(tree: Tree) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, node in tree.items():
        if isinstance(node, dict):
            found[name] = _needed(node)
        elif node.path != "priorityClassName" and not (isinstance(node.default, dict | list) and node.default):
            found[name] = node.default
    return found


def _lines(tree: Tree, depth: int) -> Iterator[str]:
    margin = "  " * depth
    for name, node in tree.items():
        if depth == 0:
            yield ""
        if isinstance(node, dict):
            yield f"{margin}{name}:"
            yield from _lines(node, depth + 1)
        else:
            if node.help:
                yield from textwrap.wrap(
                    node.help, WIDTH, initial_indent=f"{margin}# ", subsequent_indent=f"{margin}# "
                )
            flow = True if node.flow else False if isinstance(node.default, dict | list) and node.default else None
            default = yaml.safe_dump(node.default, sort_keys=False, width=1000, default_flow_style=flow)
            default = default.removesuffix("...\n").rstrip()
            block = isinstance(node.default, dict | list) and node.default and not node.flow
            yield f"{margin}{name}:" if block else f"{margin}{name}: {default}"
            if block:
                yield textwrap.indent(default, margin + "  ")


def schema() -> str:
    """Return values.schema.json, which rejects unknown values and wrong types."""
    root = _object(_tree(v.values()))
    root["properties"] |= {"global": GLOBAL, "enabled": ENABLED}
    return (
        json.dumps({"$schema": DRAFT, "title": "Values of gpu-exporter", **root}, indent=1, ensure_ascii=False) + "\n"
    )


def _object(tree: Tree) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, node in tree.items():
        if isinstance(node, dict):
            properties[name] = _object(node)
        else:
            about = {"description": node.help} if node.help else {}
            properties[name] = {**node.schema, **about, **({"deprecated": True} if node.successor else {})}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def readme() -> str:
    """Return the chart's README.md: how to install it, and every value."""
    by_hand = table(
        ("value", "default", "meaning"),
        ((f"`{value.path}`", _shown(value), value.help) for value in v.BY_HAND if not value.successor),
    )
    deprecated = table(
        ("value", "use instead"),
        ((f"`{value.path}`", f"`{value.successor}`") for value in v.BY_HAND if value.successor),
    )
    return banner.markdown(readme_text) + readme_text.README.format(
        kubernetes=KUBERNETES, version=__version__, values=by_hand, deprecated=deprecated
    )


def _shown(value: Value) -> str:
    text = json.dumps(value.default, ensure_ascii=False)
    return "" if text in ('""', "{}", "[]") else f"`{text}`"
