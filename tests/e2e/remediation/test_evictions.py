"""The fake API server answers evictions as a real one does: `tests.soak.remediation_cluster` asks that the same."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from gpu_exporter.remediation.cluster import KubernetesCluster
from gpu_exporter.remediation.pods import read
from gpu_exporter.remediation.run import client
from gpu_exporter.remediation.settings import Exporters, NodePool, Settings
from tests.support import eviction_contract
from tests.support.fakes.apiserver import FakeApiServer, pod_object

TEAM = "/api/v1/namespaces/team/pods"


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_answers_are_those_of_a_real_server(tmp_path: Path, version: str) -> None:
    server = FakeApiServer(tmp_path)
    server.eviction_version = version
    for name in ("free", "kept"):
        server.put(TEAM, pod_object(name, f"uid-{name}", {"app": name}))
    budget = {"selector": {"matchLabels": {"app": "kept"}}}
    path = f"/apis/policy/{version}/namespaces/team/poddisruptionbudgets"
    server.put(path, {"metadata": {"name": "kept"}, "spec": budget, "status": {"disruptionsAllowed": 0}})
    with closing(client(server.account, server.environment)) as api:
        cluster = KubernetesCluster(api, Settings("gpu", Exporters("gpu"), (NodePool("all"),)))
        free, kept = map(read, cluster.pods_on("node", fresh=True))
        assert eviction_contract.answers(cluster, free, kept) == eviction_contract.EXPECTED
        assert [read(item).name for item in cluster.pods_on("node", fresh=True)] == ["kept"]
    server.stop()
