"""The report on traces: one file with everything in it, and nothing that runs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from gpu_exporter.cli.trace import trace_command
from gpu_exporter.reports.flame_graph import MOST_DEPTH, ROW, flame_graph, tree
from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.details import gpu_stacks, shares, timeline
from gpu_exporter.traces.device_times import devices
from gpu_exporter.traces.html_page import page, picture
from gpu_exporter.traces.idle import Launches
from gpu_exporter.traces.model import TraceStep
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.result import IdleCause, Straggler
from gpu_exporter.traces.stacks import Stacks
from tests.support.traces import SyntheticTrace
from tests.unit.traces.test_diff import STEP, trace
from tests.unit.traces.test_text_report import MEMORY, RESULT

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
    text = page(analyze([read(source)], details=True))
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


def _drawn(svg: str) -> dict[str, tuple[str, float, int, str]]:
    """Return the frames of a flame graph by name: share, left edge, row and text."""
    frames = {}
    for group in ElementTree.fromstring(svg).iter("g"):
        name, _, share = (group.findtext("title") or "").partition(": ")
        (rectangle,) = group.iter("rect")
        assert int(rectangle.attrib["height"]) == ROW - 1
        text = group.find("text")
        if text is not None:
            assert float(text.attrib["x"]) == pytest.approx(float(rectangle.attrib["x"]) + 3, abs=0.1)
            assert int(text.attrib["y"]) == int(rectangle.attrib["y"]) + 13
        label = "" if text is None else text.text or ""
        frames[name] = share, float(rectangle.attrib["x"]), int(rectangle.attrib["y"]) // ROW, label
    return frames


def test_frames_stand_below_their_callers() -> None:
    """The longest first, without the frames that all stacks begin with; names are cut to the width of their frames."""
    long_name, narrow = "n" * 100, "narrow"
    svg = flame_graph({"run;main;a;b": 1.0, f"run;main;{long_name};c": 6.98, f"run;main;{narrow}": 0.02}, "t")
    assert _drawn(svg) == {
        "main": ("8 s, 100 %", 0.0, 0, "main"),
        long_name: ("6.98 s, 87 %", 0.0, 1, long_name),
        "c": ("6.98 s, 87 %", 0.0, 2, "c"),
        "a": ("1 s, 12 %", 872.5, 1, "a"),
        "b": ("1 s, 12 %", 872.5, 2, "b"),
        narrow: ("20 ms, 0.25 %", 997.5, 1, ""),
    }
    assert ElementTree.fromstring(svg).attrib["viewBox"] == f"0 0 1000 {3 * ROW}"
    colours = re.findall(r"hsl\((\d+) (\d+)% (\d+)%\)", svg)
    assert len(set(colours)) > 3
    assert all(
        8 <= int(hue) < 52 and saturation == "75" and 62 <= int(light) < 76 for hue, saturation, light in colours
    )
    assert re.findall("hsl[^)]*", flame_graph({"a;b": 1.0, "c": 1.0}, "t")) == re.findall(
        "hsl[^)]*", flame_graph({"a;b": 1.0, "c": 1.0}, "u")
    )


@pytest.mark.parametrize(
    ("width", "text"), [(1.0, "x" * 100), (0.5, "x" * 77 + "…"), (0.032, "xxx…"), (0.031, ""), (0.0006, None)]
)
def test_names_are_cut_to_the_width_of_frames(width: float, text: str | None) -> None:
    frames = _drawn(flame_graph({"x" * 100: width, "other": 1.0 - width}, "t"))
    assert frames.get("x" * 100, ("", 0.0, 0, None))[3] == text


def test_the_common_beginning_of_stacks_is_left_out() -> None:
    """Up to where they part, or to a frame that has time of its own."""
    assert list(_drawn(flame_graph({"run;main": 1.0}, "t"))) == ["run", "main"]
    assert list(_drawn(flame_graph({"run;main;f": 9.0, "run;main": 0.001}, "t"))) == ["main", "f"]
    assert list(_drawn(flame_graph({"run;main;f;g": 9.0, "run": 1.0}, "t"))) == ["run", "main", "f", "g"]
    assert list(_drawn(flame_graph({}, "t"))) == ["all"]


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
    layers = shares(times)
    total = np.sum(list(layers.values()), axis=0)
    assert total.max() <= 1 + 1e-9
    busy = (times.busy[1] - times.busy[0]).sum() / times.span
    assert total.mean() == pytest.approx(busy, abs=0.01)


def _busy_trace(rank: int | None = None, idle: float = 0) -> SyntheticTrace:
    """Return 200 us of a kernel, 200 us of communication and of a copy, half hidden, and 100 us at the end of 1 ms."""
    made = SyntheticTrace(rank=rank)
    made.step(1, -500, 600)
    made.step(2, 250, 500)
    made.device(0, 200)
    made.device(100, 200, "nccl", stream=8, launched=1)
    made.device(200, 200, "Memcpy HtoD", category="gpu_memcpy", stream=9, launched=2)
    made.device(900 + idle, 100, "Memset (Device)", category="gpu_memset", launched=800)
    return made


def test_the_timeline_has_a_column_for_each_moment(tmp_path: Path) -> None:
    """Kernels hide communication, and both hide copies; memsets are kernels."""
    times = devices(read(_busy_trace().write(tmp_path / "t.json")))[0]
    layers = {name: share.tolist() for name, share in shares(times).items()}
    assert layers == {
        "compute": [1.0] * 100 + [0.0] * 350 + [1.0] * 50,
        "communication": [0.0] * 100 + [1.0] * 50 + [0.0] * 350,
        "copies": [0.0] * 150 + [1.0] * 50 + [0.0] * 300,
    }
    steps = (
        TraceStep("before", -1, 5, 0),
        TraceStep("first", 0, 5, 0),
        TraceStep("<middle>", 250_000, 5, 0),
        TraceStep("late", 10**7, 5, 0),
    )
    svg = ElementTree.fromstring(picture(timeline(times, steps), "a < b"))
    paths = {path.attrib["class"]: path.attrib["d"] for path in svg.iter("path")}
    assert paths["copies"] == "".join(f"M{at}.00 0.00h2.00V44.00h-2.00z" for at in range(300, 400, 2))
    assert paths["compute"].startswith("M0.00 0.00h2.00V44.00h-2.00zM2.00 ")
    marks = [path for path in svg.iter("path") if path.attrib["class"] == "step"]
    assert [(path.findtext("title"), path.attrib["d"]) for path in marks] == [
        ("first", "M0.00 0v44"), ("<middle>", "M250.00 0v44"),
    ]  # fmt: skip
    assert svg.attrib["aria-label"] == "a < b"
    many = picture(timeline(times, steps[1:2] * 500), "")
    assert many.count('class="step"') == 200


def test_half_of_a_moment_is_half_as_high(tmp_path: Path) -> None:
    made = SyntheticTrace()
    made.device(0, 1)
    made.device(500.5, 499.5)
    times = devices(read(made.write(tmp_path / "t.json")))[0]
    path = re.findall('class="compute" fill="[^"]*" d="([^"]*)"', picture(timeline(times, ()), ""))[0]
    assert path.startswith("M0.00 22.00h2.00V44.00h-2.00zM500.00 11.00h2.00V44.00h-2.00zM502.00 0.00h2.00")


def _page(folder: Path, traces: Sequence[SyntheticTrace], **changes: Any) -> str:
    loaded = [read(made.write(folder / f"{number}.json")) for number, made in enumerate(traces)]
    return page(replace(analyze(loaded, details=True), **changes))


def test_a_page_of_many_ranks(tmp_path: Path) -> None:
    """All are in the table and have a timeline; the four with the most idle time have flame graphs, the worst first."""
    traces = [_busy_trace(rank, idle=100.0 * rank) for rank in range(5)]
    text = _page(tmp_path, traces, straggler=Straggler(3, "gpu", 0.012))
    assert "0.json, 1.json, 2.json …</small></h1>" in text
    assert re.findall(r"<h2>Rank (\d), GPU 0</h2>", text) == ["4", "3", "2", "1", "0"]
    assert re.findall(r'aria-label="Idle time of rank (\d) by stack"', text) == ["4", "3", "2", "1"]
    assert re.findall(r'aria-label="GPU time of rank (\d) by stack"', text) == ["4", "3", "2", "1"]
    assert re.findall(r"<p>GPU 0 of rank (\d) over ([\d.]+ ms)</p>", text) == [
        ("0", "1 ms"), ("1", "1.1 ms"), ("2", "1.2 ms"), ("3", "1.3 ms"), ("4", "1.4 ms"),
    ]  # fmt: skip
    assert "<p>The others wait for rank 3, whose GPU is slow: 12 ms per step.</p>" in text
    assert '<td>1, GPU 0 NVIDIA H200</td><td class="number">1.1 ms</td><td class="number">45 %</td>' in text
    assert "Memory" not in text


def test_a_page_of_files_without_ranks(tmp_path: Path) -> None:
    text = _page(tmp_path, [_busy_trace(), _busy_trace(idle=100)], dropped_reasons={"not <valid>": 3})
    assert "0.json, 1.json</small></h1>" in text
    assert re.findall(r"<h2>Rank (\d), GPU 0</h2>", text) == ["1", "0"]
    assert "<p>Not analysed: 3 events not &lt;valid&gt;</p>" in text


def test_long_lists_of_a_page_are_cut(tmp_path: Path) -> None:
    (rank,) = analyze([read(_busy_trace().write(tmp_path / "t.json"))]).ranks
    cause = IdleCause("python", 1.0, 0.5, ("one", "two", "three", "four"))
    rank = replace(rank, idle_causes=(cause,) * 9, top_kernels=rank.top_kernels[:1] * 20, memory=MEMORY)
    text = _page(tmp_path, [_busy_trace()], ranks=(rank,)).partition("<script")[0]
    assert text.count("running other code on the host<br>") == 6
    assert (text.count(">three<"), text.count(">four<")) == (6, 0)
    assert text.count("<small>gemm</small>") == 12
    assert "<h3>Memory at its peak</h3>\n<p>6 GiB of 80 GiB in tensors, at most 10 GiB reserved by PyTorch" in text
    assert "<p>An allocation of 3 GiB failed while" in text
    assert (
        '<td><span class="frame">optimizer</span></td><td class="number">67 %</td><td class="number">4 GiB</td>' in text
    )
    assert '<td><span class="frame">train.py(5): step</span></td><td class="number">100 %</td>' in text


def test_a_busy_gpu_has_no_causes_and_no_advice(tmp_path: Path) -> None:
    made = SyntheticTrace()
    made.device(0, 100)
    text = _page(tmp_path, [made])
    for part in ("What to do", "Why the GPU was idle", "What the host did", "The others wait"):
        assert part not in text


def test_advice_on_a_page(tmp_path: Path) -> None:
    text = _page(tmp_path, [_busy_trace()], verdict=RESULT.verdict)
    assert (
        '<li><b>at most 2 s (20 %)</b>: Use workers.<br><span class="frame">at data.py(3): decode</span></li>' in text
    )
    assert "<li><b>at most 500 ms (5 %)</b>: Fuse.</li>" in text


def test_idle_time_in_words(tmp_path: Path) -> None:
    """The outermost frame of its flame graph is the cause."""
    text = _page(tmp_path, [_busy_trace()], idle_stacks={0: {"python;main": 1.0, "checkpoint;save": 3.0}})
    graph = next(svg for svg in re.findall("<svg.*?</svg>", text) if "Idle time of rank 0" in svg)
    assert [(name, share) for name, (share, *_) in _drawn(graph).items()] == [
        ("all", "4 s, 100 %"),
        ("writing or reading a checkpoint", "3 s, 75 %"),
        ("save", "3 s, 75 %"),
        ("running other code on the host", "1 s, 25 %"),
        ("main", "1 s, 25 %"),
    ]


def test_gpu_time_by_stack(tmp_path: Path) -> None:
    read_trace = read(trace(tmp_path / "a.json", 2))
    found = gpu_stacks(read_trace, read_trace.device_events, Stacks(read_trace), Launches(read_trace))
    assert sum(found.values()) == pytest.approx(900e-6)
    (first,) = (stack for stack in found if stack.endswith("ampere_sgemm_128x64"))
    frames = first.split(";")
    assert frames.index("train.py(20): forward") < frames.index("aten::mm") < frames.index("cudaLaunchKernel")


def test_gpu_time_without_any_event_of_the_host(tmp_path: Path) -> None:
    """Such as of traces that record the GPU only."""
    made = SyntheticTrace()
    made.device(0, 50, correlation=1)
    (details,) = analyze([read(made.write(tmp_path / "t.json"))], details=True).details.values()
    assert details.gpu_stacks == {"(no frames);sm90_gemm": pytest.approx(50e-6)}
