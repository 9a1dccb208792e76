"""The examples for Slurm and Kubernetes, run here as Slurm and kubelet would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_exporter.active_checks.history import ActiveChecks
from gpu_exporter.model.verdict import Health
from gpu_exporter.version import __version__
from tests import ROOT
from tests.conftest import run
from tests.e2e.active_checks.machine import UUID, Machine, machine
from tests.support import chart
from tests.support.stand_ins.slurmd import Slurmd, with_package

SLURM, KUBERNETES = ROOT / "examples" / "slurm", ROOT / "examples" / "kubernetes"


def node(folder: Path, on: Machine) -> Slurmd:
    """Return a node of a Slurm cluster, with gpu-exporter."""
    made = Slurmd(folder / "slurm", {**on.environment, "GPU_EXPORTER_STATE_DIR": str(folder / "state")})
    made.program("gpu-exporter", with_package(ROOT))
    return made


@pytest.mark.parametrize("name", ["prolog", "epilog"])
def test_slurm(tmp_path: Path, name: str) -> None:
    """A slow GPU of the job drains the node with the reason; one of another job does not. The history is kept."""
    two = machine(tmp_path / "machine", gpus=2)
    slurm, script = node(tmp_path, two), SLURM / f"{name}.sh"
    assert (slurm.run(script, ""), slurm.reason) == (True, "")
    two.cuda.set("Rate.bf16", 4.0e14, gpu=1)
    assert (slurm.run(script, "0"), slurm.reason) == (True, "")
    assert slurm.run(script, "0,1") is (name == "epilog")
    assert slurm.reason.startswith("gpu-exporter: GPU 1: degraded: tensor cores, bf16: 400 TFLOP/s, 55 % below the oth")
    last = ActiveChecks(tmp_path / "state").read().last(UUID.format(1))
    assert last is not None
    assert last.health is Health.DEGRADED
    assert two.cuda.contexts() == []


@pytest.mark.parametrize("name", ["prolog", "epilog"])
def test_slurm_counts_by_minor_number(tmp_path: Path, name: str) -> None:
    """The GPU of /dev/nvidia0 is checked, whatever its index; since Slurm 25.11 that with the UUID."""
    two = machine(tmp_path / "machine", gpus=2)
    for gpu in range(2):
        two.nvml.set("MinorNumber", 1 - gpu, gpu)
    two.cuda.set("Rate.bf16", 4.0e14, gpu=1)
    slurm, script = node(tmp_path, two), SLURM / f"{name}.sh"
    assert (slurm.run(script, "1"), slurm.reason) == (True, "")
    assert (slurm.run(script, "7", visible=UUID.format(0)), slurm.reason) == (True, "")
    assert slurm.run(script, "0") is (name == "epilog")
    assert slurm.reason.startswith("gpu-exporter: GPU 1: degraded: ")
    assert slurm.run(script, "7", visible=UUID.format(1)) is (name == "epilog")


def test_slurm_and_a_mig_instance(tmp_path: Path) -> None:
    """Slurm numbers instances, not GPUs: nothing is checked."""
    slurm = node(tmp_path, machine(tmp_path / "machine"))
    for visible in ("MIG-00000000-0000-0000-0000-000000000000", "MIG-GPU-00000000-0000-0000-0000-000000000000/1/0"):
        assert (slurm.run(SLURM / "prolog.sh", "3", visible), slurm.reason) == (True, "")


@pytest.mark.parametrize(("job", "ended"), [("", True), ("17", True), ("18", False)])
def test_slurm_with_a_leftover_process(tmp_path: Path, job: str, ended: bool) -> None:
    """The prolog ends it, unless its job is still on the node, and drains nothing: the GPU was not measured."""
    one = machine(tmp_path / "machine")
    slurm = node(tmp_path, one)
    slurm.program("squeue", "#!/bin/sh\necho 18\n")
    user = 65534 if os.getuid() == 0 else None
    process = subprocess.Popen(["sleep", "600"], user=user)
    try:
        proc = tmp_path / "proc"
        for pid, name in {2: "kthreadd", process.pid: "sleep"}.items():
            (proc / str(pid)).mkdir(parents=True)
            (proc / str(pid) / "comm").write_text(f"{name}\n")
        (proc / str(process.pid) / "status").symlink_to(f"/proc/{process.pid}/status")
        (proc / str(process.pid) / "cgroup").write_text(f"0::/slurm/uid_1/job_{job}/step_0\n" if job else "0::/\n")
        one.nvml.set("ComputeRunningProcesses", f"{process.pid}:1048576")
        script = tmp_path / "prolog.sh"
        script.write_text((SLURM / "prolog.sh").read_text().replace("/proc/", f"{proc}/"))
        script.chmod(0o755)
        slurm.set("GPU_EXPORTER_PROCFS", str(proc))
        threading.Thread(target=process.wait, daemon=True).start()  # no zombie: the script waits for its end
        assert (slurm.run(script, "0"), slurm.reason) == (True, "")
        assert (process.poll() == -signal.SIGTERM) is ended
    finally:
        process.kill()
        process.wait()


def test_slurm_without_a_driver(tmp_path: Path) -> None:
    """A check that cannot tell neither drains the node nor keeps the job from starting."""
    one = machine(tmp_path / "machine")
    one.nvml.unload()
    slurm = node(tmp_path, one)
    assert (slurm.run(SLURM / "prolog.sh", "0"), slurm.reason) == (True, "")


def read(name: str) -> dict[str, Any]:
    """Return an example, which every supported version of Kubernetes accepts."""
    import kubernetes_validate  # takes seconds, which each worker would pay

    content: dict[str, Any] = yaml.safe_load((KUBERNETES / name).read_text())
    for version in ("1.25", "1.37"):
        kubernetes_validate.validate(content, version, strict=True)
    return content


def start(container: dict[str, Any], on: Machine, moved: Path) -> tuple[int, str]:
    """Run a container's arguments in its environment, with the paths of its mounts moved."""
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]

    def here(text: str) -> str:
        return re.sub("|".join(mounts), lambda found: f"{moved}{found[0]}", text)

    for mount in mounts:
        Path(here(mount)).mkdir(parents=True)
    own = {each["name"]: here(each["value"]) for each in container["env"]}
    ended = run(*map(here, container["args"]), env={**own, **on.environment})
    return ended.returncode, ended.stdout


def test_the_init_container(tmp_path: Path) -> None:
    """It gets the GPUs of the job, and its exit code keeps a pod with a slow GPU from starting."""
    spec = read("init-container.yaml")["spec"]
    (container,), (job,) = spec["initContainers"], spec["containers"]
    assert container["resources"]["limits"] == job["resources"]["limits"]
    assert container["image"].endswith(f":{__version__}")
    two = machine(tmp_path / "machine", gpus=2)
    assert start(container, two, tmp_path / "good")[0] == 0
    two.cuda.set("Rate.memory_copy", 3e12, gpu=0)
    code, out = start(container, two, tmp_path / "slow")
    assert code == 3
    assert "GPU 0: degraded: device memory, copy (read + write): 3 TB/s" in out


def test_the_job(tmp_path: Path) -> None:
    """It tolerates the taint of remediation, and leaves its result where the exporter looks for it."""
    spec = read("active-check-job.yaml")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert {each["key"] for each in spec["tolerations"]} >= {"gpu-exporter.io/unhealthy"}
    container["args"] += ["--load-time", "1s"]
    one = machine(tmp_path / "machine")
    assert start(container, one, tmp_path / "pod")[0] == 0
    last = ActiveChecks(tmp_path / "pod/var/lib/gpu-exporter").read().last(UUID.format(0))
    assert last is not None
    assert (last.level, last.health) == (2, Health.HEALTHY)


def test_helm_test(tmp_path: Path) -> None:
    """The chart's test pod checks as many GPUs as asked for."""
    found = [
        each for each in chart.objects({"test": {"gpus": 2}}) if each["metadata"]["name"] == f"{chart.NAME}-test-gpus"
    ]
    (container,) = found[0]["spec"]["containers"]
    assert start(container, machine(tmp_path / "machine", gpus=2), tmp_path / "pod")[0] == 0
