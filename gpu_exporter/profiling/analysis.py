"""Has traces analysed by another process, which is limited in memory and time: jobs wrote them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from gpu_exporter.io.decoding import GZIP, json_as, printable
from gpu_exporter.io.file_access import PRIVATE
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling.trace_file import MOST_TRACE_BYTES
from gpu_exporter.profiling.trace_session import TakenTrace

CHILD = "gpu_exporter.profiling.analysis_child"
# The analysis needs some 10 s for 100 MB.
CPU_SECONDS, BYTES_PER_SECOND = 60, 4 << 20
MOST_ANSWER_BYTES = 256 << 20
MOST_ERROR_BYTES = 64 << 10
BLOCK_BYTES = 1 << 20


def analyze(
    taken: Sequence[TakenTrace], outputs: Collection[str], most_bytes: int = MOST_ANSWER_BYTES
) -> Mapping[str, bytes]:
    """Return the outputs of the analysis by name, which are those of `analysis_child`. Raises GpuExporterError."""
    names = {f"/proc/self/fd/{trace.descriptor}": f"process {trace.process.pid}" for trace in taken}
    size = sum(os.fstat(trace.descriptor).st_size for trace in taken)
    seconds = CPU_SECONDS + size // BYTES_PER_SECOND
    request = {"traces": names, "outputs": sorted(outputs), "cpu_seconds": seconds}
    answer = _answer(json.dumps(request), [trace.descriptor for trace in taken], 4.0 * seconds, most_bytes)
    if error := answer.get("error"):
        raise GpuExporterError(f"the trace cannot be analysed: {printable(error, 300)}")
    return {name: base64.b64decode(text) if name == "pprof" else text.encode() for name, text in answer.items()}


def _answer(request: str, descriptors: Sequence[int], seconds: float, most_bytes: int) -> Mapping[str, str]:
    """Return what the child prints. Raises GpuExporterError if it ends without an answer."""
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", CHILD, request],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            pass_fds=descriptors,
            env=_environment(),
            cwd="/",  # Python imports from the current folder first
        )
        assert child.stdout
        timer = threading.Timer(seconds, child.kill)
        timer.daemon = True
        timer.start()
        try:
            content = child.stdout.read(most_bytes + 1)
        finally:
            timer.cancel()
            child.kill()
            child.wait()
            child.stdout.close()
        errors.seek(0)
        last = errors.read(MOST_ERROR_BYTES).decode("utf-8", "replace").strip().splitlines()
    try:
        return json_as(dict[str, str], content[:most_bytes])
    except ValueError:
        why = printable(last[-1], 200) if last else "it exceeded its limits of time or memory"
        fix = "use a shorter --seconds, or --no-stacks"
        raise GpuExporterError(f"the trace cannot be analysed: {why}", fix=fix) from None


def _environment() -> dict[str, str]:
    """Return the environment of the child: it finds the same packages, and starts no threads."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    return {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}


def keep(taken: Sequence[TakenTrace], folder: Path) -> list[Path]:
    """Copy the traces to a folder, as files that only their owner may read. Returns their paths. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    paths = []
    for trace in taken:
        suffix = ".json.gz" if os.pread(trace.descriptor, 2, 0) == GZIP else ".json"
        path = folder / f"trace_{trace.process.pid}{suffix}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        target = os.open(path, flags, PRIVATE)
        with os.fdopen(target, "wb") as copy, open(f"/proc/self/fd/{trace.descriptor}", "rb") as source:
            left = MOST_TRACE_BYTES  # the job may still write to the file
            while left > 0 and (block := source.read(min(left, BLOCK_BYTES))):
                copy.write(block)
                left -= len(block)
        paths.append(path)
    return paths
