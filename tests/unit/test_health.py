"""Verdicts: which values no healthy GPU has, and what is not known."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpu_exporter import check, health
from gpu_exporter import metrics as m
from gpu_exporter.health import Health, Verdict
from gpu_exporter.model import Gpm, Gpu, GpuStatus, Metric, Sample, Series, Snapshot
from gpu_exporter.xids import Action

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
    """GPUs with values and outcomes (text), or down for a reason."""
    samples = [Sample(Series(m.EXPECTED), expected)]
    status = []
    for gpu, values in gpus:
        if isinstance(values, str):
            status.append(GpuStatus(gpu, up=False, reason=values))
            continue
        status.append(GpuStatus(gpu, up=True, read_at=1.0))
        for metric, value in values.items():
            if isinstance(value, str):
                why = m.SUPPORTED if value.startswith("no") else m.FIELD_FAILURES
                samples.append(Sample(Series(why, gpu, (("metric", metric.key), ("reason", value))), 0))
            else:
                samples.append(Sample(Series(metric, gpu), value))
    return Snapshot(1.0, "nvml", tuple(samples), tuple(status))


def of(values: Mapping[Metric, float | str] | str) -> Verdict:
    """The verdict on one GPU."""
    [found] = health.verdict(snapshot((GPU, values)))
    return found


def test_healthy() -> None:
    """Errors in the life of the board are no fault of today, nor are rows that were remapped well."""
    assert of({**H200, m.ECC_DBE_AGG: 7, m.REMAP_UNCORRECTABLE: 2, m.ECC_SBE_VOL: 9}) == Verdict(GPU)
    assert Verdict(GPU).health is Health.HEALTHY
    assert Verdict(GPU).action is Action.NONE


@pytest.mark.parametrize(
    ("values", "action", "said"),
    [
        ({m.ECC_DBE_VOL: 3}, Action.GPU_RESET, ["3 uncorrectable ECC errors since the driver was loaded"]),
        ({m.REMAP_PENDING: 1}, Action.GPU_RESET, ["waits for a reset to be remapped"]),
        ({m.REMAP_FAILURE: 1}, Action.REPLACE, ["could not be remapped"]),
        ({m.RETIRED_PENDING: 1}, Action.NODE_REBOOT, ["wait for a reboot to be retired"]),
        ({m.RECOVERY: 1}, Action.GPU_RESET, ["asks for a reset"]),
        ({m.RECOVERY: 2}, Action.NODE_REBOOT, ["asks for a reboot"]),
        ({m.RECOVERY: 3}, Action.DRAIN, ["drain peer-to-peer"]),
        ({m.RECOVERY: 4}, Action.DRAIN, ["drain this GPU and reset it"]),
        ({m.RECOVERY: 12}, Action.DRAIN, ["recovery action 12, which is newer"]),
        ({m.REMAP_FAILURE: 1, m.RECOVERY: 1}, Action.REPLACE, ["could not be remapped", "asks for a reset"]),
    ],
)
def test_problems(values: Mapping[Metric, float], action: Action, said: list[str]) -> None:
    """Each fault has its words and its repair; of several the heaviest counts."""
    found = of({**H200, **values})
    assert found.health is Health.UNHEALTHY
    assert found.action is action
    assert [part in problem.words for part, problem in zip(said, found.problems, strict=True)] == [True] * len(said)
    assert {problem.metric: problem.value for problem in found.problems} == values


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
    """A GPU that does not answer is unhealthy, unless the reason lies with us."""
    found = of(reason)
    assert (found.health, found.action) == (level, action)


@pytest.mark.parametrize(
    ("values", "level", "said"),
    [
        ({m.ECC_DBE_VOL: NONE, m.ECC_MODE: NONE}, Health.HEALTHY, ["uncorrectable ECC errors: not_supported"]),
        ({m.ECC_DBE_VOL: NONE, m.ECC_MODE: 0}, Health.HEALTHY, ["uncorrectable ECC errors: ECC is off"]),
        ({m.RECOVERY: NONE}, Health.HEALTHY, ["recovery action: not_supported"]),
        ({m.RETIRED_PENDING: NONE}, Health.HEALTHY, []),
        ({m.REMAP_PENDING: NONE, m.REMAP_FAILURE: NONE, m.RETIRED_PENDING: 0}, Health.HEALTHY, []),
        (
            {m.REMAP_PENDING: NONE, m.REMAP_FAILURE: NONE, m.RETIRED_PENDING: NONE},
            Health.HEALTHY,
            ["row remapping: not_supported"],
        ),
        (
            {m.ECC_DBE_VOL: "no_permission"},
            Health.UNKNOWN,
            ["uncorrectable ECC errors (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL): no_permission"],
        ),
        (
            {m.REMAP_FAILURE: "unknown"},
            Health.UNKNOWN,
            ["row remapping (DCGM_FI_DEV_ROW_REMAP_FAILURE): unknown"],
        ),
        (
            {m.RECOVERY: "not_recorded"},
            Health.UNKNOWN,
            ["recovery action (DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION): not_recorded"],
        ),
    ],
)
def test_unknown(values: Mapping[Metric, float | str], level: Health, said: list[str]) -> None:
    """What can't be read is said; it is harmless only where the hardware does not have it."""
    found = of({**H200, **values})
    assert found.health is level
    assert [f"{each.what}: {each.why}" for each in found.unknown] == said
    assert found.problems == ()


def test_what_was_never_read_is_unknown() -> None:
    """No value and no outcome: nobody looked."""
    assert of({}).health is Health.UNKNOWN
    assert {each.why for each in of({}).unknown} == {"not_read"}


def test_a_problem_outweighs_what_is_not_known() -> None:
    """Unhealthy stays unhealthy."""
    assert of({**H200, m.REMAP_PENDING: 1, m.RECOVERY: "unknown"}).health is Health.UNHEALTHY


def test_rows_are_cheap() -> None:
    """No profiling, so that one read is enough."""
    assert not any(isinstance(row.nvml, Gpm) or row.nvml is None for row in health.ROWS)


# --- the report of `check` -----------------------------------------------------------------------------------------

SECOND = Gpu(1, uuid="GPU-1")
SICK = {**H200, m.REMAP_PENDING: 1}


@pytest.mark.parametrize(
    ("gpus", "expected", "only", "level", "codes", "missing"),
    [
        ([(GPU, H200), (SECOND, H200)], 2, None, Health.HEALTHY, [0, 1], 0),
        ([(GPU, H200), (SECOND, SICK)], 2, None, Health.UNHEALTHY, [0, 1], 0),
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
    """Which GPUs count, and what they come to together."""
    result = check.report(snapshot(*gpus, expected=expected), None if only is None else frozenset(only))
    assert result.health is level
    assert [verdict.gpu.index for verdict in result.verdicts] == codes
    assert result.missing == missing
    assert check.as_dict(result)["ok"] is (level is Health.HEALTHY)
    assert len(list(check.lines(result))) >= 1


@pytest.mark.parametrize(("text", "found"), [("0", {0}), ("0,1, 5", {0, 1, 5})])
def test_indices(text: str, found: set[int]) -> None:
    """Numbers between commas."""
    assert check.indices(text) == found


@pytest.mark.parametrize("text", ["", "all", "0;1", "-1", "0,"])
def test_bad_indices(text: str) -> None:
    """Anything else is refused."""
    with pytest.raises(ValueError, match="0,1"):
        check.indices(text)
