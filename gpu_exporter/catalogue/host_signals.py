"""Signals of the host of a GPU: what its processes do, wait for and may use. Only gpu-exporter has them, with
`--host-evidence`."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.conditions.signal import Derived, Read, Signal
from gpu_exporter.model.metric import Metric


def _signal(name: str, unit: str, help: str, plain: str, *made: Read | Derived) -> Signal:
    return Signal(f"host_{name}", unit, help, made, plain=plain)


def _share(name: str, metric: Metric, help: str, plain: str) -> Signal:
    return _signal(name, "ratio", help, plain, Read(metric.name, rate=True, most=1.0))


LAUNCH_CPU = _share(
    "launch_cpu",
    m.HOST_LAUNCH_CPU,
    "Share of time in which the thread that launches work on the GPU ran on a CPU",
    "launching thread on a CPU {} of the time",
)
LAUNCH_WAIT = _share(
    "launch_run_queue",
    m.HOST_LAUNCH_WAIT,
    "Share of time in which the thread that launches work on the GPU waited for a CPU",
    "launching thread waits for a CPU {} of the time",
)
LAUNCH_BLOCKED = _share(
    "launch_blocked",
    m.HOST_LAUNCH_BLOCKED,
    "Share of time in which the main thread was blocked, usually by storage",
    "main thread blocked, usually by storage, {} of the time",
)
ACTIVE = _signal(
    "workers_active",
    "processes",
    "Number of worker processes that did something or were blocked",
    "{} of them active",
    Read(m.HOST_WORKERS_ACTIVE.name),
)
WORKERS_CPU, WORKERS_WAIT, WORKERS_BLOCKED = (
    _signal(name, "processes", help, plain, Read(metric.name, rate=True))
    for name, metric, help, plain in (
        ("workers_cpu", m.HOST_WORKER_CPU, "Mean number of workers on a CPU", "{} workers on a CPU"),
        (
            "workers_run_queue",
            m.HOST_WORKER_WAIT,
            "Mean number of workers that wait for a CPU",
            "{} workers wait for a CPU",
        ),
        (
            "workers_blocked",
            m.HOST_WORKER_BLOCKED,
            "Mean number of workers that are blocked, usually by storage",
            "{} workers blocked, usually by storage",
        ),
    )
)
WORKER_CPU, WORKER_WAIT, WORKER_BLOCKED = (
    _signal(name, "ratio", help, plain, Derived(total, "/", ACTIVE))
    for name, total, help, plain in (
        (
            "worker_cpu",
            WORKERS_CPU,
            "Share of time in which an active worker ran on a CPU",
            "workers on a CPU {} of the time",
        ),
        (
            "worker_run_queue",
            WORKERS_WAIT,
            "Share of time in which an active worker waited for a CPU",
            "workers wait for a CPU {} of the time",
        ),
        (
            "worker_blocked",
            WORKERS_BLOCKED,
            "Share of time in which an active worker was blocked, usually by storage",
            "workers blocked, usually by storage, {} of the time",
        ),
    )
)
PERIODS = _signal(
    "cpu_limit_periods",
    "per_second",
    "Periods of the CPU limit per second",
    "{} periods of the CPU limit per second",
    Read(m.HOST_PERIODS.name, rate=True),
)
THROTTLED_PERIODS = _signal(
    "cpu_limit_throttled_periods",
    "per_second",
    "Periods per second in which the CPU limit stopped the process",
    "{} throttled periods per second",
    Read(m.HOST_THROTTLED.name, rate=True),
)
THROTTLED = _signal(
    "throttled",
    "ratio",
    "Share of the periods in which the CPU limit stopped the process",
    "stopped by the CPU limit in {} of the periods",
    Derived(THROTTLED_PERIODS, "/", PERIODS),
)
CPUS = _signal("cpus", "cpus", "Number of CPUs that the process may use", "{} CPUs allowed", Read(m.HOST_CPUS.name))
CPUS_BUSY = _signal(
    "cpus_busy",
    "cpus",
    "Number of busy CPUs among those that the process may use",
    "{} of them busy",
    Read(m.HOST_CPUS_BUSY.name, rate=True),
)
CPU_USE = _signal(
    "cpu_use",
    "ratio",
    "Use of the CPUs that the process may use, by any process",
    "its CPUs {} used",
    Derived(CPUS_BUSY, "/", CPUS),
)
FAULTS = _signal(
    "major_faults",
    "per_second",
    "Major page faults per second",
    "{} major page faults per second",
    Read(m.HOST_FAULTS.name, rate=True),
)
READ = _signal(
    "read",
    "bytes_per_second",
    "Bytes read from storage per second",
    "{} read from storage",
    Read(m.HOST_READ.name, rate=True),
)
SWAP = _signal("swap", "bytes", "Memory of the processes that is in swap", "{} in swap", Read(m.HOST_SWAP.name))
REMOTE = _share(
    "remote_node",
    m.HOST_REMOTE,
    "Share of time on another NUMA node than that of the GPU",
    "on another NUMA node than the GPU {} of the time",
)
SHM_USED = _signal("shm_used", "bytes", "Used part of /dev/shm", "/dev/shm {} used", Read(m.HOST_SHM_USED.name))
SHM_LIMIT = _signal("shm_limit", "bytes", "Size of /dev/shm", "/dev/shm has {}", Read(m.HOST_SHM_LIMIT.name))
SHM_USE = _signal(
    "shm_use",
    "ratio",
    "Used part of /dev/shm as a share of its size",
    "/dev/shm {} full",
    Derived(SHM_USED, "/", SHM_LIMIT),
)


def _signals() -> Iterator[Signal]:
    return (value for value in tuple(globals().values()) if isinstance(value, Signal))


# In the order in which they are recorded.
SIGNALS: tuple[Signal, ...] = tuple(_signals())
