"""Compares the CPU of a scrape with the CPU that `prometheus_client` needs to render the same samples. Needs no GPU.

    python -m benchmarks.exposition [--gpus 8] [--scrapes 300]

The CPU of a scrape is that of the serving process for a response in plain text over HTTP, without the collection loop.
It is compared with `prometheus_client.generate_latest` over the same samples. Exit code 1 if the ratio is below 20.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from http.client import HTTPConnection
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import harness
from benchmarks.exporter import free_port, running

RECORDING = Path(__file__).parent.parent / "gpu_exporter/sources/recording/packaged/h200_workloads.jsonl.gz"
ROUNDS = 30
BOUND = 20.0


class _Families:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def cloned(target: Path, gpus: int) -> None:
    """Write the packaged recording of one GPU as a recording of `gpus` equal GPUs."""
    with gzip.open(RECORDING, "rt") as lines:
        header = json.loads(next(lines))
        ticks = [json.loads(line) for line in lines]
    first = header["gpus"][0]
    header["gpus"] = [{**first, "gpu": n, "UUID": f"GPU-00000000-0000-0000-0000-{n:012d}"} for n in range(gpus)]
    with target.open("w") as out:
        out.write(json.dumps(header) + "\n")
        out.writelines(json.dumps({**tick, "gpu": n}) + "\n" for tick in ticks for n in range(gpus))


def rendering_seconds(page: str) -> float:
    """Return the CPU time that `prometheus_client` needs to render the samples of a page."""
    registry = CollectorRegistry()
    registry.register(_Families(list(text_string_to_metric_families(page))))
    begin = time.process_time()
    for _ in range(ROUNDS):
        generate_latest(registry)
    return (time.process_time() - begin) / ROUNDS


def main() -> int:
    """Measure, print and write; return 1 if the ratio is below the bound."""
    options = harness.options(__name__, __doc__)
    options.add_argument("--gpus", type=int, default=8, help="replayed GPUs (default: %(default)s)")
    options.add_argument("--scrapes", type=int, default=300, help="scrapes to measure (default: %(default)s)")
    chosen = options.parse_args()
    run = harness.begin(__name__, chosen)
    with tempfile.TemporaryDirectory() as folder:
        recording, port = Path(folder) / "clone.jsonl", free_port()
        cloned(recording, chosen.gpus)
        command = [sys.executable, "-m", "gpu_exporter", "serve", "--source", "replay", "--recording", str(recording)]
        with running([*command, "--metrics", "full", "--address", f"127.0.0.1:{port}"], port) as exporter:
            time.sleep(3)
            begin, before = time.monotonic(), exporter.cpu_seconds()
            time.sleep(5)
            idle = (exporter.cpu_seconds() - before) / (time.monotonic() - begin)
            connection = HTTPConnection("127.0.0.1", port)
            begin, before = time.monotonic(), exporter.cpu_seconds()
            for _ in range(chosen.scrapes):
                connection.request("GET", "/metrics")
                connection.getresponse().read()
            elapsed = time.monotonic() - begin
            scrape_seconds = (exporter.cpu_seconds() - before - idle * elapsed) / chosen.scrapes
            page = exporter.page()
    rendering = rendering_seconds(page)
    ratio = rendering / scrape_seconds
    samples = sum(not line.startswith("#") for line in page.splitlines())
    print(f"{chosen.gpus} replayed GPUs, {samples} samples, {len(page)} bytes; loop alone {idle:.2%} of a core")
    print(f"gpu-exporter scrape          {scrape_seconds * 1000:8.3f} ms CPU")
    print(f"prometheus_client rendering  {rendering * 1000:8.3f} ms CPU")
    print(f"ratio                        {ratio:8.1f}")
    run.write(
        {
            "gpus": chosen.gpus,
            "samples": samples,
            "body_bytes": len(page),
            "loop_cpu": idle,
            "scrape_cpu_ms": scrape_seconds * 1000,
            "rendering_ms": rendering * 1000,
            "ratio": ratio,
        }
    )
    return harness.exit_code([f"ratio {ratio:.1f}, bound {BOUND:g}"] if ratio < BOUND else [])


if __name__ == "__main__":
    sys.exit(main())
