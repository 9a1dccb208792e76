"""The report for people: wrapped lines, the worst first, loss in numbers, process and runbook."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.diagnosis import gather
from gpu_exporter.diagnosis.diagnose import Diagnosis, diagnose
from gpu_exporter.diagnosis.report import runbook
from gpu_exporter.diagnosis.terminal_report import NARROWEST, lines
from gpu_exporter.diagnosis.window import Window, seen
from tests import PACKAGED_RECORDINGS, ROOT

STRAGGLER = "ddp_straggler_slow_gpu"


@pytest.fixture(scope="module")
def straggler() -> tuple[tuple[Diagnosis, ...], Window]:
    """A recorded job with a straggler, as if it were below its power limit, and its process were known."""
    window = seen(gather.RecordedScrapes(PACKAGED_RECORDINGS / "h200_x2_ddp.jsonl.gz", STRAGGLER), {}, job="train")
    found = diagnose(window, [replace(mode, lesser=None) for mode in MODES])
    found[1].identity.process = {"pid": "4711", "command": "python train.py", "uid": "1000"}
    return found, window


def plain(text: str, style: str) -> str:
    """Style nothing."""
    return text


@pytest.mark.parametrize("width", [20, 60, 80, 120, 300])
def test_lines_fit(straggler: tuple[tuple[Diagnosis, ...], Window], width: int) -> None:
    """They are broken between words: joined again, the advice is complete."""
    found = list(lines(*straggler, width=width, style=plain))
    longest = max(map(len, re.split(r"\s+", "\n".join(found)))) + 8
    assert max(map(len, found)) <= max(width, NARROWEST, longest)
    advice = straggler[0][1].matches[0].mode.advice
    assert " ".join(advice.split()) in re.sub(r"\s+", " ", "\n".join(found))


def test_the_worst_first_with_loss_process_and_runbook(straggler: tuple[tuple[Diagnosis, ...], Window]) -> None:
    found = list(lines(*straggler, width=120, style=plain))
    assert [line.split()[0] for line in found[:3]] == ["GPU", "1", "0"]
    assert [line for line in found if line.startswith("GPU ")][1].startswith("GPU 1 (NVIDIA H200, train)")
    text = "\n".join(found)
    assert re.search(
        r"GpuStragglerSlow \(warning\): \d+ % of the GPU time of its job lost, waiting for other ranks", text
    )
    assert "process 4711: python train.py, user id 1000" in text
    assert "runbook: docs/runbooks/gpustragglerslow.md" in text
    assert re.search(r"^  \d+ % of GPU time lost: ", text, re.MULTILINE)


def test_styles(straggler: tuple[tuple[Diagnosis, ...], Window]) -> None:
    """Each line is styled as a whole, so that codes never count as columns."""
    styled = list(lines(*straggler, width=80, style=lambda text, name: f"<{name}>{text}" if name else text))
    assert any(line.startswith("<warn>  GpuStragglerSlow") for line in styled)
    assert styled[0].startswith("<title>GPU")


def test_every_runbook_exists() -> None:
    assert [mode.name for mode in MODES if not (ROOT / runbook(mode)).is_file()] == []
