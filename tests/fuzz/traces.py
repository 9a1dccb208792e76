"""The fuzzing targets of profiler traces: programs choose the names of functions, and files are cut."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.text_report import lines
from tests.fuzz.harness import Command, Parser, Target
from tests.support.traces import MAIN, SyntheticTrace
from tests.support.xplane import SyntheticProfile

TOKENS = (b'},{"ph":"X","cat":"kernel","name":"', b'"ts":', b'"dur":', b'"args":{', b"]}", b'"traceEvents":[', b"N/A")


@contextmanager
def _analysis(folder: Path) -> Iterator[Parser]:
    path = folder / "input.json"

    def take(content: bytes) -> Iterable[str]:
        path.write_bytes(content)
        result = analyze([read(path)])
        json.dumps(result.to_json(), allow_nan=False)
        return [line for line in lines(result) if len(line) < 500]

    yield Parser(take, [Command(("trace", "analyze", str(path), "--fail-on", "busy>100%"), frozenset({1}))])


def _traces() -> Sequence[bytes]:
    trace = SyntheticTrace(rank=0, world_size=2)
    trace.step(1, 0, 1000)
    for number in range(5):
        trace.host("train.py(3): main", number * 100, 90)
        shapes = {"Input Dims": [[8, 8], [8, 8]], "Input type": ["float"] * 2, "Concrete Inputs": ["", ""]}
        trace.host("aten::mm", number * 100 + 2, 20, "cpu_op", MAIN, **shapes)
        trace.device(number * 100 + 20, 50, launched=number * 100 + 5)
    trace.device(500, 40, "ncclDevKernel_AllReduce", args={"Collective name": "allreduce", "dtype": "Float", "Seq": 5})
    memory = {"ph": "i", "name": "[memory]", "ts": 5, "pid": 1, "tid": 1, "args": {"Addr": 1, "Bytes": 5}}
    trace.events.append(memory)
    content = trace.content(base=1_790_857_026_000_000_000)
    return [json.dumps(content).encode(), json.dumps(trace.events, indent=1).encode()]


def _perhaps_cut(rng: Random, content: bytes) -> bytes:
    """Compress one content in five, and cut half of these."""
    if rng.random() > 0.2:
        return content
    zipped = gzip.compress(content, 1, mtime=0)
    return zipped[: rng.randrange(len(zipped))] if rng.random() < 0.5 else zipped


def _profiles() -> Sequence[bytes]:
    made = SyntheticProfile()
    gpu, stream, host = "/device:GPU:0", "Stream #13(Compute)", "/host:CPU"
    made.plane(gpu, core_count=132, memory_size=2**36)
    for number in range(5):
        at, launch = 100.0 * number + 10, {"correlation_id": number + 1}
        made.event(host, "python", "train", at, 90, {"step_num": number})
        made.event(host, "python", "$train.py:3 main", at + 1, 80)
        made.event(host, "Host Threads/7", "cuLaunchKernel", at + 5, 5, launch)
        made.event(gpu, stream, "fusion", at + 20, 50, {**launch, "kernel_details": "grid:4,2,1 block:8,1,1"})
        made.event(gpu, stream, "MemcpyH2D", at + 75, 5, {"memcpy_details": "kind_src:pinned kind_dst:device size:9"})
    return [made.space.SerializeToString()]


PROFILE_TOKENS = (b"/device:GPU:99999999999", b"Stream #-1", b"grid:999999999,999999999,9", b"size:99999", b"$a.py:0 f")
TARGETS = (
    Target("trace", _traces, _analysis, (GpuExporterError,), TOKENS, packed=_perhaps_cut),
    Target("jax-profile", _profiles, _analysis, (GpuExporterError,), PROFILE_TOKENS, packed=_perhaps_cut),
)
