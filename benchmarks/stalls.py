"""Half a second of work, half a second of sleep, scraped every 15 s: what does Prometheus know of it?

    python -m benchmarks.stalls [--seconds 180] [--gpu 0] [--prometheus PATH] [--stand-in]

A GPU does matrix products (needs PyTorch). Two scrape jobs, every 15 s and every 5 s, read the same exporter, and one
reads nvitop-exporter where that is installed. The expressions of docs/histograms.md are asked of Prometheus alone, and
compared with the loop's own clock, the driver's power buffer and its energy counter, which other processes read.
`--stand-in` tries all of this without a GPU, on the tests' driver. Exit code 1 if an answer is too far from the truth.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import nan
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from benchmarks.exporter import free_port, ours, running
from benchmarks.harness import PROMETHEUS, ROOT, begin, options
from benchmarks.peers import NVITOP
from benchmarks.workloads import STALL_SECONDS
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import tool, until

EXPRESSIONS = dict(re.findall(r"```promql\n# (\w+)\n(.*?)\n```", (ROOT / "docs/histograms.md").read_text(), re.DOTALL))
# Not in the page, for it needs no words: means by two ways, and the hardware's counter.
EXPRESSIONS |= {
    "mean_sm_active": "rate(gpu_sm_active_ratio_sum[5m]) / rate(gpu_sm_active_ratio_count[5m])",
    "engine_active": "rate(gpu_gr_engine_active_seconds_total[5m])",
    "sm_active_by_counter": "rate(gpu_sm_active_seconds_total[5m])",
    "watts_by_energy_counter": "rate(gpu_energy_joules_total[5m])",
    "limit": "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
}
GAUGES = {
    "every_15s": (
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_POWER_USAGE_INSTANT",
    ),
    "nvitop": ("gpu_utilization_Percentage", "gpu_power_usage_W"),
}
ARGUMENTS = ("--metrics", "full", "--high-resolution", "true")
# By job; the last one is of an exporter that reads the counters once a second, not ten times.
SCRAPES = {"every_15s": 15, "every_5s": 5, "each_second": 15}
# Scrapes before the window: a rate begins at the second one.
WARM_SECONDS = 35.0
BUCKET_WATTS = 50.0
TICK_SECONDS = 0.1
Phase = tuple[float, float]
Work = Callable[[], Sequence[Phase]]


@dataclass(frozen=True)
class Check:
    """One answer beside the truth, how far apart they may be, and whether they are no further."""

    what: str
    answer: float
    truth: float
    tolerance: float
    good: bool


def near(what: str, answer: float, truth: float, tolerance: float) -> Check:
    """Whether an answer is within so much of the truth, in its unit."""
    return Check(what, answer, truth, tolerance, abs(answer - truth) <= tolerance)


@contextmanager
def lines_of(command: Sequence[str], path: Path, env: Mapping[str, str]) -> Iterator[Path]:
    """The file to which a child process writes its lines, until the end."""
    with path.open("w") as out:
        child = subprocess.Popen([sys.executable, "-m", *command], stdout=out, env={**os.environ, **env})
        try:
            yield path
            if child.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended by itself with code {child.returncode}")
        finally:
            child.kill()
            child.wait()


def stand_in(folder: Path, seconds: float) -> tuple[Mapping[str, str], list[Phase]]:
    """The tests' driver, which works and rests in turns: its environment, and the times at which it works."""
    from tests.support.fakes.driver import FakeDriver, counter, steps

    driver, start = FakeDriver(folder / "driver", 1), time.time()
    phases = [(start + 2 * STALL_SECONDS * n, start + (2 * n + 1) * STALL_SECONDS) for n in range(int(seconds))]
    with driver.batch():
        driver.set("Samples.0", steps(*((v, t) for on, off in phases for v, t in ((923000, on), (118000, off)))))
        for metric, percent in ((1, 99.5), (2, 96)):
            driver.set(f"Gpm.{metric}", steps(*((v, t) for on, off in phases for v, t in ((percent, on), (0, off)))))
        driver.set("FieldValues.83", counter(1e6, 520500, start))
        driver.set("TotalEnergyConsumption", counter(1e6, 520500, start))
    return driver.environment, phases


def busy(phases: Sequence[Phase], since: float, until: float) -> float:
    """The share of the time that is in phases."""
    return sum(max(0.0, min(end, until) - max(start, since)) for start, end in phases) / (until - since)


def board(lines: Sequence[str], since: float, until: float, limit: float) -> Mapping[str, float]:
    """What the driver's own buffer and energy counter say of a window; watts, and the share of samples above it."""
    read = [json.loads(line) for line in lines if line.endswith("\n")]
    watts = [value for line in read for stamp, value in line["samples"] if since <= stamp <= until]
    inside = [line for line in read if since <= line["time"] <= until]
    cuts, first, last = quantiles(watts, n=10), inside[0], inside[-1]
    return {
        "samples": len(watts),
        "low": cuts[0],
        "high": cuts[-1],
        "highest": max(watts),
        "mean": fmean(watts),
        "by_energy_counter": (last["joules"] - first["joules"]) / (last["time"] - first["time"]),
        "share_above_limit": fmean(value > limit for value in watts),
    }


class Asked:
    """One window of one GPU, as a Prometheus has it."""

    def __init__(self, prometheus: Prometheus, gpu: int, at: float, seconds: int) -> None:
        self._prometheus, self._gpu, self._at, self._seconds = prometheus, str(gpu), at, seconds

    def _found(self, promql: str) -> list[Any]:
        asked = promql.replace("[5m]", f"[{self._seconds}s]")
        found = self._prometheus.api("query", query=asked, time=f"{self._at:.3f}")["result"]
        return [each for each in found if self._gpu in (each["metric"].get("gpu"), each["metric"].get("index"))]

    def answers(self, name: str) -> dict[str, float]:
        """By scrape job; what has no answer is no number, which is near nothing."""
        found = {each["metric"]["job"]: float(each["value"][1]) for each in self._found(EXPRESSIONS[name])}
        return {job: found.get(job, nan) for job in SCRAPES}

    def gauge(self, job: str, name: str) -> list[float]:
        """What each scrape of a job saw."""
        found = self._found(f'{name}{{job="{job}"}}[5m]')
        return [float(value) for each in found for _, value in each["values"]]

    def power(self, job: str) -> list[tuple[float, float]]:
        """The upper edge of each bucket of power up to the highest used, in watts, and the share of time in it."""
        found = [each for each in self._found("rate(gpu_board_power_watts_bucket[5m])") if each["metric"]["job"] == job]
        below = sorted((float(each["metric"]["le"]), float(each["value"][1])) for each in found)
        shares = [(edge, rate - before) for (_, before), (edge, rate) in pairwise([(0.0, 0.0), *below])]
        highest = max(edge for edge, share in shares if share > 0)
        return [(edge, share / below[-1][1]) for edge, share in shares if edge <= highest < float("inf")]


def modes(buckets: Sequence[tuple[float, float]], mean: float) -> dict[str, float]:
    """The upper edges, in watts, of the fullest bucket up to the mean, of the fullest above it, and of the highest."""

    def fullest(found: Sequence[tuple[float, float]]) -> float:
        return max(found, key=lambda bucket: bucket[1], default=(0.0, 0.0))[0]

    return {
        "low": fullest([bucket for bucket in buckets if bucket[0] <= mean]),
        "high": fullest([bucket for bucket in buckets if bucket[0] > mean]),
        "highest": buckets[-1][0],
    }


def judged(
    answers: Mapping[str, Mapping[str, float]], true: Mapping[str, float], buckets: Mapping[str, float]
) -> list[Check]:
    """Every answer that has a truth, beside it."""
    said = {name: found["every_15s"] for name, found in answers.items()}

    def within(what: str, name: str, truth: float, share: float) -> Check:
        return near(what, said[name], truth, share * truth)

    return [
        near("share of time at work", said["engine_active"], true["duty"], 0.03),
        near("the same by the histogram of SMs", said["over_half"], said["engine_active"], 0.03),
        near("low power, W", said["low_power"], true["low"], BUCKET_WATTS),
        near("high power, W", said["high_power"], true["high"], BUCKET_WATTS),
        near("highest power, W (edge of its bucket)", buckets["highest"], true["highest"], BUCKET_WATTS),
        near("share of time above the power limit", said["above_limit"], true["share_above_limit"], 0.03),
        within("mean power, W, by the driver's buffer", "mean_power", true["mean"], 0.03),
        within("mean power, W, by the energy counter", "mean_power", true["by_energy_counter"], 0.03),
        near("usual gap, s", said["usual_gap"], true["gap"], 2 * TICK_SECONDS),
        within("mean SM active, by its counter", "mean_sm_active", said["sm_active_by_counter"], 0.01),
        within("mean SM active, scraped every 5 s", "mean_sm_active", answers["mean_sm_active"]["every_5s"], 0.01),
        within("mean power, W, scraped every 5 s", "mean_power", answers["mean_power"]["every_5s"], 0.01),
        near("share of time at work, scraped every 5 s", said["over_half"], answers["over_half"]["every_5s"], 0.03),
    ]


@contextmanager
def working(folder: Path, seconds: float, gpu: int, simulated: bool) -> Iterator[tuple[Mapping[str, str], Work]]:
    """A GPU that works and rests for at least so long: the environment that shows it, and when it worked so far."""
    if simulated:
        env, phases = stand_in(folder, seconds)
        yield env, lambda: phases
        return
    pinned = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(gpu)}
    with lines_of(["benchmarks.workloads", "stall"], folder / "work", pinned) as work:
        until(work.read_text, 180, "the first computing")
        yield {}, lambda: [(float(on), float(off)) for on, off in map(str.split, work.read_text().splitlines())]


def scrape_configs(ports: Mapping[str, int]) -> list[Mapping[str, object]]:
    """Prometheus' jobs."""
    return [
        {
            "job_name": job,
            "scrape_interval": f"{SCRAPES.get(job, 15)}s",
            "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
        }
        for job, port in ports.items()
    ]


def measure(folder: Path, seconds: int, gpu: int, program: Path, simulated: bool, with_peer: bool) -> dict[str, Any]:
    """Let a GPU work and rest, scrape it for so many seconds, and ask."""
    with ExitStack() as stack:
        env, work = stack.enter_context(working(folder, seconds + 2 * WARM_SECONDS, gpu, simulated))
        ports = dict.fromkeys(SCRAPES, free_port()) | {"each_second": free_port()}
        ports |= {"nvitop": free_port()} if with_peer else {}
        exporter = stack.enter_context(running(ours(ports["every_15s"], *ARGUMENTS), ports["every_15s"], env))
        stack.enter_context(running(ours(ports["each_second"]), ports["each_second"], env))
        if with_peer:
            stack.enter_context(running(NVITOP.command(ports["nvitop"]), ports["nvitop"], env))
        power = stack.enter_context(lines_of(["benchmarks.board", str(gpu)], folder / "board", env))
        jobs = {"scrape_configs": scrape_configs(ports)}
        prometheus = stack.enter_context(scraping(folder, "15s", {}, program=program, more=jobs))
        time.sleep(WARM_SECONDS)
        used = exporter.cpu_seconds()
        time.sleep(seconds)
        now, cpu = time.time(), (exporter.cpu_seconds() - used) / seconds
        time.sleep(3)  # until what happened before is read
        asked, phases = Asked(prometheus, gpu, now, seconds), work()
        answers = {name: asked.answers(name) for name in EXPRESSIONS}
        limit = answers["limit"]["every_15s"]
        true = {
            "duty": busy(phases, now - seconds, now),
            "gap": median(later - end for (_, end), (later, _) in pairwise(phases)),
            **board(power.read_text().splitlines(True), now - seconds, now, limit),
        }
        buckets = asked.power("every_15s")
        found = modes(buckets, answers["mean_power"]["every_15s"])
        gauges = {job: {name: asked.gauge(job, name) for name in GAUGES[job]} for job in GAUGES if job in ports}
    return {
        "seconds": seconds,
        "stand_in": simulated,
        "limit": limit,
        "truth": true,
        "answers": answers,
        "power_buckets": buckets,
        "power_modes": found,
        "gauges": gauges,
        "exporter_cpu": cpu,
        "checks": [asdict(check) for check in judged(answers, true, found)],
    }


def main() -> int:
    """Measure, print and write; 1 if an answer is too far from the truth."""
    parser = options(__name__, __doc__)
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--prometheus", type=Path, help="the program; left out: of PATH or `make tools`")
    parser.add_argument("--stand-in", action="store_true")
    chosen = parser.parse_args()
    run = begin(__name__, chosen, (PROMETHEUS,) if chosen.prometheus else ())
    with_peer = not chosen.stand_in and NVITOP.present()
    with tempfile.TemporaryDirectory() as folder:
        program = chosen.prometheus or tool("prometheus")
        numbers = measure(Path(folder), chosen.seconds, chosen.gpu, program, chosen.stand_in, with_peer)
    run.write(numbers)
    checks = [Check(**check) for check in numbers["checks"]]
    for check in checks:
        print(
            f"{'ok' if check.good else 'MISSED':<7}{check.what:<44}{check.answer:>10.3f}  truth {check.truth:>9.3f}"
            f"  ± {check.tolerance:.3f}"
        )
    for job, gauges in numbers["gauges"].items():
        for name, values in gauges.items():
            print(f"{job}: {name} was " + " ".join(f"{value:g}" for value in values))
    return 0 if all(check.good for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
