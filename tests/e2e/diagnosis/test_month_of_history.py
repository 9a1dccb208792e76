"""What the history of a node with eight GPUs takes after 30 days: bytes on disk, memory, and the time of a question."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import time
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
from tests import ROOT
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


class _Malloc(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def allocated() -> int:
    """Return the bytes that this process has allocated; all of them if Python allocates each object by malloc."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Malloc
    found = mallinfo()
    return int(found.uordblks + found.hblkhd)


def live(folder: Path) -> int:
    """Live through the month; return by how many bytes memory grows after the first day.

    Jobs all the time, another one each day, each hour an incident of ten minutes that hits all GPUs, and one of
    severity `info` that lasts for the whole month.
    """
    kept_history.CLOSE_SECONDS = LIMIT  # what waits for the disk is in memory meanwhile
    kept = KeptHistory(folder)
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
            first_day = allocated()
    kept.close()
    return allocated() - first_day


@pytest.mark.slowest
def test_thirty_days(tmp_path: Path) -> None:
    """In a process of its own, so that nothing else allocates; tracing allocations would take five times as long."""
    command = [sys.executable, "-m", "tests.e2e.diagnosis.test_month_of_history", str(tmp_path)]
    environment = {**os.environ, "PYTHONMALLOC": "malloc"}
    lived = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    grown = int(lived.stdout)
    on_disk = sum(path.stat().st_size for path in tmp_path.iterdir())
    kept = KeptHistory(tmp_path)
    begin = time.monotonic()
    kept.answer("node-1", BEGIN + 28 * DAY, BEGIN + 29 * DAY, Names(mask=False))
    seconds = time.monotonic() - begin
    print(f"{on_disk / 1e6:.1f} MB on disk, {grown / 1e3:.0f} kB more memory, a day in {seconds:.2f} s")
    assert on_disk < 16 << 20
    assert grown < 1 << 20
    assert seconds < 2
    urgent = [each for each in kept.incidents(BEGIN, BEGIN + DAYS * DAY) if each.severity != "info"]
    assert len(urgent) >= 24 * (DAYS - 1)  # 30 days have 31 dates, of which the oldest is deleted


if __name__ == "__main__":
    print(live(Path(sys.argv[1])))
