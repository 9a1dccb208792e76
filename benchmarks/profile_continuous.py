"""Measures what continuous profiling costs a training job on a GPU, and whether anything remains afterwards.

    python -m benchmarks.profile_continuous [--rounds 12] [--seconds 3] [--job NAME] [--json FILE]

The job is `profile_overhead_job.py`, once limited by its host, and once by its GPU. In each round it trains for some
seconds alone, then while py-spy samples it as the schedule does every ten minutes, then alone again; and finally with a
socket to which PyTorch's daemon client reports, and from which no trace is requested. Compared are the mean times of a
step in the same round. Each result has the upper 95 % confidence bound, and for the schedule the share of ten minutes.
Exit code 1 if a bound is missed: schedule 0.2 %, socket 0.1 % and afterwards 0.2 %, the last two with the job that is
limited by its GPU, because steps limited by the host vary by more than that. Needs PyTorch and py-spy.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from benchmarks.paired import Slowdown, slowdown
from benchmarks.profile_overhead import FILES, Job, Variant, started, until_training
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling import pyspy
from gpu_exporter.profiling.kineto_daemon import DaemonSocket
from gpu_exporter.profiling.processes import look_up
from gpu_exporter.profiling.pyspy import Sampling
from gpu_exporter.profiling.triggers import GAP_SECONDS, RATE, SCHEDULED_SECONDS

SAMPLING = Sampling(SCHEDULED_SECONDS, RATE)
SCHEDULE, AFTERWARDS, SOCKET = "schedule, of ten minutes", "afterwards", "socket, nothing requested"
HOST, GPU = "limited by the host", "limited by the GPU"
JOBS = (Variant(HOST), Variant(GPU, environment={"GPU_BOUND": "1"}))
BOUNDS = {(HOST, SCHEDULE): 0.002, (GPU, SCHEDULE): 0.002, (GPU, AFTERWARDS): 0.002, (GPU, SOCKET): 0.001}
WARM_SECONDS, SETTLE_SECONDS = 4.0, 0.5

Pairs = Mapping[str, list[tuple[float, float]]]


def measure(job: Job, rounds: int, seconds: float) -> Pairs:
    """Return the mean seconds of a step without and with each load. Raises SystemExit if py-spy fails."""
    (job.folder / "go").touch()
    until_training(job)
    time.sleep(WARM_SECONDS)
    found = defaultdict(list)
    for _ in range(rounds):
        alone = _mean_step(job, seconds, lambda: None)
        loaded = _mean_step(job, seconds, lambda: _sample(job))
        # The end of py-spy is part of it: only what lasts counts as afterwards.
        time.sleep(SETTLE_SECONDS)
        after = _mean_step(job, seconds, lambda: None)
        with DaemonSocket(job.folder) as socket:
            listening = _mean_step(job, seconds, lambda: _listen(socket, seconds))
        # Of the same work: as many steps as fit into the time without a load.
        found[SCHEDULE].append((seconds, seconds * loaded / alone))
        found[AFTERWARDS].append((alone, after))
        found[SOCKET].append((after, listening))
    job.running.kill()
    return found


def _mean_step(job: Job, seconds: float, load: Callable[[], object]) -> float:
    begin = time.monotonic()
    load()
    time.sleep(max(0.0, begin + seconds - time.monotonic()))
    return fmean(job.steps(begin, begin + seconds))


def _sample(job: Job) -> None:
    process = look_up(FILES, job.running.pid)
    answer = pyspy.sample(pyspy.program(), [process], SAMPLING, FILES)[process.pid]
    if isinstance(answer, GpuExporterError):
        raise SystemExit(f"{job.variant.name}: {answer}")


def _listen(socket: DaemonSocket, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        socket.receive(left)


def slowdowns(pairs: Pairs) -> Mapping[str, Slowdown]:
    """Return the slowdown by load."""
    return {load: slowdown(found, GAP_SECONDS if load == SCHEDULE else 0.0) for load, found in pairs.items()}


def main() -> int:
    """Measure and print; return 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="of each job (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each part of a round (default: %(default)s)")
    parser.add_argument("--job", choices=[each.name for each in JOBS], help="only this job")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    chosen = parser.parse_args()
    found, missed = {}, []
    variants = [each for each in JOBS if chosen.job in (None, each.name)]
    with tempfile.TemporaryDirectory(prefix="line-", dir="/tmp") as folder, started(variants, Path(folder)) as jobs:
        for job in jobs:
            found[job.variant.name] = slowdowns(measure(job, chosen.rounds, chosen.seconds))
            for load, measured in found[job.variant.name].items():
                bound = BOUNDS.get((job.variant.name, load))
                text = f"{job.variant.name}, {load}: {measured.mean:+.4%}, at most {measured.upper:+.4%}"
                print(text + (f" (bound {bound:.1%})" if bound else ""), flush=True)
                if bound and measured.upper >= bound:
                    missed.append(text)
    if chosen.json:
        content = {job: {load: asdict(each) for load, each in of_job.items()} for job, of_job in found.items()}
        chosen.json.write_text(json.dumps(content, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
