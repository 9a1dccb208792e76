"""Compare hourly sums with the truth where scrapes are missing: `python -m tests.operation.hours`.

Each case is a fleet whose GPU hours, cost, waste and energy are known; Prometheus' own rule engine evaluates the rules
over its scrapes.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_exporter.alerting.hourly_sums import COST, ENERGY, GPU_HOURS, REPORTS, TIME_HOURS, WASTED
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes.cost import PRICES
from gpu_exporter.catalogue.failure_modes.mode import Ramp, Wave
from gpu_exporter.catalogue.failure_modes.profiles import HEALTHY
from tests.operation.encode import ABSENT, LINE
from tests.operation.run import PROGRAM, RULES
from tests.rules.needed import write_read
from tests.rules.series import Device, Generation, Stretch, parts_of, rank
from tests.rules.shapes import STEP, Integral, Part
from tests.support.tools import tool

NODES, GPUS, HOURS, HOUR = 4, 2, 6, 3600
# The first hours fill the windows of the rules.
SETTLED = 2
PRICE = next(price.value for price in PRICES if price.name == "usdPerGpuHour")
# A GPU that is idle for a quarter of its time.
ENGINE, WATTS = 0.75, 400.0
LOAD = {**HEALTHY, m.GR_ENGINE_ACTIVE: ENGINE, m.SM_ACTIVE: 0.72, m.GPU_UTIL: 75.0, m.POWER: WATTS}
IDLE = 1 - ENGINE
# Whether a scrape, at this number of seconds from the start, of a target succeeds.
Scraped = Callable[[float, Mapping[str, str]], bool]
START = 1_767_225_600


@dataclass(frozen=True, slots=True)
class Scene:
    """Devices, with stories in steps of `STEP` seconds, and how they are scraped."""

    name: str
    devices: Sequence[Device]
    scraped: Scraped = lambda at, target: True
    interval: int = 30
    stopped: Sequence[tuple[float, float]] = field(default=())
    restarts: Sequence[float] = field(default=())

    def truth(self, start: float, end: float) -> Mapping[str, Mapping[str, float]]:
        """Return what each namespace used between two times, by the name of the hourly sum."""
        found: dict[str, dict[str, float]] = {}
        instances = len({device.instance for device in self.devices})
        for device in {(each.uuid, each.instance): each for each in self.devices}.values():
            at = 0.0
            for each in device.story:
                begin, at = at, at + each.steps * STEP
                hours = max(0.0, min(end, at) - max(start, begin)) / HOUR / instances
                if not hours or each.fault == "absent":
                    continue
                lost, sums = each.fault == "lost", found.setdefault((each.owner or {}).get("namespace", ""), {})
                used = {
                    GPU_HOURS: hours,
                    TIME_HOURS: 0 if lost else hours,
                    COST: hours * PRICE,
                    WASTED: hours * PRICE * (1 if lost else IDLE),
                    ENERGY: 0 if lost else hours * WATTS / 1000,
                }
                for of, value in used.items():
                    sums[of.record] = sums.get(of.record, 0.0) + value
        return found


def steps(hours: float) -> int:
    """Return how many steps of a story this time is."""
    return round(hours * HOUR / STEP)


def busy(hours: float, owner: str = "a", fault: str = "") -> Stretch:
    """Return a stretch of a GPU that a namespace uses."""
    return Stretch(steps(hours), LOAD, fault, owner={**rank("train"), "namespace": owner} if owner else {})


def fleet(story: Sequence[Stretch] = (), instances: int = 0) -> list[Device]:
    """Return GPUs that all have one story."""
    return [
        Device(f"n{node}", gpu, story or [busy(HOURS)], full=False, instance=str(part) if instances else "")
        for node in range(NODES)
        for gpu in range(GPUS)
        for part in range(max(1, instances))
    ]


def failing(rate: float, seed: int = 1) -> Scraped:
    """Return scrapes of which this share fail, in each target at other times."""
    chance = random.Random(seed)
    drawn: dict[tuple[float, str], bool] = {}

    def scraped(at: float, target: Mapping[str, str]) -> bool:
        return drawn.setdefault((at, f"{target['job']} {target['instance']}"), chance.random() >= rate)

    return scraped


def gaps(minutes: float, every: float = HOUR) -> Scraped:
    """Return scrapes that miss a time in each hour, in each target at another time."""

    def scraped(at: float, target: Mapping[str, str]) -> bool:
        begin = 900 + 421 * int(target["instance"][1])
        return not begin <= at % every < begin + minutes * 60

    return scraped


def scenes() -> Iterator[Scene]:
    """Yield all cases."""
    for interval in (15, 30, 60):
        yield Scene(f"every {interval} s", fleet(), interval=interval)
        for rate in (0.1, 0.5):
            name = f"every {interval} s, {rate:.0%} of scrapes fail"
            yield Scene(name, fleet(), failing(rate), interval)
    for minutes in (1, 2, 5, 20):
        yield Scene(f"a gap of {minutes} min in each hour", fleet(), gaps(minutes))
    for minutes in (2, 5, 20):
        stopped = [(HOUR * hour + 1000, HOUR * hour + 1000 + 60 * minutes) for hour in range(HOURS)]
        yield Scene(f"Prometheus is down for {minutes} min in each hour", fleet(), stopped=stopped)
    restarts = [HOUR * hour + 1000.0 for hour in range(HOURS)]
    yield Scene("the exporter restarts in each hour", fleet(), gaps(1), restarts=restarts)
    twice = [replace(device, target={"job": job}) for device in fleet() for job in ("gpu-exporter", "second")]
    yield Scene("two scrapers, 10 % of scrapes fail", twice, failing(0.1))
    both = [*fleet(), *(replace(device, generation=Generation.DCGM_4_9) for device in fleet())]
    yield Scene("dcgm-exporter beside it, 10 % of scrapes fail", both, failing(0.1))
    yield Scene("dcgm-exporter alone, 10 % of scrapes fail", both[NODES * GPUS :], failing(0.1))
    lost = fleet([busy(4), busy(HOURS - 4, fault="lost")])
    yield Scene("lost after two of four hours", lost)
    moved = fleet([busy(4), busy(HOURS - 4, "b")])
    yield Scene("another namespace after two of four hours", moved)
    often = fleet([each for hour in range(HOURS) for each in (busy(0.5), busy(0.5, "b"))])
    yield Scene("another namespace every half hour", often)
    yield Scene("the same, 10 % of scrapes fail", often, failing(0.1))
    removed = fleet([each for hour in range(HOURS) for each in (busy(0.5), busy(0.5, fault="absent"))])
    yield Scene("nodes are removed every half hour", removed)
    yield Scene("MIG, 10 % of scrapes fail", fleet(instances=2), failing(0.1))


def series(scene: Scene) -> Iterator[Mapping[str, object]]:
    """Yield the series of a case as virtual_clock reads them."""
    ticks = HOURS * HOUR // scene.interval
    for (name, labels), parts in parts_of(scene.devices).items():
        lines, target = list(_lines(parts, scene.restarts)), dict(labels)
        runs: list[list[float]] = []
        last: tuple[float, float] | None = None
        for tick in range(ticks):
            at = tick * scene.interval
            line = lines[min(at // STEP, len(lines) - 1)] if scene.scraped(at, target) else None
            if name == "up":
                line = (line[0] if line else 0.0, 0.0)
            if line is not None:
                value = line[0] + line[1] * at
                start, slope = value, line[1] * scene.interval
            if runs and line == last:
                runs[-1][0] += 1
            else:
                runs.append([1, ABSENT, 0, 0] if line is None else [1, LINE, start, slope])
            last = line
        yield {"Labels": {"__name__": name, **target}, "Parts": runs}


def _lines(parts: Sequence[Part], restarts: Iterable[float]) -> Iterator[tuple[float, float] | None]:
    """Yield for each step the line that a series follows: its value at second 0, and its slope."""
    place, resets = 0, [0.0, *restarts]
    for length, shape in parts:
        for step in range(place, place + length):
            since = max(each for each in resets if each <= step * STEP)
            match shape:
                case Integral():
                    rate = _mean(shape[0]) * shape[1]
                    yield -rate * since, rate
                case Ramp(start, slope):
                    yield start - slope * place * STEP, slope
                case None:
                    yield None
                case _:
                    yield _mean(shape), 0.0
        place += length


def _mean(shape: object) -> float:
    match shape:
        case Wave(low, high, _):
            return (low + high) / 2
        case float() | int():
            return float(shape)
    raise TypeError(shape)


def measured(scene: Scene) -> tuple[Mapping[str, Mapping[str, float]], float, float]:
    """Return what the hourly sums say after the first hours, by namespace; and when the first and the last hour end."""
    names = [each.record for each in REPORTS]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        stopped = [[int(each // scene.interval) for each in both] for both in scene.stopped]
        period = {"Start": START, "Step": scene.interval, "Ticks": HOURS * HOUR // scene.interval}
        (path / "period.json").write_text(
            json.dumps({**period, "Loads": [], "Series": list(series(scene)), "Stopped": stopped})
        )
        write_read(sorted(RULES.glob("*.yaml")), path / "rules.yaml", names, set())
        command = [
            str(PROGRAM),
            str(path / "period.json"),
            str(path / "rules.yaml"),
            str(path / "tsdb"),
            str(path / "kept"),
        ]
        subprocess.run(command, check=True, capture_output=True)
        (path / "kept" / "wal").mkdir(exist_ok=True)
        match = f'--match={{__name__=~"{"|".join(names)}"}}'
        dump = subprocess.run(
            [str(tool("promtool")), "tsdb", "dump", match, str(path / "kept")],
            capture_output=True,
            text=True,
            check=True,
        )
    found: dict[str, dict[str, float]] = {}
    ends = set()
    for line in dump.stdout.splitlines():
        labels, value, at = line.rsplit(" ", 2)
        name = next(each for each in names if f'"{each}"' in labels)
        namespace = labels.partition('namespace="')[2].partition('"')[0]
        if value != "NaN" and int(at) / 1000 - START > SETTLED * HOUR:
            ends.add(int(at) / 1000 - START)
            sums = found.setdefault(namespace, {})
            sums[name] = sums.get(name, 0.0) + float(value)
    return found, min(ends), max(ends)


def differences(scene: Scene) -> Iterator[tuple[str, Sequence[float]]]:
    """Yield for each namespace how much more the hourly sums say than is true, as a share of the truth."""
    found, first, last = measured(scene)
    for namespace, truth in sorted(scene.truth(first - HOUR, last).items()):
        yield namespace, [found[namespace].get(name, 0.0) / value - 1 for name, value in truth.items()]


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the name of the cases")
    chosen = parser.parse_args()
    print("| case | namespace | GPU hours | by cause | cost | wasted | energy |\n|---|---|---|---|---|---|---|")
    of = [scene for scene in scenes() if chosen.only in scene.name]
    with ThreadPoolExecutor(2) as pool:
        for scene, found in zip(of, pool.map(lambda scene: list(differences(scene)), of), strict=True):
            for namespace, off in found:
                cells = " | ".join(f"{value:+.1%}" for value in off)
                print(f"| {scene.name} | {namespace} | {cells} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
