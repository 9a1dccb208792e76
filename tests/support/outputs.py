"""A hostile text in every label of every input, passed through every output that may show it."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.cli import group, logs
from gpu_exporter.diagnosis import html_page, report, terminal_report
from gpu_exporter.diagnosis.gather import WatchedScrapes
from gpu_exporter.diagnosis.remote_scrapes import QueryAnswer, scrapes_of
from gpu_exporter.diagnosis.result import DiagnosisResult, diagnose_recording, diagnose_scrapes
from gpu_exporter.diagnosis.scrape import Scrape
from gpu_exporter.diagnosis.summary_table import aligned, cells
from gpu_exporter.diagnosis.text_format import parsed
from gpu_exporter.io.decoding import json_as
from gpu_exporter.jobs import message
from gpu_exporter.live_page.monitor import LiveMonitor
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.verdict import Verdict
from gpu_exporter.pipeline.renderer import escape
from gpu_exporter.profiling import html_page as profile_page
from gpu_exporter.profiling import text_report as profile_text
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import Sampling
from gpu_exporter.profiling.result import all_stacks, folded_lines, process_profile
from gpu_exporter.profiling.stacks import parse
from gpu_exporter.top.feeds import READ, SHOWN
from gpu_exporter.top.lines import UNICODE
from gpu_exporter.top.screen import Screen
from gpu_exporter.top.tracker import Tracker
from gpu_exporter.traces import html_page as trace_page
from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.text_report import lines as trace_lines
from tests.support import job_sender
from tests.support.html import Document
from tests.support.traces import SyntheticTrace

# Markup that a page contains only if a text was not escaped.
MARKUP = "'\"><hostile onhostile=1></script></style><!--"
# All labels that any code reads by name.
LABELS = (
    *("gpu", "UUID", "modelName", "model", "device", "pci_bus_id", "Hostname", "hostname", "node", "cluster", "job"),
    *("namespace", "pod", "container", "exported_namespace", "exported_pod", "exported_container", "workload", "rank"),
    *("GPU_I_PROFILE", "pid", "process", "process_name", "name", "command", "uid", "pod_uid", "container_id"),
    *("hpc_job", "job_id", "state", "reason", "action", "source", "xid", "err_code", "driver_version", "nvlink"),
    *("DCGM_FI_DRIVER_VERSION", "nic", "peer", "port", "le", "phase", "outcome"),
)
# The families whose labels are shown, and some that only have values: parsing all others takes long.
SHOWN_FAMILIES = tuple(
    dict.fromkeys(
        (
            *SHOWN,
            *(m.INFO.name, m.POD_INFO.name, m.XID_EVENTS.name, m.DOWN.name, m.EXPECTED.name, m.MISSING.name),
            *(m.SOURCE_DOWN.name, m.HOST_PROCESS.name, m.GR_ENGINE_ACTIVE.name, m.SM_ACTIVE.name, m.POWER.name),
        )
    )
)
# Categories of characters that a terminal may obey: C0, C1 and DEL, bidi and other controls, separators of lines.
CONTROLS = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


class Shown(NamedTuple):
    """What an output showed of an input. `form` is lines, log, html or json."""

    name: str
    form: str
    text: str


def wrong(shown: Shown) -> str:
    """Return what is wrong with an output, or nothing."""
    match shown.form:
        case "lines" | "log":
            lines = shown.text.split("\n") if shown.form == "lines" else [shown.text]
            odd = (line for line in lines if not line.isprintable())  # most lines are, and this is fast
            if bad := {char for line in odd for char in line if unicodedata.category(char) in CONTROLS}:
                return f"control characters: {sorted(bad)!r}"
        case "html":
            if "<hostile" in shown.text.lower():
                return "markup is not escaped"
            if any("onhostile" in attributes for _, attributes in Document(shown.text).elements):
                return "an attribute is not escaped"
        case "json":
            json.loads(shown.text, parse_constant=_no_json)
            shown.text.encode()
    return ""


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def outputs(text: str, folder: Path) -> Iterator[Shown]:
    """Yield all outputs of all inputs that contain this text."""
    for name, scrapes in (("exporter", _of_exporter), ("prometheus", _of_prometheus)):
        yield from _of_scrapes(name, scrapes(text))
    yield from _of_snapshot(text)
    yield from _of_recording(text, folder)
    yield from _of_kernel_log(text, folder)
    yield from _of_stacks(text)
    yield from _of_trace(text, folder)
    yield from _of_job(text)
    yield from _of_log(text)


def _labels(text: str, index: int) -> dict[str, str]:
    """Return all labels of a GPU; the second one is a GPU instance."""
    labels = {name: f"{index}{text}" for name in LABELS}
    return labels | ({"GPU_I_ID": f"{index}{text}"} if index else {})


def _of_exporter(text: str) -> list[Scrape]:
    """Return scrapes of an exporter whose page has this text in every label of every family that is read."""
    rows = []
    for index in (0, 1):
        pairs = ",".join(f'{label}="{escape(value)}"' for label, value in _labels(text, index).items())
        rows += [f"{name}{{{pairs}}} 1\n" for name in SHOWN_FAMILIES]
    samples = parsed("".join(rows), READ.__contains__)
    return [Scrape(at, samples) for at in (1000.0, 1015.0)]


def _of_prometheus(text: str) -> list[Scrape]:
    series: list[dict[str, Any]] = [
        {"metric": {**_labels(text, index), text: text, "__name__": name}, "values": [[1000, "1"], [1015, "1"]]}
        for name in SHOWN_FAMILIES
        for index in (0, 1)
    ]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": series}}
    return scrapes_of(json_as(QueryAnswer, json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")))


def _of_scrapes(name: str, scrapes: Sequence[Scrape]) -> Iterator[Shown]:
    result = diagnose_scrapes(WatchedScrapes(scrapes, "http://localhost:9400", 15.0))
    yield from _of_result(name, result)
    tracker = Tracker(20.0)
    for scrape in scrapes:
        view = tracker.take(scrape)
    for size in ((250, 60), (80, 24)):
        screen = Screen(UNICODE, size)
        for key in ("", "enter", "down"):
            screen.press(key)
            lines = ("".join(span.text for span in line) for line in screen.lines(view, view.at))
            yield Shown(f"{name}: top {size} {key}", "lines", "\n".join(lines))


def _of_result(name: str, result: DiagnosisResult) -> Iterator[Shown]:
    options = {"every": True, "verbose": True}
    lines = report.report_lines(result, price=2.0, **options)
    yield Shown(f"{name}: diagnose", "lines", "\n".join(lines))
    lines = terminal_report.report_lines(result, width=80, style=lambda text, _: text, price=2.0, **options)
    yield Shown(f"{name}: diagnose in a terminal", "lines", "\n".join(lines))
    rows = [cells(result.window, diagnosis) for diagnosis in result.diagnoses]
    yield Shown(f"{name}: top --once", "lines", "\n".join(aligned(rows)))
    yield Shown(f"{name}: diagnose --json", "json", json.dumps(report.as_json(result)))
    for mask in (False, True):
        yield Shown(f"{name}: diagnose --report, {mask=}", "html", html_page.page(result, mask=mask, price=2.0))


def _of_snapshot(text: str) -> Iterator[Shown]:
    """The live page: its JSON is exact, and the page makes text nodes of it."""
    gpu = Gpu(0, f"GPU-{text}", text, text, text, text, (("serial", text),))
    snapshot = Snapshot(1000.0, text, (), (GpuStatus(gpu, up=False, reason=text),), verdicts=(Verdict(gpu, ()),))
    monitor = LiveMonitor(text, 1.0)
    monitor.take(snapshot)
    monitor.watch(snapshot)
    monitor.judge(snapshot)
    yield Shown("live page", "json", monitor.event(snapshot).decode())


def _of_recording(text: str, folder: Path) -> Iterator[Shown]:
    """A recording with such a text in one place shows it as plain text, or is refused in one line."""
    path = folder / "hostile.jsonl"
    for label, header, tick in _recordings(text):
        path.write_text("".join(json.dumps(line) + "\n" for line in (header, tick)))
        try:
            yield from _of_result(f"recording, {label}", diagnose_recording(path))
        except GpuExporterError as error:
            yield Shown(f"recording, {label}", "log", str(error))


def _recordings(text: str) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    gpu = {"gpu": 0, "UUID": "GPU-0", "device": "nvidia0", "modelName": "NVIDIA H200", "pci_bus_id": "00000000:06:00.0"}
    header: dict[str, Any] = {
        "format": "gpu-exporter-recording",
        "version": 1,
        "driver": "580",
        "interval_seconds": 1.0,
    }
    header["gpus"] = [gpu]
    tick = {"t": 1000.0, "gpu": 0, "phase": "idle", "samples": {m.GR_ENGINE_ACTIVE.name: 0.5}}
    yield from ((label, {**header, label: text}, tick) for label in ("format", "driver"))
    yield from ((label, {**header, "gpus": [{**gpu, label: text}]}, tick) for label in gpu)
    yield "phase", header, {**tick, "phase": text}
    yield "sample", header, {**tick, "samples": {text: 1.0}}


def _of_kernel_log(text: str, folder: Path) -> Iterator[Shown]:
    path = folder / "dmesg"
    lines = (
        f"[   12.345678] NVRM: Xid (PCI:0000:06:00{end}" for end in (f"): 79, pid=7, name={text}, {text}", f"): {text}")
    )
    path.write_text("\n".join((*lines, f"[   13.0] {text}")) + "\n", encoding="utf-8", errors="replace")
    for flag, form in ((), "lines"), (("--json",), "json"):
        yield Shown(f"kernel log: events {flag}", form, _printed("events", "--kernel-log", str(path), *flag))


# click keeps every stream that it has written to, so there is only one of each.
STDOUT, STDERR = io.StringIO(), io.StringIO()


def _printed(*arguments: str) -> str:
    """Return what a command prints."""
    for stream in (STDOUT, STDERR):
        stream.seek(0)
        stream.truncate()
    with redirect_stdout(STDOUT), redirect_stderr(STDERR):
        group.cli.main(arguments, standalone_mode=False)
    return STDOUT.getvalue()


def _of_stacks(text: str) -> Iterator[Shown]:
    name = re.sub("[;\n]", "", text)  # which separate frames and stacks
    content = f"thread (7): {name};{name} (/a/{name}.py:3);load_batch (/a/train.py:1) 60\n"
    process = Process(7, 1, 0, "python", 7)
    found = process_profile(process, parse(content.encode("utf-8", "replace").decode()), Sampling())
    yield Shown("stacks: profile", "lines", "\n".join(profile_text.lines([found])))
    yield Shown("stacks: profile --json", "json", json.dumps(found.to_json()))
    yield Shown("stacks: profile --report", "html", profile_page.page([found]))
    yield Shown("stacks: folded", "lines", "\n".join(folded_lines(all_stacks([found]))))


def _of_trace(text: str, folder: Path) -> Iterator[Shown]:
    trace = SyntheticTrace(rank=0, world_size=2)
    trace.step(1, 0, 1000)
    trace.host(f"{text}.py(3): {text}", 0, 90)
    trace.device(20, 50, text, launched=5)
    trace.device(500, 40, "ncclDevKernel_AllReduce", args={"Collective name": text, "Process Group Name": text})
    path = folder / "trace.json"
    path.write_text(json.dumps(trace.content(base=1_790_857_026_000_000_000)))
    result = analyze([read(path)], details=True)
    yield Shown("trace: analyze", "lines", "\n".join(trace_lines(result)))
    yield Shown("trace: analyze --json", "json", json.dumps(result.to_json()))
    yield Shown("trace: analyze --report", "html", trace_page.page(result))


def _of_job(text: str) -> Iterator[Shown]:
    """A message of a job with such a text in one place shows it as plain text, or is dropped with one line."""
    valid = job_sender.message(uuid="GPU-1", dtype="bf16", pod_uid="p")
    for key in valid:
        changed = [{**valid, key: text}]
        changed += [{**valid, key: {text: 1.0}}] if isinstance(valid[key], dict) else []
        for content in changed:
            try:
                decoded = message.decode(json.dumps(content).encode("utf-8", "replace"))
                shown = " ".join(
                    (decoded.job_id, decoded.uuid, decoded.dtype, decoded.pod_uid, *map(str, decoded.sums))
                )
                yield Shown(f"job socket, {key}", "log", shown)
            except ValueError as error:
                yield Shown(f"job socket, {key}", "log", str(error))


def _of_log(text: str) -> Iterator[Shown]:
    """Lines of the log, with and without a traceback, and the errors of a command."""
    try:
        raise ValueError(text)
    except ValueError:
        raised = sys.exc_info()
    for error in (None, raised):
        record = logging.LogRecord("x", logging.ERROR, "", 0, "%s", (text,), error)
        yield Shown("log", "lines" if error else "log", logs.formatter("text").format(record))
        yield Shown("log as JSON", "json", logs.formatter("json").format(record))
        yield Shown("warning of a command", "log", group.OneLine().format(record))
