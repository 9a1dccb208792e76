"""gpu-exporter against nvitop-exporter on this machine's GPUs, one after the other in one run.

    pip install -e .[bench] && python -m benchmarks.compare [--seconds 60]

CPU of one core and memory while each is scraped once a second; then latency with 1 and with 10 parallel scrapers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks.exporter import free_port, running, scrape


def measure(name: str, command: Sequence[str], port: int, seconds: float) -> float:
    """Print one row; return the share of a core."""
    with running(command, port) as exporter:
        time.sleep(5)
        begin, before = time.monotonic(), exporter.cpu_seconds()
        alone = scrape(port, 1, int(seconds / 0.77), 0.5)
        cpu = (exporter.cpu_seconds() - before) / (time.monotonic() - begin)
        rss = exporter.rss_mib()
        crowd = scrape(port, 10, 30, 0.2)
        samples = sum(not line.startswith("#") for line in exporter.page().splitlines())
    print(
        f"{name:<24}{cpu:>8.2%}{rss:>8.1f} MiB{samples:>9}{alone.body_bytes / 1024:>8.0f} KiB"
        f"{alone.p50:>9.2f}{alone.p99:>9.2f}{crowd.p50:>11.2f}{crowd.p99:>9.2f}",
        flush=True,
    )
    return cpu


def main() -> int:
    """Measure both and print the ratio."""
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--without-peer", action="store_true")
    chosen = options.parse_args()
    print(f"{'':<24}{'CPU':>8}{'RSS':>12}{'samples':>9}{'gzip':>12}{'p50 ms':>9}{'p99':>9}{'10: p50 ms':>11}{'p99':>9}")
    ours = {}
    for metrics in ("default", "full"):
        port = free_port()
        serve = [
            sys.executable,
            "-m",
            "gpu_exporter",
            "serve",
            "--address",
            f"127.0.0.1:{port}",
            "--log-level",
            "error",
        ]
        ours[metrics] = measure(f"gpu-exporter {metrics}", [*serve, "--metrics", metrics], port, chosen.seconds)
    if not chosen.without_peer:
        port = free_port()
        peer = [sys.executable, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1", "--port", str(port)]
        theirs = measure("nvitop-exporter", peer, port, chosen.seconds)
        print(f"CPU of nvitop-exporter / gpu-exporter full: {theirs / ours['full']:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
