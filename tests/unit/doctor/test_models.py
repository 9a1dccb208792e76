"""What `doctor` advises the owners of public GPU models."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.faults import pcie_capacity
from gpu_exporter.catalogue.profiling_support import WITH_DCGM
from gpu_exporter.doctor import examine
from gpu_exporter.health.links import GpuLinks, LinkHistory
from gpu_exporter.model.finding import Finding, FindingLevel
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.verdict import Verdict
from tests.support.models import ANSWERS, ModelAnswers

# The advice by model, of those that do not have GPM.
NEVER = {
    "GeForce": "GeForce",
    "Tesla K80": "Kepler",
    "P100": "Pascal",
    "Quadro P2": "Pascal",
    "Quadro P4": "6.1",
    "GRID": "a vGPU",
}
GPM = {"Hopper", "Blackwell"}


def findings(model: ModelAnswers, reason: str = "no_gpm_and_no_dcgm") -> list[Finding]:
    """Return the findings on a GPU that `--source auto` reads, without profiling metrics unless it has GPM."""
    architecture = model.architecture.split(" ")[0]
    gpm = architecture in GPM
    capability = "6.1" if model.name == "Quadro P400" else ""
    info = {"architecture": architecture, "brand": model.brand, "compute_capability": capability}
    gpu = Gpu(0, "GPU-0", "00000000:06:00.0", model.name, info=tuple((k, v) for k, v in info.items() if v))
    (links,) = LinkHistory().expected([GpuLinks(gpu, model.busy)])
    values: Mapping[Metric, float] = {**model.busy, **links, **({m.SM_ACTIVE: 0.5} if gpm else {})}
    samples = [Sample(Series(metric, gpu), value) for metric, value in values.items()]
    choice = (("source", "nvml"), ("reason", "gpm" if gpm else reason))
    samples.append(Sample(Series(m.SOURCE_INFO, gpu, choice), 1.0))
    if not gpm:
        labels = (("metric", m.SM_ACTIVE.key), ("reason", "not_supported"))
        samples.append(Sample(Series(m.SUPPORTED, gpu, labels), 0.0))
    samples.append(Sample(Series(m.EXPECTED), 1.0))
    return examine.judge(Snapshot(1.0, "nvml", tuple(samples), (GpuStatus(gpu, up=True),), verdicts=(Verdict(gpu),)))


@pytest.mark.parametrize("model", ANSWERS, ids=lambda model: model.name)
def test_dcgm_is_advised_only_where_it_can_profile(model: ModelAnswers) -> None:
    """With both packages and the permission; elsewhere, the reason why nothing can."""
    found = findings(model)
    text = "\n".join(map(str, found))
    why = next((words for name, words in NEVER.items() if name in model.name), "")
    if why and model.architecture not in GPM:
        assert why in text
        assert "datacenter-gpu-manager" not in text
        assert {finding.level for finding in found} <= {FindingLevel.OK, FindingLevel.NOTE}
    elif model.architecture.split(" ")[0] in GPM:
        assert "profiling metrics through GPM" in text
    elif model.values:
        assert WITH_DCGM in text


def test_a_missing_module_is_named_only_where_it_helps() -> None:
    """DCGM gives the same answer for a GeForce card, which it cannot profile."""
    by_name = {model.name: findings(model, "no_gpm_and_dcgm_no_profiling_module") for model in ANSWERS}
    assert any("DCGM is not available" in finding.what for finding in by_name["Tesla T4"])
    assert not any("DCGM is not available" in finding.what for finding in by_name["NVIDIA GeForce RTX 4090"])


def test_a_narrow_slot_is_a_note() -> None:
    """A T4 in a cloud instance has 8 of 16 lanes, and that is no fault."""
    notes = {model.name for model in ANSWERS for finding in findings(model) if "lanes" in finding.what}
    assert {"Tesla T4", "NVIDIA L4", "NVIDIA L40S", "NVIDIA GeForce RTX 4060 Ti"} <= notes
    assert "NVIDIA GeForce RTX 4090" not in notes
    (found,) = (finding for finding in findings(T4) if "lanes" in finding.what)
    assert (found.level, found.cure) == (FindingLevel.NOTE, "")
    lost = {**T4.busy, m.PCIE_EXPECTED: pcie_capacity(3, 16)}
    assert list(examine.link_notes(lost)) == []


(T4,) = (model for model in ANSWERS if model.name == "Tesla T4")
