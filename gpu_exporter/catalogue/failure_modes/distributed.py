"""Ranks that wait for each other. A straggler has victims: ranks with a busy engine, partly filled SMs and traffic.

In a synchronous job all ranks move the same bytes and end each step together; so a rank is compared with the others of
its job, never with its own past, and one whose traffic is not like theirs is no part of the same collective. The one
that does not wait is the straggler: with a less busy engine it is starved by its host, with busier SMs it is slow.
"""

from __future__ import annotations

from gpu_exporter.catalogue import bottlenecks as c
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import mean
from gpu_exporter.catalogue.conditions import (
    And,
    Calc,
    Compare,
    Condition,
    Limit,
    Mark,
    Or,
    Over,
    PeerMedian,
    PeerShare,
    Unless,
)
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Inject, Scope, Severity
from gpu_exporter.model.verdict import Action

MINUTE = 60.0

# fmt: off
VICTIMS       = Limit("victims", 0.6, "ratio", "share of the other ranks that wait when one is a straggler; a stage of two has half")
ALL_RANKS     = Limit("allRanks", 0.99, "ratio", "share of the other ranks that is all of them")
STARVED_GAP   = Limit("starvedGap", 0.2, "ratio", "engine activity that a starved rank lacks against its victims")
SLOW_GAP      = Limit("slowGap", 0.15, "ratio", "SM activity that a slow rank has above its victims")
ALIKE         = Limit("alike", 2.0, "ratio", "factor by which the traffic of ranks in one collective may differ")
UNALIKE       = Limit("unalike", 0.4, "ratio", "share of its peers' traffic below which a rank is left out")
SAME_ENGINE   = Limit("sameEngine", 0.1, "ratio", "difference in engine activity of ranks that do the same")
# fmt: on

WAITS = Mark("waits", And(c.BUSY, c.PARTLY_FILLED, c.TRAFFIC))
SPINS = Mark("spins", c.SPINNING)
STALLED = Mark("stalled", Or(c.SPINNING, c.IDLES))
TALKS = Mark("talks", Compare(c.NVLINK, ">=", c.MOVING))


def _far(left: Over | PeerMedian, right: Over | PeerMedian) -> Condition:
    """Two values that are not about the same."""
    return Or(Compare(Calc(left, "/", right), ">", ALIKE), Compare(Calc(right, "/", left), ">", ALIKE))


# Inference that is pipelined over GPUs sends one way; replicas of one service move different amounts.
OTHER_TRAFFIC = Or(
    _far(mean(s.NVLINK_TX), mean(s.NVLINK_RX)),
    _far(c.NVLINK, PeerMedian(c.NVLINK, WAITS)),
    name="other_traffic",
)
STRAGGLES = And(Compare(PeerShare(WAITS), ">=", VICTIMS), c.TRAFFIC)

MODES = (
    FailureMode(
        "GpuCollectiveStall",
        Domain.DISTRIBUTED,
        Severity.WARNING,
        10 * MINUTE,
        Action.RESTART_APP,
        "The job {job} stands still: {gpu} waits, or is missed",
        "The rank whose engine is idle is the one that never came: see its log and stack (py-spy). If all of them spin, "
        "look for a rank on another node, then at the network; NCCL's flight recorder names the collective.",
        Inject(profiles.ABSENT, profiles.HANGING, everyone=True),
        And(
            STALLED.condition,
            Compare(PeerShare(STALLED), ">=", ALL_RANKS),
            Or(SPINS.condition, Compare(PeerShare(SPINS), ">", 0.0)),
        ),
        shows=c.GR,
        scope=Scope.JOB,
        meaning="No rank of the job makes progress: some spin in a collective (engine busy, a few SMs active, no "
        "memory traffic, power as if idle), the others do nothing, and no bytes move.",
        impact="The job burns all its GPUs until the watchdog ends it: ten minutes or more with NCCL's default, "
        "never without.",
        diagnosis=(
            f'`{s.GR_ACTIVE.record}{{workload="…"}}`: the rank with an idle engine is the one that never '
            "came. All of them busy: the absent one is on another node, in another pod, or has died.",
            "On the absent rank: `py-spy dump --pid PID` (its stack), the last lines of its log, `dmesg` "
            "(out of memory?), the state of its process (`D` is storage).",
            "`gpu-exporter events` on all nodes of the job: an Xid explains it at once.",
            "NCCL's flight recorder (`TORCH_NCCL_TRACE_BUFFER_SIZE=2000`, `TORCH_NCCL_DUMP_ON_TIMEOUT=1`) "
            "names the collective, and the ranks that did not enter it.",
            "All ranks spin: links and switches between the nodes (`ibstat`, `perfquery`), NVLinks that are down.",
        ),
        mitigation=(
            "Take stacks of all ranks *before* you kill it: afterwards nothing is left to see.",
            "Restart the job from its last checkpoint, without a node whose rank died of hardware.",
            "Set a watchdog (`TORCH_NCCL_ASYNC_ERROR_HANDLING`, a shorter process group timeout), so that "
            "it ends by itself.",
        ),
        wrong="A long phase in which one rank works on its CPU alone while the others wait in a barrier looks the "
        "same: evaluation, a checkpoint of rank 0, compilation. If it ends by itself within its usual time, "
        "it is no stall. It takes our SM activity or dcgm-exporter with our list; a stall over TCP without "
        "GPU kernels spinning is not seen.",
    ),
    FailureMode(
        "GpuStragglerStarved",
        Domain.DISTRIBUTED,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "The ranks of {job} wait for {gpu}, which waits for its host",
        "Look at this rank's host: data loader, CPU throttling or neighbours, storage, a rank that also logs or saves.",
        Inject(profiles.STARVED, profiles.OF_STARVED),
        Unless(
            And(
                Compare(Calc(PeerMedian(c.GR, WAITS), "-", c.GR), ">=", STARVED_GAP),
                STRAGGLES,
            ),
            OTHER_TRAFFIC,
        ),
        shows=c.GR,
        scope=Scope.JOB,
        implies=("GpuHostBound", "GpuDataLoadingBound"),
        meaning="The other ranks of the job wait for this one, and its GPU waits for its host: its engine is less "
        "active than theirs, which spin in the collective.",
        impact="Every step takes as long as this rank's. With a third of the time lost, the job pays for eight "
        "GPUs and gets five.",
        diagnosis=(
            f'`{s.GR_ACTIVE.record}{{workload="…"}}` side by side: the low one is the straggler, those at '
            "about 1 are its victims.",
            "On its host: `top -H`, CPU throttling (`container_cpu_cfs_throttled_periods_total`), other "
            "pods on the node, `iostat -x` for storage.",
            "`py-spy dump --pid PID`, several times: in the data loader, in `save`, in logging, in a lock?",
            f'`{s.PCIE_RX_USE.record}{{UUID="…"}}`: busy: data comes slowly; quiet: nothing is sent, the CPU is late.',
            "The same host again with another job? Then the host. The same rank on any host (often rank 0): "
            "its extra work, such as logging, evaluation, checkpoints.",
        ),
        mitigation=(
            "CPU: raise its requests and limits, pin it to the GPU's NUMA node, move neighbours away.",
            "Data: more loader workers, prefetch, a local cache; give each rank shards of the same size.",
            "Rank 0: write checkpoints asynchronously, log less often.",
        ),
        wrong="A rank that saves a checkpoint for ten minutes is named rightly, but needs no cure. Pipeline "
        "stages and uneven replicas are left out by their traffic; a pipeline that sends as much in both "
        "directions may still be named.",
    ),
    FailureMode(
        "GpuStragglerSlow",
        Domain.DISTRIBUTED,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "The ranks of {job} wait for {gpu}, which computes longer",
        "If it is throttled by heat or power brake, or has a health alert, the chip is sick: move the job. At full power "
        "and at its power cap it simply has more work than its peers: balance it. A lower clock alone proves nothing.",
        Inject(profiles.SLOW, profiles.OF_SLOW),
        Unless(
            And(
                Compare(Calc(c.SM, "-", PeerMedian(c.SM, WAITS)), ">=", SLOW_GAP),
                c.BUSY,
                c.FILLED,
                STRAGGLES,
            ),
            OTHER_TRAFFIC,
        ),
        shows=c.SM,
        scope=Scope.JOB,
        meaning="The other ranks of the job wait for this one, which computes longer than they do: its SMs are more "
        "active than theirs, which are partly empty while they wait.",
        impact="Every step takes as long as this rank's; the others' GPUs idle in the collective for the rest.",
        diagnosis=(
            f'`{s.HW_THERMAL.record}{{UUID="…"}}`, `{s.SW_THERMAL.record}{{UUID="…"}}`, '
            f'`{s.POWER_BRAKE.record}{{UUID="…"}}`: above 0 the chip is slowed down: sick, or badly cooled.',
            f'`{s.POWER_USE.record}{{UUID="…"}}` and `{s.POWER_CAP.record}{{UUID="…"}}`: full power at its '
            "cap, where its peers draw less: it has more *work* than they have.",
            f'`{s.SM_CLOCK.record}{{workload="…"}}`: a lower clock proves nothing by itself: who works more '
            "draws more power, and clocks lower.",
            "Health alerts of the same UUID (ECC, NVLink, PCIe link)? And `nvidia-smi "
            "--query-gpu=clocks.max.sm,power.limit --format=csv`: is its limit set lower than its peers'?",
        ),
        mitigation=(
            "Throttled or sick: move the job off this GPU, and see to the alert that says why.",
            "More work: balance it: sequence lengths, experts (MoE), pipeline stages, uneven shards.",
            "Not sure? Swap two ranks' GPUs. The straggler goes with the GPU: the chip; stays with the rank: the work.",
        ),
        wrong="Two ranks that take turns at being slow can both be named within a window. A rank with more work "
        "by design (the last pipeline stage, an expert that everybody asks) is named rightly but may be "
        "what you want.",
    ),
    FailureMode(
        "GpuCommunicationBound",
        Domain.DISTRIBUTED,
        Severity.INFO,
        30 * MINUTE,
        Action.NONE,
        "All ranks of {job} mostly communicate",
        "Overlap communication with computing, larger batches or gradient accumulation, another sharding; check NCCL's "
        "choice of algorithm and that it uses NVLink and all NICs.",
        Inject(profiles.ALL_REDUCE, profiles.ALL_REDUCE, everyone=True),
        And(WAITS.condition, Compare(PeerShare(WAITS), ">=", ALL_RANKS)),
        scope=Scope.JOB,
        meaning="All ranks of the job are busy, none of them fills its chip, and bytes move: they mostly "
        "communicate, and nobody is to blame.",
        impact="The job would be as fast on fewer GPUs, or much faster with better overlap.",
        diagnosis=(
            f'`{s.NVLINK.record}{{workload="…"}}`, against what the links can carry (`{m.NVLINK_SPEED}`): '
            "near it, the volume is the problem; far below, latency or another link (NIC, PCIe) is.",
            f'Only over PCIe (`{s.PCIE_RX_USE.record}{{workload="…"}}`)? NCCL does not use NVLink: '
            "`NCCL_DEBUG=INFO` says which transports it chose; `nvidia-smi topo -m` which there are.",
            "Over nodes: the NICs' counters, and whether GPUDirect RDMA is on (`NCCL_DEBUG=INFO` shows `GDRDMA`).",
            "A profiler's trace of one step: collectives that overlap with nothing.",
        ),
        mitigation=(
            "Overlap: gradient buckets, prefetch of FSDP shards, asynchronous all-gather.",
            "Less of it: larger batches, gradient accumulation, another split (less tensor parallelism over "
            "nodes), lower precision of what is sent.",
            "Fix the transport: NVLinks that are down, NICs that NCCL did not take, `NCCL_P2P_DISABLE` left set.",
        ),
        wrong="A benchmark of collectives is bound by communication on purpose. So may be decoding over many "
        "GPUs, where latency counts more than cost. Where a straggler is named too, see to that first.",
    ),
    FailureMode(
        "GpuNvlinkImbalance",
        Domain.DISTRIBUTED,
        Severity.INFO,
        15 * MINUTE,
        Action.NONE,
        "{gpu} moves {{ $value | humanizePercentage }} of its peers' NVLink traffic",
        "Look at the topology that NCCL chose, at links that are down, and at how the model is split.",
        Inject({**profiles.BALANCED, m.NVLINK_TX: 5e9, m.NVLINK_RX: 5e9}, profiles.BALANCED),
        And(
            Compare(Calc(c.NVLINK, "/", PeerMedian(c.NVLINK, TALKS)), "<", UNALIKE),
            TALKS.condition,
            Compare(PeerShare(TALKS), ">=", ALL_RANKS),
            Compare(Calc(c.GR, "-", PeerMedian(c.GR, TALKS)), "<", SAME_ENGINE),
            Compare(Calc(PeerMedian(c.GR, TALKS), "-", c.GR), "<", SAME_ENGINE),
        ),
        scope=Scope.JOB,
        meaning="This rank moves far less over NVLink than the other ranks of its job, though all of them talk and "
        "all work alike.",
        impact="Part of its traffic takes a slower way, or the model is split unevenly.",
        diagnosis=(
            f'`{s.NVLINK.record}{{workload="…"}}`, side by side; `nvidia-smi nvlink --status -i N` for links '
            "that are down.",
            "`nvidia-smi topo -m`: does each pair of ranks have NVLink (`NV#`), or some only PCIe (`PHB`, `SYS`)?",
            "`NCCL_DEBUG=INFO` with `NCCL_DEBUG_SUBSYS=GRAPH`: the rings and trees that it chose.",
            f'`{s.PCIE_RX_USE.record}{{workload="…"}}`: is what lacks on NVLink there on PCIe?',
        ),
        mitigation=(
            "Links down: GpuNvlinkDown.",
            "Place the ranks so that those who talk most share NVLink; leave `CUDA_VISIBLE_DEVICES` alone "
            "within a node.",
            "An uneven split of the model: decide whether it is meant.",
        ),
        wrong="Pipeline parallelism: the first and the last stage have one neighbour instead of two. Groups of "
        "different sizes, or experts that are asked unevenly, are uneven by nature.",
    ),
)
