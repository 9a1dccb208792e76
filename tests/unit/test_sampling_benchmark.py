"""The benchmark of what exporters show between scrapes: its arithmetic on pages of several exporters."""

from __future__ import annotations

import pytest

from benchmarks import sampling, sections
from benchmarks.sampling import ENERGY, POWER, UTIL, UTIL_TOTAL, Quantity, Tick

UUIDS = ["GPU-aa", "GPU-bb"]


def own(seconds: float, at: float) -> tuple[float, str]:
    """Return a page of gpu-exporter: GPU 0 is half busy at 300 W, and its gauges say otherwise."""
    return at, (
        f'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-aa"}} {100 if seconds else 40}\n'
        f'gpu_util_seconds_total{{UUID="GPU-aa"}} {5 + seconds / 2}\n'
        f'gpu_util_seconds_total{{UUID="GPU-bb"}} 7\n'
        f'DCGM_FI_DEV_POWER_USAGE{{UUID="GPU-aa"}} 600\n'
        f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{UUID="GPU-aa"}} 3\n'
        f'gpu_energy_joules_total{{UUID="GPU-aa",GPU_I_ID="1"}} 1\n'
        f'gpu_energy_joules_total{{UUID="GPU-aa"}} {1000 + 300 * seconds}\n'
    )


def ticks() -> list[Tick]:
    """Return what a run of 45 s sees, scraped every 15 s and every 20 s."""
    return [
        Tick(at, 100 + at, [300.0 * at, 100.0 * at], [at, None], {"gpu-exporter": own(at, 100 + at)})
        for at in (0.0, 15.0, 20.0, 30.0, 40.0, 45.0)
    ]


@pytest.mark.parametrize(
    ("page", "names", "expected"),
    [
        (own(0, 0)[1], UTIL, 0.4),
        (own(0, 0)[1], UTIL_TOTAL, 5),
        (own(10, 0)[1], ENERGY, 4000),
        ('nvidia_smi_utilization_gpu_ratio{uuid="aa"} 0.25', UTIL, 0.25),
        ('gpu_utilization_Percentage{uuid="GPU-AA"} 25', UTIL, 0.25),
        ('nvidia_smi_power_draw_watts{uuid="bb"} 25', POWER, None),
        ('DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{UUID="GPU-aa"} 5000', ENERGY, 5),
    ],
)
def test_quantities_of_exporters(page: str, names: sampling.Series, expected: float | None) -> None:
    """In ratios, watts, seconds and joules, of the whole GPU with this UUID."""
    assert sampling.read(page, "GPU-aa", names) == expected


def test_rows() -> None:
    """Each interval has its own scrapes and its own truth; without GPM, the clock of the load is the truth."""
    found = list(
        sampling.rows(
            ticks(),
            (15.0, 20.0, 60.0),
            ("bursts", "rare"),
            UUIDS,
            ([], [(90.0, 101.0), (110.0, 119.0), (144.0, 200.0)]),
            lambda first, last: None if last is None else (last - first) / 90,
        )
    )

    assert [(row.load, row.every, row.seconds) for row in found] == [
        ("bursts", 15, 45),
        ("bursts", 20, 40),
        ("rare", 15, 45),
        ("rare", 20, 40),
    ]
    assert [row.true_utilisation for row in found] == pytest.approx([0.5, 4 / 9, 11 / 45, 10 / 40])
    assert [row.true_watts for row in found] == [300, 300, 100, 100]
    assert found[0].utilisation == Quantity(0.85, 0.5)
    assert found[1].utilisation.gauge == pytest.approx(0.8)
    assert found[0].watts == Quantity(600, 300)
    assert found[2].utilisation == Quantity(None, 0)
    assert found[2].watts == Quantity(None, None)


def test_a_counter_that_was_reset_has_no_rate() -> None:
    """Nothing is computed from it."""
    assert sampling.quantity([own(9, 0), own(3, 9)], "GPU-aa", UTIL, UTIL_TOTAL).counter is None


@pytest.mark.parametrize(
    ("found", "truth", "relative", "expected"),
    [
        (0.96, 0.222, False, "+73.8"),
        (533.0, 263.7, True, "+102.1 %"),
        (0.0, 0.2, False, "-20.0"),
        (None, 0.2, False, "-"),
        (0.5, None, False, "-"),
        (1.0, 0.0, True, "-"),
    ],
)
def test_how_far_off(found: float | None, truth: float | None, relative: bool, expected: str) -> None:
    """Utilisation by points, power in percent of the truth."""
    assert sampling.off(found, truth, relative=relative) == expected


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (1, [["a"], ["b"], ["c"]]),
        (2, [["a", "b"], ["c", "a"]]),
        (4, [["a", "b", "c", "a"]]),
    ],
)
def test_each_load_has_a_turn(gpus: int, expected: list[list[str]]) -> None:
    """On any number of GPUs, all of which work in every round."""
    assert list(sampling.rounds(["a", "b", "c"], gpus)) == expected


def test_the_page_says_how_far_each_exporter_is_off() -> None:
    """One table for a load, one row for an exporter and an interval."""
    quantities = {"utilisation": {"gauge": 0.96, "counter": 0.22}, "watts": {"gauge": 533.0, "counter": None}}
    row = {"load": "bursts", "gpu": 0, "exporter": "gpu-exporter", "every": 15.0, "seconds": 60.0, **quantities}
    text = sections.sampling({"rows": [{**row, "true_utilisation": 0.222, "true_watts": 263.7}]}).text

    assert "`bursts` on GPU 0, 60 s: utilisation 22.2 %, 263.7 W." in text
    assert "| gpu-exporter | every 15 s | +73.8 | -0.2 | +102.1 % | - |" in text
