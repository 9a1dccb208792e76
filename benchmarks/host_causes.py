"""Provokes each cause for which a GPU waits for its host, and compares the truth with what `diagnose` says.

    python -m benchmarks.host_causes [--out DIR] [--seconds 11] [CASE …]

Needs PyTorch with CUDA; some cases need root, a writable cgroup or a second NUMA node, and are skipped without.
With HOST_CAUSES_MOVE=1 in the environment, processes of this machine may be moved to another cgroup to make one with a
CPU limit. Each case runs one workload on GPU 0, in its own environment: `benchmarks/host_workloads.py`. While it runs,
`gpu-exporter diagnose` and `gpu-exporter record --host-evidence` watch it, as a user would run them. Written to DIR:
`host_causes.json` with the table, by case the text of `diagnose`, a recording, and the raw files of /proc that the
verdict was made of. Exit code 1 if a verdict differs from the truth.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import host_raw, host_setups
from benchmarks.host_setups import CASES, Case, Skipped
from gpu_exporter.catalogue.failure_modes import host

READY_SECONDS, SETTLE_SECONDS, DIAGNOSE_EXTRA = 75.0, 2.0, 40.0
HOST_MODES = frozenset(mode.name for mode in host.MODES)
Result = dict[str, Any]


def run(case: Case, out: Path, seconds: float) -> Result:
    """Run one case; return its row of the table. A case that cannot run here, or fails, is a row, too."""
    row: Result = {"case": case.name, "truth": sorted(case.truth), "how": case.how}
    begin = time.monotonic()
    with ExitStack() as stack:
        try:
            command, after = case.setup(stack)
            child = host_setups.start(stack, [*command, *host_setups.workload(case.work)], case.name)
            _wait_until_ready(child)
            after(child.pid)
            time.sleep(SETTLE_SECONDS)
            row |= _watched(case, child.pid, out, seconds)
        except Skipped as reason:
            row |= {"skipped": str(reason)}
        except Exception as error:  # noqa: BLE001 - the other cases go on
            row |= {"failed": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return {**row, "seconds": round(time.monotonic() - begin, 1)}


def _wait_until_ready(child: subprocess.Popen[bytes]) -> None:
    """Wait for the line `ready` of the workload. Raises RuntimeError if it ends or takes too long."""
    if child.stdout is None:
        raise RuntimeError("the workload has no stdout")
    os.set_blocking(child.stdout.fileno(), False)
    end, said = time.monotonic() + READY_SECONDS, b""
    while b"ready" not in said:
        ended = child.poll() is not None or time.monotonic() > end
        said += child.stdout.read() or b""
        if ended:
            lines = said.decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise RuntimeError(f"the workload did not start (exit code {child.poll()}): {lines[-1]}")
        time.sleep(0.1)


def _watched(case: Case, pid: int, out: Path, seconds: float) -> Result:
    """Diagnose and record at the same time; return the verdict and the numbers."""
    exporter = [sys.executable, "-m", "gpu_exporter"]
    watch = f"{seconds:.0f}s"
    every = ("--interval", "1s", "--duration", watch)
    recording = out / f"host_{case.name}.jsonl.gz"
    record = subprocess.Popen(
        [*exporter, "record", "--source", "nvml", "--host-evidence", "--mask", *every, "--out", str(recording)],
        stdout=subprocess.DEVNULL,
    )
    machine = subprocess.Popen(
        [*exporter, "diagnose", "--source", "nvml", "--for", watch, "--json"], stdout=subprocess.PIPE, text=True
    )
    raw = host_raw.take(pid)
    human = subprocess.run(
        [*exporter, "diagnose", "--source", "nvml", "--for", watch, "--verbose"],
        capture_output=True,
        text=True,
        timeout=seconds + DIAGNOSE_EXTRA,
        check=False,
    )
    host_raw.write(out / f"host_{case.name}.raw.json", [raw, host_raw.take(pid)])
    answer, _ = machine.communicate(timeout=DIAGNOSE_EXTRA)
    record.wait(DIAGNOSE_EXTRA)
    (out / f"host_{case.name}.txt").write_text(human.stdout + human.stderr)
    report = json.loads(answer)
    (out / f"host_{case.name}.json").write_text(json.dumps(report, indent=2) + "\n")
    gpu = report["gpus"][0]
    modes = {mode["name"] for mode in gpu["modes"]}
    evidence = {name: value for mode in gpu["modes"] for name, value in mode["because"].items()}
    verdict = sorted(modes & HOST_MODES)
    return {
        "class": gpu["class"],
        "verdict": verdict,
        "other_modes": sorted(modes - HOST_MODES),
        "good": verdict == sorted(case.truth),
        "evidence": {**gpu["evidence"], **evidence},
        "process": gpu.get("process"),
    }


def show(rows: Sequence[Result]) -> str:
    """Return the table of truth and verdict."""
    lines = [f"{'case':<20}{'truth':<26}{'verdict':<34}{'class':<20}"]
    for row in rows:
        truth = ", ".join(map(str, row["truth"])) or "none"
        if "verdict" not in row:
            verdict = f"skipped: {row['skipped']}" if "skipped" in row else f"FAILED: {row.get('failed')}"
            lines.append(f"{row['case']:<20}{truth:<26}{verdict}")
            continue
        found = ", ".join(map(str, row["verdict"])) or "none"
        lines.append(f"{row['case']:<20}{truth:<26}{found:<34}{row['class']!s:<20}{'ok' if row['good'] else 'WRONG'}")
    return "\n".join(lines)


def main() -> int:
    """Run the cases, print and write the table; return 1 if a verdict is wrong."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=Path("host_causes"), help="directory for the results")
    options.add_argument("--seconds", type=float, default=11.0, help="how long each case is watched")
    options.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(case.name for case in CASES)}")
    chosen = options.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    rows: list[Result] = []
    for case in CASES:
        if case.name in chosen.cases or not chosen.cases:
            rows.append(run(case, chosen.out, chosen.seconds))
            print(show(rows[-1:]).splitlines()[-1], flush=True)
            (chosen.out / "host_causes.json").write_text(json.dumps(rows, indent=2) + "\n")
    print(f"\n{show(rows)}")
    return int(any(not row.get("good", True) or "failed" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
