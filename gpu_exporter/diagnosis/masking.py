"""Replaces names in a diagnosis, so that others may read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.presence import Absent
from gpu_exporter.diagnosis.window import ONE_JOB, UNIDENTIFIED, DeviceIdentity
from gpu_exporter.reports.masking import Names, without_secrets


class DiagnosisNames(Names):
    """Replaces the names in a diagnosis. Without `mask`, only secrets in command lines are replaced."""

    def uuid(self, text: str) -> str:
        """Return a UUID, or a pseudonym of the same form; what stands for a missing one may name a host."""
        is_missing = text.startswith(UNIDENTIFIED)
        return self.name("uuid", text, f"{UNIDENTIFIED}{{:.8}}" if is_missing else "GPU-00000000-0000-0000-0000-{}")

    def source(self, text: str) -> str:
        """Return the name of a source; the address of an exporter is masked."""
        return self.name("exporter", text) if "://" in text else text

    def owner(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return a diagnosis in which the names of the owner and of processes are replaced."""
        return replace(diagnosis, identity=self._owner(diagnosis.identity))

    def diagnosis(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return a diagnosis in which all names are replaced, also those of the node and the GPU."""
        device, identity = diagnosis.device, self._owner(diagnosis.identity)
        return replace(
            diagnosis,
            device=device._replace(cluster=self.name("cluster", device.cluster), uuid=self.uuid(device.uuid)),
            identity=replace(
                identity,
                gpu=identity.gpu if identity.gpu.isdecimal() else self.uuid(identity.gpu),
                node=self.name("node", identity.node),
            ),
        )

    def absent(self, gpus: Absent) -> Absent:
        """Return absent GPUs in which the names are replaced."""
        harmless = re.fullmatch(r"GPU \d+|\d+ of \d+ GPUs", gpus.gpus)
        named = gpus.gpus if harmless else f"GPU {self.uuid(gpus.gpus.removeprefix('GPU '))}"
        return gpus._replace(node=self.name("node", gpus.node), gpus=named)

    def _owner(self, identity: DeviceIdentity) -> DeviceIdentity:
        return replace(
            identity,
            namespace=self.name("namespace", identity.namespace),
            pod=self.name("pod", identity.pod),
            workload=ONE_JOB if identity.workload == ONE_JOB else self.name("workload", identity.workload),
            process=self._process(identity.process),
            neighbours=tuple(self.name("neighbour", text) for text in identity.neighbours),
        )

    def _process(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        if not self.mask:
            return {name: without_secrets(value) if name == "command" else value for name, value in labels.items()}
        return self.labels(labels)
