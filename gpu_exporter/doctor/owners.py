"""Doctor's checks of the services and files that say which pod or job uses a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing

from gpu_exporter.config import Config
from gpu_exporter.kubernetes.client import Api, in_cluster
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.finding import Finding, FindingLevel
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.owners import pods
from gpu_exporter.owners import resource_slices as slices
from gpu_exporter.owners.choice import kubelet_of, node_query
from gpu_exporter.owners.jobs import JobFiles

PATIENCE = 0.8
TOPIC = "attribution"

Check = Callable[[], list[Finding]]


def checks(config: Config, environ: Mapping[str, str] = os.environ) -> tuple[Check, ...]:
    """Return the checks that the settings call for."""

    def check(ask: Callable[[], str]) -> Check:
        return lambda: [_finding(ask)]

    selected: list[Check] = []
    if config.kubernetes:
        selected.append(check(lambda: _kubelet(config)))
    if config.kubernetes and (config.kubernetes_pods or config.kubernetes_pod_labels):
        selected.append(check(lambda: _listed(config, environ, pods.path, "pods")))
    if config.kubernetes and config.kubernetes_dra:
        selected.append(check(lambda: _listed(config, environ, slices.path, "ResourceSlices")))
    if config.hpc_job_mapping_dir:
        files = JobFiles(config.hpc_job_mapping_dir, config.procfs)
        selected.append(check(lambda: f"{config.hpc_job_mapping_dir} has jobs for {len(files.ask())} GPUs"))
    return tuple(selected)


def _finding(ask: Callable[[], str]) -> Finding:
    try:
        return Finding(TOPIC, FindingLevel.OK, ask())
    except (LookupFailed, GpuExporterError) as error:
        return Finding(TOPIC, FindingLevel.WARN, error.message, error.fix)


def _kubelet(config: Config) -> str:
    kubelet = kubelet_of(config, PATIENCE)
    try:
        listing = kubelet.ask()
    finally:
        kubelet.close()
    owners = [(allocated.namespace, allocated.pod) for allocated in listing.allocated]
    owners += [(claimed.namespace, claimed.pod) for claimed in listing.claimed]
    return f"kubelet lists {len(owners)} devices of {len(set(owners))} pods"


def _listed(config: Config, environ: Mapping[str, str], path: Callable[[Api], str], what: str) -> str:
    with closing(in_cluster(config.kubernetes_service_account, environ, PATIENCE)) as api:
        listed, query = path(api), node_query(config, environ)
        items, version = api.list_objects(listed, **query)
        with closing(api.watch(listed, 1.0, resourceVersion=version, **query)) as watch:
            next(watch)  # the server answers: the exporter may watch, too
    if path is pods.path and not items:  # at least this pod runs on the node
        message = f"the API server lists no pod of the node {config.node_name or environ.get('NODE_NAME', '')}"
        raise LookupFailed("not_found", message, fix="set GPU_EXPORTER_NODE_NAME from spec.nodeName")
    return f"the API server lists {len(items)} {what} of this node"
