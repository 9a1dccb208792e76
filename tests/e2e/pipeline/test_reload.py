"""The fields file of a running exporter: what it selects, and how it is replaced without a gap."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests import ROOT
from tests.conftest import Exporter, Page, Serve, run
from tests.e2e.pipeline.test_hand_over import bearer
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import until

OK, AT = "gpu_exporter_config_last_reload_successful", "gpu_exporter_config_last_reload_success_timestamp_seconds"
TEMP = "DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\n"
SM = "DCGM_FI_PROF_SM_ACTIVE, gauge, SMs.\n"
BOTH = TEMP + SM + "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Energy.\n"
# NVDEC is in the full set, so each change of the file changes the fields that are read.
FIRST = f"{BOTH}DCGM_FI_DEV_FB_USED, gauge, Used.\n"
SECOND = f"# another\n{BOTH}DCGM_FI_PROF_NVDEC0_ACTIVE, gauge, Decoder.\nDCGM_FI_DRIVER_VERSION, label, Driver.\n"
REPLAY = ("--source", "replay", "--recording", "h200_workloads")


def replace(path: Path, text: str) -> None:
    """Replace the content atomically."""
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.replace(path)


def classic(page: Page) -> set[str]:
    """Return the names of the classic families."""
    return {name for name, _, _ in page.samples if name.startswith(("DCGM_", "dcgm_"))}


@pytest.fixture
def fields(tmp_path: Path) -> Path:
    """Return the content of a fields file."""
    path = tmp_path / "fields.csv"
    path.write_text(FIRST)
    return path


def test_file_selects_families(serve: Serve, driver: FakeDriver, fields: Path) -> None:
    """With TYPE, HELP, labels, and names of any version; families that are not classic stay."""

    fields.write_text(
        "dcgm_gpu_temp, gauge, Old.\n"
        "DCGM_FI_DEV_SM_CLOCK_HERTZ, gauge, New.\n"
        "DCGM_FI_PROF_PCIE_TX_BYTES, counter, Wrong.\n"
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0, counter, Needs DCGM.\n"
        "DCGM_FI_DEV_BRAND, label, x\n"
        "DCGM_FI_DEV_MIG_MODE, label, x\n"
        "DCGM_FI_PROCESS_NAME, label, x\n"
        "DCGM_FI_DEV_SERIAL, label, x\n"
        "DCGM_FI_DEV_VBIOS_VERSION, label, x\n"
        "DCGM_FI_DEV_INFOROM_IMAGE_VER, label, x\n"
        "DCGM_FI_DEV_NONE_SUCH, gauge, x\n"
    )
    begun = time.time()
    exporter = serve("--collectors", str(fields), "--interval", "100ms", env=driver.environment, new=True)
    page = exporter.until(lambda page: bool(page.values("gpu_sm_active_seconds_total")))

    assert classic(page) == {"dcgm_gpu_temp", "DCGM_FI_DEV_SM_CLOCK_HERTZ", "DCGM_FI_PROF_PCIE_TX_BYTES_total"}
    assert page.value("dcgm_gpu_temp") == 36
    assert page.value("DCGM_FI_DEV_SM_CLOCK_HERTZ") == 885e6
    assert "# TYPE DCGM_FI_PROF_PCIE_TX_BYTES counter\n" in page.text
    assert "# HELP dcgm_gpu_temp Old.\n" in page.text
    (labels,) = (labels for name, labels, _ in page.samples if name == "dcgm_gpu_temp")
    assert {name: value for name, value in labels.items() if name.startswith("DCGM_")} == {
        "DCGM_FI_DEV_BRAND": "NVIDIA",
        "DCGM_FI_DEV_MIG_MODE": "0",
        "DCGM_FI_PROCESS_NAME": str(ROOT / "gpu_exporter" / "__main__.py"),
        "DCGM_FI_DEV_SERIAL": "1650000000000",
        "DCGM_FI_DEV_VBIOS_VERSION": "96.00.A5.00.1A",
        "DCGM_FI_DEV_INFOROM_IMAGE_VER": "G520.0282.02.02",
    }
    assert page.values("gpu_metric_supported", metric="DCGM_FI_DEV_NVLINK_BANDWIDTH_L0", reason="needs_dcgm") == [0]
    assert page.value(OK) == 1
    assert begun <= page.value(AT) <= time.time()
    said = exporter.log.read_text()
    assert "source nvml cannot read DCGM_FI_DEV_NVLINK_BANDWIDTH_L0; use --source dcgm" in said
    assert "line 11: 'DCGM_FI_DEV_NONE_SUCH' is not a field of DCGM" in said


def test_once_with_a_file(fields: Path) -> None:
    """To check a file before using it."""
    said = run("once", *REPLAY, "--collectors", str(fields))

    assert said.returncode == 0
    assert "DCGM_FI_DEV_FB_USED{" in said.stdout
    assert "DCGM_FI_DEV_POWER_USAGE{" not in said.stdout
    assert "DCGM_FI_DRIVER_VERSION" not in said.stdout


class Scraper(threading.Thread):
    """Scrapes 50 times a second, over one connection, until it is stopped."""

    def __init__(self, exporter: Exporter) -> None:
        super().__init__()
        self.exporter = exporter
        self.pages: list[str] = []
        self.failures: list[str] = []
        self.done = threading.Event()

    def run(self) -> None:
        connection = self.exporter.connect()
        while not self.done.wait(0.02):
            try:
                connection.request("GET", "/metrics")
                answer = connection.getresponse()
                body = answer.read().decode()
            except OSError as error:
                self.failures.append(str(error))
                connection = self.exporter.connect()
                continue
            if answer.status != 200:
                self.failures.append(f"{answer.status}: {body}")
            self.pages.append(body)
        connection.close()


@contextmanager
def scraping(exporter: Exporter) -> Iterator[Scraper]:
    """Run a scraper."""
    scraper = Scraper(exporter)
    scraper.start()
    try:
        yield scraper
    finally:
        scraper.done.set()
        scraper.join()


def series(text: str) -> dict[str, float]:
    """Return the series that a change of labels does not affect, by name and UUID."""
    found = {}
    for name, labels, value in Page(text).samples:
        if name.startswith(("DCGM_", "gpu_")) and "reason" not in labels:
            rest = tuple(sorted((k, v) for k, v in labels.items() if k != "DCGM_FI_DRIVER_VERSION"))
            found[f"{name}{rest}"] = value
    return found


def falls(pages: Sequence[dict[str, float]], name: str) -> list[str]:
    """Return where a counter fell."""
    keys = {key for page in pages for key in page if key.startswith(name)}
    assert keys
    return [
        key
        for key in keys
        for before, after in pairwise(pages)
        if key in before and key in after and after[key] < before[key]
    ]


def test_a_hundred_reloads_under_load(serve: Serve, driver: FakeDriver, fields: Path) -> None:
    """100 SIGHUPs, each with another file, during 50 scrapes a second: no scrape fails, and integrals continue.

    No series that both files have is ever missing.
    """
    # The series of a GPU are withdrawn after three intervals, which a busy machine must not take for one.
    exporter = serve("--collectors", str(fields), "--interval", "2s", env=driver.environment)
    exporter.until(
        lambda page: page.values("DCGM_FI_PROF_SM_ACTIVE") != [] and page.values("DCGM_FI_DEV_FB_USED") != []
    )
    with scraping(exporter) as scraper:
        for number in range(100):
            replace(fields, SECOND if number % 2 == 0 else FIRST)
            asked = time.time()
            exporter.process.send_signal(signal.SIGHUP)
            if not number % 10:  # both in bursts, and slowly enough that each takes effect
                seen = len(scraper.pages)
                exporter.until(lambda page, since=asked: page.value(AT) > since)  # type: ignore[misc]
                until(lambda before=seen: len(scraper.pages) > before + 1, what="pages")  # type: ignore[misc]
        asked = time.time()
        replace(fields, SECOND)
        exporter.process.send_signal(signal.SIGHUP)
        exporter.until(lambda page: page.value(AT) > asked)  # otherwise it may be the one before
        exporter.until(lambda page: bool(page.values("DCGM_FI_PROF_NVDEC0_ACTIVE")))
        seen = len(scraper.pages)
        until(lambda: len(scraper.pages) > seen + 1, what="a page that was asked for after that")
    assert exporter.process.poll() is None

    assert scraper.failures == []
    assert len(scraper.pages) > 20
    pages = [series(text) for text in scraper.pages]
    first, last = pages[0], pages[-1]
    both = {key for key in first if key in last}
    assert len(both) > 50
    assert {key for page in pages for key in both if key not in page} == set()
    assert {key.partition("(")[0] for key in first.keys() - both} == {"DCGM_FI_DEV_FB_USED"}
    assert {key.partition("(")[0] for key in last.keys() - both} == {"DCGM_FI_PROF_NVDEC0_ACTIVE"}
    for counter in ("gpu_sm_active_seconds_total", "gpu_energy_joules_total", "gpu_pcie_tx_bytes_total"):
        assert falls(pages, counter) == []
    assert {page[key] for page in pages for key in page if key.startswith("gpu_exporter_collection_failures")} == {0}
    assert {page[key] for page in pages for key in page if key.startswith(OK)} == {1}
    rate = [
        (b[key] - a[key]) / (b[at] - a[at])
        for a, b in [(first, last)]
        for key in a
        if key.startswith("gpu_sm_active_seconds_total")
        for at in a
        if at.startswith("gpu_last_read_timestamp_seconds")
    ]
    assert rate == [pytest.approx(0.96, abs=0.05)]  # activity was counted all the time


BROKEN = {
    "empty": "",
    "comments alone": "# nothing\n",
    "another format": "metrics:\n  - DCGM_FI_DEV_GPU_TEMP\n",
    "unknown fields": "DCGM_FI_DEV_GPU_TEMPER, gauge, x\n",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_keeps_the_last_good_one(serve: Serve, fields: Path, text: str) -> None:
    """The log and a metric report it until it is repaired."""
    exporter = serve(*REPLAY, "--collectors", str(fields), "--interval", "100ms")
    before = exporter.until(lambda page: bool(page.values("DCGM_FI_DEV_FB_USED")))
    replace(fields, text)
    exporter.process.send_signal(signal.SIGHUP)

    page = exporter.until(lambda page: page.values(OK) == [0])
    assert classic(page) == classic(before)
    assert page.value(AT) == before.value(AT)
    assert f"{fields} selects no field" in exporter.log.read_text()
    assert "the previous one stays in use" in exporter.log.read_text()

    replace(fields, SM)
    page = exporter.until(lambda page: page.values(OK) == [1])
    assert classic(page) == {"DCGM_FI_PROF_SM_ACTIVE"}
    assert page.value(AT) > before.value(AT)


def test_a_file_that_is_gone_keeps_the_last_good_one(serve: Serve, fields: Path) -> None:
    """Without a signal, too; so does a file that cannot be read for another reason."""
    exporter = serve(*REPLAY, "--collectors", str(fields), "--interval", "100ms")
    fields.unlink()
    page = exporter.until(lambda page: page.values(OK) == [0])
    assert "DCGM_FI_DEV_FB_USED" in classic(page)
    fields.mkdir()
    until(lambda: "not a regular file" in exporter.log.read_text(), 10, "the error of a folder")
    fields.rmdir()
    fields.write_text(TEMP)
    exporter.until(lambda page: classic(page) == {"DCGM_FI_DEV_GPU_TEMP"} and page.values(OK) == [1])


def test_a_config_map_that_is_swapped_is_followed(serve: Serve, tmp_path: Path) -> None:
    """kubelet replaces the link `..data` to a folder; the file itself remains a link through it."""
    mount = tmp_path / "mount"
    for version, text in (("1", TEMP), ("2", SM)):
        (mount / f"..{version}").mkdir(parents=True)
        (mount / f"..{version}" / "fields.csv").write_text(text)
    (mount / "..data").symlink_to("..1")
    (mount / "fields.csv").symlink_to("..data/fields.csv")
    exporter = serve(*REPLAY, "--collectors", str(mount / "fields.csv"), "--interval", "100ms")
    exporter.until(lambda page: classic(page) == {"DCGM_FI_DEV_GPU_TEMP"})

    (mount / "..tmp").symlink_to("..2")
    os.replace(mount / "..tmp", mount / "..data")
    exporter.until(lambda page: classic(page) == {"DCGM_FI_PROF_SM_ACTIVE"})


def test_reload_over_http(serve: Serve, fields: Path) -> None:
    """As in Prometheus: 200 if the file is in use, else 500 with the reason."""
    token = fields.with_name("token")
    lifecycle = ("--web.enable-lifecycle", "--token-file", str(token))
    exporter = serve(*REPLAY, "--collectors", str(fields), "--interval", "100ms", *lifecycle)
    fields.write_text(TEMP)
    assert exporter.ask("POST", "/-/reload", bearer(token)) == (200, "ok\n")
    exporter.until(lambda page: classic(page) == {"DCGM_FI_DEV_GPU_TEMP"})
    fields.write_text("x")

    status, said = exporter.ask("POST", "/-/reload", bearer(token))
    assert status == 500
    assert said.startswith(f"{fields} selects no field: line 1: 'x': 1 columns")
    exporter.until(lambda page: page.values(OK) == [0])


def test_a_signal_without_a_file_changes_nothing(serve: Serve) -> None:
    """SIGHUP does not end the exporter; the log says that there is nothing to reload."""
    exporter = serve(*REPLAY, "--interval", "100ms")
    exporter.process.send_signal(signal.SIGHUP)
    until(lambda: "SIGHUP: nothing to reload without --collectors" in exporter.log.read_text(), 10, "the answer")

    page = exporter.page()
    assert page.values(OK) == []
    assert len(classic(page)) > 20
    assert exporter.stop() == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "file of fields {}: No such file or directory"),
        ("", "{} selects no field: it is empty"),
        ("x" * (2 << 20), "file of fields {}: larger than 1 MiB"),
        ("DCGM_FI_NONE, gauge, x", "{} selects no field: line 1: 'DCGM_FI_NONE' is not a field of DCGM"),
    ],
    ids=["missing", "empty", "huge", "unknown"],
)
def test_wrong_file_at_the_start(tmp_path: Path, text: str | None, message: str) -> None:
    """The error is one line with the file's name."""
    path = tmp_path / "fields.csv"
    if text is not None:
        path.write_text(text)
    said = run("serve", *REPLAY, "--address", "127.0.0.1:0", "--collectors", str(path))

    assert said.returncode == 1
    assert said.stderr.startswith(f"gpu-exporter: {message.format(path)}")
    assert said.stderr.count("\n") == 1
