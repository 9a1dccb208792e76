"""What besides rates makes a GPU unfit: errors, throttling, a rate that drops, and what the check could not do."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpu_exporter.active_checks.history import CheckHistory
from gpu_exporter.active_checks.load import LoadExtremes
from gpu_exporter.active_checks.process import Answer
from gpu_exporter.active_checks.rates import Pair
from gpu_exporter.active_checks.run import CheckTarget, Outcome, Outcomes
from gpu_exporter.active_checks.verdicts import SUSTAINED_DROP, CheckResult, Counters, judge
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.verdict import Action, Health, Unknown, Verdict

TARGET = CheckTarget(0, "GPU-0", "0:1:0.0", "unknown")


def judged(
    outcome: Outcome | None = None,
    *,
    load: LoadExtremes | None = None,
    after: Mapping[Metric, float] | None = None,
    out_of_time: bool = False,
) -> CheckResult:
    """Return the result of one GPU with seven corrected errors before the check."""
    outcomes = Outcomes([outcome or Outcome(TARGET)], out_of_time=out_of_time)
    counters = Counters({0: {m.ECC_SBE_VOL: 7.0, m.ECC_DBE_VOL: 0.0}}, {0: after or {}})
    (result,) = judge(outcomes, {0: Gpu(0, "GPU-0")}, CheckHistory(), {0: load or LoadExtremes()}, counters)
    return result


def reasons(result: CheckResult) -> list[str]:
    """Return why a GPU is unfit."""
    return [problem.reason for problem in result.verdict.problems]


@pytest.mark.parametrize(
    ("after", "health"),
    [
        ({m.ECC_SBE_VOL: 7.0}, Health.HEALTHY),
        ({m.ECC_SBE_VOL: 9.0}, Health.DEGRADED),
        ({m.ECC_DBE_VOL: 1.0}, Health.UNHEALTHY),
        ({m.NVLINK_CRC: 5.0}, Health.HEALTHY),  # it was not read before
    ],
)
def test_errors_during_the_check(after: Mapping[Metric, float], health: Health) -> None:
    assert judged(after=after).verdict.health is health


@pytest.mark.parametrize(("mask", "found"), [(0x4, []), (0x40, ["hw_thermal_slowdown"]), (0x84, ["hw_power_brake"])])
def test_what_holds_the_clock_down(mask: int, found: list[str]) -> None:
    """The power limit does at full load; heat and the power supply must not."""
    load = LoadExtremes()
    load.take({m.CLOCK_EVENTS: float(mask), m.SM_CLOCK: 1695.0, m.POWER_INSTANT: 700.0})
    load.take({m.CLOCK_EVENTS: 0x41, m.SM_CLOCK: 345.0})  # idle: between two measurements
    assert reasons(judged(load=load)) == found
    assert (load.clock_low, load.clock_high, load.power) == (1695.0, 1695.0, 700.0)


@pytest.mark.parametrize(("last", "found"), [(870e12, []), (700e12, ["drops_under_load"])])
def test_a_rate_that_drops(last: float, found: list[str]) -> None:
    sustained = {"value": last, "first": 915e12, "last": last}
    assert reasons(judged(Outcome(TARGET, sustained=sustained))) == found


def test_too_little_time() -> None:
    """No GPU is blamed for it."""
    result = judged(out_of_time=True)
    assert result.verdict.health is Health.UNKNOWN
    assert result.verdict.unknown[0].why == "the time limit was too short: use a longer --timeout"


def failed(step: str = "fp32", **answer: object) -> Outcome:
    """Return the outcome of a GPU of which a step has failed."""
    return Outcome(TARGET, failed=(step, {"error": "it says why", **answer}))


@pytest.mark.parametrize(
    ("outcome", "reason", "action", "words"),
    [
        (failed(wrong=True), "wrong_result", Action.REPLACE, "wrong result: it says why"),
        (
            failed("open", hung=True),
            "active_check_hung",
            Action.NODE_REBOOT,
            "the GPU did not finish in time: start of CUDA",
        ),
        (
            failed(lost=True),
            "active_check_failed",
            Action.GPU_RESET,
            "the GPU failed: FP32 arithmetic: it says why",
        ),
        (
            failed("memory_test", crashed=True),
            "active_check_failed",
            Action.GPU_RESET,
            "the GPU failed: memory test: it says why",
        ),
    ],
)
def test_failures_of_the_gpu(outcome: Outcome, reason: str, action: Action, words: str) -> None:
    """It is unfit for work, and nothing is unknown."""
    verdict = judged(outcome).verdict
    (problem,) = verdict.problems
    assert (problem.reason, problem.action, problem.words, problem.health) == (reason, action, words, Health.UNHEALTHY)
    assert (problem.metric, problem.value) == (m.CHECK_PASSED, 0)
    assert verdict.unknown == ()


@pytest.mark.parametrize("answer", [{}, {"hung": False}, {"lost": False}, {"crashed": False}])
def test_failures_of_the_environment(answer: dict[str, object]) -> None:
    """They say nothing about the GPU."""
    verdict = judged(failed("sustained", **answer), out_of_time=True).verdict
    assert (verdict.health, verdict.problems) == (Health.UNKNOWN, ())
    assert verdict.unknown == (Unknown("active check: sustained load", "it says why"),)


@pytest.mark.parametrize(
    ("wrong", "what"), [(0, None), (1, "1 wrong word in 75 GiB of memory"), (9, "9 wrong words in 75 GiB of memory")]
)
def test_wrong_words_of_memory(wrong: int, what: str | None) -> None:
    words = [{"address": "0x10", "actual": "0x1", "expected": "0x2"}] * 2
    test = {"bytes": 75 << 30, "wrong": wrong, "words": words if wrong else []}
    found = judged(Outcome(TARGET, memory_test=test)).verdict.problems
    assert [problem.words for problem in found] == ([f"{what}, the first at 0x10 (0x1 instead of 0x2)"] if what else [])
    assert all((problem.action, problem.reason) == (Action.GPU_RESET, "memory_test") for problem in found)


def linked(
    pair: Pair, answer: Answer, *, links_error: str = "", failures: dict[int, Answer] | None = None
) -> list[Verdict]:
    """Return the verdicts of three GPUs of which a pair has this answer."""
    gpus = [Outcome(CheckTarget(index, f"GPU-{index}", "", "unknown")) for index in range(3)]
    for index, failure in (failures or {}).items():
        gpus[index].failed = "fp32", failure
    outcomes = Outcomes(gpus, {(0, 1): {"value": 1e9}, pair: answer}, links_error=links_error)
    results = judge(outcomes, {index: Gpu(index) for index in range(3)}, CheckHistory(), {}, Counters())
    return [result.verdict for result in results]


def test_copies_that_end_a_context() -> None:
    """Both GPUs are suspect; the third is not."""
    verdicts = linked((2, 0), {"error": "ILLEGAL_ADDRESS", "lost": True})
    for verdict in (verdicts[0], verdicts[2]):
        (problem,) = verdict.problems
        assert problem.words == "copies from GPU 2 to GPU 0: ILLEGAL_ADDRESS"
        assert (problem.reason, problem.action, problem.health) == ("broken_link", Action.GPU_RESET, Health.UNHEALTHY)
    assert verdicts[1] == Verdict(Gpu(1))
    assert all(not verdict.unknown for verdict in verdicts)


def test_copies_that_could_not_be_measured() -> None:
    """Unknown of the GPU that sends; if links could not be measured at all, of each GPU that has not failed."""
    verdicts = linked((2, 0), {"error": "no memory"})
    assert [verdict.unknown for verdict in verdicts] == [
        (),
        (),
        (Unknown("active check: copies to GPU 0", "no memory"),),
    ]
    verdicts = linked((1, 2), {"value": 1e9}, links_error="no peers", failures={1: {"error": "x", "wrong": True}})
    error = (Unknown("active check: copies between GPUs", "no peers"),)
    assert [verdict.unknown for verdict in verdicts] == [error, (), error]


def test_words_of_problems() -> None:
    """How much a counter has risen, and by how much the rate has fallen. Up to the limit, it is no problem."""
    (risen,) = judged(after={m.ECC_SBE_VOL: 9.0}).verdict.problems
    assert (risen.value, risen.words) == (2.0, "2 corrected ECC errors during the check")
    sustained = {"first": 100.0, "last": 80.0}
    (dropped,) = judged(Outcome(TARGET, sustained=sustained)).verdict.problems
    assert (dropped.value, dropped.words) == (80.0, "the tensor rate falls by 20 % under sustained load")
    assert not judged(
        Outcome(TARGET, sustained={"first": 128.0, "last": 128 * (1.001 - SUSTAINED_DROP)})
    ).verdict.problems
    assert not judged(Outcome(TARGET, sustained={"error": "x"})).verdict.problems
    assert 0.05 < SUSTAINED_DROP < 0.3


def test_a_result_has_what_was_measured() -> None:
    sustained, test = {"value": 1.0, "first": 1.0, "last": 1.0}, {"bytes": 1, "wrong": 0, "words": []}
    load = LoadExtremes(clock_low=1.0)
    outcome = Outcome(
        TARGET, alone={"bf16": {"value": 5.0, "notes": ["a note"]}}, sustained=sustained, memory_test=test
    )
    result = judged(outcome, load=load)
    assert (result.load, result.sustained, result.memory_test) == (load, sustained, test)
    assert (result.notes, [rated.value for rated in result.rates]) == (("a note",), [5.0])
    assert judged().notes == ()


def rated(
    index: int, copy: float, *, memory_test: Answer | None = None, failed: tuple[str, Answer] | None = None
) -> Outcome:
    """Return the outcome of a GPU of an unknown model."""
    target = CheckTarget(index, f"GPU-{index}", f"0:{index}:0.0", "unknown")
    return Outcome(target, alone={"memory_copy": {"value": copy}}, memory_test=memory_test, failed=failed)


def test_a_gpu_that_another_program_used() -> None:
    """It is not compared with others, nor they with it; only what that program cannot cause counts."""
    wrong = {"bytes": 2**30, "passes": 1, "wrong": 1, "words": [{"address": "0x0", "actual": "1", "expected": "0"}]}
    gpus = {index: Gpu(index, f"GPU-{index}") for index in range(2)}
    for rates, in_use, found in (
        ((3e12, 1e12), (), [[], ["slow_memory_copy"]]),
        ((3e12, 1e12), (1,), [[], []]),
        ((1e12, 3e12), (1,), [[], []]),
    ):
        outcomes = Outcomes([rated(index, rate) for index, rate in enumerate(rates)])
        results = judge(outcomes, gpus, CheckHistory(), {}, Counters(), in_use)
        assert [reasons(result) for result in results] == found
        assert [result.comparable for result in results] == [True, rates[0] < rates[1] or not in_use]
    (result,) = judge(Outcomes([rated(0, 1e12, memory_test=wrong)]), gpus, CheckHistory(), {}, Counters(), (0,))
    assert (reasons(result), result.comparable) == (["memory_test"], True)
    hung = rated(0, 1e12, failed=("bf16", {"error": "no answer", "hung": True}))
    (result,) = judge(Outcomes([hung]), gpus, CheckHistory(), {}, Counters(), (0,))
    assert (reasons(result), result.comparable, result.verdict.health) == ([], False, Health.UNKNOWN)
