"""Run many random histories of the remediation controller: `python -m tests.soak.remediation --histories 100000`."""

from __future__ import annotations

import argparse
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.support.remediation_world import history

CHUNK = 500


def run(first: int) -> Counter[str]:
    """Run a chunk of histories; return how much happened in them."""
    total = Counter[str]()
    for seed in range(first, first + CHUNK):
        try:
            world = history(seed)
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error
        evictions = world.pods.evicted.total()
        total.update(writes=world.writes, drains=world.drained, evictions=evictions, jobs=len(world.pods.begun))
    return total


def main() -> None:
    """Run the histories on all cores, and print what they did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    chosen = parser.parse_args()
    firsts = range(chosen.first, chosen.first + chosen.histories, CHUNK)
    with ProcessPoolExecutor() as executor:
        total = sum(executor.map(run, firsts), Counter[str]())
    print(f"{len(firsts) * CHUNK} histories, {dict(total)}: all bounds held, and everything ended well")


if __name__ == "__main__":
    main()
