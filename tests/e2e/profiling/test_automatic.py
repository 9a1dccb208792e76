"""An exporter that profiles by itself: a fake driver, real processes, and the real py-spy."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from tests.conftest import Exporter, Page, Serve, run
from tests.support.alerting import Hook, alertmanager, linked_rules
from tests.support.busy_jobs import busy_job
from tests.support.fakes.driver import FakeDriver, identity
from tests.support.fakes.kubelet import FakeKubelet, Given, pod
from tests.support.gpu_loads import hangs, host_bound
from tests.support.pprof import decoded, folded_of
from tests.support.prometheus import scraping
from tests.support.tools import until

UUID = str(identity(0)["UUID"])
PASSWORD = "secret"
LOGIN = {"Authorization": f"Basic {base64.b64encode(f'mia:{PASSWORD}'.encode()).decode()}"}
OTHER = {"Authorization": f"Basic {base64.b64encode(f'prometheus:{PASSWORD}'.encode()).decode()}"}
ALERT = "GpuDataLoadingBound"
TAKEN, FAILED = "gpu_exporter_profiles_total", "gpu_exporter_profile_failures_total"


def options(folder: Path, *more: str) -> tuple[str, ...]:
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    web = folder / "web.yml"
    web.write_text(json.dumps({"basic_auth_users": {"mia": hashed, "prometheus": hashed}}))
    return (
        *("--web.config.file", str(web), "--profile-users", "mia", "--profile-dir", str(folder / "profiles")),
        *("--profile-after", "1s", "--interval", "200ms", *more),
    )


def secret(folder: Path) -> Path:
    path = folder / "password"
    path.write_text(PASSWORD)
    return path


def page_with(exporter: Exporter, name: str, **labels: str) -> Page:
    """Scrape until a series has a value above 0."""
    pages: list[Page] = []

    def has_it() -> bool:
        pages.append(Page(exporter.get("/metrics", OTHER)[1].decode()))
        return any(pages[-1].values(name, **labels))

    until(has_it, 30, name)
    return pages[-1]


def profiles(exporter: Exporter) -> list[dict[str, Any]]:
    answer, body = exporter.get("/api/v1/profiles", LOGIN)
    assert answer.status == 200, body
    found: list[dict[str, Any]] = json.loads(body)["profiles"]
    return found


def awaited(exporter: Exporter) -> dict[str, Any]:
    """Wait for the first profile. The clients that ask for the GPUs make the diagnosis frequent."""

    def first() -> dict[str, Any] | None:
        exporter.get("/api/v1/gpus", LOGIN)
        return next(iter(profiles(exporter)), None)

    return until(first, 60, "a profile") or {}


def test_a_slow_loader_is_named(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    """From the class of the GPU to the line of code: in the API, the metrics, pprof and the diagnosis."""
    with busy_job("loader", tmp_path) as (job, line):
        host_bound(driver, job.pid)
        exporter = serve(*options(tmp_path, "--profile", "host-bound", "--profile-lines"), env=driver.environment)
        found = awaited(exporter)
        assert (found["reason"], found["finding"], found["uuids"]) == ("host-bound", "data-loading-bound", [UUID])
        (process,) = found["processes"]
        assert (process["pid"], process["uid"]) == (job.pid, os.getuid())
        cause = process["causes"][0]
        assert (cause["cause"], cause["lines"][0]["frame"]) == ("data_loading", f"{line}: load_batch")
        page = page_with(exporter, "gpu_idle_cause_ratio")
        assert page.value("gpu_idle_cause_ratio", cause="data_loading", UUID=UUID) > 0.8
        assert page.value("gpu_profile_timestamp_seconds", UUID=UUID) == found["at"]
        named = re.sub(r"\((.+)\)", r":\1 load_batch", Path(line).name)
        assert page.value("gpu_waiting_line_ratio", cause="data_loading", line=named, UUID=UUID) > 0.8
        assert page.value(TAKEN, reason="host-bound") == 1
        assert not page.values("gpu_process_memory_used_bytes")
        pprof = decoded(exporter.get("/debug/pprof/wall?seconds=600", LOGIN)[1])
        (stack,) = {stack for stack in folded_of(pprof)["wall"] if "load_batch" in stack}
        assert stack.endswith(f"{line}: load_batch")
        one = json.loads(exporter.get(f"/api/v1/profiles?id={found['id']}", LOGIN)[1])
        assert any("load_batch" in stack for stack in one["stacks"][0]["stacks"])
        for who, seen in ((LOGIN, True), (OTHER, False)):
            assert (f"{line}: load_batch" in exporter.get("/api/v1/incidents", who)[1].decode()) == seen
        login = ("--user", "mia", "--password-file", str(secret(tmp_path)))
        ran = run("diagnose", "--for", "1s", "--url", f"http://127.0.0.1:{exporter.port}", *login)
        assert re.search(rf"Profile of GPU 0 at \d\d:\d\d UTC \(0 min ago\): process {job.pid} ", ran.stdout), ran
        assert f" % of the time waiting for the data loader at {line}: load_batch" in ran.stdout
        assert f"profile method=stacks seconds=5 pids={job.pid}" in exporter.log.read_text()
    folder = tmp_path / "profiles"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]
    exporter.stop()
    again = serve(*options(tmp_path, "--profile", "host-bound"), env=driver.environment)
    assert until(lambda: profiles(again), 30, "the profile of before the restart") == [found]


def test_from_the_alert_to_the_line(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    """Prometheus fires, Alertmanager has the link to the page, and the page has the line."""
    with busy_job("loader", tmp_path) as (job, line), ExitStack() as stack:
        host_bound(driver, job.pid)
        exporter = serve(*options(tmp_path, "--profile", "host-bound"), env=driver.environment)
        hook = stack.enter_context(Hook())
        alerts = stack.enter_context(alertmanager(tmp_path, hook))
        login = {"basic_auth": {"username": "prometheus", "password": PASSWORD}}
        target = {"honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}], **login}
        rules = [linked_rules(tmp_path, f"http://127.0.0.1:{exporter.port}/?node={{node}}")]
        stack.enter_context(scraping(tmp_path, "1s", target, rule_files=rules, alertmanagers=[alerts.address]))
        found = until(
            lambda: [alert for alert in alerts.ask("GET", "alerts") if alert["labels"]["alertname"] == ALERT],
            60,
            "the alert in Alertmanager",
        )
        (url,) = {alert["annotations"]["page_url"] for alert in found}
        address, _, gpu = url.partition("#")
        assert gpu == UUID
        assert address.startswith(f"http://127.0.0.1:{exporter.port}/?node=")
        assert address[-1] != "="
        assert exporter.get(address.removeprefix(f"http://127.0.0.1:{exporter.port}"), LOGIN)[0].status == 200
        profile = awaited(exporter)
        assert profile["processes"][0]["causes"][0]["lines"][0]["frame"] == f"{line}: load_batch"


def test_who_may_see_profiles(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    exporter = serve(*options(tmp_path, "--profile", "schedule"), env=driver.environment)
    for path in ("/api/v1/profiles", "/debug/pprof/wall"):
        assert exporter.get(path)[0].status == 401
        refused, body = exporter.get(path, OTHER)
        assert (refused.status, b"--profile-users" in body) == (403, True)
        assert exporter.get(path, LOGIN)[0].status == 200
    assert exporter.get("/api/v1/profiles?id=../../etc/passwd", LOGIN)[0].status == 404
    assert exporter.get("/debug/pprof/wall?seconds=-1", LOGIN)[0].status == 400
    assert not decoded(exporter.get("/debug/pprof/wall", LOGIN)[1]).sample


def test_profiles_are_off_by_default(serve: Serve, driver: FakeDriver) -> None:
    exporter = serve(env=driver.environment)
    assert exporter.get("/api/v1/profiles")[0].status == 404
    assert not exporter.page().values(TAKEN, reason="stall")


def test_no_python_and_the_schedule(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    """A program that is no Python is one line in the log, and is left alone."""
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            host_bound(driver, other.pid)
            exporter = serve(*options(tmp_path, "--profile", "schedule"), env=driver.environment)
            page = page_with(exporter, FAILED, reason="not_python")
        finally:
            other.kill()
    assert page.value(TAKEN, reason="schedule") == 0
    lines = [line for line in exporter.log.read_text().splitlines() if "does not run Python" in line]
    assert len(lines) == 1


def slurm(folder: Path) -> tuple[str, ...]:
    """Give four GPUs to one job, as a prolog does, and return the options that read this."""
    for gpu in range(4):
        (folder / str(gpu)).write_text("4711\n")
    return ("--hpc-job-mapping-dir", str(folder))


@pytest.mark.parametrize(("scheduler", "waiting"), [("kubernetes", "busy"), ("slurm", "waits")])
def test_a_hang_of_four_ranks(serve: Serve, kubelet: FakeKubelet, tmp_path: Path, scheduler: str, waiting: str) -> None:
    """The stacks of all ranks are taken at once, and the missing rank is named with its line.

    Ranks poll while they wait for one another, or sleep, as they do with blocking synchronization.
    """
    driver = FakeDriver(tmp_path / "driver", gpus=4)
    uuids = [str(identity(gpu)["UUID"]) for gpu in range(4)]
    kubelet.pods = [pod("trainer", Given("nvidia.com/gpu", uuids), namespace="ml")]
    (jobs := tmp_path / "jobs").mkdir()
    with ExitStack() as stack:
        ranks = [stack.enter_context(busy_job("loader" if gpu == 2 else waiting, tmp_path)) for gpu in range(4)]
        hangs(driver, 2, [job.pid for job, _ in ranks])
        of_pods = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket))
        owners = of_pods if scheduler == "kubernetes" else slurm(jobs)
        settings = options(tmp_path, "--profile", "stall", *owners)
        exporter = serve(*settings, env=driver.environment)
        found = awaited(exporter)
    assert (found["reason"], found["finding"], found["gpus"]) == ("stall", "GpuCollectiveStall", [0, 1, 2, 3])
    assert len(found["processes"]) == 4
    (odd,) = found["odd"]
    (first, line), (missing, elsewhere) = ranks[0], ranks[2]
    assert (odd["pid"], odd["line"], odd["others"]) == (missing.pid, f"{elsewhere}: load_batch", 3)
    assert odd["others_line"] == f"{line}: train_step"
    assert f"process {missing.pid} is at {elsewhere}: load_batch, while 3 others are at" in exporter.log.read_text()
    assert first.pid in [process["pid"] for process in found["processes"]]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--profile", "always"), "is not one of stall, straggler, host-bound, schedule"),
        (("--profile", "stall", "--source", "simulated"), "--profile: only processes on the GPUs of this machine"),
        (("--profile", "stall", "--live-page", "false"), "--profile needs the diagnosis of the live page"),
        (("--profile", "stall", "--profile-dir", "/proc/self/x"), "--profile-dir /proc/self/x: "),
        (("--profile", "stall", "--profile-users", "eve"), "--profile-users: eve is no user of --web.config.file"),
    ],
)
def test_errors_are_one_line(driver: FakeDriver, tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    folder = () if "--profile-dir" in arguments else ("--profile-dir", str(tmp_path / "profiles"))
    ran = run("serve", "--address", "127.0.0.1:0", *arguments, *folder, env=driver.environment)
    assert ran.returncode in (1, 2)
    assert why in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
