"""A cluster of stores that loses one of them, beside a Prometheus: the same alerts and the same answers.

Prometheus sends everything to one tenant, for the answers, and what it scraped to another one, where the cluster
evaluates the rules itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from benchmarks.peers import program
from tests.rules.promtool import RULES
from tests.scale.queries import Store, Without, differences
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import free_port, until
from tests.support.victoria import running

NODES, GPUS, SIZE = 8, 8, 3
INJECTED = ("GpuStragglerSlow:node-000/3", "GpuThermalThrottling:node-001/5", "GpuLost:node-002/0")
INTERVAL = 15
# Recorded by rules: the cluster records it itself.
RECORDED = "[a-z]+:.+|ALERTS.*"
# Until the alerts have fired, and after the loss of a store: each rule is evaluated several times.
SECONDS_BEFORE, SECONDS_AFTER = 300.0, 180.0
# Labels of an alert that only one of the two has.
OWN = frozenset({"__name__", "alertstate", "alertgroup", "replica"})
# As many a Prometheus has. Dashboards must not need it, nor be disturbed by it.
EXTERNAL = {"prometheus": "monitoring/one"}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster: its stores by process, and the tenants of answers and of rules.

    `writes` are the entries of `remote_write` for both. `rules` is the address of the program that evaluates them.
    """

    stores: Sequence[int]
    writes: tuple[Mapping[str, Any], Mapping[str, Any]]
    answers: Store
    alerts: Store
    rules: str


def unhealthy(url: str) -> tuple[int, Sequence[str]]:
    """Return the number of rules, and those whose last evaluation failed, with the error."""
    with urlopen(f"{url}/api/v1/rules", timeout=60) as answer:
        groups = json.loads(answer.read())["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    return len(rules), [
        f"{rule['name']}: {rule['lastError']}" for rule in rules if rule["health"] not in ("ok", "unknown")
    ]


def firing(store: Store, at: float) -> set[tuple[tuple[str, str], ...]]:
    """Return the labels of the alerts that fire."""
    found = store.api("query", query='ALERTS{alertstate="firing"}', time=f"{at:.3f}")["result"]
    return {tuple(sorted(item for item in each["metric"].items() if item[0] not in OWN)) for each in found}


@dataclass(frozen=True, slots=True)
class Look:
    """How many answers, rules and alerts were compared at a time, and how many of them are not as they should be."""

    equal: int
    differ: int
    rules: int
    failed: int
    alerts: int
    other_alerts: int

    @property
    def good(self) -> bool:
        """Whether nothing differs."""
        return not (self.differ or self.failed or self.other_alerts)


def compared(prometheus: Prometheus, cluster: Cluster, when: str) -> Look:
    """Print and return how the cluster differs from Prometheus."""
    # Between two scrapes, so long ago that everything has been sent by now.
    at = prometheus.query("max(timestamp(up))")[0] - 1.5 * INTERVAL
    problems, full = differences(prometheus, Without(cluster.answers, EXTERNAL), at, f"{4 * INTERVAL}s")
    rules, failed = unhealthy(cluster.rules)
    expected, found = firing(prometheus, at), firing(Without(cluster.alerts, EXTERNAL), at)
    look = Look(full, len(problems), rules, len(failed), len(expected), len(expected ^ found))
    print(
        f"{when}: {look.equal} equal answers with content, {look.differ} differ; {rules} rules, {look.failed} failed;"
        f" {look.alerts} alerts, {look.other_alerts} in one only",
        flush=True,
    )
    print("\n\n".join([*problems, *failed, *map(str, expected ^ found)]))
    return look


@dataclass(frozen=True, slots=True)
class Stores:
    """A kind of cluster: its name, the programs that it needs, its own first, and what runs it in a folder."""

    name: str
    programs: Sequence[str]
    start: Callable[[Path], AbstractContextManager[Cluster]]


def compare(folder: Path, stores: Stores) -> Sequence[Look]:
    """Compare before and after one of three stores was killed; return both looks, none if a program is missing."""
    if lacking := [name for name in stores.programs if not program(name)]:
        print(f"not compared: {', '.join(lacking)} not in PATH, and no variable names them")
        return ()
    port = free_port()
    simulated = f"serve --source simulated --nodes {NODES} --gpus {GPUS} --inject {','.join(INJECTED)}"
    command = [sys.executable, "-m", "gpu_exporter", *simulated.split(), "--address", f"127.0.0.1:{port}"]
    with ExitStack() as stack:
        cluster = stack.enter_context(stores.start(folder))
        # A GPU is lost 20 s later: Prometheus must have seen whose it is.
        stack.enter_context(running(command, folder / "exporter.log", f"http://127.0.0.1:{port}/healthz"))
        everything, scraped = cluster.writes
        drop = {"source_labels": ["__name__"], "regex": RECORDED, "action": "drop"}
        more = {"remote_write": [everything, {**scraped, "write_relabel_configs": [drop]}]}
        discovery = {"http_sd_configs": [{"url": f"http://127.0.0.1:{port}/sd"}]}
        prometheus = stack.enter_context(
            scraping(
                folder,
                f"{INTERVAL}s",
                discovery,
                rule_files=RULES,
                external_labels=EXTERNAL,
                more=more,
                own_intervals=True,
            )
        )
        until(lambda: prometheus.query("count(up)") == [NODES], 60, "all nodes")
        time.sleep(SECONDS_BEFORE)
        before = compared(prometheus, cluster, "with three stores")
        os.kill(cluster.stores[0], signal.SIGKILL)
        time.sleep(SECONDS_AFTER)
        return before, compared(prometheus, cluster, "after the loss of one")
