"""What `diagnose` says about stored profiles."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.stored_profiles import exporter_profiles, local_profiles
from gpu_exporter.http.client import Remote
from gpu_exporter.profiling.records import OddRank, Summary
from gpu_exporter.profiling.store import Bounds, ProfileStore
from gpu_exporter.profiling.views import lines_by_gpu
from gpu_exporter.reports.numbers import clock
from tests.unit.profiling.test_store import STACKS, summary

WHO = "process 7 (python <script>alert(1)</script> ../../x, rank 0)"
LINE = f"{WHO} spent 90 % of the time waiting at /a.py(3): load_batch"


def recent(seconds: float, number: int = 1) -> Summary:
    return summary(number, time.time() - seconds)


def test_the_latest_profile_of_each_gpu_is_told(tmp_path: Path) -> None:
    stored = ProfileStore(tmp_path, Bounds())
    now = time.time()
    for number, seconds in enumerate((7200, 300, 120)):
        stored.add(summary(number, now - seconds), STACKS)
    found = local_profiles(tmp_path)
    assert [each.id for each in found.summaries] == [f"{number:013}" for number in (1, 2)]
    lines = lines_by_gpu(found.summaries, [("3", "GPU-0"), ("4", "GPU-1")], now)
    assert lines == {"GPU-0": [f"Profile of GPU 3 at {clock(now - 120, now)} (2 min ago): {LINE}"]}


def test_a_folder_that_cannot_be_read_has_no_profiles(tmp_path: Path) -> None:
    assert local_profiles(tmp_path / "missing").summaries == []


def test_missing_ranks_are_told() -> None:
    odd = replace(recent(60), odd=(OddRank(9, "2", "/a.py(7): evaluate", 3, "/a.py(3): step"),))
    _, second = lines_by_gpu([odd], [("0", "GPU-0")], time.time())["GPU-0"]
    assert second.endswith(": process 9 (rank 2) is at /a.py(7): evaluate, while 3 others are at /a.py(3): step")


def test_an_exporter_is_asked_only_if_it_has_profiles() -> None:
    """Also for those of before its restart, which it does not count. That it cannot be asked is told."""
    nobody = Remote("http://127.0.0.1:1")
    for metric, value, asked in ((m.PROFILES, 0.0, False), (m.PROFILES, 1.0, True), (m.PROFILED_AT, 1e9, True)):
        found = exporter_profiles(nobody, [Scrape(0.0, [ScrapedSample(metric.name, {}, value)])])
        assert found.problem.startswith("the exporter's profiles are not shown: ") == asked
