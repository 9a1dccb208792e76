"""The thread that profiles: what it stores, counts and logs, with a sampler whose answers are made up."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.profile_reason import ProfileReason
from gpu_exporter.model.snapshot import GpuSamples
from gpu_exporter.profiling import tracing
from gpu_exporter.profiling import watch as watching
from gpu_exporter.profiling.kineto_daemon import TraceOptions
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import NotSampled, Sampling, SamplingFailure
from gpu_exporter.profiling.records import KernelTime, ProcessStacks, StackKind, Summary
from gpu_exporter.profiling.store import Bounds, ProfileStore
from gpu_exporter.profiling.tracing import Traced
from gpu_exporter.profiling.triggers import GAP_SECONDS, MOST_PROCESSES, Asked, ProfiledGpu, ProfileRefusal, Rules
from gpu_exporter.profiling.watch import Given, GpuFindings, ProfileWatch, devices, remembered

GPU = Gpu(0, "GPU-0")
MAIN = "thread (0x1): MainThread"
FOLDED = f"{MAIN};train (/a.py:1);load_batch (/a.py:3) 40\n{MAIN};step (/a.py:9) 10\n"
Answer = Callable[[Process], str | NotSampled]
Make = Callable[..., ProfileWatch]


class FakeSampler:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self, answer: Answer | OSError = lambda process: FOLDED) -> None:
        self.answer = answer
        self.asked: list[list[int]] = []

    def sample(self, processes: Sequence[Process], sampling: Sampling) -> Mapping[int, str | NotSampled]:
        self.asked.append([process.pid for process in processes])
        if isinstance(self.answer, OSError):
            raise self.answer
        return {process.pid: self.answer(process) for process in processes}


def fails(failure: SamplingFailure) -> Answer:
    return lambda process: NotSampled("it failed", failure)


def seen(*pids: int, paused: bool = False) -> list[GpuSamples]:
    samples = [Sample(Series(m.PROCESS_MEMORY, GPU, (("pid", str(pid)),)), 1000.0) for pid in pids]
    if paused:
        samples.append(Sample(Series(m.PROFILING_PAUSED, GPU, (("reason", "in_use"),)), 1.0))
    return [GpuSamples(GPU, 1.0, samples, {})]


def proc(folder: Path, pid: int, command: str = "python", *, comm: str = "python", tracer: int = 0) -> None:
    """Write what procfs says about a process."""
    (folder / str(pid)).mkdir(parents=True, exist_ok=True)
    fields = " ".join(["S", "1", *["0"] * 37])
    (folder / str(pid) / "stat").write_text(f"{pid} ({comm}) {fields}\n")
    (folder / str(pid) / "status").write_text(f"Uid:\t1000\t1000\t1000\t1000\nNSpid:\t{pid}\nTracerPid:\t{tracer}\n")
    (folder / str(pid) / "cmdline").write_bytes(command.encode() + b"\0")
    (folder / str(pid) / "comm").write_text(f"{comm}\n")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return what makes a thread, which is not started: the test calls `tick`."""

    def made(
        sampler: FakeSampler, reason: ProfileReason = ProfileReason.SCHEDULE, clock: Callable[[], float] = lambda: 0.0
    ) -> ProfileWatch:
        findings = {
            "GPU-0": GpuFindings("", {reason: "data-loading-bound"} if reason is not ProfileReason.SCHEDULE else {})
        }
        store = ProfileStore(tmp_path / "profiles", Bounds())
        rules = Rules(frozenset({reason}), after=10.0)
        files = HostFiles(tmp_path / "proc", Path("/sys"))
        return ProfileWatch(rules, lambda: findings, sampler, store, files, clock)

    return made


def ticked(watch: ProfileWatch, gpus: list[GpuSamples]) -> dict[str, float]:
    """Let the thread look once, and return the samples by name and label."""
    watch.samples(gpus)
    watch.tick()
    found = watch.samples(gpus)
    return {f"{series.metric.name}{''.join(f',{text}' for _, text in series.labels)}": value for series, value in found}


def test_a_profile_has_samples(make: Make, tmp_path: Path) -> None:
    proc(tmp_path / "proc", 7)
    sampler, now = FakeSampler(), [0.0]
    watch = make(sampler, ProfileReason.HOST_BOUND, lambda: now[0])
    for now[0] in (0.0, 9.9):
        assert ticked(watch, seen(7))["gpu_exporter_profiles_total,host-bound"] == 0
    for now[0] in (10.0, 11.0):
        found = ticked(watch, seen(7))
    assert sampler.asked == [[7]]
    assert found["gpu_exporter_profiles_total,host-bound"] == 1
    assert found["gpu_idle_cause_ratio,data_loading"] == pytest.approx(0.8)
    assert found["gpu_idle_cause_ratio,python"] == pytest.approx(0.2)
    (summary,) = watch.store.summaries
    assert found["gpu_profile_timestamp_seconds"] == summary.at
    assert summary.processes[0].causes[0].lines[0].frame == "/a.py(3): load_batch"


@pytest.mark.parametrize(
    ("failure", "tries"),
    [
        (SamplingFailure.NOT_PYTHON, 1),
        (SamplingFailure.ENDED, 2),
        (SamplingFailure.TIMEOUT, 1),
        (SamplingFailure.NOT_PERMITTED, 3),
        (SamplingFailure.SAMPLER, 3),
    ],
)
def test_what_is_tried_again(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, failure: SamplingFailure, tries: int
) -> None:
    """A program that responded badly is left alone. A fault of the node is tried again, and logged once."""
    proc(tmp_path / "proc", 7)
    sampler, now = FakeSampler(fails(failure)), [0.0]
    watch = make(sampler, clock=lambda: now[0])
    for now[0] in (0.0, GAP_SECONDS, 2 * GAP_SECONDS):
        found = ticked(watch, seen(7))
    assert len(sampler.asked) == tries
    assert found[f"gpu_exporter_profile_failures_total,{failure.value}"] == tries
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["profile: it failed"] * (2 if failure is SamplingFailure.ENDED else 1)
    assert found["gpu_exporter_profiles_total,schedule"] == 0
    assert len(watch.store.summaries) == tries


def test_budgets_and_bad_programs_outlive_a_restart(make: Make, tmp_path: Path) -> None:
    proc(tmp_path / "proc", 7)
    ticked(make(FakeSampler(fails(SamplingFailure.TIMEOUT))), seen(7))
    again = make(FakeSampler())
    again.store.load(0.0)
    (summary,) = again.store.summaries
    state = remembered(again.store.summaries, summary.at + 100, 5000.0)
    assert state.profiled == {"GPU-0": pytest.approx(4900.0)}
    assert state.avoided == ((1000, "python"),)


@pytest.mark.parametrize(
    ("comm", "command", "is_other"),
    [
        ("nsys", "nsys profile python", True),
        ("py-spy", "py-spy\0record\0--pid\x007", True),
        ("py-spy", "py-spy\0record\0--pid\x0077", False),
        ("python", "python\0nsys", False),
    ],
)
def test_somebody_else_profiles(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, comm: str, command: str, is_other: bool
) -> None:
    proc(tmp_path / "proc", 7)
    proc(tmp_path / "proc", 8, command, comm=comm)
    sampler = FakeSampler()
    found = ticked(make(sampler), seen(7))
    assert bool(sampler.asked) is not is_other
    assert found["gpu_exporter_profile_failures_total,other_profiler"] == is_other
    said = f"not profiled while somebody else profiles: {comm} is running (process 8)"
    assert (said in caplog.text) is is_other


def test_a_process_that_is_debugged(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    proc(tmp_path / "proc", 7, tracer=99)
    sampler = FakeSampler()
    ticked(make(sampler), seen(7))
    assert not sampler.asked
    assert "process 99 debugs process 7" in caplog.text


def test_not_while_dcgm_says_that_a_tool_uses_the_counters(make: Make, tmp_path: Path) -> None:
    proc(tmp_path / "proc", 7)
    sampler = FakeSampler()
    watch = make(sampler)
    ticked(watch, seen(7, paused=True))
    assert not sampler.asked
    ticked(watch, seen(7))
    assert sampler.asked


def test_200_processes(make: Make, tmp_path: Path) -> None:
    for pid in range(1, 201):
        proc(tmp_path / "proc", pid)
    sampler = FakeSampler()
    watch = make(sampler)
    ticked(watch, seen(*range(1, 201)))
    assert [len(asked) for asked in sampler.asked] == [MOST_PROCESSES]
    assert watch.store.summaries[0].left_out == 200 - MOST_PROCESSES


def test_a_process_that_ended_while_it_was_sampled(make: Make, tmp_path: Path) -> None:
    """Its stacks may be those of another process with its PID."""
    proc(tmp_path / "proc", 7)

    def ends(process: Process) -> str:
        (tmp_path / "proc" / "7" / "stat").unlink()
        return FOLDED

    found = ticked(make(FakeSampler(ends)), seen(7))
    assert found["gpu_exporter_profile_failures_total,process_ended"] == 1


def test_a_process_that_ended_before(make: Make) -> None:
    sampler = FakeSampler()
    watch = make(sampler)
    ticked(watch, seen(7))
    assert (sampler.asked, watch.store.summaries) == ([], [])


def test_without_disk_for_py_spy(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    proc(tmp_path / "proc", 7)
    watch = make(FakeSampler(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    found = ticked(watch, seen(7))
    assert found["gpu_exporter_profile_failures_total,disk"] == 1
    assert "--profile-dir: py-spy cannot write its result: No space left on device" in caplog.text


def test_hostile_names_stay_one_line(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    proc(tmp_path / "proc", 7, "python \x1b[31m\nprofile method=fake")
    watch = make(FakeSampler())
    ticked(watch, seen(7))
    assert watch.store.summaries[0].processes[0].command.isprintable()
    assert all(record.getMessage().isprintable() for record in caplog.records)


def test_the_largest_processes_come_first() -> None:
    memory = {1: 5.0, 2: 9.0}
    samples = [Sample(Series(m.PROCESS_MEMORY, GPU, (("pid", str(pid)),)), memory[pid]) for pid in memory]
    (device,) = devices([GpuSamples(GPU, 1.0, samples, {})], {})
    assert device.pids == (2, 1)
    (old,) = devices([GpuSamples(GPU, None, samples, {})], {})
    assert old.pids == ()


def test_a_request_of_a_person(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is taken at the next look, and audited with the user. A failure does not use up the budget."""
    caplog.set_level("INFO")
    proc(tmp_path / "proc", 7)
    sampler = FakeSampler(fails(SamplingFailure.NOT_PERMITTED))
    watch = make(sampler, ProfileReason.STRAGGLER)
    failed, refused = watch.ask(Asked("mia")), watch.ask(Asked("eve"))
    assert isinstance(refused.result(0), ProfileRefusal)
    ticked(watch, seen(7))
    answer = failed.result(0)
    assert isinstance(answer, Given)
    assert [each.reason for each in answer.summary.failed] == [SamplingFailure.NOT_PERMITTED]
    sampler.answer = lambda process: FOLDED
    taken, found = watch.ask(Asked("mia")), ticked(watch, seen(7))
    answer = taken.result(0)
    assert isinstance(answer, Given)
    assert answer.summary == watch.store.summaries[-1]
    assert [stacks.pid for stacks in answer.stacks] == [7]
    assert found["gpu_exporter_profiles_total,request"] == 1
    assert "reason=request:by=mia" in caplog.text
    over = watch.ask(Asked("mia"))
    ticked(watch, seen(7))
    assert isinstance(over.result(0), ProfileRefusal)


@pytest.mark.parametrize("takes", [True, False])
def test_a_trace_that_a_person_asks_for(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, takes: bool
) -> None:
    """A job that has recorded in vain is slower, too: also then the budget is used up."""
    caplog.set_level("INFO")
    proc(tmp_path / "proc", 7)
    asked: list[tuple[object, ...]] = []

    def trace(processes: Sequence[Process], options: TraceOptions, files: HostFiles, *others: object) -> Traced:
        asked.append((options, *others))
        stacks = [ProcessStacks(7, (0,), {"a": 1.0}, 0.0, StackKind.GPU)]
        if not takes:
            return Traced({}, (), (), (), [(process, GpuExporterError("garbage")) for process in processes], True)
        return Traced({"text": b"x"}, processes, (KernelTime("GPU-0", "gemm", 2.0),), stacks, (), True)

    monkeypatch.setattr(tracing, "trace", trace)
    watch = make(FakeSampler(), ProfileReason.STRAGGLER)
    answer = watch.ask(Asked("mia", seconds=0.5, trace=True, frames=False, outputs=("text",)))
    found = ticked(watch, seen(7))
    given = answer.result(0)
    assert isinstance(given, Given)
    assert asked == [(TraceOptions(0.5, stacks=False), {0: "GPU-0"}, ("text",))]
    assert "profile method=trace seconds=0.5 pids=7" in caplog.text
    assert given.summary.is_trace
    (summary,) = watch.store.summaries
    assert (summary, summary.seconds) == (given.summary, 0.5)
    if takes:
        assert [(each.pid, each.samples, each.gpus) for each in summary.processes] == [(7, 0, ("GPU-0",))]
        assert (given.outputs, found["gpu_kernel_class_seconds_total,gemm"]) == ({"text": b"x"}, 2.0)
        assert [stacks.kind for stacks in watch.store.stacks(summary.id) or ()] == [StackKind.GPU]
    else:
        assert [(each.reason, each.why) for each in summary.failed] == [(SamplingFailure.OTHER, "garbage")]
        assert (given.outputs, found["gpu_exporter_profiles_total,request"]) == ({}, 0)
    again = watch.ask(Asked("mia", trace=True))
    ticked(watch, seen(7))
    assert isinstance(again.result(0), ProfileRefusal)


def test_profiles_of_one_moment_have_ids_in_order(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the clock is set back."""
    proc(tmp_path / "proc", 7)
    now, unix = [0.0], iter([1_000_000.0, 1_000_000.0, 999_000.0])
    moment = [0.0]
    monkeypatch.setattr(watching, "time", SimpleNamespace(time=lambda: moment[0]))
    watch = make(FakeSampler(), clock=lambda: now[0])
    for now[0] in (0.0, GAP_SECONDS, 2 * GAP_SECONDS):
        moment[0] = next(unix)
        ticked(watch, seen(7))
    assert [summary.id for summary in watch.store.summaries] == ["0001000000000", "0001000000001", "0001000000002"]
    assert [summary.at for summary in watch.store.summaries] == [1_000_000.0, 1_000_000.0, 999_000.0]


def test_failures_of_the_node_are_logged_again_after_a_success(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proc(tmp_path / "proc", 7)
    sampler, now = FakeSampler(), [0.0]
    watch = make(sampler, clock=lambda: now[0])
    for number, answer in enumerate(
        (fails(SamplingFailure.DISK), fails(SamplingFailure.DISK), lambda _: FOLDED, fails(SamplingFailure.DISK))
    ):
        now[0], sampler.answer = number * GAP_SECONDS, answer
        ticked(watch, seen(7))
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["profile: it failed"] * 2


def test_somebody_who_asks_while_a_tool_uses_the_counters(make: Make, tmp_path: Path) -> None:
    proc(tmp_path / "proc", 7)
    watch = make(FakeSampler())
    answer = watch.ask(Asked("mia"))
    ticked(watch, seen(7, paused=True))
    assert answer.result(0) == ProfileRefusal("not profiled while another tool uses the profiling counters of a GPU")


def test_somebody_who_has_gone(make: Make, tmp_path: Path) -> None:
    proc(tmp_path / "proc", 7)
    sampler = FakeSampler()
    watch = make(sampler, ProfileReason.STRAGGLER)
    assert watch.ask(Asked("mia")).cancel()
    ticked(watch, seen(7))
    assert not sampler.asked


def test_an_error_is_also_the_answer(make: Make, tmp_path: Path) -> None:
    proc(tmp_path / "proc", 7)

    def broken(process: Process) -> str:
        raise ZeroDivisionError

    watch = make(FakeSampler(broken), ProfileReason.STRAGGLER)
    answer = watch.ask(Asked("mia"))
    with pytest.raises(ZeroDivisionError):
        ticked(watch, seen(7))
    with pytest.raises(ZeroDivisionError):
        answer.result(0)


def test_processes_that_are_avoided_leave_nothing(make: Make, tmp_path: Path) -> None:
    """Nothing was learnt of them; the next look at the same program does not start py-spy either."""
    proc(tmp_path / "proc", 7)
    sampler, now = FakeSampler(fails(SamplingFailure.TIMEOUT)), [0.0]
    watch = make(sampler, clock=lambda: now[0])
    for now[0] in (0.0, GAP_SECONDS):
        found = ticked(watch, seen(7))
    assert len(watch.store.summaries) == len(sampler.asked) == 1
    assert found["gpu_exporter_profile_failures_total,avoided"] == 1


def test_the_thread_goes_on_after_an_error(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error is logged once, until a look succeeds. Profiles of an earlier process are known from the start."""
    watch, looks = make(FakeSampler()), iter([True, True, False, True])
    loaded: list[float] = []
    monkeypatch.setattr(ProfileStore, "load", lambda store, now: loaded.append(now))
    waits = iter([False] * 4 + [True])
    monkeypatch.setattr(watch, "_stopping", SimpleNamespace(wait=lambda seconds: next(waits)))

    def tick() -> None:
        if next(looks):
            raise ZeroDivisionError

    monkeypatch.setattr(watch, "tick", tick)
    watch.run()
    assert len(loaded) == 1
    assert [record.getMessage() for record in caplog.records] == ["profiles: unexpected error, please report it"] * 2


def test_profiles_that_cannot_be_read(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails_to_load(store: ProfileStore, now: float) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(ProfileStore, "load", fails_to_load)
    watch = make(FakeSampler())
    watch.stop()
    watch.run()
    assert caplog.records[0].getMessage() == f"profiles of {watch.store.folder} cannot be read: Input/output error"


def test_what_is_remembered() -> None:
    """Stalls and traces have budgets of their own. A clock that was set back means now, not the future."""
    stall = Summary("1", 1000.0, ProfileReason.STALL, "", ("a", "b"), (0, 1), 5.0, rate=50)
    trace = Summary("2", 1100.0, ProfileReason.REQUEST, "", ("a", "b"), (0, 1), 5.0, rate=0)
    future = Summary("3", 9000.0, ProfileReason.SCHEDULE, "", ("a",), (0,), 5.0, rate=50)
    state = remembered([stall, trace], 1200.0, 5000.0)
    assert state.profiled == state.traced == {"a": 4900.0, "b": 4900.0}
    assert state.stalled == {"a": 4800.0, "b": 4800.0}
    assert remembered([stall, future], 1200.0, 5000.0).profiled == {"a": 5000.0, "b": 4800.0}


def test_what_is_found_about_gpus() -> None:
    """Processes are ordered by memory; one without memory comes last. A GPU without a UUID is not distinguished."""
    samples = [
        Sample(Series(m.PROCESS_SM, GPU, (("pid", "3"),)), 99.0),
        Sample(Series(m.PROCESS_MEMORY, GPU, (("pid", "2"),)), 9.0),
        Sample(Series(m.PROCESS_SM, GPU, (("pid", "2"),)), 1.0),
        Sample(Series(m.FB_USED, GPU, ()), 1.0),
    ]
    about = GpuFindings("ml/a", {ProfileReason.STALL: "x"}, True, frozenset({"ml/a"}))
    nameless = GpuSamples(Gpu(1, ""), 1.0, samples, {})
    found = devices([GpuSamples(GPU, 1.0, samples, {}), nameless], {"GPU-0": about})
    assert found == [ProfiledGpu("GPU-0", 0, (2, 3), "ml/a", {ProfileReason.STALL: "x"}, True, frozenset({"ml/a"}))]
