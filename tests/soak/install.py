"""Installations of the chart in a real control plane: does the API server accept what is rendered, and admit the pods?

    K8S_DIR=DIR python -m tests.soak.install [--only NAME …] [--crds DIR]

`DIR/bin` must have etcd and kube-apiserver of Kubernetes 1.25 or newer: see `tests.soak.control_plane`. Every object of
an installation is created, strictly: an unknown field is an error. Then a pod of each kind is admitted as a dry run,
with all admission plugins that are on by default: service accounts, Pod Security, priority and runtime classes.
`--crds` has the CustomResourceDefinitions of Prometheus Operator; by default, they are made of the schemas in
tests/crds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart, HelmError

from content.chart.platforms import RUNTIME_CLASS
from tests import ROOT
from tests.soak.control_plane import programs
from tests.support.chart import CHART, RELEASE, Object, Values, with_image
from tests.support.chart_installations import INSTALLATIONS, Installation
from tests.support.control_plane import ControlPlane, Refused
from tests.support.tools import until

CLASS = "/apis/node.k8s.io/v1/runtimeclasses/nvidia"
PLURALS = {
    "ServiceMonitor": "servicemonitors",
    "PodMonitor": "podmonitors",
    "PrometheusRule": "prometheusrules",
    "SecurityContextConstraints": "securitycontextconstraints",
}


def structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema as the API server accepts it in a CustomResourceDefinition, which knows fewer keywords."""
    if "$ref" in schema:
        return structural(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if not {"type", "enum", "const", "properties"} & schema.keys():
        return {"x-kubernetes-preserve-unknown-fields": True}
    made: dict[str, Any] = {key: schema[key] for key in ("required", "minimum", "pattern", "enum") if key in schema}
    if "const" in schema:
        made["enum"] = [schema["const"]]
    kinds = {bool: "boolean", int: "integer", str: "string"}
    if isinstance(schema.get("type"), list):
        (kind,) = {*schema["type"]} - {"null"}
        return {"type": kind, "nullable": True}
    made["type"] = schema.get("type") or ("object" if "properties" in schema else kinds[type(made["enum"][0])])
    if "items" in schema:
        made["items"] = structural(schema["items"], definitions)
    if "properties" in schema:
        made["properties"] = {name: structural(each, definitions) for name, each in schema["properties"].items()}
    elif made["type"] == "object":
        made["x-kubernetes-preserve-unknown-fields"] = True
    return made


def definitions(folder: Path | None) -> Iterator[Object]:
    """Yield the CustomResourceDefinitions of a folder, and those that it lacks from the schemas of the tests."""
    given = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))] if folder else []
    yield from given
    for path in sorted((ROOT / "tests/crds").glob("*.yaml")):
        schema = yaml.safe_load(path.read_text())
        kind = next(each for each in PLURALS if each.lower() == path.stem)
        if any(each["spec"]["names"]["kind"] == kind for each in given):
            continue
        group, _, version = schema["properties"]["apiVersion"]["const"].partition("/")
        names = {"kind": kind, "plural": PLURALS[kind], "singular": kind.lower(), "listKind": f"{kind}List"}
        del schema["properties"]["metadata"]  # of which the API server knows more
        served = {
            "name": version,
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": structural(schema, schema.get("definitions", {}))},
        }
        scope = "Cluster" if kind == "SecurityContextConstraints" else "Namespaced"
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{PLURALS[kind]}.{group}",
                # The API server demands it of groups below k8s.io alone.
                "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
            },
            "spec": {"group": group, "names": names, "scope": scope, "versions": [served]},
        }


@contextmanager
def control_plane(crds: Path | None) -> Iterator[ControlPlane]:
    """Start a control plane with what a cluster has before the chart is installed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        control = ControlPlane(programs(("etcd", "kube-apiserver")), folder)
        stack.callback(control.close)
        control.start_etcd()
        control.start_api("--allow-privileged=true")
        for item in definitions(crds):
            control.apply(item, "")
        until(lambda: all(_is_served(control, kind) for kind in PLURALS), 60, "the kinds of operators")
        yield control


def _is_served(control: ControlPlane, kind: str) -> bool:
    group = "security.openshift.io" if kind == "SecurityContextConstraints" else "monitoring.coreos.com"
    try:
        return any(each["kind"] == kind for each in control.ask("GET", f"/apis/{group}/v1")["resources"])
    except Refused:
        return False


def rendered(values: Values, namespace: str) -> list[Object]:
    """Return what Helm installs. Raises HelmError."""
    with Chart.load(CHART) as loaded:
        made = loaded.render(with_image(values), name=RELEASE, namespace=namespace)
    texts = [text for name, text in made.items() if name.endswith(".yaml")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def pods(found: Sequence[Object]) -> Iterator[Object]:
    """Yield a pod of each template."""
    for each in found:
        if "template" in each.get("spec", {}):
            template = each["spec"]["template"]
            metadata = {**template["metadata"], "name": "admitted", "namespace": each["metadata"]["namespace"]}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def install(control: ControlPlane, namespace: str, installation: Installation) -> str:
    """Install the chart, and return what refused it: the chart, the API server or an admission plugin; else empty."""
    level = {"pod-security.kubernetes.io/enforce": installation.level}
    control.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": level}}, "")
    control.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}, namespace)
    try:
        found = rendered(installation.values, namespace)
    except HelmError as error:
        return f"chart: {error}"
    own = any(each["kind"] == "RuntimeClass" for each in found)
    if own is _exists(control, CLASS):
        control.ask("DELETE", CLASS) if own else control.apply(RUNTIME_CLASS, "")
    created = []
    try:
        for item in found:
            if "metadata" in item and "helm.sh/hook" in item["metadata"].get("annotations", {}):
                control.apply(item, namespace, dry_run=True)
                continue
            control.apply(item, namespace)
            created.append(item)
        for pod in pods(found):
            control.apply(pod, namespace, dry_run=True)
    except Refused as error:
        return str(json.loads(error.body)["message"])
    finally:
        for item in created:
            if "namespace" not in item["metadata"] or item["metadata"]["namespace"] == "default":
                control.ask("DELETE", f"{control.collection(item, namespace)}/{item['metadata']['name']}")
    return ""


def _exists(control: ControlPlane, path: str) -> bool:
    try:
        control.ask("GET", path)
    except Refused:
        return False
    return True


def main() -> int:
    """Run the installations, and print what each was answered."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="*", default=list(INSTALLATIONS), choices=list(INSTALLATIONS))
    options.add_argument("--crds", type=Path)
    chosen = options.parse_args()
    wrong = 0
    with control_plane(chosen.crds) as control:
        print(f"Kubernetes 1.{control.minor}", flush=True)
        for place, name in enumerate(chosen.only):
            expected = INSTALLATIONS[name]
            said = install(control, f"case-{place}", expected)
            part = expected.chart or expected.refused
            good = part in said if part else not said
            wrong += not good
            print(f"{'' if good else 'WRONG: '}{name}: {said or 'accepted'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
