"""Records profiler traces with one built-in cause each, as ground truth for the analysis of traces.

Needs PyTorch with CUDA.

    python -m benchmarks.trace_cases --out FOLDER [NAME ...]             # one GPU
    python -m benchmarks.trace_cases --out FOLDER --ranks N [NAME ...]   # jobs with a GPU for each rank

Beside the traces is `truth.json`: for each trace the expected class, cause, and the function and line to be named.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.trace_cases.jobs import JOBS
from benchmarks.trace_cases.ranks import rank_main, run
from benchmarks.trace_cases.single import CASES


def main() -> None:
    """Record all cases, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join((*CASES, *JOBS)))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.ranks == 1:
        truth = run(CASES, chosen.names, chosen.out)
        (chosen.out / "truth.json").write_text(json.dumps(truth, indent=1))
        return
    import torch

    torch.multiprocessing.spawn(rank_main, (chosen.ranks, chosen.names, chosen.out), nprocs=chosen.ranks)


if __name__ == "__main__":
    main()
