"""Checks that a Prometheus misses no scrape of a fleet that one process simulates, and measures what both cost.

    python -m benchmarks.fleet [--nodes 100] [--gpus 8] [--seconds 180] [--scrape-interval 1] [--interval 1s]

Exit code 1 if a target is missing or down, or a scrape is missed. A test runs it with fewer nodes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import inf
from pathlib import Path

from benchmarks import harness
from benchmarks.exporter import cpu_seconds, free_port, rss_mib, running
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import until


@dataclass(frozen=True)
class Result:
    """What Prometheus scraped, and CPU as a share of one core and memory in MiB of both processes."""

    targets: int
    scrapes: int
    failed: int
    missed: int
    samples: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    oldest_seconds: float
    ticks_skipped: int
    exporter: tuple[float, float]
    prometheus: tuple[float, float]

    def __str__(self) -> str:
        return (
            f"{self.targets} targets up, {self.scrapes} scrapes, {self.failed} failed, {self.missed} missed\n"
            f"{self.samples} samples in all; a scrape took p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms, "
            f"at worst {self.worst_ms:.1f} ms\n"
            f"oldest value {self.oldest_seconds:.2f} s, {self.ticks_skipped} ticks skipped\n"
            f"exporter {self.exporter[0]:.0%} of a core, {self.exporter[1]:.0f} MiB; "
            f"Prometheus {self.prometheus[0]:.0%}, {self.prometheus[1]:.0f} MiB"
        )


def measure(folder: Path, nodes: int, gpus: int, seconds: int, interval: int, *extra: str) -> Result:
    """Serve a fleet (with `extra` options); measure for `seconds` after the first scrape of every target."""
    port = free_port()
    arguments = f"serve --source simulated --nodes {nodes} --gpus {gpus} --address 127.0.0.1:{port} --log-level error"
    command = [sys.executable, "-m", "gpu_exporter", *arguments.split(), *extra]
    discovery = {"http_sd_configs": [{"url": f"http://127.0.0.1:{port}/sd", "refresh_interval": "5s"}]}
    with (
        running(command, port, path="/nodes/node-000/metrics") as exporter,
        scraping(folder, f"{interval}s", discovery) as prometheus,
    ):
        until(lambda: prometheus.query("count(up)") == [nodes], 60 + 2 * interval, "every target's first scrape")
        pids = exporter.process.pid, prometheus.pid
        begin, before = time.monotonic(), [cpu_seconds(pid) for pid in pids]
        time.sleep(seconds)
        used = [(cpu_seconds(pid) - cpu) / (time.monotonic() - begin) for pid, cpu in zip(pids, before, strict=True)]
        costs = [(cpu, rss_mib(pid)) for cpu, pid in zip(used, pids, strict=True)]
        return _result(prometheus, seconds, interval, costs)


def _result(prometheus: Prometheus, seconds: int, interval: int, costs: list[tuple[float, float]]) -> Result:
    """Query the result. A gap of more than 1.5 intervals between two scrapes counts as missed scrapes."""
    now = time.time()
    up = prometheus.stored(f"up[{seconds}s]").values()
    took = sorted(
        value * 1000
        for found in prometheus.stored(f"scrape_duration_seconds[{seconds}s]").values()
        for _, value in found
    )
    times = [[now - seconds, *(at for at, _ in found), now] for found in up]
    gaps = [later - sooner for found in times for sooner, later in pairwise(found)]
    return Result(
        targets=int(sum(prometheus.query("sum(up)"))),
        scrapes=sum(map(len, up)),
        failed=sum(value == 0 for found in up for _, value in found),
        missed=sum(round(gap / interval) - 1 for gap in gaps if gap > 1.5 * interval),
        samples=int(sum(prometheus.query("sum(scrape_samples_scraped)"))),
        p50_ms=statistics.median(took),
        p99_ms=took[int(len(took) * 0.99)],
        worst_ms=took[-1],
        oldest_seconds=max(prometheus.query(f"max(max_over_time(gpu_snapshot_age_seconds[{seconds}s]))"), default=inf),
        ticks_skipped=int(sum(prometheus.query("sum(gpu_exporter_ticks_skipped_total)"))),
        exporter=costs[0],
        prometheus=costs[1],
    )


def main() -> int:
    """Measure, print and write; return 1 if a bound is missed."""
    options = harness.options(__name__, __doc__)
    for name, default, text in (
        ("nodes", 100, "simulated nodes"),
        ("gpus", 8, "GPUs of a node"),
        ("seconds", 180, "how long Prometheus is measured"),
        ("scrape-interval", 1, "scrape interval of Prometheus, in seconds"),
    ):
        options.add_argument(f"--{name}", type=int, default=default, help=f"{text} (default: %(default)s)")
    options.add_argument(
        "--interval", default="1s", help="collection interval of the exporter, such as 500ms (default: %(default)s)"
    )
    chosen = options.parse_args()
    run = harness.begin(__name__, chosen)
    with tempfile.TemporaryDirectory() as folder:
        extra = "--interval", chosen.interval
        result = measure(Path(folder), chosen.nodes, chosen.gpus, chosen.seconds, chosen.scrape_interval, *extra)
    print(
        f"{chosen.nodes} nodes of {chosen.gpus} GPUs, scraped every {chosen.scrape_interval} s for {chosen.seconds} s"
    )
    print(result)
    settings = {name: getattr(chosen, name) for name in ("nodes", "gpus", "seconds", "scrape_interval", "interval")}
    run.write({**settings, **asdict(result)})
    missed = [f"{result.targets} of {chosen.nodes} targets up"] if result.targets != chosen.nodes else []
    missed += [f"{result.failed} failed scrapes, bound 0"] if result.failed else []
    missed += [f"{result.missed} missed scrapes, bound 0"] if result.missed else []
    return harness.exit_code(missed)


if __name__ == "__main__":
    sys.exit(main())
