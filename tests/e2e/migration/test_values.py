"""Queries of public dashboards and alerts for other exporters return the same values after `gpu-exporter rewrite`.

Both pages are of the same GPUs: that of the other exporter was recorded from the real program, that of gpu-exporter is
served by this version. A real Prometheus scrapes both and evaluates each query before and after.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from gpu_exporter.catalogue.metrics import ENERGY_JOULES as ENERGY
from gpu_exporter.catalogue.peer_series import WITHOUT, PeerExporter, load
from gpu_exporter.migration.promql import parse, selectors
from gpu_exporter.migration.rewrite import rewrite
from tests.conftest import Serve
from tests.support.peer_pages import DATA, GPU, MIG, NODE, page_of, scraped
from tests.support.prometheus import Prometheus

SERIES = load()
QUERIES: Sequence[str] = [json.loads(line)["query"] for line in (DATA / "peer_queries.jsonl").read_text().splitlines()]
REWRITTEN = {query: new.text for query in QUERIES if (new := rewrite(query, SERIES)) and new.done}
UUIDS = [f"00000000-0000-0000-0000-{gpu:012d}" for gpu in range(2)]
# Values that differ by less are the same: nvitop-exporter's share of the memory includes the driver's reserve, and
# nvidia_gpu_exporter takes NVML's KB/s of PCIe for 1000 bytes, where GPM has MiB.
TOLERANCE = 0.025
# What nvidia_gpu_exporter writes if the driver lacks a function, as the fake one does.
UNKNOWN = "[Function Not Found]"
# Labels that gpu-exporter does not have, and those that dashboards make of the beginning of the UUID.
NOT_COMPARED = WITHOUT | {"us", "gpu_label", "job", "__name__"}
Samples = dict[tuple[tuple[str, str], ...], float]


@pytest.fixture(scope="module")
def prometheus(serve_module: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped gpu-exporter and the pages of the others."""
    with scraped(tmp_path_factory.mktemp("migration"), serve_module) as running:
        yield running


def result(prometheus: Prometheus, query: str, job: str, uuid: str) -> Sequence[Mapping[str, Any]]:
    """Return what Prometheus answers to a query of a dashboard, for one GPU and without the series of other jobs."""
    for name, value in {"__rate_interval": "5m", "job": job, "node": NODE, "hostname": NODE, "gpu": uuid}.items():
        query = query.replace(f"${name}", value)
    found: Sequence[Mapping[str, Any]] = prometheus.api("query", query=query)["result"]
    return [row for row in found if row["metric"].get("job", job) == job]


def before(rows: Sequence[Mapping[str, Any]], peer: PeerExporter) -> Samples:
    """Return the samples of the other exporter with the labels that they have in gpu-exporter."""

    def label(name: str, value: str) -> tuple[str, str]:
        return peer.labels.get(name, name), peer.prefixes.get(name, "") + value

    return {
        tuple(
            sorted(label(*each) for each in row["metric"].items() if each[0] not in NOT_COMPARED and each[1] != UNKNOWN)
        ): float(row["value"][1])
        for row in rows
    }


def after(rows: Sequence[Mapping[str, Any]], old: Samples) -> Samples:
    """Return the samples of gpu-exporter with those of their labels that the other exporter has, too.

    Where it has no counter of an error before the first one, gpu-exporter's zero is left out.
    """
    names = {name for labels in old for name, _ in labels}
    samples = ((row["metric"].items(), float(row["value"][1])) for row in rows)
    return {
        tuple(sorted(each for each in labels if each[0] in names)): value for labels, value in samples if old or value
    }


def read_by(query: str) -> PeerExporter:
    """Return the exporter whose series a query reads."""
    (peer,) = {
        series.peer.name: series.peer for each in selectors(parse(query)) if (series := SERIES.get(each.name))
    }.values()
    return peer


@pytest.mark.parametrize("query", REWRITTEN)
def test_a_rewritten_query_returns_the_same(prometheus: Prometheus, query: str) -> None:
    """Values, and the labels that the query had before, for each GPU."""
    peer, rewritten = read_by(query), REWRITTEN[query]
    job, which, uuids = (MIG, MIG, UUIDS[:1]) if "_mig_" in query else (GPU, "", UUIDS)
    for uuid in uuids:
        old = before(result(prometheus, query, page_of(peer, which), uuid), peer)
        new = after(result(prometheus, rewritten, job, peer.prefixes.get("uuid", "") + uuid), old)
        if ENERGY.name in rewritten and not any(old.values()):
            # The driver's counter stands still on both pages. gpu-exporter adds what the power makes of it meanwhile.
            assert new.keys() == old.keys(), rewritten
            continue
        assert new == pytest.approx(old, rel=TOLERANCE), rewritten
        assert old or "_mig_" not in query


def test_most_queries_return_something(prometheus: Prometheus) -> None:
    """Otherwise, the comparison would be of nothing with nothing. There were no XIDs."""
    empty = [
        query
        for query in REWRITTEN
        if "_mig_" not in query
        and "xid" not in query
        and not result(prometheus, REWRITTEN[query], GPU, f"GPU-{UUIDS[0]}")
    ]

    assert [
        query for query in empty if not re.search(r"fabric_state|retired_pages| == | > |< max_over_time|!~", query)
    ] == []
