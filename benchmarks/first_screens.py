"""Measures how long the first screen of each dashboard takes in a large fleet with a large job, and what it reads.

    python -m benchmarks.first_screens [--nodes 2000] [--gpus 8] [--ranks 1024] [--interval 60] [--settle 300]

VictoriaMetrics stores the simulated nodes, and vmalert evaluates all rules, as in `benchmarks.scale_victoria`; both
keep running. Some nodes have a fault. After `--settle` seconds, the three hours before the start are filled with the
values of now, for all series that the first screens read. Then each dashboard is opened five times, without a cache:
first its variables, one after another, then all queries of the panels in view. Exit code 1 if the median is 2 s or
more.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import harness
from benchmarks.dashboard import SHOWN_SECONDS, answered, read
from benchmarks.exporter import free_port, running
from benchmarks.scale_victoria import (
    START_SECONDS,
    TUNED,
    Asked,
    agent,
    bundled_rules,
    scrape_config,
    simulated_nodes,
    stored,
)
from tests.support.tools import until
from tests.support.victoria import Labels, Samples, Victoria, vmalert

# Serves a fleet whose first nodes have one job, instead of at most eight.
WITH_A_LARGE_JOB = """
from gpu_exporter.cli.main import main
from gpu_exporter.sources.simulated import source
small = source.blocks
source.blocks = lambda nodes, seed: [0] * {size} + [1 + block for block in small(nodes - {size}, seed)]
main()
"""
# What goes wrong, and on which GPU of a node; each on a node of its own, the last ones.
FAULTS = ("GpuStragglerSlow:{}/1", "GpuThermalThrottling:{}/0", "GpuLost:{}/1", "GpuCollectiveStall:{}/1")
# How often a dashboard is opened.
TIMES = 5
MOST_SECONDS = 2.0


@dataclass(frozen=True)
class Screen:
    """The first screen of a dashboard: how many queries it runs and series it reads, and the seconds until the last
    answer, each time that it was opened."""

    board: str
    queries: int
    series: int
    seconds: Sequence[float]


def choices(nodes: int) -> Mapping[str, Mapping[str, str]]:
    """Return what someone has chosen on each dashboard: the large job, and a GPU that is throttled."""
    node = faulty(nodes)[1]
    return {
        "fleet": {},
        "job": {"namespace": "simulated", "workload": "train-000"},
        "node": {"node": node},
        "gpu": {"node": node, "gpu": "0"},
        "cost": {},
    }


def faulty(nodes: int) -> Sequence[str]:
    """Return the names of the nodes with a fault."""
    width = max(3, len(str(nodes - 1)))
    return [f"node-{nodes - len(FAULTS) + number:0{width}}" for number in range(len(FAULTS))]


@contextmanager
def fleet(folder: Path, asked: Asked, ranks: int) -> Iterator[Victoria]:
    """Run a fleet with a job of so many ranks, its store and its rules; yield the store after the first scrapes."""
    port = free_port()
    python, _, _, *serve = simulated_nodes(asked, port)
    inject = ",".join(map(str.format, FAULTS, faulty(asked.nodes)))
    command = [python, "-c", WITH_A_LARGE_JOB.format(size=ranks // asked.gpus), *serve, "--inject", inject]
    with ExitStack() as stack:
        stack.enter_context(running(command, port, path="/sd", timeout=START_SECONDS))
        store = stack.enter_context(stored(folder, asked.interval, "-search.disableCache"))
        stack.enter_context(agent(folder, 0, scrape_config(folder, asked, port), store.url, replicas=2))
        stack.enter_context(vmalert(folder, store.url, [bundled_rules(folder, asked.rules)], TUNED))
        until(
            lambda: (
                [each["value"][1] for each in store.api("query", query="count(up)")["result"]] == [str(asked.nodes)]
            ),
            60 + 3 * asked.interval,
            "every target's scrape",
        )
        yield store


def fill(store: Victoria, selectors: Sequence[str], begin: float, end: float, interval: int) -> None:
    """Write the values of now as those of each interval from `begin` to `end`, for all series of some selectors."""
    times = range(int(begin * 1000), int(end * 1000), interval * 1000)

    def series() -> Iterator[tuple[Labels, Samples]]:
        written = set()
        for selector in selectors:
            for each in store.api("query", query=selector)["result"]:
                labels, value = each["metric"], float(each["value"][1])
                if (key := tuple(sorted(labels.items()))) not in written:
                    written.add(key)
                    yield labels, [(at, value) for at in times]

    store.write(series())


def measure(folder: Path, asked: Asked, ranks: int, settle: float) -> list[Screen]:
    """Return the first screens, one after another, while the fleet is scraped and judged."""
    begin = time.time()
    with fleet(folder, asked, ranks) as store:
        time.sleep(settle)
        store.flush()
        chosen = choices(asked.nodes)
        selectors = {board: read(board, values) for board, values in chosen.items()}
        fill(store, sorted(set().union(*selectors.values())), time.time() - SHOWN_SECONDS, begin, asked.interval)
        screens = []
        for board, values in chosen.items():
            opened = [answered(store, board, values) for _ in range(TIMES)]
            counts = map(partial(_count, store), selectors[board])
            screens.append(Screen(board, opened[0][0], sum(counts), [round(took, 3) for _, took in opened]))
            print(line(screens[-1]), flush=True)
        return screens


def _count(store: Victoria, selector: str) -> int:
    return sum(int(each["value"][1]) for each in store.api("query", query=f"count({selector})")["result"])


def line(screen: Screen) -> str:
    """Return a first screen as text for the terminal."""
    return (
        f"{screen.board:<8}{screen.queries:>4} queries{screen.series:>8} series{median(screen.seconds):>7.2f} s, "
        f"at most {max(screen.seconds):.2f} s"
    )


def main() -> int:
    """Measure, print and write; return 1 if a bound is missed."""
    options = harness.options(__name__, __doc__)
    for name, default, text in (
        ("nodes", 2000, "simulated nodes"),
        ("gpus", 8, "GPUs of a node"),
        ("ranks", 1024, "ranks of the large job"),
        ("interval", 60, "seconds between two collections, scrapes and evaluations"),
        ("settle", 300, "seconds after the first scrape of every node"),
    ):
        options.add_argument(f"--{name}", type=int, default=default, help=f"{text} (default: %(default)s)")
    chosen = options.parse_args()
    run = harness.begin(__name__, chosen)
    asked = Asked(chosen.nodes, chosen.gpus, 0, chosen.interval, chosen.interval, replicas=False, fail=False)
    with tempfile.TemporaryDirectory() as folder:
        screens = measure(Path(folder), asked, chosen.ranks, chosen.settle)
    settings = {name: getattr(chosen, name) for name in ("nodes", "gpus", "ranks")}
    run.write({**settings, "rows": [asdict(screen) for screen in screens]})
    return harness.exit_code(
        [
            f"{screen.board}: {median(screen.seconds):.2f} s, bound {MOST_SECONDS:g} s"
            for screen in screens
            if median(screen.seconds) >= MOST_SECONDS
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
