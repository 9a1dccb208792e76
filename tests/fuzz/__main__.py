"""Fuzzes all parsers of untrusted input. `make fuzz` runs this; CI runs it with fewer inputs.

    python -m tests.fuzz [TARGET …] [--inputs 10000] [--seed 1]
    python -m tests.fuzz TARGET --file FAILING_INPUT

The exit code is 1 if an input failed. Failing inputs are saved.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.fuzz.harness import Result, Target, run, run_inputs
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Run the chosen targets."""
    names = {target.name: target for target in TARGETS}
    usage = "\n".join((__doc__ or "").splitlines()[1:])
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=usage, formatter_class=formatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(names)}; default: all")
    parser.add_argument("--inputs", type=int, default=10_000, help="mutated inputs for each target")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same inputs")
    parser.add_argument("--file", type=Path, help="run this input alone")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "gpu-exporter-fuzz")
    asked = parser.parse_args()
    if unknown := set(asked.targets) - names.keys():
        parser.error(f"unknown target {', '.join(sorted(unknown))}; use {', '.join(names)}")
    failed = False
    for name in asked.targets or names:
        with tempfile.TemporaryDirectory() as folder:
            if asked.file:
                result = run_inputs(names[name], Path(folder), (), [asked.file.read_bytes()])
            else:
                result = run(names[name], Path(folder), asked.inputs, asked.seed)
        failed |= bool(result.failures)
        _print(names[name], result, asked.out, asked.seed)
    return 1 if failed else 0


def _print(target: Target, result: Result, out: Path, seed: int) -> None:
    memory = f"memory {result.growth / (1 << 20):+.0f} MiB, at most {result.peak / (1 << 20):+.0f} MiB"
    print(f"{target.name}: {result.inputs} inputs, {result.rejected} rejected, {result.seconds:.0f} s, {memory}")
    for number, failure in enumerate(result.failures.values()):
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{target.name}-{seed}-{number}"
        path.write_bytes(failure.content)
        print(f"  FAILED: {failure.what}\n    seed {seed}; python -m tests.fuzz {target.name} --file {path}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
