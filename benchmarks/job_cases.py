"""Trains on several GPUs (or CPUs) with one known cause of slowness at a time, and compares what the diagnosis says.

    PYTHONPATH=. python3 benchmarks/job_cases.py --out results           # all cases, and 20 balanced runs: 5 minutes
    PYTHONPATH=. python3 benchmarks/job_cases.py --repeats 0 --cases fsdp-forward,tensor-gpu
    PYTHONPATH=. python3 benchmarks/job_cases.py --device cpu --ranks 4 --seconds 3 --cases ddp-data,ddp-backward

One process per rank trains all cases, each with its own StepTimer. This process receives their messages on a Unix
socket and reads the GPUs, as the exporter does, and judges each scrape as `diagnose` does: by the step timers alone, by
telemetry alone, and by both. A straggler that is not named is wrong, and so is any other rank, at any moment of the
run. `unknown` is right where nobody is slow; cases in which a step timer cannot tell are counted apart.

Needs PyTorch; on GPUs, `nvidia-ml-py` for the telemetry.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.job_receiver import Receiver
from benchmarks.job_training import BY_NAME, CASES, NOBODY, REPEATED, Case, possible, rank_main
from benchmarks.job_verdict import PARTS, UNKNOWN, Verdict, judge, parts_of, samples_of, uuid_of
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.scrape import ScrapedSample

SCRAPE_SECONDS = 1.0
# Longer than it takes to import PyTorch and to set up its collectives.
SILENT_SECONDS = 120.0
_TELLING = (m.GR_ENGINE_ACTIVE, m.SM_ACTIVE, m.DRAM_ACTIVE, m.TENSOR_ACTIVE, m.PCIE_RX, m.PCIE_TX, m.NVLINK_RX, m.POWER)
TELLING = frozenset(metric.name for metric in _TELLING)
# What is judged: step timers, telemetry, or both.
TIMERS, TELEMETRY, BOTH = "step timers", "telemetry", "both"


class Scrapes(NamedTuple):
    """The scrapes of a case: times, last messages of all ranks, and the samples of the GPUs."""

    at: float
    messages: Mapping[int, Mapping[str, Any]]
    telemetry: Sequence[ScrapedSample]


def collect(
    names: Sequence[str], ranks: int, device_kind: str, seconds: float, telemetry: Callable[[], Sequence[ScrapedSample]]
) -> dict[str, list[Scrapes]]:
    """Run the ranks, and return the scrapes of each case: of those so far if a rank fails, or all are silent."""
    scrapes: dict[str, list[Scrapes]] = defaultdict(list)
    latest: dict[str, dict[int, Any]] = defaultdict(dict)
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Receiver(path := os.path.join(folder, "jobs.sock"))) as receiver,
    ):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        children = [_start(rank, ranks, path, port, names, device_kind, seconds) for rank in range(ranks)]
        begin = heard = time.monotonic()
        try:
            while (messages := _receive(receiver)) or any(child.poll() is None for child in children):
                heard = time.monotonic() if messages else heard
                failed = [rank for rank, child in enumerate(children) if child.poll()]
                if failed or time.monotonic() > heard + SILENT_SECONDS:
                    print(f"ranks {failed} failed" if failed else "all ranks are silent", file=sys.stderr)
                    break
                for message in messages:
                    latest[message["job_id"]][message["rank"]] = message
                for name in {message["job_id"] for message in messages}:
                    of_case, is_whole = scrapes[name], len(latest[name]) == ranks
                    if is_whole and (not of_case or time.time() >= of_case[-1].at + SCRAPE_SECONDS):
                        of_case.append(Scrapes(time.time(), dict(latest[name]), telemetry()))
                        if len(of_case) == 1:
                            print(f"{time.monotonic() - begin:5.0f} s  {name}", file=sys.stderr, flush=True)
        finally:
            for child in children:
                child.kill()
                child.wait()
    # The last messages come when the loops are over.
    for name, of_case in scrapes.items():
        of_case.append(Scrapes(of_case[-1].at + SCRAPE_SECONDS, latest[name], ()))
    return scrapes


def _start(
    rank: int, ranks: int, path: str, port: int, names: Sequence[str], device_kind: str, seconds: float
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GPU_EXPORTER_JOB_SOCKET": path,
    }
    options = ["--rank-of", ",".join(names), "--device", device_kind, "--seconds", str(seconds)]
    return subprocess.Popen([sys.executable, os.path.abspath(__file__), *options], env=environment)


def _receive(receiver: Receiver) -> list[dict[str, Any]]:
    return [json.loads(content) for content in receiver.receive(0.2)]


def telemetry_of(device_kind: str, stack: ExitStack) -> Callable[[], Sequence[ScrapedSample]]:
    """Return what reads the GPUs; without NVML or GPUs, there is no telemetry."""
    if device_kind == "cpu":
        return lambda: ()
    try:
        import pynvml  # noqa: F401
    except ImportError:
        print("no telemetry: nvidia-ml-py is not installed", file=sys.stderr)
        return lambda: ()
    from gpu_exporter.catalogue.metrics import selected
    from gpu_exporter.diagnosis.window import Scrapes as Reader
    from gpu_exporter.model.metric import MetricSet
    from gpu_exporter.pipeline.monitor import Monitor
    from gpu_exporter.sources.nvml.source import NvmlSource

    monitor, reader = Monitor(NvmlSource(), selected(MetricSet.DEFAULT), SCRAPE_SECONDS, SCRAPE_SECONDS), Reader()
    monitor.start()
    stack.callback(monitor.stop)
    return lambda: reader.of(monitor.snapshot()).samples


def result(case: Case, name: str, scrapes: Sequence[Scrapes]) -> dict[str, Any]:
    """Return truth, times by rank in ms, and what the diagnosis says of a case."""
    last = dict(sorted(scrapes[-1].messages.items()))
    ranks = {uuid_of(rank, message): rank for rank, message in last.items()}
    loops = [(each.at, samples_of(each.messages, each.at)) for each in scrapes]
    seen = [(each.at, each.telemetry) for each in scrapes if each.telemetry]
    verdicts = {TIMERS: judge(loops, ranks)}
    if seen:
        both = [(at, [*samples, *each.telemetry]) for (at, samples), each in zip(loops, scrapes, strict=True)]
        verdicts |= {TELEMETRY: judge(seen, ranks), BOTH: judge(both[:-1], ranks)}
    is_known = all("self" in message for message in last.values())
    found = {way: outcome(case, verdict, is_known or way == TELEMETRY) for way, verdict in verdicts.items()}
    return {
        "case": name,
        "truth": {"rank": case.slow, "cause": case.cause},
        "telling": case.telling,
        "self_known": is_known,
        "verdicts": {
            way: {
                "outcome": found[way],
                "named": {rank: named._asdict() for rank, named in verdict.named.items()},
                "ever": sorted(verdict.ever),
                "after_seconds": verdict.after,
                "classes": verdict.classes,
            }
            for way, verdict in verdicts.items()
        },
        "telemetry": means([samples for _, samples in seen], ranks),
        "steps": {rank: message["steps"] for rank, message in last.items()},
        "milliseconds": {
            rank: {part: None if value != value else round(value * 1e3, 3) for part, value in parts_of(message).items()}
            for rank, message in last.items()
        },
    }


def means(scrapes: Sequence[Sequence[ScrapedSample]], ranks: Mapping[str, int]) -> dict[int, dict[str, float]]:
    """Return the mean of what tells jobs apart in telemetry, by rank."""
    values: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in (sample for samples in scrapes for sample in samples):
        if sample.name in TELLING and sample.labels.get("UUID") in ranks:
            values[ranks[sample.labels["UUID"]]][sample.name].append(sample.value)
    return {rank: {name: fmean(of_name) for name, of_name in by_name.items()} for rank, by_name in values.items()}


def outcome(case: Case, verdict: Verdict, is_known: bool) -> str:
    """Return `right`, `false` for a rank that is not slow, `missed`, `wrong phase`, or `unknown` where that is said.

    The phase counts where a step timer names one.
    """
    if verdict.ever - {case.slow}:
        return "false"
    if case.slow is None:
        return "right" if is_known else UNKNOWN
    if case.slow not in verdict.named:
        return "missed" if is_known or case.telling else UNKNOWN
    phase = verdict.named[case.slow].phase
    return "right" if not phase or phase in case.right else "wrong phase"


def show(found: Mapping[str, Any]) -> None:
    """Print a result."""
    verdicts = found["verdicts"].items()
    said = "; ".join(f"{way}: {_words(verdict)}" for way, verdict in verdicts)
    print(f"{found['case']:<26} {said}", flush=True)
    for part in ("step", "self", *PARTS, "waiting"):
        values = "".join(
            f"{'unknown' if of_rank[part] is None else format(of_rank[part], '.2f'):>10}"
            for of_rank in found["milliseconds"].values()
        )
        print(f"      {part:<10}{values}  ms")


def _words(verdict: Mapping[str, Any]) -> str:
    named = (f"rank {rank} {of['phase'] or of['mode']}" for rank, of in verdict["named"].items())
    after = "" if verdict["after_seconds"] is None else f" after {verdict['after_seconds']:.0f} s"
    return f"{verdict['outcome']} ({', '.join(named) or 'nobody'}{after})"


def summarize(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many runs had which outcome, by what was judged; balanced runs and those that cannot tell apart."""
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for found in results:
        kind = "balanced" if found["truth"]["cause"] in NOBODY else "one slow rank"
        kind = kind if found["telling"] else f"{kind}, not measurable"
        for way, verdict in found["verdicts"].items():
            outcomes = counts.setdefault(kind, {}).setdefault(way, {})
            outcomes[verdict["outcome"]] = outcomes.get(verdict["outcome"], 0) + 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=0, help="default: all GPUs, or 4 on the CPU")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda if there are GPUs")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run (default: %(default)s)")
    parser.add_argument("--cases", default="all", help=f"none, or some of {', '.join(BY_NAME)}")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each balanced size (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write the results to job_cases.json in this folder")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        rank_main(options.rank_of.split(","), options.device, options.seconds)
        return 0
    import torch

    device_kind = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    ranks = options.ranks or (torch.cuda.device_count() if device_kind == "cuda" else 4)
    every = [case.name for case in CASES if possible(case, device_kind)]
    names = {"all": every, "none": []}.get(options.cases, options.cases.split(","))
    repeated = [case.name for case in REPEATED if possible(case, device_kind)]
    names += [f"{name}#{number}" for number in range(1, options.repeats + 1) for name in repeated]
    with ExitStack() as stack:
        telemetry = telemetry_of(device_kind, stack)
        scrapes = collect(names, ranks, device_kind, options.seconds, telemetry)
    results = [result(BY_NAME[name.partition("#")[0]], name, scrapes[name]) for name in names if scrapes.get(name)]
    if missing := [name for name in names if not scrapes.get(name)]:
        print(f"not run: {', '.join(missing)}")
    for found in results:
        show(found)
    summary = summarize(results)
    for kind, ways in summary.items():
        for way, outcomes in ways.items():
            print(f"{kind}, {way}: " + ", ".join(f"{number} {name}" for name, number in sorted(outcomes.items())))
    if options.out:
        about = {"torch": torch.__version__, "device": device_kind, "ranks": ranks, "seconds": options.seconds}
        if device_kind == "cuda":
            about["gpu"] = torch.cuda.get_device_name()
        options.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**about, "summary": summary, "not_run": missing, "results": results}, indent=2)
        (options.out / "job_cases.json").write_text(text)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
