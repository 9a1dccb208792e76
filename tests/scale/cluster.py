"""A VictoriaMetrics cluster that loses a store, beside a Prometheus: the same alerts and the same answers.

Its programs, `vmstorage`, `vminsert` and `vmselect`, are found in PATH or where the variables VMSTORAGE, VMINSERT and
VMSELECT say. Prometheus sends everything to tenant 0, for the answers, and what it scraped to tenant 1, where vmalert
evaluates its own rules. `setup` has the options of docs/scale.md.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from benchmarks.peers import program
from tests.rules.needed import bundled
from tests.rules.promtool import RULES
from tests.scale.queries import differences
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import free_port, until
from tests.support.victoria import LOOK_BACK, Victoria, running, vmalert

NODES, GPUS, STORES, COPIES = 8, 8, 3, 2
INJECTED = ("GpuStragglerSlow:node-000/3", "GpuThermalThrottling:node-001/5", "GpuLost:node-002/0")
PROGRAMS = ("vmstorage", "vminsert", "vmselect")
INTERVAL = 15
# Recorded by rules: vmalert records it itself.
RECORDED = "[a-z]+:.+|ALERTS.*"
# Until the alerts have fired, and after the loss of a store: each rule is evaluated several times.
SECONDS_BEFORE, SECONDS_AFTER = 300.0, 180.0
# Labels of an alert that only one of the two engines has.
OWN = frozenset({"__name__", "alertstate", "alertgroup", "replica"})


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster: its stores by process, and the addresses of a tenant."""

    stores: Sequence[int]
    insert: str
    select: str

    def written(self, tenant: int) -> str:
        """Return where Prometheus and vmalert write."""
        return f"{self.insert}/insert/{tenant}/prometheus"

    def read(self, tenant: int) -> Victoria:
        """Return where queries are answered."""
        return Victoria(0, f"{self.select}/select/{tenant}/prometheus")


def missing() -> Sequence[str]:
    """Return the programs that are not there."""
    return [name for name in PROGRAMS if not program(name)]


def setup(stores: Sequence[Mapping[str, str]]) -> Mapping[str, Sequence[str]]:
    """Return the options of vminsert and vmselect for stores, by the addresses that they listen on for each."""
    nodes = {name: ",".join(each[name] for each in stores) for name in ("vminsert", "vmselect")}
    copies = f"-replicationFactor={COPIES}"
    return {
        "vminsert": [f"-storageNode={nodes['vminsert']}", copies],
        "vmselect": [f"-storageNode={nodes['vmselect']}", copies, "-dedup.minScrapeInterval=1ms", LOOK_BACK],
    }


@contextmanager
def victoria_cluster(folder: Path) -> Iterator[Cluster]:
    """Run a cluster with its data in `folder`."""
    with ExitStack() as stack:

        def start(name: str, number: int, *options: str) -> tuple[int, str]:
            address = f"127.0.0.1:{free_port()}"
            command = [program(name), f"-httpListenAddr={address}", *options]
            log = folder / f"{name}-{number}.log"
            return stack.enter_context(running(command, log, f"http://{address}/health")), f"http://{address}"

        stores, pids = [], []
        for number in range(STORES):
            stores.append({name: f"127.0.0.1:{free_port()}" for name in ("vminsert", "vmselect")})
            listening = [f"-{name}Addr={address}" for name, address in stores[-1].items()]
            pids.append(start("vmstorage", number, f"-storageDataPath={folder / f'store-{number}'}", *listening)[0])
        options = setup(stores)
        _, insert = start("vminsert", 0, *options["vminsert"])
        cache = f"-cacheDataPath={folder / 'cache'}"
        _, select = start("vmselect", 0, *options["vmselect"], cache, "-search.latencyOffset=0s")
        yield Cluster(pids, insert, select)


def unhealthy(url: str) -> tuple[int, Sequence[str]]:
    """Return the number of vmalert's rules, and those whose last evaluation failed, with the error."""
    with urlopen(f"{url.removesuffix('/metrics')}/api/v1/rules", timeout=60) as answer:
        groups = json.loads(answer.read())["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    return len(rules), [
        f"{rule['name']}: {rule['lastError']}" for rule in rules if rule["health"] not in ("ok", "unknown")
    ]


def firing(store: Any, at: float) -> set[tuple[tuple[str, str], ...]]:
    """Return the labels of the alerts that fire."""
    found = store.api("query", query='ALERTS{alertstate="firing"}', time=f"{at:.3f}")["result"]
    return {tuple(sorted(item for item in each["metric"].items() if item[0] not in OWN)) for each in found}


def compared(prometheus: Prometheus, cluster: Cluster, metrics: str, when: str) -> bool:
    """Print how the cluster differs from Prometheus; return whether it does not."""
    # Between two scrapes, so long ago that everything has been sent by now.
    at = prometheus.query("max(timestamp(up))")[0] - 1.5 * INTERVAL
    problems, full = differences(prometheus, cluster.read(0), at, f"{4 * INTERVAL}s")
    rules, failed = unhealthy(metrics)
    expected, found = firing(prometheus, at), firing(cluster.read(1), at)
    print(
        f"{when}: {full} equal answers with content, {len(problems)} differ; {rules} rules, {len(failed)} failed;"
        f" {len(expected)} alerts, {len(expected ^ found)} in one only",
        flush=True,
    )
    print("\n\n".join([*problems, *failed, *map(str, expected ^ found)]))
    return not (problems or failed or expected ^ found)


def cluster(folder: Path) -> bool:
    """Compare before and after one of three stores was killed; return whether nothing differed."""
    if lacking := missing():
        print(f"not compared: {', '.join(lacking)} not in PATH, and no variable names them")
        return True
    port = free_port()
    simulated = f"serve --source simulated --nodes {NODES} --gpus {GPUS} --inject {','.join(INJECTED)}"
    command = [sys.executable, "-m", "gpu_exporter", *simulated.split(), "--address", f"127.0.0.1:{port}"]
    with ExitStack() as stack:
        stack.enter_context(running(command, folder / "exporter.log", f"http://127.0.0.1:{port}/healthz"))
        stores = stack.enter_context(victoria_cluster(folder))
        drop = {"source_labels": ["__name__"], "regex": RECORDED, "action": "drop"}
        targets = [{"url": f"{stores.written(tenant)}/api/v1/write"} for tenant in (0, 1)]
        more = {"remote_write": [targets[0], {**targets[1], "write_relabel_configs": [drop]}]}
        discovery = {"http_sd_configs": [{"url": f"http://127.0.0.1:{port}/sd"}]}
        prometheus = stack.enter_context(
            scraping(folder, f"{INTERVAL}s", discovery, rule_files=RULES, more=more, own_intervals=True)
        )
        rules = sorted(bundled(folder, "vmalert").iterdir())
        _, metrics = stack.enter_context(vmalert(folder, stores.read(1).url, rules, written=stores.written(1)))
        until(lambda: prometheus.query("count(up)") == [NODES], 60, "all nodes")
        time.sleep(SECONDS_BEFORE)
        good = compared(prometheus, stores, metrics, "with three stores")
        os.kill(stores.stores[0], signal.SIGKILL)
        time.sleep(SECONDS_AFTER)
        return compared(prometheus, stores, metrics, "after the loss of one") and good
