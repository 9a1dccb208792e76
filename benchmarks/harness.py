"""What all benchmarks share: their options, and the file that says what was measured, where, when and how."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pynvml

from gpu_exporter.diagnosis.doctor.machine import read
from tests.support.tools import BUNDLED

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results"
GIB = 2**30
OWN_OPTIONS = ("--json", "--commit", "--prometheus")


@dataclass(frozen=True)
class Need:
    """What a benchmark can't do without, in words, and whether it is here."""

    what: str
    met: Callable[[], bool]


GPU = Need("an NVIDIA GPU", lambda: gpus() > 0)
TORCH = Need("PyTorch", lambda: find_spec("torch") is not None)
TRUSTME = Need("trustme (pip install -e '.[bench]')", lambda: find_spec("trustme") is not None)
PROMETHEUS = Need(
    "Prometheus (make tools)", lambda: bool(shutil.which("prometheus") or (BUNDLED / "prometheus").exists())
)


@dataclass(frozen=True)
class Benchmark:
    """A measurement: its name is that of its result, `module` is run with `arguments`."""

    name: str
    module: str
    needs: Sequence[Need] = ()
    arguments: Sequence[str] = ()

    def lacks(self, given: Sequence[Need] = ()) -> str:
        """What it needs and neither this machine has nor is given, in words; empty if there is nothing."""
        return " and ".join(need.what for need in self.needs if need not in given and not need.met())


BENCHMARKS = (
    Benchmark("cost", "cost", (GPU,)),
    Benchmark("perturbation", "perturbation", (GPU, TORCH)),
    Benchmark("stalls", "stalls", (GPU, TORCH, PROMETHEUS)),
    Benchmark("ground_truth", "ground_truth", (GPU, TORCH)),
    Benchmark("training", "training", (GPU, TORCH)),
    Benchmark("nvml_stress", "nvml_stress", (GPU,)),
    Benchmark("cost_stand_in", "cost", (), ("--stand-in", "1,2,4,8,16", "--seconds", "10")),
    Benchmark("exposition", "exposition"),
    Benchmark("web", "web", (TRUSTME,)),
    Benchmark("fleet", "fleet", (PROMETHEUS,)),
)


def machine() -> dict[str, object]:
    """This machine: processor, cores that may be used, memory in GiB, software, GPUs by name, load average."""
    cpu = re.search(r"model name\s*: (.*)", read(Path("/proc/cpuinfo")))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    return {
        "cpu": cpu.group(1) if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **boards(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def boards() -> dict[str, object]:
    """GPUs by name, and their driver; empty without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {"gpus": {}}
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return {"gpus": Counter(map(pynvml.nvmlDeviceGetName, handles)), "driver": pynvml.nvmlSystemGetDriverVersion()}
    finally:
        pynvml.nvmlShutdown()


def gpus() -> int:
    """How many GPUs this machine has."""
    found = boards()["gpus"]
    return sum(found.values()) if isinstance(found, Counter) else 0


def commit() -> str | None:
    """What is measured; None outside of a git work tree."""

    def git(*arguments: str) -> str:
        found = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        return found.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "gpu_exporter", "benchmarks/*.py")
        return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def options(module: str, text: str | None) -> argparse.ArgumentParser:
    """A parser with the options that each benchmark has; `text` is its documentation."""
    name = module_name(module)
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", type=Path, help=f"where the result is written; left out: {RESULTS.relative_to(ROOT)}/{name}.json"
    )
    parser.add_argument("--commit", default=commit(), help="what is measured, where git can't tell")
    return parser


def module_name(module: str) -> str:
    """The name of a benchmark by its module's, which is `__main__` where it runs."""
    if module != "__main__":
        return module.rpartition(".")[2]
    spec = sys.modules["__main__"].__spec__
    return spec.name.rpartition(".")[2] if spec else Path(sys.argv[0]).stem


def typed(arguments: Sequence[str]) -> list[str]:
    """What was typed, less what is of this machine and no part of the measurement."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        name, _, value = word.partition("=")
        if name not in OWN_OPTIONS:
            kept.append(word)
        elif not value:
            next(words, None)
    return kept


@dataclass(frozen=True)
class Run:
    """A benchmark that is under way: `machine` is as it was at the beginning."""

    command: str
    date: str
    machine: Mapping[str, object]
    commit: str | None
    path: Path | None

    def write(self, numbers: Mapping[str, object]) -> None:
        """Write what was measured, and say where; nothing of a stand-in that proves nothing, unless asked to."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        head = {"command": self.command, "date": self.date, "commit": self.commit, "machine": self.machine}
        self.path.write_text(json.dumps({**head, "numbers": numbers}, indent=2) + "\n")
        print(f"wrote {os.path.relpath(self.path)}")


def begin(module: str, chosen: argparse.Namespace, given: Sequence[Need] = ()) -> Run:
    """Look at the machine before it is loaded. Exits if something is missing, unless a stand-in takes its place."""
    name, simulated = module_name(module), bool(getattr(chosen, "stand_in", None))
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    if not simulated and (lacks := known[name].lacks(given)):
        sys.exit(f"benchmarks.{name} needs {lacks}")
    result = f"{name}_stand_in" if simulated else name
    path = chosen.json or (RESULTS / f"{result}.json" if result in known else None)
    command = shlex.join(["python", "-m", f"benchmarks.{name}", *typed(sys.argv[1:])])
    return Run(command, time.strftime("%Y-%m-%d", time.gmtime()), machine(), chosen.commit, path)
