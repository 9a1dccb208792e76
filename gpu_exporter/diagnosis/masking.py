"""Replaces names in a diagnosis, and secrets in command lines, so that a report can be passed on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.presence import Absent
from gpu_exporter.diagnosis.window import UNIDENTIFIED, DeviceIdentity

# `--api-key=x`, `--password x`, `TOKEN=x`, `https://user:x@host`.
_NAMED = re.compile(
    r"(?i)([\w-]*(?:key|token|secret|passw(?:or)?d|passphrase|pwd|credentials?|auth)\b\s*(?:=|:|\s)\s*)(?!-)(\S+)"
)
_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^/\s:@]*:)[^/\s@]+(?=@)")
# Values that look like a key, whatever they are named: long words of mixed characters, and known prefixes.
_LOOKS_SECRET = re.compile(r"\b(?:hf_|sk-|ghp_|github_pat_|glpat-|xox[abp]-|AKIA|eyJ)[\w.-]{8,}")
HIDDEN = "***"
# What each label of a process is called in place of its value.
_KINDS = {
    "process": "program",
    "uid": "user",
    "command": "command",
    "pod_uid": "pod-uid",
    "container_id": "container",
    "hpc_job": "job",
}


def without_secrets(command: str) -> str:
    """Return a command line without what looks like a password, a token or a key."""
    text = _NAMED.sub(rf"\1{HIDDEN}", command)
    return _LOOKS_SECRET.sub(HIDDEN, _IN_URL.sub(rf"\1{HIDDEN}", text))


class Names:
    """Replaces each name by a placeholder of its kind: pod-1, pod-2. The same name always gets the same one.

    Without `mask`, names stay, and only secrets in command lines are replaced.
    """

    def __init__(self, *, mask: bool) -> None:
        self._mask = mask
        self._names: dict[str, dict[str, str]] = defaultdict(dict)

    def name(self, kind: str, text: str) -> str:
        """Return a name, or its placeholder. Nothing is replaced by nothing."""
        if not (self._mask and text):
            return text
        of_kind = self._names[kind]
        return of_kind.setdefault(text, f"{kind}-{len(of_kind) + 1}")

    def uuid(self, text: str) -> str:
        """Return a UUID, or a placeholder of the same form; what stands for a missing one may name a host."""
        if not (self._mask and text):
            return text
        of_kind = self._names["uuid"]
        number = len(of_kind) + 1
        unidentified = text.startswith(UNIDENTIFIED)
        return of_kind.setdefault(
            text, f"{UNIDENTIFIED}{number}" if unidentified else f"GPU-00000000-0000-0000-0000-{number:012d}"
        )

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
        if not self._mask:
            return {name: without_secrets(value) if name == "command" else value for name, value in labels.items()}
        return {name: self.name(_KINDS[name], value) if name in _KINDS else value for name, value in labels.items()}

    def _neighbours(self, texts: Iterable[str]) -> Iterable[str]:
        return [self.name("neighbour", text) for text in texts]
