"""The process that parses traces of jobs: whatever is in them, it can use only so much memory and time.

It writes no file: it reads open files, and prints JSON with what the parent asked for.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_exporter.traces.model import Trace
    from gpu_exporter.traces.result import AnalysisResult

NICENESS = 10
MOST_MEMORY = 4 << 30
NO_GPU_WORK = "no work began on a GPU while it was recorded: leave out --trace to see what the host does"


def main() -> int:
    """Analyse the traces that the argument, as JSON, describes. Returns the exit code."""
    request = json.loads(sys.argv[1])
    _limit(int(request["cpu_seconds"]))
    from gpu_exporter.model.errors import GpuExporterError

    try:
        answer = _answer(request["traces"], frozenset(request["outputs"]))
    except (GpuExporterError, OSError) as error:
        answer = {"error": _named(str(error), request["traces"])}
    except MemoryError:
        answer = {"error": "the traces need too much memory: use a shorter --seconds, or --no-stacks"}
    json.dump(answer, sys.stdout)
    return 0


def _limit(cpu_seconds: int) -> None:
    """Give up what the analysis does not need."""
    for which, most in (
        (resource.RLIMIT_AS, MOST_MEMORY),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(which, (most, most))
    os.nice(NICENESS)


def _answer(names: Mapping[str, str], outputs: frozenset[str]) -> dict[str, Any]:
    from gpu_exporter.model.errors import GpuExporterError
    from gpu_exporter.traces.analysis import combined, summary
    from gpu_exporter.traces.rank_files import rank_numbers

    traces = [_trace(Path(path), name) for path, name in names.items()]
    if not any(len(trace.device_events) for trace in traces):
        raise GpuExporterError(f"{', '.join(names.values())}: {NO_GPU_WORK}")
    details = not outputs.isdisjoint(("device", "folded", "pprof", "report"))
    summaries = [summary(trace, details=details) for trace in traces]
    try:
        rank_numbers([each.rank_file for each in summaries])
    except GpuExporterError:  # of several jobs: they are numbered instead
        summaries = [replace(each, distributed=None) for each in summaries]
    return _outputs(combined(summaries), outputs)


def _trace(path: Path, name: str) -> Trace:
    """Read a trace of PyTorch: no other reader sees the file. Raises GpuExporterError with its name."""
    from gpu_exporter.model.errors import GpuExporterError
    from gpu_exporter.traces.content import opened
    from gpu_exporter.traces.kineto import read

    try:
        with opened(str(path)) as content:
            return replace(read(content), path=name)
    except GpuExporterError as error:
        raise GpuExporterError(f"{name}: {error}") from error


def _outputs(result: AnalysisResult, outputs: frozenset[str]) -> dict[str, Any]:
    from gpu_exporter.traces.exports import folded_lines, pprof_profile
    from gpu_exporter.traces.html_page import page
    from gpu_exporter.traces.text_report import lines

    answer: dict[str, Any] = {}
    if "text" in outputs:
        answer["text"] = "\n".join(lines(result))
    if "json" in outputs:
        answer["json"] = json.dumps(result.to_json(), indent=2)
    if "folded" in outputs:
        answer["folded"] = "\n".join(folded_lines(result)) + "\n"
    if "pprof" in outputs:
        answer["pprof"] = base64.b64encode(pprof_profile(result)).decode()
    if "device" in outputs:
        answer["device"] = json.dumps(_of_devices(result))
    if "report" in outputs:
        answer["report"] = page(result)
    return answer


def _of_devices(result: AnalysisResult) -> list[dict[str, Any]]:
    """Return the time of each GPU of a trace: by kernel class, by stack that launched the work, and idle by stack.

    Of the stacks, only as many as are stored: a job decides how many there are.
    """
    from gpu_exporter.profiling.records import most_costly

    return [
        {
            "of": rank.file,
            "kernels": {kernels.name: kernels.seconds for kernels in rank.kernel_classes},
            "gpu": most_costly(result.details[rank.rank, rank.device].gpu_stacks),
            "idle": most_costly(result.idle_stacks.get(rank.rank, {})),
        }
        for rank in result.ranks
    ]


def _named(text: str, names: Mapping[str, str]) -> str:
    """Return a message with the names of traces instead of the paths of open files."""
    for path, name in names.items():
        text = text.replace(path, name)
    return text


if __name__ == "__main__":
    sys.exit(main())
