"""Compare engines on the same fault histories: `python -m tests.scale.run [PART …]`, or all parts.

levels: two levels of Prometheus report what one reports, in jobs of 64 ranks on four shards. trouble: also while a
shard is down, late, or has a wrong clock. vmalert: it reports the same on VictoriaMetrics. chain: how long a change
takes there through the longest chain of rules, in real time. queries: VictoriaMetrics answers every rule and dashboard
as Prometheus does. cluster and thanos, only if they are asked for: so do a VictoriaMetrics cluster and Thanos that lose
one of three stores; `tests.scale.victoria_cluster` and `tests.scale.thanos` say which programs they need. Exit code 1
if anything differs by more than an evaluation.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.peers import program, version
from benchmarks.scale_page import PAGE, STORES_RESULT, known, known_stores, page
from tests.rules.shapes import STEP
from tests.scale import thanos, victoria_cluster
from tests.scale.chain import LAST, delays
from tests.scale.cluster import compare as compare_cluster
from tests.scale.compare import difference
from tests.scale.engines import EVALUATION, Shard, dumped, one, stores, two, vmalert_test
from tests.scale.histories import LARGE, SHARDS, SMALL, TICKS, history
from tests.scale.queries import differences
from tests.support.prometheus import scraping
from tests.support.victoria import victoria

GOOD = (Shard(),) * (SHARDS - 1)
# Scrapes during which the first shard is down: five minutes.
DOWN = (100, 110)
TROUBLE: Mapping[str, tuple[Shard, ...]] = {
    "a shard is 20 s late": (Shard(late=20), *GOOD),
    "the clock of a shard is 5 s ahead": (Shard(ahead=5), *GOOD),
    "a shard is down for 5 minutes": (Shard(stopped=[DOWN]), *GOOD),
}
# Queries are at a time between two samples, in seconds after one.
BETWEEN = 7
# With fewer histories, every sample fits into memory.
OF_QUERIES = ("GpuStragglerSlow", "GpuJobStraggler", "GpuThermalThrottling", "GpuFakeLoad", "GpuPcieBound", "GpuLost")


def levels(folder: Path, ranks: int) -> bool:
    """Print how one and two levels differ; return whether they agree."""
    histories = history(ranks=ranks)
    found = difference(one(histories, folder), two(histories, folder))
    print(f"two levels: {found}", flush=True)
    return found.agrees(EVALUATION)


def trouble(folder: Path, ranks: int) -> bool:
    """Print how two levels differ from one while a shard is in trouble; return whether no alert is new or missing.

    A Prometheus that was down holds alerts again, so those of its nodes may come twice.
    """
    histories = history(ranks=min(ranks, SMALL))
    expected, good = one(histories, folder), True
    for number, (what, shards) in enumerate(TROUBLE.items()):
        (folder / str(number)).mkdir()
        found = difference(expected, two(histories, folder / str(number), shards))
        print(f"{what}: {found}", flush=True)
        down = any(shard.stopped for shard in shards)
        good = good and not found.unexpected and not found.missing and (down or found.agrees(EVALUATION))
    return good


def vmalert(folder: Path, ranks: int) -> bool:
    """Print how vmalert differs from Prometheus; return whether they agree."""
    histories = history(ranks=min(ranks, SMALL))
    expected = one(histories, folder, aligned=True)
    found = vmalert_test(histories, folder, expected)
    print(f"vmalert: {len(expected)} alerts, {found}", flush=True)
    return ":" not in found


def chain(folder: Path, ranks: int) -> bool:
    """Print when vmalert has recorded each series, by file of rules; return whether its own file is the faster one."""
    slow, fast = delays(folder).values()
    for name in sorted(slow.keys() & fast.keys(), key=lambda name: fast[name]):
        print(f"{name}: after {slow[name]:.0f} s with alerts/*.yaml, {fast[name]:.0f} s with vmalert/rules.yaml")
    return fast[LAST] < slow[LAST]


def queries(folder: Path, ranks: int) -> bool:
    """Print which queries VictoriaMetrics answers differently; return whether there are none."""
    stores(history(OF_QUERIES, min(ranks, SMALL)), folder)
    problems: list[str] = []
    keep = "--storage.tsdb.retention.time=100y"
    with victoria(folder) as store, scraping(folder, "1m", {}, options=[keep]) as prometheus:
        store.write(dumped(folder))
        for at in range(15 * 60 + BETWEEN, TICKS * STEP, 15 * 60):
            found, full = differences(prometheus, store, at, "2m")
            problems += found
            print(f"queries at {at} s: {full} equal answers with content, {len(found)} differ", flush=True)
    print("\n\n".join(problems))
    return not problems


PARTS: Mapping[str, Callable[[Path, int], bool]] = {
    each.__name__: each for each in (levels, trouble, vmalert, chain, queries)
}
CLUSTERS = {"cluster": victoria_cluster.STORES, "thanos": thanos.STORES}


def main() -> int:
    """Run some parts, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, *CLUSTERS, []], default=[])
    parser.add_argument("--ranks", type=int, default=LARGE, help="ranks of the largest jobs (default: %(default)s)")
    parser.add_argument(
        "--json",
        type=Path,
        help="write what clusters showed; tests/scale/results/stores.json also renders the page",
    )
    chosen = parser.parse_args()
    good, clusters = True, []
    for name in chosen.parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            if name in PARTS:
                good = PARTS[name](Path(folder), chosen.ranks) and good
            elif looks := compare_cluster(Path(folder), stores := CLUSTERS[name]):
                good = all(look.good for look in looks) and good
                named = f"{stores.name} {version(program(stores.programs[0]))}".strip()
                today = f"{datetime.now(timezone.utc):%Y-%m-%d}"
                clusters.append({"name": named, "date": today, "looks": [asdict(look) for look in looks]})
    if chosen.json and clusters:
        chosen.json.write_text(json.dumps(clusters, indent=1) + "\n")
        if chosen.json.resolve() == STORES_RESULT:
            PAGE.write_text(page(PAGE.read_text(), known(), known_stores()))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
