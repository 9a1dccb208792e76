"""Shows what is left of an out-of-memory error whose peak lasts 3 s, at a scrape every 30 s. Needs PyTorch with CUDA.

    python -m benchmarks.memory_peak [--every 30] [--hold 3] [--scrapes 12] [--promtool PATH]

gpu-exporter runs with its defaults. Between the second and the third scrape, a program takes nearly all memory of GPU
0, holds it for 3 s, asks for more, gets an out-of-memory error and ends. Then there are, as Prometheus has them:

- at each scrape, the memory in use, and the most in use within a minute;
- the alert, by the committed rules in promtool, with all scrapes as its input; without promtool, by the same condition
  in Python;
- what `gpu-exporter diagnose --url` says, which scrapes for 5 s after the program has ended.

Exits with 1 if a scrape saw the peak as the memory in use (then nothing was shown: run it again), or if the alert or
`diagnose` misses it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks import played
from benchmarks.exporter import Exporter, exporter_command, free_port, running
from benchmarks.harness import GIB
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.remote_scrapes import is_read
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.text_format import parsed
from gpu_exporter.diagnosis.window import seen

ALERT = "GpuMemoryBrieflyFull"
MIB = 2**20
# What the program leaves free, how much it asks for in the end, and the size of its blocks.
LEFT, MORE, BLOCK = GIB // 2, 8 * GIB, 256 * MIB
# After which scrape the program takes the memory, and how many seconds later.
AFTER, DELAY = 2, 5.0
# The share of the memory that is in use while the program runs.
FULL = 0.9
# A program that takes the memory for so many seconds; it returns when the program has ended.
Peak = Callable[[float], None]


class Taken(NamedTuple):
    """A scrape, `seconds` after the first one."""

    seconds: float
    at: float
    samples: Sequence[ScrapedSample]

    def value(self, name: str, unit: float = 1.0) -> float:
        """Return a value of GPU 0."""
        return next(value * unit for each, labels, value in self.samples if each == name and labels["gpu"] == "0")

    @property
    def share(self) -> float:
        """The share of the memory that is in use."""
        used, free = (self.value(row.name, MIB) for row in (m.FB_USED, m.FB_FREE))
        return used / (used + free)


def allocate() -> None:
    """Be the program: after a line of input, take the memory for so many seconds, until there is no more."""
    import torch

    torch.zeros(1, device="cuda")
    print("ready", flush=True)
    seconds = float(sys.stdin.readline())
    end, blocks = time.monotonic() + seconds, []
    while torch.cuda.mem_get_info()[0] > LEFT + BLOCK:
        blocks.append(torch.empty(BLOCK, dtype=torch.uint8, device="cuda"))
    print(f"holds {len(blocks) * BLOCK / GIB:.1f} GiB in addition to its context", flush=True)
    time.sleep(max(0.0, end - time.monotonic()))
    try:
        blocks.append(torch.empty(MORE, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as error:
        print(f"ends: {str(error).split('.')[0]}", flush=True)


def with_torch(seconds: float) -> None:
    """Run the program, and print what it says."""
    command = [sys.executable, "-m", "benchmarks.memory_peak", "--allocate"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin
        assert child.stdout
        child.stdout.readline()
        child.stdin.write(f"{seconds}\n")
        child.stdin.flush()
        for line in child.stdout:
            print(f"the program {line.strip()}", flush=True)


def scrape(exporter: Exporter, every: float, scrapes: int, hold: float, peak: Peak) -> tuple[list[Taken], str]:
    """Scrape at each multiple of `every`, with a peak in between; return the scrapes, and what `diagnose` says after
    the peak."""
    taken, begun = list[Taken](), time.monotonic()

    def peak_and_diagnose() -> str:
        peak(hold)
        while Taken(0.0, time.time(), parsed(exporter.page(), is_read)).share > FULL:  # of the program that has ended
            time.sleep(0.1)
        url = f"http://127.0.0.1:{exporter.port}"
        command = [sys.executable, "-m", "gpu_exporter", "diagnose", "--url", url, "--for", "5s", "--json"]
        return subprocess.run(command, capture_output=True, text=True).stdout

    with ThreadPoolExecutor(1) as pool:
        for number in range(scrapes):
            time.sleep(max(0.0, begun + number * every - time.monotonic()))
            taken.append(Taken(number * every, time.time(), parsed(exporter.page(), is_read)))
            if number + 1 == AFTER:
                time.sleep(min(DELAY, every / 6))
                said = pool.submit(peak_and_diagnose)
        return taken, said.result()


def found_in(taken: Sequence[Taken]) -> list[str]:
    """Return the findings on GPU 0 by the conditions in Python, over these scrapes."""
    by_gpu = diagnose(seen([Scrape(each.at, list(each.samples)) for each in taken], {}))
    return [match.mode.name for each in by_gpu if each.identity.gpu == "0" for match in each.matches]


def shown(taken: Sequence[Taken]) -> list[str]:
    """Return a line for each scrape."""
    lines = ["scrape    in use   most in use within a minute"]
    for each in taken:
        used, highest = each.value(m.FB_USED.name, MIB), each.value(m.FB_USED_PEAK.name)
        lines.append(f"{each.seconds:4.0f} s  {used / GIB:6.1f}   {highest / GIB:6.1f} GiB")
    return lines


def missed(taken: Sequence[Taken], said: str, promtool: Path | None, every: float) -> list[str]:
    """Print what the alert and `diagnose` say; return what failed."""
    wrong = []
    if (most := max(each.share for each in taken)) > FULL:
        wrong.append(f"a scrape saw {most:.0%} of the memory in use: the peak was not between two scrapes")
    if promtool:
        fired = played.fired(promtool, [each.samples for each in taken], every)
        by_rules = any((each["alertname"], each.get("gpu")) == (ALERT, "0") for each in fired)
    else:
        by_rules = ALERT in found_in(taken[: AFTER + 2])
    print(f"{ALERT} {'fired' if by_rules else 'did not fire'}, by {promtool or 'its condition in Python'}")
    diagnosed = ALERT in said
    print(f"gpu-exporter diagnose --url {'found' if diagnosed else 'did not find'} {ALERT}")
    return [*wrong, *([] if by_rules else ["the alert"]), *([] if diagnosed else ["diagnose"])]


def main() -> int:
    """Run the program beside gpu-exporter, and print what is left of its peak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=float, default=30.0, help="scrape interval in seconds (default: %(default)g)")
    parser.add_argument("--hold", type=float, default=3.0, help="seconds of the peak (default: %(default)g)")
    parser.add_argument("--scrapes", type=int, default=12, help="number of scrapes (default: %(default)s)")
    parser.add_argument("--promtool", type=Path, default=played.promtool(), help="Prometheus' promtool")
    parser.add_argument("--allocate", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.allocate:
        allocate()
        return 0
    port = free_port()
    with running(exporter_command(port), port) as exporter:
        taken, said = scrape(exporter, chosen.every, chosen.scrapes, chosen.hold, with_torch)
    print(*shown(taken), sep="\n")
    wrong = missed(taken, said, chosen.promtool, chosen.every)
    for each in wrong:
        print(f"MISSED: {each}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
