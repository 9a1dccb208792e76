"""The settings -> who is asked for the owners of GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpu_exporter.attribution import pods
from gpu_exporter.attribution import resource_slices as slices
from gpu_exporter.attribution.attributor import Attributor, Tellers, Thread
from gpu_exporter.attribution.jobs import JobFiles, Jobs
from gpu_exporter.attribution.listing import Listing
from gpu_exporter.attribution.pods import Pod
from gpu_exporter.attribution.poller import Poller
from gpu_exporter.attribution.processes import Processes, ProcessLookup
from gpu_exporter.attribution.resource_slices import Slice
from gpu_exporter.config import Config
from gpu_exporter.kubernetes import client as api
from gpu_exporter.kubernetes.watch import Watch
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.lookup import Lookup

if TYPE_CHECKING:
    from gpu_exporter.attribution.kubelet import Kubelet

# How often is asked, however often is collected: kubelet answers at most a hundred times a second, to all together.
OFTEN, RARELY = 0.2, 5.0


def attributor(config: Config, environ: Mapping[str, str] = os.environ) -> Attributor | None:
    """Who asks what these settings want to know; None if that is nothing. Raises GpuExporterError."""
    for name in ("kubernetes_pods", "kubernetes_pod_labels", "kubernetes_dra"):
        if getattr(config, name) and not config.kubernetes:
            raise GpuExporterError(
                f"--{name.replace('_', '-')} needs --kubernetes: kubelet tells which pod has which GPU"
            )
    period = min(max(config.interval, OFTEN), RARELY)
    threads: list[Thread] = []
    kubelet: Lookup[Listing] | None = None
    pod: Lookup[Mapping[str, Pod]] | None = None
    slice_: Lookup[Mapping[str, Slice]] | None = None
    jobs: Lookup[Jobs] | None = None
    processes: Lookup[Processes] | None = None
    lookup = None
    if config.kubernetes:
        kubelet = Lookup("kubelet", Listing())
        asked = kubelet_of(config)
        threads.append(Poller(kubelet, asked.ask, period, asked.close))
        if config.kubernetes_pods or config.kubernetes_pod_labels:
            pod = Lookup("pods", {})
            reader = pods.Reader(config.kubernetes_pod_labels)
            threads.append(Watch(pod, _api(config, environ), pods.path, reader, of_node(config, environ)))
        if config.kubernetes_dra:
            slice_ = Lookup("resource_slices", {})
            threads.append(Watch(slice_, _api(config, environ), slices.path, slices.read, of_node(config, environ)))
    if config.hpc_job_mapping_dir:
        jobs = Lookup("hpc_jobs", {})
        threads.append(Poller(jobs, JobFiles(config.hpc_job_mapping_dir, config.procfs).ask, period))
    if config.processes:
        processes, lookup = Lookup("processes", {}), ProcessLookup(config.procfs)
        threads.append(Poller(processes, lookup.ask, period))
    if not threads:
        return None
    return Attributor(Tellers(kubelet, pod, slice_, jobs, processes, lookup), threads)


def kubelet_of(config: Config, patience: float = 5.0) -> Kubelet:
    """The client of kubelet, which waits this long (seconds). Raises GpuExporterError without its libraries."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read once; what it would log of a restart, we say ourselves
    try:
        from gpu_exporter.attribution.kubelet import Kubelet
    except ImportError as error:
        what = f"--kubernetes needs the Python package {(error.name or '').partition('.')[0] or 'grpcio'}"
        raise GpuExporterError(f"{what}: `pip install 'gpu-exporter[kubernetes]'`") from error
    return Kubelet(config.pod_resources_socket, config.nvidia_resource_names, patience)


def _api(config: Config, environ: Mapping[str, str]) -> api.Api:
    return api.in_cluster(config.kubernetes_service_account, environ)


def of_node(config: Config, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Only what is of this node: that keeps the API server's work, and what is told to us, small.

    Raises GpuExporterError if the node's name is not told: a pod's host name is its own.
    """
    node = config.node_name or environ.get("NODE_NAME", "")
    if not node:
        raise GpuExporterError("the API server needs the node's name: set GPU_EXPORTER_NODE_NAME from spec.nodeName")
    return {"fieldSelector": f"spec.nodeName={node}"}
