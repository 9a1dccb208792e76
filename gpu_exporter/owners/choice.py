"""The settings -> the lookups of GPU owners, and the threads that keep them up to date."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic

from gpu_exporter.config import Config
from gpu_exporter.kubernetes import client as api
from gpu_exporter.kubernetes.watch import ListWatch
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.lookup import LONGEST_WAIT, Incomplete, Lookup, LookupFailed, T
from gpu_exporter.owners import pods
from gpu_exporter.owners import resource_slices as slices
from gpu_exporter.owners.attributor import Attributor, Lookups, LookupThread
from gpu_exporter.owners.devices import Listing
from gpu_exporter.owners.jobs import JobFiles, Jobs
from gpu_exporter.owners.pods import PodDetails
from gpu_exporter.owners.processes import Processes, ProcessLookup
from gpu_exporter.owners.resource_slices import Slice


class Poller(threading.Thread, Generic[T]):
    """Calls `ask` every `period` seconds, and stores the answer in `lookup`. Backs off while `ask` fails."""

    def __init__(
        self, lookup: Lookup[T], ask: Callable[[], T], period: float, close: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(name=f"attribution-{lookup.source}", daemon=True)
        self.lookup = lookup
        self._ask, self._period, self._close = ask, period, close
        self._stopping = threading.Event()

    def run(self) -> None:
        wait = self._period
        while True:
            try:
                self.lookup.answer(self._ask())
                wait = self._period
            except Incomplete as error:
                self.lookup.answer(error.rest)
                self.lookup.drop(error)
                wait = self._period
            except LookupFailed as error:
                self.lookup.fail(error, error.rest)
                wait = max(self._period, min(2 * wait, LONGEST_WAIT))
            except Exception:  # noqa: BLE001 - fail_unexpectedly logs it with its traceback
                self.lookup.fail_unexpectedly()
                wait = LONGEST_WAIT
            if self._stopping.wait(wait):
                break
        self._close()

    def stop(self) -> None:
        """Request the end; does not wait for a request in flight."""
        self._stopping.set()


if TYPE_CHECKING:
    from gpu_exporter.owners.kubelet import Kubelet

# Bounds of the polling period, however short the interval: kubelet answers at most 100 requests a second in total.
OFTEN, RARELY = 0.2, 5.0


def attributor(config: Config, environ: Mapping[str, str] = os.environ) -> Attributor | None:
    """Return the attributor for these settings; None if they request no owners. Raises GpuExporterError."""
    for name in ("kubernetes_pods", "kubernetes_pod_labels", "kubernetes_dra"):
        if getattr(config, name) and not config.kubernetes:
            raise GpuExporterError(
                f"--{name.replace('_', '-')} needs --kubernetes: kubelet says which pod has which GPU"
            )
    period = min(max(config.interval, OFTEN), RARELY)
    threads: list[LookupThread] = []
    kubelet: Lookup[Listing] | None = None
    pod: Lookup[Mapping[str, PodDetails]] | None = None
    slice_: Lookup[Mapping[str, Slice]] | None = None
    jobs: Lookup[Jobs] | None = None
    processes: Lookup[Processes] | None = None
    process_lookup = None
    if config.kubernetes:
        kubelet = Lookup("kubelet", Listing())
        client = kubelet_of(config)
        threads.append(Poller(kubelet, client.ask, period, client.close))
        if config.kubernetes_pods or config.kubernetes_pod_labels:
            pod = Lookup("pods", {})
            reader = pods.PodReader(config.kubernetes_pod_labels)
            threads.append(ListWatch(pod, _api(config, environ), pods.path, reader, node_query(config, environ)))
        if config.kubernetes_dra:
            slice_ = Lookup("resource_slices", {})
            threads.append(
                ListWatch(slice_, _api(config, environ), slices.path, slices.read, node_query(config, environ))
            )
    if config.hpc_job_mapping_dir:
        jobs = Lookup("hpc_jobs", {})
        threads.append(Poller(jobs, JobFiles(config.hpc_job_mapping_dir, config.procfs).ask, period))
    if config.processes:
        processes, process_lookup = Lookup("processes", {}), ProcessLookup(config.procfs)
        threads.append(Poller(processes, process_lookup.ask, period))
    if not threads:
        return None
    return Attributor(Lookups(kubelet, pod, slice_, jobs, processes, process_lookup), threads)


def kubelet_of(config: Config, patience: float = 5.0) -> Kubelet:
    """Return a client of kubelet with this timeout (seconds). Raises GpuExporterError if its libraries are missing."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read once at import; gpu-exporter logs a kubelet's restart itself
    try:
        from gpu_exporter.owners.kubelet import Kubelet
    except ImportError as error:
        what = f"--kubernetes needs the Python package {(error.name or '').partition('.')[0] or 'grpcio'}"
        raise GpuExporterError(what, fix="run `pip install grpcio protobuf`") from error
    return Kubelet(config.pod_resources_socket, config.nvidia_resource_names, patience)


def _api(config: Config, environ: Mapping[str, str]) -> api.Api:
    return api.in_cluster(config.kubernetes_service_account, environ)


def node_query(config: Config, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the query that restricts lists to this node, which keeps the load on the API server small.

    Raises GpuExporterError if the node's name is not configured: a pod's host name is not the node's.
    """
    node = config.node_name or environ.get("NODE_NAME", "")
    if not node:
        fix = "set GPU_EXPORTER_NODE_NAME from spec.nodeName"
        raise GpuExporterError("the API server needs the node's name", fix=fix)
    return {"fieldSelector": f"spec.nodeName={node}"}
