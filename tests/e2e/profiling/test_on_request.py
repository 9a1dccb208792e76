"""`gpu-exporter profile` has the running exporter profile: a fake driver, real processes, and the real py-spy."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Exporter, Page, Serve, run
from tests.e2e.profiling.test_automatic import LOGIN, OTHER, UUID, options, profiles, secret
from tests.support.busy_jobs import busy_job
from tests.support.fakes.driver import FakeDriver
from tests.support.gpu_loads import host_bound
from tests.support.kineto_jobs import jobs, short_folder
from tests.support.tools import until


def listed(exporter: Exporter, pid: int) -> None:
    """Wait until the exporter knows the process, which it lists on its page only with --processes."""
    until(lambda: str(pid) in exporter.get("/api/v1/gpus", LOGIN)[1].decode(), 30, "the process")


def test_stacks(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    """The exporter samples within its budget, audits and stores; the command prints what it prints standalone."""
    token, report = tmp_path / "token", tmp_path / "report.html"
    with busy_job("loader", tmp_path) as (job, line):
        host_bound(driver, job.pid)
        settings = ("--profile", "stall", "--processes", "--token-file", str(token))
        exporter = serve(*options(tmp_path, *settings), env=driver.environment)
        listed(exporter, job.pid)
        here = ("--token-file", str(token), "--address", f"127.0.0.1:{exporter.port}")
        asked = ("profile", "--gpu", "0", "--seconds", "1s", *here)
        ran = run(*asked, "--report", str(report))
        assert ran.returncode == 0, ran.stderr
        assert f"Process {job.pid} " in ran.stdout
        assert f"{line}: load_batch" in ran.stdout
        assert "load_batch" in report.read_text()
        log = exporter.log.read_text()
        assert f"profile method=stacks seconds=1 pids={job.pid}" in log
        assert "reason=request:by=token" in log
        (found,) = profiles(exporter)
        assert (found["reason"], found["uuids"], found["seconds"]) == ("request", [UUID], 1.0)
        again = run(*asked)
        assert again.returncode == 1
        assert "429 Too Many Requests: GPU 0 was profiled " in again.stderr
        assert "--standalone" in again.stderr
        alone = run(*asked, "--standalone", "--pid", str(job.pid), env=driver.environment)
        assert "--pid names processes" in alone.stderr
    other = run("profile", "--pid", "1", "--url", f"http://127.0.0.1:{exporter.port}", *login(tmp_path))
    assert "409 Conflict: the driver lists no such process on a GPU of this node" in other.stderr


def login(folder: Path) -> tuple[str, ...]:
    """Return the options of a user who may see profiles."""
    return ("--user", "mia", "--password-file", str(secret(folder)))


def test_a_trace(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    """Only because a person asks: its kernels are a metric, and its stacks of GPU time are stored."""
    with short_folder() as folder, jobs("good", folder=folder) as (job,):
        host_bound(driver, job.pid)
        exporter = serve(*options(tmp_path, "--profile", "stall", "--processes"), env=driver.environment)
        listed(exporter, job.pid)
        url = ("--url", f"http://127.0.0.1:{exporter.port}")
        ran = run("profile", "--trace", "--pid", str(job.pid), *url, *login(tmp_path))
        assert ran.returncode == 0, ran.stderr
        assert "makes a job slower until it ends" in ran.stderr.splitlines()[0]
        assert ran.stdout.startswith("Verdict: data-loading-bound\n")
        assert until(lambda: kernels(exporter), 30, "the kernels")["gemm"] > 0
        assert not Page(exporter.get("/metrics", OTHER)[1].decode()).values("gpu_idle_cause_ratio")
        (found,) = profiles(exporter)
        assert found["kernels"]
        one = json.loads(exporter.get(f"/api/v1/profiles?id={found['id']}", LOGIN)[1])
        assert {stacks["kind"] for stacks in one["stacks"]} == {"gpu", "idle"}
        assert "profile method=trace" in exporter.log.read_text()


def kernels(exporter: Exporter) -> dict[str, float]:
    """Return the seconds by kernel class on the page."""
    page = Page(exporter.get("/metrics", OTHER)[1].decode())
    return {labels["class"]: value for name, labels, value in page.samples if name == "gpu_kernel_class_seconds_total"}


def test_who_may_ask(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    exporter = serve(*options(tmp_path, "--profile", "stall"), env=driver.environment)
    assert exporter.ask("POST", "/api/v1/profiles")[0] == 401
    assert exporter.ask("POST", "/api/v1/profiles", OTHER)[0] == 403
    assert exporter.ask("POST", "/api/v1/profiles", {**LOGIN, "Origin": "http://evil.example"})[0] == 403
    for query, why in (
        ("seconds=1h", "seconds: at most 5"),
        ("gpu=x", "'x' is no whole number"),
        ("a=1", "a: is none"),
    ):
        status, text = exporter.ask("POST", f"/api/v1/profiles?{query}", LOGIN)
        assert (status, why in text) == (400, True), text
