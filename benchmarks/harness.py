"""Common options of the benchmarks, and the result file: the numbers with machine, date, commit and command."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pynvml

from gpu_exporter.doctor.machine import read
from tests.support.tools import BUNDLED

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results"
GIB = 2**30
# Not part of the measurement: not recorded in the result.
OWN_OPTIONS = ("--json", "--commit", "--prometheus")


@dataclass(frozen=True)
class Need:
    """A requirement of a benchmark: its name for the user, and whether this machine meets it."""

    what: str
    met: Callable[[], bool]


GPU = Need("an NVIDIA GPU", lambda: gpus() > 0)
TORCH = Need("PyTorch", lambda: find_spec("torch") is not None)
TRUSTME = Need("trustme (pip install -e '.[bench]')", lambda: find_spec("trustme") is not None)
PROMETHEUS = Need(
    "Prometheus (make tools)", lambda: bool(shutil.which("prometheus") or (BUNDLED / "prometheus").exists())
)
BOARDS_HISTORY = ROOT / "build/boards/history"
HISTORY = Need("a simulated history (make boards)", lambda: (BOARDS_HISTORY / "data").exists())


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: `name` is also the name of its result; `module` is run with `arguments`."""

    name: str
    module: str
    needs: Sequence[Need] = ()
    arguments: Sequence[str] = ()

    def lacks(self, given: Sequence[Need] = ()) -> str:
        """Return the unmet needs, or an empty string. Needs in `given` count as met."""
        return " and ".join(need.what for need in self.needs if need not in given and not need.met())


BENCHMARKS = (
    Benchmark("cost", "cost", (GPU,)),
    Benchmark("perturbation", "perturbation", (GPU, TORCH)),
    Benchmark("stalls", "stalls", (GPU, TORCH, PROMETHEUS)),
    Benchmark("sampling", "sampling", (GPU, TORCH)),
    Benchmark("ground_truth", "ground_truth", (GPU, TORCH)),
    Benchmark("training", "training", (GPU, TORCH)),
    Benchmark("nvml_stress", "nvml_stress", (GPU,)),
    Benchmark("cost_stand_in", "cost", (), ("--fake-driver", "1,2,4,8,16", "--seconds", "10")),
    Benchmark("exposition", "exposition"),
    Benchmark("live_page", "live_page"),
    Benchmark("web", "web", (TRUSTME,)),
    Benchmark("fleet", "fleet", (PROMETHEUS,)),
    Benchmark("first_screens", "first_screens", (HISTORY,)),
)


def machine() -> dict[str, object]:
    """Describe this machine: CPU, usable cores, memory in GiB, software, GPUs by name, load average."""
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
    """Return the GPUs by name, and the driver's version; no GPUs without a driver."""
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
    """Return the number of GPUs of this machine."""
    found = boards()["gpus"]
    return sum(found.values()) if isinstance(found, Counter) else 0


def commit() -> str | None:
    """Return the commit of the working tree, or None outside of git."""

    def git(*arguments: str) -> str:
        found = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        return found.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "gpu_exporter", "benchmarks/*.py")
        return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def options(module: str, text: str | None, *, written: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the common options; `text` is the description.

    Without `written`, the benchmark writes its result only if --json is given.
    """
    name = module_name(module)
    default = f"{RESULTS.relative_to(ROOT)}/{name}.json" if written else "none"
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"file for the result (default: {default})")
    parser.add_argument("--commit", default=commit(), help="the commit, if it cannot be read from git")
    return parser


def module_name(module: str) -> str:
    """Return a benchmark's name for its module's `__name__`, which is `__main__` in the module that runs."""
    if module != "__main__":
        return module.rpartition(".")[2]
    spec = sys.modules["__main__"].__spec__
    return spec.name.rpartition(".")[2] if spec else Path(sys.argv[0]).stem


def portable_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the command line without options that only name files of this machine."""
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
    """A run of a benchmark; `machine` describes the machine before the run."""

    command: str
    date: str
    machine: Mapping[str, object]
    commit: str | None
    path: Path | None

    def write(
        self, numbers: Mapping[str, object], versions: Mapping[str, str] | None = None, *, is_part: bool = False
    ) -> None:
        """Write the result and print its path, unless it is only a part. `versions` are those of other programs.

        Runs on the fake driver are not written unless --json is given, except `cost_stand_in`, a result of its own.
        """
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        head = {"command": self.command, "date": self.date, "commit": self.commit, "machine": self.machine}
        if versions:
            head["versions"] = versions
        # An interrupted run leaves a whole file.
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps({**head, "numbers": numbers}, indent=2) + "\n")
        written.replace(self.path)
        if not is_part:
            print(f"wrote {os.path.relpath(self.path)}")


def begin(module: str, chosen: argparse.Namespace, given: Sequence[Need] = ()) -> Run:
    """Describe the machine before it is under load. Exits if a need is not met, except on the fake driver."""
    name, simulated = module_name(module), bool(getattr(chosen, "fake_driver", None))
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    if not simulated and name in known and (lacks := known[name].lacks(given)):
        sys.exit(f"benchmarks.{name} needs {lacks}")
    result = f"{name}_stand_in" if simulated else name
    path = chosen.json or (RESULTS / f"{result}.json" if result in known else None)
    # What compiles at each start needs more memory and time than after an installation.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Ended by `timeout`, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    command = shlex.join(["python", "-m", f"benchmarks.{name}", *portable_arguments(sys.argv[1:])])
    return Run(command, time.strftime("%Y-%m-%d", time.gmtime()), machine(), chosen.commit, path)


def exit_code(missed: Sequence[str]) -> int:
    """Print the missed bounds; return 1 if there is one, 0 otherwise."""
    for text in missed:
        print(f"MISSED: {text}")
    return 1 if missed else 0
