"""The exporter, the jobs and the GPUs of `benchmarks.alert_to_line`."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from benchmarks.exporter import free_port

T = TypeVar("T")
ROOT = Path(__file__).parent.parent
JOB = Path(__file__).with_name("alert_to_line_job.py")
USER, TICK_SECONDS = "mia", 0.2
# How long a finding must last here, instead of five minutes.
AFTER = "5s"


@dataclass(frozen=True, slots=True)
class Exporter:
    """A running exporter. `alerts` returns the alerts that have reached Alertmanager, by name, with their links."""

    url: str
    password: str
    folder: Path
    environment: Mapping[str, str]
    alerts: Callable[[], Mapping[str, str]] | None = None

    def get(self, url: str) -> Any:
        """Return what a path or URL answers as JSON, its text if it is none; None without a good answer."""
        login = base64.b64encode(f"{USER}:{self.password}".encode()).decode()
        request = Request(url if "://" in url else f"{self.url}{url}", headers={"Authorization": f"Basic {login}"})
        try:
            with urlopen(request, timeout=5) as answer:
                text = answer.read().decode()
        except (HTTPError, URLError, TimeoutError):
            return None
        return json.loads(text) if text.startswith("{") else text

    def gpu(self, index: int) -> Mapping[str, Any]:
        """Return what the live page says about a GPU. Asking makes the diagnosis frequent, as an open page does."""
        gpus = (self.get("/api/v1/gpus") or {"gpus": []})["gpus"]
        return next((gpu for gpu in gpus if gpu["index"] == str(index)), {"class": None, "findings": []})

    def profile(self, reason: str) -> Mapping[str, Any]:
        """Return the newest profile that was taken for this reason; empty if there is none."""
        profiles = (self.get("/api/v1/profiles") or {"profiles": []})["profiles"]
        return next((profile for profile in profiles if profile["reason"] == reason), {})

    def run(self, *arguments: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command of gpu-exporter."""
        return subprocess.run(
            [sys.executable, "-m", "gpu_exporter", *arguments],
            cwd=ROOT,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def login(self) -> tuple[str, ...]:
        """Return the options with which a command asks this exporter."""
        return ("--url", self.url, "--user", USER, "--password-file", str(self.folder / "password"))

    def log(self) -> str:
        """Return the last line of the exporter's log."""
        return (self.folder / "log").read_text().strip().rpartition("\n")[2][-300:]


@dataclass(frozen=True, slots=True)
class Gpus:
    """Real GPUs. For fake ones, `host_bound` and `hang` set what the jobs would do to real ones."""

    number: int
    environment: Mapping[str, str] = field(default_factory=dict)
    host_bound: Callable[..., None] = lambda *_: None
    hang: Callable[..., None] = lambda *_: None
    python: str = sys.executable


def fake_gpus(folder: Path, number: int) -> Gpus:
    """Return GPUs of the fake driver, and the interpreter that has PyTorch."""
    from tests.support import gpu_loads, torch_python
    from tests.support.fakes.driver import FakeDriver

    driver = FakeDriver(folder / "driver", gpus=number)
    return Gpus(
        number,
        driver.environment,
        lambda pid: gpu_loads.host_bound(driver, pid),
        lambda pids: gpu_loads.hangs(driver, number - 1, pids, number),
        torch_python.interpreter(),
    )


def wait(ask: Callable[[], T], seconds: float) -> T | None:
    """Return the first true answer; None after so many seconds."""
    end = time.monotonic() + seconds
    while not (answer := ask()):
        if time.monotonic() > end:
            return None
        time.sleep(TICK_SECONDS)
    return answer


@contextmanager
def serving(folder: Path, gpus: Gpus, *, with_alerts: bool) -> Iterator[Exporter]:
    """Run an exporter that profiles by itself, with Prometheus and Alertmanager if wanted."""
    import bcrypt

    password, port = secrets.token_hex(8), free_port()
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
    (folder / "web.yml").write_text(json.dumps({"basic_auth_users": {USER: hashed}}))
    (folder / "password").write_text(password)
    (folder / "slurm").mkdir()
    options = {
        **{"address": f"127.0.0.1:{port}", "source": "nvml", "web.config.file": folder / "web.yml"},
        **{"profile": "host-bound,stall", "profile-after": AFTER, "profile-users": USER},
        **{"profile-dir": folder / "profiles", "hpc-job-mapping-dir": folder / "slurm"},
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    exporter = Exporter(f"http://127.0.0.1:{port}", password, folder, gpus.environment)
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("w"))
        environment = {**os.environ, **gpus.environment}
        command = [sys.executable, "-m", "gpu_exporter", "serve", *arguments]
        running = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log)
        stack.callback(running.wait)
        stack.callback(running.terminate)
        if not wait(lambda: exporter.get("/healthz") or running.poll() is not None, 30) or running.poll() is not None:
            raise SystemExit(f"the exporter does not answer: {exporter.log()}")
        if with_alerts:
            exporter = stack.enter_context(_alerting(exporter, port))
        yield exporter


@contextmanager
def _alerting(exporter: Exporter, port: int) -> Iterator[Exporter]:
    """Run Prometheus and Alertmanager with the alerts of the chart, which link to the page of the exporter."""
    from tests.support.alerting import Hook, alertmanager, linked_rules
    from tests.support.prometheus import scraping

    login = {"basic_auth": {"username": USER, "password": exporter.password}}
    target = {"honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}], **login}
    rules = linked_rules(exporter.folder, f"{exporter.url}/?node={{node}}")
    with ExitStack() as stack:
        hook = stack.enter_context(Hook())
        alerts = stack.enter_context(alertmanager(exporter.folder, hook))
        receivers = [alerts.address]
        stack.enter_context(scraping(exporter.folder, "1s", target, rule_files=[rules], alertmanagers=receivers))

        def found() -> Mapping[str, str]:
            listed = alerts.ask("GET", "alerts")
            return {each["labels"]["alertname"]: each["annotations"].get("page_url", "") for each in listed}

        yield replace(exporter, alerts=found)


@contextmanager
def job(folder: Path, gpus: Gpus, ranks: int = 1) -> Iterator[Sequence[subprocess.Popen[bytes]]]:
    """Start the ranks of a job, which import torch and wait for `go`, and kill them at the end."""
    folder.mkdir()
    common = {
        **os.environ,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "KINETO_USE_DAEMON": "1",
        "KINETO_LOG_LEVEL": "99",
    }
    if ranks == 1:
        common["KINETO_IPC_SOCKET_DIR"] = str(folder)
    command = [gpus.python, str(JOB), str(folder)]
    running = [subprocess.Popen(command, env={**common, "RANK": str(rank)}) for rank in range(ranks)]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def go(folder: Path, running: Sequence[subprocess.Popen[bytes]], seconds: float) -> bool:
    """Let a job train; return whether all its ranks do."""
    (folder / "go").touch()
    trains = [folder / f"trains{rank}" for rank in range(len(running))]
    return bool(wait(lambda: all(path.exists() for path in trains), seconds))
