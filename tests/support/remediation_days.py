"""Days of operation of a fleet with some faults, in virtual time, for the remediation controller.

The usual things happen: people cordon and reboot nodes, exporters are rolled out, drivers are released, controllers
restart, the API server fails for a while, and errors come and go in less than a minute. None of that is a reason to
cordon a node. `remediation_world.py` checks every write; this checks in addition that each cordon and each drain has a
fault as its reason, and measures how long both take.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

from gpu_exporter.kubernetes.objects import NodeObject
from gpu_exporter.kubernetes.writer import Operation
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.evidence import NodeFinding
from gpu_exporter.remediation.ledger import BREAKER
from gpu_exporter.remediation.pods import CHECKPOINT, COMPLETION_INDEX
from gpu_exporter.remediation.settings import Breaker, Budget, Exporters, Mode, NodePool, Settings
from gpu_exporter.remediation.state import DrainPhase, DrainProgress
from tests.support.remediation_world import World

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
STEP = 30.0
NODES, ZONES = 40, 4
POOL = NodePool("all", mode=Mode.DRAIN, budget=Budget(2, 0.1, "zone"), confirm="60s", clean="15m")
STORM = 4
# Pods that may not be evicted are on these nodes only: their drains time out.
GUARDED = ("n00", "n01")


@dataclass(slots=True)
class Incident:
    """A fault of a node, and what the controller did about it (unix seconds; None if it did not)."""

    node: str
    reason: str
    began: float
    storm: bool = False
    cordoned: float | None = None
    drained: float | None = None
    timed_out: float | None = None
    returned: float | None = None
    held: bool = False
    waited_for: str = ""


class Days(World):
    """A fleet whose incidents and chores are scheduled in advance. `seed` decides about all of them."""

    def __init__(self, seed: int, days: float, faults: int, pool: NodePool = POOL) -> None:
        names = [f"n{place:02d}" for place in range(NODES)]
        settings = Settings("gpu", Exporters("gpu"), (pool,), breaker=Breaker(3))
        super().__init__(settings, {name: {"zone": f"z{int(name[1:]) % ZONES}"} for name in names}, seed, 0.0)
        self.incidents: list[Incident] = []
        self.unjustified: list[str] = []
        self.began, self.days = self.now, days
        self._outage_until = 0.0
        self._released: dict[str, float] = {}
        self._busy = set[str]()
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._choose = random.Random(seed)
        self._place_pods()
        self._chores()
        self._faults(faults)

    def _place_pods(self) -> None:
        """Run services of which two pods may be missing, and jobs over four nodes, some of which write a checkpoint."""
        self.pods.items.clear()
        self.pods.allowed = {"web": 2}
        for place, name in enumerate(self.objects):
            job = f"job-{place // 4}"
            annotations = {CHECKPOINT: "5m"} if place // 4 % 3 == 0 else {}
            self.pods.create(
                name, {"labels": {"app": job, "job-name": job, COMPLETION_INDEX: "0"}, "annotations": annotations}
            )
            self.pods.allowed[job] = 4
            for _ in range(self._choose.randrange(3)):
                self.pods.create(name, {"labels": {"app": "web"}})
        for name in GUARDED:
            self.pods.create(name, {"ownerReferences": []})

    # --- what is scheduled --------------------------------------------------------------------------------------------

    def at(self, when: float, what: Callable[[], object]) -> None:
        """Let something happen at a time."""
        heappush(self._due, (when, next(self._order), what))

    def _times(self, per_day: float) -> Iterator[float]:
        for _ in range(round(per_day * self.days)):
            yield self.began + self._choose.uniform(HOUR, self.days * DAY - HOUR)

    def _chores(self) -> None:
        for when in self._times(1):
            self.at(when, self._maintain)
        for when in self._times(0.5):
            self.at(when, self._reboot)
        for when in self._times(0.5):
            self.at(when, self._release)
        for when in self._times(4):
            self.at(when, self._flicker)
        for when in self._times(1):
            self.at(when, lambda: self._restart(self._choose.randrange(2)))
        for when in self._times(0.2):
            self.at(when, self._roll_out)
        for when in self._times(0.2):
            self.at(when, self._fail_api)

    def _faults(self, faults: int) -> None:
        storm = STORM if faults > 2 * STORM else 0
        single = faults - storm
        gap = self.days * DAY / (single + 1)
        for place in range(single):
            when = self.began + gap * (place + self._choose.uniform(0.6, 1.0))
            self.at(when, lambda place=place: self._break(place))  # type: ignore[misc]
        if storm:
            self.at(self.began + gap * (single + 0.9), self._storm)

    # --- what happens -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all days, then let everything be repaired."""
        end = self.began + self.days * DAY
        while self.now < end:
            next_cycle = self.now + STEP
            while self._due and self._due[0][0] <= next_cycle:
                self.now, _, happens = heappop(self._due)
                happens()
            self.now = next_cycle
            self.cycle(0)
            self.cycle(1)
            self._note_waiting()
        self.settle()

    def _free(self, *, guarded: bool = False) -> str:
        """Return a node to which nothing happens yet."""
        names = [name for name in self.objects if name not in self._busy and (guarded or name not in GUARDED)]
        names = [name for name in names if not self.objects[name]["spec"].get("unschedulable")]
        return self._choose.choice(names)

    def _take(self, name: str, seconds: float) -> str:
        self._busy.add(name)
        self.at(self.now + seconds, lambda: self._busy.discard(name))
        return name

    def _maintain(self) -> None:
        """A person cordons a healthy node, reboots it, and uncordons it."""
        name = self._take(self._free(), 2 * HOUR)
        self.cordon(name)
        self.at(self.now + 10 * MINUTE, lambda: self._boot(name))
        self.at(self.now + HOUR, lambda: self.uncordon(name))

    def _reboot(self) -> None:
        """A healthy node crashes and comes back."""
        self._boot(self._take(self._free(), HOUR))

    def _boot(self, name: str) -> None:
        self._be_ready(name, ready=False)
        self.truth[name].reachable = False
        self.at(self.now + 6 * MINUTE, lambda: self._booted(name))

    def _booted(self, name: str) -> None:
        self.repair(name)
        self._be_ready(name, ready=True)
        self.at(self.now + MINUTE, lambda: self._reach(name))

    def _reach(self, name: str) -> None:
        self.truth[name].reachable = True

    def _be_ready(self, name: str, *, ready: bool) -> None:
        conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
        self.change(name, lambda item: item["status"].update(conditions=conditions))

    def _release(self) -> None:
        """The driver of a node is released for maintenance: its GPUs cannot be read."""
        name = self._take(self._free(), 2 * HOUR)
        self._released[name] = self.now + 30 * MINUTE
        self.fail(name, "stalled")
        self.at(self.now + 29 * MINUTE, lambda: self.heal(name))
        self.at(self.now + 30 * MINUTE, lambda: self._released.pop(name))

    def _flicker(self) -> None:
        """An error that is gone before it is confirmed."""
        name = self._take(self._free(), HOUR)
        self.fail(name, "uncorrectable_ecc")
        self.at(self.now + self._choose.uniform(10, 50), lambda: self.heal(name))

    def _restart(self, which: int) -> None:
        self.controllers[which] = self.start()

    def _roll_out(self) -> None:
        """Exporters restart, one after the other, and date everything anew."""
        for place, name in enumerate(self.objects):
            self.at(self.now + place * MINUTE, lambda name=name: self._restart_exporter(name))  # type: ignore[misc]

    def _restart_exporter(self, name: str) -> None:
        truth = self.truth[name]
        truth.faults = dict.fromkeys(truth.faults, self.now)
        truth.healthy_since = max(truth.healthy_since, self.now)

    def _fail_api(self) -> None:
        self._outage_until = self.now + 5 * MINUTE

    # --- faults -------------------------------------------------------------------------------------------------------

    def _break(self, place: int) -> None:
        """A GPU fails. Each sixth needs replacement; once a person uses the node all the same, once it heals itself."""
        name = self._free(guarded=True) if place % 5 else self._choose.choice(GUARDED)
        if name in self._busy:
            name = self._free()
        reason = "sram_threshold" if place % 6 == 5 else self._choose.choice(("stalled", "uncorrectable_ecc"))
        self._begin(name, reason)
        takes = (1.5 * DAY, 2 * DAY) if reason == "sram_threshold" else (3 * HOUR, 12 * HOUR)
        repaired = self._choose.uniform(*takes)
        if place == 1:
            self.at(self.now + HOUR, lambda: self.uncordon(name))
        if place == 2:
            self.at(self.now + HOUR, lambda: self.heal(name))
        self.at(self.now + repaired, lambda: self._repair(name, confirm=reason == "sram_threshold"))

    def _storm(self) -> None:
        """A bad driver: the same fault on several nodes within two minutes."""
        for place in range(STORM):
            name = self._free()
            self._busy.add(name)
            self.at(self.now + 40 * place, lambda name=name: self._begin(name, "stalled", storm=True))  # type: ignore[misc]
            self.at(self.now + 2 * HOUR, lambda name=name: self._repair(name, confirm=False))  # type: ignore[misc]

    def _begin(self, name: str, reason: str, *, storm: bool = False) -> None:
        self._busy.add(name)
        self.fail(name, reason)
        self.incidents.append(Incident(name, reason, self.now, storm))

    def _repair(self, name: str, *, confirm: bool) -> None:
        if confirm:
            self.confirm(name)
        self._boot(name)
        self.at(self.now + 12 * HOUR, lambda: self._busy.discard(name))

    # --- what is measured and checked ---------------------------------------------------------------------------------

    def before(self) -> None:
        if self.now < self._outage_until:
            raise LookupFailed("unavailable", "the API server does not answer")
        super().before()

    def _answer(self, name: str) -> Mapping[str, Any]:
        until = self._released.get(name)
        return {**super()._answer(name), **({"released_until": until} if until else {})}

    def patch(self, name: str, operations: Sequence[Operation], asked: NodeFinding | None) -> None:
        before = self.objects[name]
        super().patch(name, operations, asked)
        self._record(name, before, self.objects[name])

    def _record(self, name: str, before: NodeObject, after: NodeObject) -> None:
        old, new = s.read(before), s.read(after)
        latest = next((each for each in reversed(self.incidents) if each.node == name), None)
        drains = [node.state.drain if node.state else None for node in (old, new)]
        if new.cordoned and not old.cordoned:
            self._justify(name, "cordoned")
            self._check_whole_budget(name)
            if latest and latest.cordoned is None:
                latest.cordoned = self.now
        if latest is None:
            return
        if drains[1] and not drains[0]:
            self._justify(name, "drained")
        if drains[1] and drains[1] != drains[0]:
            if drains[1].progress is DrainProgress.DRAINED:
                latest.drained = latest.drained or self.now
            if drains[1].progress is DrainProgress.TIMEOUT:
                latest.timed_out = latest.timed_out or self.now
        if old.cordoned and new.state:
            latest.held |= new.state.phase is DrainPhase.HELD
            latest.returned = self.now if new.state.phase is DrainPhase.RETURNED else latest.returned

    def _justify(self, name: str, what: str) -> None:
        """A node is only touched while it has a fault of an incident that has lasted for long enough."""
        ours = [each for each in self.incidents if each.node == name and each.reason in self.truth[name].faults]
        if not ours or self.now - ours[-1].began < POOL.confirm_seconds:
            self.unjustified.append(f"{name} was {what} at {self.now - self.began:.0f} s")

    def _check_whole_budget(self, name: str) -> None:
        """Nodes that people have cordoned and nodes that are not ready count, too."""
        out = {each for each, item in self.objects.items() if s.read(item).out_of_service} | {name}
        assert len(out) <= POOL.budget.limit(len(self.objects)), f"over budget: {sorted(out)}"

    def _note_waiting(self) -> None:
        """Note why an incident that should be cordoned is not."""
        for each in self.incidents[-STORM:]:
            if each.cordoned is None and not each.waited_for and self.now - each.began > 4 * STEP:
                each.waited_for = (
                    "breaker" if each.storm and BREAKER in self.lease["metadata"]["annotations"] else "budget"
                )
