"""doctor's checks of the machine: tables of surroundings and findings."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import pytest

from gpu_exporter.doctor import examine, machine
from gpu_exporter.health import check
from gpu_exporter.io.user_text import Address
from gpu_exporter.model.errors import GpuLost, SourceLost
from gpu_exporter.model.finding import Finding, FindingLevel, as_dict
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.source import Device, Source
from gpu_exporter.sources.nvml.bindings import bindings
from gpu_exporter.sources.subset import Subset
from tests.conftest import free_port
from tests.support.tools import LIMIT

OK, NOTE, WARN, FAIL = FindingLevel.OK, FindingLevel.NOTE, FindingLevel.WARN, FindingLevel.FAIL
HERE = Address("127.0.0.1", 9400)


def files(root: Path, contents: Mapping[str, str]) -> Path:
    """Return a root directory with these files."""
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def raises(code: int) -> Callable[..., None]:
    """Return a function that raises this error."""

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


# --- platform, packages, container ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "processor", "contents", "untried"),
    [
        ("Linux", "x86_64", {}, ""),
        ("Linux", "aarch64", {}, "Linux aarch64: not tested"),
        ("Linux", "x86_64", {"proc/sys/kernel/osrelease": "5.15.90-microsoft-standard-WSL2"}, "WSL: not tested"),
        ("Linux", "aarch64", {"etc/nv_tegra_release": "# R35"}, "Jetson: not tested"),
        ("Linux", "aarch64", {"proc/device-tree/compatible": "nvidia,p3737\0nvidia,tegra234\0"}, "Jetson: not tested"),
        ("Windows", "AMD64", {}, "Windows: not tested"),
        ("Darwin", "arm64", {}, "Darwin: NVIDIA has no driver for it"),
    ],
)
def test_platform(tmp_path: Path, system: str, processor: str, contents: Mapping[str, str], untried: str) -> None:
    """An untested platform is reported; on Linux x86-64 there is one line."""
    first, *rest = machine.software(files(tmp_path, contents), system, processor)
    assert first.level is OK
    assert f"{system} {processor}" in first.what
    assert [(each.level, each.what.startswith(untried)) for each in rest] == [(NOTE, True)] * bool(untried)


def test_no_user_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has none."""
    monkeypatch.delattr("os.geteuid")
    assert "uid" not in machine.software()[0].what


class Installed(Distribution):
    """A project that is installed at a place."""

    def __init__(self, version: str, where: Path) -> None:
        self._version, self._where = version, where

    @property
    def version(self) -> str:
        return self._version

    def read_text(self, filename: str) -> None:
        return None

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        return self._where / path


SITE = Path("/site")


@pytest.mark.parametrize(
    ("origin", "projects", "level", "said", "cure"),
    [
        (SITE / "pynvml.py", {"nvidia-ml-py": "12.535.77"}, OK, "nvidia-ml-py 12.535.77", ""),
        (SITE / "pynvml.py", {"nvidia-ml-py": "13.1.0", "tornado": "6.4"}, OK, "13.1.0, tornado 6.4", ""),
        (SITE / "pynvml.py", {"nvidia-ml-py": "11.525.84"}, FAIL, "11.525.84 is too old", "--upgrade"),
        (None, {}, FAIL, "not installed", "`pip install nvidia-ml-py`"),
        (
            SITE / "pynvml/__init__.py",
            {"nvidia-ml-py": "13.1.0", "pynvml": "11.5.3"},
            FAIL,
            "comes from the project pynvml 11.5.3, not nvidia-ml-py",
            "`pip uninstall pynvml`",
        ),
        (SITE / "pynvml/__init__.py", {"pynvml": "8.0.4"}, FAIL, "the project pynvml 8.0.4", "pip uninstall"),
        (Path("/cwd/pynvml.py"), {"nvidia-ml-py": "13.1.0"}, FAIL, "at /cwd/pynvml.py is not", "move it away"),
        (Path("/cwd/pynvml.py"), {}, FAIL, "at /cwd/pynvml.py is not", "nvidia-ml-py"),
    ],
)
def test_bindings(origin: Path | None, projects: Mapping[str, str], level: FindingLevel, said: str, cure: str) -> None:
    """Only nvidia-ml-py's own module is accepted; another one is named with the fix."""

    def installed(name: str) -> Distribution:
        if name not in projects:
            raise PackageNotFoundError(name)
        return Installed(projects[name], SITE)

    spec = ModuleSpec("pynvml", None, origin=str(origin)) if origin else None
    providers = {"pynvml": [name for name in projects if name in ("nvidia-ml-py", "pynvml")]}
    found = bindings(lambda name: spec, installed, lambda: providers)
    assert found.level is level
    assert said in found.what
    assert cure in found.cure


def test_bindings_of_this_environment() -> None:
    """The bindings of the tests are correct."""
    assert bindings().level is OK


@pytest.mark.parametrize(
    ("environ", "mig", "levels", "said"),
    [
        ({}, False, [], ""),
        ({}, True, [], ""),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}, False, [], ""),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, False, [], ""),
        ({"NVIDIA_DRIVER_CAPABILITIES": "all"}, False, [], ""),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, False, [WARN], "gets no GPU"),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1"}, False, [NOTE], "0,1"),
        ({"NVIDIA_DRIVER_CAPABILITIES": "compute, video"}, False, [WARN], "lacks utility"),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, True, [NOTE], "MIG"),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_MIG_MONITOR_DEVICES": "all"}, True, [], ""),
    ],
)
def test_container(environ: Mapping[str, str], mig: bool, levels: list[FindingLevel], said: str) -> None:
    """Variables of NVIDIA's runtime are reported if they take something away."""
    found = machine.container(environ, mig=mig)
    assert [each.level for each in found] == levels
    assert all(said in each.what for each in found)


# --- port ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("take", "page", "level", "said"),
    [
        (lambda address: None, "", OK, "127.0.0.1:9400 is free"),
        (raises(errno.EADDRINUSE), "HTTP/1.1 401 \r\nServer: gpu-exporter\r\n", OK, "served by gpu-exporter already"),
        (raises(errno.EADDRINUSE), "DCGM_FI_X 1\ngpu_exporter_build_info 1", OK, "served by gpu-exporter already"),
        (raises(errno.EADDRINUSE), "HTTP/1.1 200\r\n\r\nDCGM_FI_DEV_GPU_TEMP 3", WARN, "dcgm-exporter"),
        (raises(errno.EADDRINUSE), "nvidia_smi_command_exit_code 0", WARN, "nvidia_gpu_exporter"),
        (raises(errno.EADDRINUSE), "nvitop_info 1", WARN, "nvitop-exporter"),
        (raises(errno.EADDRINUSE), "HTTP/1.0 404 Not Found\r\n", WARN, "another program"),
        (raises(errno.EADDRINUSE), "", WARN, "does not speak HTTP"),
        (raises(errno.EACCES), "", WARN, "Permission denied"),
        (raises(errno.EADDRNOTAVAIL), "", WARN, "Cannot assign requested address"),
    ],
)
def test_port(take: Callable[[Address], None], page: str, level: FindingLevel, said: str) -> None:
    """If a port is in use, its page shows by which program."""
    [found] = machine.port(HERE, take, lambda address: page)
    assert (found.level, found.topic) == (level, "port")
    assert said in found.what
    assert bool(found.cure) == (level is WARN)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port that accepts connections and sends nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield listening


@pytest.mark.slow
def test_silent_port(listener: socket.socket) -> None:
    """A real port in use by a program that never answers."""
    [found] = machine.port(Address("127.0.0.1", listener.getsockname()[1]))
    assert "does not speak HTTP" in found.what


def test_port_that_is_free() -> None:
    """A real port that is free is still free after the check."""
    address = Address("127.0.0.1", free_port())
    assert [each.level for each in machine.port(address) + machine.port(address)] == [OK, OK]


def test_page_of_a_server(listener: socket.socket) -> None:
    """The whole response of a server is read."""

    def serve() -> None:
        with listener.accept()[0] as connection:
            assert connection.recv(1000).startswith(b"GET /metrics HTTP/1.0\r\n")
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 200_000 + b"DCGM_FI_")

    thread = threading.Thread(target=serve)
    thread.start()
    [found] = machine.port(Address("127.0.0.1", listener.getsockname()[1]))
    thread.join()
    assert "dcgm-exporter" in found.what


# --- DCGM, kubelet, kernel log, clock ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("contents", "listens", "said"),
    [
        ({}, False, []),
        ({"proc/1/comm": "systemd\n", "proc/7/comm": "nv-hostengine\n"}, False, ["(a process)"]),
        ({}, True, ["(port 5555)"]),
    ],
)
def test_dcgm(tmp_path: Path, contents: Mapping[str, str], listens: bool, said: list[str]) -> None:
    """A host engine is a note; its absence has no line."""
    found = machine.dcgm(files(tmp_path, contents), lambda host, port: listens)
    assert [each.level for each in found] == [NOTE] * len(said)
    assert all(part in each.what for part, each in zip(said, found, strict=True))


def test_dcgm_by_its_socket(tmp_path: Path) -> None:
    """Its process may be invisible, but not its socket."""
    (tmp_path / "tmp").mkdir()
    with closing(socket.socket(socket.AF_UNIX)) as engine:
        engine.bind(str(tmp_path / "tmp/nv-hostengine"))
        [found] = machine.dcgm(tmp_path, lambda host, port: False)
    assert "(its socket)" in found.what


@pytest.mark.parametrize(
    ("there", "readable", "inside", "level", "said"),
    [
        (False, True, False, NOTE, "not in Kubernetes"),
        (False, True, True, WARN, "socket is not in this container"),
        (True, True, True, OK, "can be opened"),
        (True, True, False, OK, "can be opened"),
        (True, False, True, WARN, "this user may not open"),
        (True, False, False, NOTE, "this user may not open"),
    ],
)
def test_kubelet(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: bool,
    readable: bool,
    inside: bool,
    level: FindingLevel,
    said: str,
) -> None:
    """Pod names need kubelet's socket; its absence is a warning only in Kubernetes."""
    folder = tmp_path / "var/lib/kubelet/pod-resources"
    folder.mkdir(parents=True)
    with closing(socket.socket(socket.AF_UNIX)) as kubelet:
        if there:
            monkeypatch.chdir(folder)  # the whole path may be too long for a socket
            kubelet.bind("kubelet.sock")
        environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"} if inside else {}
        [found] = machine.kubelet(tmp_path, environ, lambda path: readable)
    assert found.level is level
    assert said in found.what


@pytest.mark.parametrize(
    ("opens", "restricted", "level", "said", "cure"),
    [
        (lambda path: None, "1", OK, "can be read", ""),
        (raises(errno.EPERM), "1", NOTE, "this user may not read", "sysctl kernel.dmesg_restrict=0"),
        (raises(errno.EACCES), "0", NOTE, "this user may not read", "CAP_SYSLOG"),
        (raises(errno.ENOENT), "1", NOTE, "no kernel log:", "/dev/kmsg"),
    ],
)
def test_kernel_log(
    tmp_path: Path, opens: Callable[[Path], None], restricted: str, level: FindingLevel, said: str, cure: str
) -> None:
    """Whether XIDs can be read from the kernel log, and otherwise the fix."""
    [found] = machine.kernel_log(files(tmp_path, {"proc/sys/kernel/dmesg_restrict": f"{restricted}\n"}), opens)
    assert found.level is level
    assert said in found.what
    assert cure in found.cure


@pytest.mark.parametrize(
    ("unsynchronised", "contents", "level"),
    [
        (None, {}, None),
        (False, {}, OK),
        (True, {"run/systemd/timesync/synchronized": ""}, OK),
        (True, {"proc/9/comm": "chronyd\n"}, NOTE),
        (True, {"proc/9/comm": "bash\n"}, WARN),
    ],
)
def test_clock(
    tmp_path: Path, unsynchronised: bool | None, contents: Mapping[str, str], level: FindingLevel | None
) -> None:
    """The kernel reports whether the clock is synchronised; if not, a time daemon may still do it."""
    found = machine.clock(files(tmp_path, contents), lambda: unsynchronised)
    assert [each.level for each in found] == ([] if level is None else [level])


@pytest.mark.slow
def test_checks_of_this_machine() -> None:
    """On any machine, each check ends with findings on its own topic."""
    found = [finding for check in machine.checks(Address("127.0.0.1", free_port())) for finding in check()]
    assert {each.topic for each in found} >= {"port", "kubelet", "kernel_log"}
    assert FAIL not in {each.level for each in found}


# --- running checks and formatting findings -----------------------------------------------------------------------


def test_hanging_check_is_not_awaited() -> None:
    """Only its own finding is missing."""
    hangs = threading.Event()
    check = examine.Check(lambda: [Finding("clock", OK, "")] if hangs.wait() else [])
    [found] = check.until(time.monotonic() + 0.1)
    hangs.set()
    assert (found.level, found.topic) == (WARN, "machine")
    assert check.until(time.monotonic() + LIMIT) == [Finding("clock", OK, "")]


@pytest.mark.parametrize(("levels", "ok"), [([], True), ([OK, NOTE, WARN], True), ([OK, FAIL], False)])
def test_findings_as_json(levels: list[FindingLevel], ok: bool) -> None:
    """The format that scripts rely on; only FAIL is not ok."""
    result = as_dict([Finding("port", level, "what", "cure") for level in levels])
    names = [level.name.lower() for level in levels]
    findings = [{"topic": "port", "level": name, "what": "what", "cure": "cure"} for name in names]
    assert result == {"ok": ok, "findings": findings}


def test_a_lost_source_has_a_cause_and_a_fix() -> None:
    """Colons in addresses and names do not matter."""

    def source() -> Source:
        raise SourceLost("DCGM: host engine at [::1]:5555: no connection (-21)", fix="is nv-hostengine running?")

    findings, _ = examine.examine(source, ())
    cause = "no GPU can be read: host engine at [::1]:5555: no connection (-21)"
    assert Finding("driver", FAIL, cause, "is nv-hostengine running?") in findings


class Closed(Source):
    """A source whose driver does not open."""

    name, description, live = "closed", "", True

    def open(self) -> None:
        raise SourceLost("no driver", fix="install one")

    def count(self) -> int:
        return 0

    def attach(self, index: int, metrics: Sequence[Metric]) -> Device:
        raise GpuLost("no driver", "gone")

    def findings(self) -> Sequence[Finding]:
        return [FOUND]


FOUND = Finding("bindings", OK, "its bindings")


@pytest.mark.parametrize("source", [Closed(), Subset(Closed(), [0])], ids=lambda source: type(source).__name__)
def test_findings_of_a_source_that_is_lost(source: Source) -> None:
    """They come before what is wrong with the driver, also for some of its GPUs."""
    findings, _ = examine.examine(lambda: source, ())

    driver = Finding("driver", FAIL, "no GPU can be read: no driver", "install one")
    assert [finding for finding in findings if finding in (FOUND, driver)] == [FOUND, driver]


@pytest.mark.parametrize(("source", "who"), [("dcgm", "host engine"), ("nvml", "driver")])
def test_a_source_that_never_listed_a_gpu(source: str, who: str) -> None:
    """It hangs, of a real host engine even longer than commands wait: this says who, and nothing about the GPUs."""
    silent = Snapshot(1.0, source)
    for said in ("\n".join(map(str, examine.judge(silent))), "\n".join(check.lines(check.report(silent)))):
        assert who in said
        assert "reboot" not in said
    assert check.report(silent).exit_code == 1
