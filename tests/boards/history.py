"""The fleet's scrapes of some hours, run through the project's rules on a virtual clock, as data for a Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.boards import fleet, pages, plan
from tests.operation.encode import ABSENT, LINE, SEQUENCE
from tests.operation.run import PROGRAM, RULES

# Seconds between two scrapes: as many as the rules allow without another result, because each takes time to make.
STEP = 30
# Seconds between two lines that say that something still runs, and the shares of scrapes after which one is written.
HEARTBEAT, SHARES = 20, 10
CLUSTER = "west"
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Values that change more often than this share of the scrapes are written one by one.
OFTEN = 0.2


class Recorder:
    """The values of all series, as the scrapes at which they change; None while a series is absent."""

    def __init__(self) -> None:
        self._changes: dict[tuple[str, str], list[tuple[int, float | None]]] = {}
        self._present: dict[str, set[str]] = {}
        self._length = 0

    def add(self, target: str, page: str, scrape: int) -> None:
        """Add the page of one scrape of a target."""
        before, now = self._present.get(target, set()), set[str]()
        for line in page.splitlines():
            if line.startswith("#"):
                continue
            series, _, value = line.rpartition(" ")
            now.add(series)
            self._note(target, series, scrape, float(value))
        for series in before - now:
            self._note(target, series, scrape, None)
        self._present[target], self._length = now, scrape + 1

    def _note(self, target: str, series: str, scrape: int, value: float | None) -> None:
        changes = self._changes.setdefault((target, series), [])
        if not changes or changes[-1][1] != value:
            changes.append((scrape, value))

    def write(self, path: Path, start: int) -> None:
        """Write the scrapes for virtual_clock."""
        loads: list[list[float]] = []
        series = [
            {"Labels": _labels(target, text), "Parts": list(self._parts(changes, loads))}
            for (target, text), changes in self._changes.items()
        ]
        period = {"Start": start, "Step": STEP, "Ticks": self._length, "Loads": loads, "Series": series}
        path.write_text(json.dumps(period))

    def _parts(self, changes: Sequence[tuple[int, float | None]], loads: list[list[float]]) -> Iterator[Sequence[Any]]:
        if changes[0][0]:
            yield changes[0][0], ABSENT, 0, 0
        stretch: list[tuple[int, float]] = []
        for (begin, value), end in zip(changes, [*(at for at, _ in changes[1:]), self._length], strict=True):
            if value is not None:
                stretch.append((end - begin, value))
                continue
            yield from _encoded(stretch, loads)
            stretch = []
            yield end - begin, ABSENT, 0, 0
        yield from _encoded(stretch, loads)


def _encoded(stretch: Sequence[tuple[int, float]], loads: list[list[float]]) -> Iterator[Sequence[Any]]:
    length = sum(ticks for ticks, _ in stretch)
    if len(stretch) <= max(1, OFTEN * length):
        yield from ((ticks, LINE, value, 0) for ticks, value in stretch)
        return
    if stretch:
        loads.append([value for ticks, value in stretch for _ in range(ticks)])
        yield length, SEQUENCE, len(loads) - 1, 1


def _labels(target: str, series: str) -> dict[str, str]:
    name, _, labels = series.partition("{")
    job, _, instance = target.partition("/")
    return {"__name__": name, "job": job, "instance": instance, "cluster": CLUSTER, **dict(LABEL.findall(labels))}


def _say(what: str, begun: float) -> None:
    print(f"{what}, after {time.perf_counter() - begun:.0f} s", flush=True)


def record(path: Path, length: float = plan.LENGTH) -> None:
    """Scrape the fleet for `length` virtual seconds, and write that for virtual_clock."""
    clock, recorder, scrapes, begun = fleet.Clock(), Recorder(), int(length) // STEP, time.perf_counter()
    with fleet.started(clock, STEP) as nodes:
        for scrape in range(scrapes):
            if scrape * SHARES // scrapes > (scrape - 1) * SHARES // scrapes:
                _say(f"scrapes: {scrape} of {scrapes}", begun)
            clock.now = float(scrape * STEP)
            for node in nodes:
                node.tick()
                recorder.add(f"gpu/{node.name}:9400", node.page.decode() + "up 1\n", scrape)
            recorder.add("kube-state-metrics/kube-state-metrics:8080", pages.kube_page(clock.now) + "up 1\n", scrape)
            recorder.add("vllm/llm-serve-0:8000", pages.server_page(clock.now) + "up 1\n", scrape)
    recorder.write(path, int(plan.START))


def blocks(folder: Path, program: Path = PROGRAM) -> Path:
    """Return a new data folder of Prometheus with the scrapes, all recorded series and all alerts."""
    period, data, kept = folder / "period.json", folder / "tsdb", folder / "data"
    record(period)
    command = [str(program), str(period), f"{RULES}/*.yaml", str(data), str(kept)]
    begun = time.perf_counter()
    with (folder / "alerts.jsonl").open("wb") as alerts, subprocess.Popen(command, stdout=alerts, cwd=ROOT) as process:
        while process.poll() is None:
            _say("rules are evaluated", begun)
            with suppress(subprocess.TimeoutExpired):
                process.wait(HEARTBEAT)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    period.unlink()
    shutil.rmtree(data)
    return kept
