"""Numbers as text: each function at the edges of its units."""

from __future__ import annotations

import pytest

from gpu_exporter.reports.numbers import (
    agreeing,
    binary_size,
    clock,
    counted,
    duration,
    exact,
    exact_duration,
    gpu_hours,
    measured,
    moment,
    narrow,
    percent,
    ranges,
    scaled,
    spoken_duration,
    whole_duration,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1023 << 10, "1023 KiB"),
        (1 << 20, "1 MiB"),
        (1000 << 20, "1000 MiB"),
        (1 << 30, "1 GiB"),
        (int(1.2345 * (1 << 30)), "1.23 GiB"),
        (1031 * (1 << 30), "1.01 TiB"),
    ],
)
def test_binary_sizes(count: int, text: str) -> None:
    assert binary_size(count) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (1e-6, "0 %"),
        (-1e-6, "0 %"),
        (0.0034, "0.34 %"),
        (0.0123, "1.2 %"),
        (0.0994, "9.9 %"),
        (0.0995, "10 %"),
        (0.394, "39 %"),
        (1.0, "100 %"),
    ],
)
def test_shares(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("seconds", "rounded", "whole"),
    [
        (0.0, "0 s", "0 s"),
        (1.5e-6, "1.5 us", "0 s"),
        (999e-6, "999 us", "0 s"),
        (999.6e-6, "1 ms", "0 s"),
        (0.4, "400 ms", "0 s"),
        (0.9994, "999 ms", "0 s"),
        (0.9996, "1 s", "0 s"),
        (1.234, "1.23 s", "1 s"),
        (59, "59 s", "59 s"),
        (61, "1.02 min", "1 min"),
        (900, "15 min", "15 min"),
        (3599, "60 min", "59 min"),
        (5400, "1.5 h", "1 h"),
        (90000, "1.04 d", "25 h"),
        (172800, "2 d", "2 d"),
        (1000 * 86400, "1000 d", "1000 d"),
        (-120, "-2 min", "0 s"),
    ],
)
def test_durations(seconds: float, rounded: str, whole: str) -> None:
    assert (duration(seconds), whole_duration(seconds)) == (rounded, whole)


@pytest.mark.parametrize(
    ("seconds", "text", "spoken"),
    [
        (5, "5 s", "5 seconds"),
        (90, "90 s", "90 seconds"),
        (300, "5 min", "5 minutes"),
        (3600, "1 h", "hour"),
        (7200, "2 h", "2 hours"),
        (86400, "1 d", "day"),
    ],
)
def test_exact_durations(seconds: float, text: str, spoken: str) -> None:
    """In the largest unit with a whole number."""
    assert (exact_duration(seconds), spoken_duration(seconds)) == (text, spoken)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.014e12, "B/s", "3.01 TB/s"),
        (1e12, "B/s", "1 TB/s"),
        (999e9, "B/s", "999 GB/s"),
        (1e9, "B/s", "1 GB/s"),
        (55.2e9, "B/s", "55.2 GB/s"),
        (2.5e6, "B/s", "2.5 MB/s"),
        (1e6, "B/s", "1 MB/s"),
        (1000.0, "B", "1 kB"),
        (999.0, "B/s", "999 B/s"),
        (9, "FLOP/s", "9 FLOP/s"),
        (0, "B", "0 B"),
        (0.5, "B", "0.5 B"),
        (999.7e6, "B/s", "1 GB/s"),
    ],
)
def test_decimal_prefixes(value: float, unit: str, text: str) -> None:
    assert scaled(value, unit) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "ratio", "-"),
        (0.934, "ratio", "93 %"),
        (641.7, "watts", "642 W"),
        (56, "celsius", "56 °C"),
        (97.7e9, "bytes", "91 Gi"),
        *((value, "bytes_per_second", text) for value, text in ((0.0, "0"), (999.0, "999"), (1500.0, "1.5 k"))),
        *((value, "bytes_per_second", text) for value, text in ((98e9, "98 G"), (9.96e9, "10 G"), (3e12, "3.0 T"))),
    ],
)
def test_columns_are_narrow(value: float | None, unit: str, text: str) -> None:
    assert narrow(value, unit) == text


@pytest.mark.parametrize(
    ("hours", "price", "text"),
    [
        (5.41, None, "5.4 GPU-hours"),
        (5.41, 2.5, "5.4 GPU-hours (13.53 USD)"),
        (24.0 * 64, 2.0, "1,536 GPU-hours (3,072.00 USD)"),
    ],
)
def test_gpu_time_and_money(hours: float, price: float | None, text: str) -> None:
    assert gpu_hours(hours, price) == text


def test_ranges_of_numbers() -> None:
    assert ranges([6, 0, 1, 2, 3, 8, 9]) == "0-3, 6, 8, 9"


@pytest.mark.parametrize(
    ("value", "unit", "rounded", "unrounded"),
    [
        (0.05, "ratio", "5 %", "5 %"),
        (0.1234, "ratio", "12 %", "12.34 %"),
        (90.0, "seconds", "1.5 min", "90 s"),
        (64.25, "celsius", "64.2 °C", "64.25 °C"),
        (1.5 * 2**30, "bytes", "1.5 GiB", "1.5 GiB"),
        (64 * 2**20, "bytes", "64 MiB", "64 MiB"),
        (-5.0, "seconds", "0 s", "-5 s"),
        (1.23456e9, "bytes_per_second", "1.23 GB/s", "1.23456 GB/s"),
        (612.3, "watts", "612 W", "612.3 W"),
        (12345.6, "", "12346", "12345.6"),
    ],
)
def test_quantities(value: float, unit: str, rounded: str, unrounded: str) -> None:
    """What was measured is rounded; a limit is not."""
    assert (measured(value, unit), exact(value, unit)) == (rounded, unrounded)


def test_times_say_their_zone_and_another_day() -> None:
    day = 86400.0
    assert moment(day + 3725) == "1970-01-02 01:02:05 UTC"
    assert clock(day + 3725, day + 4000) == "01:02 UTC"
    assert clock(3725, day + 4000) == "1970-01-01 01:02 UTC"


def test_a_time_that_another_machine_made_up_is_written() -> None:
    assert (moment(1e300), moment(-1e300)) == ("9999-12-31 23:59:59 UTC", "1970-01-01 00:00:00 UTC")
    assert clock(-1e300, 1e300) == "1970-01-01 00:00 UTC"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 uncorrectable ECC errors", "1 uncorrectable ECC error"),
        ("1 new NVLink recoveries (last 1 h)", "1 new NVLink recovery (last 1 h)"),
        ("1 of its NVLinks are down", "1 of its NVLinks is down"),
        ("1 memory banks without spare rows", "1 memory bank without spare rows"),
        ("1 workers wait for a CPU", "1 worker waits for a CPU"),
        ("a good link has 1 PCIe replays", "a good link has 1 PCIe replay"),
        *(
            (text, text)
            for text in ("21 ECC errors", "0 to 1 ECC errors", "1.1 workers on a CPU", "11 of its NVLinks are down")
        ),
    ],
)
def test_one_thing_is_singular(text: str, said: str) -> None:
    """Ranges and other numbers that end in 1 stay as they are."""
    assert agreeing(text) == said


def test_counted_things() -> None:
    assert [counted(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
