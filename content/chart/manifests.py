"""deploy/kubernetes: the chart rendered with its defaults, for `kubectl apply -k`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from content.chart import files as chart
from gpu_exporter.alerting import banner
from gpu_exporter.alerting.groups import literal
from gpu_exporter.alerting.operator_rules import NAMESPACE
from gpu_exporter.version import __version__

FOLDER = "deploy/kubernetes"
# Of a domain that never exists, so that nobody's image runs by accident.
REPOSITORY = "registry.invalid/gpu-exporter"
NOTE = "# Rendered from helm/gpu-exporter by `make generate`.\n"
README = f"""# Kubernetes manifests

The [chart](../../helm/gpu-exporter/README.md) rendered with its defaults. For Prometheus Operator,
`gpu-exporter bundle deploy --out DIR` also writes `kubernetes/monitored`, with the ServiceMonitor and the rules;
`--limits` gives these your limits.

No image is published, so these manifests name one that cannot be pulled (`{REPOSITORY}`). Build the
image in the root of the repository, push it, and name it in an overlay:

```
make image IMAGE=registry.example/gpu-exporter:{__version__}
docker push registry.example/gpu-exporter:{__version__}
mkdir overlay
cat > overlay/kustomization.yaml <<END
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../deploy/kubernetes/plain]
images: [{{name: {REPOSITORY}, newName: registry.example/gpu-exporter}}]
END
kubectl apply -k overlay
```

The pods meet Pod Security *restricted*, which the namespace enforces. For all other settings, use the chart, also to
see which pod uses a GPU: `attribution.enabled`.
"""
# Dashboards are left out: `dashboards/` has them.
FEATURES: Mapping[str, Any] = {
    "fullnameOverride": "gpu-exporter",
    "namespaceOverride": NAMESPACE,
    "image": {"repository": REPOSITORY},
    "serviceMonitor": {"enabled": True},
    "test": {"enabled": False},
}
# Labels that mark an object as managed by Helm.
OF_HELM = ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance")

Object = Mapping[str, Any]

SPACE: Object = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
}


class _Dumper(yaml.SafeDumper):
    """Writes multi-line text as a block."""


_Dumper.add_representer(str, literal)


def left_out(root: Path) -> str:
    """Return why the manifests cannot be rendered for `root`, with the fix, in one line; "" if they can."""
    if not find_spec("helm_python"):
        return f"{FOLDER}: left out, the Python module helm_python is missing; run `pip install -e '.[dev]'`"
    if not (root / chart.FOLDER / "templates").is_dir():
        return f"{FOLDER}: left out, {root} has no {chart.FOLDER}/templates; run this in the repository, or use --root"
    return ""


def files(root: Path) -> Mapping[str, str]:
    """Render the chart below `root`, and return the content of each file by name. Needs helm_python."""
    objects = [_without_helm(document) for document in _objects(root / chart.FOLDER)]
    monitor = [document for document in objects if document["kind"] == "ServiceMonitor"]
    exporter = [document for document in objects if document not in monitor]
    return {
        f"{FOLDER}/README.md": banner.markdown(sys.modules[__name__]) + README,
        f"{FOLDER}/plain/kustomization.yaml": _kustomization("namespace.yaml", "gpu-exporter.yaml"),
        f"{FOLDER}/plain/namespace.yaml": _dumped([SPACE]),
        f"{FOLDER}/plain/gpu-exporter.yaml": _dumped(exporter),
        f"{FOLDER}/monitored/servicemonitor.yaml": _dumped(monitor),
    }


def _objects(folder: Path) -> Sequence[Object]:
    from helm_python import Chart  # slow to import, and not a dependency of the exporter

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
    return [_without_helm(item) for item in content] if isinstance(content, list) else content


def _kustomization(*resources: str) -> str:
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return _dumped([{**head, "resources": list(resources)}])


def _dumped(objects: Iterable[Object]) -> str:
    return NOTE + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
