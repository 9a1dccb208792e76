"""The timer of a training loop and the exporter understand each other."""

from __future__ import annotations

from pathlib import Path

from gpu_exporter.training import StepTimer
from tests.conftest import Serve
from tests.e2e.jobs.test_job_socket import UUID, path, start
from tests.support.fakes.driver import FakeDriver

__all__ = ["path"]  # a fixture


def test_a_loop_with_a_timer_has_series(serve: Serve, driver: FakeDriver, path: Path) -> None:
    """Everything that the timer sends arrives under its name."""
    exporter = start(serve, driver, path)
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
    assert page.value("gpu_job_rank_info", verified="false", world_size="8", dtype="bf16", **labels) == 1
    steps = page.value("gpu_job_step_seconds_sum", **labels)
    own = page.value("gpu_job_self_seconds_sum", **labels)
    forward = page.value("gpu_job_phase_seconds_total", phase="forward", **labels)
    waiting = page.value("gpu_job_phase_seconds_total", phase="waiting", **labels)
    assert 0 < forward < steps
    assert abs(own + waiting - steps) < 2e-6  # each of the three is rounded to a microsecond
