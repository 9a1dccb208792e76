"""A job that stops stepping raises an alert before NCCL gives up, through a real Prometheus and Alertmanager."""

from __future__ import annotations

import time
from pathlib import Path

from gpu_exporter.alerting.boards import panel_link
from gpu_exporter.catalogue.failure_modes import loops
from gpu_exporter.catalogue.job_signals import STALL_SECONDS
from tests.conftest import Serve
from tests.support import alerting
from tests.support.alerting import Hook, alertmanager
from tests.support.loop_jobs import LoopJob, sending, uuids
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import until

# All times of the rules and of the promise, a minute and three steps, are halved.
HALF, MINUTE = 2, 60
STEP_SECONDS = 0.5
NAME = "GpuJobStalled"


def halved(folder: Path) -> list[Path]:
    """Write the committed rules with half of the time without a step that counts as a stall; return their files."""
    files = alerting.rules(folder, "0s")
    whole, half = (f"({seconds} + 3 *" for seconds in (STALL_SECONDS, STALL_SECONDS // HALF))
    assert sum(path.read_text().count(whole) for path in files) > 0
    for path in files:
        path.write_text(path.read_text().replace(whole, half))
    return files


def began(prometheus: Prometheus) -> float:
    """Return when the alert first fired, in Unix seconds."""
    (found,) = prometheus.api("query", query=f'ALERTS{{alertname="{NAME}", alertstate="firing"}}[5m]')["result"]
    return float(found["values"][0][0])


def test_a_job_that_stops_raises_an_alert_in_time(serve: Serve, tmp_path: Path) -> None:
    """The ticket names the job and for how long it has not stepped; when it steps again, the alert ends."""
    socket = tmp_path / "jobs.sock"
    exporter = serve("--source", "simulated", "--gpus", "2", "--interval", "500ms", "--job-socket", str(socket))
    gpus = uuids(exporter.get()[1].decode())
    job, healthy = LoopJob("llm-7b", gpus, STEP_SECONDS), LoopJob("well", gpus, STEP_SECONDS)
    target = {"static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}]}
    with (
        Hook() as hook,
        sending(socket, [job, healthy]),
        alertmanager(tmp_path, hook) as running,
        scraping(
            tmp_path,
            "5s",
            target,
            rule_files=halved(tmp_path),
            evaluation_interval="5s",
            alertmanagers=[running.address],
        ) as prometheus,
    ):
        until(lambda: len(prometheus.query("job:stall_limit:seconds")) == 2, 60, "the limits")
        job.steps_until = time.monotonic()
        until(lambda: hook.received(NAME, "firing"), 90, "the ticket")
        (stepped,) = prometheus.query('max(gpu_job_last_step_timestamp_seconds{job_id="llm-7b"})')
        assert began(prometheus) - stepped <= MINUTE / HALF + 3 * STEP_SECONDS
        ((path, ticket),) = hook.received(NAME, "firing")
        assert path == "/ticket"
        assert ticket["labels"]["job_id"] == "llm-7b"
        assert ticket["annotations"]["summary"].startswith("Job llm-7b (train-000) has completed no step for ")
        assert ticket["annotations"]["runbook_url"] == panel_link(NAME.lower())

        job.steps_until = None
        until(lambda: hook.received(NAME, "resolved"), 60, "the end of the alert")
        others = "|".join({mode.name for mode in loops.MODES} - {NAME})
        assert prometheus.query(f'count(last_over_time(ALERTS{{alertname=~"{others}"}}[5m]))') == []
