"""Prints how far each class and failure mode is from flipping on every recorded phase, the smallest margin first.

    python -m tests.margins [--all]

Exit code 1 if a margin is below 1.3 without a reason in `tests/margins/table.py`.
"""

from __future__ import annotations

import sys

from tests.margins.table import SMALLEST, rows, worst
from tests.support.truth import PHASES


def main(*, everything: bool) -> int:
    """Print the table; return 1 if a small margin has no reason."""
    found = worst([row for path, phase in PHASES for row in rows(path, phase)])
    unexplained = 0
    for row in found:
        if row.margin.factor >= SMALLEST and not everything:
            break
        unexplained += row.margin.factor < SMALLEST and not row.reason
        state = "true" if row.margin.holds else "false"
        print(
            f"{row.margin.factor:6.2f}  {row.recording:<22} {row.phase:<26} {row.gpu}  {row.judged:<28} {state:<6}"
            f"{row.what}: {row.margin.left:.4g}  {row.reason}"
        )
    print(f"{len(found)} margins of {len(PHASES)} phases; {unexplained} below {SMALLEST} without a reason")
    return int(unexplained > 0)


if __name__ == "__main__":
    sys.exit(main(everything="--all" in sys.argv))
