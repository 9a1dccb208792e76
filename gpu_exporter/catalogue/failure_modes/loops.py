"""What training loops with a step timer say about their job: who is slow, whether it stands still, what it loses.

All but one need the ranks of all nodes: Prometheus evaluates them on the series of `alerting/training_jobs.py`.
`diagnose` evaluates the same (`on_node`) for the ranks that it sees, on what `diagnosis/training_loops.py` computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from gpu_exporter.catalogue import job_signals
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import model_assumptions as a
from gpu_exporter.catalogue.bottlenecks import mean
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes.mode import (
    SLOWED_JOB,
    Domain,
    FailureMode,
    Inject,
    Place,
    Ramp,
    Scope,
    Severity,
    slows_down,
)
from gpu_exporter.conditions.signal import DEVICE, DEVICE_INFO
from gpu_exporter.conditions.tree import And, Compare, Limit, Or, Over, Unless
from gpu_exporter.model.job_message import ACTIVITIES, ON_GPU, STEP_BUCKETS, TRAINING
from gpu_exporter.model.verdict import Action

# Steps of half a second, four fifths of which are self time, and most of that is the backward pass.
STRAGGLER, STALLED, RANK_ENDED = "GpuJobStraggler", "GpuJobStalled", "GpuJobRankEnded"
STEP_SECONDS, SELF_SHARE = 0.5, 0.8
PHASES = {"forward": 0.25, "backward": 0.45, "waiting": 0.2}
TOKENS_PER_SECOND, FLOPS_PER_SECOND, PEAK, INJECTED_DATA_SHARE = 8000.0, 4e14, 1e15, 0.02
# What the counters have reached, in seconds of training.
PAST = 500.0


@dataclass(frozen=True)
class TrainingLoop(Mapping[str, "float | Ramp"]):
    """The series of a job of this name, whose ranks have the GPUs of a node of this name.

    The last rank has `own` times the usual self time. `trains` is the share of time in training; the rest is in
    evaluations. `speed` is that of the steps. `since`: the time of the last step, if there are no steps any more.
    `ends`: the last rank has ended. `clock`: what measures times within a step; nothing says that it is the CPU.
    A server, which injects nothing, does not need the series; they are made when they are read first.
    """

    name: str
    ranks: int = 4
    own: float = 1.0
    trains: float = 1.0
    speed: float = 1.0
    since: float | None = None
    ends: bool = False
    clock: str = ON_GPU

    @cached_property
    def series(self) -> Mapping[str, float | Ramp]:
        """The values by name and labels."""
        series: dict[str, float | Ramp] = {}
        for rank in range(self.ranks):
            labels = f'job_id="{self.name}",rank="{rank}",gpu="{rank}",UUID="GPU-{self.name}-{rank}"'
            if self.ends and rank == self.ranks - 1:
                series[_key(m.JOB_ENDED_AT.name, "", labels)] = 0.0
                continue
            grows = 0.0 if self.since is not None else self.trains
            for key, per_second in _counters(self.own if rank == self.ranks - 1 else 1.0, self.speed):
                if key[0] == f"{m.JOB_STEP}_bucket" and rank:
                    continue  # all ranks have the same, so that of one is enough
                series[_key(*key, labels)] = Ramp(PAST * per_second, grows * per_second)
            series[_key(m.JOB_ACTIVITY.name, 'activity="evaluation"', labels)] = Ramp(0.0, 1 - self.trains)
            for metric in m.JOB_NOW:
                ((label, activity),) = metric.labels
                series[_key(metric.name, f'{label}="{activity}"', labels)] = float(activity == TRAINING)
            series[_key(m.JOB_STEPPED_AT.name, "", labels)] = Ramp(0.0, 1.0) if self.since is None else self.since
            series[_key(m.JOB_STARTED_AT.name, "", labels)] = -PAST
            series[_key(m.JOB_PEAK.name, "", labels)] = PEAK
            facts = f'world_size="{self.ranks}",clock="{self.clock}"'
            series[_key(m.JOB_RANK_INFO.name, facts, labels)] = 1.0
        return series

    def __getitem__(self, key: str) -> float | Ramp:
        return self.series[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.series)

    def __len__(self) -> int:
        return len(self.series)


def _counters(own: float, speed: float) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield name and labels of each counter with its growth in a second of training."""
    steps = speed / STEP_SECONDS
    yield (m.JOB_STEPS.name, ""), steps
    for histogram, share in ((m.JOB_STEP, 1.0), (m.JOB_SELF, SELF_SHARE * own)):
        yield (f"{histogram}_count", ""), steps
        yield (f"{histogram}_sum", ""), share
    for edge in (*STEP_BUCKETS, float("inf")):
        text = "+Inf" if edge == float("inf") else repr(edge)
        yield (f"{m.JOB_STEP}_bucket", f'le="{text}"'), steps * (edge >= STEP_SECONDS / speed)
    yield (m.JOB_TOKENS.name, ""), TOKENS_PER_SECOND * speed
    yield (m.JOB_FLOPS.name, ""), FLOPS_PER_SECOND * speed
    yield (m.JOB_DATA.name, ""), INJECTED_DATA_SHARE
    for phase, share in PHASES.items():
        longer = (own - 1) * SELF_SHARE if phase == "backward" else 0.0
        yield (m.JOB_PHASE.name, f'phase="{phase}"'), share + longer
    for activity in ACTIVITIES:
        if activity != "evaluation":
            yield (m.JOB_ACTIVITY.name, f'activity="{activity}"'), float(activity == TRAINING)


def _key(name: str, more: str, labels: str) -> str:
    return f"{name}{{{labels}{',' if more else ''}{more}}}"


MINUTE = 60.0
# What `requires` says.
LOOP = "training loop"

DATA_SHARE = Limit("dataShare", 0.2, "ratio", "share of time in the data loader, as the training loop says, at or above which the loader is a bottleneck", a.LOOPS)  # fmt: skip

# What is a straggler, a slow job, and lost time, for Prometheus and `diagnose` alike: shares of a step, of the usual speed
# and of the time.
LEAST_EXCESS, SLOWER, LOST = job_signals.LEAST_EXCESS, 0.8, 0.25
_JOB = "on (cluster, namespace, workload, job_id)"
_TIMER = "The alert needs a [step timer](../training.md) in the training loop and `--job-socket`."

OF_JOBS = (
    FailureMode(
        STALLED,
        Domain.DISTRIBUTED,
        Severity.WARNING,
        0.0,
        Action.RESTART_APP,
        "Job {{ $labels.job_id }} ({job}) has completed no step for {{ $value | humanizeDuration }}",
        "Save the stacks of all ranks before you restart the job (gpu-exporter profile, or py-spy dump). Then look for the "
        "rank that stopped first: its GPU is idle, or it has an alert of its own.",
        Inject(series=TrainingLoop("gpujobstalled", since=600.0)),
        fleet="job:standstill:seconds > job:stall_limit:seconds",
        on_node=Compare(Over(job_signals.STANDSTILL), ">", Over(job_signals.STALL_LIMIT)),
        keep=2 * MINUTE,
        scope=Scope.FLEET,
        requires=LOOP,
        cause=Cause.PEERS,
        explains={
            Place.JOB: (
                "GpuCollectiveStall",
                "GpuJobSlower",
                "GpuJobGoodputLow",
                "GpuJobMfuDropped",
                "GpuAllocatedIdle",
            )
        },
        meaning="The training loop says that it trains, but no rank has completed a step for three times as long as usual "
        "and 20 seconds. Steps that were longer before, such as those with a checkpoint that is not marked, raise the limit.",
        impact="The GPUs of the whole job wait. NCCL ends a stalled job after 10 minutes by default, or never.",
        diagnosis=(
            'Query `time() - gpu_job_last_step_timestamp_seconds{job_id="…"}`: a rank with a longer time than the others '
            "stopped first. If all have the same, all wait in a collective.",
            "Query `gpu:gr_active:ratio` of the job: the rank with an idle engine never entered the collective.",
            "Run `gpu-exporter events` on all nodes of the job: an XID on one of them usually explains the stall.",
            "Has a rank disappeared from `gpu_job_rank_info`? Then its process has died: read its log.",
        ),
        mitigation=(
            "Take stacks of all ranks *before* you kill the job: afterwards there is nothing left to inspect.",
            "Restart the job from its last checkpoint, without any node whose rank died of a hardware fault.",
        ),
        wrong="A long evaluation or checkpoint that the loop does not mark with `timer.evaluation()` or `timer.checkpoint()` "
        "is reported the first time it happens; later ones raise the limit. After the end of the training, call "
        "`timer.close()`, or end the process. A stall within a marked evaluation or checkpoint, or before the second "
        "step, is not reported. " + _TIMER,
    ),
    FailureMode(
        RANK_ENDED,
        Domain.DISTRIBUTED,
        Severity.WARNING,
        2 * MINUTE,
        Action.RESTART_APP,
        "Rank {{ $labels.rank }} of job {{ $labels.job_id }} ({gpu}) ended {{ $value | humanizeDuration }} ago, while other "
        "ranks train",
        "Read the log of this rank and the kernel log of its node (out of memory, XID). Save the stacks of the other ranks "
        "before you restart the job: they wait for this one.",
        Inject(series=TrainingLoop("gpujobrankended", ends=True)),
        fleet=f"""max by (cluster, job_id, rank, UUID, GPU_I_ID) (
  {m.RENDERED_AT} - on (cluster, job, instance) group_right () {m.JOB_ENDED_AT}
)
* on ({", ".join(DEVICE)}) group_left (node, gpu, modelName, namespace, workload) {DEVICE_INFO}""",
        on_node=Compare(Over(job_signals.ENDED_AGE), ">=", 0.0),
        keep=10 * MINUTE,
        scope=Scope.FLEET,
        requires=LOOP,
        cause=Cause.PEERS,
        explains={Place.JOB: (STALLED, "GpuCollectiveStall", "GpuJobGoodputLow", "GpuAllocatedIdle")},
        meaning="The process of a rank has ended or sends nothing, while other ranks of its job on the same node go on "
        "training. The exporter sees the end at once if the process dies, and after 30 s if it is stopped. A job that is started "
        "again with fewer ranks has lost none of them: it says itself how many it has.",
        impact="The other ranks wait for this one in their next collective, until NCCL's timeout or for ever.",
        diagnosis=(
            "Read the log of the rank: an exception, a signal, or nothing if it was killed.",
            "`dmesg | grep -i -E 'oom|xid'` on the node: was it killed for its memory, or did its GPU fail?",
            "Query `gpu_job_restarts_total` of the rank: has the launcher restarted it before?",
        ),
        mitigation=("Restart the job from its last checkpoint. Follow the health alert of the GPU if there is one.",),
        wrong="At the end of a training, ranks may end minutes before one that still saves a checkpoint without "
        "`timer.checkpoint()`. Jobs with all of their ranks on other nodes are compared on each node alone. " + _TIMER,
    ),
    FailureMode(
        STRAGGLER,
        Domain.DISTRIBUTED,
        Severity.WARNING,
        5 * MINUTE,
        Action.NONE,
        "Rank {{ $labels.rank }} of job {{ $labels.job_id }} ({gpu}) is a straggler: the other ranks wait for it for "
        "{{ $value | humanizePercentage }} of each step",
        "Look at the panels of the training loop: which phase of this rank takes longer? If it is the data, check the data "
        "loader. If all phases on the GPU take longer, check the clock and the health of the GPU.",
        Inject(series=TrainingLoop("gpujobstraggler", own=1.25)),
        fleet=f"""rank:self_excess:ratio > {LEAST_EXCESS}
and
rank:self_excess:seconds > {_JOB} group_left () job:self_margin:seconds
unless
rank:self_excess:seconds <= {job_signals.STANDARD_ERRORS} * rank:self_error:seconds
unless
rank:self_excess:ratio / (1 + rank:self_excess:ratio) <= {_JOB} group_left () job:pause_spread:ratio""",
        on_node=Unless(
            And(
                Compare(Over(job_signals.SELF_EXCESS), ">", LEAST_EXCESS),
                Compare(Over(job_signals.SELF_EXCESS), ">", Over(job_signals.SELF_MARGIN)),
            ),
            Compare(Over(job_signals.SELF_EXCESS), "<=", Over(job_signals.PAUSE_WAIT)),
        ),
        keep=10 * MINUTE,
        scope=Scope.FLEET,
        requires=LOOP,
        cause=Cause.PEERS,
        explains={
            Place.GPU: (
                "GpuStragglerStarved",
                "GpuStragglerSlow",
                "GpuStragglerLaunchBound",
            ),
            Place.JOB: SLOWED_JOB,
        },
        meaning="This rank is a straggler: the other ranks of its training job wait for it. *Self time* is the time of a step "
        "without waiting for other ranks; rare steps that take more than four times as long as usual do not count. The *excess* of a rank is its self time minus the median of the ranks. The alert "
        "fires if the excess of this rank is more than each of these:\n\n"
        f"- {100 * LEAST_EXCESS:g} % of a step\n"
        f"- how far ranks differ by chance: `{job_signals.DEVIATIONS} * ({job_signals.DEVIATION_OF_MEDIANS} * MAD + "
        f"{job_signals.LEAST_SHARE} * median)`, with the median and the median absolute deviation (MAD) of the self times. With "
        f"two or three ranks, the lowest self time replaces the median, and it is {100 * job_signals.SHARE_OF_FEW:g} % of that. "
        f"Where GPUs measure self times, it is enough that the rank is above the next one by {100 * job_signals.LEAST_EXCESS:g} % "
        f"of a step, and by {job_signals.STANDS_OUT:g} times as much as the other ranks differ. In a launch-bound job, where self "
        "time and waiting "
        f"together exceed {job_signals.LAUNCH_BOUND:g} steps (`job:self_and_waiting:ratio`), it is at least "
        f"{100 * job_signals.SHARE_OF_FEW:g} % of the median, because one of its ranks is always the last\n"
        f"- {job_signals.STANDARD_ERRORS} standard errors of its self time: where steps differ much, as with sequences of "
        "different lengths, a mean says less\n"
        "- what pauses explain: evaluations, checkpoints and compilations that only some ranks do\n\n"
        "Unless the loops of all ranks measure waiting, GpuStragglerStarved and GpuStragglerSlow find stragglers by the "
        "counters of the GPUs; GpuStragglerLaunchBound always does.",
        impact="Every step takes as long as this rank needs; the other GPUs wait for the difference.",
        diagnosis=(
            'Query `rank:phase_excess:seconds{job_id="…", rank="…"}`: begin with the phase that has the highest value. '
            "`data` is the data loader. If none is high, the time is spent outside the phases.",
            f"For `data`, look at `{job_signals.DATA.record}` of all ranks, and at the alerts about the host of this rank.",
            "For `forward` and `backward` alike: is the GPU throttled (GpuThermalThrottling), or has the rank more work, such "
            "as longer sequences? `gpu:sm_clock:hertz` and `gpu:power_use:ratio` tell these apart.",
            "For one phase only: what does this rank do in it that the others do not do, such as logging?",
        ),
        mitigation=(
            "Data: more loader workers, a local cache, shards of equal size.",
            "GPU: move the job to another GPU, and follow the health alert of this one.",
            "Work: balance sequence lengths, experts or pipeline stages.",
        ),
        wrong="A pipeline stage or an expert with more work by design is a straggler, but not a fault. Self time cannot be "
        "measured if compiled code or DTensor calls the collectives, unless steps are sampled ([where self time comes "
        "from](../training.md)). In a launch-bound job, a rank that is less than a quarter slower than the others "
        "is not reported: GpuStragglerLaunchBound may name it. " + _TIMER,
    ),
    FailureMode(
        "GpuJobSlower",
        Domain.DISTRIBUTED,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "Job {{ $labels.job_id }} ({job}) trains at only {{ $value | humanizePercentage }} of its usual speed",
        "Compare the phases of a step with those of yesterday, then look for a straggler and for alerts about the GPUs of "
        "the job. Find out what changed: its nodes, its configuration or its data.",
        Inject(series=TrainingLoop("gpujobslower", speed=0.7), series_before=TrainingLoop("gpujobslower")),
        fleet=f"avg_over_time(job:speed:per_second[15m]) / job:speed_usual:per_second < {SLOWER}\n"
        f"and job:speed:per_second / job:speed_usual:per_second < {SLOWER}",
        on_node=And(
            Compare(Over(job_signals.SPEED), "<", SLOWER),
            Compare(Over(job_signals.SPEED_NOW), "<", SLOWER),
        ),
        keep=15 * MINUTE,
        scope=Scope.FLEET,
        requires=LOOP,
        cause=Cause.PEERS,
        explains={Place.JOB: ("GpuJobMfuDropped",)},
        meaning="Over 15 minutes and over the last five, the ranks of this job processed at least 20 % fewer tokens per second of training than the "
        "median of the last day; samples if the loop does not count tokens, steps if it counts neither. Evaluations and "
        "checkpoints do not count, and the speed is that of one rank, so more or fewer ranks do not matter.",
        impact="The job takes longer and costs more.",
        diagnosis=(
            'Query `job:phase:ratio{job_id="…"}` over a day: which phase takes more of the time than before?',
            "Is a rank slow (GpuJobStraggler), or all of them? If all are, look at what they share: storage, network, "
            "a new version.",
            'Query `rank:identity:info{job_id="…"}` over a day: has the job moved to other nodes or GPU models?',
        ),
        mitigation=(
            "Follow the alerts about its GPUs, hosts and data loaders.",
            "If a change of the code or its configuration is the reason, profile a step (`gpu-exporter profile`).",
        ),
        wrong="Longer sequences lower the number of tokens per second, and if the loop counts only steps, a larger batch looks "
        "slower. After a day, the new speed is the usual one. The alert needs at least an hour of the past. " + _TIMER,
    ),
    FailureMode(
        "GpuJobDataBound",
        Domain.DISTRIBUTED,
        Severity.WARNING,
        15 * MINUTE,
        Action.NONE,
        "The training loop on {gpu} waits for its data loader",
        "Add loader workers if CPUs are free; otherwise make the preprocessing cheaper or the storage faster.",
        Inject({m.JOB_DATA: Ramp(0, 0.4)}),
        Compare(mean(job_signals.DATA), ">=", DATA_SHARE),
        keep=15 * MINUTE,
        requires=LOOP,
        cause=Cause.HOST,
        explains=slows_down("GpuDataLoadingBound", "GpuHostBound", job=("GpuJobGoodputLow",)),
        meaning="The training loop on this GPU spends a large part of its time in its data loader, as it says itself.",
        impact="The GPU has nothing to do in the meantime. In a synchronous job, all other ranks wait, too.",
        diagnosis=(
            f'Compare `{job_signals.DATA.record}{{workload="…"}}` of all ranks. If only one is high, its host is slow; if all '
            "are, the data cannot be loaded any faster this way.",
            "Run `top -H` on the host. Loader workers at 100 % point to decoding or augmentation; workers in state `D` point "
            "to storage. With `--host-evidence`, an alert names the cause.",
            "Does the time disappear with synthetic data? Then the input is certainly the cause.",
        ),
        mitigation=(
            "More workers, `prefetch_factor`, `persistent_workers=True`, `pin_memory=True`, and CPU limits that let the "
            "workers run.",
            "Decode on the GPU (DALI, nvJPEG), store decoded data, or use larger sequential files on a local cache.",
        ),
        wrong="With the callbacks for Hugging Face and Lightning, all time between two steps counts as data, such as logging. "
        "A loader that sends batches to the GPU itself may wait for the GPU. " + _TIMER,
    ),
)
OF_COST = (
    FailureMode(
        "GpuJobGoodputLow",
        Domain.COST,
        Severity.WARNING,
        15 * MINUTE,
        Action.NONE,
        "Job {{ $labels.job_id }} ({job}) lost {{ $value | humanizePercentage }} of its time ({{ $labels.activity }})",
        "evaluation, checkpoint, compile: do it less often, or beside the training. other: restarts, stalls and steps that "
        "were lost; read the log of the job.",
        Inject(series=TrainingLoop("gpujobgoodputlow", trains=0.6)),
        fleet=f'job:lost:ratio{{activity="other"}} > {LOST}\nor\n'
        f'avg_over_time(job:lost:ratio{{activity!="other"}}[6h]) > {LOST} and job:lost:ratio',
        on_node=Or(
            Compare(Over(job_signals.LOST_OTHER), ">", LOST),
            Compare(Over(job_signals.LOST_PAUSES), ">", LOST),
        ),
        keep=15 * MINUTE,
        scope=Scope.FLEET,
        requires=LOOP,
        cause=Cause.HOST,
        explains={Place.JOB: ("GpuJobMfuDropped",)},
        meaning="The ranks of this job spent at least a quarter of their time on something other than training steps. The label "
        "`activity` says on what: evaluations, checkpoints and compilation count over six hours, so that a long one "
        "now and then is no alert. `other` counts over the last hour; it is time in which the loop was not running, or a "
        "step that did not end.",
        impact="The GPUs cost their full price in the meantime.",
        diagnosis=(
            'Query `job:time:ratio{job_id="…"}`: which activities does the loop spend its time on?',
            'Query `changes(gpu_job_restarts_total{job_id="…"}[1h])`: was the job restarted?',
            "How long does a single evaluation or checkpoint take, and how often does it happen?",
        ),
        mitigation=(
            "Checkpoints: write them asynchronously, shard them over the ranks, use faster storage.",
            "Evaluation: do it less often, on fewer samples, or in a job of its own.",
            "Compilation: keep the cache of compiled kernels between restarts.",
            "Restarts: find their cause; save checkpoints often enough that little work is lost.",
        ),
        wrong="A job that mostly evaluates does so on purpose. Work that is repeated after a restart counts as training. "
        + _TIMER,
    ),
    FailureMode(
        "GpuJobMfuDropped",
        Domain.COST,
        Severity.INFO,
        30 * MINUTE,
        Action.NONE,
        "The MFU of job {{ $labels.job_id }} ({job}) is {{ $value | humanizePercentage }} of its best",
        "Compare the time by activity and by phase with that of the best hours. Each lost percent raises the cost of a token.",
        Inject(series=TrainingLoop("gpujobmfudropped", trains=0.77), series_before=TrainingLoop("gpujobmfudropped")),
        fleet="job:mfu_hours:ratio / max_over_time(job:mfu_hours:ratio[3d]) < 0.8",
        scope=Scope.FLEET,
        requires=LOOP,
        cause=Cause.HOST,
        meaning="MFU (model FLOPs utilisation) is the share of the peak of the GPUs that the model uses, evaluations and "
        "checkpoints included. In the last six hours it was at least 20 % lower than in the best six hours of three days: one "
        "evaluation in several hours is in both.",
        impact="The same training costs more GPU hours.",
        diagnosis=(
            'Query `job:mfu:ratio{job_id="…"}` over three days: a step, or a slow decline?',
            'Query `job:time:ratio{job_id="…"}` and `job:phase:ratio{job_id="…"}`: what takes more time than before?',
            "Does the job run on other GPUs now? The peak is that of the GPU model and the data type.",
        ),
        mitigation=("Follow GpuJobSlower, GpuJobGoodputLow and GpuJobStraggler if one of them fires.",),
        wrong="A change of the model, of `flops=` in the loop, or of the data type changes MFU without any loss. "
        + _TIMER,
    ),
)
MODES = (*OF_JOBS, *OF_COST)
