"""Doctor's checks of the services and files that say which pod or job uses a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing

from gpu_exporter.kubernetes.client import Api, in_cluster
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.finding import Finding, FindingLevel
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.owners import pods
from gpu_exporter.owners import resource_slices as slices
from gpu_exporter.owners.choice import kubelet_of, node_query
from gpu_exporter.owners.jobs import JobFiles
from gpu_exporter.owners.settings import OwnerSettings
from gpu_exporter.reports.numbers import counted

PATIENCE = 0.8
TOPIC = "attribution"

Check = Callable[[], list[Finding]]


def checks(settings: OwnerSettings, environ: Mapping[str, str] = os.environ) -> tuple[Check, ...]:
    """Return the checks that the settings call for."""

    def check(ask: Callable[[], str]) -> Check:
        return lambda: [_finding(ask)]

    selected: list[Check] = []
    if settings.kubernetes:
        selected.append(check(lambda: _kubelet(settings)))
    if settings.kubernetes and (settings.kubernetes_pods or settings.kubernetes_pod_labels):
        selected.append(check(lambda: _listed(settings, environ, pods.path, "pods")))
    if settings.kubernetes and settings.kubernetes_dra:
        selected.append(check(lambda: _listed(settings, environ, slices.path, "ResourceSlices")))
    if settings.hpc_job_mapping_dir:
        files = JobFiles(settings.hpc_job_mapping_dir, settings.procfs)
        of_jobs = settings.hpc_job_mapping_dir
        selected.append(check(lambda: f"{of_jobs} has jobs for {counted(len(files.ask()), 'GPU')}"))
    return tuple(selected)


def _finding(ask: Callable[[], str]) -> Finding:
    try:
        return Finding(TOPIC, FindingLevel.OK, ask())
    except (LookupFailed, GpuExporterError) as error:
        return Finding(TOPIC, FindingLevel.WARN, error.message, error.fix)


def _kubelet(settings: OwnerSettings) -> str:
    kubelet = kubelet_of(settings, PATIENCE)
    try:
        listing = kubelet.ask()
    finally:
        kubelet.close()
    owners = [(allocated.namespace, allocated.pod) for allocated in listing.allocated]
    owners += [(claimed.namespace, claimed.pod) for claimed in listing.claimed]
    return f"kubelet lists {counted(len(owners), 'device')} of {counted(len(set(owners)), 'pod')}"


def _listed(settings: OwnerSettings, environ: Mapping[str, str], path: Callable[[Api], str], what: str) -> str:
    with closing(in_cluster(settings.kubernetes_service_account, environ, PATIENCE)) as api:
        listed, query = path(api), node_query(settings, environ)
        items, version = api.list_objects(listed, **query)
        with closing(api.watch(listed, 1.0, resourceVersion=version, **query)) as watch:
            next(watch)  # the server answers: the exporter may watch, too
    if path is pods.path and not items:  # at least this pod runs on the node
        message = f"the API server lists no pod of the node {settings.node_name or environ.get('NODE_NAME', '')}"
        raise LookupFailed("not_found", message, fix="set GPU_EXPORTER_NODE_NAME from spec.nodeName")
    return f"the API server lists {counted(len(items), what.removesuffix('s'))} of this node"
