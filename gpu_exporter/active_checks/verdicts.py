"""What the results of an active check mean for each GPU. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_exporter.active_checks.history import CheckHistory
from gpu_exporter.active_checks.load import LoadExtremes
from gpu_exporter.active_checks.process import Answer
from gpu_exporter.active_checks.rates import Rated, Rates
from gpu_exporter.active_checks.run import Outcome, Outcomes
from gpu_exporter.catalogue import faults
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.capabilities import Quantity
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.verdict import Action, Health, Problem, Unknown, Verdict
from gpu_exporter.reports.numbers import binary_size, percent

# Counters that must not rise while a GPU is tested, with their name in a sentence.
COUNTERS: Mapping[Metric, tuple[str, Health]] = {
    m.ECC_DBE_VOL: ("uncorrectable ECC errors", Health.UNHEALTHY),
    m.ECC_SBE_VOL: ("corrected ECC errors", Health.DEGRADED),
    m.NVLINK_REPLAY: ("NVLink replays", Health.DEGRADED),
    m.NVLINK_RECOVERY: ("NVLink recoveries", Health.DEGRADED),
    m.NVLINK_CRC: ("NVLink CRC errors", Health.DEGRADED),
}
# Problems that another program on the GPU cannot cause.
OF_GPU_ALONE = frozenset({"wrong_result", "memory_test", "errors_under_load", "active_check_failed"})
# A tensor rate that falls by more than this share while the GPU warms up is a problem of its cooling or its power.
SUSTAINED_DROP = 0.15


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found out about one GPU. `comparable`: no other program lowered its rates."""

    verdict: Verdict
    rates: tuple[Rated, ...] = ()
    load: LoadExtremes = field(default_factory=LoadExtremes)
    memory_test: Answer | None = None
    sustained: Answer | None = None
    notes: tuple[str, ...] = ()
    comparable: bool = True


@dataclass(frozen=True, slots=True)
class Counters:
    """The values of each GPU before and after the check, by index."""

    before: Mapping[int, Mapping[Metric, float]] = field(default_factory=dict)
    after: Mapping[int, Mapping[Metric, float]] = field(default_factory=dict)


def judge(
    outcomes: Outcomes,
    gpus: Mapping[int, Gpu],
    history: CheckHistory,
    loads: Mapping[int, LoadExtremes],
    counters: Counters,
    in_use: Collection[int] = (),
) -> list[CheckResult]:
    """Return the result of each GPU, in the order of `outcomes`.

    `in_use` are the GPUs that another program used. Nothing is compared with them, and they are not blamed for what
    that program may have caused.
    """
    every, alone = Rates(outcomes, history), _without(outcomes, in_use)
    rates = Rates(alone, history) if in_use else every
    results = []
    for outcome in outcomes.gpus:
        index = outcome.target.index
        used = index in in_use
        of_gpu = every if used else rates
        load = loads.get(index, LoadExtremes())
        problems = (
            *_failed(outcome),
            *_broken_links(outcomes if used else alone, index),
            *_wrong_words(outcome),
            *of_gpu.problems(index),
            *_risen(counters.before.get(index, {}), counters.after.get(index, {})),
            *_held_down(load),
            *_dropped(outcome.sustained),
        )
        blamed = tuple(problem for problem in problems if not used or problem.reason in OF_GPU_ALONE)
        comparable = len(blamed) == len(problems)
        unknown = list(_unknown(outcome, outcomes if used else alone))
        if not comparable:
            unknown.append(Unknown("active check", "another program used the GPU meanwhile"))
        verdict = Verdict(gpus[index], blamed, tuple(unknown))
        notes = tuple(outcome.alone.get(Quantity.BF16.value, {}).get("notes", ()))
        made = CheckResult(
            verdict, of_gpu.rated(index), load, outcome.memory_test, outcome.sustained, notes, comparable
        )
        results.append(made)
    return results


def _without(outcomes: Outcomes, in_use: Collection[int]) -> Outcomes:
    """Return the outcomes without those of GPUs that are in use and of their links."""
    return replace(
        outcomes,
        gpus=[outcome for outcome in outcomes.gpus if outcome.target.index not in in_use],
        pairs={pair: answer for pair, answer in outcomes.pairs.items() if not {*pair} & {*in_use}},
    )


def _failed(outcome: Outcome) -> Iterator[Problem]:
    """Yield what a failed step says about the GPU itself; `_unknown` has what says nothing about it."""
    if outcome.failed is None:
        return
    step, answer = outcome.failed
    what = _WORDS.get(step, step)
    if answer.get("wrong"):
        words = f"wrong result: {answer['error']}"
        yield Problem(m.CHECK_PASSED, 0, words, Action.REPLACE, "wrong_result", Health.UNHEALTHY)
    elif answer.get("hung"):
        words = f"the GPU did not finish in time: {what}"
        yield Problem(m.CHECK_PASSED, 0, words, Action.NODE_REBOOT, "active_check_hung", Health.UNHEALTHY)
    elif answer.get("lost") or answer.get("crashed"):
        words = f"the GPU failed: {what}: {answer['error']}"
        yield Problem(m.CHECK_PASSED, 0, words, Action.GPU_RESET, "active_check_failed", Health.UNHEALTHY)


_WORDS = {
    "open": "start of CUDA",
    "memory_test": "memory test",
    "sustained": "sustained load",
    **{quantity.value: quantity.words for quantity in Quantity},
}


def _broken_links(outcomes: Outcomes, index: int) -> Iterator[Problem]:
    """Yield the copies from or to a GPU that hung or ended its context. Which of the two is faulty is not known."""
    for (source, target), answer in outcomes.pairs.items():
        if index in (source, target) and _of_gpu(answer):
            words = f"copies from GPU {source} to GPU {target}: {answer['error']}"
            yield Problem(m.CHECK_PASSED, 0, words, Action.GPU_RESET, "broken_link", Health.UNHEALTHY)


def _unknown(outcome: Outcome, outcomes: Outcomes) -> Iterator[Unknown]:
    """Yield what could not be measured, although the GPU is not known to be faulty."""
    if outcomes.out_of_time and outcome.failed is None:
        yield Unknown("active check", "the time limit was too short: use a longer --timeout")
    if outcomes.links_error and outcome.failed is None:
        yield Unknown("active check: copies between GPUs", outcomes.links_error)
    for (source, target), answer in outcomes.pairs.items():
        if source == outcome.target.index and "error" in answer and not _of_gpu(answer):
            yield Unknown(f"active check: copies to GPU {target}", str(answer["error"]))
    if outcome.failed is not None and not _of_gpu(outcome.failed[1]):
        step, answer = outcome.failed
        yield Unknown(f"active check: {_WORDS.get(step, step)}", str(answer["error"]))


def _of_gpu(answer: Answer) -> bool:
    """Return whether a failure says something about the GPU, rather than about the environment of the check."""
    return any(answer.get(kind) for kind in ("wrong", "hung", "crashed", "lost"))


def _wrong_words(outcome: Outcome) -> Iterator[Problem]:
    test = outcome.memory_test
    if test is None or not test.get("wrong"):
        return
    first: Mapping[str, Any] = test["words"][0]
    what = "1 wrong word" if test["wrong"] == 1 else f"{test['wrong']} wrong words"
    words = (
        f"{what} in {binary_size(test['bytes'])} of memory, the first at {first['address']}"
        f" ({first['actual']} instead of {first['expected']})"
    )
    yield Problem(m.CHECK_PASSED, 0, words, Action.GPU_RESET, "memory_test", Health.UNHEALTHY)


def _risen(before: Mapping[Metric, float], after: Mapping[Metric, float]) -> Iterator[Problem]:
    for metric, (words, health) in COUNTERS.items():
        rise = after.get(metric, 0) - before.get(metric, float("inf"))
        if rise > 0:
            yield Problem(
                metric, rise, f"{rise:.0f} {words} during the check", Action.DRAIN, "errors_under_load", health
            )


def _held_down(load: LoadExtremes) -> Iterator[Problem]:
    for bit, fault in faults.CLOCK_EVENTS.items():
        if load.events >> bit & 1:
            yield Problem(m.CLOCK_EVENTS, load.events, fault.words, fault.action, fault.reason, fault.health)


def _dropped(sustained: Answer | None) -> Iterator[Problem]:
    if sustained is None or "last" not in sustained:
        return
    drop = 1 - sustained["last"] / sustained["first"]
    if drop > SUSTAINED_DROP:
        words = f"the tensor rate falls by {percent(drop)} under sustained load"
        yield Problem(m.CHECK_RATE, sustained["last"], words, Action.DRAIN, "drops_under_load", Health.DEGRADED)
