"""GPUs that swap indices or are replaced while the exporter runs, and a driver that does not answer at the start."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from tests.conftest import Page, Serve
from tests.support.fakes.driver import FakeDriver, identity
from tests.support.tools import until


def by_index(page: Page) -> list[tuple[str, str, float]]:
    """Return index, UUID and `gpu_up` of each row."""
    rows = [(labels["gpu"], labels.get("UUID", "")[-2:], up) for name, labels, up in page.samples if name == "gpu_up"]
    return sorted(rows)


def has_rows(rows: Sequence[tuple[str, str, float]], page: Page) -> bool:
    """Return whether the page has exactly these rows."""
    return by_index(page) == rows


def test_gpus_that_swap_their_indices_without_an_error(serve: Serve, tmp_path: Path) -> None:
    """After one slow read, each is exposed with its new index, once."""
    driver = FakeDriver(tmp_path / "driver", gpus=2)
    exporter = serve("--interval", "200ms", env=driver.environment)
    exporter.until(lambda page: by_index(page) == [("0", "00", 1), ("1", "01", 1)])
    with driver.batch():
        for index in range(2):
            for key, value in identity(1 - index).items():
                driver.set(key, value, index)
    exporter.until(lambda page: by_index(page) == [("0", "01", 1), ("1", "00", 1)], timeout=40)


def test_a_replaced_gpu_leaves_no_row(serve: Serve, tmp_path: Path) -> None:
    """However often a GPU is replaced in the same slot, only the current one is exposed."""
    driver = FakeDriver(tmp_path / "driver", gpus=2)
    exporter = serve("--interval", "200ms", env=driver.environment)
    exporter.until(lambda page: by_index(page) == [("0", "00", 1), ("1", "01", 1)])
    for number in (21, 22):
        driver.set("UUID", identity(number)["UUID"], 1)
        exporter.until(partial(has_rows, [("0", "00", 1.0), ("1", str(number), 1.0)]), timeout=40)


def test_the_first_scrape_does_not_wait_for_the_driver(serve: Serve, driver: FakeDriver) -> None:
    """If the library starts slowly, the exporter's own metrics are served at once, and the log has the reason."""
    driver.delay("Init", 60)
    exporter = serve("--interval", "200ms", env=driver.environment)
    page = exporter.page()
    assert page.value("gpu_exporter_source_up") == 0
    assert page.value("gpu_exporter_source_down_reason", reason="no_answer") == 1

    def lines() -> list[str]:
        return [line for line in exporter.log.read_text().splitlines() if " source nvml" in line]

    until(lambda: len(lines()) > 1, what="both lines of the log")
    late, serves = lines()
    assert "the driver's library has not answered for 1 s" in late
    waited = datetime.fromisoformat(serves[:19]) - datetime.fromisoformat(late[:19])
    assert waited.total_seconds() <= 3
