"""One look, for doctor, at whoever the settings ask for the owners of GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from gpu_exporter.attribution import pods
from gpu_exporter.attribution import resource_slices as slices
from gpu_exporter.attribution.choice import kubelet_of, of_node
from gpu_exporter.attribution.jobs import JobFiles
from gpu_exporter.config import Config
from gpu_exporter.kubernetes.client import Api, in_cluster
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.finding import Finding, Level
from gpu_exporter.model.lookup import LookupFailed

PATIENCE = 0.8
TOPIC = "attribution"

Look = Callable[[], list[Finding]]


def looks(config: Config, environ: Mapping[str, str] = os.environ) -> tuple[Look, ...]:
    """What there is to look at."""

    def at(ask: Callable[[], str]) -> Look:
        return lambda: [_finding(ask)]

    found: list[Look] = []
    if config.kubernetes:
        found.append(at(lambda: _kubelet(config)))
    if config.kubernetes and (config.kubernetes_pods or config.kubernetes_pod_labels):
        found.append(at(lambda: _listed(config, environ, pods.path, "pods")))
    if config.kubernetes and config.kubernetes_dra:
        found.append(at(lambda: _listed(config, environ, slices.path, "ResourceSlices")))
    if config.hpc_job_mapping_dir:
        files = JobFiles(config.hpc_job_mapping_dir, config.procfs)
        found.append(at(lambda: f"{config.hpc_job_mapping_dir} has jobs for {len(files.ask())} GPUs"))
    return tuple(found)


def _finding(ask: Callable[[], str]) -> Finding:
    try:
        return Finding(TOPIC, Level.OK, ask())
    except (LookupFailed, GpuExporterError) as error:
        what, _, cure = str(error).rpartition(": ")
        return Finding(TOPIC, Level.WARN, what or cure, cure if what else "")


def _kubelet(config: Config) -> str:
    kubelet = kubelet_of(config, PATIENCE)
    try:
        listing = kubelet.ask()
    finally:
        kubelet.close()
    owners = [(each.namespace, each.pod) for each in listing.allocated]
    owners += [(each.namespace, each.pod) for each in listing.claimed]
    return f"kubelet lists {len(owners)} devices of {len(set(owners))} pods"


def _listed(config: Config, environ: Mapping[str, str], path: Callable[[Api], str], what: str) -> str:
    api = in_cluster(config.kubernetes_service_account, environ, PATIENCE)
    items, _ = api.pages(path(api), **of_node(config, environ))
    return f"the API server lists {len(items)} {what} of this node"
