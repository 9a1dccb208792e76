"""Fixtures: the fake driver, a running exporter, golden files."""

from __future__ import annotations

import gc
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path

import pytest
from hypothesis import settings
from prometheus_client.parser import text_string_to_metric_families

from tests import PACKAGED_RECORDINGS, ROOT
from tests.support import forked
from tests.support.fakes.driver import FakeDriver
from tests.support.order import dealt
from tests.support.tools import LIMIT, LONG, PATIENCE
from tests.support.tools import free_port as free_port

# On slow shared cores, the duration of one example says nothing about the code.
settings.register_profile("default", deadline=None)
settings.register_profile("soak", max_examples=5000, deadline=None)
# promtool and Prometheus collect garbage less often: a third less CPU time of the rules, for twice their memory.
os.environ.setdefault("GOGC", "400")
GOLDEN = ROOT / "tests" / "golden"
RECORDINGS = PACKAGED_RECORDINGS
# `make test` runs what is not marked slow. Tests elsewhere are marked so by their place.
IN_MAKE_TEST = ("tests/promises/", "tests/unit/")
# Each process that runs some of these tests reads all recorded phases.
OF_PHASES = "tests/unit/diagnosis/"


Sample = tuple[str, dict[str, str], float]
SUFFIXES = ("_total", "_bucket", "_count", "_sum")


def samples_of(text: str) -> list[Sample]:
    """Return the samples of a page in text format, as prometheus_client parses it."""
    families = text_string_to_metric_families(text)
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


class Page:
    """A scraped page, parsed by prometheus_client: `whole` at once, or else only the families that are asked for."""

    def __init__(self, text: str, *, whole: bool = True) -> None:
        self.text = text
        self._samples = samples_of(text) if whole else None

    @property
    def samples(self) -> list[Sample]:
        """All samples."""
        if self._samples is None:
            self._samples = samples_of(self.text)
        return self._samples

    def values(self, name: str, **labels: str) -> list[float]:
        """Return the values of all series with this name and these labels."""
        samples = samples_of(self._family(name)) if self._samples is None else self._samples
        return [v for n, have, v in samples if n == name and labels.items() <= have.items()]

    def _family(self, name: str) -> str:
        """Return the lines of the families whose names begin as this name does."""
        stem = next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)
        begins = (stem, f"# HELP {stem}", f"# TYPE {stem}")
        return "\n".join(line for line in self.text.split("\n") if line.startswith(begins)) + "\n"

    def value(self, name: str, **labels: str) -> float:
        """Return the value of the only series with this name and these labels."""
        found = self.values(name, **labels)
        assert len(found) == 1, f"{name}{labels}: {len(found)} series"
        return found[0]


Process = subprocess.Popen[str] | forked.Started


class Exporter:
    """`gpu-exporter serve` in a child process."""

    def __init__(self, process: Process, port: int, log: Path, tls: ssl.SSLContext | None = None) -> None:
        self.process, self.port, self.log, self.tls = process, port, log, tls

    def connect(self) -> HTTPConnection:
        """Return a connection to the exporter, over TLS if it uses TLS."""
        if self.tls is None:
            return HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        return HTTPSConnection("127.0.0.1", self.port, timeout=LIMIT, context=self.tls)

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Send a request of any method; return status and body."""
        connection = self.connect()
        try:
            connection.request(method, path, headers=dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def get(self, path: str = "/metrics", headers: Mapping[str, str] | None = None) -> tuple[HTTPResponse, bytes]:
        """Send a GET request; return response and body."""
        connection = self.connect()
        try:
            connection.request("GET", path, headers=dict(headers or {}))
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def page(self, *, whole: bool = True) -> Page:
        """Scrape once in text format."""
        return Page(self.get()[1].decode(), whole=whole)

    def until(self, holds: Callable[[Page], bool], timeout: float = 15.0) -> Page:
        """Scrape until a condition holds; on a timeout, fail with the exporter's own families of the last page.

        Pages before that are parsed only as far as the condition needs: all of them would keep a core busy.
        """
        end = time.monotonic() + PATIENCE * timeout
        while True:
            page = self.page(whole=False)
            if holds(page):
                return Page(page.text)
            if time.monotonic() > end:
                own = [
                    line for line in page.text.splitlines() if line.startswith(("gpu_up", "gpu_down", "gpu_exporter"))
                ]
                raise AssertionError("never came true; last page:\n" + "\n".join(own) + "\n" + self.log.read_text())
            time.sleep(0.05)

    def stop(self) -> int:
        """Send SIGTERM, wait for the end, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT)


def command(*arguments: str) -> list[str]:
    """Return the command that runs gpu-exporter with this interpreter."""
    return [sys.executable, "-m", "gpu_exporter", *arguments]


def run(*arguments: str, env: Mapping[str, str] | None = None, new: bool = False) -> subprocess.CompletedProcess[str]:
    """Run gpu-exporter until it exits; with `new` in a new process and never in a fork."""
    environment = {**os.environ, **(env or {})}
    if not new and forked.possible(environment):
        return forked.run(arguments, environment, LIMIT)
    return subprocess.run(command(*arguments), env=environment, capture_output=True, text=True, timeout=LIMIT)


Serve = Callable[..., Exporter]


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    """A fake driver with one H200."""
    return FakeDriver(tmp_path / "driver")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start exporters that end with the test."""
    with serving(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def serve_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Start exporters for all tests of a module, which must leave them as they are."""
    with serving(tmp_path_factory.mktemp("serve")) as start:
        yield start


@contextmanager
def serving(folder: Path) -> Iterator[Serve]:
    """Start `gpu-exporter serve` with arguments and environment, and wait until it answers; it logs to `stderr`.

    `new`: as a new process and never a fork, which has memory, files and threads of the process that it is forked from.
    """
    with ExitStack() as stack:

        def start(
            *arguments: str,
            env: Mapping[str, str] | None = None,
            wait: float = 20.0,
            tls: ssl.SSLContext | None = None,
            stderr: int | None = None,
            new: bool = False,
        ) -> Exporter:
            port = free_port()
            log = folder / f"log-{port}"
            file = stack.enter_context(log.open("w"))
            whole = ("serve", "--address", f"127.0.0.1:{port}", *arguments)
            environment = {**os.environ, **(env or {})}
            process: Process
            if new or stderr is not None or not forked.possible(environment):
                process = subprocess.Popen(
                    command(*whole), env=environment, stderr=file if stderr is None else stderr, text=True
                )
            else:
                process = forked.Started(whole, environment, Path(os.devnull), log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            exporter, end = Exporter(process, port, log, tls), time.monotonic() + PATIENCE * wait
            while True:
                try:
                    exporter.get("/healthz")
                    return exporter
                except OSError:
                    if process.poll() is not None or time.monotonic() > end:
                        raise AssertionError(f"does not answer: {log.read_text()}") from None
                    time.sleep(0.05)

        yield start


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden`, which rewrites the golden files."""
    parser.addoption("--update-golden", action="store_true")
    parser.addoption("--long", action="store_true", help="run the long variants of some tests, as `make soak` does")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while tests are collected, nor look at their million objects in each collection after that."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of unit tests that has no slow one, if only these are run: each worker would import them all."""
    if config.option.markexpr != "slow" or not collection_path.name.startswith("test_"):
        return None
    is_fast = collection_path.relative_to(ROOT).as_posix().startswith(IN_MAKE_TEST)
    return True if is_fast and "pytest.mark.slow" not in collection_path.read_text() else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what only `make test-all` runs as slow; let each worker begin with tests that take long."""
    for item in items:
        if not item.location[0].startswith(IN_MAKE_TEST):
            item.add_marker(pytest.mark.slow)
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        items[:] = dealt(items, together, takes_long, takes_longest, workers)


def together(item: pytest.Item) -> str:
    """Return what a worker is given as a whole: a file, or those of a folder that read the same recorded phases."""
    file = item.location[0]
    return OF_PHASES if file.startswith(OF_PHASES) else file


def takes_long(item: pytest.Item) -> bool:
    """Return whether a test may take more than a moment."""
    return not item.location[0].startswith("tests/unit/") or item.get_closest_marker("slow") is not None


def takes_longest(item: pytest.Item) -> bool:
    """Return whether a test takes so long that a worker must begin with it."""
    return item.get_closest_marker("slowest") is not None


def pytest_configure(config: pytest.Config) -> None:
    """Pass `--long` on to functions that have no fixtures, and let programs in Go collect garbage less often.

    Prometheus and promtool need a quarter less CPU time so, and VictoriaMetrics, whose default is 30, yet less.
    """
    os.environ.setdefault("GOGC", "400")
    if config.getoption("--long"):
        os.environ[LONG] = "1"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the whole of tests/golden/<name>."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text)
        assert text == path.read_text(), f"{name}: fix: read the diff, then run `pytest --update-golden`"

    return check
