"""Parca shows profiles as they are: each once, with the names, files and lines of functions.

    python -m tests.soak.parca

The program is found in PATH or where the variable PARCA says. It scrapes an exporter that profiles a job whose hot line
is known, with the configuration of docs/continuous-profiling.md, and is sent the profile of a trace. Exit code 1 if it
shows something else.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from benchmarks.peers import program
from tests import ROOT
from tests.conftest import run, serving
from tests.e2e.profiling.test_automatic import LOGIN, awaited, options, secret
from tests.support.busy_jobs import busy_job
from tests.support.fakes.driver import FakeDriver
from tests.support.gpu_loads import host_bound
from tests.support.pprof import decoded, folded_of
from tests.support.tools import free_port, until
from tests.support.victoria import running

PAGE = ROOT / "docs" / "continuous-profiling.md"
TRACE = ROOT / "tests" / "data" / "pytorch_trace_slow_loader.json.gz"
# In seconds; a minute on the page.
INTERVAL = 10
# Stacks with seconds.
Stacks = Mapping[str, float]


def config(folder: Path, port: int) -> str:
    """Return the configuration of the page, for this exporter, its user and a shorter interval."""
    block = re.search(r"```yaml\n# Parca\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block
    text = block[1]
    for old, new in {
        "node-1:9400": f"127.0.0.1:{port}",
        "username: parca": "username: mia",
        "/etc/parca/password": str(secret(folder)),
        "60s": f"{INTERVAL}s",
        '"60"': f'"{INTERVAL}"',
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    bucket = {"type": "FILESYSTEM", "config": {"directory": str(folder / "bucket")}}
    return f"{text}\nobject_storage: {json.dumps({'bucket': bucket})}\n"


class Parca:
    """A running Parca that scrapes an exporter."""

    def __init__(self, folder: Path, stack: ExitStack, exporter: int) -> None:
        path, address = folder / "parca.yaml", f"127.0.0.1:{free_port()}"
        path.write_text(config(folder, exporter))
        self._api = f"http://{address}/api/profiles"
        command = [
            *(program("parca"), f"--config-path={path}", f"--http-address={address}"),
            *(f"--storage-path={folder / 'parca'}", f"--debuginfo-cache-dir={folder / 'debuginfo'}"),
        ]
        stack.enter_context(running(command, folder / "parca.log", f"http://{address}/metrics"))

    def write(self, profile: bytes, name: str) -> None:
        """Send a profile."""
        labels = {"labels": [{"name": "__name__", "value": name}]}
        series = {"labels": labels, "samples": [{"raw_profile": base64.b64encode(profile).decode()}]}
        self._asked("writeraw", json.dumps({"series": [series], "normalized": True}).encode())

    def stacks(self, name: str, sample_type: str, period_type: str) -> Stacks:
        """Return the stacks of all profiles with this name, which measure one type in nanoseconds."""
        query = {
            "mode": "MODE_MERGE",
            "merge.query": f"{name}:{sample_type}:nanoseconds:{period_type}:nanoseconds:delta",
            "merge.start": "1970-01-01T00:00:00Z",
            "merge.end": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 60)),
            "report_type": "REPORT_TYPE_PPROF",
        }
        found = self._asked(f"query?{urlencode(query)}")
        return folded_of(decoded(base64.b64decode(found["pprof"]))).get(sample_type, {})

    def _asked(self, path: str, content: bytes | None = None) -> Any:
        request = Request(f"{self._api}/{path}", content, {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())


def same(what: str, expected: Stacks, found: Stacks) -> bool:
    """Print whether stacks are the same; return it."""
    seconds = [sum(stacks.values()) for stacks in (found, expected)]
    print(f"{what}: {len(found)} of {len(expected)} stacks, {seconds[0]:.3f} of {seconds[1]:.3f} s")
    different = [key for key in {**expected, **found} if abs(found.get(key, 0.0) - expected.get(key, 0.0)) > 1.5e-9]
    for key in different:
        print(f"  {key}: {found.get(key)} instead of {expected.get(key)}")
    return not different


def compare(folder: Path, stack: ExitStack) -> bool:
    """Profile a job, and compare what Parca shows of that and of a trace."""
    job, line = stack.enter_context(busy_job("loader", folder))
    driver, serve = FakeDriver(folder / "driver"), stack.enter_context(serving(folder))
    exporter = serve(*options(folder, "--profile", "host-bound"), env=driver.environment)
    parca = Parca(folder, stack, exporter.port)
    host_bound(driver, job.pid)
    awaited(exporter)
    expected = folded_of(decoded(exporter.get("/debug/pprof/wall?seconds=600", LOGIN)[1]))["wall"]
    assert any(each.endswith(f"{line}: load_batch") for each in expected)
    trace = folder / "trace.pb.gz"
    ran = run("trace", "analyze", str(TRACE), "--pprof", str(trace))
    assert ran.returncode == 0, ran
    parca.write(trace.read_bytes(), "trace")
    good = True
    for name, stacks in folded_of(decoded(trace.read_bytes())).items():
        good &= same(f"a trace, {name}", stacks, parca.stacks("trace", name, "gpu_time"))
    until(lambda: parca.stacks("gpu_wall", "wall", "wall"), 3 * INTERVAL, "a profile in Parca")
    # It must not be scraped twice.
    time.sleep(2 * INTERVAL)
    return same("a profile", expected, parca.stacks("gpu_wall", "wall", "wall")) and good


def main() -> int:
    """Compare, and print what differs."""
    if not program("parca"):
        print("not compared: parca is not in PATH, and no variable names it")
        return 0
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        return 0 if compare(Path(folder), stack) else 1


if __name__ == "__main__":
    sys.exit(main())
