"""Incidents and what GPUs did for jobs are kept: over restarts, within limits, and written only when they change."""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.xids import load
from gpu_exporter.diagnosis import history_store
from gpu_exporter.diagnosis.ended_jobs import JobReports
from gpu_exporter.diagnosis.history_store import HistoryStore
from gpu_exporter.diagnosis.job_usage import USAGE_SECONDS, JobUsage, rank_samples
from gpu_exporter.diagnosis.kept_history import KeptHistory
from gpu_exporter.diagnosis.kept_records import HOLD_SECONDS, GpuUsage, KeptUsage
from gpu_exporter.diagnosis.rolling import Current
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.events.event_store import EventStore
from gpu_exporter.io.file_access import InUse, WaitingWriters
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.reports.masking import Names
from tests import ROOT
from tests.unit.diagnosis.test_current import snapshots, watched

BEGIN = 1_780_000_000.0
EVER = (0.0, 2.0**33)
GPU_3 = {"gpu": "3", "UUID": "GPU-3", "node": "node-1", "pod": "train-3"}
NO_SAMPLES = Snapshot(0.0, "nvml", (), ())


def straggler(severity: str = "warning", **others: Any) -> dict[str, Any]:
    """Return an incident as a diagnosis has it."""
    return {
        "cause": "GpuStragglerSlow",
        "severity": severity,
        "words": "GPU 3 on node-1 slows down job train",
        "since": None,
        "culprits": [GPU_3],
        "hit": [],
        "jobs": ["ml/train"],
        "explains": [],
        "lost_gpu_hours_per_hour": 6.0,
        "advice": "Swap the GPUs of two ranks.",
        **others,
    }


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: BEGIN)


def judge(kept: KeptHistory, begin: float, end: float, *incidents: dict[str, Any], every: float = 30.0) -> None:
    """Let diagnoses find these incidents from `begin` to `end`, seconds after BEGIN."""
    at = begin
    while at <= end:
        kept.take(Current(BEGIN + at, incidents=incidents), NO_SAMPLES)
        kept._wait()
        at += every


def lines(directory: Path) -> list[dict[str, Any]]:
    """Return what was written, without the lines with the version."""
    return [
        json.loads(line)
        for path in sorted(directory.glob("history-*"))
        for line in path.read_text().splitlines()
        if "version" not in line
    ]


def test_an_incident_is_kept_with_its_cost(tmp_path: Path) -> None:
    kept = KeptHistory(tmp_path)
    judge(kept, 0, 1200, straggler())
    judge(kept, 1230, 1500)
    (incident,) = KeptHistory(tmp_path).incidents(*EVER)
    assert (incident.start, incident.end) == (BEGIN, BEGIN + 1200)
    assert incident.lost_gpu_hours == pytest.approx(2.0)
    assert incident.culprits == [GPU_3]
    assert incident.advice == "Swap the GPUs of two ranks."


def test_little_is_written_while_nothing_changes(tmp_path: Path) -> None:
    kept = KeptHistory(tmp_path)
    judge(kept, 0, 600)
    assert not list(tmp_path.iterdir())
    judge(kept, 630, 630 + 86400, straggler())
    assert len(lines(tmp_path)) < 45


def test_a_finding_of_one_diagnosis_is_no_incident(tmp_path: Path) -> None:
    kept = KeptHistory(tmp_path)
    judge(kept, 0, 0, straggler())
    judge(kept, 30, 600)
    assert kept.incidents(*EVER) == []
    judge(kept, 630, 630, straggler("critical"))
    judge(kept, 660, 1200)
    assert [each.severity for each in kept.incidents(*EVER)] == ["critical"]


def test_other_gpus_that_are_hit_are_written_at_once(tmp_path: Path) -> None:
    kept = KeptHistory(tmp_path)
    judge(kept, 0, 60, straggler())
    before = len(lines(tmp_path))
    judge(kept, 90, 90, straggler(hit=[{"gpu": "1", "UUID": "GPU-1"}]))
    assert lines(tmp_path)[before:][0]["incident"]["hit"] == [{"gpu": "1", "UUID": "GPU-1"}]


def test_an_incident_goes_on_after_a_restart(tmp_path: Path) -> None:
    first = KeptHistory(tmp_path)
    judge(first, 0, 600, straggler())
    first.close()
    second = KeptHistory(tmp_path)
    judge(second, 660, 1200, straggler())
    judge(second, 1230, 1500)
    (incident,) = second.incidents(*EVER)
    assert (incident.start, incident.end) == (BEGIN, BEGIN + 1200)


def test_what_a_killed_exporter_did_not_see_end_ends_when_it_was_last_written(tmp_path: Path) -> None:
    judge(KeptHistory(tmp_path), 0, 600, straggler())
    later = KeptHistory(tmp_path)
    judge(later, 3600, 3600 + HOLD_SECONDS)
    (incident,) = later.incidents(*EVER)
    assert incident.end is not None
    assert BEGIN + 450 <= incident.end <= BEGIN + 600


def test_a_line_that_was_cut_off_is_skipped(tmp_path: Path) -> None:
    kept = KeptHistory(tmp_path)
    judge(kept, 0, 600, straggler())
    (path,) = tmp_path.glob("history-*")
    path.write_bytes(path.read_bytes()[:-20])
    judge(kept, 630, 900)
    (incident,) = KeptHistory(tmp_path).incidents(*EVER)
    assert incident.end == BEGIN + 600


def test_what_a_full_disk_refused_is_written_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each record once, also if the disk took half a line; without a try at each diagnosis."""
    kept = KeptHistory(tmp_path)
    judge(kept, 0, 60, straggler())
    (path,) = tmp_path.glob("history-*")
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, limits[1]))
    try:
        judge(kept, 90, 600)
        assert path.read_bytes() == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    judge(kept, 601, 602, every=1.0)
    assert path.read_bytes() == before
    judge(kept, 660, 720, straggler(words="another"))
    (incident,) = [each["incident"] for each in lines(tmp_path) if each.get("incident", {}).get("end")]
    assert incident["start"] == BEGIN
    assert len({json.dumps(each) for each in lines(tmp_path)}) == len(lines(tmp_path))
    assert [record.getMessage() for record in caplog.records] == [
        f"--state-dir: {path}: No space left on device; it is tried again every minute"
    ]


def test_the_file_of_a_newer_version_is_left_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = HistoryStore(tmp_path)
    store.append(BEGIN, [b"{}"])
    (path,) = tmp_path.glob("history-*")
    path.write_text('{"version": 99}\n')
    kept = KeptHistory(tmp_path)
    judge(kept, 0, 600, straggler())
    assert path.read_text() == '{"version": 99}\n'
    assert "a newer gpu-exporter" in caplog.text


def test_days_and_bytes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_store, "MOST_BYTES", 30_000)
    store = HistoryStore(tmp_path)
    for day in range(40):
        store.append(BEGIN + day * 86400, [b"x" * 100])
    assert len(list(tmp_path.glob("history-*.jsonl"))) == history_store.KEPT_DAYS
    for day in range(40, 80):
        store.append(BEGIN + day * 86400, [b"x" * 2000])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 32_000


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "state")
    store.append(BEGIN, [b"{}"])
    (path,) = (tmp_path / "state").glob("history-*")
    path.unlink()
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    path.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        store.append(BEGIN, [b"{}"])
    assert victim.read_text() == "mine\n"


def test_without_a_directory_the_last_ones_are_in_memory() -> None:
    kept = KeptHistory()
    for number in range(150):
        judge(kept, number * 1000, number * 1000 + 60, straggler())
        judge(kept, number * 1000 + 90, number * 1000 + 240)
    assert len(kept.recent()) == 100
    assert kept.recent()[0].start == BEGIN + 149_000


def loop(taken: Snapshot, steps: float, job: str = "llm") -> Snapshot:
    """Return a snapshot with the sums of a rank of a training loop on GPU 0."""
    gpu, who = Gpu(0, "GPU-0"), (("job_id", job), ("rank", "0"))
    rows: Sequence[Sample] = (
        Sample(Series(m.JOB_RANK_INFO, gpu, (*who, ("clock", "gpu"))), 1.0),
        Sample(Series(m.JOB_STEP, gpu, who, "_count"), steps),
        Sample(Series(m.JOB_STEP, gpu, who, "_sum"), steps * 2),
        Sample(Series(m.JOB_ACTIVITY, gpu, (*who, ("activity", "training"))), steps * 2),
        Sample(Series(m.JOB_PHASE, gpu, (*who, ("phase", "waiting"))), steps / 2),
        Sample(Series(m.JOB_PHASE, gpu, (*who, ("phase", "backward"))), steps),
    )
    return Snapshot(taken.at, "nvml", (*taken.samples, *rows), taken.gpus)


def test_what_gpus_did_for_a_job_is_kept(tmp_path: Path) -> None:
    kept, values = KeptHistory(tmp_path), {m.GR_ENGINE_ACTIVE: 1.0, m.SM_ACTIVE: 0.9, m.FB_USED: 9000.0}
    for number in range(int(USAGE_SECONDS / 30) + 2):
        taken = snapshots([values] * 2, begin=BEGIN + 30 * number)
        kept.take(watched(taken).current, loop(taken[-1], 10.0 * number))
        kept._wait()
    assert len(lines(tmp_path)) >= 1
    gpus = [gpu for period in kept.usage(*EVER) for gpu in period.gpus if gpu.UUID == "GPU-0"]
    assert sum(gpu.seconds for gpu in gpus) == pytest.approx(USAGE_SECONDS + 30)
    assert sum(gpu.time["useful"] for gpu in gpus) == pytest.approx(0.9 * USAGE_SECONDS, rel=0.1)
    assert {(gpu.job, gpu.job_id, gpu.rank) for gpu in gpus} == {("ml/train", "llm", "0")}
    assert sum(gpu.steps for gpu in gpus) == pytest.approx(210)
    assert sum(gpu.activity["training"] for gpu in gpus) == pytest.approx(420)
    assert sum(gpu.waiting_seconds for gpu in gpus) == pytest.approx(105)


def test_what_ranks_of_jobs_before_sent_is_forgotten() -> None:
    usage, values = JobUsage(), {m.GR_ENGINE_ACTIVE: 1.0, m.SM_ACTIVE: 0.9}
    for number in range(20):
        taken = snapshots([values], begin=BEGIN + 30 * number)
        usage.take(watched(taken).current, rank_samples(loop(taken[-1], 1.0, f"job-{number}")), 30.0)
        assert usage.complete(BEGIN + 30 * number, now=True)
        assert len(usage._sums) == 1


def test_the_answer_agrees_with_the_schema_and_hides_names(tmp_path: Path) -> None:
    import jsonschema  # takes a second

    kept = KeptHistory(tmp_path)
    judge(kept, 0, 600, straggler())
    schema = json.loads((ROOT / "gpu_exporter" / "live_page" / "schema.json").read_text())
    answer = kept.answer("node-1", *EVER, Names(mask=False))
    jsonschema.validate(json.loads(answer), {**schema, "$ref": "#/$defs/past"})
    assert b"train" in answer
    assert b"train" not in kept.answer("node-1", *EVER, Names(mask=True))


def test_a_report_is_written_when_a_job_has_ended(tmp_path: Path) -> None:
    """Its ranks send nothing any more, while the pod is still there."""
    reports = tmp_path / "reports"
    ends = JobReports(reports, "node-1", Names(mask=False))
    kept, values = KeptHistory(tmp_path, ends), {m.GR_ENGINE_ACTIVE: 1.0, m.SM_ACTIVE: 0.9}
    for number in range(30):
        taken = snapshots([values], begin=BEGIN + 30 * number)
        runs = number < 10
        kept.take(watched(taken).current, loop(taken[-1], 10.0 * number) if runs else taken[-1])
        kept._wait()
        assert bool(list(reports.iterdir())) == (number > 13)
    (page,) = reports.glob("llm-*.html")
    assert "Job llm" in page.read_text()
    (found,) = [json.loads(path.read_text()) for path in reports.glob("llm-*.json")]
    assert found["ranks"][0]["node"] == "node-1"
    assert found["ranks"][0]["steps"] == 90
    assert found["goodput"] > 0.6


def test_a_report_that_cannot_be_written_is_written_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "reports").write_text("no directory")
    said = f"--job-reports: {tmp_path / 'reports'}: File exists"
    ends = JobReports(tmp_path / "reports", "node-1", Names(mask=False))
    kept, values = KeptHistory(tmp_path / "state", ends), {m.GR_ENGINE_ACTIVE: 1.0, m.SM_ACTIVE: 0.9}
    for number in range(30):
        taken = snapshots([values], begin=BEGIN + 30 * number, job="train" if number < 10 else "")
        kept.take(watched(taken).current, taken[-1])
        kept._wait()
        if number == 0:  # at the start
            assert caplog.messages == [f"{said}; it is tried again when a job has ended"]
        if number == 20:
            (tmp_path / "reports").unlink()
    assert len(list((tmp_path / "reports").glob("*train*.html"))) == 1
    assert caplog.messages[1:] == [f"{said}; it is tried again every minute"]
    written = lines(tmp_path / "state")
    assert len({json.dumps(each) for each in written}) == len(written)


def test_a_second_exporter_of_the_directory_writes_once_the_first_has_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While both run, as in a rolling update, nothing that GPUs did for a job counts twice."""
    first, second = KeptHistory(tmp_path), KeptHistory(tmp_path)
    values = {m.GR_ENGINE_ACTIVE: 1.0, m.SM_ACTIVE: 0.9}
    for number in range(42):
        taken = snapshots([values], begin=BEGIN + 30 * number, job="train")
        for kept in (first, second) if number < 21 else (second,):
            kept.take(watched(taken).current, taken[-1])
            kept._wait()
        if number == 20:
            first.close()
    second.close()
    assert [each["usage"]["start"] - BEGIN for each in lines(tmp_path)] == [21.0, 621.0, 1221.0]
    (said,) = caplog.messages
    assert said == str(InUse(tmp_path))


def test_two_exporters_of_one_directory_say_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Events and history have a file with a lock each, but a person needs one line."""

    def exporter() -> tuple[EventLog, EventStore, KeptHistory]:
        waiting = WaitingWriters()
        return EventLog(load(), lambda pci: None), EventStore(tmp_path, waiting), KeptHistory(tmp_path, waiting=waiting)

    first, second, values = exporter(), exporter(), {m.GR_ENGINE_ACTIVE: 1.0, m.SM_ACTIVE: 0.9}
    for number in range(42):
        taken = snapshots([values], begin=BEGIN + 30 * number, job="train")
        for log, events, kept in (first, second):
            events.save(log, 0)
            kept.take(watched(taken).current, taken[-1])
            kept._wait()
    assert caplog.messages == [str(InUse(tmp_path))]


def test_names_in_a_report_are_masked(tmp_path: Path) -> None:
    kept = KeptHistory(tmp_path)
    judge(kept, 0, 600, straggler())
    usage = [KeptUsage(BEGIN, BEGIN + 600, [GpuUsage("GPU-3", "3", job="ml/train", job_id="llm", seconds=600.0)])]
    names = Names(mask=True)
    JobReports(tmp_path / "reports", "node-1", names).write(
        ("ml/train", BEGIN, BEGIN + 600), (kept.incidents(*EVER), usage)
    )
    written = list((tmp_path / "reports").iterdir())
    texts = [path.name + path.read_text() for path in written]
    assert len(texts) == 2
    assert not [name for name in ("train", "llm", "ml/") for text in texts if name in text]
    assert all("GpuStragglerSlow" in text and names.name("workload", "train") in text for text in texts)


def test_without_the_setting_no_report_is_written(tmp_path: Path) -> None:
    kept, values = KeptHistory(tmp_path), {m.GR_ENGINE_ACTIVE: 1.0, m.SM_ACTIVE: 0.9}
    for number in range(16):
        taken = snapshots([values], begin=BEGIN + 30 * number, job="train" if number < 10 else "")
        kept.take(watched(taken).current, taken[-1])
        kept._wait()
    assert [path for path in tmp_path.iterdir() if not path.name.startswith("history")] == []


def test_a_job_cannot_name_another_place(tmp_path: Path) -> None:
    reports = JobReports(tmp_path / "reports", "node-1", Names(mask=False))
    reports.write(("../../etc/x", BEGIN, BEGIN + 100), ([], []))
    assert [path.name.partition("-")[0] for path in tmp_path.rglob("*.html")] == ["_.._etc_x"]
    assert [path.name for path in tmp_path.iterdir()] == ["reports"]
