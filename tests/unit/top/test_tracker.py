"""Scrapes of lost, missing and returning GPUs, MIG instances, owners and processes -> rows of the view."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.top.state import GpuRow, View
from gpu_exporter.top.tracker import FORGET_SECONDS, Tracker

BUSY: Mapping[str, float] = {
    m.GR_ENGINE_ACTIVE.name: 0.98,
    m.SM_ACTIVE.name: 0.9,
    m.TENSOR_ACTIVE.name: 0.6,
    m.DRAM_ACTIVE.name: 0.2,
    m.POWER.name: 600.0,
    m.POWER_LIMIT.name: 700.0,
}


def labels(index: int, **more: str) -> dict[str, str]:
    """Return the labels of a GPU."""
    return {"gpu": str(index), "UUID": f"GPU-{index}", "modelName": "NVIDIA H200", **more}


def gpu(index: int, **more: str) -> list[ScrapedSample]:
    """Return the samples of a busy GPU."""
    own = labels(index, **more)
    return [ScrapedSample(m.UP.name, own, 1.0), *(ScrapedSample(name, own, value) for name, value in BUSY.items())]


def down(index: int, reason: str, **more: str) -> list[ScrapedSample]:
    """Return the samples of a GPU that does not answer."""
    own = labels(index, **more)
    return [ScrapedSample(m.UP.name, own, 0.0), ScrapedSample(m.DOWN.name, {**own, "reason": reason}, 1.0)]


def watched(tracker: Tracker, *scrapes: list[ScrapedSample], begin: float = 1000.0) -> View:
    """Take scrapes, one per second, and return the last view."""
    view = View()
    for at, samples in enumerate(scrapes):
        view = tracker.take(Scrape(begin + at, samples))
    return view


def by_name(view: View) -> dict[str, GpuRow]:
    """Return the rows by the names of their GPUs."""
    return {row.name: row for row in view.gpus}


def test_values_class_and_history() -> None:
    view = watched(Tracker(20.0), *[gpu(0)] * 3)
    (row,) = view.gpus
    assert (row.name, row.model, row.class_name, row.down) == ("0", "NVIDIA H200", "compute-bound", "")
    assert (row.values["sm_active"], row.values["power"], row.limits["power"]) == (0.9, 600.0, 700.0)
    assert row.history["sm_active"] == (0.9, 0.9, 0.9)
    assert "temperature" not in row.values, "what was not read is absent"
    assert row.history["temperature"] == (None, None, None)
    assert (row.class_since, view.since, view.banner, view.missing) == (1000.0, 1000.0, "", 0)


def test_a_gpu_is_lost_and_comes_back() -> None:
    tracker = Tracker(20.0)
    lost = by_name(watched(tracker, gpu(0) + gpu(1), gpu(0) + down(1, "lost")))
    assert lost["1"].down == "lost: it fell off the bus"
    back = by_name(watched(tracker, gpu(0) + gpu(1), begin=1010.0))
    assert back["1"].owner == ""
    assert (back["1"].down, back["1"].values["sm_active"]) == ("", 0.9)


def test_a_lost_gpu_keeps_its_owner() -> None:
    """The one that it had last. A GPU that answers, and that nobody holds, has none."""
    pod = {"namespace": "ml", "pod": "train-1", "workload": "train"}
    tracker = Tracker(20.0)
    lost = by_name(watched(tracker, gpu(1, **pod), gpu(1, **pod), *[down(1, "lost")] * 8))
    assert lost["1"].owner == "ml/train-1"
    back = by_name(watched(tracker, *[gpu(1)] * 8, begin=1010.0))
    assert back["1"].owner == ""


def test_a_gpu_disappears() -> None:
    """Its row stays for ten minutes and says since when; then it is forgotten."""
    tracker = Tracker(20.0)
    watched(tracker, gpu(0) + gpu(1))
    gone = by_name(watched(tracker, gpu(0), begin=1030.0))["1"]
    assert (gone.gone, gone.class_name, gone.values) == (30.0, "", {})
    assert list(by_name(watched(tracker, gpu(0), begin=1001.0 + FORGET_SECONDS))) == ["0"]


def test_a_gpu_that_was_never_identified() -> None:
    """It has a row of its own until it is identified."""
    tracker = Tracker(20.0)
    view = watched(tracker, gpu(0) + down(1, "stalled", UUID=""))
    assert by_name(view)["1"].down.startswith("stalled: ")
    view = watched(tracker, gpu(0) + gpu(1), begin=1001.0)
    assert [(row.name, row.down) for row in view.gpus] == [("0", ""), ("1", "")]


def test_missing_gpus_banner_and_verdict() -> None:
    own = labels(0, source="simulated")
    state = {**own, "state": "degraded"}
    reason = {**own, "reason": "pcie_slow", "action": "reseat"}
    samples = [
        *gpu(0, source="simulated"),
        ScrapedSample(m.EXPECTED.name, {"source": "simulated"}, 8.0),
        ScrapedSample(m.HEALTH_STATE[0].name, state, 1.0),
        ScrapedSample(m.HEALTH_REASON.name, reason, 1.0),
    ]
    view = watched(Tracker(20.0), samples)
    (row,) = view.gpus
    assert (view.missing, view.banner) == (7, "Simulated GPUs")
    assert (row.health, row.reasons) == ("degraded", ("pcie slow -> reseat",))


def test_mig_instances() -> None:
    """Each instance has a row; the GPU itself has none while nothing is wrong with it."""
    samples = [*gpu(0, GPU_I_ID="1"), *gpu(0, GPU_I_ID="2"), ScrapedSample(m.GPU_TEMP.name, labels(0), 50.0)]
    assert sorted(by_name(watched(Tracker(20.0), samples, samples))) == ["0/1", "0/2"]


def test_owner_and_processes() -> None:
    process = labels(0, pid="7", process="python3")
    host = labels(0, pid="7", process="python3", command="python3 train.py", uid="1000")
    samples = [
        *gpu(0),
        ScrapedSample(m.PROCESS_MEMORY.name, process, 5e9),
        ScrapedSample(m.PROCESS_SM.name, process, 0.8),
        ScrapedSample(m.PROCESS_MEMORY.name, labels(0, pid="9", process="nv\x1b[2J"), 9e9),
        ScrapedSample(m.HOST_PROCESS.name, host, 1.0),
    ]
    (row,) = watched(Tracker(20.0), samples).gpus
    assert [(each.pid, each.memory, each.sm) for each in row.processes] == [("9", 9e9, None), ("7", 5e9, 0.8)]
    assert row.processes[1].command == "python3 train.py"
    assert "\x1b" not in row.processes[0].command
    assert row.owner == "python3 (uid 1000)"
    pod = ScrapedSample(m.POD_INFO.name, labels(0, namespace="ml", pod="train-0", workload="train"), 1.0)
    (row,) = watched(Tracker(20.0), [*samples, pod]).gpus
    assert row.owner == "ml/train-0"
