"""Parca and Pyroscope show profiles as they are: each once, with the names, files and lines of functions.

    python -m tests.soak.profile_stores

The programs are found in PATH or where the variables PARCA and PYROSCOPE say. An exporter profiles a job whose hot line
is known. Parca scrapes it with the configuration of docs/continuous-profiling.md; Pyroscope is sent the same profile by
the request of that page, and the profile of a trace. Exit code 1 if one of them shows something else.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from benchmarks.peers import program
from tests import ROOT
from tests.conftest import Exporter, run, serving
from tests.e2e.profiling.test_automatic import LOGIN, awaited, options, secret
from tests.support.busy_jobs import busy_job
from tests.support.fakes.driver import FakeDriver
from tests.support.gpu_loads import host_bound
from tests.support.pprof import decoded, decoded_json, folded_of
from tests.support.tools import free_port, until
from tests.support.victoria import running

PAGE = (ROOT / "docs" / "continuous-profiling.md").read_text()
TRACE = ROOT / "tests" / "data" / "pytorch_trace_slow_loader.json.gz"
# In seconds; a minute on the page.
INTERVAL = 10
WALL = "wall:nanoseconds:wall:nanoseconds"
TYPES_OF_A_TRACE = {f"gpu_idle:{name}:nanoseconds:gpu_time:nanoseconds" for name in ("gpu_time", "gpu_idle")}
Stacks = Mapping[str, float]


def parca_config(folder: Path, port: int) -> str:
    """Return the configuration of the page, for this exporter, its user and a shorter interval."""
    block = re.search(r"```yaml\n# Parca\n(.*?)```", PAGE, re.DOTALL)
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


def asked(url: str, content: bytes | None = None) -> bytes:
    """Return the answer to a GET, or to a POST of content."""
    with urlopen(Request(url, content, {"Content-Type": "application/json"}), timeout=60) as answer:
        body: bytes = answer.read()
        return body


def parca(folder: Path, stack: ExitStack, exporter: Exporter) -> Callable[[], Stacks]:
    """Let Parca scrape an exporter that has no profile yet; return what asks it for the stacks of all its profiles."""
    config, address = folder / "parca.yaml", f"127.0.0.1:{free_port()}"
    config.write_text(parca_config(folder, exporter.port))
    command = [
        *(program("parca"), f"--config-path={config}", f"--http-address={address}"),
        *(f"--storage-path={folder / 'parca'}", f"--debuginfo-cache-dir={folder / 'debuginfo'}"),
    ]
    stack.enter_context(running(command, folder / "parca.log", f"http://{address}/metrics"))
    begin = time.time()

    def stacks() -> Stacks:
        span = {"merge.start": begin - 60, "merge.end": time.time() + 60}
        times = {name: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for name, at in span.items()}
        query = {"mode": "MODE_MERGE", "merge.query": f"gpu_wall:{WALL}:delta", "report_type": "REPORT_TYPE_PPROF"}
        found = json.loads(asked(f"http://{address}/api/profiles/query?{urlencode({**query, **times})}"))
        return folded_of(decoded(base64.b64decode(found["pprof"]))).get("wall", {})

    return stacks


class Pyroscope:
    """A running Pyroscope that keeps everything on this machine."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        port, home = free_port(), "127.0.0.1"
        rings = ("ring", "compactor.ring", "distributor.ring", "query-scheduler.ring", "store-gateway.sharding-ring")
        addresses = (*(f"{name}.instance-addr" for name in rings[1:]), "query-frontend.instance-addr")
        settled = {
            **{f"server.{kind}-listen-address": home for kind in ("http", "grpc")},
            "server.http-listen-port": port,
            "server.grpc-listen-port": free_port(),
            "architecture.storage": "v1",
            "write-path": "ingester",
            "self-profiling.disable-push": "true",
            "usage-stats.enabled": "false",
            "memberlist.bind-addr": home,
            "memberlist.bind-port": free_port(),
            **{f"{name}.store": "inmemory" for name in (*rings, "overrides-exporter.ring")},
            **dict.fromkeys((*addresses, "ingester.lifecycler.addr", "overrides-exporter.ring.instance-addr"), home),
            "storage.filesystem.dir": folder / "shared",
            "pyroscopedb.data-path": folder / "pyroscope",
        }
        self._url = f"http://{home}:{port}"
        command = [program("pyroscope"), *(f"-{name}={value}" for name, value in settled.items())]
        stack.enter_context(running(command, folder / "pyroscope.log", f"{self._url}/ready"))

    def send(self, profile: bytes, name: str) -> None:
        """Send a profile by the request of the page."""
        path = re.search(r"http://pyroscope:4040(/ingest\S+)'", PAGE)
        assert path
        asked(self._url + path[1].replace("name=gpu-jobs", f"name={name}"), profile)

    def types(self) -> set[str]:
        """Return the ids of the types of all profiles."""
        return {each["ID"] for each in self._ask("ProfileTypes").get("profileTypes", ())}

    def stacks(self, of_type: str, name: str) -> Stacks:
        """Return the stacks of all profiles of an application."""
        found = self._ask("SelectMergeProfile", profile_typeID=of_type, label_selector=f'{{service_name="{name}"}}')
        return folded_of(decoded_json(found)).get(of_type.split(":")[1], {})

    def _ask(self, what: str, **request: str) -> Any:
        span = {"start": int((time.time() - 3600) * 1000), "end": int((time.time() + 60) * 1000)}
        return json.loads(asked(f"{self._url}/querier.v1.QuerierService/{what}", json.dumps(request | span).encode()))


def same(what: str, expected: Stacks, found: Stacks) -> bool:
    """Print whether stacks are the same; return it."""
    nanosecond = 1.5e-9
    good = found.keys() == expected.keys() and all(abs(found[key] - expected[key]) < nanosecond for key in expected)
    print(
        f"{what}: {len(found)} of {len(expected)} stacks, {sum(found.values()):.3f} of {sum(expected.values()):.3f} s"
    )
    if not good:
        print("\n".join(f"  {key}: {found.get(key)} instead of {expected.get(key)}" for key in {**expected, **found}))
    return good


def lacking() -> Sequence[str]:
    """Return the programs that are not there."""
    return [name for name in ("parca", "pyroscope") if not program(name)]


def compare(folder: Path, stack: ExitStack) -> bool:
    """Profile a job, and compare what the stores that are there show."""
    job, line = stack.enter_context(busy_job("loader", folder))
    driver, serve = FakeDriver(folder / "driver"), stack.enter_context(serving(folder))
    exporter = serve(*options(folder, "--profile", "host-bound"), env=driver.environment)
    good, in_parca = True, parca(folder, stack, exporter) if program("parca") else None
    host_bound(driver, job.pid)
    awaited(exporter)
    profile = exporter.get("/debug/pprof/wall?seconds=600", LOGIN)[1]
    expected = folded_of(decoded(profile))["wall"]
    assert any(stack.endswith(f"{line}: load_batch") for stack in expected)
    if program("pyroscope"):
        server = Pyroscope(folder, stack)
        trace = folder / "trace.pb.gz"
        ran = run("trace", "analyze", str(TRACE), "--pprof", str(trace))
        assert ran.returncode == 0, ran
        server.send(profile, "gpu-jobs")
        server.send(trace.read_bytes(), "traces")
        types = {f"wall:{WALL}", *TYPES_OF_A_TRACE}
        until(lambda: server.types() >= types, 30, "the types of all profiles")
        good &= server.types() == types
        good &= same("Pyroscope", expected, server.stacks(f"wall:{WALL}", "gpu-jobs"))
        for name, stacks in folded_of(decoded(trace.read_bytes())).items():
            of_type = f"gpu_idle:{name}:nanoseconds:gpu_time:nanoseconds"
            good &= same(f"Pyroscope, {name}", stacks, server.stacks(of_type, "traces"))
    if in_parca:
        until(in_parca, 3 * INTERVAL, "a profile in Parca")
        time.sleep(2 * INTERVAL)
        good &= same("Parca", expected, in_parca())
    return good


def main() -> int:
    """Compare, and print what differs."""
    for name in lacking():
        print(f"not compared: {name} is not in PATH, and no variable names it")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        return 0 if compare(Path(folder), stack) else 1


if __name__ == "__main__":
    sys.exit(main())
