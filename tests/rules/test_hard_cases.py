"""Hard cases for rules: starts, reboots, MIG, two exporters, jobs that are uneven by design."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_exporter.alerting import boards
from gpu_exporter.alerting.alert_texts import RELATIVE
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles as p
from gpu_exporter.catalogue.failure_modes.mode import Ramp, Values, Wave
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.conditions.signal import DEVICE_INFO, Signal
from gpu_exporter.model.metric import Metric
from tests.rules.promtool import (
    BY_NAME,
    COARSE,
    Case,
    Expect,
    check,
    check_together,
    firing,
    never_fired,
    no_other_node,
    now_firing,
)
from tests.rules.series import Device, Generation, Stretch, minutes, rank
from tests.rules.shapes import Shape
from tests.rules.test_modes import available

HELD = 60.0
OWNED = {"restarted": "train", "slurm": "4711", "honoured": "train"}
GENERATIONS = tuple(Generation)
# Signals of metrics that no device here has.
ABSENT = ("unobserved", "healthy", "degraded", "unhealthy", "profiling_stopped")


def on_board(profile: Values) -> Mapping[Metric, Shape]:
    """Return a profile on a healthy board."""
    return {**p.BOARD, **profile}


IDLE = {**on_board(p.IDLE), m.FB_USED: 0.0, m.FB_FREE: 143771.0 - 615}


def node(name: str, stories: Sequence[Sequence[Stretch]], generation: Generation, *, job: str = "") -> list[Device]:
    """Return a node with a GPU for each story, all of one job if it has a name."""
    return [Device(name, gpu, story, generation, rank(job, gpu) if job else {}) for gpu, story in enumerate(stories)]


def healthy_gpus_fire_no_alert() -> Iterator[Case]:
    """Also during starts and reboots, with any exporter."""
    loading = {**on_board(p.TINY_KERNELS), m.FB_USED: Ramp(600.0, 400.0), m.FB_FREE: Ramp(143771.0 - 1215, -400.0)}
    full = {**on_board(p.BALANCED), m.FB_USED: 600.0 + 400 * 300, m.FB_FREE: 143771.0 - 1215 - 400 * 300}
    stories = {
        "idle": [[minutes(HELD, IDLE)]] * 2,
        "works": [[minutes(HELD)]] * 8,
        "starts": [[minutes(20, IDLE), minutes(5, loading), minutes(35, full)]] * 2,
        "reboots": [[minutes(25), minutes(4, fault="down"), minutes(2, IDLE), minutes(29)]] * 2,
    }
    cases = {
        f"{name}-{generation.value}": node(f"{name}-{generation.value}", story, generation, job=name)
        for generation in (Generation.GPU_EXPORTER, Generation.DCGM_4_9)
        for name, story in stories.items()
    }
    devices = [each for own in cases.values() for each in own]
    yield Case("quiet", devices, [no_other_node(["-"])])


def lost_gpus() -> Iterator[Case]:
    """One or all, also if the only sign is that dcgm-exporter's series are absent. No other GPU has an alert.

    On so many nodes at once, it is a fault of the fleet, too.
    """
    well, lost = [minutes(HELD)], [minutes(HELD / 2), minutes(HELD / 2, fault="lost")]
    devices: list[Device] = []
    found: list[Expect] = []
    for generation in (Generation.GPU_EXPORTER, Generation.DCGM_4_8_2, Generation.DCGM_4_9):
        is_gpu_exporter = generation is Generation.GPU_EXPORTER
        names = ["GpuLost", "GpuTelemetryStale"] if is_gpu_exporter else ["GpuLost"]
        for how, stories in {"one": [well, well, lost], "all": [lost, lost]}.items():
            name = f"{how}-{generation.value}"
            gone = [gpu if is_gpu_exporter else None for gpu, story in enumerate(stories) if story is lost]
            devices += node(name, stories, generation, job=name)
            found.append(now_firing(name, "", firing(name, names, gone if is_gpu_exporter else {None})))
            found.append(never_fired(name, names))
    of_all = no_other_node({device.node for device in devices})
    found.append(replace(of_all, samples=firing("", ["GpuFleetFault"], [None])))
    yield Case("gone", devices, found)


def a_gpu_that_comes_back_is_no_longer_lost() -> Iterator[Case]:
    story = [minutes(20), minutes(15, fault="lost"), minutes(25)]
    devices = node("back", [[minutes(60)], story], Generation.GPU_EXPORTER) + node(
        "also", [[minutes(60)], story], Generation.DCGM_4_9
    )
    found = [now_firing(name, "", []) for name in ("back", "also")]
    fired = 'group by (node) (last_over_time(ALERTS{alertname="GpuLost", alertstate="firing"}[1d]))'
    found.append(Expect(fired, [({"node": "back"}, 1.0), ({"node": "also"}, 1.0)]))
    yield Case("back", devices, found)


def parts(
    generation: Generation,
    name: str,
    values: Mapping[Metric, Shape] = p.HEALTHY,
    owners: Sequence[Mapping[str, str]] = (rank("alpha"), rank("beta")),
    length: float = 30,
) -> list[Device]:
    """Return a GPU with two MIG instances, each with an owner, as gpu-exporter or dcgm-exporter exposes it."""
    whole = {row: value for row, value in values.items() if not row.per_instance and row is not m.GPU_UTIL}
    own = {row: value for row, value in values.items() if row.per_instance}
    is_gpu_exporter = generation is Generation.GPU_EXPORTER
    found = [
        Device(
            name,
            0,
            [minutes(length, own if is_gpu_exporter else {**whole, **own})],
            generation,
            owner,
            instance=str(number),
        )
        for number, owner in enumerate(owners, 1)
    ]
    return [*found, Device(name, 0, [minutes(length, whole)], generation)] if is_gpu_exporter else found


def mig_instances_are_not_counted_twice() -> Iterator[Case]:
    devices, found = [], []
    for generation in (Generation.GPU_EXPORTER, Generation.DCGM_4_9):
        name = f"mig-{generation.value}"
        devices += parts(generation, name)
        at = {"node": name, "gpu": "0"}
        found += [
            Expect(
                f'round(sum by (node) (gpu:power:watts{{node="{name}"}}), 0.001)',
                [({"node": name}, p.BALANCED[m.POWER])],
            ),
            Expect(f'node:gpus:count{{node="{name}"}} * 1', [({"node": name}, 1.0)]),
            Expect(
                f'sum by (workload) (gpu:share:ratio{{node="{name}"}})',
                [({"workload": "alpha"}, 0.5), ({"workload": "beta"}, 0.5)],
            ),
            Expect(
                f'count by (node, gpu, GPU_I_ID, workload) (gpu:sm_active:ratio{{node="{name}"}})',
                [({**at, "GPU_I_ID": number, "workload": job}, 1.0) for number, job in (("1", "alpha"), ("2", "beta"))],
            ),
            never_fired(name),
        ]
    yield Case("mig", devices, found)


def a_gpu_that_pods_share_has_no_owner() -> Iterator[Case]:
    """With time-slicing, dcgm-exporter exposes each series once per pod."""
    shared = [Device("shared", 0, [minutes(30)], Generation.DCGM_4_9, rank(job)) for job in ("alpha", "beta")]
    for signal in ("sm_active:ratio", "power:watts"):
        yield Case(
            signal,
            shared,
            [
                Expect(
                    f"count by (node, gpu, pod, workload) (gpu:{signal})",
                    [({"node": "shared", "gpu": "0"}, 1.0)],
                ),
                never_fired("shared"),
            ],
        )


def jobs_that_are_uneven_by_design() -> Iterator[Case]:
    """Replicas of a service and tensor-parallel pairs with different load, stages of a pipeline."""
    waits = {**on_board(p.OF_SLOW)}
    pair = {**waits, m.NVLINK_TX: 6e9, m.NVLINK_RX: 6e9}
    busy_pair = {**on_board(p.SLOW), m.NVLINK_TX: 4e10, m.NVLINK_RX: 4e10}
    first = {**on_board(p.SLOW), m.NVLINK_TX: 6e9, m.NVLINK_RX: 0.0}
    second = {**waits, m.NVLINK_TX: 0.0, m.NVLINK_RX: 6e9}
    stories: Mapping[str, Sequence[Mapping[Metric, Shape]]] = {
        "replicas": [on_board(p.SMALL_DECODE)] * 5 + [on_board(p.GEMM)] * 2 + [IDLE],
        "pairs": [pair] * 4 + [busy_pair] * 2,
        "pipeline": [first, second],
        "pipeline-idle-first": [{**on_board(p.STARVED), m.NVLINK_TX: 6e9, m.NVLINK_RX: 1e6}, second],
    }
    devices, found = [], []
    for generation in (Generation.GPU_EXPORTER, Generation.DCGM_4_9):
        for name, ranks in stories.items():
            at = f"{name}-{generation.value}"
            devices += node(at, [[minutes(30, values)] for values in ranks], generation, job=at)
            found.append(Expect(f'ALERTS{{domain="distributed", node="{at}"}}'))
    yield Case("uneven", devices, found)


def same(signal: Signal, devices: int) -> list[Expect]:
    """Expect the same value of a signal on all devices that can have it."""
    name = signal.record
    spread = f"max by () ({name}) - min by () ({name}) <= bool 1e-6 * max by () (abs({name}))"
    return [Expect(f"count by () ({name})", [({}, float(devices))]), Expect(spread, [({}, 1.0)])]


def a_mixed_fleet_has_identical_signals() -> Iterator[Case]:
    rows = {**p.HEALTHY, m.RETIRED_PENDING: 0.0, m.FP64_ACTIVE: 0.125, m.INT_ACTIVE: 0.25, m.FP16_ACTIVE: 0.0625}
    engine = p.HEALTHY[m.GR_ENGINE_ACTIVE]
    assert isinstance(engine, float)
    usual = p.HEALTHY[m.FB_USED]
    assert isinstance(usual, float)
    # Utilisation is that of the engine where only this is counted.
    rows |= {
        m.POWER_SET: 650.0,
        m.CLOCK_EVENTS: 0.0,
        m.PCIE_REPLAY: 3.0,
        m.GPU_UTIL: 100 * engine,
        m.FB_USED_PEAK: usual * m.MIB,
        m.FABRIC_CODE: 7.0,
    }
    devices = [Device(f"node-{each.value}", 0, [minutes(30, rows)], each, rank("mixed")) for each in GENERATIONS]
    found = [never_fired(device.node) for device in devices]
    for signal in SIGNALS:
        if signal.name.startswith(("xid", "host_", "job_", "nic_", "checked_")) or signal.name in ABSENT:
            found.append(Expect(f"count({signal.record})"))
        else:
            found += same(signal, sum(available(signal, each) for each in GENERATIONS))
    labels = {
        "modelName": "NVIDIA H200",
        "namespace": "research",
        "workload": "mixed",
        "gpu": "0",
        "pod": "mixed-worker-0",
    }
    identity = [({**labels, "node": each.node, "UUID": each.uuid}, 1.0) for each in devices]
    found.append(Expect(f"group by (node, UUID, gpu, modelName, namespace, pod, workload) ({DEVICE_INFO})", identity))
    yield Case("mixed", devices, found)


def histograms_show_what_gauges_hide() -> Iterator[Case]:
    """Swings and stalls that are faster than scrapes and in step with them fire only with histograms.

    Constant loads at the edge of two buckets are no swings.
    """
    stalls = {
        **on_board(p.BALANCED),
        m.GR_ENGINE_ACTIVE: 0.72,
        m.SM_SHARES: (0.0, 0.95, 0.95),
        m.NVLINK_RX: 0.0,
        m.NVLINK_TX: 0.0,
    }
    stories: Mapping[str, tuple[Mapping[Metric, Shape], str]] = {
        "swings": ({**p.HEALTHY, m.POWER_SAMPLES: Wave(118, 923, 0.5)}, "GpuPowerOscillation"),
        "loads": ({**stalls, m.PCIE_RX: 5e9}, "GpuDataLoadingBound"),
        "waits": (stalls, "GpuHostBound"),
        "edge": ({**p.HEALTHY, m.POWER_SAMPLES: (699.0, 701.0, 700.0)}, ""),
        "small": ({**p.HEALTHY, m.POWER_LIMIT: 72.0, m.POWER: 50.0, m.POWER_INSTANT: (49.0, 50.0, 51.0)}, ""),
    }
    devices, found = [], []
    for generation in GENERATIONS:
        for full in (True, False) if generation is Generation.GPU_EXPORTER else (False,):
            for name, (values, mode) in stories.items():
                at = f"{name}-{generation.value}-{full}"
                devices.append(Device(at, 0, [minutes(60, values)], generation, full=full))
                names = [mode] if mode and full else []
                found += [now_firing(at, "", firing(at, names)), never_fired(at, names)]
    yield Case("hidden", devices, found)


def two_exporters_side_by_side() -> Iterator[Case]:
    """Each GPU counts once; if values differ, gpu-exporter's are used."""
    own = Device("both", 0, [minutes(30)], Generation.GPU_EXPORTER, rank("train"))
    other = {**p.HEALTHY, m.SM_ACTIVE: 0.5, m.GR_ENGINE_ACTIVE: 0.5}
    found = [
        Expect(
            "count by (node, gpu, pod) (gpu:sm_active:ratio)",
            [({"node": "both", "gpu": "0", "pod": "train-worker-0"}, 1.0)],
        ),
        Expect("round(max by (node) (gpu:sm_active:ratio), 0.001)", [({"node": "both"}, p.BALANCED[m.SM_ACTIVE])]),
        Expect("round(sum by (node) (gpu:power:watts), 0.001)", [({"node": "both"}, p.BALANCED[m.POWER])]),
        Expect("count by (node) (gpu:bottleneck:class)", [({"node": "both"}, 1.0)]),
        Expect("sum(node:gpus:count)", [({}, 1.0)]),
        Expect(
            'workload:gpus:count{workload="train"} * 1',
            [({"namespace": "research", "workload": "train"}, 1.0)],
        ),
        never_fired("both"),
        no_other_node(["both"]),
    ]
    for generation in (Generation.DCGM_4_8_2, Generation.DCGM_4_9):
        differing = replace(own, generation=generation, story=[minutes(30, other)])
        yield Case(f"both-{generation.value}", [own, differing], found)


def the_exporters_own_pod_is_no_owner() -> Iterator[Case]:
    """Without honorLabels, the owner is in exported_pod, and a free GPU has the exporter's own pod."""
    target = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x7k2p", "container": "exporter"}
    owner = {f"exported_{name}": value for name, value in rank("train", 3).items()}
    held = Device("plain", 0, [minutes(30)], Generation.DCGM_4_9, owner, target)
    free = Device("plain", 1, [minutes(30, IDLE)], Generation.DCGM_4_9, {}, target)
    owned = {"gpu": "0", "namespace": "research", "pod": "train-worker-3", "workload": "train"}
    found = [
        Expect("count by (gpu, namespace, pod, workload) (gpu:sm_active:ratio)", [(owned, 1.0), ({"gpu": "1"}, 1.0)]),
        never_fired("plain"),
    ]
    yield Case("plain", [held, free], found)


def owners_that_are_no_pods() -> Iterator[Case]:
    """A Slurm job, also with the exporter's own pod on the series; a recording, which is one job; a label."""
    target = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x7k2p", "container": "exporter"}
    pod = {name: value for name, value in rank("x").items() if name != "container"}
    labels = (
        {"hpc_job": "4711"},
        {"hpc_job": "4712", **target},
        {"source": "replay"},
        {"workload": "named", **rank("x")},
    )
    devices = [Device("named", gpu, [minutes(30)], Generation.DCGM_4_9, {}, own) for gpu, own in enumerate(labels)]
    whose = ({"workload": "4711"}, {"workload": "4712"}, {"workload": "replay"}, {"workload": "named", **pod})
    owned = [({"gpu": str(gpu), **owner}, 1.0) for gpu, owner in enumerate(whose)]
    found = [Expect("count by (gpu, namespace, pod, workload) (gpu:sm_active:ratio)", owned), never_fired("named")]
    yield Case("named", devices, found)


def a_pod_change_changes_the_owner_and_nothing_else() -> Iterator[Case]:
    """Labelled series end and others begin; the GPU's activity continues without a gap or a duplicate."""
    devices, found = [], []
    for generation in (Generation.GPU_EXPORTER, Generation.DCGM_4_9):
        name = f"change-{generation.value}"
        stretches = [replace(minutes(20), owner=rank(job)) for job in ("before", "after")]
        devices.append(Device(name, 0, stretches, generation))
        each = f'count by (node) (gpu:sm_active:ratio{{node="{name}"}})'
        before = f'count by (node) (count_over_time(gpu:sm_active:ratio{{node="{name}", workload="before"}}[30m]))'
        found += [
            Expect(
                f'count by (node, workload) (gpu:sm_active:ratio{{node="{name}"}})',
                [({"node": name, "workload": "after"}, 1.0)],
            ),
            Expect(before, [({"node": name}, 1.0)]),
            Expect(f"max by (node) (count_over_time(({each} == 1)[30m:1m]))", [({"node": name}, 30.0)]),
            never_fired(name),
        ]
    yield Case("change", devices, found)


def an_allocated_gpu_that_is_never_used() -> Iterator[Case]:
    """It holds no memory. Its pod or job, or one of several, must have had it for two hours: a pod may be starting."""
    idle, busy = minutes(150, IDLE), minutes(150)
    pod, other, job = rank("pod"), rank("other"), {"hpc_job": "4711"}
    late = [replace(minutes(120, IDLE), owner={}), minutes(30, IDLE)]
    changed = [replace(minutes(75, IDLE), owner=rank(name)) for name in ("first", "second")]
    stories: Mapping[str, tuple[Sequence[Stretch], Sequence[Mapping[str, str]], bool]] = {
        "pod": ([idle], [pod], True),
        "job": ([idle], [job], True),
        "shared": ([idle], [pod, other], True),
        "used": ([busy], [pod], False),
        "free": ([idle], [{}], False),
        "starting": (late, [pod], False),
        "late-shared": (late, [pod, other], False),
        "changed": (changed, [pod], False),
    }
    devices, found = [], []
    for generation in (Generation.GPU_EXPORTER, Generation.DCGM_4_9):
        for name, (story, owners, fires) in stories.items():
            node = f"{name}-{generation.value}"
            devices += [Device(node, 0, story, generation, owner) for owner in owners]
            names = ["GpuAllocatedIdle"] if fires else []
            found += [now_firing(node, "", firing(node, names)), never_fired(node, names)]
        node = f"mig-{generation.value}"
        devices += parts(generation, node, IDLE, (pod, {}), 150)
        instances = f'count by (GPU_I_ID) (ALERTS{{node="{node}", alertname="GpuAllocatedIdle"}})'
        found += [Expect(instances, [({"GPU_I_ID": "1"}, 1.0)]), never_fired(node, ["GpuAllocatedIdle"])]
    yield Case("allocated", devices, found)


def gpus_that_are_scraped_twice_count_once() -> Iterator[Case]:
    """A rule that fails on a duplicate would lose the signals of the whole fleet."""
    old, new = ({"namespace": "monitoring", "pod": f"nvidia-dcgm-exporter-{pod}"} for pod in ("x7k2p", "b4zqd"))
    exported = {f"exported_{name}": value for name, value in rank("train").items()}
    doubles: Mapping[str, Sequence[Mapping[str, str]]] = {
        "restarted": ({**old, **exported}, {**new, **exported}),
        "slurm": ({**old, "hpc_job": "4711"}, {**new, "hpc_job": "4711"}),
        "relabelled": ({"node": "a"}, {"node": "b"}),
        "moved": ({"Hostname": "moved"}, {"Hostname": "elsewhere"}),
        "renamed": ({"Hostname": "renamed"}, {"Hostname": "renamed.example.com"}),
        "index": ({"gpu": "0"}, {"gpu": "1"}),
        "model": ({"modelName": "NVIDIA H200"}, {"modelName": "H200"}),
        "jobs": ({"job": "one"}, {"job": "two"}),
        "honoured": (rank("train"), {**old, **exported}),
        "sliced": ({"vgpu": "0"}, {"vgpu": "1"}),
    }
    for generation in (Generation.GPU_EXPORTER, Generation.DCGM_4_8_2, Generation.DCGM_4_9):
        devices = [
            Device(name, 0, [minutes(10)], generation, {}, {"job": f"{name}-gpu", **target})
            for name, targets in doubles.items()
            for target in targets
        ]
        parts = [
            replace(Device("parts", 0, [minutes(10)], generation), instance="1", target={"GPU_I_PROFILE": profile})
            for profile in ("1g.18gb", "2g.35gb")
        ]
        each = [({"UUID": device.uuid}, 1.0) for device in (*devices[::2], parts[0])]
        found = [Expect(f"count by (UUID) ({name})", each) for name in ("gpu:sm_active:ratio", "gpu:bottleneck:class")]
        owned = [({"UUID": f"GPU-{name}-0", "workload": job}, 1.0) for name, job in OWNED.items()]
        found.append(Expect('count by (UUID, workload) (gpu:sm_active:ratio{workload!=""})', owned))
        yield Case(f"twice-{generation.value}", [*devices, *parts], found)


def copies_over_an_unknown_link_are_not_idle() -> Iterator[Case]:
    """dcgm-exporter's default fields have traffic, but neither lanes nor generation of the link."""
    values = {row: value for row, value in on_board(p.HOST_COPY).items() if row not in (m.PCIE_GEN, m.PCIE_WIDTH)}
    devices = [Device("copies", 0, [minutes(150, values)], Generation.DCGM_4_8_2)]
    found = [Expect("group by (class) (gpu:bottleneck:class)", [({"class": "mixed"}, 1.0)])]
    yield Case("copies", devices, [*found, never_fired("copies", ["GpuMemoryHoarded"])])


def failed_scrapes_do_not_resolve_alerts() -> Iterator[Case]:
    """After two failed scrapes, every series is stale and every condition unknown."""
    hidden = ["GpuFakeLoad", "GpuRowRemapPending"]
    sick = {**on_board(p.ONE_THREAD), m.REMAP_PENDING: 1.0}
    story = [minutes(50, sick), minutes(1.5, fault="down"), minutes(8.5, sick)]
    found = [
        Expect(
            f'group by (alertname) (count_over_time(ALERTS{{alertname="{name}", alertstate="firing"}}[20m]) == 20)',
            [({"alertname": name}, 1.0)],
        )
        for name in hidden
    ]
    yield Case("fails", [Device("fails", 0, story, Generation.DCGM_4_9)], found)


def failed_scrapes_do_not_restart_a_hold() -> Iterator[Case]:
    """Scrapes fail every five minutes, when rules are evaluated. Better values restart it, and a GPU that is gone."""
    modes = ("GpuNicSlowLink", "GpuThermalMarginLow")
    injected = {name: {**p.HEALTHY, **BY_NAME[name].inject.values} for name in modes}
    slow = injected["GpuNicSlowLink"]
    stories = {
        **{name: [minutes(4, sick), minutes(0.5, sick, "down"), minutes(0.5, sick)] for name, sick in injected.items()},
        "better": [minutes(4, slow), minutes(1, {**slow, m.NIC_RATE_SHARE: 1.0})],
    }
    devices = [Device(name, 0, story * 6, owner=rank(name)) for name, story in stories.items()]
    devices.append(Device("gone", 0, [minutes(3, slow), minutes(27, slow, "absent")], owner=rank("gone")))
    found = [now_firing(name, "", firing(name, [name])) for name in modes]
    yield Case("misses", devices, [*found, never_fired("better"), never_fired("gone")])


# Those that need all rules, for an hour at most or for two hours and a half, and those that need few.
SHORT = (
    healthy_gpus_fire_no_alert,
    lost_gpus,
    a_gpu_that_comes_back_is_no_longer_lost,
    mig_instances_are_not_counted_twice,
    a_gpu_that_pods_share_has_no_owner,
    a_mixed_fleet_has_identical_signals,
    histograms_show_what_gauges_hide,
    two_exporters_side_by_side,
    the_exporters_own_pod_is_no_owner,
    owners_that_are_no_pods,
    a_pod_change_changes_the_owner_and_nothing_else,
    failed_scrapes_do_not_resolve_alerts,
    failed_scrapes_do_not_restart_a_hold,
)
LONG = (an_allocated_gpu_that_is_never_used, copies_over_an_unknown_link_are_not_idle)
OF_FEW_RULES = (jobs_that_are_uneven_by_design, gpus_that_are_scraped_twice_count_once)


def test_short_cases(tmp_path: Path) -> None:
    check_together(tmp_path, [case for cases in SHORT for case in cases()])


@pytest.mark.parametrize("cases", OF_FEW_RULES)
def test_cases_of_few_rules(tmp_path: Path, cases: Callable[[], Iterator[Case]]) -> None:
    check_together(tmp_path, cases())


def test_long_cases(tmp_path: Path) -> None:
    check_together(tmp_path, [case for cases in LONG for case in cases()], interval=COARSE)


def test_annotations_of_an_alert_without_a_gpu(tmp_path: Path) -> None:
    well, lost = [minutes(20)], [minutes(10), minutes(10, fault="lost")]
    devices = node("some", [well, lost], Generation.DCGM_4_9)
    mode = BY_NAME["GpuLost"]
    labels = {"severity": "critical", "domain": "health", "action": mode.action.value}
    annotations = {
        "summary": "A GPU on node some does not answer",
        "description": mode.advice,
        "runbook_url": boards.panel_link("gpulost"),
        "dashboard_url": "/d/gpu-gpu?var-cluster=$__all&var-node=some&var-gpu=.*",
        "owner": "no workload known within the last hour",
        "hardware": "a GPU on node some",
        "links": RELATIVE,
    }
    where = {"node": "some", "job": "dcgm-exporter", "instance": "some:9400"}
    alert = {"exp_labels": {**where, **labels}, "exp_annotations": annotations}
    check(tmp_path, [Case("some", devices, [], [{"alertname": mode.name, "exp_alerts": [alert]}])])


def test_clusters_are_kept_apart(tmp_path: Path) -> None:
    """A federating Prometheus has equal node and job names in two clusters: stragglers are compared within one."""
    ranks = [p.SLOW, p.OF_SLOW]
    devices = [
        Device(
            "same",
            gpu,
            [minutes(30, on_board(values))],
            Generation.GPU_EXPORTER,
            rank("train", gpu),
            {"cluster": cluster},
        )
        for cluster, members in (("east", ranks), ("west", [p.OF_SLOW, p.OF_SLOW]))
        for gpu, values in enumerate(members)
    ]
    found = [
        Expect(
            'group by (alertname, cluster, gpu) (ALERTS{alertstate="firing", alertname=~"GpuStraggler.*"})',
            [({"alertname": "GpuStragglerSlow", "cluster": "east", "gpu": "0"}, 1.0)],
        ),
        Expect("count by (cluster) (gpu:sm_active:ratio)", [({"cluster": each}, 2.0) for each in ("east", "west")]),
    ]
    check(tmp_path, [Case("clusters", devices, found)])


def test_all_labels_and_annotations(tmp_path: Path) -> None:
    mode = BY_NAME["GpuEccUncorrectable"]
    device = Device("sick", 3, [minutes(10), minutes(10, {**p.HEALTHY, m.ECC_DBE_VOL: 2.0})], owner=rank("train"))
    alert = {
        "alertname": mode.name,
        "exp_alerts": [
            {
                "exp_labels": {
                    "node": "sick",
                    "gpu": "3",
                    "UUID": device.uuid,
                    "modelName": "NVIDIA H200",
                    "namespace": "research",
                    "workload": "train",
                    "severity": "critical",
                    "domain": "health",
                    "action": "gpu_reset",
                },
                "exp_annotations": {
                    "summary": "Uncorrectable memory errors on GPU 3 on node sick",
                    "description": mode.advice,
                    "runbook_url": boards.panel_link("gpueccuncorrectable"),
                    "dashboard_url": "/d/gpu-gpu?var-cluster=$__all&var-node=sick&var-gpu=3",
                    "owner": "workload train, namespace research, pod train-worker-0",
                    "hardware": f"GPU 3 on node sick, UUID {device.uuid}, NVIDIA H200",
                    "links": RELATIVE,
                },
            }
        ],
    }
    check(tmp_path, [Case("sick", [device], [], [alert])])


def test_summaries_name_instance_workload_and_repair(tmp_path: Path) -> None:
    """The MIG instance, the workload if it is known, and the recovery action in words."""
    spins = [minutes(60, on_board(p.ONE_THREAD))]
    of_job = "workload {0}, namespace research, pod {0}-worker-0".format
    reset = "Cordon the node, wait until the jobs on this GPU have ended, then reset the GPU"
    unknown = "Drain the node, and look the number up in the documentation of the driver"
    asked = {action: [minutes(60, {**p.HEALTHY, m.RECOVERY: action})] for action in (1.0, 2.0, 9.0)}
    fake = {
        ("GPU 2 on node spin (workload train)", of_job("train")): Device("spin", 2, spins, owner=rank("train")),
        ("GPU 3 on node free", "no workload known"): Device("free", 3, spins),
        (
            "GPU 0 (MIG instance 7) on node mig (workload alpha)",
            of_job("alpha"),
        ): Device("mig", 0, spins, owner=rank("alpha"), instance="7"),
    }
    repairs = {
        ("reset the GPU", reset): Device("ask-1", 1, asked[1.0]),
        ("reboot the node", "Drain the node, then reboot it"): Device("ask-2", 2, asked[2.0]),
        ("recovery action 9", unknown): Device("ask-9", 9, asked[9.0]),
    }
    alerts = [
        {
            "alertname": "GpuFakeLoad",
            "exp_alerts": [
                expected_alert(
                    "GpuFakeLoad",
                    device,
                    BY_NAME["GpuFakeLoad"].summary.replace("{gpu}", gpu),
                    f"{BY_NAME['GpuFakeLoad'].advice}{FAKE_VALUE}",
                    {"owner": owner},
                )
                for (gpu, owner), device in fake.items()
            ],
        },
        {
            "alertname": "GpuRecoveryActionRequired",
            "exp_alerts": [
                expected_alert(
                    "GpuRecoveryActionRequired",
                    device,
                    f"The driver asks for a repair of GPU {device.gpu} on node {device.node}: {words}",
                    f"{first}. For the commands, see the section Fix of the runbook.",
                    {
                        "owner": "no workload known within the last hour",
                        "hardware": f"GPU {device.gpu} on node {device.node}, UUID {device.uuid}, NVIDIA H200",
                    },
                )
                for (words, first), device in repairs.items()
            ],
        },
    ]
    check(tmp_path, [Case("summaries", [*fake.values(), *repairs.values()], [], alerts)])


FAKE_VALUE = " Average SM activity over 5 minutes: 0.8%."


def expected_alert(
    name: str, device: Device, summary: str, description: str, more: Mapping[str, str]
) -> Mapping[str, Mapping[str, str]]:
    """Return an alert on this device in promtool's format; only alerts on activity have owner and instance."""
    mode, owner = BY_NAME[name], {}
    if device.owner:
        owner = {label: device.owner[label] for label in ("namespace", "pod")}
        owner["workload"] = device.owner["pod"].partition("-")[0]
    labels = {"node": device.node, "gpu": str(device.gpu), "UUID": device.uuid, "modelName": "NVIDIA H200"}
    part = {"GPU_I_ID": device.instance, "GPU_I_PROFILE": "1g.18gb"} if device.instance else {}
    fixed = {"severity": mode.severity.value, "domain": mode.domain.value, "action": mode.action.value}
    links = {
        "runbook_url": boards.panel_link(name.lower()),
        "dashboard_url": f"/d/gpu-gpu?var-cluster=$__all&var-node={device.node}&var-gpu={device.gpu}",
    }
    return {
        "exp_labels": {**labels, **part, **owner, **fixed},
        "exp_annotations": {"summary": summary, "description": description, **links, **more, "links": RELATIVE},
    }
