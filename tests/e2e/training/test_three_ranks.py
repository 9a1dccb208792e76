"""Three ranks on one node, the last of which is slow, hangs or is killed: what each view of the node says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from gpu_exporter.http.client import Remote
from gpu_exporter.model.job_message import SOCKET_VARIABLE
from gpu_exporter.top.feeds import UrlFeed
from gpu_exporter.top.tracker import Tracker
from tests import ROOT
from tests.conftest import Exporter, Serve, run
from tests.support.tools import LIMIT, until

STRAGGLER, STALLED, ENDED = "GpuJobStraggler", "GpuJobStalled", "GpuJobRankEnded"
MODES = {STRAGGLER, STALLED, ENDED}
# What is found by GPU.
Findings = Mapping[str, set[str]]


@contextmanager
def ranks(failure: str, socket: Path) -> Iterator[Callable[[], None]]:
    """Run three ranks; calling the result makes the last one fail."""
    program = [sys.executable, "-m", "tests.support.three_ranks", failure]
    environment = {**os.environ, SOCKET_VARIABLE: str(socket), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(program, env=environment, stdin=subprocess.PIPE, text=True) as process:
        stdin = process.stdin
        assert stdin

        def fail() -> None:
            stdin.write("\n")
            stdin.flush()

        try:
            yield fail
        finally:
            stdin.close()


def of_api(exporter: Exporter) -> Findings:
    """Return what the JSON API says about GPUs."""
    return of_gpus(json.loads(exporter.get("/api/v1/gpus")[1]))


def of_gpus(answer: Mapping[str, Any]) -> Findings:
    return {gpu["index"]: {each["name"] for each in gpu["findings"]} & MODES for gpu in answer["gpus"]}


def of_page(exporter: Exporter) -> Findings:
    """Return what the live page gets first."""
    connection = exporter.connect()
    connection.request("GET", "/api/v1/stream")
    try:
        answer = connection.getresponse()
        line = next(line for line in iter(answer.readline, b"") if line.startswith(b"data:") and b'"findings"' in line)
        return of_gpus(json.loads(line.removeprefix(b"data:")))
    finally:
        connection.close()


def of_diagnose(exporter: Exporter, *options: str) -> Findings:
    """Return what `diagnose` finds in four seconds, which are more than ten steps."""
    url = f"http://127.0.0.1:{exporter.port}"
    said = json.loads(run("diagnose", "--url", url, "--for", "4s", "--json", *options).stdout)
    return {gpu["gpu"]: {each["name"] for each in gpu["modes"]} & MODES for gpu in said["gpus"]}


@pytest.fixture
def socket() -> Iterator[Path]:
    """A path that is short enough for a socket."""
    with TemporaryDirectory() as directory:
        yield Path(directory) / "jobs.sock"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        ("slow", {"0": set(), "1": set(), "2": {STRAGGLER}}),
        ("stall", {gpu: {STALLED} for gpu in "012"}),
        ("kill", {"0": {STALLED}, "1": {STALLED}, "2": {ENDED}}),
    ],
)
def test_what_each_view_says(serve: Serve, socket: Path, failure: str, expected: Findings) -> None:
    """The same in all of them, and nothing before; with `-s`, after how many seconds, as a table."""
    exporter = serve("--source", "simulated", "--gpus", "3", "--interval", "500ms", "--job-socket", str(socket))
    feed = UrlFeed(Remote(f"http://127.0.0.1:{exporter.port}"), Tracker(20.0))

    def of_top() -> Findings:
        return {
            row.index: {match.mode.name for match in row.diagnosis.matches} & MODES if row.diagnosis else set()
            for row in feed.view.gpus
        }

    with ranks(failure, socket) as fail:
        exporter.until(lambda page: min(page.values("gpu_job_steps_total"), default=0) > 30, LIMIT)
        feed.start(lambda: None)
        assert of_api(exporter) == {gpu: set() for gpu in "012"}
        fail()
        begun = time.monotonic()
        views: Mapping[str, Callable[[], Findings]] = {
            "top": of_top,
            "API": lambda: of_api(exporter),
            "page": lambda: of_page(exporter),
            "diagnose": lambda: of_diagnose(exporter),
            "diagnose --one-job": lambda: of_diagnose(exporter, "--one-job"),
        }
        with ThreadPoolExecutor(len(views)) as pool:
            seconds = dict(zip(views, pool.map(lambda view: said(view, expected, begun), views.values()), strict=True))
        print(f"\n{failure:<28}" + "".join(f"{name:>20}" for name in views))
        for gpu, name in sorted({key for of_view in seconds.values() for key in of_view}):
            times = (of_view.get((gpu, name)) for of_view in seconds.values())
            cells = ("-" if after is None else f"{after:.1f} s" for after in times)
            print(f"GPU {gpu}: {name:<21}" + "".join(f"{cell:>20}" for cell in cells))
        if failure == "kill":
            assert "training loop: rank 2 of job llm has ended" in exporter.log.read_text()
    feed.stop()


def said(view: Callable[[], Findings], expected: Findings, begun: float) -> Mapping[tuple[str, str], float]:
    """Wait until a view says what is expected; return after how many seconds it said what of which GPU first."""
    seconds: dict[tuple[str, str], float] = {}

    def says_all() -> bool:
        found = view()
        for gpu, names in found.items():
            for name in names:
                seconds.setdefault((gpu, name), time.monotonic() - begun)
        return found == expected

    until(says_all, LIMIT, f"{expected} in every view")
    return seconds
