"""`gpu-exporter diagnose` on GPUs, an exporter, a Prometheus and a recording."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Serve, free_port, run
from tests.support.answering import answering
from tests.support.fakes.driver import FakeDriver, sawtooth
from tests.support.prometheus import scraping
from tests.support.tools import settled, until


def test_nothing_wrong() -> None:
    result = run("diagnose", "--recording", "h200_workloads", "--phase", "idle")
    assert result.returncode == 0
    assert "nothing wrong was found" in result.stdout
    assert "a recording of real GPUs" in result.stdout


def test_a_stall_at_each_step(driver: FakeDriver) -> None:
    """The GPU works for 1.2 s and waits for data for 0.8 s: it is busy on average, and yet data-bound."""
    with driver.batch():
        driver.set("Gpm.1", 72.0)
        driver.set("Gpm.21", 5000.0)
        driver.set("Gpm.60", 0.0)
        driver.set("Gpm.61", 0.0)

    def wrong() -> list[str]:
        # Much longer than the ticks that a busy machine loses.
        sawtooth(driver, 300.0, 600.0, 1.2, 0.8, 60)
        # Long enough that a rate does not change if a busy machine makes a page 0.1 s late.
        found = run("diagnose", "--for", "20s", "--kernel-log", "none", "--json", env=driver.environment)
        (gpu,) = json.loads(found.stdout)["gpus"]
        numbers = {mode["name"]: mode["because"] for mode in gpu["modes"]}
        stall, swing = (numbers.get(name, {}) for name in ("GpuDataLoadingBound", "GpuPowerOscillation"))
        shown = {
            "class": (gpu["class"], "data-loading-bound"),
            "activity": (stall.get("gr_active"), pytest.approx(0.72, abs=0.005)),
            # It is idle for 0.4 of the time; only whole ticks count, of which a busy machine skips some of either kind.
            "idle": (stall.get("sm_idle"), pytest.approx(0.285, abs=0.165)),
            "swing": (swing.get("power_swing"), pytest.approx(150, abs=30)),
        }
        return [f"{name}: {value}, not {right}" for name, (value, right) in shown.items() if value != right]

    # A counter stands still while a busy machine stops the thread that reads the GPU.
    settled(wrong, 60)


def test_the_gpus_of_this_machine(driver: FakeDriver) -> None:
    """The fake driver has the values of a matrix product; then its memory has an uncorrectable error."""
    healthy = run("diagnose", "--for", "8s", "--kernel-log", "none", "--json", env=driver.environment)
    driver.set("TotalEccErrors.1.0", 2)
    sick = run("diagnose", "--for", "3s", "--kernel-log", "none", env=driver.environment)

    (gpu,) = json.loads(healthy.stdout)["gpus"]
    assert gpu["class"] == "compute-bound"
    assert sick.returncode == 1
    assert "GpuEccUncorrectable (critical)" in sick.stdout


def test_duration(driver: FakeDriver) -> None:
    """It is that of `--for`, although the first profiling values come a second later."""
    result = run("diagnose", "--for", "2s", "--kernel-log", "none", env=driver.environment)

    assert result.stdout.startswith("Watched the GPUs of this machine for 2 s. Alerts need longer to fire.\n")


def test_communicating_gpus_of_an_unknown_job(driver: FakeDriver) -> None:
    """Two GPUs with busy engines, partly filled SMs and NVLink traffic: they may be ranks of one job."""
    with driver.batch():
        driver.count(2)
        driver.set("Gpm.1", 95.0)
        driver.set("Gpm.2", 40.0)
        for traffic in (60, 61):
            driver.set(f"Gpm.{traffic}", 20_000.0)
    alone = run("diagnose", "--for", "2s", "--kernel-log", "none", env=driver.environment)
    together = run("diagnose", "--for", "2s", "--one-job", "--kernel-log", "none", env=driver.environment)

    assert "run again with --one-job to find a straggler" in alone.stdout
    assert "--one-job" not in together.stdout
    assert "GpuCommunicationBound" in together.stdout


def test_an_injected_event() -> None:
    result = run(
        "diagnose", "--source", "simulated", "--gpus", "2", "--inject", "GpuXidFatal:1", "--for", "3s", "--json"
    )
    modes = {gpu["gpu"]: [mode["name"] for mode in gpu["modes"]] for gpu in json.loads(result.stdout)["gpus"]}
    assert (result.returncode, modes) == (1, {"0": [], "1": ["GpuXidFatal"]})


def test_an_exporter_and_a_prometheus(serve: Serve, tmp_path: Path) -> None:
    exporter = serve("--source", "replay", "--recording", "h200_workloads", "--speed", "0.01", "--interval", "1s")
    url = f"http://127.0.0.1:{exporter.port}"

    direct = run("diagnose", "--url", url, "--for", "3s", "--json")
    with scraping(tmp_path, "1s", {"static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}]}) as prometheus:
        until(lambda: prometheus.query("count_over_time(gpu_up[1m]) >= 4"), what="four scrapes")
        asked = run("diagnose", "--url", f"http://127.0.0.1:{prometheus.port}", "--json")
        briefly = run("diagnose", "--url", f"http://127.0.0.1:{prometheus.port}", "--for", "2s", "--json")

    assert json.loads(asked.stdout)["watched_seconds"] > 2 >= json.loads(briefly.stdout)["watched_seconds"]
    for result in (direct, asked):
        (gpu,) = json.loads(result.stdout)["gpus"]
        assert (result.returncode, gpu["class"], gpu["modes"]) == (0, "idle", [])


def _web_site(path: str) -> tuple[int, bytes]:
    status = {"/page/metrics": 200, "/broken/metrics": 500}.get(path, 404)
    return status, b"<html>\n<body>Welcome</body>\n</html>"


@pytest.mark.parametrize(
    ("path", "says"),
    [("/page", "not Prometheus text"), ("/broken", "500 Internal Server Error"), ("/none", "has no /metrics; give")],
)
def test_a_web_site_is_no_exporter(path: str, says: str) -> None:
    with answering(_web_site, "text/html") as url:
        result = run("diagnose", "--for", "1s", "--url", f"{url}{path}")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert says in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "libnvidia-ml"),
        (("--url", "http://127.0.0.1:{port}"), "nothing listens there"),
        (("--url", "nonsense"), "is not a URL"),
        (("--recording", "missing.jsonl"), "no such file"),
        (("--recording", "h200_workloads", "--phase", "nap"), "no phase nap; it has idle, "),
        (("--phase", "idle"), "name it with --recording"),
        (("--url", "http://localhost:1", "--recording", "h200_workloads"), "give one"),
        (("--url", "http://localhost:1", "--report", "/none/x"), ": /none/x: No such file or directory"),  # at once
        (("--nodes", "n1", "--recording", "h200_workloads"), ": --nodes and --recording exclude each other: give one"),
        (("--job", "train", "--source", "simulated"), "--source and --job exclude each other"),
        (("--url", "http://localhost:1", "--user", "me"), "--user and --password-file belong together: give both"),
        (("--source", "simulated", "--token-file", "t"), "--token-file is for a server: name it with --url"),
    ],
)
def test_missing_data(arguments: tuple[str, ...], says: str) -> None:
    result = run("diagnose", *(argument.replace("{port}", str(free_port())) for argument in arguments))
    assert result.returncode == 2
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


LOST = ("--source", "simulated", "--gpus", "4", "--faults", "lost node-000/2 at 0s for 1h")


def test_a_gpu_that_is_lost_from_the_start(serve: Serve) -> None:
    """The first line names it, locally and at a URL; nothing is right then."""
    exporter = serve(*LOST)
    for arguments in (LOST, ("--url", f"http://127.0.0.1:{exporter.port}")):
        result = run("diagnose", *arguments, "--for", "3s")
        assert result.returncode == 1
        assert result.stdout.startswith("GPU 2: lost: it fell off the bus\n")
        assert "GpuLost (critical)" in result.stdout
        assert "nothing wrong" not in result.stdout
        found = json.loads(run("diagnose", *arguments, "--for", "3s", "--json").stdout)
        assert found["absent"] == [{"node": "", "gpus": "GPU 2", "why": "lost: it fell off the bus"}]
        assert {gpu["gpu"]: gpu["class"] for gpu in found["gpus"]}["2"] is None


def test_a_recording_of_simulated_gpus(tmp_path: Path) -> None:
    """It says so wherever it is read, also after it was recorded once more."""
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    short = ("--interval", "200ms", "--duration", "3s", "--out")
    assert run("record", "--source", "simulated", "--gpus", "1", *short, str(first)).returncode == 0
    assert run("record", "--source", "replay", "--recording", str(first), *short, str(second)).returncode == 0
    for path in (first, second):
        assert "of a recording of simulated GPUs." in run("diagnose", "--recording", str(path)).stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--recording", "h200_workloads", "--source", "simulated"), "--source simulated and --recording exclude"),
        (("--recording", "h200_workloads", "--phase", "idle", "--for", "1s"), "--for is the time to watch"),
        (("--recording", "h200_workloads", "--faults", "x"), "--faults needs --source simulated"),
        (("--url", "http://127.0.0.1:1", "--source", "nvml"), "--source nvml and --url exclude"),
        (("--url", "http://127.0.0.1:1", "--gpus", "4"), "--gpus needs --source simulated"),
    ],
)
def test_settings_that_would_be_ignored(arguments: tuple[str, ...], line: str) -> None:
    result = run("diagnose", *arguments)
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert line in result.stderr
