"""`diagnose` says what limits a GPU, `check` whether it is fit for a job."""

from __future__ import annotations

import json

from tests.conftest import run
from tests.support.fakes.driver import FakeDriver


def test_the_bottleneck_of_a_recorded_gpu() -> None:
    ran = run("diagnose", "--recording", "h200_workloads", "--phase", "memory_bound_copy", "--json")

    (gpu,) = json.loads(ran.stdout)["gpus"]
    assert (ran.returncode, gpu["class"]) == (1, "memory-bound")
    assert [mode["name"] for mode in gpu["modes"]] == ["GpuMemoryBound"]
    assert gpu["modes"][0]["because"]["dram_active"] > 0.8
    assert gpu["modes"][0]["advice"]


def test_a_fault_of_a_gpu_of_this_machine(driver: FakeDriver) -> None:
    """Both name GPU, fault and repair; without the fault, neither finds anything."""
    diagnose = ("diagnose", "--for", "3s", "--kernel-log", "none")
    assert run("check", env=driver.environment).stdout == "GPUs: 1 healthy\n"
    assert run(*diagnose, env=driver.environment).returncode == 0
    driver.set("TotalEccErrors.1.0", 3)

    checked, diagnosed = run("check", env=driver.environment), run(*diagnose, env=driver.environment)
    assert checked.returncode == 3
    assert checked.stdout.startswith("GPU 0: unhealthy: 3 uncorrectable ECC errors")
    assert diagnosed.returncode == 1
    assert "GpuEccUncorrectable (critical)" in diagnosed.stdout
