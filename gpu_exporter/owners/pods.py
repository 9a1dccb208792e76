"""Pods as the API server lists them -> the labels of `gpu_pod_info` in addition to the pod's name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_exporter.catalogue.workloads import POD_JOB_LABELS
from gpu_exporter.kubernetes import limits
from gpu_exporter.kubernetes.client import Api
from gpu_exporter.kubernetes.objects import Annotations, Metadata, Object
from gpu_exporter.model.lookup import Incomplete
from gpu_exporter.model.metric import Labels

# Labels with the pod's number within its job; the last one that a pod has is used.
RANK_LABELS = (
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "training.kubeflow.org/replica-index",
)


# A GPU in an annotation of HAMi or Volcano: `<UUID>,<type>,<memory>,<cores>:`, and `;` after those of a container.
_ANNOTATED = re.compile(r"(?:^|[:;])(GPU-[0-9a-fA-F-]{36})(?=[,\[])")


@dataclass(frozen=True, slots=True)
class PodDetails:
    """A pod. `uids` are the UIDs that its cgroups may be named after: for a static pod, the API server has another.

    `gpus` are the UUIDs of the GPUs that the scheduler of a GPU-sharing plugin chose for it.
    """

    uids: tuple[str, ...] = ()
    finished: bool = False
    workload: str = ""
    rank: str = ""
    labels: Labels = ()
    gpus: tuple[str, ...] = ()

    @property
    def uid(self) -> str:
        """Return the UID that the API server has."""
        return self.uids[0] if self.uids else ""


@dataclass(frozen=True, slots=True)
class PodReader:
    """Reads pods, with those labels whose whole name matches one of `allowed`."""

    allowed: Sequence[re.Pattern[str]] = ()

    def __call__(self, item: Object) -> PodDetails:
        """Return the pod. Raises Incomplete, with the pod without its labels if it has too many of them."""
        metadata = item.get("metadata", {})
        labels = metadata.get("labels") or {}
        annotations = metadata.get("annotations") or {}
        uids = (metadata.get("uid", ""), annotations.get("kubernetes.io/config.hash", ""))
        for uid in uids:
            limits.check_length("the UID", uid, limits.LONGEST_UID)
        pod = PodDetails(
            uids=tuple(uid for uid in uids if uid),
            finished=item.get("status", {}).get("phase") in ("Succeeded", "Failed"),
            workload=_last(labels, POD_JOB_LABELS) or _controller(metadata) or metadata.get("name", ""),
            rank=_last(labels, RANK_LABELS),
            gpus=_gpus(annotations),
        )
        shown = self._shown(labels)
        if len(shown) > limits.MOST_POD_LABELS:
            name = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
            why = f"pod {name} has {len(shown)} labels to show, more than {limits.MOST_POD_LABELS}: they are left out"
            raise Incomplete("too_many", why, pod)
        return replace(pod, labels=shown)

    def _shown(self, labels: Mapping[str, str]) -> Labels:
        shown: dict[str, str] = {}
        for name, value in sorted(labels.items()):
            if value and any(allowed.fullmatch(name) for allowed in self.allowed):
                limits.check_length("the label", name, limits.LONGEST_LABEL_NAME)
                limits.check_length(f"the value of the label {name}:", value, limits.LONGEST_LABEL_VALUE)
                shown.setdefault(label_name(name), value)
        return tuple(shown.items())


def label_name(name: str) -> str:
    """Return the Prometheus label for a pod's label, as kube-state-metrics names it.

    It is `label_` and the name, in which `_` replaces each character that Prometheus does not allow.
    """
    return "label_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _controller(metadata: Metadata) -> str:
    """Return the name of a pod's controller. For a ReplicaSet, return its Deployment: the name without the hash."""
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller") and (name := reference.get("name", "")):
            limits.check_length("the controller", name, limits.LONGEST_POD)
            pod_hash = (metadata.get("labels") or {}).get("pod-template-hash", "")
            return name.removesuffix(f"-{pod_hash}") if reference.get("kind") == "ReplicaSet" and pod_hash else name
    return ""


def _gpus(annotations: Annotations) -> tuple[str, ...]:
    text = annotations.get("hami.io/vgpu-devices-allocated") or annotations.get("volcano.sh/vgpu-ids-new") or ""
    return tuple(_ANNOTATED.findall(text)[: limits.MOST_SLICE_DEVICES])


def _last(labels: Mapping[str, str], names: Sequence[str]) -> str:
    values = [labels[name] for name in names if labels.get(name)]
    if not values:
        return ""
    limits.check_length("the label value", values[-1], limits.LONGEST_LABEL_VALUE)
    return values[-1]


def path(api: Api) -> str:
    """Return the path of the list of pods."""
    return "/api/v1/pods"
