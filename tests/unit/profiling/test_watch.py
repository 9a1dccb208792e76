"""The thread that profiles: what it stores, counts and logs, with a sampler whose answers are made up."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.profile_reason import Reason
from gpu_exporter.model.snapshot import GpuSamples
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import Failure, NotSampled, Sampling
from gpu_exporter.profiling.store import Bounds, ProfileStore
from gpu_exporter.profiling.triggers import GAP_SECONDS, MOST_PROCESSES, Asked, Refusal, Rules
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


def fails(failure: Failure) -> Answer:
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
        sampler: FakeSampler, reason: Reason = Reason.SCHEDULE, clock: Callable[[], float] = lambda: 0.0
    ) -> ProfileWatch:
        findings = {"GPU-0": GpuFindings("", {reason: "data-loading-bound"} if reason is not Reason.SCHEDULE else {})}
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
    watch = make(sampler, Reason.HOST_BOUND, lambda: now[0])
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
        (Failure.NOT_PYTHON, 1),
        (Failure.ENDED, 2),
        (Failure.TIMEOUT, 1),
        (Failure.NOT_PERMITTED, 3),
        (Failure.SAMPLER, 3),
    ],
)
def test_what_is_tried_again(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, failure: Failure, tries: int
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
    assert said == ["profile: it failed"] * (2 if failure is Failure.ENDED else 1)
    assert found["gpu_exporter_profiles_total,schedule"] == 0
    assert len(watch.store.summaries) == tries


def test_budgets_and_bad_programs_outlive_a_restart(make: Make, tmp_path: Path) -> None:
    proc(tmp_path / "proc", 7)
    ticked(make(FakeSampler(fails(Failure.TIMEOUT))), seen(7))
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
    sampler = FakeSampler(fails(Failure.NOT_PERMITTED))
    watch = make(sampler, Reason.STRAGGLER)
    failed, refused = watch.ask(Asked("mia")), watch.ask(Asked("eve"))
    assert isinstance(refused.result(0), Refusal)
    ticked(watch, seen(7))
    answer = failed.result(0)
    assert isinstance(answer, Given)
    assert [each.reason for each in answer.summary.failed] == [Failure.NOT_PERMITTED]
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
    assert isinstance(over.result(0), Refusal)
