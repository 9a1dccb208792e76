"""What limits a job, by the largest share of lost time, and the sentence that says so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_exporter.catalogue.causes import TRACE_WORDS, TraceCause
from gpu_exporter.reports.numbers import duration, percent
from gpu_exporter.traces.result import RankResult, Straggler, TraceClass

# Communication is divided into transfer and waiting where the ranks can be compared.
EXPOSED_COMMUNICATION, EXPOSED_COPIES = "exposed_communication", "exposed_copies"
EXPOSED_TRANSFER, EXPOSED_WAITING = "exposed_transfer", "exposed_waiting"
CLASSES = {
    TraceCause.DATA_LOADING.value: TraceClass.DATA_LOADING,
    TraceCause.SYNCHRONISATION.value: TraceClass.SYNC,
    TraceCause.LAUNCH_OVERHEAD.value: TraceClass.LAUNCH,
    TraceCause.CHECKPOINT.value: TraceClass.CHECKPOINT,
    TraceCause.COPIES.value: TraceClass.COPY,
    EXPOSED_COPIES: TraceClass.COPY,
    EXPOSED_COMMUNICATION: TraceClass.COMMUNICATION,
    EXPOSED_TRANSFER: TraceClass.COMMUNICATION,
}
WORDS = {cause.value: words for cause, words in TRACE_WORDS.items()} | {
    EXPOSED_COMMUNICATION: "communicating while nothing computes",
    EXPOSED_TRANSFER: "transferring data between GPUs while nothing computes",
    EXPOSED_WAITING: "waiting in collectives for the rank that comes last",
    EXPOSED_COPIES: "copying while no kernel runs",
}
LEAST_MENTIONED = 0.02


@dataclass(frozen=True)
class Thresholds:
    """When a verdict is given, as ratios.

    `least_share`: of the span, what the largest loss must take to name the class. `compute_bound`: below this loss in
    all, the job is compute-bound. `straggler`: of a step, by how much a rank must be slower than the others.
    """

    least_share: float = 0.2
    compute_bound: float = 0.2
    straggler: float = 0.1


def losses(ranks: Sequence[RankResult]) -> dict[str, float]:
    """Return the share of the GPUs' time that each cause takes, over all ranks, the largest first."""
    total = sum(rank.span_seconds for rank in ranks)
    lost: defaultdict[str, float] = defaultdict(float)
    for rank in ranks:
        for cause in rank.idle_causes:
            lost[cause.cause] += cause.seconds
        if rank.exposed_transfer_seconds is None:
            lost[EXPOSED_COMMUNICATION] += rank.exposed_communication_seconds
        else:
            lost[EXPOSED_TRANSFER] += rank.exposed_transfer_seconds
            lost[EXPOSED_WAITING] += rank.exposed_waiting_seconds or 0.0
        lost[EXPOSED_COPIES] += rank.exposed_copy_seconds
    return {cause: seconds / total for cause, seconds in _ordered(lost) if seconds > 0} if total else {}


def _ordered(lost: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(lost.items(), key=lambda item: -item[1])


def blamed(ranks: Sequence[RankResult]) -> dict[str, float]:
    """Return the same with waiting counted for what the rank did that the others waited for, where that has a class."""
    lost = defaultdict(float, losses(ranks))
    total = sum(rank.span_seconds for rank in ranks)
    for waiting in (waiting for rank in ranks for waiting in rank.waiting if waiting.cause in CLASSES):
        lost[waiting.cause] += waiting.seconds / total
        lost[EXPOSED_WAITING] -= waiting.seconds / total
    return dict(lost)


def class_of(lost: Mapping[str, float], straggler: Straggler | None, thresholds: Thresholds) -> TraceClass:
    """Return the class of a job from the shares of its lost time. Causes without a class leave it mixed.

    `straggler` is one that outweighs the other losses.
    """
    if straggler:
        return TraceClass.STRAGGLER
    if sum(lost.values()) < thresholds.compute_bound:
        return TraceClass.COMPUTE
    largest, share = max(_by_class(lost).items(), key=lambda item: item[1])
    return largest if isinstance(largest, TraceClass) and share >= thresholds.least_share else TraceClass.MIXED


def _by_class(lost: Mapping[str, float]) -> Mapping[TraceClass | str, float]:
    by_class: defaultdict[TraceClass | str, float] = defaultdict(float)
    for cause, share in lost.items():
        by_class[CLASSES.get(cause, cause)] += share
    return by_class


def outweighs(straggler: Straggler, ranks: Sequence[RankResult]) -> bool:
    """Return whether the others lose more time by waiting for a straggler than for any other reason."""
    others = [rank for rank in ranks if rank.rank != straggler.rank]
    lost = losses(others)
    lost.pop(EXPOSED_WAITING, None)
    waits = [waiting.seconds for rank in others for waiting in rank.waiting if waiting.rank == straggler.rank]
    return sum(waits) / sum(rank.span_seconds for rank in others) >= max(_by_class(lost).values(), default=0.0)


def because(
    ranks: Sequence[RankResult], lost: Mapping[str, float], straggler: Straggler | None, is_main: bool = True
) -> str:
    """Return one sentence with the numbers that the class rests on. `is_main`: the straggler is the largest loss."""
    total = sum(rank.span_seconds for rank in ranks)
    busy = sum(rank.busy_ratio * rank.span_seconds for rank in ranks) / total
    parts = [
        f"{percent(share)} {WORDS[cause]}{_where(ranks, cause)}"
        for cause, share in lost.items()
        if share >= LEAST_MENTIONED
    ]
    what = "the GPU was" if len(ranks) == 1 else f"the {len(ranks)} GPUs were"
    text = f"{what} busy {percent(busy)} of {duration(total / len(ranks))}"
    text += f"; of the time, {', '.join(parts)}" if parts else ""
    if straggler:
        slow = f"rank {straggler.rank} makes the others wait {duration(straggler.excess_seconds)} per step"
        slow += f", because its {'GPU computes longer' if straggler.kind == 'gpu' else 'host is slower'}"
        slow += f" ({straggler.frames[0]})" if straggler.frames else ""
        text = f"{slow}; {text}" if is_main else f"{text}; besides, {slow}"
    return text


def _where(ranks: Sequence[RankResult], cause: str) -> str:
    """Return the most costly frame of a cause in parentheses; of waiting, for which rank and why."""
    if cause == EXPOSED_WAITING:
        return _for_whom(ranks)
    found = [of for rank in ranks for of in _framed(rank, cause) if of[1]]
    return f" ({max(found)[1][0]})" if found else ""


def _for_whom(ranks: Sequence[RankResult]) -> str:
    longest = max((waiting for rank in ranks for waiting in rank.waiting), key=lambda of: of.seconds, default=None)
    if longest is None or longest.rank is None:
        return ""
    return f" (the longest for rank {longest.rank}{waiting_words(longest.cause)})"


def waiting_words(cause: str) -> str:
    """Return why a rank came last to collectives, to follow its number; "" if that is not known."""
    words = {"compute": "whose GPU computed longer", EXPOSED_COPIES: "which copied longer"}
    if cause in words:
        return f", {words[cause]}"
    return f", which spent longer {WORDS[cause]}" if cause else ""


def _framed(rank: RankResult, cause: str) -> list[tuple[float, tuple[str, ...]]]:
    """Return the seconds of a cause on a GPU with its frames."""
    if cause == EXPOSED_COPIES:
        return [(rank.exposed_copy_seconds, rank.copy_frames)]
    if cause in (EXPOSED_COMMUNICATION, EXPOSED_TRANSFER):
        return [(rank.exposed_communication_seconds, rank.communication_frames)]
    return [(of.seconds, of.frames) for of in rank.idle_causes if of.cause == cause]
