"""Why the exporter profiles a process."""

from __future__ import annotations

from enum import Enum


class ProfileReason(Enum):
    """Why a profile is taken, the most urgent first. `value` is the name in `--profile` and the label `reason`."""

    STALL = "stall"
    STRAGGLER = "straggler"
    HOST_BOUND = "host-bound"
    SCHEDULE = "schedule"
    # A person asked, with `gpu-exporter profile`; it is no reason to profile without being asked.
    REQUEST = "request"


AUTOMATIC = tuple(reason for reason in ProfileReason if reason is not ProfileReason.REQUEST)
