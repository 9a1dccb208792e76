"""Measures what a simulated fleet costs a Prometheus that scrapes it and evaluates all rules of alerts/*.yaml.

    python -m benchmarks.scale [--nodes 1000] [--gpus 8] [--seconds 600] [--interval 30] [--metrics default|full]
                               [--prometheus bundled|newer] [--json FILE]

Exit code 1 if a target is down, a scrape failed or came late, a rule group took more than half its interval, or the
first screen of the dashboard Fleet took 2 s or more. A FILE in benchmarks/results/ also updates the measured section of
docs/scale.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from benchmarks import harness
from benchmarks.dashboard import answered
from benchmarks.exporter import cpu_seconds, free_port, rss_mib, running
from benchmarks.harness import ROOT, machine, portable_arguments
from benchmarks.scale_page import PAGE, RESULTS, known, known_stores, page
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import BUNDLED, until

PROGRAMS = {"bundled": BUNDLED, "newer": ROOT / ".tools/newer/usr/bin"}
RULES = sorted(ROOT.glob("alerts/*.yaml"))
POLL_SECONDS = 5.0
# A thousand nodes start in half a minute, and more slowly on a busy machine.
START_SECONDS = 120.0
RULE_SECONDS = "prometheus_rule_group_last_duration_seconds"
RULE_INTERVALS = "prometheus_rule_group_interval_seconds"
RULES_MISSED = "prometheus_rule_group_iterations_missed_total"
# The longest interval of a rule group, but for hourly reports.
SLOW_SECONDS = 120
FLEET_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Load:
    """The load in the measured time: CPU as a share of one core, memory in MiB, times in seconds."""

    targets: int
    scrapes: int
    failed: int
    late: int
    samples_per_second: float
    recorded_per_second: float
    head_series: int
    scraped_series_per_gpu: float
    recorded_series_per_gpu: float
    bytes_per_sample: float
    rule_seconds: Mapping[str, float]
    rule_intervals: Mapping[str, float]
    rules_missed: int
    slowest_rules: Mapping[str, float]
    exporter_cpu: float
    exporter_mib: float
    prometheus_cpu: float
    prometheus_mib: float
    fleet_queries: int
    fleet_seconds: float

    def missed_bounds(self, nodes: int) -> list[str]:
        """Return the missed bounds, each with the measured value."""
        missed = [f"{self.targets} of {nodes} targets up"] if self.targets != nodes else []
        counts = {"failed scrapes": self.failed, "late scrapes": self.late, "missed evaluations": self.rules_missed}
        missed += [f"{count} {what}, bound 0" for what, count in counts.items() if count]
        if self.fleet_seconds >= FLEET_SECONDS:
            missed.append(
                f"Fleet: {self.fleet_queries} queries took {self.fleet_seconds:.2f} s, bound {FLEET_SECONDS:g} s"
            )
        bounds = {name: interval / 2 for name, interval in self.rule_intervals.items()}
        return missed + [
            f"rule group {name}: {took:.2f} s, bound {bounds[name]:g} s"
            for name, took in self.rule_seconds.items()
            if took >= bounds[name]
        ]

    def passed(self, nodes: int) -> bool:
        """Return whether no bound is missed."""
        return not self.missed_bounds(nodes)


def own_metrics(prometheus: Prometheus) -> Mapping[tuple[str, str], float]:
    """Return Prometheus' metrics about itself, by name and rule group."""
    with urlopen(f"http://127.0.0.1:{prometheus.port}/metrics", timeout=60) as answer:
        families = list(text_string_to_metric_families(str(answer.read(), "utf-8")))
    found: dict[tuple[str, str], float] = {}
    for sample in (sample for family in families for sample in family.samples):
        key = sample.name, sample.labels.get("rule_group", "").rpartition(";")[2]
        found[key] = found.get(key, 0.0) + sample.value
    return found


def measure(
    folder: Path,
    *,
    nodes: int,
    gpus: int,
    seconds: int,
    interval: int,
    metrics: str,
    program: Path | None = None,
    own_intervals: bool = True,
) -> Load:
    """Measure for `seconds`, after each target was scraped and each rule group evaluated twice.

    Without `own_intervals`, every rule group is evaluated at the scrape interval.
    """
    port = free_port()
    arguments = (
        f"serve --source simulated --nodes {nodes} --gpus {gpus} --interval {interval}s --metrics {metrics} "
        f"--address 127.0.0.1:{port} --log-level error"
    )
    command = [sys.executable, "-m", "gpu_exporter", *arguments.split()]
    discovery = {"http_sd_configs": [{"url": f"http://127.0.0.1:{port}/sd", "refresh_interval": "30s"}]}
    with (
        running(command, port, path="/sd", timeout=START_SECONDS) as exporter,
        scraping(
            folder,
            f"{interval}s",
            discovery,
            rule_files=RULES,
            evaluation_interval=f"{interval}s",
            program=program,
            own_intervals=own_intervals,
        ) as prometheus,
    ):
        until(lambda: prometheus.query("count(up)") == [nodes], 60 + 3 * interval, "every target's first scrape")
        time.sleep(2 * max(interval, SLOW_SECONDS if own_intervals else 0))
        pids = exporter.process.pid, prometheus.pid
        begin, before, cpu = time.monotonic(), own_metrics(prometheus), [cpu_seconds(pid) for pid in pids]
        slowest: dict[str, float] = {}
        while (now := own_metrics(prometheus)) and time.monotonic() - begin < seconds:
            for (name, group), value in now.items():
                if name == RULE_SECONDS:
                    slowest[group] = max(slowest.get(group, 0.0), value)
            time.sleep(min(POLL_SECONDS, interval / 2))
        elapsed = time.monotonic() - begin
        used = [(cpu_seconds(pid) - was) / elapsed for pid, was in zip(pids, cpu, strict=True)]
        costs = {"exporter_cpu": used[0], "exporter_mib": rss_mib(pids[0])}
        costs |= {"prometheus_cpu": used[1], "prometheus_mib": rss_mib(pids[1])}
        missed = sum(value - before.get(key, 0.0) for key, value in now.items() if key[0] == RULES_MISSED)
        return _load(folder, prometheus, int(elapsed), interval, nodes * gpus, slowest, int(missed), costs)


def _load(
    folder: Path,
    prometheus: Prometheus,
    seconds: int,
    interval: int,
    gpus: int,
    slowest: Mapping[str, float],
    rules_missed: int,
    costs: Mapping[str, float],
) -> Load:
    """Query the load. A scrape is late if it comes more than 1.5 intervals after the one before."""
    up = prometheus.stored(f"up[{seconds}s]").values()
    gaps = [later - sooner for found in up for (sooner, _), (later, _) in pairwise(found)]
    fleet_queries, fleet_seconds = answered(prometheus, "fleet")
    scraped, own = sum(prometheus.query("sum(scrape_samples_scraped)")), own_metrics(prometheus)
    groups = prometheus.api("rules", type="record")["groups"]
    recorded = {name: own["prometheus_rule_group_last_evaluation_samples", name] for name in slowest}
    intervals = {name: own[RULE_INTERVALS, name] for name in slowest}
    rules = [(rule["evaluationTime"], rule["name"]) for group in groups for rule in group["rules"]]
    return Load(
        targets=int(sum(prometheus.query("sum(up)"))),
        scrapes=sum(map(len, up)),
        failed=sum(value == 0 for found in up for _, value in found),
        late=sum(gap > 1.5 * interval for gap in gaps),
        samples_per_second=scraped / interval,
        recorded_per_second=sum(number / intervals[name] for name, number in recorded.items()),
        head_series=int(own["prometheus_tsdb_head_series", ""]),
        scraped_series_per_gpu=scraped / gpus,
        recorded_series_per_gpu=sum(recorded.values()) / gpus,
        bytes_per_sample=_bytes_per_sample(folder, prometheus),
        rule_seconds=slowest,
        rule_intervals=intervals,
        rules_missed=rules_missed,
        slowest_rules={name: took for took, name in sorted(rules, reverse=True)[:10]},
        exporter_cpu=costs["exporter_cpu"],
        exporter_mib=costs["exporter_mib"],
        prometheus_cpu=costs["prometheus_cpu"],
        prometheus_mib=costs["prometheus_mib"],
        fleet_queries=fleet_queries,
        fleet_seconds=fleet_seconds,
    )


def _bytes_per_sample(folder: Path, prometheus: Prometheus) -> float:
    """Return the bytes on disk per sample, if the head is written as a block; blocks of two hours compress better."""
    name = prometheus.snapshot()
    block = next(path.parent for path in (folder / "data/snapshots" / name).glob("*/meta.json"))
    samples = json.loads((block / "meta.json").read_text())["stats"]["numSamples"]
    return sum(path.stat().st_size for path in (block / "chunks").iterdir()) / float(samples)


def report(
    load: Load, version: str, commit: str | None, arguments: Sequence[str], settings: Mapping[str, object]
) -> Mapping[str, object]:
    """Return the content of the result file: the load with machine, date, commit, command and settings."""
    return {
        "command": " ".join(["python -m benchmarks.scale", *portable_arguments(arguments)]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit,
        "machine": {**machine(), "prometheus": version},
        "asked": {name: settings[name] for name in ("nodes", "gpus", "seconds", "interval", "metrics")},
        "load": asdict(load),
    }


def table(load: Load) -> str:
    """Return the load as text for the terminal."""
    rows = [
        f"{load.targets} targets up, {load.scrapes} scrapes, {load.failed} failed, {load.late} late",
        f"{load.samples_per_second:.0f} samples/s scraped, {load.recorded_per_second:.0f} recorded; "
        f"{load.head_series} series; a GPU has {load.scraped_series_per_gpu:.1f} scraped and "
        f"{load.recorded_series_per_gpu:.1f} recorded; {load.bytes_per_sample:.2f} bytes a sample",
        f"exporter {load.exporter_cpu:.0%} of a core, {load.exporter_mib:.0f} MiB; "
        f"Prometheus {load.prometheus_cpu:.0%}, {load.prometheus_mib:.0f} MiB",
        f"the first screen of the dashboard Fleet: {load.fleet_queries} queries in {load.fleet_seconds:.2f} s",
        f"longest evaluation of each rule group ({load.rules_missed} missed):",
        *(f"  {name:<16}{took:8.2f} of {load.rule_intervals[name]:.0f} s" for name, took in load.rule_seconds.items()),
        "slowest recording rules:",
        *(f"  {name:<36}{took:8.2f} s" for name, took in load.slowest_rules.items()),
    ]
    return "\n".join(rows)


def main() -> int:
    """Measure, print and write; return 1 if a bound is missed."""
    options = harness.options(__name__, __doc__, written=False)
    for name, default, text in (
        ("nodes", 1000, "simulated nodes"),
        ("gpus", 8, "GPUs of a node"),
        ("seconds", 600, "how long Prometheus is measured"),
        ("interval", 30, "collection and scrape interval in seconds"),
    ):
        options.add_argument(f"--{name}", type=int, default=default, help=f"{text} (default: %(default)s)")
    options.add_argument(
        "--metrics", choices=("default", "full"), default="default", help="metric set (default: %(default)s)"
    )
    options.add_argument(
        "--prometheus", choices=tuple(PROGRAMS), default="bundled", help="version of Prometheus (default: %(default)s)"
    )
    chosen = options.parse_args()
    program = PROGRAMS[chosen.prometheus] / "prometheus"
    with tempfile.TemporaryDirectory() as folder:
        load = measure(
            Path(folder),
            nodes=chosen.nodes,
            gpus=chosen.gpus,
            seconds=chosen.seconds,
            interval=chosen.interval,
            metrics=chosen.metrics,
            program=program,
        )
    print(table(load))
    if chosen.json:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        version = (done.stdout or done.stderr).split()[2]
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        result = report(load, version, chosen.commit, sys.argv[1:], vars(chosen))
        chosen.json.write_text(json.dumps(result, indent=2) + "\n")
        if chosen.json.resolve().parent == RESULTS:
            PAGE.write_text(page(PAGE.read_text(), known(), known_stores()))
    return harness.exit_code(load.missed_bounds(chosen.nodes))


if __name__ == "__main__":
    sys.exit(main())
