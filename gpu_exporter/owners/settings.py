"""The settings of the lookups of GPU owners, named as in `Config`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class OwnerSettings:
    """Who is asked for the owners of GPUs, and where. `interval` is in seconds."""

    kubernetes: bool
    kubernetes_pods: bool
    kubernetes_pod_labels: tuple[re.Pattern[str], ...]
    kubernetes_dra: bool
    kubernetes_service_account: Path
    pod_resources_socket: Path
    nvidia_resource_names: tuple[str, ...]
    node_name: str
    hpc_job_mapping_dir: Path | None
    processes: bool
    procfs: Path
    interval: float

    @property
    def asks_others(self) -> bool:
        """Whether owners are wanted that only Kubernetes or a scheduler knows."""
        return bool(
            self.kubernetes
            or self.kubernetes_pods
            or self.kubernetes_pod_labels
            or self.kubernetes_dra
            or self.hpc_job_mapping_dir
        )
