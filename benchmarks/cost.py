"""What an exporter costs the machine: CPU, memory, scrapes, body, allocations; beside its peers, in one run.

    python -m benchmarks.cost [--seconds 60] [--rows default,everything,…] [--without-peers]
    python -m benchmarks.cost --stand-in 1,2,4,8,16 [--seconds 10] [--json FILE]

On this machine's GPUs, one exporter after the other: gpu-exporter with its default metrics, with all (`full`) and with
everything on (also processes, and events, which are on by default), with `--high-resolution` too, and, with `@100ms`,
ten times; with `/1`, of one GPU only: what each further one costs is the difference; then the peers that are installed.
CPU, as a share of one core, over `--seconds` (half of it at 100 ms, a third for peers) while one scraper comes every
second; a minute is what the slowest fields come round in. Then 300 scrapes by one, then by ten at once; the CPU of a
scrape is what the first 300 took beyond the loop's. What `prometheus_client` takes to render the same samples stands
beside it. Memory that a tick takes is measured in another process, under tracemalloc.

`--stand-in` is for scaling: so many GPUs of the tests' driver, whole and each as seven MIG instances, with default and
full metrics. What it costs is our own code and the stand-in, without NVIDIA's library. Exit code 1 if a bound is
missed: 60 MiB with everything on, and with eight real GPUs 4 % of a core, at 100 ms 22 %.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.exporter import EVERYTHING, HIGH_RESOLUTION, Exporter, Latency, free_port, ours, running, scrape
from benchmarks.exposition import rendering_seconds
from benchmarks.harness import begin, gpus, options
from benchmarks.peers import PEERS

SETS: Mapping[str, Sequence[str]] = {
    "default": (),
    "full": ("--metrics", "full"),
    "everything": EVERYTHING,
    "high-resolution": HIGH_RESOLUTION,
}
ROW = re.compile(rf"(?P<whole>(?P<name>{'|'.join(SETS)})(@(?P<interval>\d+m?s))?)(/(?P<gpus>[1-9]\d*))?")
ROWS = "default,everything,high-resolution,default@100ms,everything@100ms"
WARM_SECONDS = 5.0
SCRAPES = 300
ALLOCATION_TICKS = 6
MIG_SLICES = 7
RSS_MIB, EIGHT_GPUS = 60.0, {"everything": 0.04, "everything@100ms": 0.22}


@dataclass(frozen=True)
class Cost:
    """CPU is a share of one core, of a scrape in ms; sizes in bytes; allocations only of gpu-exporter."""

    name: str
    gpus: int
    mig: bool
    seconds: float
    cpu: float
    rss_mib: float
    samples: int
    body_bytes: int
    gzip_bytes: int
    alone: Latency
    ten: Latency
    scrape_cpu_ms: float
    rendering_ms: float
    ticks_skipped: int | None
    allocations: Mapping[str, float] | None


def skipped(page: str) -> int | None:
    """Ticks that gpu-exporter left out; None for another exporter."""
    found = [
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "gpu_exporter_ticks_skipped_total"
    ]
    return int(sum(found)) if found else None


def watched(exporter: Exporter, seconds: float) -> tuple[float, float]:
    """CPU and memory while it is scraped once a second, as Prometheus does: with gzip."""
    start, before = time.monotonic(), exporter.cpu_seconds()
    while (passed := time.monotonic() - start) < seconds:
        scrape(exporter.port, scrapers=1, each=1, pause=0.0)
        time.sleep(min(1.0, max(0.0, seconds - passed)))
    return (exporter.cpu_seconds() - before) / (time.monotonic() - start), exporter.rss_mib()


def allocations(arguments: Sequence[str], env: Mapping[str, str], ticks: int = ALLOCATION_TICKS) -> Mapping[str, float]:
    """What `benchmarks.allocations` says of these settings."""
    served = ["serve", "--address", f"127.0.0.1:{free_port()}", "--log-level", "error", *arguments]
    command = [sys.executable, "-m", "benchmarks.allocations", str(ticks), *served]
    said = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=True)
    found: Mapping[str, float] = json.loads(said.stdout)
    return found


def measure(
    name: str,
    command: Sequence[str],
    port: int,
    seconds: float,
    *,
    boards: int,
    mig: bool = False,
    env: Mapping[str, str] | None = None,
    allocated: Mapping[str, float] | None = None,
) -> Cost:
    """One exporter."""
    with running(command, port, env) as exporter:
        time.sleep(WARM_SECONDS)
        first = skipped(exporter.page())
        cpu, rss = watched(exporter, seconds)
        start, before = time.monotonic(), exporter.cpu_seconds()
        alone = scrape(port, 1, SCRAPES, 0.005)
        used = exporter.cpu_seconds() - before - cpu * (time.monotonic() - start)
        ten = scrape(port, 10, SCRAPES // 10, 0.1)
        page = exporter.page()
    last = skipped(page)
    return Cost(
        name=name,
        gpus=boards,
        mig=mig,
        seconds=seconds,
        cpu=cpu,
        rss_mib=rss,
        samples=sum(not line.startswith("#") for line in page.splitlines()),
        body_bytes=len(page.encode()),
        gzip_bytes=alone.body_bytes,
        alone=alone,
        ten=ten,
        scrape_cpu_ms=max(0.0, used / SCRAPES * 1000),
        rendering_ms=rendering_seconds(page) * 1000,
        ticks_skipped=None if first is None or last is None else last - first,
        allocations=allocated,
    )


def on_gpus(rows: Sequence[str], seconds: float, with_peers: bool) -> Iterator[Cost]:
    """Ours by row, then the peers."""
    boards = gpus()
    for row in rows:
        asked = ROW.fullmatch(row)
        assert asked, row
        whole, name, interval, few = asked.group("whole", "name", "interval", "gpus")
        read = int(few or boards)
        of = ["--devices", f"g:0-{read - 1}"] if few else []
        arguments, port = [*SETS[name], "--interval", interval or "1s", *of], free_port()
        allocated = None if interval or few else allocations(arguments, {})
        span = seconds / 2 if interval else seconds
        yield measure(whole, ours(port, *arguments), port, span, boards=read, allocated=allocated)
    for peer in PEERS if with_peers else ():
        if peer.present():
            port = free_port()
            yield measure(peer.name, peer.command(port), port, seconds / 3, boards=boards)
        else:
            print(f"{peer.name} is left out: it is not installed")


def on_stand_in(counts: Sequence[int], seconds: float) -> Iterator[Cost]:
    """By number of GPUs, whole and divided, and by set of metrics."""
    from tests.support.fakes.driver import FakeDriver, mig_device

    for boards, mig in ((boards, mig) for boards in counts for mig in (False, True)):
        with tempfile.TemporaryDirectory() as folder:
            driver = FakeDriver(Path(folder), boards)
            with driver.batch():
                for gpu in range(boards if mig else 0):
                    names = {slot: f"MIG-00000000-0000-0000-{gpu:04d}-{slot:012d}" for slot in range(MIG_SLICES)}
                    parts = {slot: mig_device(slot + 7, "1g.18gb", UUID=name) for slot, name in names.items()}
                    driver.partition(gpu, parts)
            for name in ("default", "full"):
                port, env = free_port(), driver.environment
                allocated = allocations(SETS[name], env)
                command = ours(port, *SETS[name])
                yield measure(name, command, port, seconds, boards=boards, mig=mig, env=env, allocated=allocated)


def row(cost: Cost) -> str:
    """For people."""
    kept = f"{cost.allocations['peak_kib']:>7.0f} KiB" if cost.allocations else " " * 11
    return (
        f"{cost.name:<20}{cost.gpus:>3}{' MIG' if cost.mig else '    '}{cost.cpu:>8.2%}{cost.rss_mib:>7.1f} MiB"
        f"{cost.samples:>7}{cost.body_bytes / 1024:>7.0f}{cost.gzip_bytes / 1024:>5.0f} KiB"
        f"{cost.alone.p50:>8.2f}{cost.alone.p99:>7.2f}{cost.ten.p50:>8.2f}{cost.ten.p99:>7.2f}"
        f"{cost.scrape_cpu_ms:>8.2f}{cost.rendering_ms:>8.2f}{kept}{cost.ticks_skipped or 0:>5}"
    )


HEAD = (
    f"{'':<20}{'GPUs':>7}{'CPU':>8}{'RSS':>11}{'samples':>7}{'body':>7}{'gzip':>9}{'p50 ms':>8}{'p99':>7}"
    f"{'ten p50':>8}{'p99':>7}{'CPU ms':>8}{'client':>8}{'a tick':>11}{'skip':>5}"
)


def kept(cost: Cost, simulated: bool) -> bool:
    """Whether it is within the bounds that hold for it."""
    small = cost.rss_mib <= RSS_MIB or cost.name.partition("@")[0] not in ("everything", "high-resolution")
    return small and (simulated or cost.gpus < 8 or cost.cpu <= EIGHT_GPUS.get(cost.name, 1.0))


def main() -> int:
    """Measure, print and write; 1 if a bound is missed."""
    parser = options(__name__, __doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rows", default=ROWS, help=f"any of {', '.join(SETS)}, each also with @INTERVAL and /GPUS")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--stand-in", metavar="GPUS", help="numbers of GPUs of the tests' driver, such as 1,2,4")
    chosen = parser.parse_args()
    if unknown := [row for row in chosen.rows.split(",") if not ROW.fullmatch(row)]:
        parser.error(
            f"--rows: there is no {', '.join(unknown)}; there are {', '.join(SETS)}, as in {ROWS},everything/1"
        )
    run, found = begin(__name__, chosen), list[Any]()
    simulated = chosen.stand_in is not None
    costs = (
        on_stand_in([int(count) for count in chosen.stand_in.split(",")], chosen.seconds)
        if simulated
        else on_gpus(chosen.rows.split(","), chosen.seconds, not chosen.without_peers)
    )
    print(HEAD)
    good = True
    for cost in costs:
        print(row(cost), flush=True)
        good &= kept(cost, simulated)
        found.append(asdict(cost))
    run.write({"stand_in": simulated, "rows": found})
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
