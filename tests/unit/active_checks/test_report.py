"""The results of an active check as text, JSON, Prometheus text and runs of the history."""

from __future__ import annotations

import json
from dataclasses import replace

from gpu_exporter.active_checks.history import FoundHistory
from gpu_exporter.active_checks.load import LoadExtremes
from gpu_exporter.active_checks.rates import Rated
from gpu_exporter.active_checks.report import as_dict, lines, runs, textfile
from gpu_exporter.active_checks.run import Outcomes
from gpu_exporter.active_checks.verdicts import CheckResult
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.capabilities import Quantity
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.verdict import Action, Health, Problem, Unknown, Verdict

GPUS = [Gpu(index, f"GPU-{index}", "0:1:0.0", "H100", driver="570.1") for index in range(2)]
BF16 = Rated(Quantity.BF16, 850e12, 840e12, 0.01, 900e12, None, None, "wgmma", "model")
COPY = Rated(Quantity.MEMORY_COPY, 3e12, None, 0.0, None, None, None)
LOAD = LoadExtremes(clock_low=1200.0, clock_high=1980.0, power=699.6, temperature=64.0, events=0x44)
SLOW = Problem(m.CHECK_RATE, 1.0, "it is slow", Action.DRAIN, "slow_bf16", Health.DEGRADED)
FULL = CheckResult(
    Verdict(GPUS[0], (SLOW,)),
    (BF16, COPY),
    LOAD,
    {"bytes": 75 << 30, "passes": 3, "wrong": 2},
    {"value": 800e12, "first": 820e12, "last": 779e12},
    ("wgmma cannot be used",),
)
BARE = CheckResult(Verdict(GPUS[1]))
NONE = Outcomes([], seconds={"open": 0.25, "together": 1.5})
LINKS = Outcomes(
    [],
    pairs={
        (0, 1): {"value": 395.4e9, "direct": True},
        (1, 0): {"value": 25e9, "direct": False},
        (0, 3): {"error": "no peers"},
    },
    ring=[{"from": 0, "to": 1, "value": 200e9}, {"from": 1, "to": 0, "value": 190e9}],
    seconds={"links": 2.0},
    stuck=[4711],
)


def test_lines() -> None:
    assert list(lines([FULL, BARE], NONE)) == [
        "GPU 0 (H100)",
        "  tensor cores, bf16 (wgmma)            850 TFLOP/s   94% of its model  with all GPUs 840 TFLOP/s",
        "  device memory, copy (read + write)         3 TB/s",
        "  under load: 1200 to 1980 MHz, up to 700 W, 64 °C; clock held down by sw_power_cap, hw_thermal_slowdown",
        "  memory test: 75 GiB, 3 passes, 2 wrong words",
        "  sustained tensor rate: 800 TFLOP/s, -5.0 % from start to end",
        "  note: wgmma cannot be used",
        "GPU 1 (H100)",
        "took 1.8 s (open 0.2, together 1.5)",
    ]


def test_lines_of_links() -> None:
    assert list(lines([], LINKS)) == [
        "copies between GPUs, GB/s (* through the host):",
        "           to 0    to 1    to 3",
        "from 0        -     395  failed",
        "from 1      25*       -       -",
        "from 3        -       -       -",
        "all at once: 0 to 1 200, 1 to 0 190",
        "took 2.0 s (links 2.0)",
        "process 4711 is stuck in the driver and cannot be ended; only a reboot ends it",
    ]
    assert "all at once" not in "".join(lines([], replace(LINKS, ring=())))


def test_what_was_not_read_has_no_words() -> None:
    """Neither have tests that failed, which have no result."""
    for load, line in (
        (LoadExtremes(), None),
        (LoadExtremes(clock_low=1.0), None),
        (LoadExtremes(clock_high=1.0), None),
        (LoadExtremes(clock_low=1200.0, clock_high=1980.0), "  under load: 1200 to 1980 MHz"),
    ):
        failed = replace(BARE, load=load, memory_test={"error": "x"}, sustained={"error": "x"})
        assert list(lines([failed], NONE))[1:-1] == ([line] if line else [])


def test_json() -> None:
    content = json.loads(json.dumps(as_dict([FULL, BARE], LINKS)))
    assert content["seconds"] == {"links": 2.0}
    assert content["stuck"] == [4711]
    assert content["pairs"][1:] == [
        {"from": 1, "to": 0, "value": 25e9, "direct": False},
        {"from": 0, "to": 3, "error": "no peers"},
    ]
    assert [pair["value"] for pair in content["all_at_once"]] == [200e9, 190e9]
    full, bare = content["gpus"]
    assert (full["gpu"], full["UUID"], full["modelName"], full["health"]) == (0, "GPU-0", "H100", "degraded")
    assert full["rates"][0] == {
        **{"quantity": "bf16", "unit": "FLOP/s", "value": 850e12, "together": 840e12, "spread": 0.01},
        **{"usual": 900e12, "share": 850 / 900, "peers": None, "own": None, "how": "wgmma", "source": "model"},
    }
    assert (full["rates"][1]["quantity"], full["rates"][1]["unit"]) == ("memory_copy", "B/s")
    assert full["rates"][1]["share"] is None
    assert full["load"]["clock_low"] == 1200.0
    assert full["load"]["reasons"] == ["sw_power_cap", "hw_thermal_slowdown"]
    assert (full["memory_test"]["passes"], full["sustained"]["last"]) == (3, 779e12)
    assert full["notes"] == ["wgmma cannot be used"]
    assert (bare["health"], bare["rates"], bare["memory_test"], bare["notes"]) == ("healthy", [], None, [])


def test_runs_of_the_history() -> None:
    """A GPU without UUID cannot be recognised later."""
    nameless = CheckResult(Verdict(Gpu(2)))
    found = runs([FULL, BARE, nameless], 1000.0, 2, "boot", 31.23456)
    assert list(found) == ["GPU-0", "GPU-1"]
    run = found["GPU-0"]
    assert (run.at, run.level, run.health, run.model, run.driver, run.boot_id, run.seconds) == (
        *(1000.0, 2, Health.DEGRADED, "H100", "570.1", "boot"),
        31.235,
    )
    assert run.values == {"bf16": 850e12, "memory_copy": 3e12}
    assert run.problems == [FoundHistory("slow_bf16", Health.DEGRADED, Action.DRAIN, "it is slow")]


def test_prometheus_text() -> None:
    """Each family once, with the samples of all GPUs. A GPU whose health is unknown has neither passed nor failed."""
    unknown = CheckResult(Verdict(Gpu(3, "GPU-3"), unknown=(Unknown("active check", "too short"),)))
    text = textfile([FULL, BARE, unknown], LINKS, 1234.5)
    families = text.split("# HELP ")[1:]
    samples = {family.partition(" ")[0]: family.splitlines()[2:] for family in families}
    assert samples == {
        m.CHECK_RATE.name: [f'{m.CHECK_RATE.name}{{gpu="0",UUID="GPU-0",quantity="bf16"}} 850000000000000.0'],
        m.CHECK_BANDWIDTH.name: [
            f'{m.CHECK_BANDWIDTH.name}{{gpu="0",UUID="GPU-0",quantity="memory_copy"}} 3000000000000.0'
        ],
        m.CHECK_LINK.name: [f'{m.CHECK_LINK.name}{{gpu="0",UUID="GPU-0",peer="1"}} 395400000000.0'],
        m.CHECK_PASSED.name: [
            f'{m.CHECK_PASSED.name}{{gpu="0",UUID="GPU-0"}} 0',
            f'{m.CHECK_PASSED.name}{{gpu="1",UUID="GPU-1"}} 1',
        ],
        m.CHECK_AT.name: [f'{m.CHECK_AT.name}{{gpu="{index}",UUID="GPU-{index}"}} 1234.5' for index in (0, 1, 3)],
    }
    assert families[0].splitlines()[:2] == [
        f"{m.CHECK_RATE.name} {m.CHECK_RATE.help}",
        f"# TYPE {m.CHECK_RATE.name} gauge",
    ]
