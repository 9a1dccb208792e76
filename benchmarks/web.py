"""What TLS and passwords cost a scrape, and what wrong passwords cost the machine.

    python -m benchmarks.web [--scrapes 500] [--wrong 10000]

The same replayed page, on kept connections: open, with a verified password (bcrypt cost 10), and over TLS with it. Then
wrong passwords, each another, from ten connections at once, while who was verified goes on scraping and another right
password comes for the first time.
"""

from __future__ import annotations

import base64
import json
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import bcrypt
import trustme

from benchmarks import harness
from benchmarks.exporter import Exporter, free_port

COMMAND = [sys.executable, "-m", "gpu_exporter", "serve", "--source", "replay", "--recording", "h200_workloads"]


def basic(user: str, password: str) -> dict[str, str]:
    """The header of these credentials."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@dataclass(frozen=True)
class Target:
    """A running exporter and how to connect to it."""

    exporter: Exporter
    tls: ssl.SSLContext | None

    def connect(self) -> HTTPConnection:
        """A new connection."""
        port = self.exporter.port
        return HTTPSConnection("localhost", port, context=self.tls) if self.tls else HTTPConnection("127.0.0.1", port)


def ask(connection: HTTPConnection, headers: Mapping[str, str]) -> int:
    """One scrape; its status."""
    connection.request("GET", "/metrics", headers=dict(headers))
    answer = connection.getresponse()
    answer.read()
    return answer.status


@contextmanager
def serving(folder: Path, config: Mapping[str, object], tls: ssl.SSLContext | None = None) -> Iterator[Target]:
    """An exporter with this web configuration, collecting once an hour so that only scrapes cost."""
    (folder / "web.yml").write_text(json.dumps(config))
    port = free_port()
    options = ["--address", f"127.0.0.1:{port}", "--interval", "1h", "--log-level", "error"]
    process = subprocess.Popen([*COMMAND, *options, "--web.config.file", str(folder / "web.yml")])
    target, end = Target(Exporter(process, port), tls), time.monotonic() + 30
    while True:
        try:
            ask(target.connect(), {})
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    yield target
    process.terminate()
    process.wait(10)


def scrape(target: Target, headers: Mapping[str, str], scrapes: int) -> tuple[float, float]:
    """Milliseconds of the median scrape, and of CPU a scrape; the first one, with bcrypt, is not counted."""
    connection, took = target.connect(), []
    assert ask(connection, headers) == 200
    time.sleep(1)
    before = target.exporter.cpu_seconds()
    for _ in range(scrapes):
        begin = time.perf_counter()
        assert ask(connection, headers) == 200
        took.append(time.perf_counter() - begin)
    return statistics.median(took) * 1000, (target.exporter.cpu_seconds() - before) / scrapes * 1000


def flood(target: Target, wrong: int) -> dict[str, Any]:
    """What happens to the right ones meanwhile."""
    verified, late, over = basic("verified", "right"), basic("late", "right"), threading.Event()
    assert ask(target.connect(), verified) == 200
    begin, before = time.monotonic(), target.exporter.cpu_seconds()

    def guess(worker: int) -> Counter[int]:
        connection = target.connect()
        return Counter(ask(connection, basic("late", f"{worker} {turn}")) for turn in range(wrong // 10))

    def keep_scraping() -> list[float]:
        connection, took = target.connect(), []
        while not over.is_set():
            start = time.perf_counter()
            assert ask(connection, verified) == 200
            took.append((time.perf_counter() - start) * 1000)
            time.sleep(0.02)
        return took

    def come_late() -> tuple[int, float]:
        time.sleep(3)  # by now every place is taken
        start = time.monotonic()
        for tries in range(1, 1000):
            if ask(target.connect(), late) == 200:
                return tries, time.monotonic() - start
            time.sleep(0.5)
        raise AssertionError("locked out")

    with ThreadPoolExecutor(12) as pool:
        scraper, latecomer = pool.submit(keep_scraping), pool.submit(come_late)
        answers = sum(pool.map(guess, range(10)), Counter())
        seconds, cpu = time.monotonic() - begin, target.exporter.cpu_seconds() - before
        tries, waited = latecomer.result()
        over.set()
        took = sorted(scraper.result())
    return {
        "wrong": sum(answers.values()),
        "answers": {str(status): number for status, number in sorted(answers.items())},
        "seconds": seconds,
        "cpu_seconds": cpu,
        "verified": len(took),
        "verified_p50_ms": took[len(took) // 2],
        "verified_worst_ms": took[-1],
        "late_seconds": waited,
        "late_tries": tries,
    }


def told(flood: Mapping[str, Any]) -> str:
    """For people."""
    return (
        f"{flood['wrong']} wrong passwords in {flood['seconds']:.1f} s: {flood['answers']}, "
        f"{flood['cpu_seconds']:.1f} s of CPU\n"
        f"verified scrapes meanwhile: {flood['verified']}, p50 {flood['verified_p50_ms']:.1f} ms, "
        f"worst {flood['verified_worst_ms']:.1f} ms\n"
        f"right password for the first time amid them, from the same address: in after {flood['late_seconds']:.1f} s, "
        f"try {flood['late_tries']}"
    )


def main() -> int:
    """Measure, print, and fail if a verified scrape takes a millisecond more than an open one."""
    options = harness.options(__name__, __doc__)
    options.add_argument("--scrapes", type=int, default=500)
    options.add_argument("--wrong", type=int, default=10000)
    chosen = options.parse_args()
    run = harness.begin(__name__, chosen)
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(10)).decode()
    users = {"basic_auth_users": {"verified": hashed, "late": hashed}}
    with tempfile.TemporaryDirectory() as name:
        folder, authority = Path(name), trustme.CA()
        authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
        secure = {"tls_server_config": {"cert_file": "server.pem", "key_file": "server.pem"}, **users}
        context = ssl.create_default_context()
        authority.configure_trust(context)
        right, results = basic("verified", "right"), {}
        with serving(folder, {}) as target:
            results["open"] = scrape(target, {}, chosen.scrapes)
        with serving(folder, users) as target:
            results["password"] = scrape(target, right, chosen.scrapes)
        with serving(folder, secure, context) as target:
            results["password over TLS"] = scrape(target, right, chosen.scrapes)
        for what, (median, cpu) in results.items():
            print(f"{what:<18} p50 {median:6.3f} ms   CPU {cpu:6.3f} ms")
        with serving(folder, users) as target:
            flooded = flood(target, chosen.wrong)
    print(told(flooded))
    scrapes = {what: {"p50_ms": median, "cpu_ms": cpu} for what, (median, cpu) in results.items()}
    run.write({"scrapes": scrapes, "flood": flooded})
    return 0 if results["password"][0] - results["open"][0] < 1 and results["password"][0] < 10 else 1


if __name__ == "__main__":
    sys.exit(main())
