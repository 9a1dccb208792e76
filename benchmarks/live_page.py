"""Measures what the live page costs: its history alone, kept on disk, and 16 open pages.

    python -m benchmarks.live_page [--seconds 60] [--rounds 2] [--gpus 8] [--pages 16]

Runs four exporters per round, side by side: without the page (`--live-page false`), with it, with what it keeps on disk
of incidents and jobs (`--state-dir`), and with open pages that read the stream. In turn, their CPU would differ more by
what else the machine does than by the page. They read the GPUs of this machine or, without any, a fake driver. All GPUs
belong to one job. CPU is a share of one core, at one scrape per second; then one scraper makes 1000 scrapes of each, in
turn. Exit code 1 if the history costs more than 0.2 % of a core or 3 MiB, keeping it more than 0.1 % or 1 MiB, or the
pages more than 3 % of a core.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

from benchmarks.cost import WARM_SECONDS, cpu_and_memory
from benchmarks.exporter import exporter_command, free_port, running, scrape
from benchmarks.harness import begin, exit_code, gpus, options
from tests.support.fakes.driver import FakeDriver

MOST_CPU, MOST_MIB, MOST_CPU_OF_PAGES = 0.002, 3.0, 0.03
MOST_CPU_OF_KEEPING, MOST_MIB_OF_KEEPING = 0.001, 1.0
# The history and the diagnoses of a young exporter are not those of one that runs.
SETTLED_SECONDS = 40.0
SCRAPES, PAUSE_SECONDS = 1000, 0.01


@dataclass(frozen=True)
class Cost:
    """One run: CPU as a share of one core, memory in MiB, scrapes in milliseconds, bytes that pages received."""

    name: str
    cpu: float
    rss_mib: float
    p50: float
    p99: float
    received: int


@dataclass(frozen=True)
class Way:
    """One way to run the exporter: with so many open pages and these options."""

    name: str
    pages: int = 0
    arguments: tuple[str, ...] = ()


class Pages:
    """Open pages: each reads the stream on a thread of its own, from an address of its own, as viewers do."""

    def __init__(self, port: int, count: int) -> None:
        self._port, self._closing = port, False
        self._pool = ThreadPoolExecutor(max(1, count))
        self._pages = [self._pool.submit(self._read, f"127.0.1.{number + 1}") for number in range(count)]

    def _read(self, address: str) -> int:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60, source_address=(address, 0))
        connection.request("GET", "/api/v1/stream")
        answer = connection.getresponse()
        if answer.status != HTTPStatus.OK:
            raise SystemExit(f"a page got {answer.status}: {answer.read().decode()}")
        received = 0
        while not self._closing:
            received += len(answer.readline())
        connection.close()
        return received

    def close(self) -> int:
        """Stop reading; return how many bytes all pages received. Raises what ended a page."""
        self._closing = True
        received = sum(page.result(5) for page in self._pages)
        self._pool.shutdown()
        return received


def measure(ways: Sequence[Way], env: Mapping[str, str], seconds: float) -> list[Cost]:
    """Measure some ways to run the exporter side by side."""
    with ExitStack() as stack:
        ports = [free_port() for _ in ways]
        exporters = [
            stack.enter_context(running(exporter_command(port, *way.arguments), port, env))
            for way, port in zip(ways, ports, strict=True)
        ]
        time.sleep(WARM_SECONDS)
        opened = [Pages(port, way.pages) for way, port in zip(ways, ports, strict=True)]
        time.sleep(SETTLED_SECONDS)
        with ThreadPoolExecutor(len(ways)) as pool:
            costs = list(pool.map(lambda exporter: cpu_and_memory(exporter, seconds), exporters))
        found = []
        for way, port, pages, (cpu, rss) in zip(ways, ports, opened, costs, strict=True):
            latency = scrape(port, 1, SCRAPES, PAUSE_SECONDS)
            found.append(Cost(way.name, cpu, rss, latency.p50, latency.p99, pages.close()))
    return found


def all_ways(folder: Path, gpus: int, pages: int) -> Sequence[Way]:
    """Return the ways to run the exporter: all GPUs belong to a job, as a file for each in `folder` says."""
    jobs = folder / "jobs"
    jobs.mkdir()
    for gpu in range(gpus):
        (jobs / str(gpu)).write_text("4711\n")
    options = ("--hpc-job-mapping-dir", str(jobs))
    return (
        Way("off", arguments=(*options, "--live-page", "false")),
        Way("on", arguments=options),
        Way("kept", arguments=(*options, "--state-dir", str(folder / "state"))),
        Way("pages", pages, options),
    )


@contextmanager
def environment(count: int) -> Iterator[Mapping[str, str]]:
    """Return the environment in which an exporter reads this machine's GPUs, or a fake driver if there are none."""
    with tempfile.TemporaryDirectory() as folder:
        yield {} if gpus() else FakeDriver(Path(folder), count).environment


def main() -> int:
    """Measure, print and write; return 1 if a bound is missed."""
    parser = options(__name__, __doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long a run is measured (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="how often all are run (default: %(default)s)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of the fake driver (default: %(default)s)")
    parser.add_argument("--pages", type=int, default=16, help="open pages (default: %(default)s)")
    chosen = parser.parse_args()
    run, costs = begin(__name__, chosen), list[Cost]()
    with environment(chosen.gpus) as env, tempfile.TemporaryDirectory() as folder:
        ways = all_ways(Path(folder), gpus() or chosen.gpus, chosen.pages)
        for _ in range(chosen.rounds):
            costs += (of_round := measure(ways, env, chosen.seconds))
            for cost in of_round:
                print(
                    f"{cost.name:<8}{cost.cpu:>8.2%}{cost.rss_mib:>7.1f} MiB{cost.p50:>8.2f}{cost.p99:>7.2f} ms"
                    f"{cost.received / 1024:>9.0f} KiB",
                    flush=True,
                )
    cpu = {way.name: median(cost.cpu for cost in costs if cost.name == way.name) for way in ways}
    memory = {way.name: median(cost.rss_mib for cost in costs if cost.name == way.name) for way in ways}
    run.write(
        {
            "stand_in": not gpus(),
            "gpus": gpus() or chosen.gpus,
            "pages": chosen.pages,
            "rows": [asdict(cost) for cost in costs],
        }
    )
    of_cpu = (
        ("the history", cpu["on"] - cpu["off"], MOST_CPU),
        ("keeping it", cpu["kept"] - cpu["on"], MOST_CPU_OF_KEEPING),
        (f"{chosen.pages} pages", cpu["pages"] - cpu["on"], MOST_CPU_OF_PAGES),
    )
    of_memory = (
        ("the history", memory["on"] - memory["off"], MOST_MIB),
        ("keeping it", memory["kept"] - memory["on"], MOST_MIB_OF_KEEPING),
    )
    missed = [f"{what}: {value:.2%}, bound {bound:.1%} of a core" for what, value, bound in of_cpu if value > bound]
    missed += [f"{what}: {value:.1f} MiB, bound {bound:g} MiB" for what, value, bound in of_memory if value > bound]
    return exit_code(missed)


if __name__ == "__main__":
    sys.exit(main())
