"""What the simulated fleet consists of, and what goes wrong in it, when.

Each node runs a job of one team. The values of GPUs are those of the failure modes' entries in the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.catalogue.failure_modes.mode import Ramp, Values
from tests.boards.loops import Loop, Straggler

GPUS = 8
MINUTE, HOUR = 60.0, 3600.0
# A Monday, 08:00 UTC.
START = 1767600000.0
LENGTH = 4 * HOUR

# Every GPU has a network port of 400 Gb/s behind the same PCIe switches.
NETWORK: Values = {
    m.NIC_UP: 1.0,
    m.NIC_RATE_SHARE: 1.0,
    m.NIC_DISTANCE: 2.0,
    m.NIC_DOWNED: 0.0,
    m.NIC_ERRORS: 0.0,
    m.NIC_RETRANSMITS: Ramp(0, 0.2),
}
QUIET: Values = {**NETWORK, m.NIC_TX: Ramp(0, 2e6), m.NIC_RX: Ramp(0, 2e6)}
BETWEEN_NODES: Values = {**NETWORK, m.NIC_TX: Ramp(0, 2e10), m.NIC_RX: Ramp(0, 2e10)}
# The host of a rank with eight loader workers and 16 CPUs without a limit.
HOST: Values = {
    m.HOST_LAUNCH_CPU: Ramp(0, 0.72),
    m.HOST_LAUNCH_WAIT: Ramp(0, 0.01),
    m.HOST_LAUNCH_BLOCKED: Ramp(0, 0.0),
    m.HOST_WORKERS: 8.0,
    m.HOST_WORKERS_ACTIVE: 8.0,
    m.HOST_WORKER_CPU: Ramp(0, 8 * 0.38),
    m.HOST_WORKER_WAIT: Ramp(0, 8 * 0.01),
    m.HOST_WORKER_BLOCKED: Ramp(0, 8 * 0.03),
    m.HOST_CPUS: 16.0,
    m.HOST_CPUS_BUSY: Ramp(0, 16 * 0.31),
}
# Its workers wait for storage, and its main thread for them.
SLOW_STORAGE: Values = {
    m.HOST_LAUNCH_CPU: Ramp(0, 0.2),
    m.HOST_WORKER_CPU: Ramp(0, 8 * 0.12),
    m.HOST_WORKER_BLOCKED: Ramp(0, 8 * 0.74),
    m.HOST_CPUS_BUSY: Ramp(0, 16 * 0.13),
}
# A server that generates tokens in large batches: estimated, not measured.
DECODING: Values = {
    **profiles.MeasuredLoad(
        util=100, engine=0.98, sm=0.68, tensor=0.11, dram=0.71, watts=540, occupancy=0.12, nvlink=8e9
    ).values(),
    m.FB_USED: 126_000.0,
}


@dataclass(frozen=True, slots=True)
class Job:
    """The job that has all GPUs of some nodes: its team, its pool of nodes, and what it does without faults."""

    team: str
    name: str
    pool: str
    nodes: int
    load: Values


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure mode of one GPU, or of all if `gpu` is None, with `causes`: further values that this GPU has meanwhile.

    All other GPUs of the job get the values of its peers.
    """

    mode: str
    job: str
    begin: float
    rank: int = 0
    gpu: int | None = None
    causes: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WaitingLine:
    """The line of code at which the main thread of a GPU spends a share of its time, from `begin` on, and why."""

    rank: int
    gpu: int
    begin: float
    cause: str
    line: str
    share: float


@dataclass(frozen=True, slots=True)
class Profiled:
    """Shares of the time of main threads by cause, and of the time of kernels by class."""

    causes: Mapping[str, float]
    kernels: Mapping[str, float]
    waiting: Sequence[WaitingLine] = ()


JOBS = (
    Job("nlp", "llm-pretrain", "h200-train", 3, {**profiles.BALANCED, **HOST, **BETWEEN_NODES}),
    Job("vision", "video-diffusion", "h200-train", 1, {**profiles.GEMM, **HOST, **QUIET}),
    Job("research", "notebook", "h200-dev", 1, {**profiles.IDLE, **QUIET}),
    Job("speech", "asr-train", "h200-train", 1, {**profiles.BALANCED, **HOST, **QUIET}),
    Job("recsys", "ranker", "h200-dev", 1, {**profiles.SLOW, **HOST, **QUIET}),
    Job("chat", "llm-serve", "h200-serve", 1, {**DECODING, **QUIET}),
)
FAULTS = (
    Fault("GpuAllocatedIdle", "notebook", 0.0),
    Fault("GpuStragglerStarved", "llm-pretrain", LENGTH - 70 * MINUTE, rank=1, gpu=3, causes=SLOW_STORAGE),
    Fault("GpuThermalThrottling", "ranker", LENGTH - 55 * MINUTE, gpu=5),
    Fault("GpuCollectiveStall", "video-diffusion", LENGTH - 40 * MINUTE, gpu=2),
    Fault("GpuNicSlowLink", "llm-pretrain", LENGTH - 30 * MINUTE, rank=0, gpu=5),
    Fault("GpuLost", "asr-train", LENGTH - 25 * MINUTE, gpu=6),
)
# The training loops that have a step timer, by job.
LOOPS = {
    "llm-pretrain": Loop(3 * GPUS, Straggler(GPUS + 3, LENGTH - 70 * MINUTE)),
    "video-diffusion": Loop(GPUS, stops=LENGTH - 40 * MINUTE),
    "ranker": Loop(GPUS),
    "asr-train": Loop(GPUS, ends=LENGTH - 25 * MINUTE),
}
# What profiles of the jobs show, by job.
PROFILES = {
    "llm-pretrain": Profiled(
        {"synchronisation": 0.61, "collectives": 0.2, "launch_overhead": 0.11, "data_loading": 0.05, "python": 0.03},
        {"gemm": 0.52, "attention": 0.17, "communication": 0.21, "elementwise": 0.08, "copy": 0.02},
        [WaitingLine(1, 3, LENGTH - 65 * MINUTE, "data_loading", "train.py:31 load_batch", 0.86)],
    ),
    "ranker": Profiled(
        {"synchronisation": 0.74, "launch_overhead": 0.12, "data_loading": 0.09, "allocation": 0.05},
        {"gemm": 0.58, "elementwise": 0.27, "reduction": 0.11, "copy": 0.04},
    ),
}
# Pods that wait for GPUs: team, name, GPUs, and for how long at the end.
PENDING = (("vision", "video-eval-0", 8, 50 * MINUTE), ("research", "sweep-3", 4, 12 * MINUTE))
# The inference server: its team and pod.
SERVER = ("chat", "llm-serve-0")


def placed() -> Mapping[str, tuple[Job, int]]:
    """Return the job of each node, and the rank of its pod."""
    ranks = [(job, rank) for job in JOBS for rank in range(job.nodes)]
    return {f"node-{number:03}": of_node for number, of_node in enumerate(ranks)}
