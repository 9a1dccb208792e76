"""What the links of a GPU should reach: the evidence that they can do better, and where it is kept."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.faults import pcie_capacity
from gpu_exporter.catalogue.gpu_models import pcie_capacity as by_signal
from gpu_exporter.health.links import FILE, GpuLinks, LinkHistory, pcie_link
from gpu_exporter.io.file_access import RETRY_SECONDS
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Metric

Values = Mapping[Metric, float]
ADDRESS = "00000000:06:00.0"
GPU = Gpu(0, "GPU-0", ADDRESS, "Tesla T4")
PEER = Gpu(1, "GPU-1", "00000000:07:00.0", "Tesla T4")
OTHER = Gpu(1, "GPU-1", "00000000:07:00.0", "NVIDIA L4")
A100, A100_PCIE = Gpu(0, "GPU-0", ADDRESS, "NVIDIA A100-SXM4-40GB"), Gpu(0, "GPU-0", ADDRESS, "NVIDIA A100 80GB PCIe")


def link(lanes: float, generation: float = 3, of: tuple[float, float] = (3, 16)) -> Values:
    """Return a PCIe link, and what the driver calls its maximum."""
    known = {m.PCIE_GEN: generation, m.PCIE_WIDTH: lanes, m.PCIE_MAX_GEN: of[0], m.PCIE_MAX_WIDTH: of[1]}
    return {metric: float(value) for metric, value in known.items()}


def nvlinks(active: float, count: float = 12, **more: float) -> Values:
    """Return NVLinks; `fabric` is the state of the fabric, `mig` the MIG mode."""
    rows = {"fabric": m.FABRIC, "mig": m.MIG_MODE}
    return {m.NVLINK_COUNT: count, m.NVLINK_UP: active, **{rows[name]: value for name, value in more.items()}}


def lanes(expected: Mapping[Metric, float], generation: float = 3) -> float:
    """Return the lanes that are expected of a link."""
    return expected[m.PCIE_EXPECTED] / pcie_capacity(generation, 1)


X16, X8 = pcie_capacity(3, 16), pcie_capacity(3, 8)


@pytest.mark.parametrize(
    ("before", "now", "port", "peer", "expected"),
    [
        (link(8), link(8), None, None, 8),
        (link(8), link(8), X8, None, 8),
        (link(16), link(8), None, None, 16),
        (link(16), link(8), X8, None, 16),
        (link(8), link(8), X16, None, 16),
        (link(8), link(8), None, (PEER, link(16)), 16),
        (link(8), link(8), X8, (PEER, link(16)), 8),
        (link(8), link(8), None, (OTHER, link(16)), 8),
        (link(4, of=(3, 8)), link(4, of=(3, 8)), X16, None, 8),
        (link(16, of=(4, 16)), link(16, 1, of=(4, 16)), None, None, 16),
        (link(16, 1), link(16, 1), None, (PEER, link(16, 3)), 16),
    ],
    ids=[
        "narrow slot, virtual machine",
        "narrow slot",
        "lost lanes",
        "lost lanes with those of the port",
        "fewer lanes than the port",
        "fewer lanes than a peer",
        "a peer in a wider slot",
        "another model",
        "a board with 8 lanes",
        "idle: it saves power",
        "a busy peer",
    ],
)
def test_evidence_for_the_pcie_link(
    before: Values, now: Values, port: float | None, peer: tuple[Gpu, Values] | None, expected: float
) -> None:
    history = LinkHistory()
    beside = [GpuLinks(*peer)] if peer else []
    list(history.expected([GpuLinks(GPU, before, port), *beside]))
    found, *_ = history.expected([GpuLinks(GPU, now, port), *beside])
    assert lanes(found) == expected


@pytest.mark.parametrize(
    ("gpu", "history", "expected"),
    [
        (A100, [nvlinks(11)], 12),
        (A100, [nvlinks(0)], 12),
        (A100_PCIE, [nvlinks(4)], 4),
        (A100_PCIE, [nvlinks(12), nvlinks(8)], 12),
        (Gpu(0, "GPU-0", ADDRESS, "NVIDIA H100 80GB HBM3"), [nvlinks(16, 18, fabric=3)], 18),
        (Gpu(0, "GPU-0", ADDRESS, "NVIDIA H100 NVL"), [nvlinks(12, 18)], 12),
        (A100, [nvlinks(11, mig=1)], None),
        (GPU, [link(16)], None),
        (GPU, [nvlinks(0, 0)], None),
    ],
)
def test_evidence_for_nvlinks(gpu: Gpu, history: Sequence[Values], expected: float | None) -> None:
    """Links of bridges may lead nowhere; those of an SXM board or to a fabric do not."""
    links = LinkHistory()
    found = [next(links.expected([GpuLinks(gpu, values)])) for values in history]
    assert found[-1].get(m.NVLINK_EXPECTED) == expected


def test_without_a_link_nothing_is_expected() -> None:
    """A Jetson and a vGPU have none."""
    assert list(LinkHistory().expected([GpuLinks(GPU, {}), GpuLinks(PEER, {m.GPU_TEMP: 40.0})])) == [{}, {}]
    assert pcie_link({m.PCIE_WIDTH: 16.0}) is None


def written(history: LinkHistory) -> None:
    """Wait until the history has written what has changed."""
    history.save()
    history.wait()


def test_what_was_reached_is_kept(tmp_path: Path) -> None:
    """Over a restart, unless the GPU moves to another slot; a check reads it and writes nothing."""
    first = LinkHistory(tmp_path / "state")
    list(first.expected([GpuLinks(GPU, link(16))]))
    written(first)
    saved = (tmp_path / "state" / FILE).read_bytes()
    assert json.loads(saved)["gpus"]["GPU-0"] == {"address": ADDRESS, "pcie": X16, "nvlinks": 0.0}

    check = LinkHistory(tmp_path / "state", keeps=False)
    (found,) = check.expected([GpuLinks(GPU, {**link(8), m.NVLINK_UP: 4.0})])
    assert lanes(found) == 16
    written(check)
    assert (tmp_path / "state" / FILE).read_bytes() == saved

    moved = Gpu(0, "GPU-0", "00000000:81:00.0", "Tesla T4")
    (found,) = LinkHistory(tmp_path / "state").expected([GpuLinks(moved, link(8))])
    assert lanes(found) == 8


@pytest.mark.parametrize("content", [b"", b"[]", b'{"gpus": {"GPU-0": 1}}', b'{"gpus": {"GPU-0": {"pcie": "x"}}}'])
def test_a_damaged_file_is_no_evidence(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    """It is reported, and replaced by what links reach now."""
    (tmp_path / FILE).write_bytes(content)
    history = LinkHistory(tmp_path)
    (found,) = history.expected([GpuLinks(GPU, link(8))])
    assert lanes(found) == 8
    assert [FILE in record.message for record in caplog.records] == [True]
    written(history)
    assert json.loads((tmp_path / FILE).read_bytes())["gpus"]["GPU-0"]["pcie"] == X8


def test_a_directory_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What links reached is written when that is possible again."""
    (tmp_path / "file").touch()
    history = LinkHistory(tmp_path / "file")
    for reached in (8, 16):
        list(history.expected([GpuLinks(GPU, link(reached))]))
        written(history)
    assert sum("not kept over a restart" in record.message for record in caplog.records) == 1
    (tmp_path / "file").unlink()
    written(history)
    assert not (tmp_path / "file").exists()  # it waits before it tries again
    later = time.monotonic() + RETRY_SECONDS
    monkeypatch.setattr("time.monotonic", lambda: later)
    written(history)
    assert json.loads((tmp_path / "file" / FILE).read_bytes())["gpus"]["GPU-0"]["pcie"] == X16


@pytest.mark.parametrize(("generation", "width"), [(1, 1), (3, 8), (5, 16), (6, 16)])
def test_the_capacity_is_that_of_the_signal(generation: float, width: float) -> None:
    """Verdicts and rules compare the same number."""
    assert pcie_capacity(generation, width) == by_signal(generation, width)
