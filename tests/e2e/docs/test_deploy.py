"""compose.yaml, the systemd unit and the plain manifests: what they name exists, and works."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from content.chart import manifests
from gpu_exporter.catalogue.failure_modes.mode import Domain
from gpu_exporter.config import ENV_PREFIX, Config
from tests import ROOT
from tests.conftest import Serve
from tests.support.prometheus import scraping
from tests.support.tools import tool, until

COMPOSE: Mapping[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: Mapping[str, Any] = COMPOSE["services"]
SETTINGS = {setting.name for setting in fields(Config)} | {"config"}


def mounts(service: str) -> Mapping[str, Path]:
    """Return the files mounted from the repository, by path in the container."""
    found = [each.split(":") for each in SERVICES[service]["volumes"] if each.startswith("./")]
    assert all(mode == "ro" for _, _, mode in found)
    return {inside: ROOT / outside for outside, inside, _ in found}


def test_settings_are_settings() -> None:
    """Of the exporters in compose.yaml, one runs at a time, under a name that Prometheus scrapes."""
    for name in ("simulated", "gpus"):
        service = SERVICES[name]
        assert service["profiles"] == [name]
        assert service["networks"]["default"]["aliases"] == ["exporter"]
        own = {each for each in service["environment"] if each.startswith(ENV_PREFIX)}
        assert {each.removeprefix(ENV_PREFIX).lower() for each in own} <= SETTINGS
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    (devices,) = SERVICES["gpus"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["utility"]}
    assert SERVICES["gpus"]["uts"] == "host"  # the node is named by the machine, not by the container
    assert "GPU_EXPORTER_NODE_NAME" not in SERVICES["gpus"]["environment"]
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("service", ["prometheus", "alertmanager", "grafana"])
def test_mounts_exist(service: str) -> None:
    """Configuration files are where the command lines expect them."""
    found = mounts(service)
    assert all(path.exists() for path in found.values())
    for option in SERVICES[service].get("command", ()):
        if option.startswith("--config.file="):
            assert option.partition("=")[2] in found
    assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", SERVICES[service]["image"])


def test_simulated_fault_fires(serve: Serve, tmp_path: Path) -> None:
    """A real Prometheus with the committed configuration has the targets, the rules and the fault's alert."""
    environment = dict(SERVICES["simulated"]["environment"])
    environment["GPU_EXPORTER_INJECT"] = re.sub(r"\$\{INJECT:-(.+)\}", r"\1", environment["GPU_EXPORTER_INJECT"])
    exporter = serve("--interval", "500ms", env=environment)
    config = yaml.safe_load((ROOT / "deploy/compose/prometheus.yaml").read_text())
    (pattern,) = config["rule_files"]
    outside = mounts("prometheus")[str(Path(pattern).parent)]
    rules = sorted(outside.glob(Path(pattern).name))
    assert {path.stem for path in rules} == {"recording", *(domain.value for domain in Domain)}
    (job,) = config["scrape_configs"]
    text = json.dumps(job).replace("exporter:9400", f"127.0.0.1:{exporter.port}")
    scrape = {key: value for key, value in json.loads(text).items() if key != "job_name"}
    with scraping(tmp_path, "1s", scrape, rule_files=rules) as prometheus:
        alert = f'ALERTS{{alertname="{environment["GPU_EXPORTER_INJECT"].split(":")[0]}"}}'
        until(lambda: prometheus.query(alert), 90, "the pending alert")


def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    text = (ROOT / "deploy/compose/prometheus.yaml").read_text().replace("/etc/prometheus/alerts", str(ROOT / "alerts"))
    (tmp_path / "prometheus.yaml").write_text(text)
    found = subprocess.run(
        [tool("promtool"), "check", "config", tmp_path / "prometheus.yaml"], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert f"{1 + len(Domain)} rule files found" in found.stdout
    (target,) = yaml.safe_load(text)["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    assert target.split(":")[0] in SERVICES


def test_grafana_is_provisioned() -> None:
    """The one data source is the default, which the dashboards use; the provider reads the mounted folder."""
    found = {path.name: yaml.safe_load(path.read_text()) for path in mounts("grafana").values() if path.is_file()}
    (source,) = found["datasources.yaml"]["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert re.fullmatch(r"http://(\w+):9090", source["url"])[1] in SERVICES  # type: ignore[index]
    (provider,) = found["dashboards.yaml"]["providers"]
    folder = mounts("grafana")[provider["options"]["path"]]
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    assert (folder / home.name).is_file()


def unit() -> configparser.RawConfigParser:
    """Return the systemd unit, with all lines of a key that is repeated."""
    text, seen = (ROOT / "deploy/gpu-exporter.service").read_text(), 0
    lines = []
    for line in text.splitlines():
        if line.startswith("Environment="):
            seen += 1
            line = line.replace("Environment=", f"Environment{seen}=", 1)
        lines.append(line)
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string("\n".join(lines))
    return parser


HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "DynamicUser": "yes",
    "RestrictSUIDSGID": "yes",
    "RestrictNamespaces": "yes",
    "SystemCallFilter": "@system-service",
    "CapabilityBoundingSet": "CAP_SYSLOG",
    "AmbientCapabilities": "CAP_SYSLOG",
}


# Each would hide /dev/nvidia* or /dev/kmsg; ProtectClock through an implied DeviceAllow, before systemd 253.
UNHARDENED = {"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "ProtectKernelLogs", "User"}


def test_the_unit_is_hardened_and_runs(serve: Serve, tmp_path: Path) -> None:
    """It may read the kernel log and write its two folders; the exporter accepts its command line."""
    service = unit()["Service"]
    assert HARDENED.items() <= dict(service).items()
    assert UNHARDENED.isdisjoint(service)
    assert unit()["Install"]["WantedBy"] == "multi-user.target"
    environment = dict(service[key].split("=", 1) for key in service if re.fullmatch(r"Environment\d", key))
    assert {key.removeprefix(ENV_PREFIX).lower() for key in environment} <= SETTINGS
    folders = {f"/run/{service['RuntimeDirectory']}", f"/var/lib/{service['StateDirectory']}"}
    for value in environment.values():
        assert any(value == folder or value.startswith(f"{folder}/") for folder in folders)
    program, *arguments = service["ExecStart"].split()
    assert (Path(program).name, arguments) == ("gpu-exporter", ["serve"])
    here = {key: str(tmp_path / Path(value).name) for key, value in environment.items()}
    exporter = serve("--source", "simulated", env=here)
    assert Path(here["GPU_EXPORTER_TOKEN_FILE"]).is_file()
    assert exporter.stop() == 0


@pytest.mark.drift
def test_manifests_are_those_of_the_chart() -> None:
    """Every manifest is rendered from the chart, and there is no other."""
    written = {
        str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / manifests.FOLDER).rglob("*") if path.is_file()
    }
    assert written == dict(manifests.files(ROOT)), "fix: run `make generate`"


def test_manifests_are_consistent() -> None:
    """They are valid, have one namespace and no Helm labels, and the kustomization names existing files."""
    import kubernetes_validate  # takes seconds, which each worker would pay

    (kustomization,) = read("plain/kustomization.yaml")
    for resource in kustomization["resources"]:
        assert (ROOT / manifests.FOLDER / "plain" / resource).exists()
    plain = [*read("plain/namespace.yaml"), *read("plain/gpu-exporter.yaml")]
    for each in plain:
        kubernetes_validate.validate(each, "1.37", strict=True)
    assert {each["metadata"].get("namespace") for each in plain if each["kind"] != "Namespace"} == {"gpu-monitoring"}
    assert "helm" not in json.dumps(plain).lower()
    (daemons,) = (each for each in plain if each["kind"] == "DaemonSet")
    (service,) = (each for each in plain if each["kind"] == "Service")
    (monitor,) = read("monitored/servicemonitor.yaml")
    labels = daemons["spec"]["template"]["metadata"]["labels"]
    assert daemons["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()


def test_the_image_of_the_manifests_cannot_be_pulled() -> None:
    """Its host is of a domain that never exists; the README's overlay replaces it."""
    (daemons,) = (each for each in read("plain/gpu-exporter.yaml") if each["kind"] == "DaemonSet")
    (container,) = daemons["spec"]["template"]["spec"]["containers"]
    repository, _, _ = container["image"].rpartition(":")
    assert repository.partition("/")[0].endswith(".invalid")
    readme = (ROOT / manifests.FOLDER / "README.md").read_text()
    assert f"images: [{{name: {repository}, newName: registry.example/gpu-exporter}}]" in readme
    assert "make image IMAGE=registry.example/gpu-exporter:" in readme


def read(name: str) -> list[Any]:
    """Return the documents of a file."""
    return list(yaml.safe_load_all((ROOT / manifests.FOLDER / name).read_text()))
