"""Every condition on random series gives the same result in Python and in a real Prometheus.

Recorded signals are written as blocks of past data. Prometheus' own rule manager then evaluates windows, classes,
marks, comparisons of ranks and alerts on them, as in production, and Python evaluates them for the same instant.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import time
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpu_exporter.alerting.identity import LAST_OWNER
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue import time_shares
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS, CLASS
from gpu_exporter.catalogue.failure_modes import MODES, profiles
from gpu_exporter.catalogue.failure_modes.mode import Ramp, Values, Wave
from gpu_exporter.catalogue.signals import GR_ACTIVE, SIGNALS
from gpu_exporter.catalogue.time_shares import TIME_SHARES
from gpu_exporter.conditions import evaluate
from gpu_exporter.conditions.evaluate import Device, Points, holds, marked
from gpu_exporter.conditions.formulas import parts, results
from gpu_exporter.conditions.signal import OWNER, Signal, record_name
from gpu_exporter.conditions.tree import Condition, Leaf, Limits, OfRanks, Over, terms
from gpu_exporter.diagnosis import window
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from tests import ROOT
from tests.rules.needed import rule_groups
from tests.rules.promtool import promtools
from tests.rules.series import histograms
from tests.support.alerting import without_count
from tests.support.classes import classify
from tests.support.prometheus import Prometheus
from tests.support.tools import free_port, is_long, until

HOUR = 3600.0


class Gpu(NamedTuple):
    """The labels of a device."""

    cluster: str
    node: str
    gpu: str
    UUID: str
    modelName: str
    namespace: str
    workload: str

    @property
    def job(self) -> Hashable:
        """Return the job, which is equal for all of its ranks."""
        return self.cluster, self.namespace, self.workload, self.modelName

    def labels(self, signal: Signal) -> Mapping[str, str]:
        """Return the labels of a recorded signal."""
        known = {
            name: value for name, value in self._asdict().items() if value and (signal.has_owner or name not in OWNER)
        }
        return {**known, **dict.fromkeys(signal.extra_labels, "79")}


@dataclass(slots=True)
class Fleet:
    """A window with the points of each signal of each device."""

    now: float
    known: dict[tuple[Device, Signal], list[tuple[float, float]]] = field(default_factory=dict)
    gpus: list[Gpu] = field(default_factory=list)
    limits: Limits = field(default_factory=dict)
    memo: dict[Hashable, Any] = field(default_factory=dict)
    presence: ClassVar[Signal] = GR_ACTIVE

    @property
    def devices(self) -> Collection[Device]:
        """Return all devices."""
        return self.gpus

    def by_device(self, signal: Signal) -> Mapping[Device, Points]:
        """Return the points in order of time."""
        return {device: points for (device, of), points in self.known.items() if of is signal and points}

    def ranks(self, device: Device) -> Sequence[Device]:
        """Return the ranks of the same job."""
        assert isinstance(device, Gpu)
        if "jobs" not in self.memo:
            jobs: dict[Hashable, list[Device]] = defaultdict(list)
            for gpu in self.gpus:
                jobs[gpu.job].append(gpu)
            self.memo["jobs"] = jobs
        return self.memo["jobs"][device.job] if device.workload else ()

    def alike(self, device: Device) -> Hashable:
        """Return cluster, node and model."""
        assert isinstance(device, Gpu)
        return device.cluster, device.node, device.modelName


PARTS = [part for share in TIME_SHARES.values() for part in parts(share)]
CONDITIONS = [
    *(each.condition for each in BOTTLENECKS),
    *(condition for mode in MODES for condition in mode.conditions),
    *(part for part in PARTS if isinstance(part, Condition)),
]
TERMS = tuple(
    dict.fromkeys(
        [
            *(term for condition in CONDITIONS for term in terms(condition)),
            *(part for part in PARTS if isinstance(part, Leaf)),
        ]
    )
)
MARKS = tuple(dict.fromkeys(term.mark for term in TERMS if not isinstance(term, Over)))


def _over(leaves: Sequence[Leaf]) -> Iterator[Over]:
    for term in leaves:
        if isinstance(term, Over):
            yield term
        elif isinstance(term, OfRanks):
            yield term.of


OVERS = tuple(_over([*TERMS, *(term for mark in MARKS for term in terms(mark.condition))]))
READ: Mapping[Signal, float] = {
    signal: max(over.window for over in OVERS if over.signal is signal)
    for signal in dict.fromkeys(over.signal for over in OVERS)
}


def levels(values: Values) -> Mapping[Signal, tuple[float, float]]:
    """Return the signals of a profile, each with its growth per second."""

    def at(t: float) -> Scrape:
        found = []
        for row, value in values.items():
            now = (
                value.start + value.per_second * t
                if isinstance(value, Ramp)
                else value.low
                if isinstance(value, Wave)
                else value
            )
            found.append(ScrapedSample(row.name, {"UUID": "x", **dict(row.labels)}, now))
        for name, edge, (share, each) in histograms(values):
            assert isinstance(share, float)
            found.append(ScrapedSample(name, {"UUID": "x", "le": edge}, share * each * t))
        return Scrape(t, found)

    seen = window.seen([at(0.0), at(60.0)], {})
    return {
        signal: (points[0][1], (points[-1][1] - points[0][1]) / 60.0)
        for signal in READ
        for points in seen.by_device(signal).values()
    }


# Values that no recording has, and levels on both sides of every limit.
ODD: Mapping[str, Sequence[float]] = {
    "ratio": (0.0, 0.004, 0.03, 0.07, 0.15, 0.3, 0.38, 0.55, 0.66, 0.87, 0.99),
    "bytes_per_second": (0.0, 4e8, 1.6e9, 9e9, 4e10),
    "bytes": (0.0, 6e8, 2e9, 1e11),
    "celsius": (-2.0, 2.0, 40.0, 90.0, 120.0),
    "links": (0.0, 4.0, 17.0, 18.0),
    "lanes": (4.0, 8.0, 16.0),
    "generation": (1.0, 4.0, 5.0),
}
OTHER = (0.0, 1.0, 2.0, 150.0)


def times(now: float, window: float, chance: random.Random) -> list[float]:
    """Return times off every edge: each minute for 20 minutes, before that as rarely as the lookback allows."""
    recent = [now - 37 - 60 * n for n in range(20)]
    older = (
        [recent[-1] - 240 * n for n in range(1, 4 + int(max(0.0, window + 600 - 1200) // 240))] if window > 900 else []
    )
    return [round(t + chance.uniform(-9, 9), 3) for t in reversed(recent + older)]


def series(
    signal: Signal, level: tuple[float, float], now: float, chance: random.Random, *, calm: bool = False
) -> list[tuple[float, float]]:
    """Return a level with noise and, unless `calm`, sometimes a jump, a gap, or an early end."""
    start, slope = level
    found = times(now, READ[signal], chance)
    whole = signal.unit in (
        "bool",
        "links",
        "lanes",
        "generation",
        "action",
        "banks",
        "rows",
        "errors",
        "total",
        "timestamp",
    )
    # No value equals a limit, except for 0, and no trend is an error of rounding.
    jitter = 0.0 if whole or start == 0.0 else 1e-5 * max(1.0, abs(start))
    noise = 0.0 if whole else chance.choice((0.0, 1e-3) if calm else (0.0, 1e-3, 0.1, 0.5))
    drawn = [
        (t, (start + slope * (t - found[0])) * (1 + noise * chance.uniform(-1, 1)) + jitter * chance.random())
        for t in found
    ]
    match 12 if calm else chance.randrange(12):
        case 0:
            place = chance.randrange(len(drawn))
            drawn = [
                (t, value if n < place else value * chance.choice((0.0, 0.5, 3.0)))
                for n, (t, value) in enumerate(drawn)
            ]
        case 1:
            place = chance.randrange(len(drawn) - 1)
            drawn = drawn[:place] + drawn[place + chance.randrange(9) :]
        case 2:
            drawn = drawn[: -chance.randrange(1, 9)]
    return drawn or [(found[0], start)]


def draw(chance: random.Random) -> Fleet:
    """Return jobs of one to nine ranks, each with a failure mode and disturbances; some GPUs have no job."""
    fleet = Fleet(math.floor(time.time()))
    board = levels(profiles.HEALTHY)
    modes = [each for each in MODES if each.condition for _ in range(5 if each.inject.peers else 2)]
    for number, mode in enumerate(modes):
        job = chance.choice((f"job-{number}", f"job-{number}", "job-0", ""))
        calm = chance.random() < 0.4
        cluster = chance.choice(("", "", "", "west"))
        peers = chance.choice((1, 1, 3, 8)) if mode.inject.peers else chance.choice((0, 0, 1))
        for index in range(1 + peers):
            values = mode.inject.peers if index else mode.inject.values
            known = {**board, **levels({**profiles.HEALTHY, **values})}
            identity = (
                chance.choice((cluster,) * 29 + ("east",)),
                f"node-{number}",
                str(index),
                f"GPU-{number}-{index}",
            )
            gpu = Gpu(*identity, chance.choice(("H200",) * 29 + ("B200",)), chance.choice(("ml",) * 29 + ("",)), job)
            fleet.gpus.append(gpu)
            disturbed = 0.0 if calm else chance.choice((0.0, 0.03, 0.3))
            for signal in READ:
                if signal.name.startswith(("xid", "read_age")) and signal.unit == "seconds":
                    age = chance.choice((8.0, 45.0, 250.0, 900.0, 5000.0))
                    if chance.random() < 0.6:
                        fleet.known[gpu, signal] = series(signal, (age, 0.0), fleet.now, chance)
                    continue
                if signal.unit == "timestamp":
                    at = fleet.now - chance.choice((8.0, 45.0, 300.0, 900.0)) + 0.5
                    if chance.random() < 0.4:
                        fleet.known[gpu, signal] = [(t, at) for t, _ in series(signal, (at, 0.0), fleet.now, chance)]
                    continue
                level = known.get(signal)
                if chance.random() < disturbed:
                    level = chance.choice((None, (chance.choice(ODD.get(signal.unit, OTHER)), 0.0)))
                if signal.name in ("up", "unobserved") and level is None:
                    level = (float(chance.random() < 0.7), 0.0)
                if level is not None:
                    fleet.known[gpu, signal] = series(signal, level, fleet.now, chance, calm=calm)
    for number, power in enumerate((0.2, 0.7, 0.98)):  # busy GPUs without profiling counters
        gpu = Gpu("", f"driver-{number}", "0", f"GPU-driver-{number}", "T4", "ml", "")
        fleet.gpus.append(gpu)
        busy = {s.UP: 1.0, s.GR_ACTIVE: 1.0, s.APPROXIMATE: 1.0, s.DRAM_ACTIVE: 0.2, s.UTIL: 1.0}
        for signal, value in {**busy, s.POWER_USE: power, s.POWER_CAP: float(power > 0.9)}.items():
            fleet.known[gpu, signal] = series(signal, (value, 0.0), fleet.now, chance, calm=True)
    return fleet


def blocks(fleet: Fleet, folder: Path, promtool: Path) -> None:
    """Write the fleet as blocks of Prometheus."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for (gpu, signal), points in fleet.known.items():
        assert isinstance(gpu, Gpu)
        labels = ",".join(f'{name}="{value}"' for name, value in gpu.labels(signal).items())
        by_name[signal.record] += [f"{signal.record}{{{labels}}} {value!r} {t:.3f}" for t, value in points]
    for gpu in fleet.gpus:  # alerts on hardware read it, which no signal has
        labels = ",".join(
            f'{name}="{value}"' for name, value in (("cluster", gpu.cluster), ("UUID", gpu.UUID)) if value
        )
        times_of_all = (fleet.now - 60 * ago for ago in range(20, -1, -1))
        by_name[LAST_OWNER] += [f"{LAST_OWNER}{{{labels}}} 1 {t:.3f}" for t in times_of_all]
    lines = [line for name, own in by_name.items() for line in (f"# TYPE {name} gauge", *own)]
    (folder / "fleet.om").write_text("\n".join([*lines, "# EOF\n"]))
    arguments = ["tsdb", "create-blocks-from", "openmetrics", str(folder / "fleet.om"), str(folder / "data")]
    subprocess.run([promtool, *arguments], check=True, capture_output=True, text=True)


def rule_file() -> str:
    """Write all rules that read signals in one group."""
    signals, domains = {signal.record for signal in SIGNALS}, sorted({mode.domain.value for mode in MODES})
    found = [
        {
            name: value
            for name, value in {**rule, "expr": without_count(rule["expr"])}.items()
            if name != "keep_firing_for"
        }
        for group in rule_groups(tuple(ROOT / f"alerts/{name}.yaml" for name in ("recording", *domains)))
        if group["name"] not in ("gpu-identity", "gpu-accounting")
        for rule in group["rules"]
        if rule.get("record") not in signals
    ]
    return json.dumps({"groups": [{"name": "all", "interval": "1s", "rules": found}]})


@contextmanager
def evaluating(folder: Path, promtool: Path) -> Iterator[Prometheus]:
    """Run a Prometheus with the blocks that evaluates the rules."""
    port, log = free_port(), folder / "prometheus.log"
    (folder / "rules.yaml").write_text(rule_file())
    (folder / "prometheus.yml").write_text(json.dumps({"rule_files": ["rules.yaml"]}))
    options = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [promtool.with_name("prometheus"), *options, f"--web.listen-address=127.0.0.1:{port}"],
            stdout=output,
            stderr=output,
        )
    try:
        with closing(Prometheus(process.pid, port, log)) as prometheus:
            until(prometheus.ready, timeout=30, what="Prometheus' start")
            yield prometheus
    finally:
        process.kill()
        process.wait()


Found = dict[tuple[str, str], float]


EDGES: Mapping[Signal, frozenset[int]] = {
    signal: frozenset(
        1000 * round(edge + lookback)
        for edge in {0.0, *(over.window for over in OVERS if over.signal is signal)}
        for lookback in (0.0, evaluate.LOOKBACK_SECONDS)
    )
    for signal in READ
}


def on_an_edge(fleet: Fleet, at: float) -> bool:
    """Return whether a point is exactly at the start of a window, which Prometheus 3 excludes and older ones do not."""
    edges = {signal: {round(1000 * at) - edge for edge in own} for signal, own in EDGES.items()}
    return any(round(1000 * t) in edges[signal] for (_, signal), points in fleet.known.items() for t, _ in points)


def evaluated(prometheus: Prometheus, fleet: Fleet) -> tuple[float, Mapping[str, Mapping[str, float]]] | None:
    """Return time and results by rule and UUID of the last whole evaluation with no point on an edge.

    Alerts are listed by their own names. Return None if there is no such evaluation yet.
    """
    times = sorted(
        {float(at) for each in prometheus.api("query", query="ALERTS[1m]")["result"] for at, _ in each["values"]}
    )
    last = next((at for at in reversed(times[1:-1]) if not on_an_edge(fleet, at)), None)
    if last is None:
        return None
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for each in prometheus.api("query", query='{__name__!="", UUID!=""}[1m]')["result"]:
        labels = each["metric"]
        for at, value in each["values"]:
            if abs(float(at) - last) < 5e-4:
                name = labels["alertname"] if labels["__name__"] == "ALERTS" else labels["__name__"]
                name = f"{name} {labels['cause']}" if name == time_shares.RECORD else name
                found[name][labels["UUID"]] = float(value)
    return last, found


def differences(fleet: Fleet, found: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield the differences between Python and Prometheus."""
    for gpu in fleet.gpus:
        rule_values = {name: by_device[gpu.UUID] for name, by_device in found.items() if gpu.UUID in by_device}
        for mode in MODES:
            name = record_name(mode.record, "holds") if mode.bridge else mode.name
            if mode.condition and (holds(mode.condition, fleet, gpu) is True) != (name in rule_values):
                yield f"{mode.name} of {gpu}: {holds(mode.condition, fleet, gpu)} in Python"
        mine = classify(fleet, gpu)
        if (None if mine is None else BOTTLENECKS.index(mine)) != rule_values.get(CLASS):
            yield f"class of {gpu}: {mine and mine.name} in Python, {rule_values.get(CLASS)} in Prometheus"
        for mark in MARKS:
            is_marked = gpu in marked(mark, fleet)
            if is_marked != bool(rule_values.get(mark.record)):
                yield f"{mark.record} of {gpu}: {is_marked} in Python"
        for term in TERMS:
            if term.record:
                in_python, in_prometheus = evaluate.value(term, fleet, gpu), rule_values.get(term.record)
                if (in_python is None) != (in_prometheus is None) or not math.isclose(
                    in_python or 0, in_prometheus or 0, rel_tol=1e-6, abs_tol=1e-9
                ):
                    yield f"{term.record} of {gpu}: {in_python} in Python, {in_prometheus} in Prometheus"
        for share in TIME_SHARES.values():
            in_python, in_prometheus = results(share, fleet).get(gpu), rule_values.get(f"{share.record} {share.name}")
            if (in_python is None) != (in_prometheus is None) or not math.isclose(
                in_python or 0, in_prometheus or 0, rel_tol=1e-6, abs_tol=1e-9
            ):
                yield f"share {share.name} of {gpu}: {in_python} in Python, {in_prometheus} in Prometheus"
        shares = time_shares.time_shares(fleet, gpu)
        if shares and not math.isclose(sum(shares.values()), 1.0, abs_tol=1e-9):
            yield f"the shares of {gpu} add up to {sum(shares.values())}"


def disagreement(seed: int, folder: Path, promtool: Path) -> str:
    """Return the differences of one Prometheus on a random fleet."""
    fleet = draw(random.Random(seed))
    blocks(fleet, folder, promtool)
    with evaluating(folder, promtool) as prometheus:
        until(lambda: prometheus.query("ALERTS"), timeout=60, what="an alert")
        answer = until(lambda: evaluated(prometheus, fleet), timeout=60, what="an evaluation off every edge")
    assert answer
    fleet.now, found = answer
    wrong = list(differences(fleet, found))
    return "\n".join([f"{promtool}, {len(wrong)} differences:", *wrong[:20]]) if wrong else ""


@settings(
    max_examples=4 if is_long() else 1,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32))
def test_python_and_prometheus_agree(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """In the bundled Prometheus, with `--long` also in the newest, which always runs the cases in promtool."""
    programs = promtools()[: 2 if is_long() else 1]
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(disagreement, seed, tmp_path_factory.mktemp("fleet"), each) for each in programs]
    assert not any(run.result() for run in runs), "\n".join(run.result() for run in runs)


def test_random_fleets_have_every_result() -> None:
    """Otherwise the agreement would prove little."""
    answers: dict[str, set[bool | None]] = defaultdict(set)
    for fleet in map(draw, map(random.Random, range(4))):
        for gpu in fleet.gpus:
            for mode in MODES:
                if mode.condition:
                    answers[mode.name].add(holds(mode.condition, fleet, gpu))
            found = classify(fleet, gpu)
            answers["class"].add(found is None)
            if found:
                answers[found.name].add(True)
    lacking = {mode.name: answers[mode.name] for mode in MODES if mode.condition and len(answers[mode.name]) < 3}
    assert not lacking
    assert not {each.name for each in BOTTLENECKS} - set(answers)
