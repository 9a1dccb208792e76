"""What the history of a node with eight GPUs takes after 30 days: bytes on disk, memory, and the time of a question."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.diagnosis import kept_history
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.kept_history import KeptHistory
from gpu_exporter.diagnosis.rolling import Current
from gpu_exporter.diagnosis.scrape import DeviceKey, ScrapedSample
from gpu_exporter.diagnosis.window import DeviceIdentity
from gpu_exporter.reports.masking import Names
from tests.support.tools import LIMIT
from tests.unit.diagnosis.test_kept_history import straggler

pytestmark = pytest.mark.slow

BEGIN, DAY, DAYS = 1_780_000_000.0, 86400.0, 30
GPUS = range(8)
SHARES = {Cause.USEFUL: 0.6, Cause.PEERS: 0.3, Cause.HOST: 0.1}
DEVICES = [DeviceKey("", f"GPU-00000000-0000-0000-0000-00000000000{index}", "") for index in GPUS]
HIT = [{"gpu": str(index), "UUID": device.uuid, "pod": f"train-{index}"} for index, device in enumerate(DEVICES)]


def diagnosed(job: int) -> dict[DeviceKey, Diagnosis]:
    """Return what eight ranks of a job do."""
    return {
        device: Diagnosis(
            device,
            DeviceIdentity(gpu=str(index), namespace="ml", pod=f"train-{index}", workload=f"train-{job}"),
            None,
            (),
            {},
            {},
            shares=SHARES,
        )
        for index, device in enumerate(DEVICES)
    }


def samples(job: int, steps: float) -> list[ScrapedSample]:
    """Return the sums of eight ranks."""
    found = []
    for index, device in enumerate(DEVICES):
        who = {"UUID": device.uuid, "job_id": f"llm-{job}", "rank": str(index)}
        found += [
            ScrapedSample(m.JOB_RANK_INFO.name, who, 1.0),
            ScrapedSample(f"{m.JOB_STEP}_count", who, steps),
            ScrapedSample(f"{m.JOB_STEP}_sum", who, 2 * steps),
            ScrapedSample(m.JOB_ACTIVITY.name, {**who, "activity": "training"}, 2 * steps),
        ]
    return found


def test_thirty_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs all the time, another one each day, each hour an incident of ten minutes that hits all GPUs, and one of
    severity `info` that lasts for the whole month."""
    # What waits for a disk, or for a core, is in memory meanwhile.
    monkeypatch.setattr(kept_history, "CLOSE_SECONDS", LIMIT)
    kept = KeptHistory(tmp_path)
    tracemalloc.start()
    first_day = 0
    for number in range(int(DAYS * DAY / 30)):
        at = 30.0 * number
        job = int(at / DAY)
        found = [straggler("info", cause="GpuMemoryBound", jobs=["ml/always"], culprits=HIT)]
        if at % 3600 < 600:
            found.append(straggler(hit=HIT, jobs=[f"ml/train-{job}"]))
        kept.add(Current(BEGIN + at, diagnosed(job), incidents=found), samples(job, at))
        if at % 3600 == 0:
            kept._wait()
        if at == DAY:
            first_day = tracemalloc.get_traced_memory()[0]
    kept.close()
    grown = tracemalloc.get_traced_memory()[0] - first_day
    tracemalloc.stop()
    on_disk = sum(path.stat().st_size for path in tmp_path.iterdir())
    begin = time.monotonic()
    kept.answer("node-1", BEGIN + 28 * DAY, BEGIN + 29 * DAY, Names(mask=False))
    seconds = time.monotonic() - begin
    print(f"{on_disk / 1e6:.1f} MB on disk, {grown / 1e3:.0f} kB more memory, a day in {seconds:.2f} s")
    assert on_disk < 16 << 20
    assert grown < 1 << 20
    assert seconds < 2
    urgent = [each for each in kept.incidents(BEGIN, BEGIN + DAYS * DAY) if each.severity != "info"]
    assert len(urgent) >= 24 * (DAYS - 1)  # 30 days have 31 dates, of which the oldest is deleted
