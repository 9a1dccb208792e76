"""A real Prometheus as a child process. Shared by tests and benchmarks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from tests.support.tools import LIMIT, free_port, tool, until

LOADED = "Completed loading of configuration file"


class Prometheus:
    """A running Prometheus and its query API."""

    def __init__(self, pid: int, port: int, log: Path) -> None:
        self.pid, self.port, self.log = pid, port, log
        self._paused_at: float | None = None
        # Of each thread, and kept open, because some tests ask thousands of queries.
        self._connections: defaultdict[int, HTTPConnection] = defaultdict(
            lambda: HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        )

    def api(self, path: str, **parameters: str) -> Any:
        """Return the `data` of a response."""
        connection = self._connections[threading.get_ident()]
        try:
            connection.request("GET", f"/api/v1/{path}?{urlencode(parameters)}")
            answer = json.loads(connection.getresponse().read())
        except BaseException:
            connection.close()  # the next request opens it again
            raise
        assert answer["status"] == "success", answer
        return answer["data"]

    def close(self) -> None:
        """Close its connections."""
        for connection in self._connections.values():
            connection.close()

    def query(self, promql: str, at: float | None = None) -> list[float]:
        """Return the values of an instant query, now or at a Unix time."""
        time = {} if at is None else {"time": f"{at:.3f}"}
        return [float(found["value"][1]) for found in self.api("query", query=promql, **time)["result"]]

    def now(self) -> float:
        """Return the server's time: while it is paused, the time of the pause."""
        return self.query("vector(time())")[0] if self._paused_at is None else self._paused_at

    @contextmanager
    def paused(self, config: Path) -> Iterator[None]:
        """Neither scrape nor evaluate rules, so that thousands of queries do not compete with them."""
        content = config.read_text()
        self._paused_at = self.now()
        try:
            self._load(config, json.dumps({"global": json.loads(content)["global"]}))
            yield
        finally:
            self._load(config, content)
            self._paused_at = None

    def _load(self, config: Path, content: str) -> None:
        loads = self.log.read_text().count(LOADED)
        config.write_text(content)
        os.kill(self.pid, signal.SIGHUP)
        until(lambda: self.log.read_text().count(LOADED) > loads, what="the configuration to be loaded")

    def stored(self, selector: str) -> dict[str, list[tuple[float, float]]]:
        """Return every (time, value) that a range selector such as `up[1m]` returns, by instance."""
        found = self.api("query", query=selector)["result"]
        return {each["metric"]["instance"]: [(at, float(value)) for at, value in each["values"]] for each in found}

    def snapshot(self) -> str:
        """Write all samples to blocks below `data/snapshots`; return the name of their folder."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request("POST", "/api/v1/admin/tsdb/snapshot")
            return str(json.loads(connection.getresponse().read())["data"]["name"])
        finally:
            connection.close()

    def ready(self) -> bool:
        """Return whether the API answers."""
        try:
            return bool(self.api("status/buildinfo"))
        except (OSError, ValueError):  # not yet listening, or still starting and not speaking JSON
            return False

    def type_of(self, family: str) -> str:
        """Return the type that Prometheus stores for a family."""
        (found,) = self.api("targets/metadata", metric=family)
        return str(found["type"])


def _hurried(path: Path, folder: Path) -> Path:
    """Return a copy of rules whose groups have no interval of their own, because tests cannot wait for minutes."""
    content = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
    for group in content["groups"]:
        group.pop("interval", None)
    copy = folder / f"hurried-{path.stem}.json"
    copy.write_text(json.dumps(content))
    return copy


@contextmanager
def scraping(
    folder: Path,
    interval: str,
    settings: Mapping[str, Any],
    *,
    rule_files: Sequence[Path] = (),
    evaluation_interval: str = "1s",
    alertmanagers: Sequence[str] = (),
    program: Path | None = None,
    external_labels: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
    own_intervals: bool = False,
    options: Sequence[str] = (),
) -> Iterator[Prometheus]:
    """Run a Prometheus with its data in `folder` and the targets of `settings`, such as `static_configs`.

    It evaluates the rules of `rule_files`, and sends alerts to `alertmanagers` (`host:port`). `program` replaces the
    Prometheus of `make tools`; `more` is further configuration, such as `remote_write`. Rule groups are evaluated every
    `evaluation_interval`, unless `own_intervals` lets them use their own. `options` are further arguments.
    """
    port, log, config = free_port(), folder / "prometheus.log", folder / "prometheus.yml"
    job = {"job_name": "gpu", "scrape_interval": interval, "scrape_timeout": interval, **settings}
    content = {
        "global": {"evaluation_interval": evaluation_interval, "external_labels": dict(external_labels or {})},
        "scrape_configs": [job],
        "rule_files": [str(path.resolve() if own_intervals else _hurried(path, folder)) for path in rule_files],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]},
        **(more or {}),
    }
    config.write_text(json.dumps(content))
    settled = {
        "config.file": config,
        "storage.tsdb.path": folder / "data",
        "web.listen-address": f"127.0.0.1:{port}",
        "log.level": "debug",  # a scrape that failed is a debug message
    }
    arguments = [
        str(program or tool("prometheus")),
        "--web.enable-admin-api",
        *(f"--{name}={value}" for name, value in settled.items()),
        *options,
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(arguments, stdout=output, stderr=output)
    try:
        with closing(Prometheus(process.pid, port, log)) as prometheus:
            until(prometheus.ready, what="Prometheus' start")
            yield prometheus
    finally:
        process.kill()
        process.wait()
