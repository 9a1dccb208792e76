"""Findings and GPUs have one order, wherever they are listed: by severity, then by what they cost, then by GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.diagnosis import report, terminal_report
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.headline import findings
from gpu_exporter.diagnosis.html_page import page
from gpu_exporter.diagnosis.incidents import of_diagnoses, order_of_gpus
from gpu_exporter.diagnosis.result import DiagnosisResult
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen

# The order of triage is another one, and both info findings cost nothing but GpuHostBound.
TRIAGE = ("GpuTensorCoresIdle", "GpuHostBound", "GpuEccUncorrectable")
ORDER = ["GpuEccUncorrectable", "GpuHostBound", "GpuTensorCoresIdle"]


def watched(engines: dict[int, float]) -> DiagnosisResult:
    """Return the diagnosis of GPUs with these engine activities; GPU 0 has memory errors, besides."""
    scrapes = []
    for second in range(30):
        samples = []
        for index, engine in engines.items():
            labels = {"gpu": str(index), "UUID": f"GPU-{index}", "modelName": "NVIDIA H200"}
            values = {m.GR_ENGINE_ACTIVE.name: engine, m.SM_ACTIVE.name: engine * 0.9, m.FB_USED.name: 5000.0}
            values |= {m.ECC_DBE_VOL.name: 3.0} if index == 0 else {}
            samples += [ScrapedSample(name, labels, value) for name, value in values.items()]
        scrapes.append(Scrape(1000.0 + second, samples))
    window = seen(scrapes, {})
    by_name = {mode.name: mode for mode in MODES}
    # What holds wherever an engine works stands for a finding that costs nothing.
    capped = replace(by_name["GpuTensorCoresIdle"], condition=by_name["GpuHostBound"].condition)
    modes = [capped if name == capped.name else by_name[name] for name in TRIAGE]
    return DiagnosisResult("http://node-1:9400", 30.0, window, diagnose(window, modes))


@pytest.fixture(scope="module")
def result() -> DiagnosisResult:
    """GPUs 1 to 3 are host-bound, GPU 2 most; GPU 0 is broken as well."""
    return watched({0: 0.4, 1: 0.5, 2: 0.2, 3: 0.5})


def _plain(text: str, style: str) -> str:
    return text


def test_findings_of_a_gpu(result: DiagnosisResult) -> None:
    first = result.diagnoses[0]
    in_terminal = terminal_report.report_lines(result, width=100, style=_plain, every=False, verbose=False, price=None)
    texts = {
        "terminal": "\n".join(in_terminal),
        "text": "\n".join(report.report_lines(result, every=False, verbose=False, price=None)),
        "report": page(result, mask=False, price=None).partition('<section id="gpu-')[2].partition("<section")[0],
    }
    shown = {
        name: list(dict.fromkeys(re.findall("|".join(ORDER), text.partition("GPU 0")[2])))
        for name, text in texts.items()
    }
    assert shown == dict.fromkeys(texts, ORDER)
    assert [mode["name"] for mode in report.as_json(result)["gpus"][0]["modes"]] == ORDER
    assert [finding["name"] for finding in findings(first)] == ORDER
    assert first.worst is first.matches[0]


def test_gpus(result: DiagnosisResult) -> None:
    """The broken one, then what is lost, then by index; one incident has them all."""
    place = order_of_gpus(of_diagnoses(result.diagnoses[1:]))
    assert [each.identity.gpu for each in sorted(result.diagnoses[1:], key=place)] == ["2", "1", "3"]
    in_table = terminal_report.lines(result.diagnoses, result.window, width=120, style=_plain)
    assert [found[1] for line in in_table if (found := re.match(r" *(\d)  .*NVIDIA", line))] == ["0", "2", "1", "3"]
