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
# A message with more names of phases is not accepted.
MOST_PHASES = 32
# What a rank does at the moment. Only time in `training` is compared between ranks.
TRAINING, EVALUATION, CHECKPOINT, COMPILE = ACTIVITIES = ("training", "evaluation", "checkpoint", "compile")
# The keys of a message. All sums begin at 0 when the process starts; times are in seconds. Optional keys are left out
# if they are not known.
KEYS = {
    "version": "VERSION",
    "job_id": "name of the job, the same on all ranks",
    "attempt": "identifies this process of this rank: a new one means that all sums begin at 0 again",
    "rank": "global rank, from 0",
    "world_size": "number of ranks",
    "uuid": "optional: UUID of the GPU that the rank uses, as NVML prints it",
    "pod_uid": "optional: UID of the pod, if the launcher passed it on",
    "dtype": "optional: data type of the matrix products, for the peak that MFU refers to, such as bf16",
    "activity": "one of ACTIVITIES",
    "elapsed": "time since the timer was created",
    "since_step": "time since the last step ended, or since the timer was created",
    "steps": "completed steps",
    "step": "histogram of step time: {sum, counts}, counts for STEP_BUCKETS and above, not cumulative",
    "self": "optional: histogram of self time, which is step time without waiting for other ranks",
    "data_seconds": "time in the loader",
    "activity_seconds": "time by activity, of ACTIVITIES; training includes data",
    "phase_seconds": "time by phase of a step: forward, backward, optimizer, waiting, and the user's names",
    "tokens": "optional: tokens processed",
    "samples": "optional: samples processed",
    "flops": "optional: floating-point operations of the model, without recomputation",
}
