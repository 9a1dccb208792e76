"""Replaces names in a diagnosis, so that its report can be passed on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.presence import Absent
from gpu_exporter.diagnosis.window import UNIDENTIFIED, DeviceIdentity
from gpu_exporter.reports.masking import Names, without_secrets

# What each label of a process is called in place of its value.
_KINDS = {
    "process": "program",
    "uid": "user",
    "command": "command",
    "pod_uid": "pod-uid",
    "container_id": "container",
    "hpc_job": "job",
}


class DiagnosisNames(Names):
    """Replaces the names in a diagnosis. Without `mask`, only secrets in command lines are replaced."""

    def uuid(self, text: str) -> str:
        """Return a UUID, or a placeholder of the same form; what stands for a missing one may name a host."""
        is_missing = text.startswith(UNIDENTIFIED)
        return self.name("uuid", text, f"{UNIDENTIFIED}{{}}" if is_missing else "GPU-00000000-0000-0000-0000-{:012d}")

    def source(self, text: str) -> str:
        """Return the name of a source; the address of an exporter is masked."""
        return self.name("exporter", text) if "://" in text else text

    def diagnosis(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return a diagnosis in which the names are replaced."""
        device = diagnosis.device
        cluster = self.name("cluster", device.cluster)
        return replace(
            diagnosis,
            device=device._replace(cluster=cluster, uuid=self.uuid(device.uuid)),
            identity=self._identity(diagnosis.identity),
        )

    def absent(self, gpus: Absent) -> Absent:
        """Return absent GPUs in which the names are replaced."""
        harmless = re.fullmatch(r"GPU \d+|\d+ of \d+ GPUs", gpus.gpus)
        named = gpus.gpus if harmless else f"GPU {self.uuid(gpus.gpus.removeprefix('GPU '))}"
        return gpus._replace(node=self.name("node", gpus.node), gpus=named)

    def _identity(self, identity: DeviceIdentity) -> DeviceIdentity:
        return replace(
            identity,
            gpu=identity.gpu if identity.gpu.isdecimal() else self.uuid(identity.gpu),
            node=self.name("node", identity.node),
            namespace=self.name("namespace", identity.namespace),
            pod=self.name("pod", identity.pod),
            workload=self.name("workload", identity.workload),
            process=self._process(identity.process),
            neighbours=tuple(self._neighbours(identity.neighbours)),
        )

    def _process(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        if not self.mask:
            return {name: without_secrets(value) if name == "command" else value for name, value in labels.items()}
        return {name: self.name(_KINDS[name], value) if name in _KINDS else value for name, value in labels.items()}

    def _neighbours(self, texts: Iterable[str]) -> Iterable[str]:
        return [self.name("neighbour", text) for text in texts]
