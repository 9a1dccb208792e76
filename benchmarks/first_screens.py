"""Measures how long the first screen of each dashboard takes in a large fleet with a large job, and what it reads.

    python -m benchmarks.first_screens [--nodes 2000] [--ranks 1024]

`make boards` keeps a history of eight simulated nodes, in which six things break. All series that a first screen reads
are copied from there into VictoriaMetrics, three hours with a sample a minute: a node whose ranks wait for a straggler
until the job has enough ranks, then other nodes with jobs of their own, of which one in twenty is faulty, and one in
four has a program that could be faster. Then each
dashboard is opened five times, without a cache: first its variables, one after another, then all queries of the panels
in view, six at a time. Exit code 1 if the median is 2 s or more.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import harness
from benchmarks.dashboard import SHOWN_SECONDS, answered, read
from benchmarks.exporter import cpu_seconds
from benchmarks.harness import BOARDS_HISTORY
from tests.boards import history, plan
from tests.support.prometheus import Prometheus, scraping
from tests.support.victoria import Labels, Samples, Victoria, victoria

END = plan.START + plan.LENGTH - history.STEP
STEP_SECONDS = 60
# On a busy machine, queries take long, but are answered.
PATIENT = ("-search.maxQueryDuration=2m", "-search.maxQueueDuration=2m")
# How often a dashboard is opened.
TIMES = 5
MOST_SECONDS = 2.0
LARGE_JOB = "llm-pretrain"
# The nodes that are copied: of the large job, with nothing but slow code, and with a fault.
OF_THE_JOB, USUAL, FAULTY = "node-002", "node-007", ("node-003", "node-004", "node-005", "node-006")
FAULTY_ONE_IN, SLOW_ONE_IN = 20, 4
# What someone has chosen on each dashboard.
CHOSEN: Mapping[str, Mapping[str, str]] = {
    "fleet": {},
    "job": {"namespace": "nlp", "workload": LARGE_JOB},
    "node": {"node": "node-006"},
    "gpu": {"node": "node-006", "gpu": "5"},
    "cost": {},
}


@dataclass(frozen=True, slots=True)
class Copy:
    """A node that is a copy of `node`, without its alerts if it is `quiet`. Its GPUs are ranks of the same job, from
    `rank` on, or have one of their own."""

    node: str
    number: int
    rank: int | None = None
    quiet: bool = False

    def labels(self, labels: Labels) -> Labels:
        """Return the labels of the copy of a series."""
        return {name: self._renamed(name, value) for name, value in labels.items()}

    def _renamed(self, label: str, value: str) -> str:
        if label in ("UUID", "pod"):
            return f"{value}-{self.number}"
        if label == "rank" and self.rank is not None:
            return str(self.rank + int(value) % plan.GPUS)
        workload = workload_of(self.node)
        named = value.replace(self.node, f"node-{self.number:04}")
        return named if self.rank is not None else named.replace(workload, f"{workload}-{self.number}")


@dataclass(frozen=True)
class Screen:
    """The first screen of a dashboard: how many queries it runs, how many series their selectors find, and, each time
    that it was opened, the seconds until the last answer, and the CPU seconds of the store."""

    board: str
    queries: int
    series: int
    seconds: Sequence[float]
    cpu: Sequence[float]


def workload_of(node: str) -> str:
    """Return the name of the job of a node of the history."""
    return plan.placed()[node][0].name


def copies(nodes: int, ranks: int) -> Iterator[Copy]:
    """Yield what has to be copied for so many nodes, and ranks of the large job."""
    there = len(plan.placed())
    first = sum(workload_of(node) == LARGE_JOB for node in plan.placed()) * plan.GPUS
    of_job = range(first, ranks, plan.GPUS)
    for number, rank in enumerate(of_job, there):
        yield Copy(OF_THE_JOB, number, rank)
    for place, number in enumerate(range(there + len(of_job), nodes)):
        if place % FAULTY_ONE_IN == 0:
            yield Copy(FAULTY[place // FAULTY_ONE_IN % len(FAULTY)], number)
        else:
            yield Copy(USUAL, number, quiet=place % SLOW_ONE_IN > 0)


def series(prometheus: Prometheus) -> Iterator[tuple[Labels, Samples]]:
    """Yield what the first screens read of the history."""
    seen = set()
    for selector in sorted(set().union(*(read(board, chosen) for board, chosen in CHOSEN.items()))):
        times = {"start": f"{END - SHOWN_SECONDS}", "end": f"{END}", "step": str(STEP_SECONDS)}
        for each in prometheus.api("query_range", query=selector, **times)["result"]:
            if (key := tuple(sorted(each["metric"].items()))) not in seen:
                seen.add(key)
                yield each["metric"], [(int(at * 1000), float(value)) for at, value in each["values"]]


def multiplied(found: Iterator[tuple[Labels, Samples]], made: Sequence[Copy]) -> Iterator[tuple[Labels, Samples]]:
    """Yield each series, and its copies: of one that names a node, those of the node; of one of a whole job, those that
    have a job of their own."""
    of_node = {node: [copy for copy in made if copy.node == node] for node in plan.placed()}
    of_job = {workload_of(node): [copy for copy in of_node[node] if copy.rank is None] for node in plan.placed()}
    for labels, samples in found:
        yield labels, samples
        text = "\n".join(labels.values())
        node = next((node for node in of_node if node in text), "")
        for copy in of_node[node] if node else of_job.get(labels.get("workload", ""), ()):
            if not (copy.quiet and "alertname" in labels):
                yield copy.labels(labels), samples


def measure(folder: Path, stored: Path, nodes: int, ranks: int) -> Iterator[Screen]:
    """Yield the first screens, in a store that is made of a history."""
    with victoria(folder, *PATIENT) as store:
        with scraping(stored, "1h", {"static_configs": []}) as prometheus:
            store.write(multiplied(series(prometheus), list(copies(nodes, ranks))))
        for board, chosen in CHOSEN.items():
            seconds, cpu = [], []
            for _ in range(TIMES):
                before = cpu_seconds(store.pid)
                number, took = answered(store, board, chosen, END)
                seconds.append(round(took, 3))
                cpu.append(round(cpu_seconds(store.pid) - before, 3))
            yield Screen(board, number, sum(map(partial(_count, store), read(board, chosen))), seconds, cpu)


def _count(store: Victoria, selector: str) -> int:
    counted = store.api("query", query=f"count(last_over_time({selector}[{SHOWN_SECONDS}s]))", time=f"{END}")
    return sum(int(each["value"][1]) for each in counted["result"])


def line(screen: Screen) -> str:
    """Return a first screen as text for the terminal."""
    took, cpu = median(screen.seconds), median(screen.cpu)
    what = f"{screen.board:<8}{screen.queries:>4} queries{screen.series:>8} series"
    return f"{what}{took:>7.2f} s, at most {max(screen.seconds):.2f} s; CPU {cpu:.2f} s"


def main() -> int:
    """Measure, print and write; return 1 if a bound is missed."""
    options = harness.options(__name__, __doc__)
    options.add_argument("--nodes", type=int, default=2000, help="nodes (default: %(default)s)")
    options.add_argument("--ranks", type=int, default=1024, help="ranks of the large job (default: %(default)s)")
    chosen = options.parse_args()
    run, screens = harness.begin(__name__, chosen), list[Screen]()
    with tempfile.TemporaryDirectory() as folder:
        for screen in measure(Path(folder), BOARDS_HISTORY, chosen.nodes, chosen.ranks):
            screens.append(screen)
            print(line(screen), flush=True)
    run.write({"nodes": chosen.nodes, "ranks": chosen.ranks, "rows": [asdict(screen) for screen in screens]})
    slow = [screen for screen in screens if median(screen.seconds) >= MOST_SECONDS]
    return harness.exit_code(
        [f"{screen.board}: {median(screen.seconds):.2f} s, bound {MOST_SECONDS:g} s" for screen in slow]
    )


if __name__ == "__main__":
    sys.exit(main())
