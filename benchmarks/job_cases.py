"""Trains on several GPUs (or CPUs) with one known cause of slowness at a time, and compares what the diagnosis says.

    PYTHONPATH=. python3 benchmarks/job_cases.py --out results           # all cases, and 20 balanced runs: 13 minutes
    PYTHONPATH=. python3 benchmarks/job_cases.py --cases first --times 3 --repeats 0 --most-seconds 450 --out results
    PYTHONPATH=. python3 benchmarks/job_cases.py --cases fsdp-forward,tensor-gpu --repeats 0
    PYTHONPATH=. python3 benchmarks/job_cases.py --device cpu --ranks 4 --seconds 3 --cases ddp-data,ddp-backward
    nvidia-cuda-mps-control -d; PYTHONPATH=. python3 benchmarks/job_cases.py --ranks 4      # on one GPU: timers only
    PYTHONPATH=. python3 benchmarks/job_cases.py --replay results        # judge again what was scraped; no GPU

One process per rank trains all cases, each with its own StepTimer. This process receives their messages on a Unix
socket and reads the GPUs, as the exporter does, and judges each scrape as `diagnose` does: by the step timers alone, by
telemetry alone, and by both. A straggler that is not named is wrong, and so is any other rank, at any moment of the
run. `unknown` is right where nobody is slow; cases in which a step timer cannot tell are counted apart.

After each case, its scrapes and all results so far are in the folder of `--out`.

Needs PyTorch; on GPUs, `nvidia-ml-py` for the telemetry.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.job_receiver import Receiver
from benchmarks.job_training import (
    BY_NAME,
    CASES,
    FIRST,
    NOBODY,
    REPEATED,
    Case,
    possible,
    rank_main,
    ranks_share_gpus,
    shared_environment,
)
from benchmarks.job_verdict import PARTS, UNKNOWN, Verdict, judge, parts_of, samples_of, uuid_of
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.scrape import ScrapedSample
from gpu_exporter.diagnosis.window import FAMILIES

SCRAPE_SECONDS = 1.0
# The file of scrapes: a line of JSON for each case.
SCRAPES = "scrapes.jsonl.gz"
# Longer than it takes to import PyTorch and to set up its collectives.
SILENT_SECONDS = 120.0
_TELLING = (m.GR_ENGINE_ACTIVE, m.SM_ACTIVE, m.DRAM_ACTIVE, m.TENSOR_ACTIVE, m.PCIE_RX, m.PCIE_TX, m.NVLINK_RX, m.POWER)
TELLING = frozenset(metric.name for metric in _TELLING)
# What of a page of the exporter is kept.
READ = TELLING | set(FAMILIES)
# What is judged: step timers, telemetry, or both.
TIMERS, TELEMETRY, BOTH = "step timers", "telemetry", "both"


class Scrapes(NamedTuple):
    """The scrapes of a case: times, last messages of all ranks, and the samples of the GPUs."""

    at: float
    messages: Mapping[int, Mapping[str, Any]]
    telemetry: Sequence[ScrapedSample]


def collect(
    names: Sequence[str],
    ranks: int,
    device_kind: str,
    seconds: float,
    telemetry: Callable[[], Sequence[ScrapedSample]],
    most_seconds: float,
) -> Iterator[tuple[str, list[Scrapes]]]:
    """Run the ranks, and yield the scrapes of each case when it is over; of those so far if a rank fails, all are
    silent, or the time is over."""
    latest: dict[str, dict[int, Any]] = defaultdict(dict)
    name, of_case = "", list[Scrapes]()
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
                is_late = time.monotonic() > begin + most_seconds
                if is_late:
                    of_case = []  # cut off, it would be judged by a part
                if failed or is_late or time.monotonic() > heard + SILENT_SECONDS:
                    why = f"ranks {failed} failed" if failed else "the time is over" if is_late else "all are silent"
                    print(why, file=sys.stderr)
                    break
                for message in messages:
                    latest[message["job_id"]][message["rank"]] = message
                for job in dict.fromkeys(message["job_id"] for message in messages):
                    if len(latest[job]) < ranks:
                        continue
                    if job != name and _follows(names, name, job):
                        if of_case:
                            yield name, _whole(of_case, latest[name])
                        name, of_case = job, []
                        print(f"{time.monotonic() - begin:5.0f} s  {name}", file=sys.stderr, flush=True)
                    if job == name and (not of_case or time.time() >= of_case[-1].at + SCRAPE_SECONDS):
                        of_case.append(Scrapes(time.time(), dict(latest[name]), telemetry()))
        finally:
            for child in children:
                child.kill()
                child.wait()
    if of_case:
        yield name, _whole(of_case, latest[name])


def _follows(names: Sequence[str], before: str, name: str) -> bool:
    """Return whether a case comes after another one."""
    return not before or names.index(name) > names.index(before)


def _whole(scrapes: list[Scrapes], latest: Mapping[int, Mapping[str, Any]]) -> list[Scrapes]:
    """Add the last messages of a case, which come when its loops are over."""
    return [*scrapes, Scrapes(scrapes[-1].at + SCRAPE_SECONDS, latest, ())]


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
        **(shared_environment(rank, ranks) if ranks_share_gpus(ranks, device_kind) else {}),
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
    return lambda: reader.of(monitor.snapshot(), READ).samples


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


def kept(name: str, scrapes: Sequence[Scrapes]) -> str:
    """Return the scrapes of a case as a line of JSON."""
    found = [[each.at, each.messages, [list(sample) for sample in each.telemetry]] for each in scrapes]
    return json.dumps({"case": name, "scrapes": found}, separators=(",", ":"))


def replayed(folder: Path) -> Iterator[tuple[str, list[Scrapes]]]:
    """Yield the scrapes of each case in a folder."""
    with gzip.open(folder / SCRAPES, "rt") as lines:
        for line in lines:
            found = json.loads(line)
            yield found["case"], [_scrapes(*each) for each in found["scrapes"]]


def _scrapes(at: float, messages: Mapping[str, Any], telemetry: Sequence[Sequence[Any]]) -> Scrapes:
    by_rank = {int(rank): message for rank, message in messages.items()}
    return Scrapes(at, by_rank, [ScrapedSample(*each) for each in telemetry])


class Results:
    """Judges cases as they come, in a thread, because the next one runs meanwhile; prints and writes all results."""

    def __init__(self, about: Mapping[str, Any], names: Sequence[str], folder: Path | None) -> None:
        self._about, self._names, self._folder = about, names, folder
        self.found: list[dict[str, Any]] = []

    def take(self, cases: Iterator[tuple[str, list[Scrapes]]], *, keep: bool) -> None:
        """Judge all cases; with `keep`, keep their scrapes before."""
        with ThreadPoolExecutor(1) as pool:
            judging = []
            for name, scrapes in cases:
                if keep and self._folder:
                    with gzip.open(self._folder / SCRAPES, "at") as file:
                        file.write(kept(name, scrapes) + "\n")
                judging.append(pool.submit(self._judge, name, scrapes))
            for each in judging:
                each.result()

    @property
    def not_run(self) -> list[str]:
        """The cases that are missing."""
        run = {each["case"] for each in self.found}
        return [name for name in self._names if name not in run]

    def _judge(self, name: str, scrapes: Sequence[Scrapes]) -> None:
        self.found.append(result(BY_NAME[name.partition("#")[0]], name, scrapes))
        show(self.found[-1])
        if self._folder:
            whole = {"summary": summarize(self.found), "not_run": self.not_run, "results": self.found}
            (self._folder / "job_cases.json").write_text(json.dumps({**self._about, **whole}, indent=2))


def planned(options: argparse.Namespace, device_kind: str) -> list[str]:
    """Return the names of the runs, in their order."""
    # A part of a GPU does not become slower for other work of its rank.
    shared = ranks_share_gpus(options.ranks, device_kind)
    every = [case.name for case in CASES if possible(case, device_kind) and not (shared and case.cause == "gpu")]
    first = [name for name in FIRST if possible(BY_NAME[name], device_kind)]
    names = {"all": every, "first": first, "none": []}.get(options.cases, options.cases.split(","))
    repeated = [case.name for case in REPEATED if possible(case, device_kind)]
    again = [f"{name}#{number}" for number in range(2, options.times + 1) for name in names]
    return [*names, *again, *(f"{name}#b{number}" for number in range(1, options.repeats + 1) for name in repeated)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=0, help="default: all GPUs, or 4 on the CPU")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda if there are GPUs")
    parser.add_argument("--seconds", type=float, default=16.0, help="of each run (default: %(default)s)")
    parser.add_argument("--cases", default="all", help=f"none, first, or some of {', '.join(BY_NAME)}")
    parser.add_argument("--times", type=int, default=1, help="runs of each of these cases (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each balanced size (default: %(default)s)")
    parser.add_argument("--most-seconds", type=float, default=float("inf"), help="end after so many seconds")
    parser.add_argument("--out", type=Path, help="write the results and scrapes to this folder")
    parser.add_argument("--replay", type=Path, help="judge the scrapes in this folder again")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        rank_main(options.rank_of.split(","), options.device, options.seconds)
        return 0
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    if options.replay:
        results = Results({"replayed": str(options.replay)}, (), options.out)
        results.take(replayed(options.replay), keep=False)
    else:
        results = trained(options)
    if results.not_run:
        print(f"not run: {', '.join(results.not_run)}")
    for kind, ways in summarize(results.found).items():
        for way, outcomes in ways.items():
            print(f"{kind}, {way}: " + ", ".join(f"{number} {name}" for name, number in sorted(outcomes.items())))
    return 1 if results.not_run else 0


def trained(options: argparse.Namespace) -> Results:
    """Run the cases and return the results."""
    import torch

    device_kind = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    ranks = options.ranks or (torch.cuda.device_count() if device_kind == "cuda" else 4)
    names = planned(options, device_kind)
    about = {"torch": torch.__version__, "device": device_kind, "ranks": ranks, "seconds": options.seconds}
    if device_kind == "cuda":
        about |= {"gpu": torch.cuda.get_device_name(), "gpus": min(ranks, torch.cuda.device_count())}
    if options.out:
        (options.out / SCRAPES).unlink(missing_ok=True)
    results = Results(about, names, options.out)
    with ExitStack() as stack:
        # Of a GPU that ranks share, telemetry cannot tell one rank from another.
        telemetry = telemetry_of("cpu" if ranks_share_gpus(ranks, device_kind) else device_kind, stack)
        cases = collect(names, ranks, device_kind, options.seconds, telemetry, options.most_seconds)
        results.take(cases, keep=True)
    return results


if __name__ == "__main__":
    sys.exit(main())
