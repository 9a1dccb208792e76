"""What a training loop tells the exporter: one packet of JSON per rank, about once a second, with cumulative values.

A lost packet therefore loses nothing: the next one has the same sums and more. Both sides import this module, also
inside training jobs, so it must import next to nothing.
"""

VERSION = 1
SOCKET_VARIABLE = "GPU_EXPORTER_JOB_SOCKET"
SEND_SECONDS = 1.0
# A packet that is larger is neither sent nor read.
MOST_BYTES = 8192
# Upper bounds of the histograms of step and self time, in seconds; the last bucket is unbounded.
STEP_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0,
    600.0,
)  # fmt: skip
# A message with more names of phases is not accepted. The ranks of a job on a node share as many names, of so many
# characters: further and longer ones are dropped.
MOST_PHASES, LONGEST_PHASE = 32, 48
# The phase in which a rank waits for others.
WAITING = "waiting"
# The phase of the self time of rare steps that take many times as long as usual, which the self time leaves out.
LONG_STEPS = "long_steps"
# The clock of a rank whose times within a step come from CUDA events.
ON_GPU = "gpu"
# What a rank does at the moment. Only time in `training` is compared between ranks.
TRAINING, EVALUATION, CHECKPOINT, COMPILE = ACTIVITIES = ("training", "evaluation", "checkpoint", "compile")

# What a key contains: something that is true at the moment; a sum; a sum of what each step says that it processed; sums
# by name; a histogram: {sum, counts}, counts for STEP_BUCKETS and above, not cumulative.
FACT, SUM, AMOUNT, PARTS, HISTOGRAM = "fact", "sum", "amount", "parts", "histogram"


class Key:
    """A key of a message: its `kind`, and its `unit` and `metric` if it is exposed as one, with `help` as its HELP.

    `label` is the label that has the names of PARTS. A key that `may_miss` is left out if it is not known.
    """

    __slots__ = ("help", "kind", "label", "may_miss", "metric", "unit")

    def __init__(
        self, kind: str, help: str, unit: str = "", metric: str = "", label: str = "", *, may_miss: bool = False
    ) -> None:
        self.kind, self.help, self.unit, self.metric, self.label = kind, help, unit, metric, label
        self.may_miss = may_miss or kind == AMOUNT


# The keys of a message. All sums begin at 0 when the process starts; times are in seconds.
# fmt: off
KEYS = {
    "version":    Key(FACT, "VERSION"),
    "job_id":     Key(FACT, "name of the job, the same on all ranks"),
    "attempt":    Key(FACT, "identifies this process of this rank: a new one means that all sums begin at 0 again"),
    "rank":       Key(FACT, "global rank, from 0"),
    "world_size": Key(FACT, "number of ranks"),
    "uuid":       Key(FACT, "UUID of the GPU that the rank uses, as NVML prints it", may_miss=True),
    "pod_uid":    Key(FACT, "UID of the pod, if the launcher passed it on", may_miss=True),
    "dtype":      Key(FACT, "data type of the matrix products, for the peak that MFU refers to, such as bf16", may_miss=True),
    "clock":      Key(FACT, "`gpu` if the times within a step are those of the GPU, not of the CPU", may_miss=True),
    "activity":   Key(FACT, "one of ACTIVITIES"),
    "elapsed":    Key(FACT, "time since the timer was created"),
    "since_step": Key(FACT, "time since the last step ended, or since the timer was created"),
    "step":             Key(HISTOGRAM, "Duration in seconds of the steps of a rank of a training job.", "seconds", "gpu_job_step_seconds"),
    "self":             Key(HISTOGRAM, "Self time in seconds of the steps of a rank: the duration without waiting for other ranks, of all but rare long ones.", "seconds", "gpu_job_self_seconds", may_miss=True),
    "self_squares":     Key(SUM,    "Sum of the squares of the self times of a rank, in square seconds: with their sum, it says how much steps differ.", "square seconds", "gpu_job_self_squared_seconds_total", may_miss=True),
    "data_seconds":     Key(SUM,    "Seconds that a rank spent in its data loader.", "seconds", "gpu_job_data_seconds_total"),
    "phase_seconds":    Key(PARTS,  "Seconds that a rank spent in each phase of its steps.", "seconds", "gpu_job_phase_seconds_total", "phase", may_miss=True),
    "activity_seconds": Key(PARTS,  "Seconds that a rank spent in training, evaluation, checkpoint and compile.", "seconds", "gpu_job_activity_seconds_total", "activity"),
    "steps":            Key(SUM,    "Completed steps of a rank.", "steps", "gpu_job_steps_total"),
    "tokens":           Key(AMOUNT, "Tokens processed by a rank.", "tokens", "gpu_job_tokens_total"),
    "samples":          Key(AMOUNT, "Samples processed by a rank.", "samples", "gpu_job_samples_total"),
    "flops":            Key(AMOUNT, "Floating-point operations of the model done by a rank, without recomputation.", "flops", "gpu_job_model_flops_total"),
}
# fmt: on
AMOUNTS = tuple(name for name, key in KEYS.items() if key.kind == AMOUNT)
