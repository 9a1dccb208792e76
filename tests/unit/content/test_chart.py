"""The chart is valid on every supported Kubernetes, has few privileges, and rejects wrong values by name."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart, lint, package

from content.chart import values as chart_values
from gpu_exporter import config
from gpu_exporter.config import ENV_PREFIX, Config
from tests.support.chart import (
    CHART,
    NAME,
    NAMESPACE,
    SETS,
    Object,
    exporter,
    kind,
    made,
    objects,
    of_readme,
    only,
    pod,
    texts,
    with_image,
)
from tests.support.tools import is_long

# API groups of which Kubernetes itself has no schema.
OPERATED = ("monitoring.coreos.com", "security.openshift.io")
GENERATE = "fix: run `make generate`"

ROOT = CHART.parent.parent
KUBERNETES = [f"1.{minor}" for minor in range(28, 38)]
CRDS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "tests/crds").glob("*.yaml")}
# Limits of Kubernetes and etcd: a ConfigMap, an annotation of `kubectl apply`, a Secret with Helm's release.
MEBIBYTE, ANNOTATION = 1 << 20, 256 << 10


def settings(found: list[Object]) -> Mapping[str, str]:
    """Return the exporter's configuration file."""
    (data,) = (each["data"] for each in kind(found, "ConfigMap") if "config.yaml" in each.get("data", {}))
    content: Mapping[str, str] = yaml.safe_load(data["config.yaml"])
    return content


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_helm_has_no_complaint(name: str) -> None:
    """`helm lint --strict`: neither errors nor warnings."""
    report = lint(CHART, with_image(SETS[name]), strict=True, namespace=NAMESPACE)
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] > 1] == []


@pytest.mark.slow
@pytest.mark.parametrize("version", KUBERNETES if is_long() else [KUBERNETES[0], KUBERNETES[-1]])
def test_every_object_is_valid(version: str) -> None:
    """Strictly: Kubernetes would drop unknown keys. The oldest lacks what was added, the newest what was removed."""
    import kubernetes_validate  # takes a second, which each run of fast tests would pay

    distinct = {json.dumps(each, sort_keys=True): each for name in SETS for each in made(name)}
    native = [each for each in distinct.values() if each["apiVersion"].split("/")[0] not in OPERATED]
    assert len(native) > 40
    for each in native:
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.slow
def test_the_quota_of_the_readme_is_valid() -> None:
    """It allows the priority class of the pods in their namespace."""
    import kubernetes_validate  # takes a second, which each run of fast tests would pay

    quota = next(each for each in objects(of_readme("extraManifests")) if each["kind"] == "ResourceQuota")
    kubernetes_validate.validate(quota, KUBERNETES[-1], strict=True)
    (allowed,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert allowed["values"] == [pod(made("defaults"))["priorityClassName"]]
    assert quota["metadata"]["namespace"] == NAMESPACE


@pytest.mark.slow
def test_wrong_objects_are_detected() -> None:
    """The check above finds an unknown key, and a wrong type."""
    import kubernetes_validate  # takes a second, which each run of fast tests would pay

    changes: tuple[Mapping[str, Any], ...] = ({"toleratons": []}, {"hostPID": "yes"})
    for change in changes:
        wrong = json.loads(json.dumps(only(made("defaults"), "DaemonSet")))
        wrong["spec"]["template"]["spec"].update(change)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, KUBERNETES[-1], strict=True)


@pytest.mark.slow
def test_objects_of_operators_are_valid() -> None:
    """Against the schemas of Prometheus Operator's and OpenShift's resources."""
    import jsonschema  # takes a second, which each run of fast tests would pay

    found = [each for name in SETS for each in made(name) if each["apiVersion"].split("/")[0] in OPERATED]
    assert {each["kind"].lower() for each in found} == CRDS.keys()
    for each in found:
        jsonschema.validate(each, CRDS[each["kind"].lower()])
    wrong = json.loads(json.dumps(kind(made("monitored"), "PrometheusRule")[-1]))
    wrong["spec"]["groups"][-1]["rules"][0]["for"] = "soon"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, CRDS["prometheusrule"])


@pytest.mark.parametrize("name", ["monitored", "pod-monitor", "remediation"])
def test_relabelings_have_no_defaults(name: str) -> None:
    """The API server would add them, and Argo CD would report a difference for ever."""
    monitors = [each["spec"] for each in made(name) if each["kind"] in ("ServiceMonitor", "PodMonitor")]
    endpoints = [each for spec in monitors for each in spec.get("endpoints") or spec["podMetricsEndpoints"]]
    found = [rule for each in endpoints for key in each if key.endswith("elabelings") for rule in each[key]]
    assert found
    assert all("action" in rule for rule in found)


def test_both_services_have_the_families() -> None:
    families = {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}
    services = kind(objects({"service": families, "remediation": {"enabled": True}}), "Service")
    assert [families.items() <= each["spec"].items() for each in services] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_names_are_its_own(name: str) -> None:
    """No two objects of a kind and namespace have the same name."""
    found = made(name)
    keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in found]
    assert len(set(keys)) == len(keys)
    assert all(len(key[2]) <= 63 for key in keys)


def test_common_labels_and_annotations() -> None:
    """Common labels and annotations are on all objects but the user's own, and on the pods."""
    labelled = [each for each in made("everything") if "labels" in each["metadata"]]
    assert len(labelled) > 15
    for each in (*labelled, only(made("everything"), "DaemonSet")["spec"]["template"]):
        assert each["metadata"]["labels"]["team"] == "gpu", each["kind"]
        assert each["metadata"]["annotations"]["owner"] == "gpu", each["kind"]


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "values"),
    [
        ("r" * 53, {}),
        ("a-" * 26 + "a", {}),
        ("my.release", {}),
        ("gpu-exporter-2", {}),
        ("x", {"nameOverride": "y" * 70}),
        ("x", {"fullnameOverride": "f" * 49 + "-" + "f" * 20}),
    ],
)
def test_names_are_valid(release: str, values: Mapping[str, Any]) -> None:
    """Whatever the release is called, names with their suffixes and labels are valid."""
    with Chart.load(CHART) as loaded:
        made = loaded.render(with_image({**SETS["everything"], **values}), name=release, namespace="n" * 63)
    found = [each for name, text in made.items() if name.endswith(".yaml") for each in yaml.safe_load_all(text) if each]
    for each in (each for each in found if "labels" in each["metadata"]):  # the user's own have none
        longest = 63 if each["kind"] in ("Service", "DaemonSet", "Pod") else 253
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", each["metadata"]["name"])
        assert len(each["metadata"]["name"]) <= longest
        for value in each["metadata"]["labels"].values():
            assert re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,61}[A-Za-z0-9]|[A-Za-z0-9]", value)


@pytest.mark.parametrize("name", SETS)
def test_every_key_is_a_setting(name: str, tmp_path: Path) -> None:
    """The exporter accepts all keys, and every environment variable is a setting."""
    known = {setting.name for setting in fields(Config)}
    content = settings(made(name))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    assert config.read_file(tmp_path / "config.yaml").keys() == content.keys()
    variables = {each["name"] for each in exporter(made(name))["env"] if each["name"].startswith(ENV_PREFIX)}
    assert {each.removeprefix(ENV_PREFIX).lower() for each in variables} <= known | {"config"}


def test_every_setting_can_be_set() -> None:
    """Each setting has a value of its own, or is a key of `config`, never both."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    free = set(schema["properties"]["config"]["properties"])
    assert free | set(chart_values.MANAGED) == {setting.name for setting in fields(Config)}
    assert not free & set(chart_values.MANAGED)
    known = {value.path for value in chart_values.values()}
    assert set(chart_values.MANAGED.values()) - known == {"the node's own name"}


def whole_numbers(schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    """Yield the schemas of whole numbers within a schema, without amounts of resources, by their paths."""
    if "integer" in schema.get("type", "") and not path.endswith(("memory", "ephemeral-storage", "hugepages-")):
        yield path, schema
    for key in ("properties", "patternProperties"):
        for name, inner in schema.get(key, {}).items():
            yield from whole_numbers(inner, f"{path}/{name}")
    if isinstance(items := schema.get("items"), dict):
        yield from whole_numbers(items, f"{path}/0")


def test_whole_numbers_have_bounds() -> None:
    """Those of Kubernetes, which refuses others only when objects are applied; a seed may be larger."""
    found = dict(whole_numbers(json.loads((CHART / "values.schema.json").read_text())))
    assert len(found) > 50
    for path, schema in found.items():
        largest = 2**53 if path == "/config/seed" else 2**31 - 1
        assert {"minimum", "maximum"} <= schema.keys(), f"{path}: give it a minimum and a maximum"
        assert -largest <= schema["minimum"] <= schema["maximum"] <= largest, path


def test_the_largest_numbers_are_rendered_as_they_are() -> None:
    """Kubernetes refuses 2.147483647e+09 where it expects a whole number."""
    largest = 2**31 - 1
    ids = {"runAsGroup": largest, "fsGroup": largest, "supplementalGroups": [largest]}
    values = {
        **dict.fromkeys(("minReadySeconds", "revisionHistoryLimit", "terminationGracePeriodSeconds"), largest),
        "podSecurityContext": ids,
        "livenessProbe": dict.fromkeys(("initialDelaySeconds", "periodSeconds", "failureThreshold"), largest),
        "tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": -largest}],
        "updateStrategy": {"rollingUpdate": {"maxUnavailable": largest}},
        "remediation": {"enabled": True, "replicas": largest, "pools": [{"name": "all"}]},
    }
    found = objects(values)
    daemons, deployment = only(found, "DaemonSet")["spec"], only(found, "Deployment")["spec"]
    assert (daemons["minReadySeconds"], daemons["revisionHistoryLimit"], deployment["replicas"]) == (largest,) * 3
    assert daemons["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == largest
    spec = daemons["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == largest
    assert {key: spec["securityContext"][key] for key in ids} == ids
    assert exporter(found)["livenessProbe"]["failureThreshold"] == largest
    assert -largest in [each.get("tolerationSeconds") for each in spec["tolerations"]]


def test_numbers_stay_what_they_are() -> None:
    """Helm parses every number as a float."""
    found = settings(objects({"config": {"seed": 12345678901, "speed": 0.25, "loop": False, "expected_gpus": 8}}))
    assert {key: found[key] for key in ("seed", "speed", "loop", "expected_gpus")} == {
        "seed": "12345678901",
        "speed": "0.25",
        "loop": "false",
        "expected_gpus": "8",
    }


@pytest.mark.parametrize(
    "text",
    [
        "  DCGM_FI_DEV_GPU_TEMP, gauge, indented\nDCGM_FI_DEV_POWER_USAGE, gauge, not\n",
        "\n\n# 'quotes' and \"more\": {{ .Values }}\n\tDCGM_FI_DEV_GPU_TEMP, gauge, x",
        "-, - \n  key: value\n",
    ],
)
def test_a_file_of_fields_arrives_as_it_is(text: str) -> None:
    """It is text, even if YAML would parse it as something else."""
    (data,) = (each["data"] for each in kind(objects({"collectors": text}), "ConfigMap"))
    assert data["collectors.csv"] == text


@pytest.mark.parametrize(
    ("engine", "ports"),
    [
        ("dcgm", {5555, 53}),
        ("dcgm:777", {777, 53}),
        ("[fd00::1]", {5555, 53}),
        ("[fd00::1]:777", {777, 53}),
        ("unix:///run/x", set()),
    ],
)
def test_network_policy_allows_a_host_engine(engine: str, ports: set[int]) -> None:
    """A socket needs no rule."""
    values = {"dcgm": {"enabled": True, "hostEngine": engine}, "networkPolicy": {"enabled": True}}
    egress = only(objects(values), "NetworkPolicy")["spec"]["egress"]
    assert {port["port"] for each in egress for port in each["ports"]} == ports


@pytest.mark.parametrize(
    ("name", "egress"), [("restricted", set()), ("dcgm-remote", {5555, 53}), ("everything", {53, 443, 6443})]
)
def test_network_policy(name: str, egress: set[int]) -> None:
    """The exporter may reach what its features need, and nothing else."""
    spec = only(made(name), "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert {port["port"] for each in spec["egress"] or () for port in each["ports"]} == egress
    assert spec["egress"] is not None
    (ingress,) = spec["ingress"]
    assert [each["port"] for each in ingress["ports"]] == ["metrics"]
    assert ("from" in ingress) is (name == "everything")
    if "from" in ingress:  # then `helm test` must be let in, too
        assert len(ingress["from"]) == 2


@pytest.mark.drift
def test_dashboards_equal_the_committed_ones() -> None:
    """One ConfigMap each, found by the sidecar's label, short enough for `kubectl apply`."""
    found = [each for each in made("monitored") if each["metadata"]["name"].startswith(f"{NAME}-dashboard-")]
    texts_of = {name: text for each in found for name, text in each["data"].items()}
    boards = {f"gpu-{path.stem}.json": path for path in (ROOT / "dashboards").glob("*.json")}
    assert texts_of.keys() == boards.keys(), GENERATE
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in found} == {"1"}, GENERATE
    for name, text in texts_of.items():
        assert json.loads(text) == json.loads(boards[name].read_text()), GENERATE
    shown = [each for each in made("overridden") if "-dashboard-" in each["metadata"]["name"]]
    assert {each["metadata"]["namespace"] for each in shown} == {"grafana"}, GENERATE
    assert len(shown) == len(boards) - 1, GENERATE


@pytest.mark.parametrize("name", ["monitored", "everything"])
def test_nothing_is_too_large(name: str, tmp_path: Path) -> None:
    """Each object, and Helm's own Secret with the chart and its manifests (JSON, gzip, base64)."""
    for each in made(name):
        name_of = each["metadata"]["name"]
        assert len(json.dumps(each)) < ANNOTATION * 0.95, f"{name_of}; fix: move panels to another dashboard"
    files = {path: path.read_text() for path in CHART.rglob("*") if path.is_file()}
    release = json.dumps([*files.values(), *texts(SETS[name]).values()])
    assert len(gzip.compress(release.encode())) * 4 / 3 < MEBIBYTE * 0.6
    assert Path(package(CHART, destination=tmp_path)).stat().st_size < MEBIBYTE


def test_as_a_dependency(tmp_path: Path) -> None:
    """It gets the values below its name, and `global`."""
    parent = tmp_path / "parent"
    (parent / "charts").mkdir(parents=True)
    needs = {"name": "gpu-exporter", "version": ">=0", "condition": "gpu-exporter.enabled"}
    about = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [needs]}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(about))
    package(CHART, destination=parent / "charts")
    own = {"enabled": True, "metrics": "full", "image": {"repository": "gpus/exporter"}}
    values = {"gpu-exporter": own, "global": {"imageRegistry": "mirror.example"}}
    with Chart.load(parent) as loaded:
        made_texts = loaded.render(values, name="all", namespace="n")
    manifests = [text for name, text in made_texts.items() if name.endswith(".yaml")]
    found = [each for text in manifests for each in yaml.safe_load_all(text) if each]
    assert exporter(found)["image"].startswith("mirror.example/gpus/exporter:")
    assert settings(found)["metrics"] == "full"
    assert only(found, "DaemonSet")["metadata"]["name"] == "all-gpu-exporter"


def test_xids_and_collectors_are_files() -> None:
    """In the format that the exporter reads."""
    (data,) = (each["data"] for each in kind(made("everything"), "ConfigMap") if "xids.yaml" in each.get("data", {}))
    assert yaml.safe_load(data["xids.yaml"]) == {"63": {"action": "gpu_reset", "drain": True}}
    assert data["collectors.csv"].strip().splitlines()[0] == "DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C)."
    assert settings(made("everything"))["xid_overrides"] == "/etc/gpu-exporter/xids.yaml"
