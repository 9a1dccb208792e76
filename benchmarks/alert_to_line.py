"""Shows the way from a fault in a training loop to the line of code, on real GPUs, and how long each step takes.

    python -m benchmarks.alert_to_line [--budget 145] [--ranks 2] [--gpus 2] [--json FILE] [--alerts] [--fake-driver]

The job is `alert_to_line_job.py`, a script without any code of gpu-exporter. First its loader is slowed at run time:
the exporter names the line by sampling its stacks (py-spy alone), and a trace names it, too (KINETO_USE_DAEMON=1).
Then a job of several ranks, one or more for each GPU, hangs, because the last rank never enters a collective: the
exporter takes the stacks of all ranks, and names the missing one with its line. `--alerts` adds Prometheus and
Alertmanager with the alerts of the chart, and follows the link of the alert. Needs PyTorch, py-spy and bcrypt; exit
code 1 if a line was not named. `--fake-driver` tests the benchmark without a GPU: the loads of the GPUs are made up
then, and a trace has no GPU events.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.alert_to_line_setup import Exporter, Gpus, fake_gpus, go, job, serving, wait

LOADER_LINE, MISSING_LINE = "load_batch", "next_shard"
WAITING_CLASSES = ("host-bound", "data-loading-bound")
STALL, ALERTS = "GpuCollectiveStall", ("GpuDataLoadingBound", "GpuHostBound")
KERNELS = "gpu_kernel_class_seconds_total{"
SLURM_JOB = "4711"
# What the last case takes: the start of its job, the window of the diagnosis, and the profile.
HANG_SECONDS = 48.0


@dataclass(slots=True)
class Case:
    """What one case found: seconds from the fault to each step, the line that was named, and what went wrong."""

    name: str
    seconds: dict[str, float] = field(default_factory=dict)
    line: str = ""
    link: str = ""
    problem: str = ""


def slow_loader(folder: Path, process: subprocess.Popen[bytes], exporter: Exporter, gpus: Gpus) -> Case:
    """Slow the loader, and wait until the exporter names its line without any help of the job."""
    case, begin = Case("slow loader, py-spy"), time.monotonic()
    (folder / "slow").touch()
    gpus.host_bound(process.pid)
    found = wait(lambda: exporter.gpu(0)["class"] in WAITING_CLASSES, 40)
    case.seconds["class"] = _since(begin)
    profile = wait(lambda: exporter.profile("host-bound"), 20) if found else None
    case.seconds["profile"] = _since(begin)
    if not profile:
        case.problem = f"class {exporter.gpu(0)['class']}, but no profile; {exporter.log()}"
        return case
    frames = [line["frame"] for each in profile["processes"] for cause in each["causes"] for line in cause["lines"]]
    case.line = next((frame for frame in frames if LOADER_LINE in frame), "")
    if exporter.alerts:
        alerts = exporter.alerts
        links = wait(lambda: [link for name, link in alerts().items() if name in ALERTS], 30)
        case.seconds["alert"], case.link = _since(begin), (links or [""])[0]
        if not case.link or not exporter.get(case.link.partition("#")[0]):
            case.problem = "the alert has no working link"
    ran = exporter.run("diagnose", "--for", "1s", *exporter.login())
    case.seconds["diagnose"] = _since(begin)
    if LOADER_LINE not in ran.stdout:
        case.problem = f"diagnose does not name the line: {ran.stderr.strip()[-300:]}"
    return case


def traced(process: subprocess.Popen[bytes], exporter: Exporter) -> Case:
    """Have the exporter request a trace from the job, because a person asks for it."""
    case, begin = Case("slow loader, trace"), time.monotonic()
    ran = exporter.run("profile", "--trace", "--pid", str(process.pid), *exporter.login())
    case.seconds["trace"] = _since(begin)
    case.line = next((line.strip() for line in ran.stdout.splitlines() if LOADER_LINE in line), "")
    if not case.line:
        case.problem = (ran.stderr or ran.stdout).strip()[-300:]
    elif not wait(lambda: KERNELS in (exporter.get("/metrics") or ""), 10):
        case.problem = f"/metrics has no {KERNELS}"
    return case


def hang(folder: Path, running: Sequence[subprocess.Popen[bytes]], exporter: Exporter, gpus: Gpus) -> Case:
    """Keep the last rank out of a collective, and wait until the exporter names it."""
    case, last = Case(f"hang of {len(running)} ranks on {gpus.number} GPUs"), len(running) - 1
    for gpu in range(gpus.number):
        (exporter.folder / "slurm" / str(gpu)).write_text(f"{SLURM_JOB}\n")
    begin = time.monotonic()
    (folder / "stuck").touch()
    gpus.hang([process.pid for process in running])
    stalls = wait(lambda: [each["name"] for each in exporter.gpu(0)["findings"] if each["name"] == STALL], 45)
    case.seconds["finding"] = _since(begin)
    profile = wait(lambda: exporter.profile("stall"), 20) if stalls else None
    case.seconds["profile"] = _since(begin)
    if not profile:
        seen = exporter.gpu(0)
        findings = [each["name"] for each in seen["findings"]]
        case.problem = f"class {seen['class']}, findings {findings}, but no profile; {exporter.log()}"
        return case
    case.line = next((odd["line"] for odd in profile["odd"] if odd["rank"] == str(last)), "")
    sampled = sorted(process["rank"] for process in profile["processes"])
    if sampled != [str(rank) for rank in range(len(running))]:
        case.problem = f"stacks of ranks {sampled} only: {[each['why'] for each in profile['failed']]}"
    elif MISSING_LINE not in case.line:
        case.problem = f"rank {last} is not named: {profile['odd']}"
    return case


def _since(begin: float) -> float:
    return round(time.monotonic() - begin, 1)


def cases(folder: Path, gpus: Gpus, ranks: int, end: float, *, with_alerts: bool) -> Iterator[Case]:
    """Run all cases for which there is time until `end` (monotonic seconds), also after one that failed."""
    loader, many = folder / "loader", folder / "ranks"
    with job(many, gpus, ranks) as hanging, job(loader, gpus) as (process,):
        trains = go(loader, [process], 40)
        # Only now: the first seconds of a job look as if it waited for its host, which would be profiled.
        with serving(folder, gpus, with_alerts=with_alerts) as exporter:
            if not trains:
                yield Case("slow loader", problem="the job does not train")
            elif not wait(lambda: exporter.gpu(0)["class"] not in (None, *WAITING_CLASSES), 15):
                seen = exporter.gpu(0)
                problem = f"is {seen['class']} although it is not slowed: {seen.get('measurements')}"
                yield Case("slow loader", problem=problem)
            else:
                yield slow_loader(loader, process, exporter, gpus)
            if trains:
                (loader / "slow").touch()
                yield traced(process, exporter)
            process.kill()
            process.wait()
            if time.monotonic() > end - HANG_SECONDS:
                yield Case("hang", problem="skipped: no time is left")
            elif not go(many, hanging, 40):
                yield Case("hang", problem="the job does not train")
            else:
                yield hang(many, hanging, exporter, gpus)


def main() -> int:
    """Run the cases and print them. Returns 1 if a line was not named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=145.0, help="seconds in total (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the job that hangs (default: 2)")
    parser.add_argument("--gpus", type=int, help="GPUs of this machine (default: as many as ranks)")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--alerts", action="store_true", help="with Prometheus and Alertmanager (make tools)")
    parser.add_argument("--fake-driver", action="store_true", help="without GPUs")
    chosen = parser.parse_args()
    found, end = [], time.monotonic() + chosen.budget
    with tempfile.TemporaryDirectory(prefix="line-", dir="/tmp") as name:
        number = chosen.gpus or chosen.ranks
        gpus = fake_gpus(Path(name), number) if chosen.fake_driver else Gpus(number)
        for case in cases(Path(name), gpus, chosen.ranks, end, with_alerts=chosen.alerts):
            found.append(case)
            print(json.dumps(asdict(case)), flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(case) for case in found], indent=1))
    return 1 if any(case.problem or not case.line for case in found) else 0


if __name__ == "__main__":
    sys.exit(main())
