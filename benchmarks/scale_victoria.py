"""Measures what a simulated fleet costs two vmagents, VictoriaMetrics and vmalert with all rules.

    python -m benchmarks.scale_victoria [--nodes 2000] [--gpus 8] [--seconds 600] [--interval 60] [--replicas] [--fail]
                                        [--rules 60] [--json FILE]

Two members of a vmagent cluster share the targets; with --replicas both scrape all of them, and VictoriaMetrics
leaves out the duplicates. With --fail, the second vmagent is killed for the second quarter of the time. Exit code 1 if
a scrape failed or is missing, a rule group took more than half its interval, or a GPU was counted twice. The rules are
evaluated every `--rules` seconds, but for those that need an interval of their own. VictoriaMetrics and vmalert have a
lower priority than the vmagents and the simulated nodes, so that a burst of queries delays no scrape, and `GOGC=100`.
For Prometheus with the same load, run `python -m benchmarks.scale` with the same nodes and interval.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from benchmarks import harness
from benchmarks.exporter import cpu_seconds, free_port, rss_mib, running
from tests.support.tools import NEWER, until
from tests.support.victoria import LOOK_BACK, Victoria, vmalert
from tests.support.victoria import running as healthy

RULES = "alerts/vmalert/rules.yaml"
# Both collect garbage at 30 % of growth by default; more memory for less CPU, and a lower priority.
TUNED = ("env", "GOGC=100", "nice", "-n", "5")
START_SECONDS = 300.0
DURATION, INTERVAL = "vmalert_iteration_duration_seconds", "vmalert_iteration_interval_seconds"


@dataclass(frozen=True, slots=True)
class Asked:
    """The load that is asked for. `replicas`: both vmagents scrape everything. `fail`: one of them is killed.

    Rules are evaluated every `rules` seconds.
    """

    nodes: int
    gpus: int
    seconds: int
    interval: int
    rules: int
    replicas: bool
    fail: bool


@dataclass(frozen=True, slots=True)
class Load:
    """What was measured: CPU as shares of one core and memory in MiB by process, evaluation times in seconds."""

    scrapes: int
    failed: int
    missing: int
    gpus_at_most: float
    samples_per_second: float
    firing: Mapping[str, float]
    rule_seconds: Mapping[str, float]
    rule_intervals: Mapping[str, float]
    rules_missed: int
    cpu: Mapping[str, float]
    mib: Mapping[str, float]

    def missed_bounds(self, asked: Asked) -> list[str]:
        """Return the missed bounds, each with the measured value."""
        counts = {"failed scrapes": self.failed, "missed evaluations": self.rules_missed}
        # Without replicas, the targets of a vmagent that is down are not scraped.
        counts |= {} if asked.fail and not asked.replicas else {"missing scrapes": self.missing}
        missed = [f"{count} {what}, bound 0" for what, count in counts.items() if count]
        if self.gpus_at_most > asked.nodes * asked.gpus:
            missed.append(f"{self.gpus_at_most:.0f} GPUs counted, bound {asked.nodes * asked.gpus}")
        return missed + [
            f"rule group {name}: {took:.2f} s, bound {self.rule_intervals[name] / 2:g} s"
            for name, took in self.rule_seconds.items()
            if took >= self.rule_intervals[name] / 2
        ]


@contextmanager
def agent(folder: Path, number: int, config: Path, store: str, replicas: int) -> Iterator[int]:
    """Run a member of a cluster of two vmagents; yield its process id."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(NEWER / "vmagent"),
        f"-promscrape.config={config}",
        "-promscrape.cluster.membersCount=2",
        f"-promscrape.cluster.memberNum={number}",
        f"-promscrape.cluster.replicationFactor={replicas}",
        f"-remoteWrite.url={store}/api/v1/write",
        f"-remoteWrite.tmpDataPath={folder / f'agent-{number}'}",
        "-promscrape.disableCompression",  # the nodes are on this machine
        f"-httpListenAddr={address}",
    ]
    with healthy(command, folder / f"agent-{number}.log", f"http://{address}/health") as pid:
        yield pid


@contextmanager
def stored(folder: Path, interval: int) -> Iterator[Victoria]:
    """Run VictoriaMetrics, which keeps one sample per interval of series that two vmagents send."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        *TUNED,
        str(NEWER / "victoria-metrics"),
        f"-storageDataPath={folder / 'store'}",
        f"-httpListenAddr={address}",
        LOOK_BACK,
        f"-dedup.minScrapeInterval={interval}s",
        "-search.maxUniqueTimeseries=20000000",
        "-search.maxQueryDuration=2m",
    ]
    with healthy(command, folder / "victoria.log", f"http://{address}/health") as pid:
        yield Victoria(pid, f"http://{address}")


def vmalert_metrics(url: str) -> Mapping[tuple[str, str], float]:
    """Return vmalert's metrics about rule groups, by name and group: of durations, the longest."""
    with urlopen(url, timeout=60) as answer:
        families = list(text_string_to_metric_families(str(answer.read(), "utf-8")))
    found: dict[tuple[str, str], float] = {}
    for sample in (sample for family in families for sample in family.samples):
        if sample.labels.get("quantile", "1") == "1":
            key = sample.name, sample.labels.get("group", "")
            found[key] = max(found.get(key, 0.0), sample.value)
    return found


def simulated_nodes(asked: Asked, port: int) -> list[str]:
    """Return the command that serves the simulated nodes."""
    serve = (
        f"serve --source simulated --nodes {asked.nodes} --gpus {asked.gpus} --interval {asked.interval}s "
        f"--address 127.0.0.1:{port} --log-level error"
    )
    return [sys.executable, "-m", "gpu_exporter", *serve.split()]


def bundled_rules(folder: Path, interval: int) -> Path:
    """Write the rules for vmalert, evaluated in this interval; return their file."""
    out = folder / "bundle"
    options = ["--interval", f"{interval}s", "--out", str(out)]
    command = [sys.executable, "-m", "gpu_exporter", "bundle", "alerts", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out / RULES


def scrape_config(folder: Path, asked: Asked, port: int) -> Path:
    """Write the configuration of the vmagents."""
    path = folder / "scrape.json"
    job = {
        "job_name": "gpu",
        "scrape_interval": f"{asked.interval}s",
        "http_sd_configs": [{"url": f"http://127.0.0.1:{port}/sd"}],
    }
    path.write_text(json.dumps({"scrape_configs": [job]}))
    return path


def measure(folder: Path, asked: Asked) -> Load:
    """Measure for some seconds, after each target was scraped and each rule group evaluated twice."""
    port = free_port()
    command, config = simulated_nodes(asked, port), scrape_config(folder, asked, port)
    with ExitStack() as stack:
        exporter = stack.enter_context(running(command, port, path="/sd", timeout=START_SECONDS))
        store = stack.enter_context(stored(folder, asked.interval))
        replicas = 2 if asked.replicas else 1
        first = stack.enter_context(agent(folder, 0, config, store.url, replicas))
        with ExitStack() as other:
            second = other.enter_context(agent(folder, 1, config, store.url, replicas))
            evaluator, metrics = stack.enter_context(
                vmalert(folder, store.url, [bundled_rules(folder, asked.rules)], TUNED)
            )
            until(
                lambda: _values(store, "count(up)") == [asked.nodes], 60 + 3 * asked.interval, "every target's scrape"
            )
            time.sleep(2 * max(asked.interval, asked.rules, 60) + 60)
            pids = {
                "exporter": exporter.process.pid,
                "vmagent": first,
                "VictoriaMetrics": store.pid,
                "vmalert": evaluator,
            }
            begin, before = time.time(), {name: cpu_seconds(pid) for name, pid in pids.items()}
            missed_before = _missed(vmalert_metrics(metrics))
            own = cpu_seconds(second)
            time.sleep(asked.seconds / 4)
            second_cpu, second_mib = (cpu_seconds(second) - own) / (time.time() - begin), rss_mib(second)
            if asked.fail:
                other.close()
                time.sleep(asked.seconds / 4)
                other.enter_context(agent(folder, 1, config, store.url, replicas))
            time.sleep(max(0.0, begin + asked.seconds - time.time()))
            elapsed = time.time() - begin
            cpu = {name: (cpu_seconds(pid) - before[name]) / elapsed for name, pid in pids.items()}
            mib = {name: rss_mib(pid) for name, pid in pids.items()}
            cpu["second vmagent"], mib["second vmagent"] = second_cpu, second_mib
            found = vmalert_metrics(metrics)
            store.flush()
            return _load(store, asked, found, _missed(found) - missed_before, cpu, mib)


def _missed(metrics: Mapping[tuple[str, str], float]) -> float:
    return sum(value for (name, _), value in metrics.items() if name == "vmalert_iteration_missed_total")


def _values(store: Victoria, query: str) -> list[float]:
    return [float(each["value"][1]) for each in store.api("query", query=query)["result"]]


def _load(
    store: Victoria,
    asked: Asked,
    metrics: Mapping[tuple[str, str], float],
    rules_missed: float,
    cpu: Mapping[str, float],
    mib: Mapping[str, float],
) -> Load:
    """Query the load. A target that was scraped less often than the interval allows has missing scrapes."""
    window = f"[{asked.seconds}s]"
    expected = asked.seconds // asked.interval - 1
    scrapes = _values(store, f"count_over_time(up{window})")
    alerts = store.api("query", query='count by (alertname) (ALERTS{alertstate="firing"})')["result"]
    gpus = "sum(node:gpus:count)"
    return Load(
        scrapes=int(sum(scrapes)),
        failed=int(sum(_values(store, f"sum(count_over_time((up == 0){window[:-1]}:{asked.interval}s]))"))),
        missing=sum(max(0, expected - int(number)) for number in scrapes),
        gpus_at_most=max(_values(store, f"max_over_time(({gpus}){window[:-1]}:30s])"), default=0.0),
        samples_per_second=sum(_values(store, "sum(scrape_samples_scraped)")) / asked.interval,
        firing={each["metric"]["alertname"]: float(each["value"][1]) for each in alerts},
        rule_seconds={group: value for (name, group), value in metrics.items() if name == DURATION},
        rule_intervals={group: value for (name, group), value in metrics.items() if name == INTERVAL},
        rules_missed=int(rules_missed),
        cpu=cpu,
        mib=mib,
    )


def table(load: Load, asked: Asked) -> str:
    """Return the load as text for the terminal."""
    rows = [
        f"{asked.nodes} nodes of {asked.gpus} GPUs every {asked.interval} s for {asked.seconds} s: "
        f"{load.scrapes} scrapes, "
        f"{load.failed} failed, {load.missing} missing; {load.samples_per_second:.0f} samples/s; at most "
        f"{load.gpus_at_most:.0f} GPUs counted",
        *(f"  {name:<18}{used:6.2f} cores {load.mib[name]:8.0f} MiB" for name, used in load.cpu.items()),
        f"longest evaluation of each rule group ({load.rules_missed} missed):",
        *(f"  {name:<24}{took:8.2f} of {load.rule_intervals[name]:.0f} s" for name, took in load.rule_seconds.items()),
        f"firing: {dict(load.firing)}",
    ]
    return "\n".join(rows)


def main() -> int:
    """Measure, print and write; return 1 if a bound is missed."""
    options = harness.options(__name__, __doc__)
    for name, default, text in (
        ("nodes", 2000, "simulated nodes"),
        ("gpus", 8, "GPUs of a node"),
        ("seconds", 600, "how long it is measured"),
        ("interval", 60, "collection and scrape interval in seconds"),
        ("rules", 60, "interval in which rules are evaluated, in seconds"),
    ):
        options.add_argument(f"--{name}", type=int, default=default, help=f"{text} (default: %(default)s)")
    options.add_argument("--replicas", action="store_true", help="both vmagents scrape all targets")
    options.add_argument("--fail", action="store_true", help="kill the second vmagent for a quarter of the time")
    chosen = options.parse_args()
    run = harness.begin(__name__, chosen)
    asked = Asked(
        chosen.nodes, chosen.gpus, chosen.seconds, chosen.interval, chosen.rules, chosen.replicas, chosen.fail
    )
    with tempfile.TemporaryDirectory() as folder:
        load = measure(Path(folder), asked)
    print(table(load, asked))
    version = subprocess.run([NEWER / "vmalert", "--version"], capture_output=True, text=True).stdout.strip()
    run.write({"asked": asdict(asked), "version": version, "load": asdict(load)})
    return harness.exit_code(load.missed_bounds(asked))


if __name__ == "__main__":
    sys.exit(main())
