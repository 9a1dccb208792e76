"""A VictoriaMetrics cluster with vmalert.

Its programs, `vmstorage`, `vminsert` and `vmselect`, are found in PATH or where the variables VMSTORAGE, VMINSERT and
VMSELECT say. `setup` has the options of docs/scale.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.peers import program
from tests.rules.needed import bundled
from tests.scale.cluster import SIZE, Cluster, Stores
from tests.support.tools import free_port
from tests.support.victoria import LOOK_BACK, Victoria, running, vmalert

COPIES = 2
ANSWERS, ALERTS = 0, 1


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
        for number in range(SIZE):
            stores.append({name: f"127.0.0.1:{free_port()}" for name in ("vminsert", "vmselect")})
            listening = [f"-{name}Addr={address}" for name, address in stores[-1].items()]
            pids.append(start("vmstorage", number, f"-storageDataPath={folder / f'store-{number}'}", *listening)[0])
        options = setup(stores)
        _, insert = start("vminsert", 0, *options["vminsert"])
        cache = f"-cacheDataPath={folder / 'cache'}"
        _, select = start("vmselect", 0, *options["vmselect"], cache, "-search.latencyOffset=0s")
        written = [f"{insert}/insert/{tenant}/prometheus" for tenant in (ANSWERS, ALERTS)]
        answers, alerts = (Victoria(0, f"{select}/select/{tenant}/prometheus") for tenant in (ANSWERS, ALERTS))
        rules = sorted(bundled(folder, "vmalert").iterdir())
        _, metrics = stack.enter_context(vmalert(folder, alerts.url, rules, written=written[1]))
        everything, scraped = ({"url": f"{each}/api/v1/write"} for each in written)
        yield Cluster(pids, (everything, scraped), answers, alerts, metrics.removesuffix("/metrics"))


STORES = Stores("VictoriaMetrics cluster", ("vmstorage", "vminsert", "vmselect"), victoria_cluster)
