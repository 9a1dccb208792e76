"""deploy/kubernetes: what the chart renders with its defaults, for `kubectl apply -k`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from gpu_exporter.render.chart import files as chart

FOLDER = "deploy/kubernetes"
NAMESPACE = "gpu-monitoring"
NOTE = "# Made of helm/gpu-exporter by `make generate`.\n"
# Manifests that need Prometheus Operator are in `monitored`. Dashboards are in the repository twice already.
FEATURES: Mapping[str, Any] = {
    "fullnameOverride": "gpu-exporter",
    "namespaceOverride": NAMESPACE,
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "test": {"enabled": False},
}
OPERATED = ("ServiceMonitor", "PrometheusRule")
# Labels that would say that Helm manages the object.
OF_HELM = ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance")

Object = Mapping[str, Any]

SPACE: Object = {
    "apiVersion": "v1",
    "kind": "Namespace",
    # For kubelet's socket: hostPath and uid 0.
    "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
}


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent)


def left_out(root: Path) -> str:
    """Return why the manifests cannot be rendered for `root`, with the fix, in one line; "" if they can."""
    if not find_spec("helm_python"):
        return f"{FOLDER}: left out, it needs the module helm_python: install gpu-exporter[dev]"
    if not (root / chart.FOLDER / "templates").is_dir():
        return f"{FOLDER}: left out, {root} has no {chart.FOLDER}/templates: run it in the repository, or use --root"
    return ""


def files(root: Path) -> Mapping[str, str]:
    """Return the content of each file by its name below `root`, whose chart is rendered. Needs Helm's library."""
    objects = [_without_helm(each) for each in _objects(root / chart.FOLDER)]
    monitoring = [each for each in objects if each["kind"] in OPERATED]
    exporter = [each for each in objects if each["kind"] not in OPERATED]
    return {
        f"{FOLDER}/plain/kustomization.yaml": _kustomization("namespace.yaml", "gpu-exporter.yaml"),
        f"{FOLDER}/plain/namespace.yaml": _dumped([SPACE]),
        f"{FOLDER}/plain/gpu-exporter.yaml": _dumped(exporter),
        f"{FOLDER}/monitored/kustomization.yaml": _kustomization("../plain", "monitoring.yaml"),
        f"{FOLDER}/monitored/monitoring.yaml": _dumped(monitoring),
    }


def _objects(folder: Path) -> Sequence[Object]:
    from helm_python import Chart  # slow to import, and no dependency of the exporter

    with Chart.load(folder) as loaded:
        templates = loaded.render(dict(FEATURES), name="gpu-exporter", namespace=NAMESPACE)
    return [
        document
        for name, text in templates.items()
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    ]


def _without_helm(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _without_helm(value) for key, value in content.items() if key not in OF_HELM}
    return [_without_helm(each) for each in content] if isinstance(content, list) else content


def _kustomization(*resources: str) -> str:
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return _dumped([{**head, "resources": list(resources)}])


def _dumped(objects: Iterable[Object]) -> str:
    return NOTE + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
