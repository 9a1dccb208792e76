"""Why the exporter profiles a process without being asked."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """Why a profile is taken, the most urgent first. `value` is the name in `--profile` and the label `reason`."""

    STALL = "stall"
    STRAGGLER = "straggler"
    HOST_BOUND = "host-bound"
    SCHEDULE = "schedule"
