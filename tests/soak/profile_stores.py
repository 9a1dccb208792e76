"""Parca and Pyroscope show profiles as they are: each once, with the names, files and lines of functions.

    python -m tests.soak.profile_stores

The programs are found in PATH or where the variables PARCA and PYROSCOPE say. Parca scrapes an exporter that profiles a
job whose hot line is known, with the configuration of docs/continuous-profiling.md. Pyroscope is sent the same profile.
Both are sent the profile of a trace, which Pyroscope must list as GPU time. Exit code 1 if one shows something else.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from benchmarks.peers import program
from tests import ROOT
from tests.conftest import run, serving
from tests.e2e.profiling.test_automatic import LOGIN, awaited, options, secret
from tests.support.busy_jobs import busy_job
from tests.support.fakes.driver import FakeDriver
from tests.support.gpu_loads import host_bound
from tests.support.pprof import decoded, folded_of, from_json
from tests.support.tools import free_port, until
from tests.support.victoria import running

PAGE = ROOT / "docs" / "continuous-profiling.md"
TRACE = ROOT / "tests" / "data" / "pytorch_trace_slow_loader.json.gz"
# In seconds; a minute on the page.
INTERVAL = 10
# Pyroscope names a profile after a type of it.
FIRST_NAME = {"trace": "gpu_idle", "job": "wall"}
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
        return json.loads(asked(f"{self._api}/{path}", content, "application/json"))


class Pyroscope:
    """A running Pyroscope, which is sent profiles."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        http, grpc, raft, gossip = (free_port() for _ in range(4))
        self._address, internal, metastore = f"http://127.0.0.1:{http}", f"localhost:{grpc}", f"localhost:{raft}"
        command = [
            *(program("pyroscope"), "-architecture.storage=v2", "-enable-query-backend-from=2020-01-01T00:00:00Z"),
            *("-usage-stats.enabled=false", "-self-profiling.disable-push=true", f"-memberlist.bind-port={gossip}"),
            *(f"-server.http-listen-port={http}", f"-server.grpc-listen-port={grpc}"),
            *(f"-metastore.address={internal}", f"-query-backend.address={internal}"),
            *(f"-metastore.raft.{name}={metastore}" for name in ("bind-address", "advertise-address", "server-id")),
            *(f"-metastore.{name}dir={folder / name}" for name in ("data-", "raft.", "raft.snapshots-")),
            *("-storage.backend=filesystem", f"-storage.filesystem.dir={folder / 'bucket'}"),
            f"-pyroscopedb.data-path={folder / 'blocks'}",
        ]
        stack.enter_context(running(command, folder / "pyroscope.log", f"{self._address}/metrics"))
        until(self._ready, 120, "Pyroscope being ready")

    def _ready(self) -> bool:
        try:
            return asked(f"{self._address}/ready").startswith(b"ready")
        except HTTPError:
            return False

    def write(self, profile: bytes, name: str) -> None:
        """Send a profile of the last minute, with the command of docs/continuous-profiling.md."""
        now = int(time.time())
        address = f"{self._address}/ingest?name={name}&format=pprof&from={now - 60}&until={now}"
        asked(address, profile, "application/octet-stream")

    def stacks(self, name: str, profile_type: str) -> Stacks:
        """Return the stacks of the last hour by a profile type, such as `wall:wall:nanoseconds:wall:nanoseconds`."""
        now = int(time.time() * 1000)
        query = {"labelSelector": f'{{service_name="{name}"}}', "profileTypeID": profile_type}
        content = json.dumps(query | {"start": now - 3_600_000, "end": now + 60_000}).encode()
        found = asked(f"{self._address}/querier.v1.QuerierService/SelectMergeProfile", content, "application/json")
        return folded_of(from_json(json.loads(found))).get(profile_type.split(":")[1], {})


def asked(address: str, content: bytes | None = None, content_type: str = "") -> bytes:
    """Return the answer of a server. Raises HTTPError."""
    with urlopen(Request(address, content, {"Content-Type": content_type}), timeout=60) as answer:
        return bytes(answer.read())


def same(what: str, expected: Stacks, found: Stacks) -> bool:
    """Print whether stacks are the same; return it."""
    seconds = [sum(stacks.values()) for stacks in (found, expected)]
    print(f"{what}: {len(found)} of {len(expected)} stacks, {seconds[0]:.3f} of {seconds[1]:.3f} s")
    different = [key for key in {**expected, **found} if abs(found.get(key, 0.0) - expected.get(key, 0.0)) > 1.5e-9]
    for key in different:
        print(f"  {key}: {found.get(key)} instead of {expected.get(key)}")
    return not different


def compare(folder: Path, stack: ExitStack, stores: Sequence[str]) -> bool:
    """Profile a job, and compare what the stores show of that and of a trace."""
    job, line = stack.enter_context(busy_job("loader", folder))
    driver, serve = FakeDriver(folder / "driver"), stack.enter_context(serving(folder))
    exporter = serve(*options(folder, "--profile", "host-bound"), env=driver.environment)
    parca = Parca(folder, stack, exporter.port) if "parca" in stores else None
    host_bound(driver, job.pid)
    awaited(exporter)
    profile = exporter.get("/debug/pprof/wall?seconds=600", LOGIN)[1]
    expected = folded_of(decoded(profile))["wall"]
    assert any(each.endswith(f"{line}: load_batch") for each in expected)
    trace = folder / "trace.pb.gz"
    ran = run("trace", "analyze", str(TRACE), "--pprof", str(trace))
    assert ran.returncode == 0, ran
    of_trace, good = folded_of(decoded(trace.read_bytes())), True
    if parca:
        parca.write(trace.read_bytes(), "trace")
        for name, stacks in of_trace.items():
            good &= same(f"Parca, a trace, {name}", stacks, parca.stacks("trace", name, "gpu_time"))
        until(lambda: parca.stacks("gpu_wall", "wall", "wall"), 3 * INTERVAL, "a profile in Parca")
        # It must not be scraped twice.
        time.sleep(2 * INTERVAL)
        good &= same("Parca, a profile", expected, parca.stacks("gpu_wall", "wall", "wall"))
    if "pyroscope" in stores:
        good &= in_pyroscope(Pyroscope(folder, stack), {"trace": trace.read_bytes(), "job": profile})
    return good


def in_pyroscope(pyroscope: Pyroscope, profiles: Mapping[str, bytes]) -> bool:
    """Send profiles, and compare what Pyroscope shows of each of their types."""
    good = True
    for name, content in profiles.items():
        pyroscope.write(content, name)
        for kind, stacks in folded_of(decoded(content)).items():
            period = "gpu_time" if name == "trace" else kind
            of_type = f"{FIRST_NAME[name]}:{kind}:nanoseconds:{period}:nanoseconds"
            until(partial(pyroscope.stacks, name, of_type), 30, f"{of_type} in Pyroscope")
            good &= same(f"Pyroscope, {name}, {of_type}", stacks, pyroscope.stacks(name, of_type))
    return good


def main() -> int:
    """Compare, and print what differs."""
    stores = [name for name in ("parca", "pyroscope") if program(name)]
    for name in sorted({"parca", "pyroscope"} - set(stores)):
        print(f"not compared: {name} is not in PATH, and no variable names it")
    if not stores:
        return 0
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        return 0 if compare(Path(folder), stack, stores) else 1


if __name__ == "__main__":
    sys.exit(main())
