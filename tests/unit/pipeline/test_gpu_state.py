"""Records: one per UUID at any index, read by the worker that attached it last; one line per change of state."""

from __future__ import annotations

import logging
import time
from functools import cache

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Reading, Series
from gpu_exporter.model.metric import Labels, Metric
from gpu_exporter.pipeline.gpu_state import GONE_SECONDS, STALE_INTERVALS, GpuState, GpuStates
from gpu_exporter.pipeline.settings import PAGE_SECONDS, CollectionSettings, make_plan

GPU = Gpu(0, "GPU-0", "00000000:06:00.0")
PLAN = make_plan((m.SM_ACTIVE, m.GPU_TEMP), CollectionSettings(), xids_reported=True)


@cache
def series(metric: Metric, labels: Labels) -> Series:
    """Return the series of a device, which keeps their objects."""
    return Series(metric, GPU, labels)


def take(state: GpuState, *, between_pages: bool = False, value: float = 40.0, labels: Labels = ()) -> None:
    """Take one successful read."""
    now = time.monotonic()
    values = {series(m.GPU_TEMP, labels): value, series(m.SM_ACTIVE, labels): 0.5}
    state.take(Reading(now, values, 1.0), PLAN, now, between_pages=between_pages)


def test_a_gpu_keeps_its_record_when_its_index_changes() -> None:
    """The worker that attached it last has it; the other one notices."""
    states = GpuStates(15.0)
    first = states.claim(GPU, 0)
    assert states.worker_index(first) == 0
    moved = states.claim(Gpu(1, "GPU-0", GPU.pci_bus_id), 1)

    assert moved is first
    assert (states.worker_index(first), first.gpu.index) == (1, 1)
    assert states.identified() == [first]


def test_gpus_without_a_uuid_are_distinguished_by_index() -> None:
    states = GpuStates(15.0)

    assert states.claim(Gpu(0), 0) is not states.claim(Gpu(1), 1)
    assert states.claim(Gpu(0), 0) is states.claim(Gpu(0), 0)


def test_a_gpu_that_was_replaced_in_its_slot_is_not_listed() -> None:
    """Fifteen swaps leave one row. A GPU of another slot stays, even if it had the same index."""
    states = GpuStates(15.0)
    other = states.claim(Gpu(1, "GPU-1", "00000000:07:00.0"), 1)
    for number in range(2, 17):
        new = states.claim(Gpu(0, f"GPU-{number}", GPU.pci_bus_id), 0)
    moved = states.claim(Gpu(0, "GPU-17", "00000000:08:00.0"), 0)

    assert states.identified() == [other, new, moved]


def test_gpus_that_swap_their_slots_stay_listed() -> None:
    """A GPU that another worker has attached was not replaced."""
    states = GpuStates(15.0)
    one, other = (states.claim(Gpu(index, f"GPU-{index}", f"00000000:0{index}:00.0"), index) for index in range(2))
    states.claim(Gpu(0, "GPU-1", "00000000:00:00.0"), 0)
    assert states.identified() == [other]
    again = states.claim(Gpu(1, "GPU-0", "00000000:01:00.0"), 1)

    assert states.identified() == [other, again]
    assert again is not one


def test_a_gone_gpu_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day after its last read."""
    state = GpuState(GPU, 15.0)
    take(state)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + GONE_SECONDS - 10)
    assert not state.is_expired()
    monkeypatch.setattr(time, "monotonic", lambda: now + GONE_SECONDS + 10)

    assert state.is_expired()


def test_an_unidentified_gpu_is_not_listed() -> None:
    """Its worker has a state that does not belong to a known GPU."""
    states = GpuStates(15.0)
    state = states.unidentified(3, 5)

    assert (states.worker_index(state), state.gpu, states.identified()) == (3, Gpu(5), [])


@pytest.mark.parametrize(
    ("address", "exists"),
    [("00000000:06:00.0", True), ("0000:06:00", True), ("0000:07:00", False), ("", False)],
)
def test_look_up_by_pci_address(address: str, exists: bool) -> None:
    """With any number of digits in the domain."""
    states = GpuStates(15.0)
    state = states.claim(GPU, 0)

    assert states.at_address(address) is (state if exists else None)


def test_evidence_is_of_the_whole_gpu() -> None:
    """The latest values of the GPU, without those of a MIG instance."""
    state = GpuState(GPU, 15.0)
    take(state, value=50.0, labels=(("GPU_I_ID", "1"),))
    take(state, value=60.0)

    assert state.evidence() == (GPU, {str(m.GPU_TEMP): 60.0})


@pytest.mark.parametrize(
    ("interval", "age", "values"),
    [(1.0, 4.0, {str(m.GPU_TEMP): 40.0}), (1.0, 6.0, {}), (15.0, 16.0, {str(m.GPU_TEMP): 40.0}), (15.0, 31.0, {})],
)
def test_old_values_are_no_evidence(interval: float, age: float, values: dict[str, float]) -> None:
    """A GPU that has been lost for an hour keeps its last samples."""
    state = GpuState(GPU, 15.0)
    take(state)
    assert state.read_at is not None
    state.read_at -= age

    assert state.evidence(interval).values == values


@pytest.mark.parametrize("between_pages", [False, True])
def test_samples_are_exposed_only_by_pages(between_pages: bool) -> None:
    """A read between two pages counts as a read, and adds to totals."""
    state = GpuState(GPU, 15.0)
    take(state, between_pages=between_pages)

    assert (state.samples == ()) is between_pages
    assert (state.reason, state.is_fresh(1.0)) == ("", True)
    take(state)
    (seconds,) = [value for series, value in state.samples if series.metric is m.SM_SECONDS]
    assert seconds == 1.0


@pytest.mark.parametrize(
    ("interval", "age", "fresh"),
    [
        (1.0, 0.9 * STALE_INTERVALS, True),
        (1.0, 1.1 * STALE_INTERVALS, False),
        (15.0, 0.9 * 15 * STALE_INTERVALS, True),
        (0.1, 0.9 * PAGE_SECONDS * STALE_INTERVALS, True),  # the first read counts as a page
        (0.1, 1.1 * PAGE_SECONDS * STALE_INTERVALS, False),
    ],
)
def test_samples_are_fresh_for_some_intervals(interval: float, age: float, fresh: bool) -> None:
    state = GpuState(GPU, 15.0)
    assert not state.is_fresh(interval)
    take(state)
    assert state.read_at is not None
    state.read_at -= age

    assert state.is_fresh(interval) is fresh


def test_one_line_per_change_of_state(caplog: pytest.LogCaptureFixture) -> None:
    """A first read and one after a release are not logged."""
    caplog.set_level(logging.INFO)
    state = GpuState(GPU, 15.0)
    take(state)
    for _ in range(3):
        state.down("lost", "it fell off the bus")
    take(state)
    for _ in range(3):
        state.stuck()
    take(state)
    state.released()
    take(state)

    assert caplog.messages == [
        "GPU 0 (GPU-0) is down: it fell off the bus",
        "GPU 0 (GPU-0) is back",
        "GPU 0 (GPU-0) is stuck in a driver call; see `dmesg | grep -i nvrm`, usually only a reboot helps",
        "GPU 0 (GPU-0) is back",
    ]
    assert state.failures == 3


def test_totals_outlive_a_handle() -> None:
    """A state reports XIDs only while it has a handle."""
    state = GpuState(GPU, 15.0)
    state.attached(reports_xids=True)
    take(state)
    state.detached()
    assert not state.reports_xids
    state.attached(reports_xids=True)
    take(state)

    assert state.reports_xids
    (seconds,) = [value for series, value in state.samples if series.metric is m.SM_SECONDS]
    assert seconds == 1.0


def test_metrics_that_the_interval_excludes_have_a_reason() -> None:
    """The source is not asked for them, so it has none."""
    plan = make_plan((m.GPU_TEMP, m.GPU_UTIL_SECONDS), CollectionSettings(30.0), xids_reported=True)
    state = GpuState(GPU, 15.0)
    state.take(Reading(0.0, {series(m.GPU_TEMP, ()): 40.0}), plan, time.monotonic(), between_pages=False)

    assert state.unsupported == {m.GPU_UTIL_SECONDS: "interval_too_long"}
