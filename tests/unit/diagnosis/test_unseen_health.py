"""What of the health of GPUs a page does not have is said, and its absence is not called health."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.health_parts import PARTS
from gpu_exporter.diagnosis import report
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.html_page import page
from gpu_exporter.diagnosis.result import DiagnosisResult
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.unseen_health import unseen_health
from gpu_exporter.diagnosis.window import seen

WORK = {
    "DCGM_FI_DEV_GPU_UTIL": 99.0,
    "DCGM_FI_DEV_POWER_USAGE": 600.0,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.99,
    "DCGM_FI_PROF_SM_ACTIVE": 0.95,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.8,
    "DCGM_FI_PROF_DRAM_ACTIVE": 0.4,
}
HEALTH = {
    m.XID_ERRORS.name: 0.0,
    m.ECC_DBE_VOL.name: 0.0,
    m.REMAP_FAILURE.name: 0.0,
    m.PCIE_REPLAY.name: 0.0,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 0.0,
}


def watched(values: Mapping[str, float], model: str = "NVIDIA L4", **labels: str) -> DiagnosisResult:
    """Return the diagnosis of a GPU, and of a second one that has all series of health."""
    scrapes = []
    for second in range(20):
        of_gpu = {"gpu": "0", "UUID": "GPU-0", "modelName": model, **labels}
        samples = [ScrapedSample(name, of_gpu, value) for name, value in values.items()]
        other = {"gpu": "1", "UUID": "GPU-1", "modelName": "NVIDIA L4"}
        samples += [ScrapedSample(name, other, value) for name, value in (WORK | HEALTH).items()]
        scrapes.append(Scrape(1000.0 + second, samples))
    window = seen(scrapes, {})
    return DiagnosisResult("http://node-1:9400", 20.0, window, diagnose(window))


def test_a_page_without_health() -> None:
    found = watched(WORK, "NVIDIA H100 80GB HBM3")
    unseen = ("XIDs", *PARTS)
    said = [line for line, _ in report.end(found, None)]
    assert unseen_health(found.diagnoses) == unseen
    assert said[-2:] == [
        f"Not seen, and so not judged: {', '.join(unseen)}.",
        "nothing wrong was found in what was seen",
    ]
    assert "good" not in [style for _, style in report.end(found, None)]
    assert report.as_json(found)["unseen_health"] == list(unseen)
    assert "No fault was found in what was seen" in page(found, mask=False, price=None)
    assert report.result_code(found) == 0


def test_what_is_seen_is_not_listed() -> None:
    """An L4 has no NVLinks; of the modes that judge a part, one is enough."""
    assert unseen_health(watched(WORK | HEALTH).diagnoses) == ()
