"""Checks that Prometheus shows stalls that are shorter than the scrape interval. Needs PyTorch with CUDA.

    python -m benchmarks.stalls [--seconds 180] [--gpu 0] [--prometheus PATH] [--fake-driver]

A GPU computes matrix products for half a second and is idle for half a second, in turn. Two scrape jobs, every 15 s and
every 5 s, read the same exporter; another one reads nvitop-exporter if it is installed. Prometheus evaluates the
expressions of docs/histograms.md. The results are compared with the workload's own clock, the driver's power buffer and
its energy counter, which other processes read. `--fake-driver` tests the benchmark without a GPU. Exit code 1 if a
result is outside its tolerance.
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

from benchmarks.exporter import exporter_command, free_port, running
from benchmarks.harness import PROMETHEUS, ROOT, begin, options
from benchmarks.peers import NVITOP
from benchmarks.workloads import STALL_SECONDS
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import tool, until

EXPRESSIONS = dict(re.findall(r"```promql\n# (\w+)\n(.*?)\n```", (ROOT / "docs/histograms.md").read_text(), re.DOTALL))
# Not on the page: means from histograms and from counters, to compare them.
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
ARGUMENTS = ("--metrics", "full", "--high-resolution")
# Seconds by job. The last job scrapes an exporter without --high-resolution, which reads counters once a second.
SCRAPES = {"every_15s": 15, "every_5s": 5, "each_second": 15}
# Room for two scrapes before the window: a rate needs both.
WARM_SECONDS = 35.0
BUCKET_WATTS = 50.0
TICK_SECONDS = 0.1
Phase = tuple[float, float]
Work = Callable[[], Sequence[Phase]]


@dataclass(frozen=True)
class Check:
    """An expected and a measured value, the tolerance, and whether it is kept."""

    what: str
    answer: float
    truth: float
    tolerance: float
    good: bool


def near(what: str, answer: float, truth: float, tolerance: float) -> Check:
    """Check an answer against the truth; the tolerance is in their unit."""
    return Check(what, answer, truth, tolerance, abs(answer - truth) <= tolerance)


@contextmanager
def lines_of(command: Sequence[str], path: Path, env: Mapping[str, str]) -> Iterator[Path]:
    """Run a module in a child process that writes lines to a file; return the file."""
    with path.open("w") as out:
        child = subprocess.Popen([sys.executable, "-m", *command], stdout=out, env={**os.environ, **env})
        try:
            yield path
            if child.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} exited early with code {child.returncode}")
        finally:
            child.kill()
            child.wait()


def fake_driver(folder: Path, seconds: float) -> tuple[Mapping[str, str], list[Phase]]:
    """Make a fake driver whose GPU is busy and idle in turn; return its environment and the busy phases."""
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
    """Return the share of a time window that is within phases."""
    return sum(max(0.0, min(end, until) - max(start, since)) for start, end in phases) / (until - since)


def board(lines: Sequence[str], since: float, until: float, limit: float) -> Mapping[str, float]:
    """Return a window's power in watts by the driver's own buffer and counter; `limit` is the power limit."""
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


class Queries:
    """Queries to Prometheus about one GPU in one time window."""

    def __init__(self, prometheus: Prometheus, gpu: int, at: float, seconds: int) -> None:
        self._prometheus, self._gpu, self._at, self._seconds = prometheus, str(gpu), at, seconds

    def _found(self, promql: str) -> list[Any]:
        query = promql.replace("[5m]", f"[{self._seconds}s]")
        found = self._prometheus.api("query", query=query, time=f"{self._at:.3f}")["result"]
        return [each for each in found if self._gpu in (each["metric"].get("gpu"), each["metric"].get("index"))]

    def answers(self, name: str) -> dict[str, float]:
        """Return the value of an expression by scrape job, NaN for a job without a result."""
        found = {each["metric"]["job"]: float(each["value"][1]) for each in self._found(EXPRESSIONS[name])}
        return {job: found.get(job, nan) for job in SCRAPES}

    def gauge(self, job: str, name: str) -> list[float]:
        """Return the values of a gauge at each scrape of a job."""
        found = self._found(f'{name}{{job="{job}"}}[5m]')
        return [float(value) for each in found for _, value in each["values"]]

    def power(self, job: str) -> list[tuple[float, float]]:
        """Return the share of time in each power bucket, with its upper edge in watts, up to the highest used one."""
        found = [each for each in self._found("rate(gpu_board_power_watts_bucket[5m])") if each["metric"]["job"] == job]
        below = sorted((float(each["metric"]["le"]), float(each["value"][1])) for each in found)
        shares = [(edge, rate - before) for (_, before), (edge, rate) in pairwise([(0.0, 0.0), *below])]
        highest = max(edge for edge, share in shares if share > 0)
        return [(edge, share / below[-1][1]) for edge, share in shares if edge <= highest < float("inf")]


def modes(buckets: Sequence[tuple[float, float]], mean: float) -> dict[str, float]:
    """Return the upper edges, in watts, of the fullest bucket up to the mean, the fullest above it, and the highest."""

    def fullest(found: Sequence[tuple[float, float]]) -> float:
        return max(found, key=lambda bucket: bucket[1], default=(0.0, 0.0))[0]

    return {
        "low": fullest([bucket for bucket in buckets if bucket[0] <= mean]),
        "high": fullest([bucket for bucket in buckets if bucket[0] > mean]),
        "highest": buckets[-1][0],
    }


def checks(
    answers: Mapping[str, Mapping[str, float]], true: Mapping[str, float], buckets: Mapping[str, float]
) -> list[Check]:
    """Compare every answer that has a known true value."""
    every_15s = {name: found["every_15s"] for name, found in answers.items()}

    def within(what: str, name: str, truth: float, share: float) -> Check:
        return near(what, every_15s[name], truth, share * truth)

    return [
        near("share of time at work", every_15s["engine_active"], true["duty"], 0.03),
        near("the same by the histogram of SMs", every_15s["over_half"], every_15s["engine_active"], 0.03),
        near("low power, W", every_15s["low_power"], true["low"], BUCKET_WATTS),
        near("high power, W", every_15s["high_power"], true["high"], BUCKET_WATTS),
        near("highest power, W (edge of its bucket)", buckets["highest"], true["highest"], BUCKET_WATTS),
        near("share of time above the power limit", every_15s["above_limit"], true["share_above_limit"], 0.03),
        within("mean power, W, by the driver's buffer", "mean_power", true["mean"], 0.03),
        within("mean power, W, by the energy counter", "mean_power", true["by_energy_counter"], 0.03),
        near("usual gap, s", every_15s["usual_gap"], true["gap"], 2 * TICK_SECONDS),
        within("mean SM active, by its counter", "mean_sm_active", every_15s["sm_active_by_counter"], 0.01),
        within("mean SM active, scraped every 5 s", "mean_sm_active", answers["mean_sm_active"]["every_5s"], 0.01),
        within("mean power, W, scraped every 5 s", "mean_power", answers["mean_power"]["every_5s"], 0.01),
        near(
            "share of time at work, scraped every 5 s", every_15s["over_half"], answers["over_half"]["every_5s"], 0.03
        ),
    ]


@contextmanager
def working(folder: Path, seconds: float, gpu: int, simulated: bool) -> Iterator[tuple[Mapping[str, str], Work]]:
    """Keep a GPU busy and idle in turn; return the environment for exporters, and a function for the busy phases."""
    if simulated:
        env, phases = fake_driver(folder, seconds)
        yield env, lambda: phases
        return
    pinned = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(gpu)}
    with lines_of(["benchmarks.workloads", "stall"], folder / "work", pinned) as work:
        until(work.read_text, 180, "the first busy phase")
        yield {}, lambda: [(float(on), float(off)) for on, off in map(str.split, work.read_text().splitlines())]


def scrape_configs(ports: Mapping[str, int]) -> list[Mapping[str, object]]:
    """Return the scrape jobs for Prometheus."""
    return [
        {
            "job_name": job,
            "scrape_interval": f"{SCRAPES.get(job, 15)}s",
            "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
        }
        for job, port in ports.items()
    ]


def measure(folder: Path, seconds: int, gpu: int, program: Path, simulated: bool, with_peer: bool) -> dict[str, Any]:
    """Scrape a GPU that is busy and idle in turn for `seconds`; return the numbers of the result."""
    with ExitStack() as stack:
        env, work = stack.enter_context(working(folder, seconds + 2 * WARM_SECONDS, gpu, simulated))
        ports = dict.fromkeys(SCRAPES, free_port()) | {"each_second": free_port()}
        ports |= {"nvitop": free_port()} if with_peer else {}
        high_resolution = exporter_command(ports["every_15s"], *ARGUMENTS)
        exporter = stack.enter_context(running(high_resolution, ports["every_15s"], env))
        stack.enter_context(running(exporter_command(ports["each_second"]), ports["each_second"], env))
        if with_peer:
            stack.enter_context(running(NVITOP.command(ports["nvitop"]), ports["nvitop"], env))
        power = stack.enter_context(lines_of(["benchmarks.board", str(gpu)], folder / "board", env))
        jobs = {"scrape_configs": scrape_configs(ports)}
        prometheus = stack.enter_context(scraping(folder, "15s", {}, program=program, more=jobs))
        time.sleep(WARM_SECONDS)
        used = exporter.cpu_seconds()
        time.sleep(seconds)
        now, cpu = time.time(), (exporter.cpu_seconds() - used) / seconds
        time.sleep(3)  # until the power samples up to `now` are read
        queries, phases = Queries(prometheus, gpu, now, seconds), work()
        answers = {name: queries.answers(name) for name in EXPRESSIONS}
        limit = answers["limit"]["every_15s"]
        true = {
            "duty": busy(phases, now - seconds, now),
            "gap": median(later - end for (_, end), (later, _) in pairwise(phases)),
            **board(power.read_text().splitlines(True), now - seconds, now, limit),
        }
        buckets = queries.power("every_15s")
        found = modes(buckets, answers["mean_power"]["every_15s"])
        gauges = {job: {name: queries.gauge(job, name) for name in GAUGES[job]} for job in GAUGES if job in ports}
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
        "checks": [asdict(check) for check in checks(answers, true, found)],
    }


def main() -> int:
    """Measure, print and write; return 1 if an answer is outside its tolerance."""
    parser = options(__name__, __doc__)
    parser.add_argument("--seconds", type=int, default=180, help="length of the window (default: %(default)s)")
    parser.add_argument("--gpu", type=int, default=0, help="index of the GPU (default: %(default)s)")
    parser.add_argument(
        "--prometheus", type=Path, metavar="PATH", help="the Prometheus binary (default: from PATH or `make tools`)"
    )
    parser.add_argument(
        "--fake-driver", action="store_true", help="test the benchmark without a GPU; no result without --json"
    )
    chosen = parser.parse_args()
    run = begin(__name__, chosen, (PROMETHEUS,) if chosen.prometheus else ())
    with_peer = not chosen.fake_driver and NVITOP.present()
    with tempfile.TemporaryDirectory() as folder:
        program = chosen.prometheus or tool("prometheus")
        numbers = measure(Path(folder), chosen.seconds, chosen.gpu, program, chosen.fake_driver, with_peer)
    run.write(numbers)
    results = [Check(**check) for check in numbers["checks"]]
    for check in results:
        print(
            f"{'ok' if check.good else 'MISSED':<7}{check.what:<44}{check.answer:>10.3f}  truth {check.truth:>9.3f}"
            f"  ± {check.tolerance:.3f}"
        )
    for job, gauges in numbers["gauges"].items():
        for name, values in gauges.items():
            print(f"{job}: {name} was " + " ".join(f"{value:g}" for value in values))
    return 0 if all(check.good for check in results) else 1


if __name__ == "__main__":
    sys.exit(main())
