"""Which rank is slow, and in which part of the step: a simple comparison of the messages of training loops. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

# A rank is named if its self time is this many MADs, and this share of the step time, above the median. The floor of
# the MAD, also a share of the step time, keeps noise from singling out one of several equal ranks.
MOST_MADS, MAD_FLOOR, LEAST_SHARE = 3.5, 0.01, 0.05
PARTS = ("data", "forward", "backward", "optimizer", "rest")
FEW_RANKS, LEAST_SHARE_OF_FEW = 4, 0.2
# A slow GPU is slow in all that it computes: both passes have at least this share of the larger excess.
COMPUTE = ("forward", "backward")
GPU_SHARE = 0.2
# A part is named if it explains this share of the excess. Phases that contain waiting, as with FSDP, do not.
EXPLAINED = 0.5
UNKNOWN = "unknown"


def parts_of(message: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds per step of a rank by part, without waiting; `self` and `step` are their sums."""
    count = max(sum(message["step"]["counts"]), 1)
    phases, own = message["phase_seconds"], message.get("self")
    step = message["step"]["sum"] / count
    found = {name: phases.get(name, 0.0) / count for name in PARTS[1:-1]}
    found["data"] = message["data_seconds"] / count
    found["waiting"] = phases.get("waiting", 0.0) / count
    found["rest"] = max(step - sum(found.values()), 0.0)
    return {**found, "step": step, "self": own["sum"] / max(sum(own["counts"]), 1) if own else float("nan")}


def outlier(values: Mapping[int, float], step: float) -> int | None:
    """Return the rank that is slower than the others by a material part of a step; None if none is."""
    if any(value != value for value in values.values()) or len(values) < 2:
        return None
    slowest, middle = max(values, key=lambda rank: values[rank]), median(values.values())
    if len(values) < FEW_RANKS:
        return slowest if values[slowest] - min(values.values()) > LEAST_SHARE_OF_FEW * step else None
    spread = 1.4826 * median(abs(value - middle) for value in values.values()) + MAD_FLOOR * step
    excess = values[slowest] - middle
    return slowest if excess > MOST_MADS * spread and excess > LEAST_SHARE * step else None


def verdict(parts: Mapping[int, Mapping[str, float]]) -> tuple[int | None, str]:
    """Return the straggler among ranks and the part in which it is slow: UNKNOWN if none explains it.

    (None, "") if there is no straggler, (None, UNKNOWN) if the self time of a rank is not known.
    """
    step = median(of_rank["step"] for of_rank in parts.values())
    own = {rank: of_rank["self"] for rank, of_rank in parts.items()}
    if any(value != value for value in own.values()):
        return None, UNKNOWN
    slow = outlier(own, step)
    if slow is None:
        return None, ""
    usual = {name: median(of_rank[name] for rank, of_rank in parts.items() if rank != slow) for name in PARTS}
    excess = {name: parts[slow][name] - usual[name] for name in PARTS}
    worst = max(excess, key=lambda name: excess[name])
    of_gpu = worst in COMPUTE and all(excess[name] > GPU_SHARE * excess[worst] for name in COMPUTE)
    explained = sum(excess[name] for name in COMPUTE) if of_gpu else excess[worst]
    if explained < EXPLAINED * (own[slow] - median(own[rank] for rank in own if rank != slow)):
        return slow, UNKNOWN
    return slow, "gpu" if of_gpu else worst
