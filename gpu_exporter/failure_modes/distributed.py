"""Ranks that wait for each other. A straggler has victims: ranks with a busy engine, partly filled SMs and traffic.

In a synchronous job all ranks move the same bytes and end each step together; so a rank is compared with the others of
its job, never with its own past, and one whose traffic is not like theirs is no part of the same collective. The one
that does not wait is the straggler: with a less busy engine it is starved by its host, with busier SMs it is slow.
"""

from __future__ import annotations

from gpu_exporter import classes as c
from gpu_exporter import metrics as m
from gpu_exporter import signals as s
from gpu_exporter.classes import mean
from gpu_exporter.conditions import And, Calc, Compare, Condition, Limit, Mark, Median, Or, Share, Unless
from gpu_exporter.failure_modes import profiles
from gpu_exporter.failure_modes.mode import Domain, FailureMode, Inject, Scope, Severity
from gpu_exporter.xids import Action

MINUTE = 60.0

# fmt: off
VICTIMS       = Limit("victims", 0.5, "ratio", "share of the other ranks that wait when one is a straggler")
ALL_RANKS     = Limit("allRanks", 0.99, "ratio", "share of the other ranks that is all of them")
STARVED_GAP   = Limit("starvedGap", 0.2, "ratio", "engine activity that a starved rank lacks against its victims")
SLOW_GAP      = Limit("slowGap", 0.15, "ratio", "SM activity that a slow rank has above its victims")
ALIKE         = Limit("alike", 2.0, "ratio", "factor by which the traffic of ranks in one collective may differ")
UNALIKE       = Limit("unalike", 0.4, "ratio", "share of its peers' traffic below which a rank is left out")
SAME_ENGINE   = Limit("sameEngine", 0.1, "ratio", "difference in engine activity of ranks that do the same")
# fmt: on

WAITS = Mark("waits", And(c.BUSY, c.PARTLY_FILLED, c.TRAFFIC))
SPINS = Mark("spins", c.SPINNING)
IDLES = Unless(Compare(c.GR, "<", c.IDLE_ENGINE), Or(c.COPYING, c.TRAFFIC))
STALLED = Mark("stalled", Or(c.SPINNING, IDLES))
TALKS = Mark("talks", Compare(c.NVLINK, ">=", c.MOVING))


def _far(left: Calc) -> Condition:
    """A ratio that is not about 1."""
    return Or(Compare(left, ">", ALIKE), Compare(left, "<", 1 / ALIKE.value))


# Inference that is pipelined over GPUs sends one way; replicas of one service move different amounts.
OTHER_TRAFFIC = Or(
    _far(Calc(mean(s.NVLINK_TX), "/", mean(s.NVLINK_RX))), _far(Calc(c.NVLINK, "/", Median(c.NVLINK, WAITS)))
)
STRAGGLES = And(Compare(Share(WAITS), ">=", VICTIMS), c.TRAFFIC)

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
            Compare(Share(STALLED), ">=", ALL_RANKS),
            Or(SPINS.condition, Compare(Share(SPINS), ">", 0.0)),
        ),
        scope=Scope.JOB,
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
                Compare(Calc(Median(c.GR, WAITS), "-", c.GR), ">=", STARVED_GAP),
                STRAGGLES,
            ),
            OTHER_TRAFFIC,
        ),
        scope=Scope.JOB,
        implies=("GpuHostBound", "GpuDataLoadingBound"),
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
                Compare(Calc(c.SM, "-", Median(c.SM, WAITS)), ">=", SLOW_GAP),
                c.BUSY,
                c.FILLED,
                STRAGGLES,
            ),
            OTHER_TRAFFIC,
        ),
        scope=Scope.JOB,
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
        And(WAITS.condition, Compare(Share(WAITS), ">=", ALL_RANKS)),
        scope=Scope.JOB,
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
            Compare(Calc(c.NVLINK, "/", Median(c.NVLINK, TALKS)), "<", UNALIKE),
            TALKS.condition,
            Compare(Share(TALKS), ">=", ALL_RANKS),
            Compare(Calc(c.GR, "-", Median(c.GR, TALKS)), "<", SAME_ENGINE),
            Compare(Calc(Median(c.GR, TALKS), "-", c.GR), "<", SAME_ENGINE),
        ),
        scope=Scope.JOB,
    ),
)
