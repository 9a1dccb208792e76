"""Pods as the API server lists them -> the labels of `gpu_pod_info` beside the pod's name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_exporter.catalogue.workloads import POD_JOB_LABELS
from gpu_exporter.kubernetes.client import Api, Object
from gpu_exporter.model.metric import Labels

# Labels that number the pod within its job, the best last.
RANK_LABELS = (
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "training.kubeflow.org/replica-index",
)
MIRROR_UID = "kubernetes.io/config.hash"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. `uids` are those that cgroups may name it by: a static pod has a second one there."""

    uids: tuple[str, ...] = ()
    finished: bool = False
    workload: str = ""
    rank: str = ""
    labels: Labels = ()

    @property
    def uid(self) -> str:
        """The UID that the API server has."""
        return self.uids[0] if self.uids else ""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads pods, with those labels whose whole name matches one of `allowed`."""

    allowed: Sequence[re.Pattern[str]] = ()

    def __call__(self, item: Object) -> Pod | None:
        metadata, status = _mapping(item, "metadata"), _mapping(item, "status")
        labels = {str(name): str(value) for name, value in _mapping(metadata, "labels").items()}
        uids = (metadata.get("uid"), _mapping(metadata, "annotations").get(MIRROR_UID))
        return Pod(
            uids=tuple(str(uid) for uid in uids if uid),
            finished=status.get("phase") in ("Succeeded", "Failed"),
            workload=_last(labels, POD_JOB_LABELS),
            rank=_last(labels, RANK_LABELS),
            labels=self._shown(labels),
        )

    def _shown(self, labels: Mapping[str, str]) -> Labels:
        shown: dict[str, str] = {}
        for name, value in sorted(labels.items()):
            if value and any(allowed.fullmatch(name) for allowed in self.allowed):
                shown.setdefault(label_name(name), value)
        return tuple(shown.items())


def label_name(name: str) -> str:
    """A pod's label as Prometheus can write it, in kube-state-metrics' way: `label_` and no other signs than `_`."""
    return "label_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _last(labels: Mapping[str, str], names: Sequence[str]) -> str:
    named = [labels[name] for name in names if labels.get(name)]
    return named[-1] if named else ""


def _mapping(item: Object, name: str) -> Object:
    found = item.get(name)
    return found if isinstance(found, dict) else {}


def path(api: Api) -> str:
    """Where the pods are listed."""
    return "/api/v1/pods"
