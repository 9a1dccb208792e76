"""The chart's pods on this machine: rendered arguments, environment and files in a real exporter, paths moved."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from tests.conftest import Exporter, Page, Serve, run
from tests.support import chart
from tests.support.chart import PASSWORD, USER, Object, exporter, kind, made, objects, pod
from tests.support.fakes.apiserver import GROUP, PODS, FakeApiServer, pod_object, slice_object
from tests.support.fakes.driver import FakeDriver
from tests.support.fakes.hostengine import BINDINGS, FakeHostengine
from tests.support.fakes.kmsg import FakeKmsg
from tests.support.fakes.kubelet import Claim, FakeKubelet, Given
from tests.support.fakes.kubelet import pod as listed
from tests.support.owners import UUID
from tests.support.tools import LIMIT, until

WITH_TLS = """\
tls_server_config: {cert_file: /etc/gpu-exporter/tls/tls.crt, key_file: /etc/gpu-exporter/tls/tls.key}
"""
PACKAGED = "/usr/share/datacenter-gpu-manager-4/bindings/python3"
POD_RESOURCES = "/var/lib/kubelet/pod-resources"
# Sets of values, and the lookups that they enable. The other sets start the same.
ASKED: Mapping[str, set[str]] = {
    "defaults": set(),
    "attribution": {"kubelet"},
    "everything": {"kubelet", "pods", "resource_slices", "hpc_jobs", "processes"},
    "mig": {"kubelet", "pods"},
    "dra": {"kubelet", "resource_slices"},
    "no-rbac": {"kubelet", "pods", "resource_slices"},
    "dcgm-remote": set(),
    "dcgm-within": set(),
    "tls": set(),
    "kernel-log": set(),
    "host-network": {"processes"},
    "mirror": set(),
    "jobs": {"hpc_jobs"},
}


class Host:
    """A node with two GPUs in a cluster, with the files that a pod finds at its mounts."""

    def __init__(self, folder: Path, kubelet: FakeKubelet) -> None:
        self.folder = folder
        self.driver = FakeDriver(folder / "driver", gpus=2)
        self.engine = FakeHostengine(folder / "engine", gpus=2)
        self.api = FakeApiServer(folder / "api")
        self.authority = trustme.CA()
        self.names: tuple[str, ...] = ("127.0.0.1", "localhost")
        self.web = "http_server_config: {headers: {X-XSS-Protection: '0'}}\n"
        kubelet.pods = [listed("train", Given("nvidia.com/gpu", [UUID[0]])), listed("claims", Claim("node", "gpu-1"))]
        self.api.put(PODS, pod_object("train", "0-1", {"app": "bert", "batch.kubernetes.io/job-name": "job"}))
        path = f"{GROUP}/v1/resourceslices"
        self.api.put(path, slice_object("slice", {"gpu-1": {"type": "gpu", "uuid": UUID[1]}}))
        # By path in the container.
        self.moved = {
            POD_RESOURCES: kubelet.socket.parent,
            "nvidia-dcgm.gpu-operator:5555": Path(self.engine.address),
            PACKAGED: BINDINGS,
        }

    def start(self, serve: Serve, found: list[Object]) -> Exporter:
        """Run the exporter as the pod would: init containers for DCGM, settings, mounts."""
        self._mount(found)
        for container in pod(found).get("initContainers", ()):
            if container["name"] == "dcgm":
                self._copy_dcgm(container["command"])
        config = self._place("config")
        if "dcgm_hostengine" in (config / "config.yaml").read_text():
            self.engine.start()
        for path in config.rglob("*.y*ml"):
            path.write_text(self.here(path.read_text()))
        program, *arguments = exporter(found)["args"]
        assert program == "serve"
        web = config / "web/web.yml"
        secure = web.exists() and "tls_server_config" in web.read_text()
        tls = ssl.create_default_context(cadata=self.authority.cert_pem.bytes().decode()) if secure else None
        if tls:
            tls.check_hostname = "127.0.0.1" in self.names
        return serve(*arguments, "--interval=200ms", env=self.environment(found), tls=tls)

    def environment(self, found: list[Object]) -> dict[str, str]:
        """Return the container's environment and that of the fakes; a token only if the pod is given one."""
        own = {}
        for each in exporter(found)["env"]:
            path = each["valueFrom"]["fieldRef"]["fieldPath"] if "valueFrom" in each else ""
            assert path in ("", "spec.nodeName")
            own[each["name"]] = "node" if path else self.here(each["value"])
        cluster = self.api.environment
        if not pod(found)["automountServiceAccountToken"]:
            cluster["GPU_EXPORTER_KUBERNETES_SERVICE_ACCOUNT"] = "/nonexistent"
        driver = {key: text for key, text in self.driver.environment.items() if key != "GPU_EXPORTER_KERNEL_LOG"}
        return {**self.engine.environment, **cluster, **own, **driver}

    def here(self, text: str) -> str:
        """Return a path with the paths of this machine."""
        places = "|".join(map(re.escape, sorted(self.moved, key=len, reverse=True)))
        return re.sub(places, lambda found: str(self.moved[found[0]]), text)

    def _place(self, volume: str) -> Path:
        return self.folder / "volumes" / volume

    def _mount(self, found: list[Object]) -> None:
        volumes = {each["name"]: each for each in pod(found)["volumes"]}
        for mount in exporter(found)["volumeMounts"]:
            place = self._place(mount["name"])
            place.mkdir(parents=True)
            if volumes[mount["name"]].get("hostPath", {}).get("path") == "/dev/kmsg":
                FakeKmsg(place := place / "kmsg").xid(63)
            self.moved.setdefault(mount["mountPath"], place)
        for mounted, name, text in (("/host/jobs", "0", "4711\n"), ("/host/log", "kern.log", "")):
            if mounted in self.moved:
                (self.moved[mounted] / name).write_text(text)
        for source in volumes["config"]["projected"]["sources"]:
            self._project(source, found)

    def _project(self, source: Mapping[str, Object], found: list[Object]) -> None:
        if "configMap" in source:
            held = self._held(found, "ConfigMap", source["configMap"]["name"])["data"]
            files = {name: held[name] for name in held}
        else:
            name = source["secret"]["name"]
            content = self._held(found, "Secret", name).get("stringData") or self._users()
            files = {item["path"]: content[item["key"]] for item in source["secret"]["items"]}
        for inside, text in files.items():
            path = self._place("config") / inside
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    @staticmethod
    def _held(found: list[Object], of: str, name: str) -> Object:
        return next((each for each in kind(found, of) if each["metadata"]["name"] == name), {})

    def _users(self) -> Mapping[str, str]:
        """Return the content of a Secret that the user creates."""
        issued = self.authority.issue_cert(*self.names)
        return {
            "tls.crt": issued.cert_chain_pems[0].bytes().decode(),
            "tls.key": issued.private_key_pem.bytes().decode(),
            "ca.crt": self.authority.cert_pem.bytes().decode(),
            "web.yml": self.web,
        }

    def _copy_dcgm(self, command: list[str]) -> None:
        """Run the init container on a machine with DCGM where its packages install it."""
        (library := self.folder / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
        (library / "libdcgm.so.4").write_bytes(b"")
        shutil.copytree(BINDINGS, self.folder / PACKAGED[1:], ignore=shutil.ignore_patterns("__pycache__"))
        self.moved |= {PACKAGED: self.folder / PACKAGED[1:], "/usr/lib": self.folder / "usr/lib"}
        text = self.here(command[-1])
        subprocess.run([*command[:-1], text], check=True, timeout=LIMIT)
        assert (self.moved["/dcgm"] / "python3/libdcgm.so.4").is_file()

    def stop(self) -> None:
        """Stop everything."""
        self.api.stop()
        self.engine.kill()


@pytest.fixture
def host(tmp_path: Path, kubelet: FakeKubelet) -> Iterator[Host]:
    """A node in a cluster."""
    found = Host(tmp_path, kubelet)
    yield found
    found.stop()


def page(of: Exporter) -> Page:
    """Scrape with the password that some values set."""
    login = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    return Page(of.get(headers={"Authorization": f"Basic {login}"})[1].decode())


@pytest.mark.parametrize("name", ASKED)
def test_every_feature_starts(serve: Serve, host: Host, name: str) -> None:
    """Each works with the chart's mounts and settings, and needs no more of the API server than its role allows."""
    found = made(name)
    running = host.start(serve, found)
    answers = {each: 1.0 for each in ASKED[name]}

    def lookups(shown: Page) -> Mapping[str, float]:
        return {labels["source"]: v for n, labels, v in shown.samples if n == "gpu_exporter_attribution_up"}

    until(lambda: lookups(page(running)) == answers and page(running).values("gpu_up") == [1, 1], 20, "all answers")
    shown = page(running)
    owners = {labels["pod"]: labels for n, labels, _ in shown.samples if n == "gpu_pod_info"}
    assert ("train" in owners) is ("kubelet" in answers)
    assert ("claims" in owners) is ("resource_slices" in answers)
    assert owners.get("train", {}).get("workload") == ("job" if "pods" in answers else None)
    assert ("gpu_job_info" in shown.text) is ("hpc_jobs" in answers)
    assert ("gpu_processes{" in shown.text) is ("processes" in answers)
    if name == "kernel-log":
        until(lambda: page(running).values("gpu_xid_events_total", xid="63") == [1], 10, "the XID")
    if name == "everything":  # only the classic families of the file; the changed table of XIDs
        assert {n for n, _, _ in shown.samples if n.startswith("DCGM_")} == {
            "DCGM_FI_DEV_GPU_TEMP",
            "DCGM_FI_DEV_POWER_USAGE",
        }
        assert running.get()[0].status == 401
    if name != "no-rbac":
        assert requested(host) == allowed(found)
    assert running.stop() == 0


def requested(host: Host) -> set[tuple[str, str, str]]:
    """Return group, resource and verb of the requests to the API server, without discovery, which everyone may use."""
    found = set()
    for url in host.api.asked:
        parts = urlsplit(url)
        if parts.path != GROUP:
            group, resource = parts.path.removeprefix("/api/v1").split("/")[2:3] or [""], parts.path.split("/")[-1]
            found.add((group[0] if "apis" in parts.path else "", resource, "watch" if "watch=" in url else "list"))
    return found


def allowed(found: list[Object]) -> set[tuple[str, str, str]]:
    """Return the same for the chart's roles."""
    return {
        (group, resource, verb)
        for role in kind(found, "ClusterRole")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_other_sets_start_the_same() -> None:
    """Sets with other monitoring have the same pods as above; on OpenShift, the pods only demand their SCC."""
    assert {*chart.SETS} - {*ASKED} == {
        *(
            "monitored",
            "pod-monitor",
            "openshift",
            "restricted",
            "overridden",
            "host-evidence",
            "host-path",
            "job-socket",
            "profile",
            "remediation",
        )
    }
    for name in ("monitored", "pod-monitor", "restricted", "overridden", "remediation"):
        assert pod(made(name)) == pod(made("defaults"))
    assert pod(made("openshift")) == pod(made("attribution"))


def test_doctor_in_the_pod(serve: Serve, host: Host) -> None:
    """`kubectl exec … gpu-exporter doctor`, as in NOTES.txt: it calls kubelet at the socket from the settings."""
    found = made("attribution")
    host.start(serve, found)
    said = run("doctor", env={**os.environ, **host.environment(found)})
    assert said.returncode == 0, said.stdout
    assert "kubelet lists 2 devices of 2 pods" in said.stdout
    assert "pod-resources socket" not in said.stdout


@pytest.mark.parametrize(
    ("values", "web"),
    [
        ({"port": 9401}, ""),
        (chart.SETS["tls"], ""),
        ({"web": {"existingSecret": "own", "scheme": "https", "tlsSecret": "tls"}}, WITH_TLS),
    ],
    ids=["port", "tls", "existing-secret"],
)
def test_release_finds_the_exporter(values: chart.Values, web: str, serve: Serve, host: Host) -> None:
    """`kubectl exec … gpu-exporter release` needs no URL, and no authority, whatever the certificate's names are."""
    host.names, host.web = ("gpus.example",), web or host.web
    found = objects(values)
    running = host.start(serve, found)
    environment = host.environment(found)
    assert "GPU_EXPORTER_URL" not in environment
    settings = Path(environment["GPU_EXPORTER_CONFIG"])
    port = values.get("port", 9400)
    assert f"address: :{port}\n" in settings.read_text()
    settings.write_text(settings.read_text().replace(f"address: :{port}\n", f"address: :{running.port}\n"))
    released = run("release", env={**os.environ, **environment})
    assert released.returncode == 0, released.stderr
    assert "released until" in released.stdout
    assert run("resume", env={**os.environ, **environment}).returncode == 0
