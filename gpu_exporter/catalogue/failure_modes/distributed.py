"""Distributed jobs: ranks that wait for each other.

A straggler has victims: ranks with a busy engine, partly filled SMs and traffic. In a synchronous job all ranks move
the same bytes and end each step together, so a rank is compared with the others of its job, never with its own past. A
rank with different traffic is not part of the same collective. The rank that does not wait is the straggler: with a less
busy engine it is starved by its host, with busier SMs it is slow.

Stragglers are also found by what training loops send (`loops.py`, only in Prometheus) and in traces of several ranks
(`traces/collectives.py`): docs/architecture.md compares the three.
"""

from __future__ import annotations

from gpu_exporter.catalogue import bottlenecks as c
from gpu_exporter.catalogue import job_signals
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import model_assumptions as a
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import mean
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.catalogue.failure_modes.mode import SLOWED_JOB, Domain, FailureMode, Inject, Place, Scope, Severity
from gpu_exporter.conditions.tree import (
    And,
    Calc,
    Compare,
    Condition,
    Fn,
    Limit,
    Mark,
    Or,
    Over,
    PeerMean,
    PeerMedian,
    PeerMin,
    PeerShare,
    Unless,
)
from gpu_exporter.model.verdict import Action

MINUTE, HOUR = 60.0, 3600.0
# What only minutes can tell.
COLLECTIVE_STALL = "GpuCollectiveStall"
ALWAYS_LAST = "GpuStragglerLaunchBound"

# fmt: off
# VICTIMS is above one half, because in a stage of two ranks, half of them wait.
VICTIMS       = Limit("victims", 0.6, "ratio", "share of the job's other ranks that must wait before a rank counts as a straggler", a.PEERS)
STARVED_GAP   = Limit("starvedGap", 0.12, "ratio", "how much lower the engine activity of a starved rank is than that of its victims", a.TIME)
SLOW_GAP      = Limit("slowGap", 0.15, "ratio", "how much higher the SM activity of a slow rank is than that of its victims", a.SM)
LATE_GAP      = Limit("lateGap", 0.4, "ratio", "how much lower the engine activity of the last rank of a launch-bound job is than that of the others", a.TIME)
SLOWER_GAP    = Limit("slowerGap", 0.07, "ratio", "how much higher the SM activity of a slow rank is for an hour than that of the other ranks", a.SM)
TINY_KERNELS  = Limit("tinyKernels", 0.25, "ratio", "SM activity while kernels run, below which a rank of a distributed job has so little to compute that engine activity only tells which rank launches last", a.SM)
STANDS_OUT    = Limit("standsOut", 0.5, "ratio", "how far the lowest of the other ranks may be below their mean, as a share of how far a slow rank is above it", a.PEERS)
ALIKE         = Limit("alike", 2.0, "ratio", "factor by which the traffic of ranks in one collective may differ", a.PEERS)
UNALIKE       = Limit("unalike", 0.4, "ratio", "NVLink traffic of a rank, as a share of the median of its job, below which GpuNvlinkImbalance fires", a.PEERS)
POWER_CAPPED  = Limit("atPowerCap", 0.93, "ratio", "power, as a share of the power limit, from which a slow rank counts as power-capped: it has more work, and no fault")
LOWER_LIMIT   = Limit("lowerPowerLimit", 0.95, "ratio", "power limit of a slow rank, as a share of the median of its job, below which the limit is its fault", a.PEERS)
PAUSED        = Limit("pausedLoop", 0.05, "ratio", "share of time in an evaluation, a checkpoint or a compilation, as the training loop says, at or above which ranks are not compared; shorter pauses cannot make a difference that counts", a.LOOPS)
STUCK_PAUSE   = Limit("stuckPause", 0.9, "ratio", "share of time that a pause takes for an hour, at or above which it no longer excuses a hang", a.LOOPS)
SAME_ENGINE   = Limit("sameEngine", 0.1, "ratio", "largest difference in engine activity between ranks that do the same work", a.TIME)
# fmt: on

COMMUNICATES = Mark("communicates", And(c.BUSY, c.TRAFFIC))
LAUNCHES = Mark("launches", c.LAUNCHES)
WAITS = Mark("waits", And(c.BUSY, c.PARTLY_FILLED, c.TRAFFIC))
PAUSES = Mark(
    "pauses",
    Unless(
        Compare(mean(job_signals.PAUSE), ">=", PAUSED),
        Compare(Over(job_signals.PAUSE, Fn.MIN, HOUR, whole=True), ">=", STUCK_PAUSE),
    ),
)
TALKS = Mark("talks", Compare(c.NVLINK, ">=", c.MOVING))
MEASURES = Mark("measures", Compare(mean(job_signals.WAITS), ">=", 0.0))


def _far(left: Over | PeerMedian, right: Over | PeerMedian) -> Condition:
    """Return the condition that two values differ by more than the factor `alike`."""
    return Or(Compare(Calc(left, "/", right), ">", ALIKE), Compare(Calc(right, "/", left), ">", ALIKE))


# Inference that is pipelined over GPUs sends one way; replicas of one service move different amounts.
OTHER_TRAFFIC = Or(
    _far(mean(s.NVLINK_TX), mean(s.NVLINK_RX)),
    _far(c.NVLINK, PeerMedian(c.NVLINK, COMMUNICATES)),
    name="other_traffic",
)
# The loop knows better than counters: while a rank evaluates or saves a checkpoint, the others wait for it on purpose.
LOOP_PAUSES = Or(PAUSES.condition, Compare(PeerShare(PAUSES), ">", 0.0), name="loop_pauses")
# If the loops of all ranks measure waiting, they know which rank the others wait for: GpuJobStraggler. Those of some
# ranks can compare only these.
LOOP_KNOWS = Or(LOOP_PAUSES, And(MEASURES.condition, Compare(PeerShare(MEASURES), ">=", 1.0)), name="loop_knows")
STALLS = Unless(c.HANGS, LOOP_PAUSES, name="stalls")
HAS_VICTIMS = And(Compare(PeerShare(WAITS), ">=", VICTIMS), c.TRAFFIC)
# Where kernels do not fill a GPU while they run, the job may be launch-bound; then a small difference only shows which
# rank launches last.
_IDLER = Calc(PeerMedian(c.GR, COMMUNICATES), "-", c.GR)
STARVED = And(
    Compare(PeerShare(COMMUNICATES), ">=", VICTIMS),
    And(c.TRAFFIC, Compare(_IDLER, ">=", STARVED_GAP)),
)
# The means of a job that hangs still have the work of the minutes before.
HAS_STOPPED = And(Compare(c.NVLINK, ">=", c.TALKING), Compare(Over(s.NVLINK), "<", c.TALKING), name="has_stopped")
# The smaller the kernels, the more the last rank idles: its GPU runs them in no time, while the others wait.
_KERNEL_SM = Calc(c.SM, "/", c.GR)
LAUNCH_ORDER = Or(
    And(Compare(_KERNEL_SM, "<", c.BUSY_SM), Compare(_IDLER, "<", LATE_GAP)), Compare(_KERNEL_SM, "<", TINY_KERNELS)
)
# The SMs of the others are too full for them to count as waiting, if it is only a little slower. Over five minutes, that
# may be chance.
_LONG_SM, _LONG_GR = Over(s.SM_ACTIVE, Fn.MEAN, HOUR), Over(s.GR_ACTIVE, Fn.MEAN, HOUR)
# It has to stand out: ranks whose work is spread evenly are not faulty.
_AHEAD = Calc(_LONG_SM, "-", PeerMean(_LONG_SM, COMMUNICATES))
_SPREAD = Calc(PeerMean(_LONG_SM, COMMUNICATES), "-", PeerMin(_LONG_SM, COMMUNICATES))
SLOWER = And(
    Compare(Calc(_SPREAD, "/", _AHEAD), "<=", STANDS_OUT),
    Compare(Calc(c.SM, "-", PeerMean(c.SM, COMMUNICATES)), ">=", SLOWER_GAP),
    Compare(_LONG_GR, ">=", c.BUSY_ENGINE),
    COMMUNICATES.condition,
    And(Compare(PeerShare(COMMUNICATES), ">=", c.ALL_RANKS), Compare(_AHEAD, ">=", SLOWER_GAP)),
)
ALL_LAUNCH = And(c.LAUNCHES, Compare(PeerShare(LAUNCHES), ">=", c.ALL_RANKS), name="all_launch")
STARVED_STRAGGLER = Unless(
    Unless(STARVED, Or(OTHER_TRAFFIC, ALL_LAUNCH, LAUNCH_ORDER, HAS_STOPPED)), LOOP_KNOWS, name="starved_straggler"
)
SLOW_STRAGGLER = Unless(
    Unless(
        Or(
            And(Compare(Calc(c.SM, "-", PeerMedian(c.SM, WAITS)), ">=", SLOW_GAP), c.BUSY, c.FILLED, HAS_VICTIMS),
            SLOWER,
        ),
        OTHER_TRAFFIC,
    ),
    LOOP_KNOWS,
    name="slow_straggler",
)
_NVLINK_SHARE = Calc(c.NVLINK, "/", PeerMedian(c.NVLINK, TALKS))
# A GPU that is throttled by heat or by its power supply draws less than its limit. The highest power of the last ten
# minutes, because a checkpoint lowers the mean.
AT_POWER_CAP = Compare(Over(s.POWER_NOW_USE, Fn.MAX, 10 * MINUTE), ">=", POWER_CAPPED)
# A limit that someone lowered on this GPU alone is the fault itself.
_POWER_LIMIT = mean(s.POWER_LIMIT)
_OF_PEERS = Calc(_POWER_LIMIT, "/", PeerMedian(_POWER_LIMIT, COMMUNICATES))
LOW_POWER_CAP = Compare(_OF_PEERS, "<", LOWER_LIMIT)
_FABRIC = Over(s.NVLINK_FABRIC)  # a mean of codes is another code
_FABRIC_OF_PEERS = PeerMedian(_FABRIC, COMMUNICATES)
IN_OTHER_FABRIC = Or(
    Compare(Calc(_FABRIC, "-", _FABRIC_OF_PEERS), ">", 0.0), Compare(Calc(_FABRIC_OF_PEERS, "-", _FABRIC), ">", 0.0)
)
ACROSS_CLIQUES = Unless(
    And(COMMUNICATES.condition, Compare(PeerShare(COMMUNICATES), ">=", c.ALL_RANKS), IN_OTHER_FABRIC),
    OTHER_TRAFFIC,
    name="across_cliques",
)

MODES = (
    FailureMode(
        COLLECTIVE_STALL,
        Domain.DISTRIBUTED,
        Severity.WARNING,
        10 * MINUTE,
        Action.RESTART_APP,
        "Job {job} makes no progress: {gpu} waits in a collective or never entered it",
        "Check that the job is not in an evaluation, checkpoint or compilation. Save the stacks of all "
        "ranks (py-spy dump) before you restart it. The rank whose GPU is idle is the one that never entered the "
        "collective: read its log. If all GPUs are busy, look for the missing rank on another node, then check "
        "the network.",
        Inject(profiles.ABSENT, profiles.HANGING, everyone=True),
        STALLS,
        singled_out="Job {job} makes no progress: {gpu} never entered the collective in which the others wait",
        shows=c.GR,
        scope=Scope.JOB,
        cause=Cause.PEERS,
        explains={
            Place.JOB: (
                "GpuJobSlower",
                "GpuJobGoodputLow",
                "GpuJobMfuDropped",
                "GpuAllocatedIdle",
            )
        },
        meaning="No rank of the job makes progress. Some ranks spin in a collective (engine busy, a few SMs active, no "
        "memory traffic, power as if idle), the others do nothing, and no data moves.",
        impact="The job occupies all its GPUs until a watchdog ends it. PyTorch's watchdog does so after 10 minutes by "
        "default; without a watchdog the job never ends.",
        diagnosis=(
            f'Look at `{s.GR_ACTIVE.record}{{workload="…"}}`. The rank with an idle engine is the one that never '
            "entered the collective. If all engines are busy, the missing rank has died, or its GPU is not in this "
            "query: its node is not scraped, or its pod has another workload name.",
            "On the missing rank, run `py-spy dump --pid PID` for its stack, and read the last lines of its log, "
            "`dmesg` (out of memory?) and the state of its process (`D` means storage).",
            "Run `gpu-exporter events` on all nodes of the job: an XID on one of them usually explains the stall.",
            "PyTorch's flight recorder, if it was enabled when the job started (`TORCH_NCCL_TRACE_BUFFER_SIZE=2000`, "
            "`TORCH_NCCL_DUMP_ON_TIMEOUT=1`), names the collective and the ranks that did not enter it.",
            "If all ranks spin, check the links and switches between the nodes (`ibstat`, `perfquery`), and "
            "whether NVLinks are down.",
        ),
        mitigation=(
            "Take stacks of all ranks *before* you kill the job: afterwards there is nothing left to inspect.",
            "Restart the job from its last checkpoint, without any node whose rank died of a hardware fault.",
            "Keep PyTorch's watchdog on (`TORCH_NCCL_ASYNC_ERROR_HANDLING` must not be 0) and shorten the timeout "
            "(`init_process_group(timeout=…)`), so that a stalled job ends by itself.",
        ),
        wrong="A long phase in which one rank works only on its CPU while the others wait in a barrier looks the same: "
        "evaluation, a checkpoint of rank 0, compilation. If it ends by itself within its usual time, it is not "
        "a stall. A training loop with a [step timer](../training.md) says so itself, and the alert stays silent for up to "
        "an hour. Without SM activity, which dcgm-exporter's default fields lack, replicas that only compute in caches, "
        "without tensor cores, look the same. The alert does not see a stall over TCP in which no GPU kernel spins. "
        "With PyTorch's default timeout of 10 minutes, the job ends before this alert fires; `gpu-exporter diagnose` "
        "needs no hold time.",
    ),
    FailureMode(
        "GpuStragglerStarved",
        Domain.DISTRIBUTED,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "{gpu} slows down job {job}: it waits for its CPU or data",
        "Check the host of this rank: data loader, CPU throttling, other pods on the node, slow storage, or "
        "extra work of the rank such as logging or checkpoints.",
        Inject(profiles.STARVED, profiles.OF_STARVED),
        STARVED_STRAGGLER,
        shows=c.GR,
        keep=20 * MINUTE,
        scope=Scope.JOB,
        cause=Cause.PEERS,
        explains={
            Place.GPU: (
                "GpuDataLoadingBound",
                "GpuHostBound",
            ),
            Place.JOB: SLOWED_JOB,
        },
        meaning="The other ranks of the job wait for this rank, and its GPU waits for its host. Its engine is less active "
        "than theirs, because their engines stay busy while they wait in the collective.",
        impact="Every step takes as long as the step of this rank. If it loses a third of the time, the job pays for "
        "eight GPUs and gets the work of five.",
        diagnosis=(
            f'Compare `{s.GR_ACTIVE.record}{{workload="…"}}` of all ranks. The lowest is the straggler; those at '
            "about 1 are its victims.",
            "On its host, check `top -H`, CPU throttling (`container_cpu_cfs_throttled_periods_total`), other "
            "pods on the node, and `iostat -x` for storage.",
            "Run `py-spy dump --pid PID` several times. Is the rank in the data loader, in `save`, in logging, "
            "in a lock?",
            f'Look at `{s.PCIE_RX_USE.record}{{UUID="…"}}`. If it is high, the rank waits for a large transfer; '
            "if it is low, the host sends nothing: its CPU or data loader is late.",
            "If the same host is slow with another job, the host is the cause. If the same rank is slow on any "
            "host (often rank 0), its extra work is the cause, such as logging, evaluation or checkpoints.",
        ),
        mitigation=(
            "CPU: raise its requests and limits, pin it to the GPU's NUMA node, move other pods away.",
            "Data: use more loader workers, prefetching and a local cache; give each rank shards of the same size.",
            "Rank 0: write checkpoints asynchronously, log less often.",
        ),
        wrong="A rank that saves a checkpoint for ten minutes is reported correctly, but needs no action; it is not "
        "reported if a [step timer](../training.md) in its loop marks the checkpoint. A rank is not reported while its job moves "
        "nothing over NVLink, so one that stops its job for most of the time, a minute or longer at once, may be missed. Where kernels do not fill the GPUs, a "
        "job may be launch-bound, so that the idlest rank only launches last; a smaller straggler, or any if kernels are tiny, is "
        "then found by its step timer alone. If the loops of all ranks have a step timer that measures waiting, GpuJobStraggler "
        "replaces this alert. "
        "Pipeline "
        "stages and replicas with different load are excluded by their traffic; a pipeline that sends the same amount in both "
        "directions may still be reported.",
    ),
    FailureMode(
        "GpuStragglerSlow",
        Domain.DISTRIBUTED,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "{gpu} slows down job {job}: it spends more time computing than the others",
        "Compare the power limits of the ranks (nvidia-smi -q -d POWER): if that of this GPU is lower, raise it (nvidia-smi "
        "-i N -pl WATTS). If the GPU has a health alert, or is throttled by heat or by a power brake (nvidia-smi -q -d "
        "PERFORMANCE), move the job to another GPU. If it draws more power than the others, it has more work: balance the "
        "work. Otherwise swap the GPUs of two ranks: if the straggler moves with the GPU, replace the GPU; if it stays with "
        "the rank, balance the work.",
        Inject({**profiles.SLOW, m.POWER: 560.0, m.POWER_INSTANT: 560.0}, profiles.OF_SLOW),
        SLOW_STRAGGLER,
        shows=c.SM,
        keep=20 * MINUTE,
        lesser=Unless(AT_POWER_CAP, LOW_POWER_CAP),
        lesser_because="The GPU runs at its power limit, which is not lower than that of the other ranks, and is not "
        "throttled: it has more work than they have, and no fault.",
        branches=(
            (
                LOW_POWER_CAP,
                "Raise the power limit of this GPU (nvidia-smi -i N -pl WATTS): it is lower than that of the other ranks. "
                "If it must stay low, lower that of all ranks.",
            ),
            (AT_POWER_CAP, "Balance the work: sequence lengths, experts (MoE), pipeline stages, uneven shards."),
            (
                Compare(_OF_PEERS, ">=", LOWER_LIMIT),
                "Move the job to another GPU if this one has a health alert. Otherwise swap the GPUs of two ranks: if the "
                "straggler moves with the GPU, replace the GPU; if it stays with the rank, balance the work. The power limit "
                "of this GPU is not the cause: it is not lower than that of the other ranks.",
            ),
        ),
        scope=Scope.JOB,
        cause=Cause.PEERS,
        explains={Place.JOB: SLOWED_JOB},
        meaning="The other ranks of the job wait for this one, which spends more time computing than they do: its "
        "SMs are more active, while theirs are partly empty because they wait. A large difference counts after 5 minutes, "
        "a small one (a rank that is about 15 % slower) if it lasts for an hour; the hold comes on top.",
        impact="Every step takes as long as the step of this rank; the other GPUs wait in the "
        "collective for the rest of the step.",
        diagnosis=(
            f'Look at `{s.HW_THERMAL.record}{{UUID="…"}}`, `{s.SW_THERMAL.record}{{UUID="…"}}` and '
            f'`{s.POWER_BRAKE.record}{{UUID="…"}}`. Above 0, the GPU is throttled: it is defective, badly cooled '
            "or short of power.",
            f'Compare `{s.POWER_LIMIT.record}{{workload="…"}}` of all ranks. If that of this GPU is lower, the limit '
            "slows it down: someone lowered it, or it was not raised again after a repair.",
            f'Look at `{s.POWER_NOW_USE.record}{{UUID="…"}}` and `{s.POWER_CAP.record}{{UUID="…"}}`. If it runs at '
            "its limit, which is that of all ranks, while the others draw less, it has more *work* than they have.",
            f'Compare `{s.SM_CLOCK.record}{{workload="…"}}`. A lower clock proves nothing by itself: a GPU with '
            "more work draws more power and lowers its clock.",
            "Check the health alerts of the same UUID (ECC, NVLink, PCIe link). Run `nvidia-smi "
            "--query-gpu=clocks.max.sm --format=csv`: is its highest clock lower than that of the others?",
        ),
        mitigation=(
            "If its power limit is lower than that of the other ranks, raise it with `nvidia-smi -i N -pl WATTS`. If it must "
            "stay low, lower that of all ranks: the job is as fast as its slowest rank.",
            "If the GPU is throttled or defective, move the job off this GPU and follow the alert that gives the "
            "reason.",
            "If it has more work, balance it: sequence lengths, experts (MoE), pipeline stages, uneven shards.",
            "If you are not sure, swap the GPUs of two ranks. If the straggler moves with the GPU, the GPU is "
            "the cause; if it stays with the rank, the work is.",
        ),
        wrong="If two ranks are slow alternately, both can be reported. A rank with more work by design "
        "(the last pipeline stage, an expert that is used more than others) is reported correctly, but may be "
        "what you want: at the power limit that all ranks have, the alert has the severity info.",
    ),
    FailureMode(
        ALWAYS_LAST,
        Domain.DISTRIBUTED,
        Severity.INFO,
        30 * MINUTE,
        Action.NONE,
        "All ranks of job {job} are launch-bound, and {gpu} is the slowest to launch",
        "Launch less often on all ranks: CUDA graphs or torch.compile, larger batches. Usually, the slowest rank has "
        "a slower CPU core or more Python work: check its CPU limit, its NUMA node, and logging.",
        Inject(profiles.LAUNCHING_LATE, profiles.LAUNCHING),
        And(Compare(Calc(PeerMean(c.GR, LAUNCHES), "-", c.GR), ">=", LATE_GAP), ALL_LAUNCH, name="launches_late"),
        scope=Scope.JOB,
        cause=Cause.HOST,
        shows=c.GR,
        explains={
            Place.JOB: (
                "GpuHostBound",
                "GpuLaunchBound",
            )
        },
        meaning="All ranks of this job are launch-bound, and this rank is the slowest to launch. The others reach the "
        "collective first. Its kernel keeps their engines active while they wait, so this rank has the lowest engine activity.",
        impact="The job runs only as fast as the CPU of this rank launches kernels.",
        diagnosis=(
            f'Compare `{s.GR_ACTIVE.record}{{workload="…"}}` of all ranks: the slowest to launch has the lowest. '
            f'`{s.PCIE_RX.record}{{workload="…"}}` is the traffic of the launches.',
            "On its host, run `top -H`: does its launching thread have a core to itself?",
            "Run `py-spy top --pid PID` on this rank and on another one, and compare.",
        ),
        mitigation=(
            "Remove the launches: CUDA graphs, `torch.compile`, larger batches. Then the CPU matters less on all ranks.",
            "Give this rank the same CPU as the others: its own cores on the NUMA node of its GPU.",
            "Move logging and other work of rank 0 out of the loop.",
        ),
        wrong="With two ranks, a difference just above the limit may only show which rank launches first.",
    ),
    FailureMode(
        "GpuCommunicationBound",
        Domain.DISTRIBUTED,
        Severity.INFO,
        30 * MINUTE,
        Action.NONE,
        "Job {job} spends most of its time on communication (seen on {gpu})",
        "No rank stands out by its counters. Check that NCCL uses NVLink and all network cards (NCCL_DEBUG=INFO). Then "
        "communicate less: overlap with computation, larger batches, gradient accumulation, another sharding.",
        Inject(profiles.ALL_REDUCE, profiles.ALL_REDUCE, everyone=True),
        And(WAITS.condition, Compare(PeerShare(WAITS), ">=", c.ALL_RANKS), name="communicates"),
        scope=Scope.JOB,
        cause=Cause.PEERS,
        meaning="All ranks of the job are busy, none of them fills its GPU, and data moves: the job mostly communicates, "
        "and by the counters, no rank is slower than the others.",
        impact="The GPUs spend most of each step communicating. The job would be faster with better overlap, and might "
        "lose little speed on fewer GPUs.",
        diagnosis=(
            f'Compare `{s.NVLINK_TX.record}{{workload="…"}}` with `{m.NVLINK_SPEED}`, the capacity of all links in '
            "each direction. If it is close, the volume is the problem; if it is far below, latency or another link "
            "(network card, PCIe) is.",
            f'If the traffic is only on PCIe (`{s.PCIE_RX_USE.record}{{workload="…"}}`), NCCL does not use '
            "NVLink. `NCCL_DEBUG=INFO` shows which transports it chose, `nvidia-smi topo -m` which exist.",
            "For jobs on several nodes, check the counters of the network cards and whether GPUDirect RDMA is on "
            "(`NCCL_DEBUG=INFO` shows `GDRDMA`).",
            "Look in a profiler trace of one step for collectives that overlap with nothing.",
        ),
        mitigation=(
            "Overlap communication with computation: gradient buckets, prefetching of FSDP shards, asynchronous "
            "all-gather.",
            "Communicate less: larger batches, gradient accumulation, another split (less tensor parallelism "
            "across nodes), lower precision of what is sent.",
            "Repair the transport: NVLinks that are down, network cards that NCCL does not use, a forgotten "
            "`NCCL_P2P_DISABLE`.",
        ),
        wrong="A benchmark of collectives is communication-bound on purpose. Decoding over many GPUs may be, too, "
        "where latency matters more than cost. If a straggler alert fires for the same job, follow that first. A rank whose kernels "
        "use as few SMs as the collective in which the others wait looks like them: only a [step timer](../training.md) or a "
        "profiler trace of all ranks tells.",
    ),
    FailureMode(
        "GpuNvlinkImbalance",
        Domain.DISTRIBUTED,
        Severity.INFO,
        15 * MINUTE,
        Action.NONE,
        "{gpu} moves only {{ $value | humanizePercentage }} of the NVLink traffic of the other ranks of its job",
        "Check for NVLinks that are down (nvidia-smi nvlink --status), then the topology that NCCL chose, then "
        "how the model is split.",
        Inject({**profiles.BALANCED, m.NVLINK_TX: 5e9, m.NVLINK_RX: 5e9}, profiles.BALANCED),
        And(
            Compare(PeerShare(TALKS), ">=", c.ALL_RANKS),
            Compare(Calc(c.GR, "-", PeerMedian(c.GR, TALKS)), "<", SAME_ENGINE),
            Compare(Calc(PeerMedian(c.GR, TALKS), "-", c.GR), "<", SAME_ENGINE),
            And(TALKS.condition, Compare(_NVLINK_SHARE, "<", UNALIKE)),
        ),
        shows=_NVLINK_SHARE,
        scope=Scope.JOB,
        cause=Cause.PEERS,
        explains={Place.JOB: ("GpuCommunicationBound",)},
        meaning="This rank moves far less data over NVLink than the other ranks of its job, although all of them "
        "communicate and work alike.",
        impact="Part of its traffic takes a slower path, or the model is split unevenly.",
        diagnosis=(
            f'Compare `{s.NVLINK.record}{{workload="…"}}` of all ranks. Run `nvidia-smi nvlink --status -i N` to '
            "see links that are down.",
            "Run `nvidia-smi topo -m`. Does each pair of ranks have NVLink (`NV#`), or do some have only PCIe "
            "(`PHB`, `SYS`)?",
            "Run the job with `NCCL_DEBUG=INFO` and `NCCL_DEBUG_SUBSYS=GRAPH` to see the rings and trees that "
            "NCCL chose.",
            f'Look at `{s.PCIE_RX_USE.record}{{workload="…"}}`: does the missing NVLink traffic go over PCIe?',
        ),
        mitigation=(
            "If links are down, follow GpuNvlinkDown.",
            "Place ranks that communicate most on GPUs that share NVLink. If each rank sees only its own "
            "GPU (`CUDA_VISIBLE_DEVICES`), check with `NCCL_DEBUG=INFO` that NCCL still uses P2P.",
            "If the model is split unevenly, decide whether that is intended.",
        ),
        wrong="With pipeline parallelism, the first and the last stage have one neighbour instead of two. Groups of "
        "different sizes, or experts that are used unevenly, are uneven by nature.",
    ),
    FailureMode(
        "GpuJobAcrossCliques",
        Domain.DISTRIBUTED,
        Severity.INFO,
        15 * MINUTE,
        Action.NONE,
        "{gpu} is in another NVLink clique than most ranks of job {job}",
        "If all ranks fit into one clique, place them there: a ComputeDomain of NVIDIA's DRA driver, a topology block in "
        "Slurm, or a pod affinity to the label nvidia.com/gpu.clique. Otherwise keep tensor and expert parallelism within a "
        "clique.",
        Inject({**profiles.BALANCED, m.FABRIC_CODE: 1.0}, {**profiles.BALANCED, m.FABRIC_CODE: 2.0}),
        ACROSS_CLIQUES,
        shows=c.GR,
        scope=Scope.JOB,
        cause=Cause.PEERS,
        explains={Place.JOB: ("GpuCommunicationBound",)},
        meaning="All ranks of the job communicate, and they are in two or more cliques of an NVLink fabric. GPUs of different "
        "cliques do not reach each other over NVLink, even if they are in the same rack.",
        impact="Collectives over all ranks are as fast as the network between the cliques, which has about a tenth of the "
        "bandwidth of NVLink.",
        diagnosis=(
            f"`count by (cluster_uuid, clique_id) ({m.PLACEMENT} * on (cluster, UUID) group_left () "
            f'max by (cluster, UUID) ({s.NVLINK_FABRIC.record}{{workload="…"}}))` counts the ranks of each clique.',
            f"`count by (cluster_uuid, clique_id) ({m.PLACEMENT})` shows how many GPUs each clique has: do the ranks fit?",
            "`nvidia-smi -q | grep -A8 Fabric` on the nodes shows the cluster and the clique. Nodes of one rack in different "
            "cliques are partitioned on purpose (NMX), or their trays joined late: read the log of the fabric manager.",
            "Run the job with `NCCL_DEBUG=INFO`: `MNNVL 1` and the clique that NCCL found. If it is not there, "
            "`nvidia-imex` does not run on all nodes.",
        ),
        mitigation=(
            "Schedule by clique: a ComputeDomain, `--segment` of Slurm's topology/block, or an affinity to "
            "`nvidia.com/gpu.clique`.",
            "For a job that is larger than a clique, order the ranks by clique, so that only data or pipeline parallelism "
            "crosses it.",
        ),
        wrong="A job with more ranks than a clique has GPUs cannot avoid this. Replicas of a service that serve requests "
        "independently have one workload name, too; they are excluded only if their traffic differs. Nodes without a fabric "
        "over several nodes, such as an HGX with eight GPUs, have no code, and no alert.",
    ),
)

# The modes that name a rank for which others wait, by the counters of its GPU.
STRAGGLERS = tuple(mode.name for mode in MODES if mode.name.startswith("GpuStraggler"))
