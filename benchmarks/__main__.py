"""Runs the named benchmarks, or all that this machine supports.

    python -m benchmarks [NAME …] [--list]

Each writes benchmarks/results/NAME.json, from which `python -m benchmarks.report` renders docs/performance.md. Each can
also be run by itself, with its own options (`python -m benchmarks.cost --help`). Exit code 1 if one of them misses a
bound, 2 if this machine does not support a named one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from benchmarks.harness import BENCHMARKS, Benchmark


def run(benchmark: Benchmark) -> bool:
    """Run a benchmark in its own process; return whether it kept its bounds."""
    command = [sys.executable, "-m", f"benchmarks.{benchmark.module}", *benchmark.arguments]
    print(f"--- {benchmark.name}", flush=True)
    begin = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    print(f"--- {benchmark.name} took {time.monotonic() - begin:.0f} s" + (f", exit code {code}" if code else ""))
    return code == 0


def main() -> int:
    """Run the benchmarks one after the other; return 1 for a missed bound, 2 if a named one cannot run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a benchmark (default: all that this machine supports)"
    )
    parser.add_argument("--list", action="store_true", help="list the benchmarks and what this machine lacks for each")
    chosen = parser.parse_args()
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    if unknown := [name for name in chosen.names if name not in known]:
        parser.error(f"unknown benchmark: {', '.join(unknown)}; choose from {', '.join(known)}")
    named = [known[name] for name in chosen.names] or BENCHMARKS
    for benchmark in named:
        if benchmark.lacks() or chosen.list:
            print(f"{benchmark.name:<16}{f'needs {benchmark.lacks()}' if benchmark.lacks() else 'can run here'}")
    if chosen.list:
        return 0
    if chosen.names and any(benchmark.lacks() for benchmark in named):
        return 2
    return 0 if all([run(benchmark) for benchmark in named if not benchmark.lacks()]) else 1


if __name__ == "__main__":
    sys.exit(main())
