"""Prints precision and recall of each class and failure mode without profiling counters, against those with them.

    python -m tests.without_profiling [--no-pcie] [--nvlink] [--wrong]

`--no-pcie`: the driver has no samples of PCIe traffic either. `--nvlink`: the links count their traffic. `--wrong`
lists the GPUs whose class is another one.
"""

from __future__ import annotations

import sys

from tests.without_profiling.compare import class_of, coverage, judged, scores, stands_for

HEAD = f"{'':<24}{'with':>6}{'without':>9}{'both':>6}{'precision':>11}{'recall':>8}"


def main(*, pcie: bool, nvlink: bool, wrong: bool) -> None:
    """Print the tables."""
    found = list(judged(pcie=pcie, nvlink=nvlink))
    for kind, of_kind in zip(("class", "failure mode"), scores(found), strict=True):
        print(f"{kind:<24}{HEAD[24:]}")
        for name, score in of_kind.items():
            counts = f"{score.exact:>6}{score.approximate:>9}{score.both:>6}"
            print(f"{name:<24}{counts}{score.precision:>11.2f}{score.recall:>8.2f}")
    print(f"{len(found)} GPUs; {coverage(found):.0%} of the busy ones have a class without profiling counters")
    for each in found if wrong else ():
        exact, approximate = class_of(each.exact), class_of(each.approximate)
        if approximate and exact not in stands_for(approximate):
            print(f"{each.recording} {each.phase} GPU {each.exact.identity.gpu}: {exact or '-'}, without {approximate}")


if __name__ == "__main__":
    main(pcie="--no-pcie" not in sys.argv, nvlink="--nvlink" in sys.argv, wrong="--wrong" in sys.argv)
