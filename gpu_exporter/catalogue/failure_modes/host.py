"""Why a GPU waits for its host: the cause, as the kernel shows it for the processes on the GPU.

The causes that make a GPU wait exclude each other: what stops a process from running (CPU limit, swapping, other
processes) comes before what it waits for (storage, workers), and its own work comes last. The others stand alone.
"""

from __future__ import annotations

from gpu_exporter.catalogue import bottlenecks as c
from gpu_exporter.catalogue import host_signals as s
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import model_assumptions as a
from gpu_exporter.catalogue.bottlenecks import mean
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.catalogue.failure_modes.mode import (
    STARVED_GPU,
    Domain,
    FailureMode,
    Inject,
    Place,
    Ramp,
    Severity,
    Values,
    slows_down,
)
from gpu_exporter.conditions.tree import And, Calc, Compare, Limit, Or, Over, Unless
from gpu_exporter.model.verdict import Action

CPU_STARVED = "GpuHostCpuStarved"
MINUTE = 60.0

# fmt: off
SATURATED     = Limit("launchSaturated", 0.85, "ratio", "share of time on a CPU at or above which the launching thread is saturated", a.HOST)
WAITING_MAIN  = Limit("launchWaiting", 0.60, "ratio", "share of time on a CPU below which the launching thread waits for something", a.HOST)
STARVED       = Limit("launchStarved", 0.20, "ratio", "share of time waiting for a CPU at or above which the launching thread is short of CPU time", a.HOST)
THROTTLED     = Limit("cpuThrottled", 0.20, "ratio", "share of the periods of the CPU limit in which it stopped the process, at or above which the limit is the cause", a.HOST)
BLOCKED       = Limit("storageBlocked", 0.25, "ratio", "share of time in which workers or the main thread are blocked by storage, at or above which storage is the cause", a.HOST)
BUSY_WORKER   = Limit("workerBusy", 0.30, "ratio", "share of time on a CPU, waiting for one or blocked, at or above which the workers are at work", a.HOST)
FULL_CPUS     = Limit("cpusFull", 0.60, "ratio", "use of the CPUs that the process may use, at or above which more workers would not help", a.HOST)
FAULTS        = Limit("swapFaults", 50.0, "per second", "major page faults per second at or above which a process in swap counts as swapping", a.HOST)
SWAPPED       = Limit("swappedBytes", 64 * m.MIB, "bytes", "memory in swap at or above which a process with major page faults counts as swapping", a.HOST, any_model="memory of the process, not of the GPU")
FULL_SHM      = Limit("shmFull", 0.90, "ratio", "used part of /dev/shm at or above which it is nearly full", a.HOST)
REMOTE        = Limit("remoteNode", 0.90, "ratio", "share of time on another NUMA node than the GPU's, at or above which the process counts as remote", a.HOST)
# fmt: on

LAUNCH_CPU, LAUNCH_WAIT, LAUNCH_BLOCKED = mean(s.LAUNCH_CPU), mean(s.LAUNCH_WAIT), mean(s.LAUNCH_BLOCKED)
WORKER_CPU, WORKER_WAIT, WORKER_BLOCKED = mean(s.WORKER_CPU), mean(s.WORKER_WAIT), mean(s.WORKER_BLOCKED)
AT_WORK = Calc(Calc(WORKER_CPU, "+", WORKER_WAIT), "+", WORKER_BLOCKED)

WAITS = c.WAITS_FOR_HOST
# What stops a process explains shorter waits, too, such as those of a straggler. The victims of one are busy.
HAS_GAPS = Compare(c.GR, "<", c.BUSY_ENGINE)

IS_THROTTLED = Compare(mean(s.THROTTLED), ">=", THROTTLED)
SWAPS = And(Compare(mean(s.FAULTS), ">=", FAULTS), Compare(mean(s.SWAP), ">=", SWAPPED))
IS_STARVED = Compare(LAUNCH_WAIT, ">=", STARVED)
MAIN_WAITS = Compare(LAUNCH_CPU, "<", WAITING_MAIN)
IS_BLOCKED = Or(And(Compare(WORKER_BLOCKED, ">=", BLOCKED), MAIN_WAITS), Compare(LAUNCH_BLOCKED, ">=", BLOCKED))
WORKERS_BUSY = Compare(AT_WORK, ">=", BUSY_WORKER)
CPUS_FULL = Compare(mean(s.CPU_USE), ">=", FULL_CPUS)

# What excludes a later cause, where it is known.
STOPPED = Or(IS_THROTTLED, SWAPS, name="host_stopped")
NOT_RUNNING = Or(IS_THROTTLED, SWAPS, IS_STARVED, name="host_not_running")
KEPT_WAITING = Or(IS_THROTTLED, SWAPS, IS_STARVED, IS_BLOCKED, name="host_kept_waiting")


def _profile(*, cpu: float = 0.3, wait: float = 0.0, blocked: float = 0.0, **more: float) -> Values:
    """Return the values of a GPU whose host does this; `more` are values of workers by the end of their row's name."""
    workers = {"cpu": 0.0, "wait": 0.0, "blocked": 0.0, "active": 0.0, "use": 0.1, **more}
    return {
        **profiles.SLEEPY,
        m.HOST_LAUNCH_CPU: Ramp(0, cpu),
        m.HOST_LAUNCH_WAIT: Ramp(0, wait),
        m.HOST_LAUNCH_BLOCKED: Ramp(0, blocked),
        m.HOST_WORKERS: workers["active"],
        m.HOST_WORKERS_ACTIVE: workers["active"],
        m.HOST_WORKER_CPU: Ramp(0, workers["cpu"] * workers["active"]),
        m.HOST_WORKER_WAIT: Ramp(0, workers["wait"] * workers["active"]),
        m.HOST_WORKER_BLOCKED: Ramp(0, workers["blocked"] * workers["active"]),
        m.HOST_CPUS: 16.0,
        m.HOST_CPUS_BUSY: Ramp(0, workers["use"] * 16),
    }


_PID = (
    "Find the process: `gpu-exporter diagnose` on the node prints its PID, user, command and pod; with `--processes`, "
    f'`{m.HOST_PROCESS}{{UUID="…"}}` has them.'
)
_ABSENT = (
    "The alert needs `--host-evidence`, which is off by default. Without it, or without the permission to read the "
    "process, it is silent."
)
_LATE_DATA = slows_down("GpuJobDataBound", "GpuDataLoadingBound", "GpuHostBound", job=("GpuJobGoodputLow",))

MODES = (
    FailureMode(
        "GpuHostThrottled",
        Domain.BOTTLENECK,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "{gpu} waits for a process that its CPU limit stops",
        "Raise the CPU limit of the pod or cgroup, or remove it. Fewer loader workers and OMP_NUM_THREADS=1 lower the "
        "demand.",
        Inject(
            {**_profile(cpu=0.5, wait=0.4), m.HOST_PERIODS: Ramp(0, 10.0), m.HOST_THROTTLED: Ramp(0, 9.0)},
        ),
        And(HAS_GAPS, IS_THROTTLED),
        shows=mean(s.THROTTLED),
        cause=Cause.HOST,
        explains=slows_down(CPU_STARVED, *STARVED_GPU, job=("GpuJobGoodputLow",)),
        meaning="The cgroup of the process has used up its CPU limit (`cpu.max`, or `cpu.cfs_quota_us` with cgroup v1) in "
        "a large part of the periods, and was stopped until the next period. Meanwhile nothing launches work on the GPU.",
        impact="The time in which the process is stopped is lost, although CPUs may be idle.",
        diagnosis=(
            _PID,
            f'Look at `{s.THROTTLED.record}{{UUID="…"}}`, the share of the periods in which it was stopped, and at '
            f'`{s.CPUS.record}{{UUID="…"}}`, the CPUs that the limit allows.',
            "In Kubernetes, compare `container_cpu_cfs_throttled_periods_total` with `container_cpu_cfs_periods_total` of "
            "the pod; on the node, read `cpu.stat` and `cpu.max` of the cgroup in `/proc/PID/cgroup` and of those above it.",
        ),
        mitigation=(
            "Raise `resources.limits.cpu` of the pod, or leave it out and keep the request.",
            "Use fewer loader workers and fewer threads (`OMP_NUM_THREADS`, `torch.set_num_threads`).",
        ),
        wrong=_ABSENT + " Loader workers that use up the limit in bursts are reported, too, if the GPU waits.",
    ),
    FailureMode(
        "GpuHostSwapping",
        Domain.BOTTLENECK,
        Severity.WARNING,
        5 * MINUTE,
        Action.NONE,
        "{gpu} waits for a process that is swapping",
        "Use fewer loader workers or less caching, or give the job more memory: its host is short of memory.",
        Inject({**_profile(blocked=0.2), m.HOST_SWAP: 4e9, m.HOST_FAULTS: Ramp(0, 900.0)}),
        Unless(And(HAS_GAPS, SWAPS), IS_THROTTLED),
        shows=c.GR,
        cause=Cause.HOST,
        explains=slows_down("GpuLoaderStorageBound", *STARVED_GPU, job=("GpuJobGoodputLow",)),
        meaning="Memory of the process or its workers is in swap, and they read it back all the time.",
        impact="Every access to such a page waits for storage, which is thousands of times slower than memory.",
        diagnosis=(
            _PID,
            f'Look at `{s.SWAP.record}{{UUID="…"}}`, the memory in swap, and at `{s.FAULTS.record}{{UUID="…"}}`, '
            "the pages read back per second.",
            "`vmstat 1` shows swapping in the columns `si` and `so`; `grep VmSwap /proc/[0-9]*/status` shows whose memory "
            "it is.",
        ),
        mitigation=(
            "Use fewer loader workers or a smaller `prefetch_factor`; share data sets in memory instead of copying them "
            "into each worker.",
            "Raise the memory limit, or turn swap off for the job (`memory.swap.max`), so that it fails instead of crawling.",
        ),
        wrong=_ABSENT
        + " A process with old pages in swap that reads memory-mapped files is reported if the GPU waits.",
    ),
    FailureMode(
        CPU_STARVED,
        Domain.BOTTLENECK,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "{gpu} waits for a thread that gets too little CPU time",
        "Give this process CPUs of its own (taskset, numactl, the static CPU manager of kubelet), or move the other "
        "processes and threads away that use its CPUs.",
        Inject(_profile(cpu=0.45, wait=0.5, use=1.0)),
        Unless(And(HAS_GAPS, IS_STARVED), STOPPED),
        shows=LAUNCH_WAIT,
        cause=Cause.HOST,
        explains=slows_down(*STARVED_GPU, job=("GpuJobGoodputLow",)),
        meaning="The thread that launches work on the GPU is ready to run, but waits in the run queue of a CPU, because "
        "other threads use the CPUs that it may use.",
        impact="While it waits, nothing launches work on the GPU.",
        diagnosis=(
            _PID,
            f'Look at `{s.LAUNCH_WAIT.record}{{UUID="…"}}`, the share of time in the run queue, and at '
            f'`{s.CPUS.record}{{UUID="…"}}`, the CPUs that the process may use.',
            "Run `taskset -cp PID`: is its affinity narrower than intended? Several ranks that are pinned to the same CPUs "
            "look like this.",
            "Run `top -H` and press `f` to show the column `P`, the CPU: what else runs on these CPUs?",
        ),
        mitigation=(
            "Correct the affinity: one set of CPUs for each rank, on the NUMA node of its GPU.",
            "Lower the number of threads (`OMP_NUM_THREADS`) and loader workers until they fit the CPUs.",
            "Move other jobs away, or reserve CPUs (`cpuset`, kubelet's static CPU manager).",
        ),
        wrong=_ABSENT,
    ),
    FailureMode(
        "GpuLoaderStorageBound",
        Domain.BOTTLENECK,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "{gpu} waits for data from slow storage",
        "Copy the data to a local disk or cache, read larger files in sequence, and check the storage (iostat -x, latency "
        "of the network file system): the loader is blocked in reads.",
        Inject({**_profile(active=8, blocked=0.0, cpu=0.1), m.HOST_WORKER_BLOCKED: Ramp(0, 6.8)}),
        Unless(And(WAITS, IS_BLOCKED), NOT_RUNNING),
        cause=Cause.HOST,
        explains=_LATE_DATA,
        meaning="The loader workers, or the main thread if it loads the data itself, are in uninterruptible sleep "
        "(state `D`), which is how Linux waits for a disk or a network file system.",
        impact="The GPU computes only as fast as the storage delivers data.",
        diagnosis=(
            _PID,
            f'Look at `{s.WORKER_BLOCKED.record}{{UUID="…"}}`, the share of time in which a worker is blocked, and at '
            f'`{s.READ.record}{{UUID="…"}}`, what they read.',
            "Run `iostat -x 1`: is a disk at 100 %, and how long is `r_await`? For network file systems, `nfsiostat 1`.",
            "`cat /proc/PID/stack` of a worker (as root) names the file system that it waits in.",
        ),
        mitigation=(
            "Copy the data to a local NVMe disk, or use a cache; keep it in memory if it fits.",
            "Read large files in sequence (WebDataset, Parquet, TFRecord) instead of many small ones.",
            "More workers help if the storage is slow to answer but not at its limit.",
            "Raise the limit (`io.max`) or the throughput class of the volume if it has one.",
        ),
        wrong=_ABSENT
        + " Some file systems (FUSE, object stores) wait in another state; then the cause is not named. A "
        "checkpoint that is written synchronously looks like this, too.",
    ),
    FailureMode(
        "GpuLoaderCpuBound",
        Domain.BOTTLENECK,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "{gpu} waits for a data loader that is short of CPUs",
        "Give the job more CPUs, make preprocessing cheaper, do it in advance, or decode on the GPU: the workers use all "
        "CPUs that they may use.",
        Inject({**_profile(cpu=0.1, active=14, use=0.95), m.HOST_WORKER_CPU: Ramp(0, 13.8)}),
        Unless(And(WAITS, WORKERS_BUSY, MAIN_WAITS, CPUS_FULL), KEPT_WAITING),
        shows=WORKER_CPU,
        cause=Cause.HOST,
        explains=_LATE_DATA,
        meaning="The main thread waits for the loader workers, and these use most of the CPUs that the job may use.",
        impact="The GPU computes only as fast as the CPUs prepare data. More workers do not help.",
        diagnosis=(
            _PID,
            f'Look at `{s.WORKER_CPU.record}{{UUID="…"}}`, the share of time in which a worker runs, and at '
            f'`{s.CPU_USE.record}{{UUID="…"}}`, the use of the CPUs that the job may use.',
            "Run `py-spy top --pid PID` on a worker: decoding, augmentation or tokenising?",
        ),
        mitigation=(
            "Give the job more CPUs (request, limit, affinity).",
            "Decode on the GPU (DALI, nvJPEG), store decoded or tokenised data, use faster libraries.",
        ),
        wrong=_ABSENT,
    ),
    FailureMode(
        "GpuLoaderTooFewWorkers",
        Domain.BOTTLENECK,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "{gpu} waits for a data loader with too few workers",
        "Use more loader workers (num_workers): there are CPUs left for them.",
        Inject({**_profile(cpu=0.1, active=1, use=0.12), m.HOST_WORKER_CPU: Ramp(0, 0.98)}),
        Unless(And(WAITS, WORKERS_BUSY, MAIN_WAITS), Or(KEPT_WAITING, CPUS_FULL)),
        shows=WORKER_CPU,
        cause=Cause.HOST,
        explains=_LATE_DATA,
        meaning="The main thread waits for the loader workers, which are busy, while CPUs that the job may use are idle.",
        impact="The GPU waits although the machine could prepare more data.",
        diagnosis=(
            _PID,
            f'Look at `{s.ACTIVE.record}{{UUID="…"}}`, the number of workers at work, and at '
            f'`{s.CPU_USE.record}{{UUID="…"}}`, the use of the CPUs that the job may use.',
        ),
        mitigation=(
            "Raise `num_workers` until the GPU no longer waits or the CPUs are used; set `prefetch_factor` and "
            "`persistent_workers=True`.",
            "With a single slow stage, such as a shared lock or one large file, parallelise that stage instead.",
        ),
        wrong=_ABSENT
        + " Helper processes that compute for another reason (an evaluation, a compilation) count as workers.",
    ),
    FailureMode(
        "GpuLaunchThreadSaturated",
        Domain.BOTTLENECK,
        Severity.INFO,
        15 * MINUTE,
        Action.NONE,
        "{gpu} waits for a thread that uses a whole CPU",
        "Launch less often (CUDA graphs, torch.compile, larger batches), and move preprocessing and logging out of the "
        "training loop: Python or kernel launches are the limit.",
        Inject(_profile(cpu=0.98)),
        Unless(
            And(WAITS, Compare(LAUNCH_CPU, ">=", SATURATED), Compare(c.GR, ">=", c.IDLE_ENGINE)),
            KEPT_WAITING,
        ),
        shows=LAUNCH_CPU,
        cause=Cause.HOST,
        explains={
            Place.GPU: (
                "GpuLaunchBound",
                "GpuHostBound",
            )
        },
        meaning="One thread of the process runs without a pause, and the GPU waits for it: it launches kernels that are too "
        "small, or it does other work in between.",
        impact="The GPU cannot be faster than this thread. More CPUs do not help.",
        diagnosis=(
            _PID,
            "Run `py-spy top --pid PID`: time in Python functions of the training loop means slow Python; time in "
            "`aten::` operators or `cudaLaunchKernel` means launch overhead.",
            f'Look at `{s.LAUNCH_CPU.record}{{UUID="…"}}`, the share of time in which the thread runs.',
        ),
        mitigation=(
            'Launch less: CUDA graphs, `torch.compile(mode="reduce-overhead")`, fused optimizers, larger batches.',
            "Load data in worker processes (`num_workers`) instead of in the main thread.",
            "Do not synchronise, print or log at each step.",
        ),
        wrong=_ABSENT + " A thread that polls for requests uses a whole CPU, too, although nothing is wrong.",
    ),
    FailureMode(
        "GpuRemoteNumaNode",
        Domain.BOTTLENECK,
        Severity.INFO,
        15 * MINUTE,
        Action.NONE,
        "{gpu} is used from another NUMA node",
        "Bind the process to the CPUs and the memory of the GPU's NUMA node (numactl --cpunodebind --membind; nvidia-smi "
        "topo -m names the node).",
        Inject({**_profile(cpu=0.4), m.HOST_REMOTE: Ramp(0, 1.0)}),
        And(WAITS, Compare(mean(s.REMOTE), ">=", REMOTE)),
        shows=mean(s.REMOTE),
        cause=Cause.HOST,
        explains={
            Place.GPU: (
                "GpuLaunchBound",
                "GpuHostBound",
            )
        },
        meaning="The GPU waits for a process that runs on CPUs of another NUMA node than that of the GPU's PCIe root.",
        impact="Launches and copies cross the link between the sockets: each takes longer, and copies of several GPUs "
        "share that link.",
        diagnosis=(
            _PID,
            "Compare `taskset -cp PID` with `CPU Affinity` of `nvidia-smi topo -m`; `numastat -p PID` shows its memory.",
        ),
        mitigation=(
            "Bind each rank to the node of its GPU: `numactl`, `torchrun --numa-binding`, Slurm's `--gpu-bind`, or kubelet's "
            "topology manager (`single-numa-node`).",
        ),
        wrong=_ABSENT + " It is a reason why a process is slower, seldom the only one why the GPU waits.",
    ),
    FailureMode(
        "GpuSharedMemoryFull",
        Domain.BOTTLENECK,
        Severity.WARNING,
        2 * MINUTE,
        Action.NONE,
        "/dev/shm of the process on {gpu} is {{ $value | humanizePercentage }} full",
        "Enlarge it before the loader crashes with a bus error: in Kubernetes an emptyDir with medium: Memory at /dev/shm, "
        "with Docker --shm-size or --ipc=host.",
        Inject({m.HOST_SHM_USED: 62e6, m.HOST_SHM_LIMIT: 64e6}),
        Compare(Over(s.SHM_USE), ">=", FULL_SHM),
        cause=Cause.CAPACITY,
        explains=slows_down("GpuJobDataBound", "GpuDataLoadingBound", "GpuHostBound", job=("GpuJobStalled",)),
        meaning="Loader workers pass batches to the main process in shared memory, and `/dev/shm` is nearly full. Docker "
        "and Kubernetes give a container only 64 MiB by default.",
        impact="When it is full, workers are killed by a bus error, and the job fails with `DataLoader worker is killed by "
        "signal: Bus error`, or NCCL fails to start.",
        diagnosis=(
            _PID,
            "Run `df -h /dev/shm` and `ls -l /dev/shm` in the container: files of processes that have ended can be deleted.",
        ),
        mitigation=(
            "Kubernetes: mount an `emptyDir` with `medium: Memory` at `/dev/shm`; it counts towards the memory limit. Docker: "
            "`--shm-size=16g` or `--ipc=host`.",
            "Use fewer workers, a smaller `prefetch_factor` or smaller batches.",
        ),
        wrong=_ABSENT + " A program that fills it on purpose with data of constant size is in no danger.",
    ),
)
