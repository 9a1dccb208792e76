"""`check` on the fake driver: which GPUs are fit for a job."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gpu_exporter.catalogue.faults import pcie_capacity
from gpu_exporter.health.links import FILE
from tests.conftest import run
from tests.support.fakes.driver import AMPERE, FakeDriver, Value
from tests.support.fakes.fabric import FakeFabric


def test_healthy(tmp_path: Path) -> None:
    """One line and exit code 0, also if profiling would take long."""
    driver = FakeDriver(tmp_path, gpus=8)
    driver.delay("GpmSampleGet", 600)
    ended = run("check", env=driver.environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "GPUs: 8 healthy\n", "")


def old_errors(driver: FakeDriver) -> None:
    """A board with errors that were repaired."""
    driver.set("TotalEccErrors.1.1", 7)
    driver.set("RemappedRows.1", 2)


def without_ecc(driver: FakeDriver) -> None:
    """A board without ECC, row remapping and recovery action."""
    driver.unset("EccMode.current")
    driver.unset("FieldValues.230")
    for row in range(4):
        driver.unset(f"RemappedRows.{row}")
    for error in (0, 1):
        driver.unset(f"TotalEccErrors.{error}.0")


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        (lambda driver: driver.set("TotalEccErrors.1.0", 3), 3, "GPU 0: unhealthy: 3 uncorrectable ECC errors"),
        (lambda driver: driver.set("RemappedRows.2", 1), 3, "at the next reset -> gpu_reset"),
        (lambda driver: driver.set("RemappedRows.3", 1), 3, "could not be replaced -> replace"),
        (lambda driver: driver.set("SramEccErrorStatus.bThresholdExceeded", 1), 3, "NVIDIA accepts -> replace"),
        (lambda driver: driver.fail("ValidateInforom", 14), 3, "GPU 0: degraded: its InfoROM is corrupt"),
        (lambda driver: driver.set("CurrentClocksEventReasons", 0x80), 3, "check the power supply\n"),
        (
            lambda driver: driver.set("FieldValues.230", "u:2"),
            3,
            "requests a reboot (recovery action 2) -> node_reboot",
        ),
        (lambda driver: driver.lose(0), 3, "fell off the bus -> node_reboot"),
        (lambda driver: driver.require_reset(0), 3, "until it is reset -> gpu_reset"),
        (old_errors, 0, "GPUs: 1 healthy"),
        (
            without_ecc,
            0,
            "GPU 0: no value for uncorrectable ECC errors, row remapping or page retirement, recovery action: not "
            "supported",
        ),
        (lambda driver: driver.fail("TotalEccErrors.1.0", 4), 1, "ECC_DBE_VOL_TOTAL): no permission"),
        (lambda driver: driver.fail("RemappedRows", 999), 1, "ROW_REMAP_FAILURE): unknown"),
    ],
    ids=[
        *("ECC error", "pending remap", "remap failure", "SRAM", "InfoROM", "power brake"),
        *("recovery action", "lost", "reset required"),
        *("old errors", "no ECC", "no permission", "unknown error"),
    ],
)
def test_one_gpu(driver: FakeDriver, fault: Callable[[FakeDriver], None], code: int, said: str) -> None:
    """Faults, values that are no faults, and unknown values."""
    fault(driver)
    ended = run("check", env=driver.environment)
    assert (ended.returncode, ended.stderr) == (code, "")
    assert said in ended.stdout


def test_older_gpus(tmp_path: Path) -> None:
    """What Ampere or its driver lacks is reported, and is no fault."""
    ended = run("check", env=FakeDriver(tmp_path, gpus=2, profile=AMPERE).environment)
    assert ended.returncode == 0
    assert ended.stdout == "every GPU: no value for recovery action: not supported\nGPUs: 2 healthy\n"


def narrow_slot(driver: FakeDriver) -> None:
    """A busy T4 of a cloud instance: 8 of 16 lanes, and nothing says that it ever had more."""
    driver.set("CurrPcieLinkWidth", 8)
    driver.set("UtilizationRates.gpu", 95)
    driver.set("CurrentClocksEventReasons", 0)


def one_link_less(driver: FakeDriver) -> None:
    """An HGX A100 with 11 of 12 NVLinks."""
    for link in range(12):
        driver.set(f"FieldValues.165.{link}", f"u:{int(link != 7)}")


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        (narrow_slot, 0, "GPUs: 1 healthy"),
        (one_link_less, 3, "GPU 0: degraded: 1 of its NVLinks is down -> gpu_reset"),
    ],
)
def test_links_of_older_gpus(tmp_path: Path, fault: Callable[[FakeDriver], None], code: int, said: str) -> None:
    """A narrow slot is no fault; an NVLink of an SXM board that is down is one, also without a fabric."""
    driver = FakeDriver(tmp_path, profile=AMPERE)
    fault(driver)
    ended = run("check", env=driver.environment)
    assert (ended.returncode, ended.stderr) == (code, "")
    assert said in ended.stdout


def test_lanes_that_were_lost_before_the_check(tmp_path: Path) -> None:
    """The state directory of the exporter says what the link had."""
    driver = FakeDriver(tmp_path / "driver", profile=AMPERE)
    state = tmp_path / "state"
    reached = {"address": "00000000:06:00.0", "pcie": pcie_capacity(4, 16), "nvlinks": 0}
    state.mkdir()
    (state / FILE).write_text(json.dumps({"gpus": {"GPU-00000000-0000-0000-0000-000000000000": reached}}))
    narrow_slot(driver)
    ended = run("check", "--state-dir", str(state), env=driver.environment)
    assert ended.returncode == 3
    assert "its PCIe link runs at 50 % of the capacity" in ended.stdout


def test_a_gpu_that_answers_only_its_name(tmp_path: Path) -> None:
    """A Jetson: it is not monitored, which is no fault of the GPU."""
    jetson: Mapping[str, Value] = {"Driver": "540.4.0", "Nvml": "12.540.4.0", "Cuda": 12060, "Name": "Orin (nvgpu)"}
    ended = run("check", env=FakeDriver(tmp_path, profile=jetson).environment)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert ended.stdout == (
        "GPU 0: health unknown: no value for any metric: the driver's library does not support it\nGPUs: 1 unknown\n"
    )


def test_wedged_gpu(tmp_path: Path) -> None:
    """The other GPUs are judged, and the command ends."""
    driver = FakeDriver(tmp_path, gpus=3)
    driver.block(1)
    ended = run("check", env=driver.environment)
    assert ended.returncode == 3
    assert ended.stdout == (
        "GPU 1: unhealthy: a driver call does not return -> node_reboot\nGPUs: 2 healthy, 1 unhealthy\n"
    )


def test_a_library_that_hangs(driver: FakeDriver) -> None:
    """The command ends without a verdict."""
    driver.delay("Init", 600)
    ended = run("check", env=driver.environment)
    assert (ended.returncode, ended.stdout) == (
        1,
        "unknown: calls of the driver hang for all GPUs: a fault of the driver (`dmesg | grep -i nvrm` on the node)\n",
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--gpus", "0,1"), 0, "GPUs: 2 healthy\n"),
        (("--gpus", "2"), 3, "GPU 2: unhealthy: it fell off the bus"),
        (("--gpus", "0,9"), 3, "GPU 9: unhealthy: this node has no such GPU"),
        (("--expected-gpus", "8"), 3, "missing: 5 of the expected GPUs"),
        (("--gpus", "0", "--expected-gpus", "8"), 0, "GPUs: 1 healthy\n"),
    ],
)
def test_selected_gpus(tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    """Only the GPUs of a job, or an expected number of them; here the third one is lost."""
    driver = FakeDriver(tmp_path, gpus=3)
    driver.lose(2)
    ended = run("check", *arguments, env=driver.environment)
    assert ended.returncode == code
    assert said in ended.stdout


def test_a_gpu_that_the_driver_could_not_initialise(tmp_path: Path) -> None:
    """It is on the PCI bus, but the driver does not list it: all commands name its address."""
    driver, fabric = FakeDriver(tmp_path, gpus=2), FakeFabric(tmp_path)
    for bus in ("06", "07"):
        fabric.gpu(f"pci0000:00/0000:{bus}:00.0")
    fabric.function("pci0000:00/0000:3b:00.0", "0x10de", "0x030200", "")
    fabric.function("pci0000:00/0000:3c:00.0", "0x10de", "0x030200", "vfio-pci")
    environment = {**driver.environment, "NVIDIA_VISIBLE_DEVICES": "all"}
    address = "00000000:3B:00.0, not bound to a driver"
    results = {
        ("check",): (3, f"missing: 1 of the expected GPUs ({address}) -> node_reboot\nGPUs: 2 healthy, 1 missing"),
        ("check", "--expected-gpus", "2"): (0, "GPUs: 2 healthy\n"),
        ("once",): (0, 'gpu_device_missing{pci_bus_id="00000000:3B:00.0"} 1'),
        ("diagnose", "--for", "1s"): (1, address),
        ("doctor",): (None, f"GPUs that answer: 2 of 3; missing: {address}"),
    }
    for arguments, (code, said) in results.items():
        ended = run(*arguments, "--sysfs", str(fabric.sys), env=environment)
        assert said in ended.stdout, (arguments, ended)
        assert code in (None, ended.returncode), arguments


def test_a_container_that_lost_its_devices(tmp_path: Path) -> None:
    """Every call answers "unknown" for all GPUs: one finding about the node, and no drain."""
    driver = FakeDriver(tmp_path, gpus=3)
    for gpu in range(3):
        driver.answer_unknown(gpu)
    ended = run("check", env=driver.environment)
    assert ended.returncode == 1
    assert ended.stdout.startswith("every GPU: health unknown: no value for any metric: no GPU answers")
    assert ended.stdout.endswith("GPUs: 3 unknown\n")
    diagnosed = run("diagnose", "--for", "1s", env=driver.environment)
    assert diagnosed.returncode == 1
    assert "every GPU: no GPU answers" in diagnosed.stdout
    assert "GpuLost" not in diagnosed.stdout
    driver.restore(1)
    ended = run("check", env=driver.environment)
    assert ended.returncode == 3
    assert "GPU 0: unhealthy: it does not answer, and the driver does not say why -> drain\n" in ended.stdout


def test_json(tmp_path: Path) -> None:
    """The format that scripts rely on."""
    driver = FakeDriver(tmp_path, gpus=2)
    driver.set("RemappedRows.2", 1, gpu=1)
    ended = run("check", "--json", env=driver.environment)
    result = json.loads(ended.stdout)
    assert ended.returncode == 3
    assert (result["ok"], result["health"], result["missing"]) == (False, "degraded", 0)
    healthy, sick = result["gpus"]
    assert (healthy["health"], healthy["action"], healthy["problems"], healthy["unknown"]) == (
        "healthy",
        "none",
        [],
        [],
    )
    assert (sick["gpu"], sick["UUID"], sick["action"]) == (1, "GPU-00000000-0000-0000-0000-000000000001", "gpu_reset")
    [problem] = sick["problems"]
    assert (problem["metric"], problem["value"]) == ("DCGM_FI_DEV_ROW_REMAP_PENDING", 1)
    assert (problem["reason"], problem["health"], problem["action"]) == ("row_remap_pending", "degraded", "gpu_reset")


def test_no_driver(driver: FakeDriver) -> None:
    """It is an error, as in every command, and no verdict."""
    driver.unload()
    ended = run("check", env=driver.environment)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "modprobe nvidia" in ended.stderr


def test_a_recording_without_these_rows(tmp_path: Path) -> None:
    """Values that were not recorded do not count as healthy."""
    ended = run("check", "--source", "replay", "--recording", "h200_workloads")
    assert ended.returncode == 1
    assert "not in the recording" in ended.stdout
    assert ended.stdout.count("row remapping or page retirement") == 1


def test_bad_list(driver: FakeDriver) -> None:
    """A usage error, as in every command."""
    ended = run("check", "--gpus", "first", env=driver.environment)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert "0,1" in ended.stderr
