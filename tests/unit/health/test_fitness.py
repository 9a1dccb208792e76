"""Verdicts: values that no healthy GPU has, and values that are unknown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.faults import pcie_capacity
from gpu_exporter.health import check, fitness
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.metric import Gpm, Metric
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.verdict import Action, Health, Problem, Verdict

GPU = Gpu(0, uuid="GPU-0", model="NVIDIA H200")
NONE = "not_supported"
H200: Mapping[Metric, float | str] = {
    m.ECC_MODE: 1,
    m.ECC_DBE_VOL: 0,
    m.REMAP_PENDING: 0,
    m.REMAP_FAILURE: 0,
    m.RECOVERY: 0,
    m.RETIRED_PENDING: NONE,
}


def snapshot(*gpus: tuple[Gpu, Mapping[Metric, float | str] | str], expected: int = 0) -> Snapshot:
    """Return a snapshot of GPUs with values and outcomes (text), or down for a reason."""
    found = []
    for gpu, values in gpus:
        if isinstance(values, str):
            found.append(fitness.judge(GpuStatus(gpu, up=False, reason=values), {}, str))
            continue
        known = {metric: value for metric, value in values.items() if not isinstance(value, str)}
        outcomes = {metric: value for metric, value in values.items() if isinstance(value, str)}
        found.append(
            fitness.judge(GpuStatus(gpu, up=True), known, defaultdict(lambda: "not_read", outcomes).__getitem__)
        )
    status = tuple(GpuStatus(verdict.gpu, up=True) for verdict in found)
    return Snapshot(1.0, "nvml", (Sample(Series(m.EXPECTED), expected),), status, verdicts=tuple(found))


def of(values: Mapping[Metric, float | str] | str) -> Verdict:
    """Return the verdict on one GPU."""
    [found] = snapshot((GPU, values)).verdicts
    return found


def test_healthy() -> None:
    """Earlier errors of the board are no current fault, nor are rows that were remapped successfully."""
    assert of({**H200, m.ECC_DBE_AGG: 7, m.REMAP_UNCORRECTABLE: 2, m.ECC_SBE_VOL: 9}) == Verdict(GPU)
    assert Verdict(GPU).health is Health.HEALTHY
    assert Verdict(GPU).action is Action.NONE


@pytest.mark.parametrize(
    ("values", "action", "said"),
    [
        ({m.ECC_DBE_VOL: 3}, Action.GPU_RESET, ["3 uncorrectable ECC errors since the driver was loaded"]),
        ({m.REMAP_FAILURE: 1}, Action.REPLACE, ["could not be replaced"]),
        ({m.SRAM_EXCEEDED: 1}, Action.REPLACE, ["SRAM has more uncorrectable errors"]),
        ({m.RECOVERY: 1}, Action.GPU_RESET, ["requests a reset"]),
        ({m.RECOVERY: 2}, Action.NODE_REBOOT, ["requests a reboot"]),
        ({m.RECOVERY: 3}, Action.DRAIN, ["a drain of peer-to-peer traffic"]),
        ({m.RECOVERY: 4}, Action.DRAIN, ["a drain and a reset of this GPU"]),
        ({m.RECOVERY: 5}, Action.DRAIN, ["a recovery of the IMEX domain"]),
        ({m.RECOVERY: 6}, Action.GPU_RESET, ["a bus reset"]),
        ({m.RECOVERY: 7}, Action.NODE_REBOOT, ["a power cycle or reboot"]),
        ({m.RECOVERY: 12}, Action.DRAIN, ["recovery action 12, which this version"]),
        ({m.REMAP_FAILURE: 1, m.RECOVERY: 1}, Action.REPLACE, ["could not be replaced", "requests a reset"]),
        ({m.ECC_DBE_VOL: 1, m.REMAP_PENDING: 1}, Action.GPU_RESET, ["1 uncorrectable", "at the next reset"]),
    ],
)
def test_unhealthy(values: Mapping[Metric, float], action: Action, said: list[str]) -> None:
    """Each fault has its text and its repair; the most severe repair counts."""
    found = of({**H200, **values})
    assert found.health is Health.UNHEALTHY
    assert found.action is action
    assert [part in problem.words for part, problem in zip(said, found.problems, strict=True)] == [True] * len(said)
    assert {problem.metric: problem.value for problem in found.problems} == values


LINK = {
    **{m.GPU_UTIL: 90, m.PCIE_GEN: 5, m.PCIE_WIDTH: 16, m.PCIE_MAX_GEN: 5, m.PCIE_MAX_WIDTH: 16},
    m.PCIE_EXPECTED: pcie_capacity(5, 16),
}
IN_FABRIC = {m.FABRIC: 3, m.NVLINK_COUNT: 18, m.NVLINK_UP: 18, m.NVLINK_EXPECTED: 18}


@pytest.mark.parametrize(
    ("values", "reason", "action", "said"),
    [
        (
            {m.REMAP_PENDING: 1},
            "row_remap_pending",
            Action.GPU_RESET,
            "a bad memory row will be replaced at the next reset",
        ),
        (
            {m.RETIRED_PENDING: 1},
            "retired_pages_pending",
            Action.NODE_REBOOT,
            "bad memory pages will be retired at the next reboot",
        ),
        ({m.INFOROM: 0}, "inforom_corrupt", Action.REPLACE, "flash it"),
        ({m.CLOCK_EVENTS: 0x40}, "hw_thermal_slowdown", Action.NONE, "too hot"),
        ({m.CLOCK_EVENTS: 0x80 | 0x4}, "hw_power_brake", Action.NONE, "power supply"),
        (
            {m.TEMP_MARGIN: 3},
            "low_thermal_margin",
            Action.NONE,
            "it is 3 °C below its temperature limit",
        ),
        (
            {m.TEMP_MARGIN: -2, m.GPU_TEMP: 90},
            "low_thermal_margin",
            Action.NONE,
            "it is 2 °C above its temperature limit",
        ),
        ({m.GPU_TEMP: 88, m.SLOWDOWN_TEMP: 89}, "low_thermal_margin", Action.NONE, "it is 1 °C below its temperature"),
        ({**LINK, m.PCIE_GEN: 3}, "pcie_link_degraded", Action.NODE_REBOOT, "at 25 % of the capacity"),
        ({**LINK, m.PCIE_WIDTH: 8}, "pcie_link_degraded", Action.NODE_REBOOT, "at 50 % of the capacity"),
        ({**LINK, m.PCIE_WIDTH: 8, m.PCIE_GEN: 4}, "pcie_link_degraded", Action.NODE_REBOOT, "at 25 %"),
        ({m.FABRIC: 2}, "fabric_not_ready", Action.NONE, "nvidia-fabricmanager"),
        ({**IN_FABRIC, m.NVLINK_UP: 16}, "nvlink_down", Action.GPU_RESET, "2 of its NVLinks"),
    ],
)
def test_degraded(values: Mapping[Metric, float], reason: str, action: Action, said: str) -> None:
    """A running job survives these faults, but no new job should start."""
    found = of({**H200, **values})
    assert found.health is Health.DEGRADED
    [problem] = found.problems
    assert (problem.reason, problem.action) == (reason, action)
    assert said in problem.words


@pytest.mark.parametrize(
    "values",
    [
        {**LINK, m.GPU_UTIL: 0, m.PCIE_GEN: 1},
        {**LINK, m.GPU_UTIL: 49, m.PCIE_WIDTH: 8},
        LINK,
        {**LINK, m.PSTATE: 5, m.PCIE_GEN: 1},
        {**LINK, m.PCIE_WIDTH: 8, m.PCIE_EXPECTED: pcie_capacity(5, 8)},
        {m.GPU_UTIL: 100, m.PCIE_GEN: 3, m.PCIE_WIDTH: 8, m.PCIE_MAX_GEN: 5, m.PCIE_MAX_WIDTH: 16},
        {m.GPU_UTIL: 100, m.PCIE_EXPECTED: pcie_capacity(5, 16)},
        {m.CLOCK_EVENTS: 0x4 | 0x8 | 0x20},
        {m.TEMP_MARGIN: 4},
        {m.TEMP_MARGIN: 20, m.GPU_TEMP: 89, m.SLOWDOWN_TEMP: 89},
        {m.GPU_TEMP: 85, m.SLOWDOWN_TEMP: 89},
        {m.GPU_TEMP: 89},
        {m.NVLINK_COUNT: 12, m.NVLINK_UP: 4, m.NVLINK_EXPECTED: 4},
        {**IN_FABRIC},
        {m.FABRIC: 3, m.NVLINK_COUNT: 18, m.NVLINK_EXPECTED: 18},
        {m.INFOROM: 1, m.SRAM_EXCEEDED: 0, m.PERSISTENCE: 0},
    ],
)
def test_no_fault(values: Mapping[Metric, float]) -> None:
    """Links that save power, a power cap, bridged boards with idle links, and rules with only half of their values."""
    assert of({**H200, **values}).health is Health.HEALTHY


def test_reported_problems() -> None:
    """Reported problems are added to those of the values, also if the GPU is down or values are unknown."""
    reported = Problem(m.UP, 79, "Xid 79", Action.NODE_REBOOT, "xid_79", Health.DEGRADED)
    for status in (GpuStatus(GPU, True), GpuStatus(GPU, False, "source_lost")):
        found = fitness.judge(status, {}, lambda metric: "not_read", [reported])
        assert (found.health, found.action, found.problems) == (Health.DEGRADED, Action.NODE_REBOOT, (reported,))
    lost = fitness.judge(GpuStatus(GPU, False, "lost"), {}, str, [reported])
    assert [each.reason for each in lost.problems] == ["lost", "xid_79"]


@pytest.mark.parametrize(
    ("reason", "code", "words"),
    [
        ("lost", 79, "it fell off the bus; XID 79, and no repair since"),
        ("stalled", 79, "a driver call does not return; XID 79, and no repair since: GPU fell off the bus"),
        ("lost", 119, "it fell off the bus; XID 119, and no repair since: GPU fell off the bus"),
    ],
)
def test_the_xid_of_a_fault_does_not_say_it_again(reason: str, code: int, words: str) -> None:
    """That a GPU fell off the bus is said once; what another XID means is new."""
    text = f"XID {code}, and no repair since: GPU fell off the bus"
    reported = Problem(m.XID_LAST, 9.0, text, Action.NODE_REBOOT, f"xid_{code}", Health.UNHEALTHY)
    found = fitness.judge(GpuStatus(GPU, False, reason), {}, str, [reported])
    assert "; ".join(problem.words for problem in found.problems) == words


@pytest.mark.parametrize(
    ("reason", "level", "action"),
    [
        ("lost", Health.UNHEALTHY, Action.NODE_REBOOT),
        ("stalled", Health.UNHEALTHY, Action.NODE_REBOOT),
        ("gone", Health.UNHEALTHY, Action.NODE_REBOOT),
        ("reset_required", Health.UNHEALTHY, Action.GPU_RESET),
        ("unknown", Health.UNHEALTHY, Action.DRAIN),
        ("no_permission", Health.UNKNOWN, Action.NONE),
        ("unread", Health.UNKNOWN, Action.NONE),
        ("source_lost", Health.UNKNOWN, Action.NONE),
    ],
)
def test_down(reason: str, level: Health, action: Action) -> None:
    """A GPU that does not answer is unhealthy, unless the exporter is the reason."""
    found = of(reason)
    assert (found.health, found.action) == (level, action)


@pytest.mark.parametrize(
    ("values", "level", "said"),
    [
        ({m.ECC_DBE_VOL: NONE, m.ECC_MODE: NONE}, Health.HEALTHY, ["uncorrectable ECC errors: not_supported"]),
        ({m.ECC_DBE_VOL: NONE, m.ECC_MODE: 0}, Health.HEALTHY, ["uncorrectable ECC errors: ECC is off"]),
        ({m.RECOVERY: NONE}, Health.HEALTHY, ["recovery action: not_supported"]),
        ({m.RETIRED_PENDING: NONE}, Health.HEALTHY, []),
        ({m.RETIRED_PENDING: "no_value"}, Health.HEALTHY, []),
        (
            {m.REMAP_PENDING: NONE, m.REMAP_FAILURE: NONE, m.RETIRED_PENDING: "no_value"},
            Health.UNKNOWN,
            ["row remapping or page retirement (DCGM_FI_DEV_RETIRED_PENDING): no_value"],
        ),
        ({m.REMAP_PENDING: NONE, m.REMAP_FAILURE: NONE, m.RETIRED_PENDING: 0}, Health.HEALTHY, []),
        (
            {m.REMAP_PENDING: NONE, m.REMAP_FAILURE: NONE, m.RETIRED_PENDING: NONE},
            Health.HEALTHY,
            ["row remapping or page retirement: not_supported"],
        ),
        (
            {m.ECC_DBE_VOL: "no_permission"},
            Health.UNKNOWN,
            ["uncorrectable ECC errors (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL): no_permission"],
        ),
        (
            {m.REMAP_FAILURE: "unknown"},
            Health.UNKNOWN,
            ["row remapping or page retirement (DCGM_FI_DEV_ROW_REMAP_FAILURE): unknown"],
        ),
        (
            {m.RECOVERY: "not_recorded"},
            Health.UNKNOWN,
            ["recovery action (DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION): not_recorded"],
        ),
    ],
)
def test_unknown(values: Mapping[Metric, float | str], level: Health, said: list[str]) -> None:
    """An unreadable value is reported; it is harmless only if the hardware does not have it."""
    found = of({**H200, **values})
    assert found.health is level
    assert [f"{each.what}: {each.why}" for each in found.unknown] == said
    assert found.problems == ()


def test_what_is_not_simulated_is_no_gap() -> None:
    """Otherwise, no simulated GPU would ever be healthy."""
    found = of({**H200, **dict.fromkeys((m.ECC_DBE_VOL, m.RECOVERY), "not_simulated")})
    assert found.health is Health.HEALTHY
    assert {(each.why, each.harmless) for each in found.unknown} == {("not_simulated", True)}


def test_values_that_were_never_read_are_unknown() -> None:
    """No value and no outcome: it was never read."""
    assert of({}).health is Health.UNKNOWN
    assert {each.why for each in of({}).unknown} == {"not_read"}


def test_a_problem_outweighs_unknown_values() -> None:
    """An unhealthy GPU stays unhealthy."""
    assert of({**H200, m.REMAP_FAILURE: 1, m.RECOVERY: "unknown"}).health is Health.UNHEALTHY
    assert of({**H200, m.REMAP_PENDING: 1, m.RECOVERY: "unknown"}).health is Health.DEGRADED


def test_rows_are_cheap() -> None:
    """They need no profiling, so one read is enough."""
    assert not any(isinstance(row.nvml, Gpm) or row.nvml is None for row in fitness.ROWS)


@pytest.mark.parametrize(
    ("gpus", "of_node"),
    [
        ([("unknown", 99), ("unknown", 100)], [0, 1]),
        ([("unknown", None), ("unknown", None)], [0, 1]),
        ([("unknown", 100)], [0]),
        ([("stalled", 100), ("stalled", 100)], [0, 1]),
        ([("stalled", 100)], []),
        ([("unknown", 100), ("", 101)], []),
        ([("unknown", 100), ("stalled", 100)], []),
        ([("lost", 100), ("lost", 100)], []),
        ([("reset_required", 100), ("reset_required", 100)], []),
        ([("unknown", 20), ("unknown", 100), ("unknown", 100)], [1, 2]),
        ([("lost", 20), ("unknown", 100), ("unknown", 100)], [1, 2]),
        ([("unknown", None), ("unknown", 100), ("unknown", 100)], [1, 2]),
        ([("unread", None), ("unknown", None)], []),
        ([], []),
    ],
)
def test_faults_of_the_node(gpus: Sequence[tuple[str, float | None]], of_node: Sequence[int]) -> None:
    """All GPUs that answered until now fail at the same moment; reasons and times of the last reads."""
    statuses = [
        GpuStatus(Gpu(index, uuid=f"GPU-{index}"), not reason, reason, read_at, 10.0 if reason == "stalled" else 0.0)
        for index, (reason, read_at) in enumerate(gpus)
    ]
    found = fitness.fault_of_node(statuses, 5.0)
    assert sorted(status.gpu.index for status in found) == of_node
    for status in found:
        verdict = fitness.judge(status, {}, str, silent="no GPU answers")
        assert (verdict.health, verdict.action, verdict.problems) == (Health.UNKNOWN, Action.NONE, ())


# --- the report of `check` -----------------------------------------------------------------------------------------

SECOND = Gpu(1, uuid="GPU-1")
SICK = {**H200, m.REMAP_FAILURE: 1}
TIRED = {**H200, m.REMAP_PENDING: 1}


@pytest.mark.parametrize(
    ("gpus", "expected", "only", "level", "codes", "missing"),
    [
        ([(GPU, H200), (SECOND, H200)], 2, None, Health.HEALTHY, [0, 1], 0),
        ([(GPU, H200), (SECOND, SICK)], 2, None, Health.UNHEALTHY, [0, 1], 0),
        ([(GPU, H200), (SECOND, TIRED)], 2, None, Health.DEGRADED, [0, 1], 0),
        ([(GPU, SICK), (SECOND, TIRED)], 2, None, Health.UNHEALTHY, [0, 1], 0),
        ([(GPU, TIRED), (SECOND, "no_permission")], 2, None, Health.DEGRADED, [0, 1], 0),
        ([(GPU, H200), (SECOND, SICK)], 2, {0}, Health.HEALTHY, [0], 0),
        ([(GPU, H200), (SECOND, H200)], 8, None, Health.UNHEALTHY, [0, 1], 6),
        ([(GPU, H200), (SECOND, H200)], 8, {1}, Health.HEALTHY, [1], 0),
        ([(GPU, H200)], 1, {0, 5}, Health.UNHEALTHY, [0, 5], 0),
        ([(GPU, H200), (SECOND, "no_permission")], 2, None, Health.UNKNOWN, [0, 1], 0),
        ([(GPU, "lost"), (SECOND, "no_permission")], 2, None, Health.UNHEALTHY, [0, 1], 0),
        ([], 8, None, Health.UNKNOWN, [], 0),
        ([], 8, {0}, Health.UNKNOWN, [], 0),
    ],
)
def test_report(
    gpus: list[tuple[Gpu, Mapping[Metric, float | str] | str]],
    expected: int,
    only: set[int] | None,
    level: Health,
    codes: list[int],
    missing: int,
) -> None:
    """Which GPUs count, and the result for all of them."""
    result = check.report(snapshot(*gpus, expected=expected), None if only is None else frozenset(only))
    assert result.health is level
    assert [verdict.gpu.index for verdict in result.verdicts] == codes
    assert result.missing == missing
    assert check.as_dict(result)["ok"] is (level is Health.HEALTHY)
    assert len(list(check.lines(result))) >= 1


NAMED = "GPU-01234567-89ab-4cde-8f01-23456789abcd"


@pytest.mark.parametrize(
    ("text", "found"),
    [("0", {0}), ("0,1, 5", {0, 1, 5}), ("nvidia0,nvidia12", {"nvidia0", "nvidia12"}), (f"{NAMED},3", {NAMED, 3})],
)
def test_names(text: str, found: set[int | str]) -> None:
    """Indices, device files and UUIDs, separated by commas."""
    assert check.names(text) == found


@pytest.mark.parametrize("text", ["", "all", "0;1", "-1", "0,", "nvidia", "nvidia0x", "GPU-0", "MIG-0", "/dev/nvidia0"])
def test_bad_names(text: str) -> None:
    """Anything else is refused."""
    with pytest.raises(ValueError, match="0,1"):
        check.names(text)


@pytest.mark.parametrize(
    ("only", "level", "gpus", "missing"),
    [
        ({"nvidia1"}, Health.UNHEALTHY, [0], 0),
        ({"nvidia0"}, Health.HEALTHY, [1], 0),
        ({NAMED}, Health.HEALTHY, [1], 0),
        ({"nvidia0", 1, NAMED}, Health.HEALTHY, [1], 0),
        ({"nvidia7"}, Health.UNHEALTHY, [2], 0),  # the lost GPU may be this one
        ({"nvidia7", "nvidia8", "nvidia0"}, Health.UNHEALTHY, [1, 2], 1),
    ],
)
def test_report_on_named_gpus(only: set[int | str], level: Health, gpus: list[int], missing: int) -> None:
    """By the number of the device file, which is not the index, or by UUID."""
    here = snapshot(
        (replace(GPU, index=0, device="nvidia1"), SICK),
        (replace(GPU, index=1, device="nvidia0", uuid=NAMED), H200),
        (Gpu(2), "lost"),
    )
    result = check.report(here, frozenset(only))
    assert (result.health, [verdict.gpu.index for verdict in result.verdicts], result.missing) == (level, gpus, missing)


def test_report_on_nothing_but_a_gpu_that_is_missing() -> None:
    result = check.report(snapshot((replace(GPU, device="nvidia1"), H200)), frozenset({"nvidia7"}))
    assert result.health is Health.UNHEALTHY
    assert list(check.lines(result)) == ["missing: 1 of the expected GPUs -> node_reboot", "GPUs: 1 missing"]
