"""dcgm-exporter's command lines, files and dashboard work unchanged."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_exporter.pipeline.fields_file import rows
from tests import ROOT
from tests.conftest import Exporter, Serve, command, run
from tests.e2e.pipeline.test_reload import classic
from tests.support.fakes.driver import FakeDriver, identity, mig_device
from tests.support.fakes.kubelet import FakeKubelet, given
from tests.support.prometheus import scraping
from tests.support.tools import free_port, until

THEIRS = ROOT / "deploy" / "dcgm-exporter"
REPLAY = ("--source", "replay", "--recording", "h200_workloads")


@contextmanager
def started(path: Path, line: list[str], port: int, **more: str) -> Iterator[Exporter]:
    """Run a process that serves on this port, with any command line."""
    log = path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(line, env={**os.environ, **more}, stderr=file, text=True)
    exporter = Exporter(process, port, log)
    try:
        until(lambda: answers(exporter), 20, "an answer")
        yield exporter
    finally:
        process.kill()
        process.wait()


def answers(exporter: Exporter) -> bool:
    """Return whether it answers; fail at once if the process has ended."""
    assert exporter.process.poll() is None, exporter.log.read_text()
    try:
        return exporter.get("/healthz")[0].status == 200
    except OSError:
        return False


def test_dcgm_exporter_command_line(tmp_path: Path) -> None:
    """It works without a subcommand, with dcgm-exporter's flags and variables; unsupported ones are logged."""
    port = free_port()
    driver = FakeDriver(tmp_path / "driver", 2)
    line = command("-f", str(THEIRS / "default-counters.csv"), "-a", f"127.0.0.1:{port}", "-c", "100", "--fake-gpus")
    environ = {
        **driver.environment,
        "DCGM_EXPORTER_NO_HOSTNAME": "true",
        "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME": "true",
        "DCGM_EXPORTER_LOG_FORMAT": "json",
        "DCGM_EXPORTER_CONFIGMAP_DATA": "gpu:metrics",
        "DCGM_EXPORTER_DUMP_ENABLED": "false",
        "DCGM_EXPORTER_OTHER_DEVICES_STR": "g:0",
    }
    with started(tmp_path, line, port, **environ) as exporter:
        page = exporter.until(lambda page: len(page.values("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")) == 2)
        log = [json.loads(each) for each in exporter.log.read_text().splitlines()]

    assert page.value("gpu_exporter_interval_seconds") == 0.1
    labels = {tuple(labels) for name, labels, _ in page.samples if name == "DCGM_FI_DEV_GPU_TEMP"}
    assert labels == {("gpu", "UUID", "pci_bus_id", "device", "modelName", "DCGM_FI_DRIVER_VERSION")}
    assert page.values("DCGM_FI_DEV_GPU_TEMP", modelName="NVIDIA-H200") == [36, 36]
    assert {"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_PROF_DRAM_ACTIVE"} <= classic(page)
    assert "DCGM_FI_PROF_SM_ACTIVE" not in classic(page)
    assert all(entry.keys() >= {"time", "level", "msg"} for entry in log)
    said = [entry["msg"] for entry in log if entry["level"] == "WARNING"]
    assert "--fake-gpus is ignored: Use --source simulated or --source replay." in said
    assert [each.partition(":")[0] for each in said if "ignored" in each] == [
        "--fake-gpus is ignored",
        "DCGM_EXPORTER_CONFIGMAP_DATA is ignored",
        "--switch-devices is ignored",
    ]


# The labels of a GPU's series in dcgm-exporter 4.8.2, with its fields file and with Kubernetes.
THEIR_LABELS = {
    *("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION"),
    *("namespace", "pod", "container"),
}


def test_dcgm_exporter_daemonset(tmp_path: Path, kubelet: FakeKubelet) -> None:
    """Arguments, environment and probe of its chart work: node names are right, not those of the pod.

    Every family of its fields file has its type, help and labels.
    """
    port = free_port()
    driver = FakeDriver(tmp_path / "driver", 2)
    kubelet.pods = [given("train-0", str(identity(1)["UUID"]))]
    environ = {
        **driver.environment,
        "DCGM_EXPORTER_KUBERNETES": "true",
        "DCGM_EXPORTER_LISTEN": f"127.0.0.1:{port}",
        "DCGM_EXPORTER_INTERVAL": "200",
        "DCGM_POD_RESOURCES_KUBELET_SOCKET": str(kubelet.socket),
        "NODE_NAME": "worker-7",
    }
    asked = {row.name: row for row in rows((THEIRS / "dcp-metrics-included.csv").read_text(), lambda *_: None)}
    with started(tmp_path, command("-f", str(THEIRS / "dcp-metrics-included.csv")), port, **environ) as exporter:
        page = exporter.until(
            lambda page: (
                len(page.values("DCGM_FI_PROF_DRAM_ACTIVE")) == 2
                and page.values("DCGM_FI_DEV_POWER_USAGE", pod="train-0") != []
            )
        )
        assert exporter.ask("GET", "/health")[0] == 200
        assert "cannot read" not in exporter.log.read_text()  # NVIDIA's list has a vGPU's license on every node

    text = re.findall(r"# HELP (DCGM_\S+) (.*)\n# TYPE \S+ (\S+)\n", page.text)
    assert {name: (kind, help) for name, help, kind in text} == {
        name: (row.type, row.help)
        for name, row in asked.items()
        if row.type != "label" and name != "DCGM_FI_DEV_VGPU_LICENSE_STATUS"
    }
    found = [(name, labels) for name, labels, _ in page.samples if name.startswith("DCGM_")]
    more = {"DCGM_FI_DEV_XID_ERRORS": {"err_code", "err_msg"}}
    assert {(name, frozenset(labels)) for name, labels in found} == {
        (name, frozenset(THEIR_LABELS | more.get(name, set()))) for name, _ in found
    }
    assert {labels["Hostname"] for _, labels in found} == {"worker-7"}
    assert {(labels["gpu"], labels["pod"], labels["container"]) for _, labels in found} == {
        ("0", "", ""),
        ("1", "train-0", "main"),
    }


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        (("-c", "5s"), {}, "-c: '5s' is not a number of milliseconds; use for example 5000"),
        ((), {"DCGM_EXPORTER_LISTEN": "x"}, "DCGM_EXPORTER_LISTEN: 'x' is not an address; use host:port"),
        (("-f",), {}, "-f needs a value"),
        (("-d", "g:7"), {}, "--devices: there is no GPU 7: choose from 0 (GPU-00000000-"),
        (("-d", "i:0"), {}, "--devices i:…: numbers of GPU instances are DCGM's"),
        (("--web-systemd-socket",), {}, "--web-systemd-socket: systemd passed no socket"),
    ],
)
def test_errors_are_one_line(arguments: tuple[str, ...], environ: dict[str, str], message: str) -> None:
    """The error names the flag or variable as it was written, and the start fails."""
    said = run("serve", *REPLAY, *arguments, env={"DCGM_EXPORTER_LISTEN": "127.0.0.1:0", **environ})

    assert said.returncode in (1, 2)
    assert said.stderr.splitlines()[-1].startswith(f"gpu-exporter: {message}"), said.stderr


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("f", {0, 1, 2, 3}),
        ("g", {0, 1, 2, 3}),
        ("g:0,2-3", {0, 2, 3}),
        ("g:2", {2}),
        (f"g:{identity(3)['UUID']},1", {1, 3}),
        ("i", set()),
    ],
)
def test_selected_devices(serve: Serve, tmp_path: Path, devices: str, expected: set[int]) -> None:
    """By number, range or UUID, with their own numbers; without MIG there are no instances."""
    driver = FakeDriver(tmp_path / "driver", 4)
    exporter = serve("-d", devices, "--interval", "100ms", env=driver.environment)
    page = exporter.until(lambda page: bool(page.values("gpu_sm_active_seconds_total")))

    shown = {int(labels["gpu"]) for name, labels, _ in page.samples if name == "DCGM_FI_DEV_GPU_TEMP"}
    assert shown == expected
    known = {int(labels["gpu"]) for name, labels, _ in page.samples if name == "gpu_up"}
    assert known == (expected or {0, 1, 2, 3})
    assert page.value("gpu_devices_expected") == len(known)


PASS = """
import os, socket, sys
listening = socket.create_server(("127.0.0.1", int(sys.argv[1]))).detach()
if listening != 3:
    os.dup2(listening, 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def test_systemd_socket(tmp_path: Path) -> None:
    """It is passed as in `sd_listen_fds(3)` and replaces the exporter's address."""
    port = free_port()
    line = [sys.executable, "-c", PASS, str(port), *command("serve", *REPLAY, "--web-systemd-socket")[1:]]
    with started(tmp_path, line, port, GPU_EXPORTER_ADDRESS="256.256.256.256:1") as exporter:
        exporter.until(lambda page: bool(page.values("gpu_up")))
        with socket.create_connection(("127.0.0.1", port)):
            pass


def test_variables_alone_start_the_server(driver: FakeDriver, tmp_path: Path) -> None:
    """As in a pod of dcgm-exporter without arguments, of which only the image was changed."""
    port = free_port()
    environment = {**driver.environment, "DCGM_EXPORTER_LISTEN": f"127.0.0.1:{port}", "DCGM_EXPORTER_INTERVAL": "33"}
    with started(tmp_path, command(), port, **environment) as exporter:
        exporter.until(lambda page: bool(page.values("gpu_up")))
        assert "33 ms is too short" in exporter.log.read_text()


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_a_host_engine_without_bindings(driver: FakeDriver, tmp_path: Path, by: str) -> None:
    """The GPUs are read through NVML, and one line says so: a pod of dcgm-exporter has no bindings for Python."""
    port = free_port()
    line = command("-a", f"127.0.0.1:{port}", *(["-r", "localhost:5555"] if by == "flag" else []))
    more = {"DCGM_REMOTE_HOSTENGINE_INFO": "localhost:5555"} if by == "variable" else {}
    with started(tmp_path, line, port, **driver.environment, **more) as exporter:
        page = exporter.until(lambda page: bool(page.values("DCGM_FI_DEV_GPU_TEMP")))
        said = [line for line in exporter.log.read_text().splitlines() if "WARNING" in line and "bindings" in line]
    assert page.values("gpu_up") == [1]
    assert len(said) == 1
    assert "the host engine at localhost:5555 (-r, DCGM_REMOTE_HOSTENGINE_INFO) is not used" in said[0]
    assert "--dcgm-bindings" in said[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--source", "dcgm", "-r", "localhost:5555"),
        ("-r", "localhost:5555", "--dcgm-bindings", "/nowhere"),
        ("-r", "gpu7.example:5555"),
    ],
    ids=["own source", "own bindings", "another machine"],
)
def test_own_settings_for_dcgm_are_not_replaced(driver: FakeDriver, arguments: tuple[str, ...]) -> None:
    """Without the bindings, the start fails."""
    said = run("serve", *arguments, "--address", "127.0.0.1:0", env=driver.environment)
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].startswith("gpu-exporter: DCGM: "), said.stderr


def panels() -> dict[str, list[str]]:
    """Return the expressions of Grafana dashboard 12239, by panel."""
    board = json.loads((ROOT / "tests" / "dcgm_exporter" / "dashboard-12239.json").read_text())
    return {
        panel["title"]: [
            target["expr"].replace("$instance", ".*").replace("$gpu", ".*") for target in panel.get("targets", ())
        ]
        for panel in board["panels"]
        if panel.get("targets")
    }


def test_every_panel_of_dashboard_12239_has_results(serve: Serve, tmp_path: Path) -> None:
    """With dcgm-exporter's own fields file, and a Prometheus in between."""
    exporter = serve(*REPLAY, "-f", str(THEIRS / "default-counters.csv"), "--interval", "200ms")
    exporter.until(lambda page: bool(page.values("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")))
    gpus = len(exporter.page().values("gpu_up"))
    targets = {"static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}]}
    with scraping(tmp_path, "1s", targets) as prometheus:
        until(lambda: bool(prometheus.query("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")), 20, "a scrape")
        found = {title: [prometheus.query(each) for each in queries] for title, queries in panels().items()}

    assert len(found) == 8
    for title, queries in panels().items():
        for query, values in zip(queries, found[title], strict=True):
            assert (title, len(values)) == (title, 1 if query.startswith(("avg(", "sum(")) else gpus)


@pytest.mark.parametrize(("devices", "whole", "parts"), [("f", True, True), ("g", True, False), ("i", False, True)])
def test_devices_choose_between_gpus_and_their_instances(
    serve: Serve, tmp_path: Path, devices: str, whole: bool, parts: bool
) -> None:
    """In classic families. `gpu_*` families have both, so that health and integrals continue."""
    driver = FakeDriver(tmp_path / "driver", 2)
    driver.partition(1, {slot: mig_device(7 + slot, "1g.18gb", **{"Gpm.2": 10.0}) for slot in range(2)})
    exporter = serve("-d", devices, "--interval", "100ms", env=driver.environment)
    page = exporter.until(lambda page: bool(page.values("gpu_sm_active_seconds_total", GPU_I_ID="8")))

    shown = {"GPU_I_ID" in labels for name, labels, _ in page.samples if name.startswith("DCGM_")}
    assert shown == {kind for kind, there in ((False, whole), (True, parts)) if there}
    assert len(page.values("gpu_sm_active_seconds_total")) == 3
