"""Measures what exporters cost: CPU, memory, scrape latency, response size and allocations.

    python -m benchmarks.cost [--seconds 60] [--rows default,everything,…] [--peers nvitop …]
    python -m benchmarks.cost --fake-driver 1,2,4,8,16 [--seconds 10] [--json FILE]

gpu-exporter and the exporters of `benchmarks.peers` run one after the other on the GPUs of this machine. One that is
not installed, or does not start, has a row that says why. CPU and memory are those of everything that an exporter
starts, with the processes that ended, and of the host engine that it reads; memory is the most at any time while it is
scraped. *Idle* is the CPU without any scrape, *wakes* how often its threads wake up in a second of it, *start* the time
until the first page with all of its samples.

The floor of gpu-exporter is the memory of a Python process that reads each GPU once (measured in the same way), and the
CPU of one loop that makes the same NVML calls at the same pace (`benchmarks.floor`). `benchmarks.memory_parts` measures
what the memory of gpu-exporter consists of, `benchmarks.cpu_parts` the CPU.

A row of gpu-exporter is a set of options: `default`, `full`, `everything` (with processes) or `high-resolution`;
`@100ms` sets the interval, `/1` reads only one GPU. CPU is a share of one core, at one scrape per second; the default
of 60 s covers the fields that are read once a minute. Rows with an interval are measured for half of that time, other
exporters for a third, or one of their intervals. Then one scraper makes 300 scrapes, or as many as it can in 12 s, then
ten scrapers at once. The CPU of a scrape excludes the collection loop. The table compares it with the CPU that
`prometheus_client` needs to render the same samples. Memory that a collection allocates is measured in a separate
process, with tracemalloc. Each program is started once before, so that its bytecode is there, as after an installation.

`--fake-driver` shows how the cost grows with the number of GPUs, whole and each divided into seven MIG instances, with
the default and the full metrics. It is the cost of gpu-exporter and of the fake driver, without NVIDIA's library.
Exit code 1 if a bound is missed on real GPUs: 1.4 times the memory of the floor by default, and 1.5 times with
everything on; with eight of them 4 % of a core, at 100 ms 22 %.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.exporter import (
    EVERYTHING,
    HIGH_RESOLUTION,
    Exporter,
    Latency,
    Scraper,
    exporter_command,
    free_port,
    rss_mib,
    running,
    scrape,
)
from benchmarks.exposition import rendering_seconds
from benchmarks.harness import begin, exit_code, gpus, options
from benchmarks.peers import PEERS, Peer, versions

SETS: Mapping[str, Sequence[str]] = {
    "default": (),
    "full": ("--metrics", "full"),
    "everything": EVERYTHING,
    "high-resolution": HIGH_RESOLUTION,
}
ROW = re.compile(rf"(?P<whole>(?P<name>{'|'.join(SETS)})(@(?P<interval>\d+m?s))?)(/(?P<gpus>[1-9]\d*))?")
ROWS = "default,everything,high-resolution,default@100ms,everything@100ms"
WARM_SECONDS = 5.0
# Between two looks at the page of an exporter that starts, and at the memory of one that is scraped.
POLL_SECONDS, MEMORY_SECONDS = 0.25, 0.05
SCRAPES = 300
ALLOCATION_TICKS = 6
MIG_SLICES = 7
# The memory of gpu-exporter by that of the floor.
OVER_FLOOR = {"default": 1.40, "everything": 1.50}
# For the start of the processes of the floor.
PATIENCE_SECONDS = 60.0
EIGHT_GPUS = {"everything": 0.04, "everything@100ms": 0.22}


@dataclass(frozen=True)
class Floor:
    """The least that reading the same GPUs can cost: memory, CPU as a share of one core (also by function), NVML calls
    per second.
    """

    rss_mib: float
    cpu: float
    calls: float
    functions: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """A row: CPU as a share of one core, sizes in bytes; skipped ticks and allocations only of gpu-exporter."""

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
    idle_cpu: float
    start_seconds: float
    wakeups: float = 0.0
    floor: Floor | None = None
    memory: Mapping[str, float] | None = None
    threads: Mapping[str, tuple[float, float]] | None = None


@dataclass(frozen=True)
class NotMeasured:
    """A row of an exporter that is not installed or did not start."""

    name: str
    why: str


def skipped(page: str) -> int | None:
    """Return the number of skipped collections, or None for another exporter."""
    found = [
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "gpu_exporter_ticks_skipped_total"
    ]
    return int(sum(found)) if found else None


def cpu_and_memory(exporter: Exporter, seconds: float) -> tuple[float, float]:
    """Scrape once a second with gzip, as Prometheus does; return the share of a core and the most memory in MiB."""
    with most_memory(exporter) as most, closing(Scraper(exporter.port)) as scrape_once:
        start, before = time.monotonic(), exporter.cpu_seconds()
        while (elapsed := time.monotonic() - start) < seconds:
            scrape_once()
            time.sleep(min(1.0, max(0.0, seconds - elapsed)))
        return (exporter.cpu_seconds() - before) / (time.monotonic() - start), max(most)


@contextmanager
def most_memory(exporter: Exporter) -> Iterator[Sequence[float]]:
    """Measure memory in MiB again and again, so that processes that live only for a scrape count, too."""
    ended, found = Event(), [exporter.rss_mib()]

    def measure_memory() -> None:
        while not ended.wait(MEMORY_SECONDS):
            found.append(exporter.rss_mib())

    thread = Thread(target=measure_memory)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def idle_cpu(exporter: Exporter, seconds: float) -> tuple[float, float]:
    """Return the share of a core without a scrape, and how often threads wake up in a second."""
    start, before, wakes = time.monotonic(), exporter.cpu_seconds(), exporter.wakeups()
    time.sleep(seconds)
    cpu, wakes = exporter.cpu_seconds() - before, exporter.wakeups() - wakes
    passed = time.monotonic() - start
    return cpu / passed, wakes / passed


def samples_of(page: str) -> int:
    """Return the number of samples of a page."""
    return sum(not line.startswith("#") for line in page.splitlines())


def start_seconds(exporter: Exporter, first_read: float) -> float:
    """Return the seconds from the start to the first page with all samples: none appeared in WARM_SECONDS after it.

    `first_read` is how many seconds after its start an exporter may read the GPUs for the first time.
    """
    most, at = 0, 0.0
    while True:
        samples, now = samples_of(exporter.page()), time.monotonic() - exporter.began
        if samples > most:
            most, at = samples, now
        if now >= max(at, first_read) + WARM_SECONDS:
            return at
        time.sleep(POLL_SECONDS)


def allocations(arguments: Sequence[str], env: Mapping[str, str], ticks: int = ALLOCATION_TICKS) -> Mapping[str, float]:
    """Run `benchmarks.allocations` with these options of `serve`; return its result."""
    return beside_serve(["benchmarks.allocations", str(ticks)], arguments, env)


def cpu_parts(arguments: Sequence[str], env: Mapping[str, str], seconds: float) -> Mapping[str, tuple[float, float]]:
    """Run `benchmarks.cpu_parts` with these options of `serve`; return its result."""
    return beside_serve(["benchmarks.cpu_parts", str(seconds)], arguments, env, PATIENCE_SECONDS + 2 * seconds)


def beside_serve(
    module: Sequence[str], arguments: Sequence[str], env: Mapping[str, str], limit: float | None = None
) -> Mapping[str, Any]:
    """Run a module with these options of `serve`, for `limit` seconds at most; return what it prints."""
    served = ["serve", "--address", f"127.0.0.1:{free_port()}", "--log-level", "error", *arguments]
    command = [sys.executable, "-m", *module, *served]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=True, timeout=limit)
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def floor(arguments: Sequence[str], env: Mapping[str, str], seconds: float) -> Floor:
    """Measure the floor of gpu-exporter with these options, with `benchmarks.floor`."""
    command, environment = [sys.executable, "-m", "benchmarks.floor"], {**os.environ, **env}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        memory = rss_mib(process.pid)  # it does nothing any more
        process.stdin.close()
    module = ["benchmarks.floor", str(seconds)]
    return Floor(memory, **beside_serve(module, arguments, env, PATIENCE_SECONDS + 2 * seconds))


def warm_up(
    command: Sequence[str],
    port: int,
    env: Mapping[str, str] | None = None,
    beside: Mapping[int, Sequence[str]] | None = None,
) -> None:
    """Start a program once, so that Python writes its bytecode: what compiles needs 3 to 14 MiB more.

    Raises RuntimeError if it does not start.
    """
    with running(command, port, env, beside=beside):
        pass


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
    least: Floor | None = None,
    beside: Mapping[int, Sequence[str]] | None = None,
    first_read: float = 0.0,
) -> Cost:
    """Measure one exporter, with the commands that run `beside` it. Raises RuntimeError if it does not start."""
    with running(command, port, env, beside=beside) as exporter:
        start_after = start_seconds(exporter, first_read)
        idle, wakes = idle_cpu(exporter, max(seconds / 2, first_read))
        first = skipped(exporter.page())
        cpu, rss = cpu_and_memory(exporter, seconds)
        start, before = time.monotonic(), exporter.cpu_seconds()
        alone = scrape(port, 1, SCRAPES, 0.005)
        of_scrapes = exporter.cpu_seconds() - before - cpu * (time.monotonic() - start)
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
        samples=samples_of(page),
        body_bytes=len(page.encode()),
        gzip_bytes=alone.body_bytes,
        alone=alone,
        ten=ten,
        scrape_cpu_ms=max(0.0, of_scrapes / alone.scrapes * 1000),
        rendering_ms=rendering_seconds(page) * 1000,
        ticks_skipped=None if first is None or last is None else last - first,
        allocations=allocated,
        idle_cpu=idle,
        start_seconds=start_after,
        wakeups=wakes,
        floor=least,
    )


def on_gpus(
    rows: Sequence[str], seconds: float, peers: tuple[str, ...], *, parts: bool
) -> Iterator[Cost | NotMeasured]:
    """Measure the rows of gpu-exporter, with what they consist of, then the other exporters whose names begin so."""
    boards = gpus()
    if rows:
        warm_up(exporter_command(port := free_port(), *SETS["everything"]), port)
    for row in rows:
        match = ROW.fullmatch(row)
        assert match, row
        whole, name, interval, few = match.group("whole", "name", "interval", "gpus")
        read = int(few or boards)
        devices = ["--devices", f"g:0-{read - 1}"] if few else []
        arguments, port = [*SETS[name], "--interval", interval or "1s", *devices], free_port()
        whole_only = interval or few or not parts
        allocated = None if whole_only else allocations(arguments, {})
        least = None if interval else floor(arguments, {}, seconds)
        memory = None if whole_only else beside_serve(["benchmarks.memory_parts"], arguments, {}, PATIENCE_SECONDS)
        threads = None if whole_only else cpu_parts(arguments, {}, seconds / 2)
        span = seconds / 2 if interval else seconds
        command = exporter_command(port, *arguments)
        found = measure(whole, command, port, span, boards=read, allocated=allocated, least=least)
        yield replace(found, memory=memory, threads=threads)
    for peer in PEERS:
        if peer.name.startswith(peers):
            yield measured(peer, seconds / 3, boards)


def measured(peer: Peer, seconds: float, boards: int, env: Mapping[str, str] | None = None) -> Cost | NotMeasured:
    """Measure another exporter, or return why that is not possible."""
    if why := peer.missing():
        return NotMeasured(peer.name, why)
    warm, port = free_port(), free_port()
    try:
        command, beside = peer.commands(warm)
        warm_up(command, warm, env, beside)
        command, beside = peer.commands(port)
        # An exporter that reads rarely is measured for a whole interval.
        whole = max(seconds, peer.seconds)
        return measure(peer.name, command, port, whole, boards=boards, env=env, beside=beside, first_read=peer.seconds)
    except RuntimeError as error:
        return NotMeasured(peer.name, str(error))


def on_fake_driver(counts: Sequence[int], seconds: float) -> Iterator[Cost]:
    """Measure each number of fake GPUs, whole and divided, with the default and the full metrics."""
    from tests.support.fakes.driver import FakeDriver, mig_device

    for boards, mig in ((boards, mig) for boards in counts for mig in (False, True)):
        with tempfile.TemporaryDirectory() as folder:
            driver = FakeDriver(Path(folder), boards)
            with driver.batch():
                for gpu in range(boards if mig else 0):
                    names = {slot: f"MIG-00000000-0000-0000-{gpu:04d}-{slot:012d}" for slot in range(MIG_SLICES)}
                    parts = {slot: mig_device(slot + 7, "1g.18gb", UUID=name) for slot, name in names.items()}
                    driver.partition(gpu, parts)
            warm_up(exporter_command(port := free_port(), *SETS["full"]), port, driver.environment)
            for name in ("default", "full"):
                port, env = free_port(), driver.environment
                allocated = allocations(SETS[name], env)
                least = floor(SETS[name], env, seconds)
                command = exporter_command(port, *SETS[name])
                yield measure(
                    name, command, port, seconds, boards=boards, mig=mig, env=env, allocated=allocated, least=least
                )


def row(cost: Cost) -> str:
    """Return a row of the printed table."""
    of_floor = " " * 20
    if cost.floor:
        of_floor = f"{cost.rss_mib / cost.floor.rss_mib:>13.2f}{cost.cpu / cost.floor.cpu:>7.1f}"
    allocated = f"{cost.allocations['peak_kib']:>7.0f} KiB" if cost.allocations else " " * 11
    return (
        f"{cost.name:<38}{cost.gpus:>3}{' MIG' if cost.mig else '    '}{cost.cpu:>8.2%}{cost.idle_cpu:>8.2%}"
        f"{cost.start_seconds:>9.1f}{cost.rss_mib:>7.1f} MiB"
        f"{cost.samples:>7}{cost.body_bytes / 1024:>7.0f}{cost.gzip_bytes / 1024:>5.0f} KiB"
        f"{cost.alone.p50:>8.2f}{cost.alone.p99:>7.2f}{cost.ten.p50:>8.2f}{cost.ten.p99:>7.2f}"
        f"{cost.scrape_cpu_ms:>8.2f}{cost.rendering_ms:>8.2f}{allocated}{cost.ticks_skipped or 0:>5}"
        f"{of_floor}{cost.wakeups:>7.1f}"
    )


HEAD = (
    f"{'':<38}{'GPUs':>7}{'CPU':>8}{'idle':>8}{'start s':>9}{'RSS':>11}{'samples':>7}{'body':>7}{'gzip':>9}"
    f"{'p50 ms':>8}{'p99':>7}{'ten p50':>8}{'p99':>7}{'CPU ms':>8}{'client':>8}{'allocated':>11}{'skip':>5}"
    f"{'of floor: MiB, CPU':>20}{'wakes':>7}"
)


def missed_bounds(cost: Cost) -> list[str]:
    """Return the bounds that a row of real GPUs misses, each with the measured value."""
    missed, bound = [], EIGHT_GPUS.get(cost.name, 1.0)
    most = OVER_FLOOR.get(cost.name)
    if most and cost.floor and cost.rss_mib > most * cost.floor.rss_mib:
        missed.append(f"{cost.name}: {cost.rss_mib / cost.floor.rss_mib:.2f} of the floor's memory, bound {most:.2f}")
    if cost.gpus >= 8 and cost.cpu > bound:
        missed.append(f"{cost.name}: {cost.cpu:.1%} of a core, bound {bound:.0%}")
    return missed


def main() -> int:
    """Measure, print and write; return 1 if a bound is missed."""
    parser = options(__name__, __doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long a row is measured (default: %(default)s)")
    parser.add_argument(
        "--rows",
        default=ROWS,
        help=f"any of {', '.join(SETS)}, each also with @INTERVAL and /GPUS, or empty (default: {ROWS})",
    )
    parser.add_argument("--peers", nargs="+", metavar="NAME", default=[""], help="how their names begin")
    parser.add_argument("--without-parts", action="store_true", help="do not measure what the cost consists of")
    parser.add_argument("--without-peers", action="store_true", help="measure only gpu-exporter")
    parser.add_argument(
        "--fake-driver",
        metavar="GPUS",
        help="numbers of GPUs of the fake driver, such as 1,2,4; the result is cost_stand_in.json",
    )
    chosen = parser.parse_args()
    wanted = [row for row in chosen.rows.split(",") if row]
    if unknown := [row for row in wanted if not ROW.fullmatch(row)]:
        parser.error(
            f"--rows: unknown row {', '.join(unknown)}; choose from {', '.join(SETS)}, as in {ROWS},everything/1"
        )
    run, rows, missed = begin(__name__, chosen), list[Any](), list[str]()
    not_measured = list[Any]()

    def keep(*, is_part: bool = True) -> None:
        """Write what is measured so far: an interrupted run keeps its rows."""
        run.write({"stand_in": simulated, "rows": rows, "not_measured": not_measured}, of_peers, is_part=is_part)

    simulated = chosen.fake_driver is not None
    of_peers = {} if simulated or chosen.without_peers else versions()
    costs: Iterable[Cost | NotMeasured] = (
        on_fake_driver([int(count) for count in chosen.fake_driver.split(",")], chosen.seconds)
        if simulated
        else on_gpus(
            wanted,
            chosen.seconds,
            () if chosen.without_peers else tuple(chosen.peers),
            parts=not chosen.without_parts,
        )
    )
    print(HEAD)
    for cost in costs:
        if isinstance(cost, NotMeasured):
            print(f"{cost.name:<38}not measured: {cost.why}", flush=True)
            not_measured.append(asdict(cost))
            keep()
            continue
        print(row(cost), flush=True)
        missed += [] if simulated else missed_bounds(cost)
        rows.append(asdict(cost))
        keep()
    keep(is_part=False)
    return exit_code(missed)


if __name__ == "__main__":
    sys.exit(main())
