"""Compares what exporters show of loads that come and go with the truth. The loads need PyTorch with CUDA.

    python -m benchmarks.sampling [--seconds 45] [--rows gpu-exporter nvitop …] [--loads bursts,steady,0.4+1.1]

Every exporter of `benchmarks.peers` that is installed runs at the same time, beside gpu-exporter, and one scraper reads
all of them every 15 s. What Prometheus would see every 30 s is every second of these scrapes. Each GPU has a load, and
another one in the next round, until each load was measured; so one GPU needs four rounds, and four need one. Loads:
`bursts` (0.7 s of bf16 matrix products and 2.3 s of nothing), `rare` (1.5 s and 11.5 s), `steady` (no pause), `tiny`
(launches of tiny kernels), `idle`, and any other as SECONDS+PAUSE.

The true power of a time window comes from the driver's energy counter. The true utilisation is GPM's mean of engine
activity, or where the driver has no GPM, the share of time by the clock of the load. Both are read at each scrape, by
this process. Gauges are averaged over all scrapes of the window; of counters, the rise from the first scrape to the
last one counts. Utilisation is off by points, power by percent of the truth.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from math import inf
from statistics import fmean
from threading import Event, Thread
from typing import Any

import pynvml
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.cost import NotMeasured
from benchmarks.exporter import Exporter, exporter_command, free_port, running
from benchmarks.harness import TORCH, begin, options
from benchmarks.peers import PEERS, Peer
from benchmarks.stalls import Phase, busy
from benchmarks.workloads import Step, gemm, launches

# Busy and idle seconds.
LOADS: Mapping[str, tuple[float, float]] = {
    "bursts": (0.7, 2.3),
    "rare": (1.5, 11.5),
    "steady": (inf, 0.0),
    "tiny": (inf, 0.0),
    "idle": (0.0, inf),
}
DEFAULT_LOADS = "bursts,rare,steady,tiny"
OWN = Peer("gpu-exporter", (), lambda port, _: exporter_command(port))
# How long a load runs before the first scrape: until no exporter shows the time before. Utilisation counts 10 s late.
WARM_SECONDS = 20.0
# A load without a pause says after each of so many seconds that it was busy.
CHUNK_SECONDS = 0.5
GPM_ENGINE = 1
BEGUN = "begun\n"
Series = Mapping[str, float]
# Names of the same quantity, and what one of its units is in ratios, watts, seconds or joules.
UTIL: Series = {
    "DCGM_FI_DEV_GPU_UTIL": 0.01,
    "DCGM_FI_DEV_GPU_UTIL_RATIO": 1.0,
    "nvidia_smi_utilization_gpu_ratio": 1.0,
    "gpu_utilization_Percentage": 0.01,
}
UTIL_TOTAL: Series = {"gpu_util_seconds_total": 1.0, "gpu_gr_engine_active_seconds_total": 1.0}
POWER: Series = {
    "DCGM_FI_DEV_POWER_USAGE": 1.0,
    "DCGM_FI_DEV_BOARD_POWER_WATTS": 1.0,
    "nvidia_smi_power_draw_watts": 1.0,
    "gpu_power_usage_W": 1.0,
}
ENERGY: Series = {
    "gpu_energy_joules_total": 1.0,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 0.001,
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": 1.0,
    "nvidia_smi_energy_joules_total": 1.0,
}


@dataclass(frozen=True)
class Quantity:
    """Utilisation or power: as a gauge, and as a counter of seconds or joules."""

    gauge: float | None
    counter: float | None


@dataclass(frozen=True)
class Row:
    """What an exporter showed of a GPU, scraped every so many seconds, and the truth about the same time."""

    load: str
    gpu: int
    exporter: str
    every: float
    seconds: float
    true_utilisation: float | None
    true_busy: float | None
    true_watts: float
    utilisation: Quantity
    watts: Quantity


@dataclass(frozen=True)
class Tick:
    """The state of the GPUs, by index, and the pages by exporter with their times, `seconds` after the first one."""

    seconds: float
    at: float
    joules: Sequence[float]
    samples: Sequence[Any]
    pages: Mapping[str, tuple[float, str]]


def read(page: str, uuid: str, names: Series) -> float | None:
    """Return a quantity of a GPU: that of the first series that the page has; None if there is none."""
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name in names and is_of(sample.labels, uuid)
    }
    return next((found[name] * unit for name, unit in names.items() if name in found), None)


def is_of(labels: Mapping[str, str], uuid: str) -> bool:
    """Return whether a series is of this GPU. Exporters write its UUID in several ways; instances do not count."""
    given = labels.get("UUID") or labels.get("uuid") or ""
    return given.lower().removeprefix("gpu-") == uuid.lower().removeprefix("gpu-") and not labels.get("GPU_I_ID")


def quantity(pages: Sequence[tuple[float, str]], uuid: str, gauge: Series, counter: Series) -> Quantity:
    """Return the mean of a gauge over all pages, and the rate of a counter from the first page to the last one."""
    gauges = [found for _, page in pages if (found := read(page, uuid, gauge)) is not None]
    (first_at, first), *_, (last_at, last) = ((at, read(page, uuid, counter)) for at, page in (pages[0], pages[-1]))
    rate = (last - first) / (last_at - first_at) if first is not None and last is not None and last >= first else None
    return Quantity(fmean(gauges) if gauges else None, rate)


def every(ticks: Sequence[Tick], seconds: float) -> Sequence[Tick]:
    """Return the ticks that a scraper with this interval would have; none if there is not one whole interval."""
    chosen = [tick for tick in ticks if tick.seconds % seconds == 0]
    return chosen if len(chosen) > 1 else ()


def off(found: float | None, truth: float | None, *, relative: bool) -> str:
    """Return how far a value is off the truth: in points, or in percent of the truth."""
    if found is None or truth is None or (relative and not truth):
        return "-"
    return f"{(found / truth - 1 if relative else found - truth) * 100:+.1f}{' %' if relative else ''}"


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines about one load: how far each exporter is off, by gauge and by counter."""
    intervals = list(dict.fromkeys(row.every for row in rows))
    yield "".join((f"{'':<40}", *(f"every {seconds:g} s".ljust(42) for seconds in intervals))).rstrip()
    head = f"{'util gauge':>10}{'counter':>9}{'power gauge':>12}{'counter':>9}  "
    yield (f"{'':<38}" + head * len(intervals)).rstrip()
    for name in dict.fromkeys(row.exporter for row in rows):
        cells = [
            f"{off(row.utilisation.gauge, row.true_utilisation, relative=False):>10}"
            f"{off(row.utilisation.counter, row.true_utilisation, relative=False):>9}"
            f"{off(row.watts.gauge, row.true_watts, relative=True):>12}"
            f"{off(row.watts.counter, row.true_watts, relative=True):>9}  "
            for row in rows
            if row.exporter == name
        ]
        yield (f"{name:<38}" + "".join(cells)).rstrip()


class Driver:
    """What the driver itself says about the GPUs."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self.handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        self.uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in self.handles]

    def joules(self) -> list[float]:
        """Return the energy that each GPU has used."""
        return [pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3 for handle in self.handles]

    def samples(self) -> list[Any]:
        """Return a sample of GPM of each GPU; None where the driver has no GPM."""
        return [self._sample(handle) for handle in self.handles]

    def _sample(self, handle: Any) -> Any:
        if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return None
        sample = pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmSampleGet(handle, sample)
        return sample


def engine(first: Any, last: Any) -> float | None:
    """Return the mean of engine activity between two samples of GPM; None without GPM."""
    if first is None or last is None:
        return None
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
    request.sample1, request.sample2 = first, last
    request.metrics[0].metricId = GPM_ENGINE
    pynvml.nvmlGpmMetricsGet(request)
    return float(request.metrics[0].value) / 100 if request.metrics[0].nvmlReturn == pynvml.NVML_SUCCESS else None


class Loads:
    """A process for each GPU, which runs the loads that it is asked for."""

    def __init__(self, stack: ExitStack, gpus: int) -> None:
        self.phases: list[list[Phase]] = [[] for _ in range(gpus)]
        self._begun = [Event() for _ in range(gpus)]
        self._children = [stack.enter_context(_child(gpu)) for gpu in range(gpus)]
        for each in zip(self._children, self._begun, self.phases, strict=True):
            Thread(target=_collect, args=each, daemon=True).start()

    def start(self, loads: Sequence[str], seconds: float) -> None:
        """Run the load of each GPU for so many seconds; return when all have begun. Raises RuntimeError if one ends."""
        for child, begun, load in zip(self._children, self._begun, loads, strict=True):
            begun.clear()
            assert child.stdin
            child.stdin.write(f"{load} {seconds}\n")
            child.stdin.flush()
        for child, begun in zip(self._children, self._begun, strict=True):
            while not begun.wait(1):
                if child.poll() is not None:
                    raise RuntimeError(f"a load ended with code {child.returncode}")


@contextmanager
def _child(gpu: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.sampling", "--work", str(gpu)]
    order = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # that of NVML
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=order)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def _collect(child: subprocess.Popen[str], begun: Event, phases: list[Phase]) -> None:
    assert child.stdout
    for line in child.stdout:
        if line == BEGUN:
            begun.set()
        else:
            start, end = map(float, line.split())
            phases.append((start, end))


def work(gpu: int) -> None:
    """For each line of input, run a load for so many seconds; print the unix times of each busy phase."""
    for line in sys.stdin:
        load, seconds = line.split()
        on, pause = periods(load)
        step = _step(load, gpu) if on else None
        print(BEGUN, end="", flush=True)
        end = time.time() + float(seconds)
        while (start := time.time()) < end:
            phase_end = min(end, start + (on if pause else CHUNK_SECONDS))
            while step and time.time() < phase_end:
                step()
            if step and load != "tiny":  # of tiny kernels, the clock of the host does not tell when they run
                print(f"{start:.6f} {time.time():.6f}", flush=True)
            time.sleep(max(0.0, min(pause, end - time.time())))


def _step(load: str, gpu: int) -> Step:
    """Return a step of a load, which ends when the GPU has done it."""
    import torch

    torch.cuda.set_device(gpu)
    queue, times = (launches(), 1) if load == "tiny" else (gemm(), 4)

    def step() -> None:
        for _ in range(times):
            queue()
        torch.cuda.synchronize()

    step()
    return step


def periods(load: str) -> tuple[float, float]:
    """Return the busy and the idle seconds of a load. Raises ValueError if there is no such load."""
    if load in LOADS:
        return LOADS[load]
    on, pause = map(float, load.split("+"))
    return on, pause


def rounds(loads: Sequence[str], gpus: int) -> Iterator[Sequence[str]]:
    """Yield the loads of the GPUs, by index, until each load had a turn."""
    for first in range(0, len(loads), gpus):
        yield [loads[(first + gpu) % len(loads)] for gpu in range(gpus)]


def start(stack: ExitStack, peers: Iterable[Peer]) -> tuple[dict[str, Exporter], list[NotMeasured]]:
    """Start the exporters that are installed; return these, and those that cannot run with the reason."""
    started: dict[str, Exporter] = {}
    lacking: list[NotMeasured] = []
    ready = time.monotonic()
    for peer in peers:
        why = peer.missing()
        if not why:
            port = free_port()
            try:
                command, beside = peer.commands(port)
                started[peer.name] = stack.enter_context(running(command, port, beside=beside))
                ready = max(ready, time.monotonic() + peer.seconds)
            except RuntimeError as error:
                why = str(error)
        if why:
            lacking.append(NotMeasured(peer.name, why))
    time.sleep(max(0.0, ready - time.monotonic()))
    return started, lacking


def observe(
    driver: Driver, exporters: Mapping[str, Exporter], seconds: float, intervals: Sequence[float]
) -> list[Tick]:
    """Scrape all exporters at once, at each multiple of the intervals."""
    due = sorted({turn * each for each in intervals for turn in range(int(seconds // each) + 1)})
    ticks, begun = [], time.monotonic()
    with ThreadPoolExecutor(len(exporters)) as pool:
        for at in due:
            time.sleep(max(0.0, begun + at - time.monotonic()))
            now, samples, joules = time.time(), driver.samples(), driver.joules()
            pages = pool.map(_page, exporters.values())
            ticks.append(Tick(at, now, joules, samples, dict(zip(exporters, pages, strict=True))))
    return ticks


def _page(exporter: Exporter) -> tuple[float, str]:
    """Return the time and the page, which is empty if the exporter does not answer."""
    at = time.time()
    try:
        return at, exporter.page()
    except OSError:
        return at, ""


def rows(
    ticks: Sequence[Tick],
    intervals: Sequence[float],
    loads: Sequence[str],
    uuids: Sequence[str],
    phases: Sequence[Sequence[Phase]],
    mean: Callable[[Any, Any], float | None] = engine,
) -> Iterator[Row]:
    """Yield a row for each load, exporter and interval; `mean` is that of engine activity between two samples."""
    for gpu, load in enumerate(loads):
        for name in ticks[0].pages:
            for interval in intervals:
                chosen = every(ticks, interval)
                if not chosen:
                    continue
                first, last = chosen[0], chosen[-1]
                clock = busy(phases[gpu], first.at, last.at) if load not in ("tiny", "idle") else None
                counted = mean(first.samples[gpu], last.samples[gpu])
                pages = [tick.pages[name] for tick in chosen]
                yield Row(
                    load=load,
                    gpu=gpu,
                    exporter=name,
                    every=interval,
                    seconds=last.at - first.at,
                    true_utilisation=clock if counted is None else counted,
                    true_busy=clock,
                    true_watts=(last.joules[gpu] - first.joules[gpu]) / (last.at - first.at),
                    utilisation=quantity(pages, uuids[gpu], UTIL, UTIL_TOTAL),
                    watts=quantity(pages, uuids[gpu], POWER, ENERGY),
                )


def title(row: Row) -> str:
    """Return what is true of a load."""
    clock = "" if row.true_busy is None else f", {row.true_busy:.1%} by the clock of the load"
    truth = "unknown" if row.true_utilisation is None else f"{row.true_utilisation:.1%}"
    return f"{row.load} on GPU {row.gpu}, {row.seconds:.0f} s: utilisation {truth}{clock}, {row.true_watts:.1f} W"


def main() -> int:
    """Run every load, print how far each exporter is off, and write the result."""
    parser = options(__name__, __doc__)
    parser.add_argument("--seconds", type=float, default=45, help="how long a load is scraped (default: %(default)s)")
    parser.add_argument("--every", default="15,30", help="scrape intervals in seconds (default: %(default)s)")
    parser.add_argument("--loads", default=DEFAULT_LOADS, help="loads (default: %(default)s)")
    parser.add_argument("--rows", nargs="+", default=[""], metavar="NAME", help="how the names of exporters begin")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work is not None:
        work(chosen.work)
        return 0
    loads, intervals = chosen.loads.split(","), [float(each) for each in chosen.every.split(",")]
    if wrong := [load for load in loads if load not in LOADS and not re.fullmatch(r"[\d.]+\+[\d.]+", load)]:
        parser.error(f"--loads: unknown load {', '.join(wrong)}; choose from {', '.join(LOADS)}, or SECONDS+PAUSE")
    without_torch = () if any(periods(load)[0] for load in loads) else (TORCH,)
    run, found = begin(__name__, chosen, without_torch), list[Row]()
    with ExitStack() as stack:
        driver = Driver()
        running_loads = Loads(stack, len(driver.handles))
        peers = [peer for peer in (OWN, *PEERS) if peer.name.startswith(tuple(chosen.rows))]
        exporters, lacking = start(stack, peers)
        for each in lacking:
            print(f"{each.name:<40}not measured: {each.why}", flush=True)
        for turn in rounds(loads, len(driver.handles)):
            running_loads.start(turn, WARM_SECONDS + chosen.seconds + 1)
            time.sleep(WARM_SECONDS)
            ticks = observe(driver, exporters, chosen.seconds, intervals)
            time.sleep(2 * CHUNK_SECONDS)  # until the last phases are known
            measured = list(rows(ticks, intervals, turn, driver.uuids, running_loads.phases))
            for gpu in range(len(turn)):
                of_load = [row for row in measured if row.gpu == gpu]
                print("", title(of_load[0]), *table(of_load), sep="\n", flush=True)
            found += measured
    run.write({"rows": [asdict(row) for row in found], "not_measured": [asdict(each) for each in lacking]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
