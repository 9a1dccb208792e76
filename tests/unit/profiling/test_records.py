"""Summaries and stacks of profiles, and the series that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.causes import STACK_WORDS, TraceCause
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Labels
from gpu_exporter.model.profile_reason import ProfileReason
from gpu_exporter.model.snapshot import GpuSamples
from gpu_exporter.profiling import records
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import NotSampled, Sampling, SamplingFailure
from gpu_exporter.profiling.records import (
    CauseShare,
    CodeLine,
    FailedProcess,
    KernelTime,
    OddRank,
    ProcessStacks,
    ProfiledProcess,
    StackKind,
    Summary,
)
from gpu_exporter.profiling.result import ProcessProfile, all_stacks, folded_lines, process_profile
from gpu_exporter.profiling.stacks import parse
from gpu_exporter.profiling.views import MOST_LABEL, SHOWN_SECONDS, ProfileSeries, latest_of

PROCESS = Process(7, 1, 1000, "train.py", 70, (0, 1), "3")
MAIN = "thread (7): MainThread"
FOLDED = "".join(
    (
        *(f"{MAIN};step (/t.py:{line});load_batch (/t.py:{line}) {line}\n" for line in (10, 20, 30, 40)),
        f"{MAIN};step (/t.py:5) 233\n",
        "thread (8): watch;f (/w.py:1) 9\n",
        *(f'process {pid}:"w";thread ({pid}): MainThread;decode (/d.py:1) 500\n' for pid in (8, 9)),
    )
)


def profile(folded: str = FOLDED) -> ProcessProfile:
    return process_profile(PROCESS, parse(folded, {7}), Sampling(10.0, 33))


def test_a_summary_has_the_main_thread() -> None:
    """Its causes, each with its costliest lines; child processes may be seen more often."""
    found = records.process_summary(profile(), ["GPU-a"])
    assert (found.pid, found.uid, found.command, found.rank, found.gpus) == (7, 1000, "train.py", "3", ("GPU-a",))
    assert found.samples == 333
    python, loading = found.causes
    assert (python.cause, python.seconds, python.share) == (TraceCause.PYTHON, 7.061, 0.6997)
    assert python.words == STACK_WORDS[TraceCause.PYTHON]
    assert (loading.cause, loading.seconds, loading.share) == (TraceCause.DATA_LOADING, 3.03, 0.3003)
    assert loading.lines == tuple(CodeLine(f"/t.py({line}): load_batch", round(line / 333, 4)) for line in (40, 30, 20))
    assert records.process_summary(profile("thread (8): x;f (/w.py:1) 9\n"), []).causes == ()
    assert records.traced_process(PROCESS, ["GPU-a"]) == replace(found, samples=0, causes=())


def test_stacks_of_a_profile() -> None:
    found = records.process_stacks(profile())
    assert (found.pid, found.gpus, found.kind, found.workers, found.left_out) == (7, (0, 1), StackKind.WALL, 2, 0.0)
    assert list(found.stacks)[:2] == ["workers;thread MainThread;/d.py(1): decode", "main thread;/t.py(5): step"]
    assert records.process_stacks(profile("")).workers == 0


def test_a_stored_profile_is_read_again() -> None:
    """All that the reports need; a group of workers has the number that there were."""
    before = profile()
    again = records.profile_again(records.process_summary(before, []), records.process_stacks(before), before.sampling)
    assert again.threads == before.threads
    assert again.samples == before.samples
    assert again.process == replace(PROCESS, started=0, inner_pid=7)


def test_the_text_of_stacks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most costly ones are kept; of equal ones, those that come first in the alphabet."""
    monkeypatch.setattr(records, "MOST_TEXT", 10)
    kept, rest = records.most_costly({"ccccc": 1.0, "bbbbb": 1.0, "aaaaa": 2.00000049, "d": 0.1234})
    assert kept == {"aaaaa": 2.0, "bbbbb": 1.0}
    assert rest == 1.123


@pytest.mark.parametrize(
    ("rank", "others", "words"),
    [
        ("2", 3, "process 7 (rank 2) is at a, while 3 others are at b"),
        ("", 1, "process 7 is at a, while 1 other is at b"),
    ],
)
def test_an_odd_process_in_words(rank: str, others: int, words: str) -> None:
    assert records.in_words(OddRank(7, rank, "a", others, "b")) == words


def test_a_failure() -> None:
    error = NotSampled("it failed", SamplingFailure.TIMEOUT)
    assert records.failure(PROCESS, error) == FailedProcess(7, 1000, "train.py", SamplingFailure.TIMEOUT, "it failed")


def summary(
    number: int = 1,
    at: float = 1000.0,
    *,
    processes: Sequence[ProfiledProcess] = (),
    kernels: Sequence[KernelTime] = (),
) -> Summary:
    return Summary(
        f"{number:013}", at, ProfileReason.STALL, "", ("a",), (0,), 5.0, 50, tuple(processes), kernels=tuple(kernels)
    )


def profiled(*gpus: str, samples: int = 9, **seconds: float) -> ProfiledProcess:
    causes = tuple(CauseShare(TraceCause(name), "", value, 0.5, ()) for name, value in seconds.items())
    return ProfiledProcess(7, 0, "t.py", "", gpus, samples, causes)


def test_files_come_back() -> None:
    """The first line is the summary, so that a list reads only that."""
    given = summary(processes=[profiled("a", python=1.0)], kernels=[KernelTime("a", "gemm", 2.0)])
    stacks = [ProcessStacks(7, (0,), {"a;b\n": 1.5}, 0.5, StackKind.IDLE, 3)]
    content = records.encode(given, stacks)
    assert records.decode_summary(content) == given
    assert records.decode_stacks(content) == stacks
    assert content == records.encode(given, stacks)
    for bad in (b"", b"x", content[:20]):
        with pytest.raises(ValueError, match=r"."):
            records.decode_summary(bad)


def test_shares_of_causes() -> None:
    """Of the main threads of all processes on a GPU together."""
    found = summary(
        processes=[
            profiled("a", python=1.0, data_loading=2.0),
            profiled("a", "b", python=1.0),
            profiled("b", copies=4.0),
        ]
    )
    assert records.cause_shares(found, "a") == {TraceCause.PYTHON: 0.5, TraceCause.DATA_LOADING: 0.5}
    assert records.cause_shares(found, "b") == {TraceCause.PYTHON: 0.2, TraceCause.COPIES: 0.8}
    assert records.cause_shares(summary(processes=[profiled("a")]), "a") == {}


def test_the_latest_profile_of_a_gpu() -> None:
    """A trace says nothing about what main threads wait for."""
    found = [
        summary(1, 10.0, processes=[profiled("a")]),
        summary(2, 20.0, processes=[profiled("a"), profiled("b")]),
        summary(3, 30.0, processes=[profiled("b", samples=0)]),
    ]
    assert latest_of(found, "a", 0.0) is latest_of(found, "b", 20.0) is found[1]
    assert latest_of(found, "a", 20.1) is None
    assert latest_of(found, "c", 0.0) is None


def test_series_of_profiles() -> None:
    """GPUs that are gone have none. The same series is the same object each time."""
    series, gpus = ProfileSeries(), [GpuSamples(Gpu(index, uuid), 1.0, (), {}) for index, uuid in enumerate("ab")]
    series.count(
        ProfileReason.STALL, [(PROCESS, SamplingFailure.ENDED), (PROCESS, SamplingFailure.ENDED)], succeeded=True
    )
    series.count(ProfileReason.STALL, [], succeeded=True)
    series.count(ProfileReason.SCHEDULE, [], succeeded=False)
    series.count_failure(SamplingFailure.DISK)
    for seconds in (0.1234564, 1.0):
        series.add_kernels(summary(kernels=[KernelTime("b", "gemm", seconds), KernelTime("gone", "gemm", 5.0)]))
    stored = [summary(1, 1000.0, processes=[profiled("a", python=1.0, copies=2.0)])]

    def samples(now: float) -> dict[tuple[str, str, str], float]:
        return {
            (each.metric.name, each.gpu.uuid if each.gpu else "", "".join(value for _, value in each.labels)): value
            for each, value in series.samples(gpus, stored, now)
        }

    found = samples(1000.0 + SHOWN_SECONDS)
    assert {key: value for key, value in found.items() if value} == {
        (m.PROFILES.name, "", "stall"): 2,
        (m.PROFILE_FAILURES.name, "", "process_ended"): 2,
        (m.PROFILE_FAILURES.name, "", "disk"): 1,
        (m.KERNEL_CLASS.name, "b", "gemm"): 1.123456,
        (m.PROFILED_AT.name, "a", ""): 1000.0,
        (m.IDLE_CAUSE.name, "a", "python"): 0.3333,
        (m.IDLE_CAUSE.name, "a", "copies"): 0.6667,
    }
    assert {label for name, _, label in found if name == m.PROFILES.name} == {reason.value for reason in ProfileReason}
    assert {label for name, _, label in found if name == m.PROFILE_FAILURES.name} == {
        each.value for each in SamplingFailure
    }
    first, again = (series.samples(gpus, stored, 1000.0) for _ in range(2))
    assert all(one.series is other.series for one, other in zip(first, again, strict=True))
    later = samples(1000.1 + SHOWN_SECONDS)
    assert set(found) - set(later) == {key for key in found if key[0] in (m.PROFILED_AT.name, m.IDLE_CAUSE.name)}


def waiting(reason: ProfileReason, at: float, **frames: str) -> Summary:
    """Return a profile whose main thread spends half, then a quarter of its time at these lines, by cause."""
    causes = tuple(
        CauseShare(TraceCause(name), "", 1.0, 0.5, (CodeLine(frame, 0.5 / place),))
        for place, (name, frame) in enumerate(frames.items(), 1)
    )
    of_process = ProfiledProcess(7, 0, "t.py --token=secret", "", ("a",), 9, causes)
    return replace(summary(1, at, processes=[of_process]), reason=reason)


def test_the_line_that_keeps_a_gpu_waiting() -> None:
    """Opt-in. Waiting for the GPU is none, nor is a profile of a GPU that may be busy. No folder, no command."""
    gpus = [GpuSamples(Gpu(0, "a"), 1.0, (), {})]
    frames = {"synchronisation": "/home/mia/train.py(9): step", "data_loading": "/home/mia/data.py(31): load > poll"}
    bound = waiting(ProfileReason.HOST_BOUND, 1000.0, **frames)

    def lines(*stored: Summary, now: float = 1000.0, wanted: bool = True) -> list[tuple[Labels, float]]:
        found = ProfileSeries(lines=wanted).samples(gpus, stored, now)
        return [(series.labels, value) for series, value in found if series.metric is m.WAITING_LINE]

    assert lines(bound) == [((("cause", "data_loading"), ("line", "data.py:31 load")), 0.25)]
    assert lines(bound, wanted=False) == []
    assert lines(bound, now=1000.1 + SHOWN_SECONDS) == []
    scheduled = waiting(ProfileReason.SCHEDULE, 1060.0, python="/home/mia/train.py(2): main")
    assert lines(scheduled) == []
    assert lines(bound, scheduled) == lines(bound)
    assert lines(waiting(ProfileReason.STRAGGLER, 1000.0, synchronisation="/home/mia/train.py(9): step")) == []
    native = waiting(ProfileReason.STALL, 1000.0, collectives="n" * 500)
    assert [len(labels[1][1]) for labels, _ in lines(native)] == [MOST_LABEL]


def test_folded_lines() -> None:
    """The most costly first, without blanks that would end a stack, and without those below a microsecond."""
    assert folded_lines({"a b": 1e-6, "c\n d": 2.0, "e": 4e-7, "f": 2.0}) == ["f 2000000", "c d 2000000", "a b 1"]
    two = [profile("thread (7): MainThread;f (/a.py:1) 33\n"), profile("thread (7): MainThread;f (/a.py:1) 66\n")]
    two[1] = replace(two[1], process=replace(PROCESS, pid=8))
    assert all_stacks(two[:1]) == {"main thread;/a.py(1): f": 1.0}
    assert all_stacks(two) == {
        "process 7;main thread;/a.py(1): f": 1.0,
        "process 8;main thread;/a.py(1): f": 2.0,
    }
