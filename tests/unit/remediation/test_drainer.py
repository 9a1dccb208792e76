"""What refusals of the API server mean for a drain: of one pod, of a job, or of everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.pods import COMPLETION_INDEX
from gpu_exporter.remediation.reconcile import Reason, Verb
from gpu_exporter.remediation.settings import Breaker, Budget, DrainSettings, Exporters, Mode, NodePool, Settings
from gpu_exporter.remediation.state import DrainProgress
from tests.support.remediation_world import World

JOB = {"labels": {"app": "bert", "job-name": "bert", COMPLETION_INDEX: "0"}}


def world(mode: Mode = Mode.DRAIN, timeout: str = "2h") -> World:
    """Return a world without mishaps, whose node n0 is faulty and has a pod and a rank of a job; n1 has the other."""
    pools = (NodePool("all", "", mode, Budget(1, 1.0), confirm="1s", drain=DrainSettings(timeout=timeout)),)
    settings = Settings("gpu", Exporters("gpu"), pools, breaker=Breaker(9))
    made = World(settings, {"n0": {}, "n1": {}, "n2": {}}, 1, 0.0)
    made.pods.items.clear()
    made.pods.create("n0", {"labels": {"app": "web"}})
    made.pods.create("n0", JOB)
    made.pods.create("n1", JOB)
    made.fail("n0", "stalled")
    made.now += 60
    return made


def cycles(made: World, count: int) -> None:
    """Run cycles of one controller, ten seconds apart."""
    for _ in range(count):
        made.now += 10
        made.cycle(0)


def progress(made: World) -> DrainProgress | None:
    state = s.read(made.objects["n0"]).state
    return state.drain.progress if state and state.drain else None


def refuse(monkeypatch: pytest.MonkeyPatch, made: World, method: str, reason: str) -> Callable[[], int]:
    """Let the API server refuse a request; return how to count it."""
    refused = []

    def ask(*arguments: object, **_: object) -> None:
        refused.append(arguments)
        raise LookupFailed(reason, f"{method}: {reason}")

    monkeypatch.setattr(type(made.controllers[0].cluster), method, lambda self, *a, **k: ask(*a, **k))
    return lambda: len(refused)


def test_a_drain() -> None:
    made = world()
    cycles(made, 12)
    assert progress(made) is DrainProgress.DRAINED
    assert made.pods.evicted.total() == 3


@pytest.mark.parametrize("reason", ["forbidden", "too_many_requests", "http_500", "http_400", "conflict"])
def test_a_refused_eviction_waits(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """It is tried again with pauses until the timeout; a job is not begun, and the controller goes on to lead."""
    made = world(timeout="10m")
    count = refuse(monkeypatch, made, "evict", reason)
    cycles(made, 40)
    assert progress(made) is DrainProgress.DRAINING
    assert not made.pods.begun
    assert made.controllers[0].leader.leads
    if reason != "conflict":
        assert 6 < count() < 60
    cycles(made, 40)
    assert progress(made) is DrainProgress.TIMEOUT


def test_a_lost_answer_ends_the_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known about the API server then."""
    made = world()
    cycles(made, 2)
    refuse(monkeypatch, made, "evict", "timeout")
    with pytest.raises(LookupFailed, match="timeout"):
        made.controllers[0].cycle()


@pytest.mark.parametrize("method", ["pods_on", "pods_of"])
def test_without_the_right_to_list_pods(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """The drain does not begin, and says why; other nodes are looked at."""
    made = world()
    refuse(monkeypatch, made, method, "forbidden")
    cycles(made, 3)
    observed = made.controllers[0].cycle()
    assert observed.plan is not None
    assert observed.plan.decisions["n0"].reason is Reason.PODS_UNKNOWN
    assert "forbidden" in observed.plan.decisions["n0"].words
    assert progress(made) is None


def test_without_the_right_to_list_disruption_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is not begun, because it might lose only some of its pods."""
    made = world()
    refuse(monkeypatch, made, "budgets", "forbidden")
    cycles(made, 12)
    assert not made.pods.begun
    assert made.pods.evicted.total() == 1


def test_observe_mode_tries_evictions_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a dry run, of all pods of a job."""
    made = world(Mode.OBSERVE)
    tried: list[str] = []
    proxy = type(made.controllers[0].cluster)
    monkeypatch.setattr(proxy, "evict", lambda *given, dry_run: tried.append(f"{given[2]} {dry_run}"))
    cycles(made, 6)
    assert sorted(tried) == [f"{uid} True" for uid in sorted(made.pods.items)]
    observed = made.controllers[0].cycle()
    assert observed.plan is not None
    assert observed.plan.decisions["n0"].verb is Verb.CORDON
    assert not made.pods.evicted


def test_a_node_that_changes_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubelet changes it during the dry runs of a job; the job is begun nevertheless."""
    made = world()
    ask = type(made.controllers[0].cluster).budgets

    def disturbed(*arguments: str) -> object:
        made.change("n0", lambda item: item["metadata"]["labels"].update(at=str(made.now)))
        return ask(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(made.controllers[0].cluster), "budgets", disturbed)
    cycles(made, 12)
    assert progress(made) is DrainProgress.DRAINED


def test_a_person_who_uncordons_during_the_dry_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is not begun."""
    made = world()
    ask = type(made.controllers[0].cluster).budgets

    def uncordoned(*arguments: str) -> object:
        made.uncordon("n0")
        return ask(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(made.controllers[0].cluster), "budgets", uncordoned)
    cycles(made, 12)
    assert not made.pods.begun
