"""Measure: the named benchmarks, or all that this machine can do.

    python -m benchmarks [NAME …] [--list]

Each writes benchmarks/results/NAME.json; `python -m benchmarks.report` makes docs/performance.md of these. Each can
also be run by itself, with its own options (`python -m benchmarks.cost --help`). Exit code 1 if one of them misses a
bound.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from benchmarks.harness import BENCHMARKS, Benchmark


def done(benchmark: Benchmark) -> bool:
    """Run one in a process of its own; whether it kept its bounds."""
    command = [sys.executable, "-m", f"benchmarks.{benchmark.module}", *benchmark.arguments]
    print(f"--- {benchmark.name}", flush=True)
    begin = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    print(f"--- {benchmark.name} took {time.monotonic() - begin:.0f} s" + (f", exit code {code}" if code else ""))
    return code == 0


def main() -> int:
    """Run them one after the other; 2 if one that was asked for can't be run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="what there is, and what this machine lacks for it")
    chosen = parser.parse_args()
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    if unknown := [name for name in chosen.names if name not in known]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    asked = [known[name] for name in chosen.names] or BENCHMARKS
    for benchmark in asked:
        if benchmark.lacks() or chosen.list:
            print(
                f"{benchmark.name:<16}{f'needs {benchmark.lacks()}' if benchmark.lacks() else 'can be measured here'}"
            )
    if chosen.list:
        return 0
    if chosen.names and any(benchmark.lacks() for benchmark in asked):
        return 2
    return 0 if all([done(benchmark) for benchmark in asked if not benchmark.lacks()]) else 1


if __name__ == "__main__":
    sys.exit(main())
