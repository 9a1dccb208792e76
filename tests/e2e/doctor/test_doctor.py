"""`doctor` and `once` on the fake driver and a recording."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from gpu_exporter.catalogue.profiling_support import WITH_DCGM
from tests.conftest import Serve, run
from tests.support.fakes.driver import AMPERE, FakeDriver, mig_device


def findings(ended: CompletedProcess[str]) -> dict[str, tuple[str, str]]:
    """Return the level and the fix of each finding that doctor printed."""
    assert ended.stderr == ""
    found: dict[str, tuple[str, str]] = {}
    for line in ended.stdout.splitlines():
        if line.startswith("      -> "):
            what, (level, _) = list(found.items())[-1]
            found[what] = (level, line.removeprefix("      -> "))
        else:
            level, _, what = line.partition(" ")
            found[what.strip()] = (level, "")
    return found


# Other findings depend on the machine, and have their own tests.
OF_GPUS = ("driver", "gpu")


def levels(driver: FakeDriver) -> list[str]:
    """Return the levels of the findings about GPUs."""
    ended = run("doctor", "--json", env=driver.environment)
    return [each["level"] for each in json.loads(ended.stdout)["findings"] if each["topic"] in OF_GPUS]


def test_healthy_gpus(tmp_path: Path) -> None:
    """On H200, no finding is worse than a note, and the output fits on a screen."""
    driver = FakeDriver(tmp_path, gpus=2)
    ended = run("doctor", env=driver.environment)
    found = findings(ended)
    assert ended.returncode == 0
    assert found["GPUs that answer: 2 of 2"] == ("ok", "")
    assert found["driver 580.159.04, CUDA up to 13.0"] == ("ok", "")
    assert found["every GPU: NVIDIA H200, profiling metrics through GPM"] == ("ok", "")
    assert set(levels(driver)) == {"ok", "note"}
    assert len(found) <= 16


def test_gpus_without_gpm(tmp_path: Path) -> None:
    """On Ampere, doctor says what profiling metrics need."""
    driver = FakeDriver(tmp_path, profile=AMPERE)
    ended = run("doctor", env=driver.environment)
    found = findings(ended)
    assert ended.returncode == 0
    assert found["GPU 0: NVIDIA A100-SXM4-80GB, no profiling metrics"][0] == "ok"
    (lacks,) = [(what, cure) for what, (_, cure) in found.items() if "no GPM" in what and ": no DCGM" in what]
    assert lacks[0].endswith(": Ampere GPUs have no GPM, but DCGM can profile them")
    assert lacks[1] == WITH_DCGM
    assert levels(driver).count("warn") == 1


def test_every_fault_is_named_with_its_fix(tmp_path: Path) -> None:
    """Five GPUs: lost, wedged, reset required, not permitted, persistence mode off."""
    driver = FakeDriver(tmp_path, gpus=8)
    driver.lose(1)
    driver.block(2)
    driver.fail("PowerUsage", 4, gpu=3)
    driver.set("PersistenceMode", 0, gpu=4)
    driver.require_reset(5)
    ended = run("doctor", env=driver.environment)
    found = findings(ended)
    assert ended.returncode == 0
    for what, cure in {
        "GPUs that answer: 5 of 8": "dmesg",
        "GPU 1: does not answer: it fell off the bus": "reboot the node",
        "GPU 2: does not answer: a driver call does not return": "only a reboot helps",
        "GPU 3: no DCGM_FI_DEV_POWER_USAGE: no permission": "run as root",
        "GPU 4: persistence mode is off": "nvidia-smi -pm 1",
        "GPU 5: does not answer: it refuses every call until it is reset": "nvidia-smi --gpu-reset",
    }.items():
        assert found[what][0] == "warn"
        assert cure in found[what][1]
    assert "GPUs 0, 3, 4, 6, 7: NVIDIA H200, profiling metrics through GPM" in found
    assert levels(driver).count("warn") == 6


def test_mig(tmp_path: Path) -> None:
    """MIG mode on, pending, and on without instances."""
    driver = FakeDriver(tmp_path, gpus=4)
    driver.set("MigMode.current", 1, gpu=1)
    driver.set("MigMode.pending", 1, gpu=1)
    driver.set("MigMode.pending", 1, gpu=2)
    driver.partition(3, {0: mig_device(1, "4g.71gb"), 2: mig_device(13, "1g.18gb")})
    found = findings(run("doctor", env=driver.environment))
    assert [what for what in found if what.startswith("GPU 0:") and "MIG" in what] == []
    assert found["GPU 1: MIG mode is on, no instances seen"][0] == "note"
    assert found["GPU 3: MIG mode is on, 2 instances seen"] == ("ok", "")
    level, cure = found["GPU 2: MIG mode is off, and on after the next reset of the GPU"]
    assert (level, "--gpu-reset" in cure) == ("warn", True)


def test_the_port_of_an_exporter_that_runs(driver: FakeDriver, serve: Serve) -> None:
    """doctor recognises the exporter on the configured address."""
    address = f"127.0.0.1:{serve(env=driver.environment).port}"
    found = findings(run("doctor", "--address", address, env=driver.environment))
    assert found[f"{address} is served by gpu-exporter already"] == ("ok", "")


def test_another_module_of_the_same_name(driver: FakeDriver, tmp_path: Path) -> None:
    """A module that shadows nvidia-ml-py's is one line with the fix in every command that needs it."""
    (tmp_path / "pynvml").mkdir()
    (tmp_path / "pynvml/__init__.py").write_text("from .nothing import *\n")
    env = {**driver.environment, "PYTHONPATH": str(tmp_path)}
    for command in ("serve", "once", "check"):
        ended = run(command, env=env)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
        assert ended.stderr.startswith("gpu-exporter: the Python module pynvml at ")
        assert "pip install" in ended.stderr
    ended = run("doctor", env=env)
    assert ended.returncode == 1
    assert [what for what, (level, _) in findings(ended).items() if level == "FAIL"] == [
        f"no GPU can be read: the Python module pynvml at {tmp_path / 'pynvml/__init__.py'} is not nvidia-ml-py's"
    ]
    assert run("doctor", "--source", "replay", "--recording", "h200_workloads", env=env).returncode == 0
    library = (
        "import gpu_exporter\ntry: gpu_exporter.read()\nexcept gpu_exporter.GpuExporterError as error: print(error)"
    )
    said = subprocess.check_output([sys.executable, "-c", library], env={**os.environ, **env}, text=True)
    assert said.startswith("the Python module pynvml at ")


def test_json_without_gpus(driver: FakeDriver) -> None:
    """The same findings and exit code, for scripts."""
    driver.unload()
    ended = run("doctor", "--json", env=driver.environment)
    result = json.loads(ended.stdout)
    assert (ended.returncode, result["ok"]) == (1, False)
    [failed] = [each for each in result["findings"] if each["level"] == "fail"]
    assert (failed["topic"], set(failed)) == ("driver", {"topic", "level", "what", "cure"})
    assert "modprobe nvidia" in failed["cure"]


def without_library(driver: FakeDriver) -> None:
    """Replace the library by an empty file, which also hides the real one of this machine."""
    (driver.directory / "libnvidia-ml.so.1").write_bytes(b"")


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (without_library, "libnvidia-ml.so.1 not found"),
        (FakeDriver.unload, "modprobe nvidia"),
        (lambda driver: driver.fail("Init", 4), "no permission"),
        (lambda driver: driver.count(0), "no GPU"),
        (lambda driver: driver.lose(0), "fell off the bus"),
        (lambda driver: driver.block(0), "does not return"),
        (lambda driver: driver.delay("Init", 60), "hang"),
    ],
    ids=["no library", "not loaded", "no permission", "no GPU", "lost", "wedged", "library hangs"],
)
def test_nothing_can_be_read(driver: FakeDriver, fault: Callable[[FakeDriver], None], named: str) -> None:
    """If no GPU answers, doctor exits with code 1 and names the cause, even if a call hangs."""
    fault(driver)
    ended = run("doctor", env=driver.environment)
    assert ended.returncode == 1
    assert [level for level, _ in findings(ended).values()].count("FAIL") == 1
    assert named in ended.stdout


def test_replay(tmp_path: Path) -> None:
    """doctor examines a recording, and says that it is one."""
    ended = run("doctor", "--source", "replay", "--recording", "h200_workloads", env={"LD_LIBRARY_PATH": str(tmp_path)})
    found = findings(ended)
    assert ended.returncode == 0
    assert [level for what, (level, _) in found.items() if what.endswith("these are not the GPUs of this machine")] == [
        "warn"
    ]
    assert found["GPU 0: NVIDIA H200, profiling metrics from source replay"][0] == "ok"


@pytest.mark.parametrize(("gpus", "code"), [(1, 0), (0, 1)])
def test_quiet(tmp_path: Path, gpus: int, code: int) -> None:
    """With --quiet, there is only the exit code."""
    ended = run("doctor", "--quiet", env=FakeDriver(tmp_path, gpus=gpus).environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "")


def test_once(tmp_path: Path) -> None:
    """One page, with profiling metrics."""
    ended = run("once", "--node-name", "node-1", env=FakeDriver(tmp_path, gpus=2).environment)
    assert ended.returncode == 0
    [line] = [line for line in ended.stdout.splitlines() if line.startswith('DCGM_FI_PROF_SM_ACTIVE{gpu="1",')]
    assert line.endswith(" 0.96")
    assert 'Hostname="node-1"' in line


def test_once_as_json(tmp_path: Path) -> None:
    """GPUs have identity, state and samples; a lost one has the reason and no values."""
    driver = FakeDriver(tmp_path, gpus=2)
    driver.lose(1)
    ended = run("once", "--json", env=driver.environment)
    assert ended.returncode == 0
    page = json.loads(ended.stdout)
    good, lost = page["gpus"]
    assert page["live"] is True
    assert (good["up"], good["modelName"], good["samples"]["DCGM_FI_PROF_SM_ACTIVE"]) == (True, "NVIDIA H200", 0.96)
    assert good["samples"]["gpu_sm_active_seconds_total"] > 0
    assert (lost["up"], lost["reason"], lost["samples"]) == (False, "lost", {})


def test_once_without_an_answer(driver: FakeDriver) -> None:
    """If no GPU answers, the exit code is 1."""
    driver.lose(0)
    assert run("once", env=driver.environment).returncode == 1
