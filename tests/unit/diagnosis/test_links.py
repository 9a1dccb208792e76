"""Findings about network ports and NVLinks name them, as their alerts do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.headline import findings
from gpu_exporter.diagnosis.incident_words import sentence
from gpu_exporter.diagnosis.incidents import of_diagnoses
from gpu_exporter.diagnosis.nvlinks import NvlinkReader
from gpu_exporter.diagnosis.report import because
from gpu_exporter.diagnosis.rolling import RollingWindow
from gpu_exporter.diagnosis.scrape import DeviceKey, Scrape, ScrapedSample, samples_by_name
from gpu_exporter.diagnosis.window import Window, seen
from gpu_exporter.model.metric import Metric


def scrape(at: float, faulty: bool) -> Scrape:
    """Return a page of two GPUs with two near ports each, one of which is down."""
    samples = []
    for gpu in ("0", "1"):
        labels = {"gpu": gpu, "UUID": f"GPU-{gpu}", "Hostname": "node-7", "modelName": "NVIDIA H100"}
        ports = [{"device": f"mlx5_{gpu}{letter}", "port": "1"} for letter in "ba"]
        rows: list[tuple[Metric, dict[str, str], float]] = [
            (m.UP, {}, 1.0),
            (m.NIC_UP, {}, float(not faulty)),
            *((m.NIC_INFO, port, 1.0) for port in ports),
            *((m.NIC_FAULT, {**ports[0], "fault": "down"}, 1.0) for _ in range(faulty)),
        ]
        samples += [ScrapedSample(metric.name, {**labels, **more}, value) for metric, more, value in rows]
    return Scrape(at, samples)


def whole(scrapes: list[Scrape]) -> Window:
    return seen(scrapes, {})


def rolling(scrapes: list[Scrape]) -> Window:
    """As a running exporter reads its own snapshots."""
    window = RollingWindow(20.0)
    for each in scrapes:
        window.add(each.at, samples_by_name(each.samples))
    return window.recent()


@pytest.mark.parametrize("read", [whole, rolling])
def test_a_port_that_is_down(read: Callable[[list[Scrape]], Window]) -> None:
    diagnoses = diagnose(read([scrape(1000.0 + second, faulty=second > 2) for second in range(8)]))
    (incident,) = of_diagnoses(diagnoses, {})

    assert [finding["words"] for each in diagnoses for finding in findings(each)] == [
        "A network port of this GPU is down: mlx5_0b port 1",
        "A network port of this GPU is down: mlx5_1b port 1",
    ]
    assert sentence(incident) == "A network port of each of GPUs 0, 1 on node-7 is down: mlx5_0b port 1, mlx5_1b port 1"


def nvlinks(expected: float, page: bool) -> Scrape:
    """Return a page or a snapshot of two GPUs with twelve NVLinks, of which two of GPU 1 are down."""
    samples = []
    for gpu in ("0", "1"):
        down = ("10", "9") if gpu == "1" else ()
        labels = {"gpu": gpu, "UUID": f"GPU-{gpu}", "Hostname": "node-7", "modelName": "NVIDIA H100"}
        of_link = {**labels, "gpu_uuid": labels["UUID"]} if page else labels
        of_link = {name: text for name, text in of_link.items() if not page or name != "UUID"}
        rows = [(m.UP, 1.0), (m.NVLINK_COUNT, 12.0), (m.NVLINK_EXPECTED, expected), (m.NVLINK_UP, 12.0 - len(down))]
        samples += [ScrapedSample(metric.name, labels, value) for metric, value in rows]
        links = [str(link) for link in range(12)]
        samples += [
            ScrapedSample(m.LINK_UP.name, {**of_link, "nvlink": link}, float(link not in down)) for link in links
        ]
    return Scrape(1000.0, samples)


@pytest.mark.parametrize("read", [whole, rolling])
@pytest.mark.parametrize("page", [True, False])
@pytest.mark.parametrize(("expected", "named"), [(12.0, ": NVLink 9, NVLink 10"), (11.0, "")])
def test_nvlinks_that_are_down(
    read: Callable[[list[Scrape]], Window], expected: float, named: str, *, page: bool
) -> None:
    """Where fewer should be up than there are, nobody knows which."""
    scrapes = [nvlinks(expected, page)._replace(at=1000.0 + second) for second in range(8)]
    (incident,) = of_diagnoses(diagnose(read(scrapes)), {})
    assert sentence(incident) == (
        "GPU 1 on node-7: some NVLinks of this GPU are up, and others that should be up are down" + named
    )


def test_nvlinks_that_are_up_again() -> None:
    window = RollingWindow(20.0)
    window.add(1000.0, samples_by_name(nvlinks(12.0, page=True).samples))
    up = [each._replace(value=1.0) if each.name == m.LINK_UP.name else each for each in nvlinks(12.0, True).samples]
    window.add(1001.0, samples_by_name(up))
    assert [each.nvlinks for each in window.recent().devices.values()] == [{}, {}]


def nvlink_errors(at: float, page: bool, errors: Mapping[str, float]) -> Scrape:
    """Return a page or a snapshot of a GPU with NVLinks, of which some have counted errors."""
    labels = {"gpu": "1", "UUID": "GPU-1", "Hostname": "node-7", "modelName": "NVIDIA H100"}
    of_link = {"gpu": "1", "gpu_uuid": "GPU-1", "Hostname": "node-7"} if page else labels
    samples = [ScrapedSample(m.UP.name, labels, 1.0), ScrapedSample(m.NVLINK_REPLAY.name, labels, sum(errors.values()))]
    for link in map(str, range(12)):
        for row in m.LINK_ERRORS:
            count = errors.get(link, 0.0) if row.labels == (("type", "replay"),) else 7.0
            samples.append(ScrapedSample(row.name, {**of_link, "nvlink": link, **dict(row.labels)}, count))
    return Scrape(at, samples)


@pytest.mark.parametrize("read", [whole, rolling])
@pytest.mark.parametrize("page", [True, False])
def test_the_nvlink_with_most_errors(read: Callable[[list[Scrape]], Window], *, page: bool) -> None:
    """Of those that it has had since it is watched: a link with many old errors is not named."""
    scrapes = [
        nvlink_errors(1000.0 + second, page, {"2": 900.0, "9": 3.0 * second, "10": 12.0 * second})
        for second in range(9)
    ]
    (incident,) = of_diagnoses(diagnose(read(scrapes)), {})
    assert sentence(incident) == "NVLink errors on GPU 1 on node-7: NVLink 10"


def test_nvlink_errors_count_for_an_hour() -> None:
    """A count that began anew has its value as errors."""
    window = RollingWindow(20.0)

    def named(at: float, **errors: float) -> list[str]:
        counts = {name.removeprefix("link"): value for name, value in errors.items()}
        window.add(at, samples_by_name(nvlink_errors(at, False, counts).samples))
        (identity,) = window.recent().devices.values()
        return list(identity.nvlinks.get("GpuNvlinkErrors", ()))

    assert named(60000.0, link4=50.0, link5=8.0) == []
    assert named(60001.0, link4=90.0, link5=8.0) == ["4"]
    assert named(61801.0, link4=2.0, link5=50.0) == ["4"]
    assert named(63800.0, link4=2.0, link5=50.0) == ["5"]
    assert named(65500.0, link4=2.0, link5=50.0) == []


def test_a_replaced_gpu_with_the_same_counts() -> None:
    """Its errors count from its first page on."""
    reader = NvlinkReader()
    for at, uuid, count in ((1000.0, "GPU-1", 5.0), (1001.0, "GPU-2", 5.0), (1002.0, "GPU-2", 9.0)):
        samples = nvlink_errors(at, False, {"4": count}).samples
        of_gpu = [each._replace(labels={**each.labels, "UUID": uuid}) for each in samples]
        found = reader.take(at, samples_by_name(of_gpu))
    assert found == {DeviceKey("", "GPU-2", ""): {"GpuNvlinkErrors": ["4"]}}


def test_reports_name_them() -> None:
    """Beside the values that show the finding."""
    diagnoses = diagnose(rolling([nvlinks(12.0, page=True)]))
    (match,) = diagnoses[1].matches
    assert because(match, [diagnoses[1]], set())[-2:] == ["NVLink 9", "NVLink 10"]
