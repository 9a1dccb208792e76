"""Incidents: every failure mode of the catalogue, injected into normal operation at a known time, and its repair."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_exporter.catalogue import job_signals
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import MODES, profiles
from gpu_exporter.catalogue.failure_modes.loops import LOOP
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Ramp, Scope, Wave
from gpu_exporter.catalogue.failure_modes.mode import Values as Injected
from gpu_exporter.catalogue.signals import UTIL
from gpu_exporter.conditions.tree import Over, terms
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.verdict import Action
from tests.operation.fleet import HOUR, Fleet, Timeline, Truth, steps
from tests.operation.loads import BOARD
from tests.rules.series import Generation, Stretch, rank
from tests.rules.shapes import STEP, Integral, Shape
from tests.rules.test_modes import knowable
from tests.support.incidents import in_incident_of

BY_NAME = {mode.name: mode for mode in MODES}
# Minutes that an alert may need beyond its window and hold: scrapes, the chain of rules, a short gap.
SLACK = 12.0
# How long people need to repair something, in minutes.
REPAIR = (60.0, 240.0)


@dataclass(frozen=True, slots=True)
class Site:
    """GPUs on which incidents happen one after another: `jobs` has GPUs on which a job of all of them can run."""

    node: str
    gpus: Sequence[Timeline]
    jobs: bool = False


def window(mode: FailureMode) -> float:
    """Return the longest window of a failure mode, in minutes, apart from those of training loops: there are none."""
    over = [term for term in terms(mode.condition) if isinstance(term, Over)] if mode.condition else []
    return max((term.window for term in over if term.signal not in job_signals.SIGNALS), default=0.0) / 60


def shown(mode: FailureMode, generation: Generation) -> bool:
    """Return whether an exporter of this generation shows the failure mode."""
    if mode.requires in ("remediation", LOOP):
        return False  # the fleet has no controller, and its jobs no step timer
    if mode.requires:
        return mode.name == "GpuAllocationFragmented" or generation is Generation.GPU_EXPORTER
    return bool(mode.fleet) or (mode.condition is not None and knowable(mode.condition, generation))


def incidents(
    fleet: Fleet, sites: Sequence[Site], modes: Iterable[FailureMode], rng: random.Random
) -> dict[str, list[int]]:
    """Inject each failure mode once, at a random time on a site that shows it; return the free slots of each site."""
    free = {site.node: _slots(fleet.total, rng) for site in sites}
    for mode in modes:
        needs_job = bool(mode.inject.peers)
        fits = [
            site
            for site in sites
            if free[site.node] and (site.jobs or not needs_job) and shown(mode, site.gpus[0].device.generation)
        ]
        if fits:
            site = max(fits, key=lambda each: (len(free[each.node]), each.node))
            inject(fleet, site, mode, free[site.node].pop(), rng)
    return free


def _slots(total: int, rng: random.Random) -> list[int]:
    """Return scrapes at which an incident may begin on one site: far enough apart to be repaired in between."""
    every = 9 * HOUR
    slots = [start + round(rng.uniform(0, 1.5) * HOUR) for start in range(3 * HOUR, total - every, every)]
    rng.shuffle(slots)
    return slots


def inject(fleet: Fleet, site: Site, mode: FailureMode, start: int, rng: random.Random, *, gap: bool = False) -> None:
    """Let a failure mode happen on a site from a scrape on, and repair it afterwards."""
    needs = mode.hold / 60 + window(mode) + SLACK + (12 if gap else 0)
    length = steps(needs + rng.uniform(*REPAIR) / (4 if mode.domain is not Domain.HEALTH else 1))
    end = start + length
    victim = 0 if mode.inject.peers else rng.randrange(len(site.gpus))
    one = site.gpus[victim].device.gpu
    ranks = site.gpus if mode.inject.peers or mode.inject.fault in ("down",) else [site.gpus[victim]]
    for number, gpu in enumerate(ranks):
        is_victim = gpu is site.gpus[victim]
        values = mode.inject.values if is_victim else mode.inject.peers
        _put(gpu, start, length, values, mode, rank(mode.name.lower(), number), is_victim=is_victim)
    affected = [gpu.device.gpu for gpu in site.gpus] if mode.inject.everyone or mode.inject.fault == "down" else [one]
    of = frozenset(affected) if _has_gpu(mode, site.gpus[0].device.generation) else frozenset[int]()
    for text, value in mode.inject.series.items():
        name, _, labels = text.rstrip("}").partition("{")
        pairs = [tuple(pair.replace('"', "").split("=", 1)) for pair in labels.split(",") if pair]
        scrape = (
            {"job": "kube-state-metrics", "instance": "0"} if name.startswith("kube_") else site.gpus[0].device.scrape
        )
        key = (name, tuple({**dict(pairs), **scrape}.items()))  # type: ignore[arg-type]
        created = value if name != "kube_pod_created" else start * STEP - 1800.0
        fleet.series[key] = [(start, None), (length, created), (max(fleet.total - end, 0), None)]
    if mode.inject.xid is not None:
        fleet.xid(site.node, one, start, mode.inject.xid, start + steps(10), end)
    repaired = _repair(fleet, site, mode, end)
    may = tuple(sorted(in_incident_of(mode)))
    fleet.truths.append(Truth(mode.name, site.node, of, start, repaired, (mode.name,), may, needs))


def _has_gpu(mode: FailureMode, generation: Generation) -> bool:
    return not mode.requires and mode.condition is not None and knowable(mode.condition, generation)


def _put(
    gpu: Timeline,
    start: int,
    length: int,
    values: Injected,
    mode: FailureMode,
    owner: Mapping[str, str],
    *,
    is_victim: bool,
) -> None:
    """Lay the injected values over what the GPU does; a load and a fault replace it."""
    fault = mode.inject.fault if is_victim or mode.inject.fault == "down" else ""
    rows = {row: _shape(row, shape) for row, shape in values.items()}
    replaces = (
        m.GR_ENGINE_ACTIVE in rows
        or any(isinstance(shape, Ramp) for shape in rows.values())
        or mode.scope is not Scope.DEVICE
    )
    if replaces or m.FB_USED in rows or UTIL in mode.needs:
        base = {**load_of_health(), **rows}
        story = {row: shape for row, shape in base.items() if row not in mode.inject.absent}
        gpu.put(start, [Stretch(length, story, fault, owner=owner)])
        return

    def change(each: Stretch) -> Stretch:
        changed = {row: shape for row, shape in {**each.values, **rows}.items() if row not in mode.inject.absent}
        return replace(each, values=changed, fault=fault or each.fault)

    gpu.change(start, start + length, change)


def load_of_health() -> dict[Metric, Shape | Integral]:
    """Return the values of a healthy GPU whose counters do not grow."""
    return {**BOARD, **profiles.BALANCED}


def _shape(row: Metric, shape: float | Ramp | Wave) -> Shape | Integral:
    """Return the injected shape; a counter that grows continues from its value."""
    if isinstance(shape, Ramp) and isinstance(BOARD.get(row), Integral):
        return Integral((shape.per_second, 1.0))
    return shape


def fatal(fleet: Fleet, site: Site, name: str, code: int, start: int, rng: random.Random) -> None:
    """Let a failure mode begin with a fatal XID: the GPU is unhealthy until its repair, and the alert lasts as long."""
    inject(fleet, site, BY_NAME[name], start, rng)
    truth = fleet.truths[-1]
    (gpu,) = truth.gpus or {site.gpus[0].device.gpu}
    fleet.xid(site.node, gpu, start, code, truth.end, truth.end)
    may = (*truth.may, "GpuXidFatal", name)
    fleet.truths[-1] = replace(truth, may=may)
    if BY_NAME[name].inject.fault == "lost" and site.gpus[0].device.generation is not Generation.GPU_EXPORTER:
        return  # dcgm-exporter shows nothing of a lost GPU, not even its XID
    fleet.truths.append(
        Truth(f"XID {code}", site.node, frozenset({gpu}), start, truth.end, ("GpuXidFatal",), may, SLACK, lasts=True)
    )


def _repair(fleet: Fleet, site: Site, mode: FailureMode, end: int) -> int:
    """Reboot the node after a fault of the hardware, which resets counters and XIDs; return when all is well."""
    hardware = mode.domain is Domain.HEALTH and mode.action not in (Action.NONE, Action.RESTART_APP)
    if (hardware or mode.inject.fault in ("lost", "wedged")) and end < fleet.total:
        return fleet.reboot(site.node, end, 7.0)
    return end
