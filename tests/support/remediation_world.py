"""A cluster in memory with everything that goes wrong: for whole histories of the remediation controller.

Each request of a controller may fail, succeed without an answer, be answered from an old copy, or be the last one
before the controller dies. Before each one, another controller may run a whole cycle, a person may act, a GPU may fail
and time may pass, so a write may come long after the read that it is based on. The world checks every write. Objects
are replaced, never changed, so what a controller has read stays as it was.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_exporter.kubernetes.objects import BudgetObject, JobObject, LeaseObject, NodeObject, PodObject
from gpu_exporter.kubernetes.writer import FIELD_MANAGER, Operation
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation import evidence
from gpu_exporter.remediation import ledger as lease
from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.controller import Asked, Controller
from gpu_exporter.remediation.evidence import Evidence, NodeFinding
from gpu_exporter.remediation.fleet import Assessed, FleetPlan
from gpu_exporter.remediation.leader import Leader
from gpu_exporter.remediation.pods import NodePod
from gpu_exporter.remediation.pods import read as read_pod
from gpu_exporter.remediation.reconcile import Decision
from gpu_exporter.remediation.settings import Breaker, Budget, DrainSettings, Exporters, Mode, NodePool, Settings
from gpu_exporter.remediation.state import DrainProgress, WatchedNode
from gpu_exporter.remediation.workload import Eviction
from tests.support.json_patch import PatchFailed, patched
from tests.support.remediation_pods import Pods, is_kept

FAULTS = {"stalled": "node_reboot", "uncorrectable_ecc": "gpu_reset", "sram_threshold": "replace"}
MOST_OLD = 4


class Crash(Exception):
    """The controller's process ends."""


class Quiet:
    """Announces nothing."""

    def planned(self, assessed: Sequence[Assessed], plan: FleetPlan) -> None:
        pass

    def failed(self, node: WatchedNode, error: LookupFailed) -> None:
        pass

    def acted(self, node: WatchedNode, pool: NodePool, decision: Decision) -> None:
        pass

    def evicted(self, node: WatchedNode, pool: NodePool, results: Sequence[Eviction]) -> None:
        pass


@dataclass(slots=True)
class Truth:
    """What is really the case on a node: its boot, its faults by reason and since when, when it last became healthy."""

    boot: int = 1
    faults: dict[str, float] = field(default_factory=dict)
    healthy_since: float = 0.0
    reachable: bool = True
    cordoned_by: str = ""


class World:
    """The API server, the exporters and the people. `chaos` is the probability of a mishap at a request."""

    def __init__(self, settings: Settings, nodes: Mapping[str, Mapping[str, str]], seed: int, chaos: float) -> None:
        self.settings, self.random, self.chaos = settings, random.Random(seed), chaos
        self.now, self._version, self._depth = 1_700_000_000.0, 0, 0
        self.truth = {name: Truth(healthy_since=self.now - 1e6) for name in nodes}
        self.objects: dict[str, Any] = {}
        self.lease: Any = None
        self._old: list[Mapping[str, Any]] = []
        self._identities = 0
        self._running: set[int] = set()
        self.writes, self.drained = 0, 0
        self.pods = Pods(self.random, [*nodes])
        for name, labels in nodes.items():
            self._store(name, self._new(name, labels))
        self.controllers = [self.start(), self.start()]

    # --- what happens -------------------------------------------------------------------------------------------------

    def start(self) -> Controller:
        """Return a controller that has just started."""
        self._identities += 1
        cluster = Proxy(self)
        names = (self.settings.namespace, self.settings.lease, f"pod-{self._identities}")
        leader = Leader(cluster, *names, wall=self.clock, clock=self.clock)
        return Controller(cluster, self.settings, leader, cluster.ask, Quiet(), self.clock, one_by_one)

    def clock(self) -> float:
        return self.now

    def cycle(self, which: int) -> None:
        """Run a cycle of a controller, which has one thread, unless it runs one; replace it if it crashes."""
        if which in self._running:
            return
        self.go_on()
        self._running.add(which)
        try:
            self.controllers[which].cycle()
        except LookupFailed:
            self.controllers[which].leader.lose()
        except Crash:
            self.controllers[which] = self.start()
        finally:
            self._running.remove(which)

    def go_on(self) -> None:
        """Pods end, and others begin."""
        free = [name for name, item in self.objects.items() if not item["spec"].get("unschedulable")]
        self.pods.go_on(self.now, free)

    def disturb(self, _: str) -> None:
        """Something happens to a pod or a disruption budget."""
        self.pods.disturb(self.now)

    def fail(self, name: str, reason: str) -> None:
        """A GPU fails."""
        self.truth[name].faults.setdefault(reason, self.now)

    def repair(self, name: str) -> None:
        """The node is rebooted and its GPUs are healthy."""
        truth = self.truth[name]
        truth.faults.clear()
        truth.boot, truth.healthy_since = truth.boot + 1, self.now
        self.change(name, lambda item: item["status"]["nodeInfo"].update(bootID=f"boot-{truth.boot}"))

    def heal(self, name: str) -> None:
        """The faults vanish without a reboot."""
        self.truth[name].faults.clear()
        self.truth[name].healthy_since = self.now

    def cordon(self, name: str) -> None:
        """A person cordons the node; `kubectl` does nothing if it is cordoned already."""
        if not self.objects[name]["spec"].get("unschedulable"):
            self.truth[name].cordoned_by = "person"
            self.change(name, lambda item: item["spec"].update(unschedulable=True), "kubectl-cordon")

    def uncordon(self, name: str) -> None:
        """A person uncordons the node."""
        if self.objects[name]["spec"].get("unschedulable"):
            self.truth[name].cordoned_by = ""
            self.change(name, lambda item: item["spec"].pop("unschedulable"), "kubectl-uncordon")

    def taint(self, name: str) -> None:
        """A person adds a taint, or removes it again."""
        person = {"key": "maintenance", "effect": "NoExecute"}

        def toggle(item: Any) -> None:
            taints = item["spec"].setdefault("taints", [])
            taints.remove(person) if person in taints else taints.append(person)

        self.change(name, toggle)

    def opt_out(self, name: str) -> None:
        """A person sets the label that keeps the controller away, or removes it again."""

        def toggle(item: Any) -> None:
            if item["metadata"]["labels"].pop(s.OPT_OUT, None) is None:
                item["metadata"]["labels"][s.OPT_OUT] = "disabled"

        self.change(name, toggle)

    def confirm(self, name: str) -> None:
        """A person confirms that the fault is repaired."""
        state = s.read(self.objects[name]).state
        if state:
            self.change(name, lambda item: item["metadata"]["annotations"].update({s.REPAIRED: state.fault}))

    def pause(self, name: str) -> None:
        """A person pauses the controller, or ends that."""
        if self.lease is not None:
            annotations = self.lease["metadata"].setdefault("annotations", {})
            if annotations.pop(lease.PAUSED, None) is None:
                annotations[lease.PAUSED] = f"because of {name}"
            self.lease["metadata"]["resourceVersion"] = self._next()

    def lose_exporter(self, name: str) -> None:
        """The exporter becomes unreachable, or reachable again."""
        self.truth[name].reachable = not self.truth[name].reachable

    def mishap(self) -> None:
        """Something happens to a random node."""
        name = self.random.choice(list(self.objects))
        event = self.random.choice(EVENTS)
        if event is World.fail:
            self.fail(name, self.random.choice(list(FAULTS)))
        else:
            event(self, name)

    # --- requests -----------------------------------------------------------------------------------------------------

    def before(self) -> None:
        """Let anything happen before a request."""
        if self._depth == 0 and self.random.random() < self.chaos:
            self._depth += 1
            for _ in range(self.random.randrange(3)):
                self.now += self.random.choice((0.0, 1.0, 40.0))
                self.mishap()
                self.cycle(self.random.randrange(2))
            self._depth -= 1
        roll = self.random.random()
        if roll < self.chaos / 8:
            raise Crash
        if roll < self.chaos / 4:
            raise LookupFailed("timeout", "no answer")

    def after(self) -> None:
        """Lose the answer of a write, or crash after it."""
        roll = self.random.random()
        if roll < self.chaos / 8:
            raise Crash
        if roll < self.chaos / 4:
            raise LookupFailed("timeout", "no answer")

    def ask(self, node: WatchedNode) -> Evidence:
        """Answer for the exporter of a node."""
        if not self.truth[node.name].reachable or self.random.random() < self.chaos / 8:
            return evidence.unknown("unreachable")
        return evidence.judge(json.dumps(self._answer(node.name)), node.name, node.boot, degraded=False)

    def _answer(self, name: str) -> Mapping[str, Any]:
        truth = self.truth[name]
        problems = [
            {"reason": reason, "health": "unhealthy", "action": FAULTS[reason], "what": reason, "since": since}
            for reason, since in truth.faults.items()
        ]
        gpu = {"gpu": 0, "UUID": f"GPU-{name}", "health": "unhealthy" if problems else "healthy", "problems": problems}
        since = max(truth.faults.values(), default=truth.healthy_since)
        about = {"apiVersion": 1, "node": name, "boot_id": f"boot-{truth.boot}", "at": self.now, "live": True}
        return {**about, "ready": True, "expected": 1, "missing": 0, "gpus": [{**gpu, "since": since}]}

    # --- objects ------------------------------------------------------------------------------------------------------

    def listed(self) -> Sequence[NodeObject]:
        """Return the nodes, perhaps as they were some time ago."""
        if self._old and self.random.random() < self.chaos:
            return [*self.random.choice(self._old).values()]
        return [*self.objects.values()]

    def change(self, name: str, change: Callable[[Any], object], manager: str = "kubectl") -> None:
        """Change a node as some other client."""
        item = copy.deepcopy(self.objects[name])
        change(item)
        self._store(name, item, manager)

    def patch(self, name: str, operations: Sequence[Operation], asked: NodeFinding | None) -> None:
        """Apply a patch of a controller, and check it. `asked` is what the exporter has answered to it."""
        try:
            new = patched(self.objects[name], operations)
        except PatchFailed as error:
            raise LookupFailed("conflict", str(error)) from error
        self._check(name, self.objects[name], new, asked)
        self._store(name, new, FIELD_MANAGER)
        self.writes += 1

    def patch_lease(self, operations: Sequence[Operation]) -> LeaseObject:
        """Apply a patch of the Lease."""
        try:
            self.lease = patched(self.lease, operations)
        except PatchFailed as error:
            raise LookupFailed("conflict", str(error)) from error
        self.lease = {**self.lease, "metadata": {**self.lease["metadata"], "resourceVersion": self._next()}}
        found: LeaseObject = self.lease
        return found

    def create_lease(self, item: LeaseObject) -> LeaseObject:
        """Create the Lease."""
        if self.lease is not None:
            raise LookupFailed("conflict", "there is one")
        self.lease = copy.deepcopy(item)
        self.lease["metadata"]["resourceVersion"] = self._next()
        found: LeaseObject = copy.deepcopy(self.lease)
        return found

    def _store(self, name: str, item: Any, manager: str = "") -> None:
        before = self.objects.get(name)
        metadata = {**item["metadata"], "resourceVersion": self._next()}
        if before is not None and before["spec"].get("unschedulable") != item["spec"].get("unschedulable"):
            fields: dict[str, Any] = {"f:spec": {"f:unschedulable": {}}} if item["spec"].get("unschedulable") else {}
            metadata["managedFields"] = [{"manager": manager, "fieldsV1": fields}]
        self._old = [*self._old, self.objects][-MOST_OLD:]
        self.objects = {**self.objects, name: {**item, "metadata": metadata}}

    def _next(self) -> str:
        self._version += 1
        return str(self._version)

    @staticmethod
    def _new(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
        return {
            "metadata": {"name": name, "uid": f"uid-{name}", "labels": dict(labels), "annotations": {}},
            "spec": {},
            "status": {"nodeInfo": {"bootID": "boot-1"}, "capacity": {"nvidia.com/gpu": "1"}},
        }

    # --- what must always hold ----------------------------------------------------------------------------------------

    def _check(self, name: str, before: Any, after: Any, asked: NodeFinding | None) -> None:
        truth = self.truth[name]
        was, now = before["spec"].get("unschedulable", False), after["spec"].get("unschedulable", False)
        assert before["metadata"]["labels"].get(s.OPT_OUT) != "disabled" or self._is_fence(before, after), "opted out"
        others = [taint for taint in before["spec"].get("taints", ()) if taint["key"] != s.TAINT]
        own = [taint for taint in after["spec"].get("taints", ()) if taint["key"] == s.TAINT]
        assert [taint for taint in after["spec"].get("taints", ()) if taint["key"] != s.TAINT] == others
        assert all(taint["effect"] == "NoSchedule" for taint in own)
        drains = [state.drain if state else None for state in (s.read(before).state, s.read(after).state)]
        if drains[1] and drains[1].gang and not (drains[0] and drains[0].gang):
            self.pods.begun.append(frozenset(drains[1].gang.uids))
        if drains[1] and drains[1].progress is DrainProgress.DRAINED and drains[0] != drains[1]:
            self.drained += 1
        if now and not was:
            assert asked is NodeFinding.FAULTY, "cordoned without evidence"
            truth.cordoned_by = "controller"
            self._check_budget(name)
        if was and not now:
            assert truth.cordoned_by == "controller", "undid a foreign cordon"
            assert asked is NodeFinding.CLEAN, "returned without evidence"
            state = s.read(before).state
            assert state is not None
            confirmed = before["metadata"]["annotations"].get(s.REPAIRED) == state.fault
            assert confirmed or state.action != "replace", "returned what needs replacement"
            truth.cordoned_by = ""

    @staticmethod
    def _is_fence(before: Any, after: Any) -> bool:
        kept = {key: value for key, value in after["metadata"]["annotations"].items() if key != s.FENCE}
        old = {key: value for key, value in before["metadata"]["annotations"].items() if key != s.FENCE}
        return kept == old and before["spec"] == after["spec"]

    def _check_budget(self, name: str) -> None:
        pool = self.settings.pool(self.objects[name]["metadata"]["labels"])
        assert pool is not None
        assert pool.mode.acts
        members = [each for each in self.objects.values() if self.settings.pool(each["metadata"]["labels"]) == pool]
        cordoned = {each["metadata"]["name"] for each in members if s.read(each).cordoned} | {name}
        assert len(cordoned) <= pool.budget.limit(len(members)), f"over budget: {sorted(cordoned)}"
        places = [self.objects[each]["metadata"]["labels"].get(pool.budget.topology_key) for each in cordoned]
        if pool.budget.topology_key:
            assert max(map(places.count, places)) <= pool.budget.per_topology, f"over budget of a zone: {cordoned}"

    def calm(self) -> None:
        """Let everybody be reasonable from now on; faults remain, until all drains are complete."""
        self.chaos = 0.0
        if self.lease is not None and lease.PAUSED in self.lease["metadata"].get("annotations", {}):
            self.pause("")
        for name, item in self.objects.items():
            self.truth[name].reachable = True
            if s.OPT_OUT in item["metadata"]["labels"]:
                self.opt_out(name)
        self.pods.allowed = dict.fromkeys(self.pods.allowed, 99)
        self.now += 3600  # the breaker closes
        for _ in range(12):
            self.now += 35
            self.cycle(0)
            self.cycle(1)

    def check_drained(self) -> None:
        """Nodes with faults have no pods left, apart from those that must stay."""
        for name, item in self.objects.items():
            node = s.read(item)
            pool = self.settings.pool(node.labels)
            if not (node.cordoned and self.truth[name].faults and pool and pool.mode is Mode.DRAIN):
                continue
            assert node.state is not None
            if node.state.drain and node.state.drain.progress is DrainProgress.TIMEOUT:
                continue
            pods = [pod for pod in map(read_pod, self.pods.on(name)) if not is_kept(pod) and not pod.terminating]
            free = [
                pod
                for pod in pods
                if not any(is_kept(read_pod(self.pods.items[uid])) for uid in self.pods.members(pod))
            ]
            assert not free, f"{name} is not drained: {free}, {node.state.drain}"

    def settle(self) -> None:
        """Let everything be repaired."""
        for name in self.objects:
            self.confirm(name)
            self.repair(name)
        for _ in range(4):
            for _ in range(3):
                self.now += 40
                self.cycle(0)
                self.cycle(1)
            self.now += s.LONGEST_CLEAN
        for _ in range(4):
            self.now += 40
            self.cycle(0)
            self.cycle(1)

    def check_settled(self) -> None:
        """Nothing of the controller is left on any node, apart from its history; what people did is as they left it."""
        assert lease.read(self.lease).claims == {}
        for name, item in self.objects.items():
            node, truth = s.read(item), self.truth[name]
            assert not node.cordoned, f"{name} is still cordoned: {node.state}"
            assert node.unschedulable == (truth.cordoned_by == "person"), name
            assert s.TAINT not in [taint["key"] for taint in node.taints], name
            assert s.REPAIR_LABEL not in node.labels, name
            assert s.DRAIN_LABEL not in node.labels, name
            assert s.REPAIR not in node.annotations, name
        self.pods.check_jobs()


def one_by_one(ask: Callable[[Asked], Evidence], nodes: Sequence[Asked]) -> Iterator[tuple[str, Evidence]]:
    """Yield the name of each node and the answer."""
    for one in nodes:
        yield one[0].name, ask(one)


EVENTS: Sequence[Callable[..., None]] = (
    *(World.fail, World.fail, World.repair, World.repair, World.heal, World.cordon, World.uncordon, World.taint),
    *(World.opt_out, World.confirm, World.pause, World.lose_exporter, World.disturb, World.disturb),
)


class Proxy:
    """The cluster as one controller sees it."""

    def __init__(self, world: World) -> None:
        self._world = world
        # What exporters have answered; nodes, versions of pods, and disruption budgets as they were last read.
        self._asked: dict[str, NodeFinding] = {}
        self._seen: dict[str, NodeObject] = {}
        self._version = 0
        self._allowed: Mapping[str, int] = {}

    def ask(self, node: WatchedNode, addresses: Sequence[str], pool: NodePool) -> Evidence:
        found = self._world.ask(node)
        self._asked[node.name] = found.finding
        return found

    def nodes(self) -> Sequence[NodeObject]:
        self._world.before()
        return self._world.listed()

    def node(self, name: str) -> NodeObject | None:
        self._world.before()
        found: NodeObject | None = self._world.objects.get(name)
        if found is not None:
            self._seen[name] = found
        return found

    def patch_node(self, name: str, operations: Sequence[Operation], *, dry_run: bool) -> None:
        self._world.before()
        if dry_run:
            return
        begun = len(self._world.pods.begun)
        self._world.patch(name, operations, self._asked.get(name))
        self._seen[name] = self._world.objects[name]
        for uids in self._world.pods.begun[begun:]:
            self._world.pods.check_begun(uids, self._allowed)
        self._world.after()

    def pods_on(self, node: str, *, fresh: bool) -> Sequence[PodObject]:
        self._world.before()
        self._version = self._world.pods.version
        return self._world.pods.on(node)

    def pods_of(self, namespace: str, label: str, value: str, *, fresh: bool) -> Sequence[PodObject]:
        self._world.before()
        return self._world.pods.of(namespace, label, value)

    def job(self, namespace: str, name: str) -> JobObject | None:
        """Return no Job: the pods belong to other controllers."""
        return None

    def budgets(self, namespace: str) -> Sequence[BudgetObject]:
        self._world.before()
        self._allowed = dict(self._world.pods.allowed)
        return self._world.pods.budgets()

    def patch_pod(self, namespace: str, name: str, operations: Sequence[Operation], *, dry_run: bool) -> None:
        self._world.before()
        if not dry_run:
            self._world.pods.patch(name, operations, self._world.now)
            self._world.after()

    def evict(self, namespace: str, name: str, uid: str, version: str, *, dry_run: bool) -> None:
        self._world.before()
        if not dry_run and name in self._world.pods.items:
            self._check(read_pod(self._world.pods.items[name]))
        self._world.pods.evict(name, uid, version, self._world.now, dry_run=dry_run)
        self._world.after()

    def _check(self, pod: NodePod) -> None:
        """Evictions are of a node that is drained, or of a job whose eviction has begun, as this controller saw it."""
        states = {name: s.read(item).state for name, item in self._seen.items()}
        drains = {name: state.drain for name, state in states.items() if state and state.drain}
        if any(drain.gang and pod.uid in drain.gang.uids for drain in drains.values()):
            return
        assert pod.node in drains, f"{pod} is evicted from a node that is not drained"
        assert drains[pod.node].progress is DrainProgress.DRAINING
        assert self._asked[pod.node] is NodeFinding.FAULTY, "evicted without evidence"
        others = {uid for uid in self._world.pods.members(pod) - {pod.uid} if int(uid[4:]) <= self._version}
        assert not others, f"{pod} is evicted without {others}"

    def addresses(self) -> Mapping[str, Sequence[str]]:
        self._world.before()
        return {name: ("10.0.0.1",) for name in self._world.objects}

    def lease(self) -> LeaseObject | None:
        self._world.before()
        found: LeaseObject | None = copy.deepcopy(self._world.lease)
        return found

    def create_lease(self, lease: LeaseObject) -> LeaseObject:
        self._world.before()
        found = self._world.create_lease(lease)
        self._world.after()
        return found

    def patch_lease(self, operations: Sequence[Operation]) -> LeaseObject:
        self._world.before()
        found = self._world.patch_lease(operations)
        self._world.after()
        return found

    def create_event(self, event: Mapping[str, Any], *, dry_run: bool) -> None:
        pass


def history(seed: int) -> World:
    """Run a whole random history, and check it: the pools, the faults and the mishaps depend on the seed alone."""
    choose = random.Random(seed)
    key = choose.choice(("", "zone"))
    budget = Budget(choose.randrange(1, 4), choose.choice((0.1, 0.4, 1.0)), key)
    mode = choose.choice((Mode.CORDON, Mode.DRAIN, Mode.DRAIN))
    drain = DrainSettings(timeout=choose.choice(("5m", "2h")))
    pools = (NodePool("a", "pool=a", mode, budget, confirm="1s", drain=drain), NodePool("rest", mode=Mode.OBSERVE))
    settings = Settings("gpu", Exporters("gpu"), pools, breaker=Breaker(choose.choice((3, 9))))
    count = choose.randrange(3, 8)
    nodes = {f"n{place}": {"pool": "a", "zone": f"z{place % 2}"} for place in range(count)} | {"o0": {"pool": "b"}}
    world = World(settings, nodes, seed, choose.choice((0.0, 0.05, 0.3)))
    for _ in range(choose.randrange(5, 40)):
        world.now += choose.choice((0.5, 5.0, 60.0, 1200.0))
        if choose.random() < 0.5:
            world.mishap()
        world.cycle(choose.randrange(2))
    world.calm()
    world.check_drained()
    world.settle()
    world.check_settled()
    return world
