"""Thanos: receivers, query and ruler.

The program is found in PATH or where the variable THANOS says. `setup` has the options of docs/scale.md. Only here,
there are two tenants: each has a receiver that writes to it by default, and a `thanos query` that shows it alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.peers import program
from tests import ROOT
from tests.scale.cluster import SIZE, Cluster, Stores
from tests.support.tools import free_port
from tests.support.victoria import Victoria, running

ANSWERS, ALERTS = "default-tenant", "rules"
TENANT = "tenant_id"


def setup(stores: Sequence[str], ruler: str, query: str) -> Mapping[str, Sequence[str]]:
    """Return the options of the components for the addresses of stores, ruler (gRPC) and query (HTTP)."""
    return {
        "receive": [
            f"--receive.hashrings={json.dumps([{'endpoints': list(stores)}])}",
            "--receive.hashrings-algorithm=ketama",
            f"--receive.replication-factor={SIZE}",
        ],
        "query": [
            *(f"--endpoint={each}" for each in (*stores, ruler)),
            *(f"--query.replica-label={label}" for label in ("replica", TENANT)),
        ],
        "rule": [f"--query=http://{query}", '--label=replica="rule-1"', "--alert.label-drop=replica"],
    }


@contextmanager
def thanos(folder: Path) -> Iterator[Cluster]:
    """Run it with its data in `folder`."""
    with ExitStack() as stack:

        def start(name: str, http: str, grpc: str, *options: str) -> int:
            addresses = [f"--http-address={http}", f"--grpc-address={grpc}"]
            log = folder / f"{name}-{http.rpartition(':')[2]}.log"
            return stack.enter_context(
                running([program("thanos"), name, *addresses, *options], log, f"http://{http}/-/ready")
            )

        stores, written = (_addresses(SIZE) for _ in range(2))
        answers, alerts, ruler, http = _addresses(4)
        options = setup(stores, ruler, alerts)
        default = [ANSWERS, ANSWERS, ALERTS]
        pids = [
            start(
                *("receive", _addresses(1)[0], store, *options["receive"], f'--label=replica="store-{number}"'),
                *(f"--receive.local-endpoint={store}", f"--remote-write.address={written[number]}"),
                *(f"--receive.capnproto-address={_addresses(1)[0]}", f"--tsdb.path={folder / f'store-{number}'}"),
                f"--receive.default-tenant-id={default[number]}",
            )
            for number, store in enumerate(stores)
        ]
        for address, tenant in ((answers, ANSWERS), (alerts, ALERTS)):
            one = ["--query.enforce-tenancy", f"--query.default-tenant-id={tenant}"]
            start("query", address, _addresses(1)[0], *options["query"], *one)
        rules = [f"--rule-file={ROOT / 'alerts' / '*.yaml'}", f"--data-dir={folder / 'ruler'}", "--eval-interval=30s"]
        start("rule", http, ruler, *options["rule"], *rules, f'--label={TENANT}="{ALERTS}"')
        # Not to the store that is killed: docs/scale.md puts a load balancer there.
        everything, scraped = ({"url": f"http://{address}/api/v1/receive"} for address in written[1:])
        read = [Victoria(0, f"http://{address}") for address in (answers, alerts)]
        yield Cluster(pids, (everything, scraped), read[0], read[1], f"http://{http}")


STORES = Stores("Thanos", ("thanos",), thanos)


def _addresses(number: int) -> Sequence[str]:
    return [f"127.0.0.1:{free_port()}" for _ in range(number)]
