"""When a cycle runs, which exporters are asked in it, and how long the controller waits after it or after a failure."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_exporter.http.proxies import TrustedProxies
from gpu_exporter.io.user_text import Address
from gpu_exporter.kubernetes.writer import KubernetesWriter
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation import run
from gpu_exporter.remediation.controller import Controller, Observed
from gpu_exporter.remediation.evidence import Evidence
from gpu_exporter.remediation.fleet import FleetPlan
from gpu_exporter.remediation.leader import Leader
from gpu_exporter.remediation.metrics import ControllerMetrics
from gpu_exporter.remediation.run import _Loop, controller, explain
from gpu_exporter.remediation.server import Hints
from gpu_exporter.remediation.settings import Budget, Exporters, Mode, NodePool, Settings
from tests.support.remediation_world import World
from tests.unit.remediation.test_reconcile import CLEAN

KNOWN: Mapping[str, Evidence] = {"n0": CLEAN}
FOLLOWS = Observed({}, None)
SEEN = Observed(KNOWN, FleetPlan({}, {}, {}))


class Draining(Observed):
    """What a cycle saw when a node is drained."""

    draining = frozenset({"n1"})


DRAINS = Draining(KNOWN, FleetPlan({}, {}, {}))


class Running:
    """A controller whose cycles return what a test sets, or fail; and its Lease."""

    def __init__(self) -> None:
        self.leader, self.leads = self, True
        self.result: Observed | LookupFailed = SEEN
        self.cycles: list[tuple[Any, Any]] = []
        self.renewals = self.losses = 0

    def cycle(self, hinted: Any, known: Any) -> Observed:
        self.cycles.append((hinted, known))
        if isinstance(self.result, LookupFailed):
            raise self.result
        return self.result

    def renew(self) -> None:
        self.renewals += 1

    def lose(self) -> None:
        self.losses += 1
        self.leads = False


class Site:
    """A loop that runs one step at a time."""

    def __init__(self, interval: float = 30.0) -> None:
        self.running, self.hints, self.metrics = Running(), Hints(), ControllerMetrics()
        self.loop = _Loop(cast(Controller, self.running), self.metrics, self.hints, interval)

    def step(self, now: float, result: Observed = SEEN) -> float:
        self.running.result = result
        return self.loop._step(now)


def test_all_exporters_are_asked_in_every_interval() -> None:
    """In between, the Lease is renewed."""
    site = Site()
    assert site.step(100.0) == 10.0
    assert site.running.cycles == [(None, {})]
    assert site.step(110.0) == 10.0
    assert site.step(125.0) == 5.0
    assert (site.running.renewals, len(site.running.cycles)) == (2, 1)
    assert site.step(130.0) == 10.0
    assert site.running.cycles[1:] == [(None, KNOWN)]
    assert site.step(159.5) == 0.5


@pytest.mark.parametrize(("interval", "idle", "drains"), [(30.0, 10.0, 5.0), (7.0, 7.0, 5.0), (2.0, 2.0, 2.0)])
def test_no_pause_is_longer_than_the_interval(interval: float, idle: float, drains: float) -> None:
    assert Site(interval).step(0.0) == idle
    assert Site(interval).step(0.0, DRAINS) == drains


def test_hinted_and_draining_nodes_are_asked_in_between() -> None:
    """Each hint once, draining nodes until they are drained; the next full cycle is not put off."""
    site = Site()
    site.step(100.0)
    site.hints.add({"n0"})
    assert site.step(101.0, DRAINS) == 5.0
    assert site.step(106.0, DRAINS) == 5.0
    site.hints.add({"n0"})
    assert site.step(111.0) == 10.0
    assert site.step(121.0) == 9.0
    assert [hinted for hinted, _ in site.running.cycles] == [None, {"n0"}, {"n1"}, {"n0", "n1"}]
    site.step(130.0)
    assert site.running.cycles[-1][0] is None


def test_a_hint_just_before_the_next_full_cycle() -> None:
    """That is the full one then, because the pause after a hinted one would put it off."""
    site = Site()
    site.step(100.0)
    site.hints.add({"n0"})
    assert site.step(124.0) == 6.0
    site.hints.add({"n0"})
    assert site.step(128.0) == 10.0
    assert [hinted for hinted, _ in site.running.cycles] == [None, {"n0"}, None]


def test_who_follows_looks_at_the_lease_every_five_seconds() -> None:
    """And begins with a full cycle when it leads, whatever it knew before."""
    site = Site()
    site.step(100.0, DRAINS)
    site.running.leads = False
    assert site.step(101.0, FOLLOWS) == 5.0
    assert site.step(106.0, FOLLOWS) == 5.0
    site.step(111.0)
    assert site.running.cycles[1:] == [({"n1"}, KNOWN), (None, {}), (None, {})]
    assert site.running.renewals == 0


def test_a_complete_cycle_has_a_time() -> None:
    site = Site()
    site.step(0.0, FOLLOWS)
    assert "gpu_remediation_last_cycle_timestamp_seconds 0.0" in site.metrics.text().decode()
    site.step(0.0)
    assert "gpu_remediation_last_cycle_timestamp_seconds 0.0" not in site.metrics.text().decode()


def test_failures_wait_twice_as_long_each_time(caplog: pytest.LogCaptureFixture) -> None:
    """From a second to a minute, or for as long as the server asks; each kind is logged once."""
    site = Site()
    lost = LookupFailed("timeout", "no answer")
    assert [site.loop._failed(lost) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert site.running.losses == 8
    assert 'gpu_remediation_errors_total{reason="timeout"} 8.0' in site.metrics.text().decode()
    site.loop._failed(LookupFailed("conflict", "changed"))
    site.loop._failed(lost)
    site.loop._failed(LookupFailed("forbidden", "no right"))
    assert [record.getMessage() for record in caplog.records] == ["no answer", "no answer", "no right"]


@pytest.mark.parametrize(("retry_after", "seconds"), [(0.5, 1.0), (20.0, 20.0), (300.0, 60.0)])
def test_the_server_says_when_to_try_again(retry_after: float, seconds: float) -> None:
    assert Site().loop._failed(LookupFailed("too_many_requests", "busy", retry_after=retry_after)) == seconds


class Stop(threading.Event):
    """Ends a loop after some cycles, without waiting."""

    def __init__(self, cycles: int) -> None:
        super().__init__()
        self.left, self.waits = cycles, list[float]()

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None:
            return super().wait()
        self.waits.append(timeout)
        self.left -= 1
        if not self.left:
            self.set()
        return self.is_set()


def test_a_loop_goes_on_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A success begins the waits anew. Between two cycles are about five seconds at least, whatever the hints."""
    site, stop = Site(), Stop(5)
    monkeypatch.setattr("random.uniform", lambda *bounds: {(0.8, 1.0): 0.9}[bounds])
    waits: list[float] = []
    monkeypatch.setattr(site.hints.wanted, "wait", waits.append)
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    lost = LookupFailed("timeout", "no answer")
    results: list[Any] = [lost, lost, DRAINS, lost, SEEN]

    def cycle(hinted: Any, known: Any) -> Observed:
        result = results.pop(0)
        if isinstance(result, LookupFailed):
            raise result
        return cast(Observed, result)

    monkeypatch.setattr(site.running, "cycle", cycle)
    site.loop.run(stop)
    assert stop.waits == [0.9 * seconds for seconds in (1, 2, 5, 1, 5)]
    assert waits == [1, 2, 5, 1, 10]
    assert not site.metrics.leads


def test_the_metrics_say_who_leads() -> None:
    for leads in (True, False):
        site, stop = Site(), Stop(1)
        site.running.leads = leads
        site.hints.add({"n0"})
        site.running.result = FOLLOWS
        site.loop.run(stop)
        assert site.metrics.leads is leads


def test_the_end_does_not_wait_for_a_hint() -> None:
    site, stop = Site(), threading.Event()
    stop.set()
    site.loop._wake_at_end(stop)
    assert site.hints.wanted.is_set()


def test_a_controller_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers may have the same host name; exporters are asked with the settings."""
    monkeypatch.setattr("socket.gethostname", lambda: "pod")
    asked: list[Any] = []
    monkeypatch.setattr(run, "ask", lambda *arguments: asked.append(arguments))
    settings = Settings("gpu", Exporters("gpu"), (NodePool("all"),), lease="mine")
    made = [controller(settings, ControllerMetrics(), cast(KubernetesWriter, None)) for _ in range(2)]
    first, second = (each.leader.identity for each in made)
    assert first.startswith("pod_")
    assert len(first) == len("pod_") + 8
    assert first != second
    made[0].ask("node", "addresses", "pool")  # type: ignore[arg-type]
    assert asked == [(settings.exporters, "node", "addresses", "pool")]


class Served:
    """Stands in for the server; keeps what it was made with."""

    port = 9401

    def __init__(
        self,
        where: Address,
        metrics: ControllerMetrics,
        hints: Hints,
        token_file: Path | None,
        proxies: TrustedProxies,
    ) -> None:
        self.where, self.token_file, self.proxies, self.calls = where, token_file, proxies, list[str]()

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")


@pytest.mark.parametrize(("text", "path"), [("", None), ("/token", Path("/token"))])
@pytest.mark.parametrize("released", [True, False])
def test_a_run(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    text: str,
    path: Path | None,
    released: bool,
) -> None:
    """It serves until it is stopped, and gives the Lease up if it can."""
    caplog.set_level("INFO")
    servers: list[Served] = []

    def serve(*arguments: Any) -> Served:
        servers.append(Served(*arguments))
        return servers[-1]

    monkeypatch.setattr(run, "controller_server", serve)
    stop, settings = Stop(1), replace(world.settings, webhook_token_file=text, address="127.0.0.1:9500")
    monkeypatch.setattr("random.uniform", lambda *_: 1.0)
    if not released:

        def lost(_: Leader) -> None:
            raise LookupFailed("timeout", "no answer")

        monkeypatch.setattr(Leader, "stop", lost)
    run.run(settings, stop)
    (served,) = servers
    assert (served.where, served.token_file, served.calls) == (Address("127.0.0.1", 9500), path, ["start", "stop"])
    assert world.lease["spec"]["holderIdentity"] == ("" if released else "pod-3")
    assert stop.waits == [5.0]
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "remediation controller pod-3 on port 9401; all: cordon",
        *([] if released else ["the Lease is not released: no answer"]),
    ]


def test_outside_of_a_cluster_there_is_nothing_to_run() -> None:
    with pytest.raises(GpuExporterError, match="the remediation controller runs only"):
        run.client(Path("/account"), {})


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A cluster with a faulty node, which `explain` looks at."""
    pool = NodePool("all", mode=Mode.CORDON, budget=Budget(1, 1.0))
    made = World(Settings("gpu", Exporters("gpu"), (pool,)), {"n0": {}, "n1": {}, "n2": {}}, 1, 0.0)
    made.fail("n0", "stalled")
    made.now += 120

    class Client:
        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr(run, "client", lambda *_: Client())
    monkeypatch.setattr(run, "controller", lambda *_: made.start())
    monkeypatch.setattr("time.time", made.clock)
    return made


def test_explain_writes_nothing(world: World) -> None:
    words, text = explain(world.settings, "n0")
    assert words == "n0: cordon: fault: GPU GPU-n0: stalled"
    assert json.loads(text)["verb"] == "cordon"
    assert json.loads(text)["at"] == world.now
    assert text.startswith('{\n  "at"')
    assert (world.lease, world.writes) == (None, 0)
    assert explain(world.settings, "n1")[0] == "n1: none: healthy: all GPUs are healthy"


def test_explain_knows_the_lease(world: World) -> None:
    """What another controller has claimed, and that a person has paused it."""
    world.cycle(0)
    world.pause("x")
    assert explain(world.settings, "n0")[0] == "n0: none: awaiting_repair: still faulty: GPU GPU-n0: stalled"
    world.fail("n1", "stalled")
    world.now += 120
    assert explain(world.settings, "n1")[0] == "n1: none: paused: paused: because of x"


def test_a_node_of_no_pool_cannot_be_explained(world: World) -> None:
    with pytest.raises(GpuExporterError, match="node n9 belongs to no pool: check its name"):
        explain(world.settings, "n9")


def test_explain_without_rights(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise LookupFailed("forbidden", "no right", fix="ask for it")

    monkeypatch.setattr("tests.support.remediation_world.Proxy.lease", refuse)
    with pytest.raises(GpuExporterError, match="no right: ask for it"):
        explain(world.settings, "n0")
