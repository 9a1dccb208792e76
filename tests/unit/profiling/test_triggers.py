"""When a GPU is profiled: which finding, for how long, how often, and which processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.model.profile_reason import ProfileReason
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import Sampling, SamplingFailure
from gpu_exporter.profiling.triggers import (
    GAP_SECONDS,
    MOST_AVOIDED,
    MOST_OUTPUT_BYTES,
    MOST_PROCESSES,
    MOST_WRITTEN_BYTES,
    Asked,
    ProfiledGpu,
    ProfileRefusal,
    ProfileRequest,
    Rules,
    TriggerState,
    due,
    finish,
    observe,
    requested,
    sampling_of,
)

ALL = Rules(frozenset(ProfileReason))
HOST_BOUND = {ProfileReason.HOST_BOUND: "data-loading-bound"}
STALLED = {ProfileReason.STALL: "GpuCollectiveStall"}


def gpu(
    index: int, findings: dict[ProfileReason, str] | None = None, *, pids: tuple[int, ...] = (1,), job: str = ""
) -> ProfiledGpu:
    return ProfiledGpu(f"GPU-{index}", index, tuple(100 * index + pid for pid in pids), job, findings or {})


def process(command: str = "python train.py") -> Process:
    return Process(1, 1, 1000, command, 1)


def after(
    seconds: float, *devices: ProfiledGpu, rules: Rules = ALL, state: TriggerState | None = None
) -> ProfileRequest | None:
    """Return what is due when the findings have held for so long."""
    first = observe(state or TriggerState(), devices, 0.0)
    return due(observe(first, devices, seconds), devices, rules, seconds)


WITHOUT_SCHEDULE = Rules(ALL.reasons - {ProfileReason.SCHEDULE})


def test_a_finding_must_last() -> None:
    device = gpu(0, HOST_BOUND)
    assert after(299, device, rules=WITHOUT_SCHEDULE) is None
    request = after(300, device, rules=WITHOUT_SCHEDULE)
    assert request == ProfileRequest(ProfileReason.HOST_BOUND, "data-loading-bound", (device,))
    assert (request.seconds, request.pids) == (5.0, {1: (0,)})


def test_another_class_of_the_same_reason_goes_on() -> None:
    """A GPU may alternate between host-bound and data-loading-bound."""
    state = observe(TriggerState(), [gpu(0, HOST_BOUND)], 0.0)
    changed = gpu(0, {ProfileReason.HOST_BOUND: "host-bound"})
    request = due(observe(state, [changed], 300.0), [changed], WITHOUT_SCHEDULE, 300.0)
    assert request
    assert request.finding == "host-bound"


def test_an_interruption_begins_anew() -> None:
    state = observe(observe(TriggerState(), [gpu(0, HOST_BOUND)], 0.0), [gpu(0)], 200.0)
    state = observe(state, [gpu(0, HOST_BOUND)], 250.0)
    assert due(state, [gpu(0, HOST_BOUND)], WITHOUT_SCHEDULE, 400.0) is None


def test_only_reasons_that_are_on() -> None:
    assert after(1e6, gpu(0, HOST_BOUND), rules=Rules(frozenset({ProfileReason.STALL}))) is None
    assert after(1e6, gpu(0, HOST_BOUND), rules=Rules(frozenset())) is None


def test_a_gpu_without_processes_is_never_profiled() -> None:
    assert after(1e6, gpu(0, HOST_BOUND, pids=())) is None


def test_a_stall_takes_all_ranks_of_the_job() -> None:
    """Also the one that is waited for; not those of another job."""
    ranks = [gpu(index, STALLED if index != 2 else None, job="ml/a") for index in range(4)]
    request = after(300, *ranks, gpu(4, HOST_BOUND, job="ml/b"))
    assert request
    assert (request.reason, [device.index for device in request.devices]) == (ProfileReason.STALL, [0, 1, 2, 3])
    assert request.pids == {1: (0,), 101: (1,), 201: (2,), 301: (3,)}


def test_a_stall_of_an_unknown_job_takes_all_gpus_that_stall() -> None:
    request = after(300, gpu(0, STALLED), gpu(1, STALLED), gpu(2))
    assert request
    assert [device.index for device in request.devices] == [0, 1]


def test_a_gpu_is_profiled_once_in_ten_minutes() -> None:
    device = gpu(0, HOST_BOUND)
    state = finish(TriggerState(), ProfileRequest(ProfileReason.SCHEDULE, "", (device,)), (), 0.0)
    assert after(GAP_SECONDS - 1, device, state=state) is None
    again = after(GAP_SECONDS, device, state=state)
    assert again
    assert again.reason is ProfileReason.HOST_BOUND


def test_a_stall_waits_only_for_earlier_stalls() -> None:
    device = gpu(0, STALLED)
    other = finish(TriggerState(), ProfileRequest(ProfileReason.HOST_BOUND, "", (device,)), (), 100.0)
    assert after(300, device, state=other)
    same = finish(TriggerState(), ProfileRequest(ProfileReason.STALL, "", (device,)), (), 100.0)
    assert after(300, device, state=same) is None


def test_the_schedule_takes_gpus_in_turn() -> None:
    devices, state = [gpu(index) for index in range(3)], TriggerState()
    taken = []
    for now in (0.0, 1.0, 2.0, 3.0, 600.0):
        request = due(observe(state, devices, now), devices, ALL, now)
        if request:
            taken.append(request.devices[0].index)
            state = finish(state, request, (), now)
            assert (request.reason, request.seconds) == (ProfileReason.SCHEDULE, 1.0)
    assert taken == [0, 1, 2, 0]


def test_of_many_processes_the_largest_of_each_gpu_are_taken() -> None:
    devices = (gpu(0, pids=tuple(range(1, 201))), gpu(1, pids=(1,)))
    pids = list(ProfileRequest(ProfileReason.SCHEDULE, "", devices).pids)
    assert len(pids) == MOST_PROCESSES
    assert pids[:3] == [1, 101, 2]


def test_a_process_on_two_gpus_is_sampled_once() -> None:
    devices = (ProfiledGpu("a", 0, (7,)), ProfiledGpu("b", 1, (7,)))
    assert ProfileRequest(ProfileReason.STALL, "", devices).pids == {7: (0, 1)}


@pytest.mark.parametrize("failure", list(SamplingFailure))
def test_a_program_that_responded_badly_is_left_alone(failure: SamplingFailure) -> None:
    """Not if the reason is on the side of the exporter."""
    state = finish(TriggerState(), ProfileRequest(ProfileReason.SCHEDULE, "", (gpu(0),)), [(process(), failure)], 0.0)
    bad = failure in (SamplingFailure.TIMEOUT, SamplingFailure.NOT_PYTHON, SamplingFailure.UNSUPPORTED)
    assert state.avoids(process()) is bad
    assert not state.avoids(process("python other.py"))


def test_a_program_that_ends_twice_while_it_is_sampled_is_left_alone() -> None:
    """Once may be by chance; the ranks of one job that end together count once."""
    state, request = TriggerState(), ProfileRequest(ProfileReason.SCHEDULE, "", (gpu(0),))
    for avoided in (False, True):
        state = finish(state, request, [(process(), SamplingFailure.ENDED)] * 2, 0.0)
        assert state.avoids(process()) is avoided


@given(st.lists(st.tuples(st.sampled_from(list(ProfileReason)), st.integers(0, 3), st.floats(0, 100)), max_size=40))
def test_the_budget_holds_for_any_history(steps: list[tuple[ProfileReason, int, float]]) -> None:
    """Of each GPU there is at most one profile in ten minutes, apart from stalls."""
    now, state = 0.0, TriggerState()
    last: dict[int, float] = {}
    for reason, index, passed in steps:
        now += passed
        devices = [gpu(index, {reason: "x"} if reason is not ProfileReason.SCHEDULE else None)]
        state = observe(state, devices, now)
        request = due(state, devices, ALL, now)
        if request:
            if request.reason is not ProfileReason.STALL:
                assert now - last.get(index, -1e9) >= GAP_SECONDS
            last[index] = now
            state = finish(state, request, (), now)


@pytest.mark.parametrize(
    ("asked", "pids"),
    [
        (Asked("mia"), {1: (0,), 2: (0,), 101: (1,), 102: (1,)}),
        (Asked("mia", gpu=1), {101: (1,), 102: (1,)}),
        (Asked("mia", pids=(2, 7)), {2: (0,)}),
        (Asked("mia", owners=("ml/train-0",)), {101: (1,), 102: (1,)}),
        (Asked("mia", owners=("ml/train-0",), gpu=0), None),
        (Asked("mia", gpu=2), None),
        (Asked("mia", pids=(7,)), None),
    ],
)
def test_what_a_person_asks_for(asked: Asked, pids: dict[int, tuple[int, ...]] | None) -> None:
    owned = replace(gpu(1, pids=(1, 2)), owners=frozenset({"ml/train-0", "train"}))
    request = requested(TriggerState(), [gpu(0, pids=(1, 2)), owned, gpu(2, pids=())], asked, 0.0)
    assert (request.pids if isinstance(request, ProfileRequest) else None) == pids


def test_a_person_has_the_same_budget() -> None:
    device = gpu(0)
    state = finish(TriggerState(), ProfileRequest(ProfileReason.SCHEDULE, "", (device,)), (), 100.0)
    refusal = requested(state, [device, gpu(1)], Asked("mia"), 400.0)
    assert isinstance(refusal, ProfileRefusal)
    assert (refusal.why.startswith("GPU 0 was profiled 300 s ago"), refusal.retry_seconds) == (True, 300.0)
    assert isinstance(requested(state, [device], Asked("mia"), 100.0 + GAP_SECONDS), ProfileRequest)


def test_a_trace_counts_only_against_traces() -> None:
    """A person asks for it because of the stacks that were just sampled."""
    device, asked = gpu(0), Asked("mia", trace=True)
    state = finish(TriggerState(), ProfileRequest(ProfileReason.HOST_BOUND, "host-bound", (device,)), (), 100.0)
    request = requested(state, [device], asked, 101.0)
    assert isinstance(request, ProfileRequest)
    state = finish(state, request, (), 110.0)
    assert isinstance(requested(state, [device], asked, 111.0), ProfileRefusal)
    assert after(1e6, gpu(0, HOST_BOUND), rules=WITHOUT_SCHEDULE, state=state)


@pytest.mark.parametrize(
    ("processes", "most"), [(0, MOST_OUTPUT_BYTES), (1, MOST_OUTPUT_BYTES), (MOST_PROCESSES, MOST_WRITTEN_BYTES // 16)]
)
def test_what_py_spy_may_write(processes: int, most: int) -> None:
    """About all processes of a profile together, and about one."""
    sampling = sampling_of(2.5, 40, processes)
    assert sampling == Sampling(2.5, 40, most_bytes=most)
    assert processes * sampling.most_bytes <= MOST_WRITTEN_BYTES


def test_how_long_is_sampled() -> None:
    """The schedule costs less than a finding; a person decides."""
    assert ProfileRequest(ProfileReason.SCHEDULE, "", ()).seconds < ProfileRequest(ProfileReason.STALL, "", ()).seconds
    assert ProfileRequest(ProfileReason.REQUEST, "", (), Asked("mia", seconds=2.5)).seconds == 2.5


def test_processes_that_are_left_out() -> None:
    """Beyond the most that are sampled, of those that somebody asks for."""
    device = gpu(0, pids=tuple(range(1, MOST_PROCESSES + 4)))
    assert ProfileRequest(ProfileReason.SCHEDULE, "", (device,)).left_out == 3
    asked = Asked("mia", pids=(2, 3, 99))
    request = ProfileRequest(ProfileReason.REQUEST, "", (device,), asked)
    assert (request.left_out, dict(request.pids)) == (0, {2: (0,), 3: (0,)})


def test_processes_that_are_waited_for() -> None:
    waiting, waited_for = gpu(0, pids=(1, 2)), replace(gpu(1, pids=(1, 2)), is_waited_for=True)
    assert ProfileRequest(ProfileReason.STALL, "", (waiting, waited_for)).waited_for == {101, 102}


def test_the_most_urgent_reason_and_gpu() -> None:
    """First the reason, then the GPU that was profiled longest ago, then its index."""
    devices = [gpu(0, HOST_BOUND), gpu(1, STALLED | HOST_BOUND), gpu(2, STALLED)]
    request = after(300, *devices, rules=WITHOUT_SCHEDULE)
    assert request
    assert (request.reason, request.finding) == (ProfileReason.STALL, "GpuCollectiveStall")
    state = TriggerState(profiled={"GPU-0": -2000.0, "GPU-1": -1000.0})
    for known, first in (
        (state, 2),
        (replace(state, profiled={**state.profiled, "GPU-2": -3000.0}), 2),
        (TriggerState(), 0),
    ):
        request = after(300, *(gpu(index, HOST_BOUND) for index in range(3)), rules=WITHOUT_SCHEDULE, state=known)
        assert request
        assert [device.index for device in request.devices] == [first]


def test_how_much_is_remembered() -> None:
    """Of programs to avoid, the latest ones."""
    request = ProfileRequest(ProfileReason.SCHEDULE, "", (gpu(0),))
    programs = [process(f"python {number}.py") for number in range(MOST_AVOIDED + 1)]
    state = finish(TriggerState(), request, [(program, SamplingFailure.TIMEOUT) for program in programs], 0.0)
    assert [state.avoids(program) for program in (programs[0], programs[1], programs[-1])] == [False, True, True]
    ended = finish(TriggerState(), request, [(program, SamplingFailure.ENDED) for program in programs], 0.0)
    assert (ended.avoided, len(ended.ended)) == ((), MOST_AVOIDED)


def test_budgets_that_a_profile_uses_up() -> None:
    """Every profile that of the GPU; a stall and a trace their own besides."""
    device, at = gpu(0), {"GPU-0": 5.0}
    for request, stalled, traced in (
        (ProfileRequest(ProfileReason.SCHEDULE, "", (device,)), {}, {}),
        (ProfileRequest(ProfileReason.STALL, "", (device,)), at, {}),
        (ProfileRequest(ProfileReason.REQUEST, "", (device,), Asked("mia")), {}, {}),
        (ProfileRequest(ProfileReason.REQUEST, "", (device,), Asked("mia", trace=True)), {}, at),
    ):
        state = finish(TriggerState(), request, (), 5.0)
        assert (state.profiled, state.stalled, state.traced) == (at, stalled, traced)


def test_a_refusal_says_how_long_to_wait() -> None:
    state = TriggerState(profiled={"GPU-1": 100.0})
    refusal = requested(state, [gpu(0), gpu(1)], Asked("mia"), 100.0 + GAP_SECONDS - 1)
    assert refusal == ProfileRefusal("GPU 1 was profiled 599 s ago, and is at most once in 10 min: wait 1 s", 1.0)
    assert requested(TriggerState(), [], Asked("mia"), 0.0) == ProfileRefusal(
        "the driver lists no such process on a GPU of this node"
    )
