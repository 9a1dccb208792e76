"""Where the time of GPUs went, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpu_exporter.catalogue.causes import LEAST_LOSS, SHARES, WORDS, Cause
from gpu_exporter.catalogue.roofline import NEAR_BEST, Headroom, Position
from gpu_exporter.reports.numbers import gpu_hours, percent

# Shares below this are not printed.
LEAST_SHARE = 0.01
HOURS_PER_DAY = 24
TimeShares = Mapping[Cause, float]


def lost(shares: TimeShares) -> float:
    """Return the share of the time that was lost."""
    return sum(share for cause, share in shares.items() if cause.is_loss)


def as_json(shares: TimeShares) -> dict[str, float]:
    """Return shares for JSON."""
    return {cause.value: round(share, 4) for cause, share in shares.items()}


def mean_shares(of_gpus: Sequence[TimeShares]) -> TimeShares:
    """Return the mean shares of GPUs; none if those of no GPU are known."""
    known = [shares for shares in of_gpus if shares]
    whole = gpus(known)
    return {cause: sum(shares[cause] for shares in known) / whole for cause in SHARES} if whole else {}


def gpus(of_gpus: Iterable[TimeShares]) -> float:
    """Return how many GPUs these are. The shares of the time of a MIG instance add up to its share of a GPU."""
    return sum(sum(shares.values()) for shares in of_gpus)


def breakdown(of_gpus: Sequence[TimeShares]) -> str:
    """Return the mean shares of GPUs, the largest first: 51 % waiting for other ranks, 45 % SMs working."""
    largest = sorted(((share, cause) for cause, share in mean_shares(of_gpus).items()), key=lambda of: -of[0])
    return ", ".join(f"{percent(share)} {WORDS[cause]}" for share, cause in largest if share >= LEAST_SHARE)


def limits(headroom: Headroom) -> str:
    """Return how close a GPU is to the limits of its chip: 33 % of tensor peak, 61 % of memory peak."""
    texts = [f"{percent(headroom.tensor)} of tensor peak", f"{percent(headroom.memory)} of memory peak"]
    if headroom.pipes > max(headroom.tensor, headroom.memory):
        texts.append(f"{percent(headroom.pipes)} of the peak of another arithmetic pipe")
    return ", ".join(texts)


def achieved(position: Position) -> str:
    """Return what a GPU achieves of what it can reach, and what that says about the size of the batch."""
    basis = "this GPU reached in its last active check" if position.checked else "its model reaches"
    assumed = "" if position.measured or position.checked else ", which is assumed from the data sheet"
    shares = f"tensor cores {percent(position.tensor)}, memory {percent(position.memory)}"
    return f"{shares} of what {basis}{assumed}. {batch_advice(position)}".strip()


def batch_advice(position: Position) -> str:
    """Return what to do with the batch size, as a sentence; empty if the position does not tell."""
    if position.batch:
        return (
            f"A batch up to {position.batch:.2g} times as large takes little longer, if the memory traffic is that of "
            "weights (decoding); otherwise fuse kernels."
        )
    if position.tensor >= NEAR_BEST and position.tensor >= position.memory:
        return "A larger batch takes longer in proportion."
    return ""


def no_limit(headroom: Headroom | None) -> str:
    """Return how close a GPU that reaches no limit is to its limits, and what to do; empty for others."""
    if headroom is None or headroom.limited_by:
        return ""
    return f"at no limit of the chip: {limits(headroom)}. {next_step(headroom)}"


def next_step(headroom: Headroom) -> str:
    """Return what to do when no limit is reached, as far as the values suggest it, as a sentence."""
    if headroom.tensor >= max(headroom.memory, headroom.pipes):
        return "Look at the kernels between the matrix products, and at the shapes of these, in a profiler trace."
    if headroom.memory >= headroom.pipes:
        return "Memory-bound kernels seem to alternate with others: fuse them (torch.compile). See a profiler trace."
    return "Other instructions, such as index arithmetic, seem to take time: see which in a profiler trace."


def summary(of_gpus: Sequence[TimeShares], price: float | None = None) -> Iterator[str]:
    """Yield lines on where the time of all GPUs went and what was lost, in GPU-hours and, with a price, in money."""
    known = [shares for shares in of_gpus if shares]
    if not known:
        return
    yield f"Where the GPU time went: {breakdown(known)}."
    lost_gpus, whole = sum(lost(shares) for shares in known), gpus(known)
    if lost_gpus < LEAST_LOSS * whole:
        return
    average = f"{lost_gpus:.1f} of {round(whole, 1):g} GPUs on average"
    yield f"Lost: {average}. In a day, that would be {gpu_hours(lost_gpus * HOURS_PER_DAY, price)}."
