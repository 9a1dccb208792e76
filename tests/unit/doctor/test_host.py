"""What `doctor` says about host evidence."""

from pathlib import Path

import pytest

from gpu_exporter.doctor.host import checks
from gpu_exporter.model.finding import FindingLevel
from tests.support.fakes.procfs import FakeHost, Task


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """A machine with everything that host evidence needs."""
    host = FakeHost(tmp_path)
    host.add(Task(1, b"systemd"))
    host.put("proc/2/comm", "kthreadd\n")
    host.put("sys/fs/cgroup/cgroup.controllers", "cpu io memory\n")
    return host


def said(host: FakeHost) -> list[tuple[FindingLevel, str]]:
    found = checks(host.proc, host.sys)
    assert all(finding.cure for finding in found if finding.level is not FindingLevel.OK)
    return [(finding.level, finding.what.removeprefix("host evidence: ").split(",")[0]) for finding in found]


def test_a_machine_that_has_everything(host: FakeHost) -> None:
    """One line says where it is read from."""
    assert [level for level, _ in said(host)] == [FindingLevel.OK]


def test_each_lack_has_a_cure(host: FakeHost) -> None:
    """A PID namespace, a kernel without statistics or children, and missing cgroups."""
    for path in ("2/comm", "1/schedstat", "1/task/1/children"):
        (host.proc / path).unlink()
    (host.sys / "fs/cgroup/cgroup.controllers").unlink()

    assert said(host)[:4] == [
        (FindingLevel.WARN, f"{host.proc} has not the host's processes"),
        (FindingLevel.NOTE, "the kernel has no scheduler statistics"),
        (FindingLevel.NOTE, "the kernel does not list children"),
        (FindingLevel.WARN, f"no cgroups below {host.sys}/fs/cgroup"),
    ]


def test_no_procfs(tmp_path: Path) -> None:
    """Nothing else is checked."""
    (finding,) = checks(tmp_path / "nowhere", Path("/sys"))
    assert (finding.level, finding.cure) == (FindingLevel.WARN, "check --procfs")
