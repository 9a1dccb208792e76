"""The thread that reads the evidence of all GPUs: when it reads, what it exposes, and what it withdraws."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host import threads, watch
from gpu_exporter.host.watch import HostWatch
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.snapshot import GpuSamples, Row
from gpu_exporter.owners.host_owner import owner_labels
from tests.support.fakes.procfs import FakeHost, Task

GPUS = [Gpu(index, f"GPU-{index}", f"00000000:0{index}:00.0") for index in range(2)]
POD = "11111111-2222-3333-4444-555555555555"
CGROUP = f"0::/kubepods/besteffort/pod{POD}/{'a' * 64}\n"


def seen(gpu: Gpu, pid: int, busy: float, *, up: bool = True) -> GpuSamples:
    """Return the samples of a GPU with one process."""
    process = Series(m.PROCESS_MEMORY, gpu, (("pid", str(pid)), ("process", "python")))
    samples = [Sample(process, 1.0), Sample(Series(m.GR_ENGINE_ACTIVE, gpu), busy)]
    return GpuSamples(gpu, time.monotonic() if up else None, samples, {})


def values(rows: Sequence[Row], gpu: Gpu) -> dict[str, float]:
    return {row.metric.name: row.value for row in rows if row.gpu is gpu}


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """Two processes, one for each GPU."""
    host = FakeHost(tmp_path)
    host.add(Task(100, b"train\x1b[2J", cgroup=CGROUP))
    host.add(Task(200))
    return host


def test_a_gpu_that_waits_is_read_at_each_look(host: FakeHost) -> None:
    """The other one only once per period, so that a waiting job does not raise the cost of all."""
    thread = HostWatch(host.files)
    gpus = [seen(GPUS[0], 100, 0.2), seen(GPUS[1], 200, 0.99)]
    thread.rows(gpus)
    thread.poll(time.monotonic())
    for task in host.tasks.values():
        task.run(0.5)
    host.write()
    time.sleep(0.01)
    thread.poll(time.monotonic())
    rows = thread.rows(gpus)

    assert values(rows, GPUS[0])[m.HOST_CPU.name] == pytest.approx(0.5)
    assert m.HOST_CPU.name not in values(rows, GPUS[1])
    thread.poll(math.inf)
    assert values(thread.rows(gpus), GPUS[1])[m.HOST_CPU.name] == pytest.approx(0.5)


def test_names_only_where_they_are_wanted(host: FakeHost) -> None:
    """The process, its user and its pod; the command line, which may contain secrets, only for `diagnose`."""
    gpus = [seen(GPUS[0], 100, 0.2)]
    found = []
    for names, commands in ((False, False), (True, False), (True, True)):
        thread = HostWatch(host.files, names=names, commands=commands, owner_of=owner_labels)
        thread.rows(gpus)
        thread.poll(time.monotonic())
        found.append([dict(row.labels) for row in thread.rows(gpus) if row.metric is m.HOST_PROCESS])

    of_pod = {"pod_uid": POD.replace("-", ""), "container_id": "a" * 12}
    identity = {"pid": "100", "process": "train\N{REPLACEMENT CHARACTER}[2J", "uid": "1000", **of_pod}
    assert found == [[], [identity], [{**identity, "command": "python train.py"}]]


def test_what_is_absent_has_a_reason(host: FakeHost) -> None:
    """A process that this procfs does not have."""
    thread = HostWatch(host.files)
    gpus = [seen(GPUS[0], 4711, 0.2)]
    thread.rows(gpus)
    thread.poll(time.monotonic())

    reasons = {row.labels for row in thread.rows(gpus) if row.metric is m.SUPPORTED}

    assert (("metric", m.HOST_LAUNCH_CPU.name), ("reason", "no_process")) in reasons


def test_nothing_of_a_gpu_that_does_not_answer(host: FakeHost) -> None:
    """The driver's list of its processes is outdated."""
    thread = HostWatch(host.files)
    thread.rows([seen(GPUS[0], 100, 0.2, up=False)])
    thread.poll(time.monotonic())

    assert thread.rows([seen(GPUS[0], 100, 0.2, up=False)]) == []


def test_old_evidence_is_withdrawn(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that hangs in procfs must not leave values that look fresh."""
    thread = HostWatch(host.files)
    gpus = [seen(GPUS[0], 100, 0.2)]
    thread.rows(gpus)
    thread.poll(time.monotonic())
    assert thread.rows(gpus)
    now = time.monotonic()
    monkeypatch.setattr(
        "gpu_exporter.host.watch.time.monotonic", lambda: now + threads.STALE_PERIODS * watch.PERIOD_SECONDS + 1
    )

    assert thread.rows(gpus) == ()


def test_an_error_ends_nothing(host: FakeHost, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once, and the thread goes on."""
    thread = HostWatch(host.files)
    polls = []

    def poll(now: float) -> None:
        polls.append(1)
        if len(polls) == 3:
            thread.stop()
        raise RuntimeError("unforeseen")

    thread.poll = poll  # type: ignore[method-assign]
    thread._wait = lambda begun: None  # type: ignore[method-assign]
    thread.run()

    assert len(polls) == 3
    assert [record.message for record in caplog.records] == ["host evidence: unexpected error, please report it"]
