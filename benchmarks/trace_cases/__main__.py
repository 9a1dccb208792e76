"""Records profiler traces with one built-in cause each, as ground truth for the analysis of traces, and judges them.

Needs PyTorch with CUDA.

    python -m benchmarks.trace_cases --out FOLDER [NAME ...]             # jobs with a rank for each GPU
    python -m benchmarks.trace_cases --out FOLDER --ranks 1 [NAME ...]   # one GPU
    python -m benchmarks.trace_cases --out FOLDER --verdicts OTHER       # also what `trace analyze` says about them

Beside the traces is `truth.json`, or that of the jobs with N ranks: for each trace the expected class, cause, the
function and line to be named, and the straggler. `benchmarks.trace_truth` judges the traces; with `--verdicts`, this
command calls it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.trace_cases.jobs import JOBS
from benchmarks.trace_cases.ranks import run, run_jobs
from benchmarks.trace_cases.single import CASES
from benchmarks.trace_truth import verdicts_on


def main() -> int:
    """Record all cases, or those that are named; return 1 if a recording failed or a verdict is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join((*CASES, *JOBS)))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, help="how many GPUs (default: all)")
    parser.add_argument("--verdicts", type=Path, metavar="FOLDER", help="judge the traces, and write what was said")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    import torch

    gpus = torch.cuda.device_count()
    ranks = chosen.ranks or gpus
    if not 0 < ranks <= gpus:
        parser.error(f"{max(1, ranks)} GPUs are needed, and {gpus} are there")
    cases = CASES if ranks == 1 else JOBS
    if unknown := [name for name in chosen.names if name not in cases]:
        parser.error(f"no cases of {ranks} ranks: {', '.join(unknown)}; choose from {', '.join(cases)}")
    names = chosen.names or list(cases)
    failed = []
    if ranks == 1:
        run(cases, names, chosen.out)
    else:
        failed = run_jobs(names, ranks, chosen.out)
    wrong = verdicts_on(chosen.out, chosen.verdicts) if chosen.verdicts else 0
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
