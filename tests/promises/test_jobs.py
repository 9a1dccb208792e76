"""What a training loop or its profiler recorded: step times on /metrics, and where the time of a trace went."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_exporter.training import StepTimer
from tests import ROOT
from tests.conftest import Serve, run
from tests.support.fakes.driver import FakeDriver, identity

UUID = str(identity(0)["UUID"])


def test_the_step_timer_has_series(serve: Serve, driver: FakeDriver) -> None:
    """Everything that the timer of a training loop sends arrives under its name."""
    with TemporaryDirectory() as directory:  # a path that is short enough for a socket
        path = Path(directory, "jobs.sock")
        exporter = serve("--job-socket", str(path), "--interval", "200ms", env=driver.environment)
        timer = StepTimer("llm-7b", rank=3, world_size=8, uuid=UUID, socket=str(path), dtype="bf16", gpu=False)
        labels = {"job_id": "llm-7b", "rank": "3", "gpu": "0", "UUID": UUID}
        with timer.evaluation():
            pass
        for _ in timer.data(range(20)):
            with timer.step(tokens=4096, samples=2, flops=1e12):
                with timer.phase("forward"):
                    sum(range(1000))
                with timer.waiting():
                    pass
        timer.close()

        page = exporter.until(lambda page: page.values("gpu_job_steps_total", **labels) == [20])
    assert page.value("gpu_job_tokens_total", **labels) == 20 * 4096
    assert page.value("gpu_job_samples_total", **labels) == 40
    assert page.value("gpu_job_model_flops_total", **labels) == 2e13
    assert page.value("gpu_job_rank_info", world_size="8", dtype="bf16", **labels) == 1
    steps = page.value("gpu_job_step_seconds_sum", **labels)
    own = page.value("gpu_job_self_seconds_sum", **labels)
    forward = page.value("gpu_job_phase_seconds_total", phase="forward", **labels)
    waiting = page.value("gpu_job_phase_seconds_total", phase="waiting", **labels)
    assert 0 < forward < steps
    assert abs(own + waiting - steps) < 2e-6  # each of the three is rounded to a microsecond


def test_a_trace_names_the_line_that_the_gpu_waits_for(tmp_path: Path) -> None:
    """One step of GPT on an H200, whose loader sleeps."""
    trace = ROOT / "tests/data/pytorch_trace_slow_loader.json.gz"
    ran = run("trace", "analyze", str(trace), "--folded", str(tmp_path / "idle.txt"))

    assert ran.returncode == 0, ran
    assert ran.stdout.startswith("Verdict: data-loading-bound\n")
    assert "<stdin>(12): go > <built-in function sleep>" in ran.stdout
    assert not ran.stderr
    first, *_ = (tmp_path / "idle.txt").read_text().splitlines()
    assert first.startswith("rank 0;data_loading;<stdin>(15): <module>;<stdin>(12): go;")
    assert int(first.rpartition(" ")[2]) > 10_000
