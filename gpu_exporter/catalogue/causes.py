"""The vocabulary of causes: where GPU time goes, and what classes and failure modes blame.

The first seven are the shares of a GPU's time, in order of precedence (see `time_shares.py`).
"""

from __future__ import annotations

from enum import Enum


class Cause(Enum):
    """Why a GPU does not do useful work, or that it does. `value` is the label `cause`."""

    NO_PROCESS = "no_process"
    THROTTLED = "throttled"
    PEERS = "peers"
    COPIES = "copies"
    HOST = "host"
    UNDERFILLED = "underfilled"
    USEFUL = "useful"
    # Without a share of the time.
    FAULT = "fault"
    CAPACITY = "capacity"

    @property
    def is_loss(self) -> bool:
        """Whether GPU time of this cause is lost."""
        return self not in (Cause.USEFUL, Cause.FAULT, Cause.CAPACITY)

    @property
    def is_waste(self) -> bool:
        """Whether GPU time of this cause is wasted: lost, and not while a kernel runs that leaves SMs empty."""
        return self.is_loss and self is not Cause.UNDERFILLED


WORDS = {
    Cause.NO_PROCESS: "no process",
    Cause.THROTTLED: "throttled",
    Cause.PEERS: "waiting for other ranks",
    Cause.COPIES: "copying data while no kernel runs",
    Cause.HOST: "waiting for the host",
    Cause.UNDERFILLED: "SMs empty while a kernel runs",
    Cause.USEFUL: "SMs working",
    Cause.FAULT: "a fault of the hardware, or of its monitoring",
    Cause.CAPACITY: "memory or GPUs are short, or held without use",
}
# How the shares are drawn: orange waits for others, green is good.
COLOURS = {
    Cause.NO_PROCESS: "#9e7761",
    Cause.THROTTLED: "#d64fb8",
    Cause.PEERS: "#d87600",
    Cause.COPIES: "#e7a4ff",
    Cause.HOST: "#186ad2",
    Cause.UNDERFILLED: "#f6de28",
    Cause.USEFUL: "#73bf69",
}
SHARES = tuple(Cause)[:7]
# GPUs that lose a smaller share of their time are not reported as losing time, and ranks that wait less, as waiting.
LEAST_LOSS = 0.1
# What an incident costs: time that its own GPUs waste, and time in which ranks that it holds up wait for them.
OWN_CAUSES = tuple(cause for cause in SHARES if cause.is_waste and cause is not Cause.PEERS)


class TraceCause(Enum):
    """Why a GPU is idle for a moment, according to a profiler trace. `value` is the text in the JSON."""

    DATA_LOADING = "data_loading"
    SYNCHRONISATION = "synchronisation"
    LAUNCH_OVERHEAD = "launch_overhead"
    CHECKPOINT = "checkpoint"
    COMPILATION = "compilation"
    GARBAGE_COLLECTION = "garbage_collection"
    ALLOCATION = "allocation"
    PYTHON = "python"
    COPIES = "copies"
    DEPENDENCY = "dependency"
    COLLECTIVES = "collectives"
    UNKNOWN = "unknown"


TRACE_WORDS = {
    TraceCause.DATA_LOADING: "waiting for the data loader",
    TraceCause.SYNCHRONISATION: "after the host waited for the GPU (synchronisation)",
    TraceCause.LAUNCH_OVERHEAD: "waiting for kernel launches",
    TraceCause.CHECKPOINT: "writing or reading a checkpoint",
    TraceCause.COMPILATION: "compiling or loading kernels",
    TraceCause.GARBAGE_COLLECTION: "collecting garbage in Python",
    TraceCause.ALLOCATION: "allocating or freeing memory of the GPU",
    TraceCause.PYTHON: "running other code on the host",
    TraceCause.COPIES: "waiting for copies to start",
    TraceCause.DEPENDENCY: "waiting although its next work had been launched",
    TraceCause.COLLECTIVES: "waiting for other ranks in a collective",
    TraceCause.UNKNOWN: "for a reason that the trace does not show",
}
# What a thread of the host does, according to its stack.
STACK_WORDS = TRACE_WORDS | {
    TraceCause.SYNCHRONISATION: "waiting for the GPU (synchronisation)",
    TraceCause.PYTHON: "running other code",
    TraceCause.UNKNOWN: "in no frame",
}
# What a thread of a child process does, such as one of a data loader.
WORKER_WORDS = STACK_WORDS | {TraceCause.DATA_LOADING: "loading data"}
