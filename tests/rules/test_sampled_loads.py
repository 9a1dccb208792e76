"""Four H100s under loads that come and go, as Prometheus saw them every 15 s: signals are near the truth."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.catalogue import signals as s
from tests import ROOT
from tests.rules.promtool import Expect, check

RULES = [ROOT / "alerts/recording.yaml"]
DATA = ROOT / "tests/data/sampled_loads.csv"
SCRAPED = 15
# Relative for power, points for utilisation.
TOLERANCE = 0.02
# A rate needs the sample of two minutes ago.
END = 120
# The loop is busy while it waits for each product, but the GPU is not: its engine and its utilisation say 96 to 97 %.
WAITS = {"2": 0.02}
Row = tuple[str, str, str, list[float]]


def rows() -> list[Row]:
    """Return the exporter, the series, the GPU and the values at each scrape."""
    with DATA.open() as file:
        (_, *found) = csv.reader(file)
    return [(exporter, name, gpu, [float(value) for value in values]) for exporter, name, gpu, *values in found]


def truth(what: str) -> Mapping[str, float]:
    """Return what is true of each GPU."""
    return {gpu: values[0] for exporter, name, gpu, values in rows() if (exporter, name) == ("truth", what)}


def series(exporter: str, name: str, gpu: str, values: Sequence[float]) -> Mapping[str, str]:
    """Return a series as promtool reads it."""
    identity = f'gpu="{gpu}", UUID="GPU-{gpu}", modelName="NVIDIA H100 80GB HBM3", Hostname="{exporter}"'
    return {
        "series": f'{name}{{{identity}, job="{exporter}", instance="{exporter}:9400"}}',
        "values": " ".join(f"{value:.15g}" for value in values),
    }


@dataclass(frozen=True)
class Pages:
    """What Prometheus scrapes of one exporter every so many seconds, and what follows."""

    name: str
    every: int
    read: Sequence[Mapping[str, str]]
    expected: Sequence[Expect]

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format."""
        return {
            "name": self.name,
            "interval": f"{self.every}s",
            "input_series": list(self.read),
            "promql_expr_test": [each.rendered(END) for each in self.expected],
        }


def near(record: str, gpu: str, known: float, tolerance: float, *, relative: bool) -> Expect:
    """Expect that a signal of a GPU is near the truth."""
    distance = f'{record}{{gpu="{gpu}"}} - {known}'
    return Expect(
        f"group by (gpu) (abs({distance}) <= {tolerance * (known if relative else 1)})", [({"gpu": gpu}, 1.0)]
    )


@pytest.mark.parametrize("every", [15, 30])
def test_signals_are_near_the_truth(tmp_path: Path, every: int) -> None:
    """Power by each exporter, utilisation by gpu-exporter: dcgm-exporter has no counter of it.

    Without the first scrape, the others cover 90 s: nearly seven of the periods of GPU 1, which are 13 s.
    """
    watts, busy = truth("watts"), truth("busy")
    cases = []
    for name in ("gpu-exporter", "dcgm-exporter"):
        read = [series(*row[:3], row[3][1 :: every // SCRAPED]) for row in rows() if row[0] == name]
        expected = [near(s.POWER.record, gpu, watts[gpu], TOLERANCE, relative=True) for gpu in watts]
        if name == "gpu-exporter":
            expected += [
                near(s.UTIL.record, gpu, busy[gpu], TOLERANCE + WAITS.get(gpu, 0.0), relative=False)
                for gpu in watts
                if gpu in busy
            ]
        cases.append(Pages(name, every, read, expected))
    check(tmp_path, cases, rules=RULES, interval="15s")


def test_samples_of_the_driver_count_first(tmp_path: Path) -> None:
    """Copies count as utilisation, not as engine activity; without a counter of the engine, both are the samples.

    So is energy without a counter, and what is approximate says so.
    """
    scrapes = range(9)

    def counter(name: str, gpu: str, rate: float) -> Mapping[str, str]:
        return series("node", name, gpu, [7 + SCRAPED * rate * scrape for scrape in scrapes])

    read = [
        *(series("node", "DCGM_FI_DEV_GPU_UTIL", gpu, [96 for _ in scrapes]) for gpu in "012"),
        *(series("node", "DCGM_FI_DEV_MEM_COPY_UTIL", gpu, [50 for _ in scrapes]) for gpu in "012"),
        *(counter("gpu_util_seconds_total", gpu, 0.25) for gpu in "01"),
        *(counter("gpu_memory_util_seconds_total", gpu, 0.125) for gpu in "01"),
        *(counter("gpu_gr_engine_active_seconds_total", gpu, 0.1875) for gpu in "02"),
        *(series("node", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", gpu, [0.9 for _ in scrapes]) for gpu in "02"),
        *(series("node", "DCGM_FI_DEV_POWER_USAGE", gpu, [533 for _ in scrapes]) for gpu in "012"),
        counter("gpu_energy_joules_total", "0", 256),
        counter("gpu_energy_sampled_joules_total", "1", 128),
    ]
    values = {
        s.UTIL: (0.25, 0.25, 0.1875),
        s.GR_ACTIVE: (0.1875, 0.25, 0.1875),
        s.DRAM_ACTIVE: (0.125, 0.125, 0.5),
        s.APPROXIMATE: (0.0, 1.0, 0.0),
        s.POWER: (256.0, 128.0, 533.0),
        s.POWER_NOW: (533.0, 533.0, 533.0),
        s.ENERGY_APPROXIMATE: (0.0, 1.0),
    }
    expected = [
        Expect(
            f"max by (gpu) (round({signal.record}, 0.0009765625))",
            [({"gpu": str(gpu)}, each) for gpu, each in enumerate(of_gpus)],
        )
        for signal, of_gpus in values.items()
    ]
    check(tmp_path, [Pages("samples", SCRAPED, read, expected)], rules=RULES, interval="15s")
