"""Runs the same job under StepTimer, NVRx's straggler detector and TraceML: what each finds, and what it costs.

    pip install 'nvidia-resiliency-ext>=0.7' traceml-ai   # beside PyTorch for CUDA 13, whose CUPTI NVRx needs
    PYTHONPATH=. python3 benchmarks/job_peers.py --json peers.json
    PYTHONPATH=. python3 benchmarks/job_peers.py --cases ddp-balanced,ddp-gpu --seconds 4 --most-seconds 115
    PYTHONPATH=. python3 benchmarks/job_peers.py --device cpu --ranks 4 --seconds 3 --cases ddp-balanced,ddp-data

Each tool runs each case in fresh processes, and so does the job without a tool, before and after them. A cost is the
slowdown of rank 0 against the mean of these two. The file has what is known after each run. A tool that is not
installed is left out. On CPUs, NVRx has only the times of sections, because its kernel times need CUPTI.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.job_receiver import Receiver
from benchmarks.job_training import BY_NAME, SLOW_RANK
from benchmarks.job_verdict import judge, samples_of, uuid_of

RANK_SCRIPT = Path(__file__).with_name("job_peer_rank.py")
# The tool, and the package that it needs.
PEERS = {"gpu-exporter": "gpu_exporter", "nvrx": "nvidia_resiliency_ext", "traceml": "traceml_ai"}
CASES = ("ddp-balanced", "ddp-data", "ddp-forward", "ddp-backward", "ddp-gpu")
TIMEOUT_SECONDS = 300


def commands(tool: str, case: str, options: argparse.Namespace, folder: Path) -> Iterator[tuple[list[str], int]]:
    """Yield the command of each rank, and the rank. TraceML starts its ranks itself."""
    arguments = ["--tool", tool, "--case", case, "--device", options.device, "--seconds", str(options.seconds)]
    arguments += ["--out", str(folder / "result.json")]
    if tool == "traceml":
        launcher = ["-m", "traceml_ai.launcher.cli", "run", "--nproc-per-node", str(options.ranks)]
        launcher += ["--logs-dir", str(folder), "--run-name", "run", "--master-port", str(_port())]
        launcher += ["--aggregator-port", str(_port()), str(RANK_SCRIPT), "--args"]
        yield [sys.executable, *launcher, *arguments], 0
    else:
        for rank in range(options.ranks):
            yield [sys.executable, str(RANK_SCRIPT), *arguments], rank


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run(tool: str, case: str, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Run a case under a tool for so many seconds at most; return step time and finding.

    Raises RuntimeError if the job fails.
    """
    with tempfile.TemporaryDirectory() as name, closing(Receiver(Path(name) / "jobs.sock")) as receiver:
        folder, scrapes = Path(name), list[tuple[float, dict[int, Any]]]()
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_port()), "WORLD_SIZE": str(options.ranks)}
        shared |= {"GPU_EXPORTER_JOB_SOCKET": f"{name}/jobs.sock", "OMP_NUM_THREADS": "1"}
        with (folder / "log").open("w+") as log, ExitStack() as stack:
            job = []
            for arguments, rank in commands(tool, case, options, folder):
                environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                process = subprocess.Popen(arguments, env=environment, stdout=log, stderr=log)
                stack.callback(process.wait)
                stack.callback(process.kill)
                job.append(process)
            for message in _messages(receiver, job, seconds):
                scrapes.append((time.time(), {**(scrapes[-1][1] if scrapes else {}), message["rank"]: message}))
            log.seek(0)
            if any(process.returncode for process in job) or not (folder / "result.json").exists():
                raise RuntimeError(f"the job failed: {log.read().strip()[-300:]}")
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
        if tool == "gpu-exporter":
            whole = [(at, latest) for at, latest in scrapes if len(latest) == options.ranks]
            result["finding"] = _ours(whole) if whole else {}
        elif tool == "traceml":
            result["finding"] = _traceml(folder)
    return result


def _messages(
    receiver: Receiver, job: Sequence[subprocess.Popen[bytes]], seconds: float
) -> Iterator[Mapping[str, Any]]:
    """Yield messages until all processes have ended, or one has failed, or the time is over."""
    end, is_over = time.monotonic() + seconds, False
    while not is_over and time.monotonic() < end:
        codes = [process.poll() for process in job]
        is_over = any(codes) or None not in codes
        yield from map(json.loads, receiver.receive(0.2))


def _ours(scrapes: Sequence[tuple[float, Mapping[int, Any]]]) -> dict[str, list[int]]:
    ranks = {uuid_of(rank, message): rank for rank, message in scrapes[-1][1].items()}
    found = judge([(at, samples_of(latest, at)) for at, latest in scrapes], ranks)
    return {named.phase or named.mode: [rank] for rank, named in found.named.items()}


def _traceml(folder: Path) -> Any:
    summary = next(folder.rglob("final_summary.json"), None)
    found = json.loads(summary.read_text()).get("primary_diagnosis") if summary else None
    return found and {key: found.get(key) for key in ("status", "severity", "reason", "summary") if found.get(key)}


class Comparison:
    """The results of all runs so far, by case and tool; a case has several runs without a tool."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._end = options, time.monotonic() + options.most_seconds
        self._longest = 0.0
        self._plain: dict[str, list[float]] = defaultdict(list)
        self._found: dict[str, dict[str, Any]] = defaultdict(dict)

    def run(self, case: str, tool: str) -> None:
        """Run a case under a tool, unless there is no time for as long a run as the longest so far."""
        begin = time.monotonic()
        if begin + self._longest > self._end:
            print(f"{case}, {tool}: not run, the time is over", flush=True)
            return
        try:
            result = run(tool, case, self._options, min(TIMEOUT_SECONDS, self._end - begin))
        except RuntimeError as error:  # the others are compared nevertheless
            result = {"error": str(error)}
        self._longest = max(self._longest, time.monotonic() - begin)
        if tool == "none" and "error" not in result:
            self._plain[case].append(result["step_seconds"])
        else:
            self._found[case][tool] = result
        seconds = f"step {result['step_seconds'] * 1e3:.2f} ms" if "step_seconds" in result else ""
        print(f"{case}, {tool}: {seconds} {json.dumps(result.get('finding', result.get('error')))}", flush=True)
        self._write()

    def results(self) -> dict[str, Any]:
        """Return truth, step time without a tool, and the finding and the cost of each tool, by case."""
        return {case: self._case(case) for case in {**self._plain, **self._found}}

    def _case(self, case: str) -> dict[str, Any]:
        plain = fmean(self._plain[case]) if self._plain[case] else None
        tools = {
            tool: {**result, "slowdown": result["step_seconds"] / plain - 1}
            if plain and "step_seconds" in result
            else result
            for tool, result in self._found[case].items()
        }
        truth = "nobody" if case.endswith("balanced") else f"rank {SLOW_RANK}, {BY_NAME[case].cause}"
        return {"truth": truth, "step_seconds": plain, "plain_runs": len(self._plain[case]), "tools": tools}

    def _write(self) -> None:
        if self._options.json:
            about = {"device": self._options.device, "ranks": self._options.ranks}
            self._options.json.write_text(json.dumps({**about, **self.results()}, indent=2))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each case and tool (default: %(default)s)")
    parser.add_argument("--cases", default=",".join(CASES), help="default: %(default)s")
    parser.add_argument("--most-seconds", type=float, default=float("inf"), help="end after so many seconds")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    tools = [tool for tool, package in PEERS.items() if find_spec(package)]
    for tool in PEERS.keys() - tools:
        print(f"{tool}: {PEERS[tool]} is not installed; left out")
    cases, comparison = options.cases.split(","), Comparison(options)
    for case in cases:
        for tool in ("none", *tools):
            comparison.run(case, tool)
    for case in cases:
        comparison.run(case, "none")
    for case, found in comparison.results().items():
        plain = f"{found['step_seconds'] * 1e3:.2f} ms" if found["step_seconds"] else "unknown"
        print(f"{case}: slow is {found['truth']}; step {plain} without a tool ({found['plain_runs']} runs)")
        for tool, of_tool in found["tools"].items():
            cost = f"{of_tool['slowdown']:+.2%}" if "slowdown" in of_tool else ""
            print(f"  {tool:<13} {cost:>7}  {json.dumps(of_tool.get('finding', of_tool.get('error')))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
