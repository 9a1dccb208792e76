"""The report on traces: one file with everything in it, and nothing that runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from gpu_exporter.cli.trace import trace_command
from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.device_times import devices
from gpu_exporter.traces.gpu_stacks import gpu_stacks
from gpu_exporter.traces.html_report.flame import MOST_DEPTH, flame_graph, tree
from gpu_exporter.traces.html_report.page import page
from gpu_exporter.traces.html_report.timeline import shares
from gpu_exporter.traces.reader import read
from tests.unit.traces.test_diff import STEP, trace

HOSTILE = "<script>alert(1)</script>\u2028\x1b[31m\"'&"


def test_the_whole_report_in_one_file(tmp_path: Path) -> None:
    """Verdict, causes with code, timeline, both flame graphs, kernels, and the JSON; no other file, no script."""
    source = trace(tmp_path / "a.json", 3, sleep=2_000)
    result = CliRunner().invoke(trace_command, ["analyze", str(source), "--report", str(tmp_path / "r.html")])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "r.html").read_text()
    assert "<h2>data-loading-bound</h2>" in text
    assert "train.py(7): load_batch" in text
    assert text.count('class="flame"') == 2
    assert text.count('class="step"') == 2  # the first step began before the GPU did anything
    assert "ampere_sgemm_128x64" in text
    assert not re.search(r"""(?:src|href|url)\s*[=(]""", text)
    (embedded,) = re.findall(r'<script type="application/json" id="analysis">(.*?)</script>', text, re.DOTALL)
    assert json.loads(embedded)["verdict"]["class"] == "data-loading-bound"
    assert text.count("<script") == 1


def test_hostile_names_are_text(tmp_path: Path) -> None:
    source = trace(tmp_path / "a.json", 2, ((HOSTILE, HOSTILE, 400), *STEP))
    source.write_text(source.read_text().replace("load_batch", "load_batch<img src=x onerror=alert(1)>"))
    traces = [read(source)]
    text = page(traces, analyze(traces))
    assert "<img" not in text
    assert text.count("<script") == 1
    assert "\x1b" not in text
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)


def test_a_flame_graph_is_as_wide_as_its_shares() -> None:
    stacks = {"main;load": 3.0, "main;train;forward": 0.9, "main;train;backward": 0.1}
    root = ElementTree.fromstring(flame_graph(stacks, "title"))
    widths = {
        (group.findtext("title") or "").partition(":")[0]: float(rectangle.attrib["width"])
        for group in root.iter("g")
        for rectangle in group.iter("rect")
    }
    assert widths == pytest.approx({"main": 1000, "load": 750, "train": 250, "forward": 225, "backward": 25}, abs=0.5)


def test_deep_and_narrow_frames_are_left_out() -> None:
    """A stack of a thousand frames, and ten thousand different stacks, give a picture of a bounded size."""
    deep = ";".join(f"f{number}" for number in range(1_000))
    text = flame_graph({deep: 1.0, f"{deep};x": 1.0, "f0;other": 1.0}, "deep")
    assert 10 < text.count("<rect") <= MOST_DEPTH + 1
    wide = flame_graph({f"f{number}": 1.0 for number in range(10_000)} | {"big": 10_000.0}, "wide")
    assert wide.count("<rect") < 20


def test_a_tree_of_stacks() -> None:
    root = tree({"a;b": 1.0, "a;c": 2.0, "d": 4.0})
    assert (root.seconds, root.children["a"].seconds, root.children["a"].children["c"].seconds) == (7.0, 3.0, 2.0)


def test_the_timeline_counts_each_moment_once(tmp_path: Path) -> None:
    """The mean over the columns is the busy ratio, although kernels and copies overlap."""
    times = devices(read(trace(tmp_path / "a.json", 4)))[0]
    layers = shares(times, times.start, times.end)
    total = np.sum(list(layers.values()), axis=0)
    assert total.max() <= 1 + 1e-9
    busy = (times.busy[1] - times.busy[0]).sum() / times.span
    assert total.mean() == pytest.approx(busy, abs=0.01)


def test_gpu_time_by_stack(tmp_path: Path) -> None:
    found = gpu_stacks(read(trace(tmp_path / "a.json", 2)), 0)
    assert sum(found.values()) == pytest.approx(900e-6)
    (first,) = (stack for stack in found if stack.endswith("ampere_sgemm_128x64"))
    frames = first.split(";")
    assert frames.index("train.py(20): forward") < frames.index("aten::mm") < frames.index("cudaLaunchKernel")
