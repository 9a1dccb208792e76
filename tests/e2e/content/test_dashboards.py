"""Every panel, variable and annotation in a real Prometheus with gpu-exporter and both generations of dcgm-exporter."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from math import nan
from pathlib import Path

import pytest
import yaml

from gpu_exporter.alerting import serving as serving_rules
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import MODES, profiles
from gpu_exporter.catalogue.failure_modes.loops import LOOP
from gpu_exporter.catalogue.failure_modes.mode import Ramp
from gpu_exporter.diagnosis import signal_reader
from gpu_exporter.diagnosis.scrape import Scrape as Reading
from gpu_exporter.diagnosis.scrape import ScrapedSample
from gpu_exporter.diagnosis.text_format import parsed
from gpu_exporter.diagnosis.window import Window, seen
from tests import ROOT, conftest
from tests.support import panels
from tests.support.alerting import without_count
from tests.support.fakes.dcgm_exporter import DEFAULT, FULL, FakeGpu, page, serving
from tests.support.fakes.driver import FakeDriver, sawtooth
from tests.support.loop_jobs import LoopJob, sending, uuids
from tests.support.prometheus import Prometheus, scraping
from tests.support.remediation_metrics import full
from tests.support.tools import LIMIT, free_port, settled, until

PODS = ("bert-worker-0", "bert-worker-1", "bert-worker-2", "bert-worker-3")
LOW, HIGH, HALF = 118.0, 873.0, 0.5
SICK = {m.XID_ERRORS: 79.0, m.ECC_DBE_VOL: 2.0, **profiles.ONE_THREAD}
BY_NAME = {mode.name: mode for mode in MODES}
# The ranks of a job on two nodes, the last one starved; a free GPU, and one in MIG mode.
JOB = (
    FakeGpu("node-a", 0, profiles.OF_STARVED, PODS[0]),
    FakeGpu("node-a", 1, profiles.OF_STARVED, PODS[1]),
    FakeGpu("node-b", 0, profiles.OF_STARVED, PODS[2]),
    FakeGpu("node-b", 1, profiles.STARVED, PODS[3]),
    FakeGpu("node-b", 2, SICK),
    FakeGpu("node-b", 4, BY_NAME["GpuMemoryHoarded"].inject.values, "notebook-0"),
    FakeGpu("node-b", 5, BY_NAME["GpuWaitsForRequests"].inject.values, "gpuwaitsforrequests-worker-0"),
)
MIG = FakeGpu("node-b", 3, profiles.SMALL_DECODE, instances=("1", "2"))
SERVER = "".join(f"{series} {value}\n" for series, value in BY_NAME["GpuWaitsForRequests"].inject.series.items())
DCGM = {
    f"{'new' if new else 'classic'}-{rows}": SERVER
    + page(
        [replace(gpu, node=f"{gpu.node}-{rows}-{new}") for gpu in (JOB if rows == "default" else (*JOB, MIG))],
        DEFAULT if rows == "default" else FULL,
        new=new,
    )
    for new in (False, True)
    for rows in ("default", "full")
}
# Series of gpu-exporter on other hardware or of other jobs, which no source below has.
OTHER_HARDWARE = {
    m.GPU_TEMP: 55.0,
    m.UP: 1.0,
    replace(m.DOWN, labels=(("reason", "released"),)): 0.0,
    replace(m.XID_LAST, labels=(("xid", "31"), ("kind", "application"))): time.time(),
    replace(m.XID_LAST, labels=(("xid", "999"), ("kind", "unknown"))): time.time(),
    replace(m.JOB_ENDED_AT, labels=(("job_id", "llm-7b"), ("rank", "1"))): time.time(),
    m.INT_SECONDS: 10.0,
    m.NVLINK_COUNT: 18.0,
    m.NVLINK_UP: 18.0,
    m.NVLINK_EXPECTED: 18.0,
    m.FABRIC_CODE: 7.0,
    m.RETIRED_PENDING: 0.0,
    m.HOST_REMOTE: 10.0,
    m.HOST_WORKERS_ACTIVE: 4.0,
    m.HOST_WORKER_CPU: 10.0,
    m.HOST_WORKER_WAIT: 10.0,
    m.HOST_WORKER_BLOCKED: 10.0,
    replace(m.NIC_INFO, labels=(("device", "mlx5_0"), ("port", "1"), ("distance", "PIX"))): 1.0,
    m.NIC_UP: 1.0,
    m.NIC_RATE_SHARE: 1.0,
    m.NIC_DISTANCE: 1.0,
    m.NIC_TX: 10.0,
    m.NIC_RX: 10.0,
    m.NIC_DOWNED: 0.0,
    m.NIC_ERRORS: 0.0,
    m.NIC_RETRANSMITS: 0.0,
}
# The cluster that kube-state-metrics and the remediation controller expose, too.
SCHEDULED = "simulated"
# Alerts that compare with a past of hours.
PATIENT = ("GpuJobSlower", "GpuJobMfuDropped")
ASKED = {text for board in panels.BOARDS.values() for text in panels.expressions(board)}
ALERTS = {name for text in ASKED for name in re.findall(r'alertname="(\w+)"', text)} - set(PATIENT)
# Clusters with alerts, but without costs of incidents six seconds ago.
WITHOUT_INCIDENTS = (
    'count by (cluster) (ALERTS{alertstate="firing"}) unless on (cluster) '
    "count by (cluster) (incident:open:usd_per_hour offset 6s)"
)
# What selects alerts on GPUs of some domains.
OF_GPUS = {
    each
    for text in ASKED
    for each in re.findall(r'ALERTS\{(alertstate="firing", domain=~"[\w|.+]+")[^}]*\} unless on \(UUID\)', text)
}
# A counter that grows is the time, which `Pages` fills in.
CLOCK = "$clock"
INJECTED = {series: value for mode in MODES if mode.requires != LOOP for series, value in mode.inject.series.items()}
NAMES = {series.partition("{")[0] for series in INJECTED}
# An inference server, which is the pod of the simulated GPUs.
VLLM = {"num_requests_running": "8", "generation_tokens_total": CLOCK} | {
    f"inter_token_latency_seconds_{part}": CLOCK for part in ("sum", "count")
}
KUBE = "\n".join(
    (
        *(
            f'vllm:{name}{{namespace="simulated",pod="{panels.SIMULATED_SERVER}"}} {value}'
            for name, value in VLLM.items()
        ),
        *(f"{series} {CLOCK if isinstance(value, Ramp) else value}" for series, value in INJECTED.items()),
        # Without the series that are injected, too.
        *(line for line in full().text().decode().splitlines() if line.partition(" ")[0] not in NAMES),
        "",
    )
)
PAGES = {
    **DCGM,
    "other-hardware": f"{m.RENDERED_AT.name} {time.time()}\n"
    + page([FakeGpu("node-c", 0, OTHER_HARDWARE, PODS[0])], tuple(OTHER_HARDWARE), new=False),
}


class Pages(dict[str, str]):
    """Pages with the time of the scrape."""

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name).replace(CLOCK, f"{time.time():.3f}")


@dataclass(frozen=True)
class Target:
    """A target that is scraped as a cluster of its own; one has no cluster label."""

    cluster: str
    port: int
    path: str = "/metrics"

    def page(self) -> list[ScrapedSample]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            connection.request("GET", self.path)
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        return parsed(text)

    @property
    def config(self) -> Mapping[str, object]:
        labels = {"cluster": self.cluster} if self.cluster else {}
        return {"targets": [f"127.0.0.1:{self.port}"], "labels": {"__metrics_path__": self.path, **labels}}


def at_once(folder: Path) -> list[Path]:
    """Return the committed rules with alerts that fire at once and with windows that accept a short past."""
    for path in sorted((ROOT / "alerts").glob("*.yaml")):
        # Counters grow from one of these moments to the other; those of the host are slow.
        text = re.sub(r"offset \d+[hm]", "offset 3s", re.sub(r"offset 2m\b", "offset 6s", path.read_text()))
        content = yaml.load(text, Loader=yaml.CSafeLoader)
        for group in content.get("groups", ()):
            for rule in group["rules"]:
                rule.pop("for", None)
                rule.pop("keep_firing_for", None)  # or one would also fire with the labels that it has at first
                rule["expr"] = without_count(rule["expr"])
        if "groups" in content:
            (folder / path.name).write_text(json.dumps(content))
    return sorted(folder.glob("*.yaml"))


def scraped_twice(targets: Sequence[Target], seconds: float = 2.0) -> list[Window]:
    """Return the pages of each target, scraped twice because rates need it, and after slow counters have moved."""
    pages = [[Reading(time.time(), target.page()) for target in targets]]
    time.sleep(seconds)
    periods = [_total(m.HOST_PERIODS.name, reading.samples) for reading in pages[0]]
    pages.append([])
    for target, before in zip(targets, periods, strict=True):
        page = target.page()
        while before and _total(m.HOST_PERIODS.name, page) == before:
            time.sleep(0.2)
            page = target.page()
        pages[1].append(Reading(time.time(), page))
    return [seen(both, {}) for both in zip(*pages, strict=True)]


def _total(name: str, samples: Sequence[ScrapedSample]) -> float:
    return sum(sample.value for sample in samples if sample.name == name)


def problems(prometheus: Prometheus, targets: Sequence[Target], answered: set[str]) -> list[str]:
    """Return the problems of the dashboards in each target's cluster, for some also narrowed down to one GPU."""
    wrong = []
    for target, found in zip(targets, scraped_twice(targets), strict=True):
        one = next(known for known in found.devices.values() if known.node)
        narrow = {"node": one.node, "gpu": one.gpu, "namespace": one.namespace, "workload": one.workload}
        for choice in ({}, narrow) if target.cluster in ("simulated", "new-full") else ({},):
            variables = {"cluster": target.cluster, **choice}
            allocated = target.cluster == SCHEDULED
            complaints = panels.problems(prometheus, panels.BOARDS, found, variables, answered, allocated=allocated)
            wrong += [f"{variables}: {each}" for each in complaints]
    return wrong


def compare(prometheus: Prometheus, folder: Path, wrong: Callable[[], list[str]]) -> None:
    """Wait until nothing is wrong while scrapes pause, after enough of them.

    A machine that stands still for seconds leaves the rules without scrapes, so one look is not enough.
    """

    def now() -> list[str]:
        until(lambda: min(prometheus.query("count_over_time(up[12s])"), default=0) >= 8, 60, "eight scrapes")
        with prometheus.paused(folder / "prometheus.yml"):
            return wrong()

    settled(now, 60)


@pytest.mark.slowest
def test_every_query_has_its_result(serve: conftest.Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query finds every device that has its series, with its labels; other queries are empty."""
    assert OF_GPUS, "no query selects alerts on GPUs"
    # Two seconds must suffice also for fields that are read every 15 s: only their presence matters here.
    monkeypatch.setattr(signal_reader, "PERIODS", {})
    replay = serve("--source", "replay", "--recording", "h200_workloads", "--interval", "500ms")
    # Played slowly, so that a window of two seconds and a longer one have the same values.
    slowly = ("--recording", "h200_x2_ddp", "--speed", "0.01")
    ranks = serve("--source", "replay", *slowly, "--interval", "500ms")
    throttled = str(ROOT / "tests" / "recordings" / "host" / "cpu_max.jsonl.gz")
    host = serve("--source", "replay", "--recording", throttled, "--host-evidence", "true", "--interval", "500ms")
    driver = FakeDriver(tmp_path / "driver", 1)
    sawtooth(driver, LOW, HIGH, HALF, HALF, 200)
    saw = serve("--metrics", "full", "--high-resolution", "true", env=driver.environment)
    library = FakeDriver(tmp_path / "hanging")
    library.delay("Init", 3600)
    hanging = serve(env=library.environment)
    jobs = tmp_path / "jobs.sock"
    simulated = serve(
        *("--source", "simulated", "--gpus", "4", "--interval", "500ms", "--metrics", "full", "--job-socket", str(jobs))
    )
    folder = tmp_path / "rules"
    folder.mkdir()
    with (
        serving(Pages({**PAGES, "kube": KUBE})) as port,
        sending(jobs, training(uuids(simulated.get()[1].decode()))),
    ):
        targets = [
            Target("replay", replay.port),
            Target("", ranks.port),
            Target("host", host.port),
            Target("simulated", simulated.port),
            Target("sawtooth", saw.port),
            *(Target(name, port, f"/{name}") for name in PAGES),
        ]
        gone = {"targets": [f"127.0.0.1:{free_port()}"], "labels": {"cluster": "simulated"}}
        without_gpus = Target("simulated", hanging.port).config
        of_kube = {"cluster": SCHEDULED, "job": "kube-state-metrics", "__metrics_path__": "/kube"}
        kube = {"targets": [f"127.0.0.1:{port}"], "labels": of_kube}
        config = {"static_configs": [gone, without_gpus, kube, *(target.config for target in targets)]}
        with scraping(tmp_path, "1s", config, rule_files=at_once(folder), evaluation_interval="2s") as prometheus:
            until(
                lambda: min(prometheus.query("count_over_time(up[1m])"), default=0) >= 8,
                30,
                "the eighth scrape",
                every=0.5,
            )
            starved = 'count(ALERTS{alertname="GpuStragglerStarved"})'
            until(lambda: min(prometheus.query(starved), default=0) >= 2, 30, "alerts", every=0.5)
            # Groups of rules are evaluated one after another, at times of their own.
            settled(lambda: sorted(ALERTS - firing(prometheus)), 60)
            until(
                lambda: all(prometheus.query(f'count(ALERTS{{UUID!="", {selector}}})') for selector in OF_GPUS),
                60,
                "an alert on a GPU of each domain",
            )
            settled(lambda: problems_of_sawtooth(prometheus), 60)
            # Incidents are made of alerts, and their costs of incidents, each a few evaluations later.
            until(
                lambda: not prometheus.query(WITHOUT_INCIDENTS), 60, "incidents in each cluster with alerts", every=0.5
            )
            answered: set[str] = set()
            compare(prometheus, tmp_path, lambda: problems(prometheus, targets, answered))
    never = {
        text
        for text in ASKED - answered
        if not panels.is_of_rank(text)
        and not panels.is_direct(text)
        and not panels.is_patient(text)
        and serving_rules.KNEE.record not in text
        and not any(f'alertname="{name}"' in text for name in PATIENT)
    }
    assert not never, "nothing ever answers:\n" + "\n".join(sorted(never))


def firing(prometheus: Prometheus) -> set[str]:
    """Return the names of the alerts that fire."""
    found = prometheus.api("query", query='group by (alertname) (ALERTS{alertstate="firing"})')["result"]
    return {each["metric"]["alertname"] for each in found}


def training(gpus: Sequence[str]) -> list[LoopJob]:
    """Return two jobs, of four ranks in all: one has a straggler, the other, on the last GPU, stands still."""
    stuck = LoopJob("stuck", gpus[-1:], begun=time.monotonic() - 600, steps_until=time.monotonic() - 300)
    return [LoopJob("slow", gpus[:-1], own=1.5), stuck]


def problems_of_sawtooth(prometheus: Prometheus) -> list[str]:
    """Return how panels differ from the sawtooth, which the gauge cannot show because it stands still."""
    variables = {name: panels.ALL for name in ("node", "gpu")} | {"cluster": "sawtooth"}
    row = {each["title"]: each["targets"] for each in panels.panels(panels.BOARDS["gpu"])}

    def ask(panel: str, place: int = 0) -> dict[str, float]:
        text = panels.filled(row[panel][place]["expr"], variables)
        answer = prometheus.api("query", query=text)["result"]
        return defaultdict(lambda: nan, {each["metric"].get("le", ""): float(each["value"][1]) for each in answer})

    activity, watts = ask("SM activity distribution"), ask("Power distribution")
    swings = 'count(ALERTS{alertname="GpuPowerOscillation", cluster="sawtooth"})'
    moment = 'stddev_over_time(DCGM_FI_DEV_POWER_USAGE_INSTANT{cluster="sawtooth"}[1m])'
    shown = {
        "idle ticks": (activity["0.1"] / activity["+Inf"], pytest.approx(0.5, abs=0.15)),  # ticks that are half busy
        "low power": (watts["850.0"] / watts["+Inf"], pytest.approx(0.5, abs=0.1)),
        "power between the levels": (watts["850.0"] - watts["150.0"], 0),
        "idle gap": (ask("Idle gaps")[""], pytest.approx(HALF, abs=0.2)),
        "swing": (ask("Power swings and idle time")[""], pytest.approx((HIGH - LOW) / 2 / 700, abs=0.05)),
        # Whole ticks only.
        "idle time": (ask("Power swings and idle time", 1)[""], pytest.approx(0.4, abs=0.15)),
        "swing of the gauge": (prometheus.query(moment), [0.0]),
        "alert": (prometheus.query(swings), [1.0]),
    }
    return [f"{name} of the sawtooth: {found}, not {right}" for name, (found, right) in shown.items() if found != right]


def test_wrong_queries_are_detected(tmp_path: Path) -> None:
    """The check above detects an unknown name, a missing label, and a value that is not a number."""
    with serving(PAGES) as port:
        target = Target("classic-full", port, "/classic-full")
        folder = tmp_path / "rules"
        folder.mkdir()
        config = {"static_configs": [target.config]}
        with scraping(tmp_path, "1s", config, rule_files=at_once(folder)) as prometheus:
            until(lambda: min(prometheus.query("count_over_time(up[1m])"), default=0) >= 4, 30, "the fourth scrape")
            (found,) = scraped_twice([target])
            for bad, complaint in (
                ('gpu:sm_active:ratio{hostname=~".+"}', "finds ["),
                ("gpu:sm_active:ratio / 0 * 0", "nan"),
                ("sum by (gpu) (gpu:sm_active:ratio)", "has node"),
            ):
                board = {
                    "panels": [{"title": "bad", "type": "timeseries", "targets": [_target(bad)] * 9}],
                    "templating": {"list": []},
                    "annotations": {"list": []},
                }
                wrong = panels.problems(prometheus, {"bad": board}, found, {"cluster": target.cluster})
                assert len(wrong) >= 9, bad
                assert all(complaint in each.lower() for each in wrong), wrong[0]
            board["panels"] = [{"title": "bad", "type": "timeseries", "targets": [_target("gpu:no_such:ratio")]}]
            with pytest.raises(AssertionError, match="neither recorded nor a signal"):
                panels.problems(prometheus, {"bad": board}, found, {"cluster": target.cluster})


def _target(expr: str) -> dict[str, object]:
    return {"expr": expr, "legendFormat": "{{node}}", "instant": False}
