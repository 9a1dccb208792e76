"""What docs/first-issues.md proposes can be done, and is not done yet."""

from __future__ import annotations

import re

import pynvml
import pytest

from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.model.metric import Call, FieldValue, Gpm
from tests import ROOT

PAGE = (ROOT / "docs" / "first-issues.md").read_text("utf-8")
DONE = "fix: delete what exists now from docs/first-issues.md"
TYPO = "fix: correct the name in docs/first-issues.md"
NVML = sorted(set(re.findall(r"`(nvmlDeviceGet\w+|NVML_\w+)`", PAGE)))
MODE = re.compile(r"^\| `(Gpu\w+)` \| (.+?) \|", re.MULTILINE)


@pytest.mark.drift
@pytest.mark.parametrize("name", NVML)
def test_nvml_has_it_and_no_metric_reads_it(name: str) -> None:
    reads = [metric.nvml for metric in METRICS]
    assert hasattr(pynvml, name), TYPO
    if name.startswith("NVML_GPM"):
        assert getattr(pynvml, name) not in {read.id for read in reads if isinstance(read, Gpm)}, DONE
    elif name.startswith("NVML_FI"):
        assert getattr(pynvml, name) not in {read.id for read in reads if isinstance(read, FieldValue)}, DONE
    else:
        assert name.removeprefix("nvmlDeviceGet") not in {read.name for read in reads if isinstance(read, Call)}, DONE


@pytest.mark.drift
def test_failure_modes_are_missing_and_their_metrics_exist() -> None:
    rows = MODE.findall(PAGE)
    assert len(rows) >= 3, TYPO
    assert {name for name, _ in rows} & {mode.name for mode in MODES} == set(), DONE
    metrics = {metric.name for metric in METRICS}
    assert {name for _, reads in rows for name in re.findall(r"`(\w+)`", reads)} <= metrics, TYPO
