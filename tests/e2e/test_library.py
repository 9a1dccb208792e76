"""`import gpu_exporter` in a user's program, on the fake driver."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.support.fakes.driver import FakeDriver
from tests.support.owners import MIG, UUID
from tests.support.tools import LIMIT

README = ROOT / "README.md"


def program(driver: FakeDriver, text: str, **environment: str) -> Any:
    """Run a program that prints JSON as its last line."""
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, **driver.environment, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_readme_lines_run(driver: FakeDriver) -> None:
    """The five lines of the README, in a loop that trains nothing."""
    (lines,) = re.findall(r"```python\n(import gpu_exporter\n.*?)```", README.read_text(), re.DOTALL)
    assert len([line for line in lines.splitlines() if line.strip()]) <= 6
    stub = "logged = []\nclass wandb:\n    log = logged.append\nloader, train = range(3), lambda batch: None\n"
    logged = program(driver, f"{stub}{lines}\nimport json; print(json.dumps(logged))")
    assert len(logged) >= 1
    assert logged[0]["gpu0/DCGM_FI_PROF_SM_ACTIVE"] == pytest.approx(0.96)
    assert logged[0]["gpu0/DCGM_FI_DEV_POWER_USAGE"] == pytest.approx(79.715)


def test_later_reads_call_no_driver_and_are_fresh(driver: FakeDriver) -> None:
    """A second read, while the driver hangs, has the values of the loop; a later one has new values."""
    found = program(
        driver,
        "import gpu_exporter, json, time\n"
        "from pathlib import Path\n"
        "first = gpu_exporter.read()[0].at\n"
        "while (later := gpu_exporter.read()[0].at) == first: time.sleep(0.01)\n"
        f"driver = Path({str(driver.directory / 'control')!r})\n"
        "driver.write_text(driver.read_text() + '0 Block 1\\n')\n"
        "again = [gpu_exporter.read()[0].index for _ in range(5)]\n"
        "print(json.dumps([first, later, again]))\n",
    )
    assert found[1] > found[0]
    assert found[2] == [0] * 5


def test_frozen_and_selected(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path / "driver", gpus=4)
    found = program(
        driver,
        "import gpu_exporter, json, dataclasses\n"
        "gpus = gpu_exporter.read(gpus=[2, 3], metrics='full')\n"
        "try: gpus[0].up = False\n"
        "except dataclasses.FrozenInstanceError: frozen = True\n"
        "print(json.dumps([frozen, [gpu.index for gpu in gpus], [gpu.up for gpu in gpus], len(gpus[0].as_dict())]))\n",
    )
    assert found[:3] == [True, [2, 3], [True, True]]
    assert found[3] > 200


def after_fork(driver: FakeDriver, parent: str, child: str) -> int:
    """Return the exit code of a process that is forked after some lines of its parent, and runs its own lines."""
    lines = "".join(f"    {line}\n" for line in child.splitlines())
    code = program(
        driver,
        f"import gpu_exporter, json, os, signal, sys, threading, time\n{parent}\n"
        f"child = os.fork()\nif not child:\n{lines}"
        "print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))\n",
    )
    assert isinstance(code, int)
    return code


def test_in_a_forked_child(driver: FakeDriver) -> None:
    """The child of a fork has no threads of its parent, so it starts its own loop."""
    child = """
before = gpu_exporter.read()[0].at
signal.alarm(60)
while gpu_exporter.read()[0].at <= before: time.sleep(0.05)
os._exit(0)
"""
    assert after_fork(driver, "gpu_exporter.read()", child) == 0


def test_a_fork_during_the_first_read(driver: FakeDriver) -> None:
    """The lock that another thread of the parent holds does not block the child, for example a data loader's."""
    parent = """
from gpu_exporter.app import library
holder = threading.Thread(target=library.ONE_AT_A_TIME.acquire)
holder.start()
holder.join()
"""
    assert after_fork(driver, parent, "signal.alarm(60)\nos._exit(0 if gpu_exporter.read()[0].up else 1)") == 0


def test_the_end_of_a_forked_child(driver: FakeDriver) -> None:
    """A child that exits as programs do leaves the loop of its parent alone."""
    parent = "from gpu_exporter.pipeline.collector import Collector\ngpu_exporter.read()"
    assert after_fork(driver, parent, "Collector.stop = lambda collector: os._exit(7)\nsys.exit(0)") == 0


def test_a_lost_gpu_is_down_and_no_gpu_is_an_error(driver: FakeDriver, tmp_path: Path) -> None:
    driver.lose(0)
    found = program(
        driver,
        "import gpu_exporter, json\n"
        "(gpu,) = gpu_exporter.read()\n"
        "print(json.dumps([gpu.up, gpu.reason, gpu.as_dict()]))\n",
    )
    assert found == [False, "lost", {}]
    driver.unload()
    found = program(
        driver,
        "import gpu_exporter, json\n"
        "try: gpu_exporter.read()\n"
        "except gpu_exporter.GpuExporterError as error: print(json.dumps(str(error)))\n",
    )
    assert "kernel driver is not loaded" in found
    assert "\n" not in found


def test_wedged_gpu(driver: FakeDriver) -> None:
    """Neither a read nor the end of the program waits for a call that does not return."""
    driver.block(0)
    found = program(
        driver,
        "import gpu_exporter, json\n(gpu,) = gpu_exporter.read()\nprint(json.dumps(gpu.up))",
    )
    assert found is False


def test_gpus_as_cuda_counts_them(tmp_path: Path) -> None:
    """With CUDA_VISIBLE_DEVICES, a local rank is an index into it; without `gpus`, all that it names are read."""
    driver = FakeDriver(tmp_path / "driver", gpus=4)
    code = "import gpu_exporter, json\nprint(json.dumps([gpu.index for gpu in gpu_exporter.read({})]))\n"
    for visible, arguments, indices in (
        ("3,1", "gpus=[0]", [3]),
        ("3,1", "gpus=[1]", [1]),
        ("3,1", "", [3, 1]),
        ("3,1", "gpus=[1, 1, 0]", [1, 1, 3]),
        ("GPU-00000000-0000-0000-0000-000000000002", "gpus=[0]", [2]),
        ("GPU-00000000-0000-0000-0000-000000000002 ", "", [2]),
        (f"{UUID[3]},{UUID[0]}", "", [3, 0]),
        (f"{UUID[3]},GPU-dead,{UUID[0]}", "", [3]),
        (f"{UUID[3]},0", "", [3]),
        (f"0,{UUID[3]}", "", [0]),
        ("2,-1,0", "", [2]),
        ("1gpu, 2", "", [1, 2]),
    ):
        assert program(driver, code.format(arguments), CUDA_VISIBLE_DEVICES=visible) == indices


@pytest.mark.parametrize(
    ("visible", "arguments", "expected"),
    [
        (str(MIG[0]["UUID"]), "gpus=[0]", [[2, "9"]]),
        (str(MIG[1]["UUID"])[:27], "", [[2, "5"]]),
        (f"MIG-{UUID[2]}/9/0", "gpus=[0]", [[2, "9"]]),
        (f"{MIG[1]['UUID']},{MIG[0]['UUID']}", "gpus=[1]", [[2, "9"]]),
        (f"{MIG[1]['UUID']},{MIG[0]['UUID']}", "", [[2, "5"], [2, "9"]]),
        (f"{MIG[1]['UUID']},{UUID[0]}", "", [[2, "5"]]),
        (UUID[2], "gpus=[0]", [[2, ""]]),
    ],
)
def test_mig_instances(tmp_path: Path, visible: str, arguments: str, expected: list[list[object]]) -> None:
    """The GPU of the instance, with the samples of this instance and no other, or of all for the whole GPU."""
    driver = FakeDriver(tmp_path / "driver", gpus=3)
    driver.partition(2, {0: MIG[0], 3: MIG[1]})
    found = program(
        driver,
        "import gpu_exporter, json\n"
        f"gpus = gpu_exporter.read({arguments})\n"
        "ids = [{dict(each.series.labels).get('GPU_I_ID', '') for each in gpu.samples} for gpu in gpus]\n"
        "print(json.dumps([[gpu.index, gpu.instance, sorted(own)] for gpu, own in zip(gpus, ids)]))\n",
        CUDA_VISIBLE_DEVICES=visible,
    )
    assert [each[:2] for each in found] == expected
    assert [each[2] for each in found] == [["", instance] if instance else ["", "5", "9"] for _, instance in expected]


def test_diagnose_a_mig_instance(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path / "driver", gpus=3)
    driver.partition(2, {0: MIG[0], 3: MIG[1]})
    found = program(
        driver,
        "import gpu_exporter, json\n"
        "found = gpu_exporter.diagnose(seconds=2)\n"
        "print(json.dumps([[gpu.gpu, gpu.details.get('GPU_I_ID')] for gpu in found.gpus]))\n",
        CUDA_VISIBLE_DEVICES=str(MIG[0]["UUID"]),
    )
    assert found == [["2", "9"]]


def test_a_uuid_beside_a_lost_gpu(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path / "driver", gpus=3)
    driver.lose(0)
    code = "import gpu_exporter, json\nprint(json.dumps([[gpu.index, gpu.up] for gpu in gpu_exporter.read()]))\n"
    assert program(driver, code, CUDA_VISIBLE_DEVICES=UUID[2]) == [[2, True]]
    failed = (
        "import gpu_exporter, json\ntry: gpu_exporter.read()\n"
        "except gpu_exporter.GpuExporterError as error: print(json.dumps(str(error)))\n"
    )
    assert f"choose from 0 (lost), 1 ({UUID[1]})" in program(driver, failed, CUDA_VISIBLE_DEVICES=UUID[0])


@pytest.mark.parametrize(
    ("arguments", "visible", "message"),
    [
        (
            "gpus=[0]",
            "MIG-dead",
            "CUDA_VISIBLE_DEVICES: MIG-dead is not the UUID, or the beginning of the UUID, of",
        ),
        ("gpus=[0]", "GPU-dead", "of one GPU or MIG device: choose from 0 (GPU-00000000-0000-0000-0000-000000000000)"),
        ("", f"MIG-{UUID[0]}/9/0", "is not the UUID"),
        ("gpus=[1]", f"{UUID[0]},GPU-dead", "CUDA_VISIBLE_DEVICES names 1; GPU-dead is not the UUID"),
        ("", "0,0", "CUDA_VISIBLE_DEVICES names a GPU twice: CUDA shows none then; name each once"),
        ("", f"{UUID[0]},{UUID[0][:8]}", "names GPU-00000000-0000-0000-0000-000000000000 twice"),
        ("gpus=[0]", " ", "CUDA_VISIBLE_DEVICES hides all GPUs: change or unset it"),
        ("gpus=[0]", f" {UUID[0]}", "CUDA_VISIBLE_DEVICES hides all GPUs: change or unset it"),
        ("gpus=[0]", "-1", "CUDA_VISIBLE_DEVICES hides all GPUs: change or unset it"),
        ("gpus=[0]", "NoDevFiles", "CUDA_VISIBLE_DEVICES hides all GPUs: change or unset it"),
        ("gpus=['0']", None, "gpus: '0' is not the index of a GPU: use whole numbers such as [0, 1]"),
        ("gpus=[-1]", None, "gpus: -1 is not the index of a GPU: use whole numbers such as [0, 1]"),
        ("gpus=[99]", None, "there is no GPU 99"),
        ("gpus=[1]", "0", "gpus: there is no GPU 1: CUDA_VISIBLE_DEVICES names 1"),
        ("", "", "CUDA_VISIBLE_DEVICES hides all GPUs: change or unset it"),
        ("metrics='foo'", None, "metrics: 'foo' is not a set of metrics: use default or full"),
    ],
)
def test_wrong_arguments_are_one_line(driver: FakeDriver, arguments: str, visible: str | None, message: str) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    code = (
        f"import gpu_exporter, json\ntry: gpu_exporter.read({arguments})\n"
        "except gpu_exporter.GpuExporterError as error: print(json.dumps(str(error)))\n"
    )
    found = program(driver, code, **environment)
    assert message in found
    assert "\n" not in found


def test_readings_are_short_in_a_prompt(driver: FakeDriver) -> None:
    shown = program(driver, "import gpu_exporter, json\nprint(json.dumps(repr(gpu_exporter.read())))\n")
    assert re.fullmatch(r"\(<GPU 0, NVIDIA H200, [0-9]+ samples>,\)", shown)


def test_readable_names(driver: FakeDriver) -> None:
    found = program(
        driver,
        "import gpu_exporter, json\n"
        "(gpu,) = gpu_exporter.read()\n"
        "print(json.dumps([gpu.as_dict(), gpu.as_dict(readable=True)]))\n",
    )
    assert found[1]["sm_active"] == found[0]["DCGM_FI_PROF_SM_ACTIVE"]
    assert found[1]["power_watts"] == found[0]["DCGM_FI_DEV_POWER_USAGE"]
    assert found[1]["memory_used_bytes"] == found[0]["DCGM_FI_DEV_FB_USED"] * 2**20
    assert found[1]["utilization"] == pytest.approx(found[0]["DCGM_FI_DEV_GPU_UTIL"] / 100)
    assert len(found[0]) == len(found[1])


def test_a_recording_is_read_without_a_driver(driver: FakeDriver) -> None:
    driver.unload()
    found = program(
        driver,
        "import gpu_exporter, json\n"
        "gpus = gpu_exporter.read(source='replay', recording='h200_x2_ddp', gpus=[1, 0])\n"
        "print(json.dumps([[gpu.index for gpu in gpus], [gpu.gpu.model for gpu in gpus], gpus[0].as_dict()]))\n",
        CUDA_VISIBLE_DEVICES="",  # is of this machine's GPUs
    )
    assert found[0] == [1, 0]
    assert found[1] == ["NVIDIA H200"] * 2
    assert "DCGM_FI_PROF_SM_ACTIVE" in found[2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("read(source='dcgm')", "source: 'dcgm' is not a source: use local or replay"),
        ("read(recording='h200_x2_ddp')", 'recording: needs source="replay"'),
        ("read(source='replay')", 'source: "replay" needs a recording: a file, or a packaged one'),
        ("read(source='replay', recording='h200_nod')", "recording h200_nod: no such file"),
        ("read(source='replay', recording='h200_workloads', gpus=[7])", "gpus: there is no GPU 7"),
        ("diagnose(phase='x')", "phase: selects a phase of a recording: name it with recording="),
        ("diagnose(seconds=0)", "seconds: 0 is not between 0 and 3600"),
        ("diagnose(recording='h200_x2_ddp', gpus=[0])", "gpus: a recording is diagnosed as a whole: leave out gpus"),
    ],
)
def test_wrong_sources_are_one_line(driver: FakeDriver, call: str, message: str) -> None:
    code = (
        f"import gpu_exporter, json\ntry: gpu_exporter.{call}\n"
        "except gpu_exporter.GpuExporterError as error: print(json.dumps(str(error)))\n"
    )
    found = program(driver, code)
    assert message in found
    assert "\n" not in found


def test_diagnose_a_recording_as_the_command_does(driver: FakeDriver) -> None:
    found = program(
        driver,
        "import gpu_exporter, json\n"
        "found = gpu_exporter.diagnose(recording='h200_workloads')\n"
        "print(json.dumps([found.gpus[0].details, found.gpus[0].bottleneck, found.gpus[0].findings, str(found)]))\n",
    )
    command = [sys.executable, "-m", "gpu_exporter", "diagnose", "--recording", "h200_workloads", "--json"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    (gpu,) = json.loads(printed.stdout)["gpus"]
    assert found[0] == gpu
    assert found[1] == gpu["class"]
    assert found[2] == [mode["name"] for mode in gpu["modes"]]
    assert f"GPU 0 (NVIDIA H200, h200_workloads)  {gpu['class']}" in found[3]


def test_diagnose_this_machine(driver: FakeDriver) -> None:
    found = program(
        driver,
        "import gpu_exporter, json\n"
        "found = gpu_exporter.diagnose(seconds=2)\n"
        "print(json.dumps([[gpu.gpu for gpu in found.gpus], found.gpus[0].bottleneck, found.absent]))\n",
    )
    assert found[0] == ["0"]
    assert found[1]
    assert found[2] == []
