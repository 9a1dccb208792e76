"""Counts what a collection and a scrape cost, and compares it with the committed counts.

    python -m tests.counts [--update WHY]

`--update` replaces the committed counts of this interpreter; WHY, the reason of the change, is committed with them.
Exit code 1 if a count differs by more than the tolerance.
"""

from __future__ import annotations

import argparse
import sys

from tests.counts.measure import counted
from tests.counts.table import committed, differences, interpreter, load, store


def main() -> int:
    """Count, print the differences, and store the counts on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", metavar="WHY", help="store the counts, and the reason of the change")
    why = parser.parse_args().update
    if why is not None and not why.strip():
        parser.error("--update needs the reason of the change")
    tables, now = load(), counted(why or "")
    lines = differences(committed(tables), now, same_interpreter=interpreter() in tables)
    for line in lines:
        print(line)
    for what in ("instructions", "bytes"):
        for name, count in now[what].items():
            print(f"{what:12}  {name:45} {count:>12,}")
    for name, modules in now["modules"].items():
        print(f"{'modules':12}  {name:45} {len(modules):>12,}")
    if why is None:
        return int(bool(lines))
    store(now)
    return 0


if __name__ == "__main__":
    sys.exit(main())
