"""`--source auto` on a node of mixed GPUs: NVML for all, DCGM for profiling on GPUs before Hopper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.conftest import Page, Serve, run
from tests.e2e.pipeline.test_faults import Watched, states
from tests.support.fakes.driver import AMPERE, FakeDriver
from tests.support.fakes.hostengine import FakeHostengine

SM, TEMPERATURE, SM_SECONDS = "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_GPU_TEMP", "gpu_sm_active_seconds_total"
SAMPLED = "gpu_pcie_rx_sampled_bytes_per_second"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeHostengine]:
    """A fake host engine with the driver's two GPUs."""
    fake = FakeHostengine(tmp_path / "engine", gpus=2)
    fake.start()
    yield fake
    fake.kill()


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    """GPU 0 is an H200, GPU 1 an A100."""
    fake = FakeDriver(tmp_path / "driver", gpus=2)
    with fake.batch():
        for key, value in AMPERE.items():
            fake.set(key, value, gpu=1)
    return fake


def flags(engine: FakeHostengine) -> tuple[str, ...]:
    """Return the flags of the host engine, without `--source`."""
    return engine.flags[2:]


def reads(gpu: int, source: str, reason: str) -> Callable[[Page], bool]:
    """Return a condition: the page says that only this source reads the GPU."""

    def holds(page: Page) -> bool:
        said = [labels for name, labels, _ in page.samples if name == "gpu_source_info" and labels["gpu"] == str(gpu)]
        return [(labels["source"], labels["reason"]) for labels in said] == [(source, reason)]

    return holds


def test_a_mixed_node_has_all_metrics(serve: Serve, driver: FakeDriver, engine: FakeHostengine) -> None:
    """Both GPUs have profiling, with the same names. A dead host engine affects only the older one, which recovers."""
    environment = {**engine.environment, **driver.environment}
    exporter = Watched(serve("--interval", "200ms", *flags(engine), env=environment))
    page = exporter.until(lambda page: len(page.values(SM)) == 2)
    assert states(page) == {0: "up", 1: "up"}
    assert reads(0, "nvml", "gpm")(page)
    assert reads(1, "nvml+dcgm", "no_gpm")(page)
    labels = [labels for name, labels, _ in page.samples if name == SM]
    assert set(labels[0]) == set(labels[1])
    assert [each["modelName"] for each in labels] == ["NVIDIA H200", "NVIDIA A100-SXM4-80GB"]
    exporter.until(lambda page: not page.values(SAMPLED))  # DCGM has the mean, so NVML does not measure any more
    before = page.values(SM_SECONDS, gpu="1")

    engine.kill()
    page = exporter.until(lambda page: not page.values(SM, gpu="1"))
    assert states(page) == {0: "up", 1: "up"}
    assert page.values(SM, gpu="0")
    assert len(page.values(TEMPERATURE)) == 2
    exporter.until(lambda page: page.values(SAMPLED, gpu="1") == [2.5e6])
    exporter.until(reads(1, "nvml", "no_gpm_and_dcgm_no_connection"))

    engine.start()
    page = exporter.until(lambda page: page.values(SM_SECONDS, gpu="1") > before, 45)
    assert reads(1, "nvml+dcgm", "no_gpm")(page)


def test_nvidias_list_of_fields_does_not_hide_profiling(
    serve: Serve, driver: FakeDriver, engine: FakeHostengine
) -> None:
    """DCGM leaves some of its fields blank on this GPU, such as a vGPU's license. The GPU is not lost."""
    fields = ROOT / "deploy" / "dcgm-exporter" / "default-counters.csv"
    environment = {**engine.environment, **driver.environment}
    exporter = serve("--interval", "200ms", "--collectors", str(fields), *flags(engine), env=environment)
    page = exporter.until(lambda page: len(page.values("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")) == 2)

    assert reads(1, "nvml+dcgm", "no_gpm")(page)


def test_doctor_names_the_source_of_each_gpu(driver: FakeDriver, engine: FakeHostengine) -> None:
    """Without DCGM, it says what is missing."""
    environment = {**engine.environment, **driver.environment}
    both = run("doctor", *flags(engine), env=environment).stdout
    assert "GPU 0: read through NVML, which has its profiling counters (GPM)" in both
    assert "GPU 1: read through NVML, and its profiling counters through DCGM: it has no GPM" in both
    assert "GPU 1: NVIDIA A100-SXM4-80GB, profiling metrics through DCGM" in both
    alone = run("doctor", env=driver.environment).stdout
    assert "GPU 1: read through NVML only: it has no GPM, and DCGM is not installed" in alone
    engine.kill()
    dead = run("doctor", *flags(engine), env=environment).stdout
    assert "GPU 1: read through NVML only: it has no GPM, and DCGM is not available (no " in dead


def test_without_a_driver_here_a_named_host_engine_is_read(serve: Serve, engine: FakeHostengine) -> None:
    """As in a container without GPUs."""
    exporter = serve("--interval", "200ms", *flags(engine), env=engine.environment)
    page = exporter.until(lambda page: len(page.values(SM)) == 2)
    assert page.values("gpu_exporter_source_up", source="dcgm") == [1]


def test_sources_are_compared(driver: FakeDriver, engine: FakeHostengine) -> None:
    """NVML and DCGM side by side, with the metrics that only one of them has."""
    environment = {**engine.environment, **driver.environment}
    ended = run("compare", "--a", "nvml", "--b", "dcgm", "--seconds", "3", *flags(engine), env=environment)
    assert ended.returncode in (0, 3), ended.stderr  # two fakes of one machine need not agree
    assert TEMPERATURE in ended.stdout


def test_no_gpu_here_and_a_host_engine_that_is_named(driver: FakeDriver, engine: FakeHostengine) -> None:
    """Its GPUs may belong to another machine, so they are not read by default; the error says how to read them."""
    driver.count(0)
    ended = run("once", *flags(engine), env={**engine.environment, **driver.environment})
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "lists no GPU: use --source dcgm to read those of the host engine at 127.0.0.1:" in ended.stderr


def test_broken_bindings_disable_only_dcgm(
    tmp_path: Path, serve: Serve, driver: FakeDriver, engine: FakeHostengine
) -> None:
    """NVML's values continue; one log line, and the reason on the GPU that needs DCGM."""
    broken = tmp_path / "bindings"
    broken.mkdir()
    (broken / "dcgm_agent.py").write_text("1 / 0\n")
    given = ("--dcgm-hostengine", engine.address, "--dcgm-bindings", str(broken))
    exporter = Watched(serve("--interval", "200ms", *given, env={**engine.environment, **driver.environment}))
    page = exporter.until(reads(1, "nvml", "no_gpm_and_dcgm_no_bindings"))
    assert states(page) == {0: "up", 1: "up"}
    log = exporter.log.read_text()
    assert log.count("source dcgm is down") == 1
    assert "Traceback" not in log
