"""How fast `trace analyze` is, and how much memory it needs, with a trace that is repeated up to a size.

    python -m benchmarks.trace_speed TRACE.json[.gz] [--gib 1] [--folder /tmp]

The copies follow each other in time, and have correlation numbers of their own.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GIB = 1 << 30
NUMBERS = re.compile(rb'("ts": |"correlation": )([0-9]+)')
# Measured in a process of its own, from the start of the interpreter to its end.
PROGRAM = """
import resource, sys, time
from pathlib import Path
begin = time.perf_counter()
from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.reader import read
trace = read(Path(sys.argv[1]))
middle = time.perf_counter()
events = len(trace.device_events) + len(trace.host_events) + len(trace.memory)
verdict = analyze([trace]).verdict
end = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
print(events, middle - begin, end - middle, peak, verdict.trace_class.value)
"""


def repeated(source: Path, target: Path, size: int) -> None:
    """Write the events of a trace again and again until the file has this size, bytes."""
    raw = source.read_bytes()
    text = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    begin = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = text.rindex(b"]")
    times = [event["ts"] for event in json.loads(text)["traceEvents"] if event.get("ph") == "X"]
    shift = int(max(times) - min(times)) + 1_000_000
    body = text[begin:end].strip()
    with target.open("wb") as file:
        file.write(text[:begin])
        copy = 0
        while file.tell() < size:
            file.write(b",\n" if copy else b"")
            file.write(NUMBERS.sub(lambda match, copy=copy: _shifted(match, copy, shift), body))  # type: ignore[misc]
            copy += 1
        file.write(text[end:])


def _shifted(match: re.Match[bytes], copy: int, shift: int) -> bytes:
    by = shift if match[1].startswith(b'"ts') else 10_000_000
    return match[1] + str(int(match[2]) + copy * by).encode()


def main() -> None:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    asked = parser.parse_args()
    target = asked.folder / "trace_speed.json"
    repeated(asked.trace, target, round(asked.gib * GIB))
    begin = time.perf_counter()
    line = subprocess.run([sys.executable, "-c", PROGRAM, target], check=True, capture_output=True, text=True).stdout
    wall = time.perf_counter() - begin
    events, reading, analysing, peak, verdict = line.split()
    size = target.stat().st_size
    print(
        f"{size / 1e9:.2f} GB, {int(events) / 1e6:.2f} million events kept: {wall:.1f} s"
        f" (read {float(reading):.1f}, analyse {float(analysing):.1f}), {size / 1e6 / wall:.0f} MB/s,"
        f" peak {int(peak) / 1e9:.2f} GB, {verdict}"
    )
    target.unlink()


if __name__ == "__main__":
    main()
