"""deploy/kubernetes: what the chart makes with its defaults, for `kubectl apply -k`. Helm is here only, so is this.

python -m tests.manifests    writes the files
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from tests import ROOT
from tests.support.chart import Object, objects

FOLDER = "deploy/kubernetes"
NAMESPACE = "gpu-monitoring"
NOTE = "# Made of helm/gpu-exporter by `make generate`.\n"
# What only Prometheus Operator knows is in `monitored`. Dashboards are in the repository twice already.
FEATURES: Mapping[str, Any] = {
    "fullnameOverride": "gpu-exporter",
    "namespaceOverride": NAMESPACE,
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "test": {"enabled": False},
}
SPACE: Object = {
    "apiVersion": "v1",
    "kind": "Namespace",
    # For kubelet's socket: hostPath and uid 0.
    "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
}


class _Text(yaml.SafeDumper):
    """Text of several lines as such."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Text.add_representer(str, _represent)


def _dumped(found: Iterable[Object]) -> str:
    return NOTE + yaml.dump_all(found, Dumper=_Text, sort_keys=False, width=1000, allow_unicode=True)


def _without_helm(content: Any) -> Any:
    """Labels that would say that Helm manages it."""
    if isinstance(content, dict):
        helms = ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance")
        return {key: _without_helm(value) for key, value in content.items() if key not in helms}
    return [_without_helm(each) for each in content] if isinstance(content, list) else content


def files() -> Mapping[str, str]:
    """The content of each file below the repository."""
    found = [_without_helm(each) for each in objects(FEATURES)]
    extra = [each for each in found if each["kind"] in ("ServiceMonitor", "PrometheusRule")]
    plain = {"resources": ["namespace.yaml", "gpu-exporter.yaml"]}
    more = {"resources": ["../plain", "monitoring.yaml"]}
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return {
        f"{FOLDER}/plain/kustomization.yaml": _dumped([{**head, **plain}]),
        f"{FOLDER}/plain/namespace.yaml": _dumped([SPACE]),
        f"{FOLDER}/plain/gpu-exporter.yaml": _dumped([each for each in found if each not in extra]),
        f"{FOLDER}/monitored/kustomization.yaml": _dumped([{**head, **more}]),
        f"{FOLDER}/monitored/monitoring.yaml": _dumped(extra),
    }


def main() -> None:
    """Write them."""
    for name, text in files().items():
        path = ROOT / name
        if not path.is_file() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"{name}: written")


if __name__ == "__main__":
    main()
