"""How much is accepted from kubelet, the API server and job files: lengths as Kubernetes defines them, and counts.

What exceeds a limit is dropped and counted; everything else of the same answer stays.
"""

from __future__ import annotations

from gpu_exporter.io.decoding import printable
from gpu_exporter.model.lookup import Incomplete

# Lengths in characters. Kubernetes does not limit device ids of plugins.
LONGEST_NAMESPACE = 63
LONGEST_POD = 253
LONGEST_CONTAINER = 63
LONGEST_RESOURCE = 253 + 1 + 63
LONGEST_DEVICE = 253
LONGEST_POOL = 253
LONGEST_UID = 64
LONGEST_LABEL_NAME = 253 + 1 + 63
LONGEST_LABEL_VALUE = 63
LONGEST_JOB = 256

# NVIDIA devices in an answer of kubelet: 16 GPUs with 7 instances of 36 shares each.
MOST_DEVICES = 4096
# Series of devices that belong to no GPU of this node; a last one counts the others.
MOST_UNRESOLVED = 256
# Labels of a pod that `--kubernetes-pod-labels` selects.
MOST_POD_LABELS = 64
# Kubernetes' limit for a ResourceSlice.
MOST_SLICE_DEVICES = 128

# A list of the API server: pages, objects, and bytes in total.
MOST_PAGES = 100
MOST_OBJECTS = 5000
MOST_LIST_BYTES = 64 << 20
# One event of a watch. etcd stores objects of up to 1.5 MiB.
MOST_EVENT_BYTES = 8 << 20
# An answer of kubelet. gRPC's default, 4 MiB, is too little for a node with thousands of shares.
MOST_KUBELET_BYTES = 16 << 20
MOST_CREDENTIAL_BYTES = 1 << 20

# Files of the job mapping directory that are read, entries that are listed, and job ids in a file and in total.
MOST_JOB_FILES = 1024
MOST_JOB_ENTRIES = 10_000
MOST_JOBS_OF_GPU = 256
MOST_JOBS = 4096


def check_length(what: str, text: str, longest: int) -> None:
    """Raise Incomplete if `text` is longer than `longest` characters, or has some that cannot be printed."""
    if len(text) > longest:
        raise Incomplete(
            "too_long",
            f"{what} {printable(text, 40)} has {len(text)} characters, more than {longest}: it is left out",
        )
    if not text.isprintable():
        raise Incomplete("malformed", f"{what} {printable(text, 40)} has control characters: it is left out")
