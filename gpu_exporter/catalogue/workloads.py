"""Labels of a series -> the owner of the GPU: namespace, pod, and the workload that the pod belongs to.

The recording rules use the same patterns; see `alerting/rules.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.source_kind import REPLAY

# Kubernetes makes suffixes of these letters only (no vowels, no 0, 1 and 3), so "bert-large" has none.
_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
_ROLES = "masters?|workers?|launchers?|ps|chief|heads?|leaders?|servers?|evaluators?|nodes?|replicas?"
# Name, then what controllers append: a role with ordinals, the hash of a ReplicaSet, a random suffix after an index or
# alone. A number alone may be part of the name: gpt-2 and gpt-3 are two pods.
WORKLOAD_OF_POD = f"(.+?)(?:-(?:{_ROLES})(?:-[0-9]+)*)?(?:(?:-[0-9]+)?(?:-{_RANDOM}{{8,10}})?-{_RANDOM}{{5}})?"
# Labels of a pod that name its job, the best last. The first is what Kubernetes used before the second.
POD_JOB_LABELS = (
    "job-name",
    "batch.kubernetes.io/job-name",
    "ray.io/cluster",
    "leaderworkerset.sigs.k8s.io/name",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
)
# Labels of a series that name the job, the best last: Slurm's, then those of pods as Prometheus or dcgm-exporter writes
# them, then gpu-exporter's.
JOB_LABELS = ("hpc_job", *(re.sub("[./-]", "_", label) for label in POD_JOB_LABELS if "/" in label), "workload")
# A recording without the name of a job counts as one job.
RECORDED = REPLAY.name
# Without honorLabels, `pod` of a free GPU is the exporter that was scraped.
EXPORTER_PODS = ".*(gpu|dcgm)-exporter.*"


@lru_cache(maxsize=4096)  # every series of a GPU has the same pod
def workload_of(pod: str) -> str:
    """Return the pod's name without what controllers append to it: roles with ordinals, and random suffixes."""
    found = re.fullmatch(WORKLOAD_OF_POD, pod)
    return found[1] if found else ""


def owner(name: str, labels: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return namespace, pod and workload of a series; None if it does not name an owner."""
    if name.startswith("gpu_") and name != m.POD_INFO.name:
        return None
    if labels.get("exported_pod"):
        namespace, pod = labels.get("exported_namespace", ""), labels["exported_pod"]
    else:
        namespace, pod = labels.get("namespace", ""), labels.get("pod", "")
        if re.fullmatch(EXPORTER_PODS, pod):
            namespace, pod = "", ""
    named = [labels[label] for label in JOB_LABELS if labels.get(label)]
    workload = named[-1] if named else workload_of(pod)
    if not pod and not workload and labels.get("source") == RECORDED:
        workload = RECORDED
    return (namespace, pod, workload) if pod or workload else None
