"""How fast `trace analyze` is with many ranks, in one process, in several, and on a Dask cluster that loses a worker.

    python -m benchmarks.trace_ranks [--ranks 256] [--megabytes 20] [--workers 2] [--folder /tmp/ranks]

The ranks are variations of the recorded trace of the tests: it is repeated up to the size, with collectives, and one
rank has a slow GPU. Each run is the command itself; the outputs of all must be the same. Each line has the wall time,
the most memory of one process, and the last line of progress on a terminal.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.trace_speed import repeated
from tests import ROOT

TRACE = ROOT / "tests/data/pytorch_trace_slow_loader.json.gz"
BODIES = 8  # different ranks; the others have the events of one of these
SLOW, SLOWER = 5, 1.5
COLLECTIVES = 40  # in each copy of the trace
KERNELS = ("kernel", "gpu_memcpy")


class Measured(NamedTuple):
    """One run of the command."""

    seconds: float
    peak: int  # bytes of the largest process
    output: str  # hash of the JSON
    progress: str


def ranks(folder: Path, count: int, size: int) -> list[Path]:
    """Write the traces of a job, and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    bodies = []
    for number in range(min(BODIES, count)):
        varied, body = folder / "varied.json", folder / f"body{number}.json"
        varied.write_text(json.dumps(_varied(number)))
        repeated(varied, body, size)
        bodies.append(body.read_bytes())
        varied.unlink()
        body.unlink()
    files = []
    for rank in range(count):
        about = {"backend": "nccl", "rank": rank, "world_size": count}
        path = folder / f"rank{rank}.json"
        # Only one rank has the slow body.
        events = bodies[rank] if rank < len(bodies) else bodies[rank % SLOW]
        path.write_bytes(b'{"distributedInfo": ' + json.dumps(about).encode() + b", " + events[1:])
        files.append(path)
    return files


def _varied(number: int) -> dict[str, Any]:
    """Return the recorded trace with the kernels of one rank, and collectives."""
    content: dict[str, Any] = json.loads(gzip.decompress(TRACE.read_bytes()))
    events = content["traceEvents"]
    kernels = [event for event in events if event.get("cat") in KERNELS]
    for event in kernels:
        event["dur"] *= SLOWER if number == SLOW else 1 + number / 1000
    for order, event in enumerate(kernels[:: max(1, len(kernels) // COLLECTIVES)]):
        event["name"] = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
        event["args"] |= {
            "Collective name": "allreduce",
            "In msg nelems": 1 << 20,
            "Out msg nelems": 1 << 20,
            "dtype": "BFloat16",
            "Group size": 256,
            "Process Group Name": f"pg{order % 3}",
        }
    return content


def measured(files: Sequence[Path], *options: str) -> Measured:
    """Run the command on these files, with a terminal for its progress."""
    terminal, other_end = pty.openpty()
    lines: list[str] = []
    with tempfile.TemporaryFile() as output:
        begin = time.perf_counter()
        command = [sys.executable, "-m", "gpu_exporter", "trace", "analyze", "--json", *options, *map(str, files)]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        process = subprocess.Popen(command, stdout=output, stderr=other_end, env=environment)
        os.close(other_end)
        reader = threading.Thread(target=_follow, args=(terminal, lines))
        reader.start()
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        reader.join()
        os.close(terminal)
        output.seek(0)
        text = output.read()
    if os.waitstatus_to_exitcode(status):
        raise SystemExit("\n".join(lines))
    shown = [line for line in lines if "#" in line]
    return Measured(seconds, used.ru_maxrss << 10, hashlib.sha256(text).hexdigest()[:12], shown[-1] if shown else "")


def _follow(terminal: int, lines: list[str]) -> None:
    """Collect what is written to a terminal, until its end."""
    rest = ""
    while True:
        try:
            more = os.read(terminal, 1 << 16)
        except OSError:  # all writers have gone
            return
        if not more:
            return
        *whole, rest = re.split(r"\r\x1b\[K|\r?\n", rest + more.decode(errors="replace"))
        lines += [line for line in whole if line]


def on_cluster(files: Sequence[Path], workers: int, kill_after: float | None = None) -> tuple[Measured, int]:
    """Run the command on a local Dask cluster, and kill a worker after some seconds. Also return a worker's memory."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        pids = client.run(os.getpid)
        timer = threading.Timer(kill_after or 0, lambda: os.kill(next(iter(pids.values())), signal.SIGKILL))
        if kill_after:
            timer.start()
        found = measured(files, "--dask", cluster.scheduler_address)
        timer.cancel()
        peaks = client.run(_peak)
    return found, max(peaks.values())


def _peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    """Measure, and print a line for each way to run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "ranks")
    asked = parser.parse_args()
    files = ranks(asked.folder, asked.ranks, round(asked.megabytes * 1e6))
    total = sum(path.stat().st_size for path in files)
    print(f"{len(files)} ranks, {total / 1e9:.2f} GB", flush=True)
    outputs = set()

    def show(name: str, found: Measured, workers: int = 0) -> None:
        outputs.add(found.output)
        memory = f", workers {workers / 1e6:.0f} MB each" if workers else ""
        print(f"{name}: {found.seconds:.1f} s, {found.peak / 1e6:.0f} MB{memory}, output {found.output}", flush=True)
        print(f"    {found.progress}", flush=True)

    show("one process", measured(files, "--jobs", "1"))
    show(f"{asked.workers} processes", measured(files, "--jobs", str(asked.workers)))
    whole, peak = on_cluster(files, asked.workers)
    show(f"Dask, {asked.workers} workers", whole, peak)
    show(f"Dask, one of {asked.workers} workers killed", *on_cluster(files, asked.workers, whole.seconds / 2))
    print("outputs are the same" if len(outputs) == 1 else "outputs DIFFER")


if __name__ == "__main__":
    main()
