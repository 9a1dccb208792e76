"""From DCGM's samples to values and reasons, from profiling samples to spans, from metrics to field requests."""

from __future__ import annotations

import threading

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.io.user_text import Hostengine, hostengine
from gpu_exporter.model.errors import SourceLost
from gpu_exporter.model.gpu import Series
from gpu_exporter.model.metric import Labels, Metric, Pace
from gpu_exporter.sources.dcgm import connection
from gpu_exporter.sources.dcgm.bindings import Attributes
from gpu_exporter.sources.dcgm.connection import CallThread
from gpu_exporter.sources.dcgm.demand import Demand, sampling, sampling_of_means
from gpu_exporter.sources.dcgm.device import identify
from gpu_exporter.sources.dcgm.plan import GpuParts, plan
from gpu_exporter.sources.dcgm.profiling import ProfilingReads
from gpu_exporter.sources.dcgm.values import Entity, EntityGroup, FieldAnswer, answer, gpu, link
from tests.support.tools import LIMIT, until
from tests.support.virtual_time import Clock

I64, F64 = 0x7FFFFFFFFFFFFFF0, 2.0**47


@pytest.mark.parametrize(
    ("status", "kind", "raw", "value", "reason"),
    [
        (0, "i", 42, 42, ""),
        (0, "d", 0.5, 0.5, ""),
        (0, "s", "GPU-1", "GPU-1", ""),
        (0, "i", I64 - 1, I64 - 1, ""),
        (0, "i", I64, None, "no_value"),
        (0, "i", I64 + 1, None, "not_supported"),
        (0, "i", I64 + 2, None, "not_supported"),
        (0, "i", I64 + 3, None, "no_permission"),
        (0, "i", I64 + 9, None, "no_value"),
        (0, "i", 2**47 + 5, 2**47 + 5, ""),  # a counter may have this value
        (0, "i", 0x7FFFFFF2, None, "not_supported"),
        (0, "d", F64, None, "no_value"),
        (0, "d", F64 + 2, None, "not_supported"),
        (0, "d", F64 + 3, None, "no_permission"),
        (0, "d", float("nan"), None, "no_value"),
        (0, "s", "<<<NOT_SUPPORTED>>>", None, "not_supported"),
        (0, "s", "", None, "no_value"),
        (0, "b", 7, None, "not_supported"),
        (-6, "i", 42, None, "not_supported"),
        (-14, "i", I64, None, "no_data"),
        (-16, "i", I64, None, "no_data"),
        (-18, "i", I64, None, "lost"),
        (-99, "i", 42, None, "unknown"),
    ],
)
def test_answers(status: int, kind: str, raw: float | str, value: float | str | None, reason: str) -> None:
    """A blank is no value with any status; a failing status is a reason with any value."""
    assert answer(status, kind, raw, 5) == FieldAnswer(value, reason, status, 5)


def test_links() -> None:
    """dcgm_link_t: kind in the lowest byte, link above, owner in the highest."""
    assert link(gpu(2), 5) == Entity(EntityGroup.LINK, 2 << 24 | 5 << 8 | 1)
    assert link(Entity(EntityGroup.SWITCH, 1), 0) == Entity(EntityGroup.LINK, 1 << 24 | 3)


@pytest.mark.parametrize(
    ("text", "address", "socket"),
    [
        ("", "", ""),
        ("localhost:5556", "localhost:5556", ""),
        ("gpu-7.example", "gpu-7.example:5555", ""),
        ("[fd00::7]:5555", "[fd00::7]:5555", ""),
        ("unix:///run/he.sock", "", "/run/he.sock"),
        ("/run/he.sock", "", "/run/he.sock"),
    ],
)
def test_host_engines(text: str, address: str, socket: str) -> None:
    """All common forms of an address."""
    assert hostengine(text) == Hostengine(address, socket)


@pytest.mark.parametrize("text", ["fd00::7:5555", "host:0", "host:99999", "tcp://host:1", "host:", "he.sock/x"])
def test_no_host_engine(text: str) -> None:
    """The error is one line with an example."""
    with pytest.raises(ValueError, match="use host:port"):
        hostengine(text)


# Every field is sampled each second.
SECOND = dict.fromkeys(Pace, 1.0)
ERRORS = ("crc", "replay", "recovery")


def _series(metric: Metric, labels: Labels) -> Series:
    return Series(metric, None, labels)


def test_a_plan_keeps_profiling_apart() -> None:
    """Each field is requested once, at the pace of its fastest row; profiling has its own requests."""
    asked = plan(_series, gpu(3), [m.SM_ACTIVE, m.POWER, m.ENERGY, m.ENERGY_JOULES, m.MIG_PENDING], GpuParts())
    seconds = {request.fields: request.seconds for request in asked.plain_requests(sampling(0.5, Demand.ALL))}
    assert [request.fields for request in asked.profiling_requests(SECOND)] == [(1002,)]
    assert seconds[(155,)] == 0.5
    assert seconds[(156,)] < Pace.SLOW.value
    assert asked.unsupported == {m.MIG_PENDING: "no_field"}


def test_a_plan_in_mig_mode() -> None:
    """Values of instances are not requested for the GPU, so that no sum counts a GPU twice."""
    part = Entity(EntityGroup.GPU_I, 9)
    parts = GpuParts(instances={part: (("GPU_I_ID", "1"),)}, mig=True)
    asked = plan(_series, gpu(0), [m.SM_ACTIVE, m.FB_USED, m.POWER], parts)
    assert [question.entity for question in asked.profiling] == [part]
    assert {question.series.metric: question.entity for question in asked.plain} == {m.FB_USED: part, m.POWER: gpu(0)}
    alone = plan(_series, gpu(0), [m.SM_ACTIVE], GpuParts(mig=True))
    assert alone.series == set()


def test_a_sum_is_dcgms_own_only_without_its_parts() -> None:
    """Its window differs from that of the parts; a pause of these ends, so it is no reason to use it. It is not watched
    before that is known."""
    rows = [m.NVLINK_TX, m.NVLINK_RX, m.NVLINK_BOTH]
    asked = plan(_series, gpu(0), rows, GpuParts())
    (own,) = asked.plain
    assert asked.plain_requests(SECOND) == []
    assert [request.fields for request in asked.sum_requests(SECOND)] == [(449,)]

    def computed(reason: str) -> bool:
        profiling = ProfilingReads(asked.profiling, SECOND, 0.0, {})
        if reason:
            profiling.refuse([gpu(0)], 1011, reason)
        return own.series in profiling.computed_sums(asked.plain, {}, 0.0)

    assert [computed(reason) for reason in ("", "paused", "not_supported")] == [True, True, False]
    alone = plan(_series, gpu(0), [m.NVLINK_BOTH], GpuParts())
    assert [request.fields for request in alone.plain_requests(SECOND)] == [(449,)]
    assert ProfilingReads((), SECOND, 0.0, {}).computed_sums(alone.plain, {}, 0.0) == set()


def test_pcie_throughput_is_never_asked_of_dcgm() -> None:
    """DCGM never answers, and the driver's call busy-waits."""
    asked = plan(_series, gpu(0), [m.PCIE_TX, m.PCIE_TX_KB, m.PCIE_RX_KB], GpuParts())
    assert asked.plain == ()
    assert asked.unsupported == {m.PCIE_TX_KB: "no_field", m.PCIE_RX_KB: "no_field"}


CRC, REPLAY, RECOVERY = (next(row for row in m.LINK_ERRORS if row.labels == (("type", of),)) for of in ERRORS)


@pytest.mark.parametrize(
    ("metric", "index", "measured", "place"),
    [
        (CRC, 0, True, (gpu(2), 400)),
        (CRC, 6, True, (gpu(2), 451)),
        (CRC, 14, True, (gpu(2), 408)),
        (CRC, 17, True, (gpu(2), 483)),
        (REPLAY, 15, True, (gpu(2), 487)),
        (RECOVERY, 15, True, (gpu(2), 491)),  # 490 is none
        (RECOVERY, 17, False, (gpu(2), 493)),
        (m.LINK_TX, 3, True, (gpu(2), 1046)),
        (m.LINK_RX, 17, True, (gpu(2), 1075)),
        (m.LINK_TX, 3, False, None),
        (CRC, 18, True, (link(gpu(2), 18), 1525)),
        (m.LINK_TX, 18, True, None),
    ],
)
def test_values_of_links_are_those_of_the_gpu(
    metric: Metric, index: int, measured: bool, place: tuple[Entity, int] | None
) -> None:
    """A host engine reads watched fields of links at each pass of its loop, so none is watched: of links that fields of
    the GPU do not know, errors are read live, and traffic, which is measured between two samples, not at all."""
    asked = plan(_series, gpu(2), [metric], GpuParts(links=(index,), measures_links=measured))
    assert [query.key for query in (*asked.plain, *asked.profiling)] == ([place] if place else [])
    assert asked.unsupported == ({} if place else {metric: "not_supported"})
    watched = [*asked.plain_requests(SECOND), *asked.profiling_requests(SECOND)]
    assert {entity for request in watched for entity in request.entities} <= {gpu(2)}


def test_means_are_read_more_often_than_they_are_sampled() -> None:
    """So that none is missed. Their integral is exact over any time, and a costly one is sampled less often."""
    asked = plan(_series, gpu(0), [m.SM_ACTIVE, m.GR_ENGINE_ACTIVE, m.LINK_TX], GpuParts(links=(0,)))
    seconds = sampling_of_means(1.0, Demand.ALL)
    sampled = {request.fields: request.seconds for request in asked.profiling_requests(seconds)}
    assert sampled == {(1001,): 5.0, (1002,): 1.0, (1040,): 15.0}
    assert all(query.pace.value < max(1.0, seconds[query.sampled]) for query in asked.profiling)


@pytest.mark.parametrize(
    ("hidden", "seconds"),
    [((), {100: 1.0, 150: 1.0, 156: 7.5}), ((m.SM_CLOCK, m.GPU_TEMP, m.ENERGY), {100: 5.0, 150: 1.0, 156: 7.5})],
)
def test_hidden_metrics_are_sampled_less_often(hidden: tuple[Metric, ...], seconds: dict[int, float]) -> None:
    """But for the temperature, by which the host engine's pace is judged."""
    asked = plan(_series, gpu(0), [m.SM_CLOCK, m.GPU_TEMP, m.ENERGY], GpuParts(), hidden=hidden)
    requests = asked.plain_requests(sampling(1.0, Demand.ALL))
    assert {field: request.seconds for request in requests for field in request.fields} == seconds


Read = tuple[dict[Series, float], dict[Series, float], dict[Series, str]]


def _profiling(since: float = 0.0) -> tuple[ProfilingReads, Series]:
    asked = plan(_series, gpu(0), [m.SM_ACTIVE], GpuParts())
    return ProfilingReads(asked.profiling, SECOND, since, {}), asked.profiling[0].series


def _read(profiling: ProfilingReads, at: float, value: float | None, stamp: int) -> Read:
    values: dict[Series, float] = {}
    spans: dict[Series, float] = {}
    failed: dict[Series, str] = {}
    answers = {(gpu(0), 1002): FieldAnswer(value, "" if value is not None else "no_value", 0, stamp)}
    profiling.read(answers, at, None, None, values, spans, failed)
    return values, spans, failed


def test_a_sample_counts_once() -> None:
    """The first sample covers one interval, later ones the time since the previous one; repeated ones do not count."""
    profiling, series = _profiling()
    assert _read(profiling, 0.5, None, 500_000) == ({}, {}, {})
    assert _read(profiling, 1.0, 0.5, 1_000_000) == ({series: 0.5}, {series: 1.0}, {})
    assert _read(profiling, 1.4, 0.5, 1_000_000) == ({}, {}, {})
    assert _read(profiling, 3.0, 0.6, 3_000_000) == ({series: 0.6}, {series: 2.0}, {})
    assert _read(profiling, 9.0, 0.7, 9_000_000) == ({series: 0.7}, {series: 1.0}, {})  # the time between is unknown
    assert _read(profiling, 9.5, 0.7, 100_000)[1] == {series: 1.0}  # a clock that was set back


def test_a_pause() -> None:
    """It is reported once, if there were values before, and ends with the next value."""
    profiling, series = _profiling()
    _read(profiling, 1.0, 0.5, 1_000_000)
    assert _read(profiling, 3.0, None, 3_000_000)[2] == {}
    assert _read(profiling, 9.0, None, 9_000_000)[2] == {series: "paused"}
    assert profiling.pause == "no_values"
    assert _read(profiling, 10.0, None, 10_000_000)[2] == {}
    assert profiling.is_due(31.0)
    assert _read(profiling, 32.0, 0.5, 32_000_000)[0] == {series: 0.5}
    assert profiling.pause == ""


def test_a_value_with_an_old_time_stamp_is_stale() -> None:
    """Its time stamp does not change any more."""
    profiling, series = _profiling()
    _read(profiling, 1.0, 0.5, 1_000_000)
    assert _read(profiling, 9.0, 0.5, 1_000_000)[2] == {series: "no_data"}


@pytest.mark.parametrize(
    ("capability", "name"),
    [(8 << 16, "Ampere"), (8 << 16 | 6, "Ampere"), (8 << 16 | 9, "Ada"), (9 << 16, "Hopper"), (12 << 16, "Blackwell")],
)
def test_identity(capability: int, name: str) -> None:
    """In NVML's terms; unknown details are left out."""
    known = Attributes("GPU-1", "NVIDIA A100", "00000000:07:00.0", "", "92.00", "", "580.1")
    found = identify(
        4, known, {63: FieldAnswer(capability, "", 0, 1), 5: FieldAnswer(13010, "", 0, 1), 55: FieldAnswer(7, "", 0, 1)}
    )
    assert (found.index, found.device, found.driver) == (4, "nvidia7", "580.1")
    info = dict(found.info)
    assert info.keys() == {"driver_version", "cuda_version", "vbios_version", "architecture", "compute_capability"}
    assert (info["architecture"], info["cuda_version"]) == (name, "13.1")


@pytest.mark.slow
def test_a_call_that_is_stuck() -> None:
    """Other calls are refused at once. When it returns, the same thread executes calls again."""
    caller, release = CallThread("host engine"), threading.Event()
    threads: list[int] = []

    def note() -> int:
        threads.append(threading.get_ident())
        return 7

    assert caller.call(note, LIMIT) == 7
    with pytest.raises(SourceLost, match="does not answer") as lost:
        caller.call(lambda: release.wait(), 0.05)
    assert lost.value.reason == "stalled"
    with pytest.raises(SourceLost):
        caller.call(note, LIMIT)
    assert len(threads) == 1
    assert caller.stuck > 0
    release.set()
    until(lambda: not caller.stuck, what="the end of the call")
    assert caller.call(note, LIMIT) == 7
    assert len(set(threads)) == 1


@pytest.mark.slow
def test_a_long_job_that_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline applies to each call, not to the job."""
    caller, clock = CallThread("host engine"), Clock()
    monkeypatch.setattr(connection, "time", clock)

    def job() -> str:
        for _ in range(12):
            caller.heartbeat()
            clock.pass_by(0.6)
        return "done"

    assert caller.call(job, 1.0) == "done"


def test_a_job_past_its_deadline_stops_at_its_next_call() -> None:
    """On a host engine that hangs, each further call would take a minute."""
    caller, release, beats = CallThread("host engine"), threading.Event(), []

    def job() -> None:
        release.wait()
        for _ in range(3):
            caller.heartbeat()
            beats.append(1)

    with pytest.raises(SourceLost):
        caller.call(job, 0.05)
    release.set()
    until(lambda: not caller.stuck, what="the end of the call")
    assert caller.call(lambda: list(beats), LIMIT) == []


def test_a_thread_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is down with the reason until a thread can be started."""
    caller = CallThread("host engine")

    def refuse(connection: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as refusing:
        refusing.setattr(threading.Thread, "start", refuse)
        with pytest.raises(SourceLost, match="can't start new thread: raise the limit") as lost:
            caller.call(lambda: 1, LIMIT)
    assert lost.value.reason == "no_thread"

    assert caller.call(lambda: 7, LIMIT) == 7
