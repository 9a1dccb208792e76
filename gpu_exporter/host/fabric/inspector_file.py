"""Files of NCCL's Inspector plugin in its Prometheus mode -> bandwidths by operation, message size and scope.

Source: `inspector_prom.cc` of NCCL 2.30.7 (`plugins/profiler/inspector/`) and 2.29.3 (`ext-profiler/inspector/`).
NCCL 2.30 writes the geometric mean of the operations since the last file, by range of sizes such as `4-5GB`; NCCL 2.29
the last collective of each communicator, with a size such as `4.00GB`. Sizes are powers of 1024, and a GB/s is 1e9
bytes/s. A bandwidth of 0 means that the plugin does not compute it, as for AlltoAll.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from statistics import geometric_mean

from prometheus_client.parser import text_string_to_metric_families

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.metric import Labels, Metric

Key = tuple[Metric, Labels]

# The plugin formats the labels of a line into 1024 bytes.
LONGEST_LINE = 2048
GIGABYTES = 1e9
FAMILIES: Mapping[str, Metric] = {
    "nccl_bus_bandwidth_gbs": m.NCCL_BUS,
    "nccl_p2p_bus_bandwidth_gbs": m.NCCL_BUS,
    "nccl_algorithm_bandwidth_gbs": m.NCCL_ALGORITHM,
}
# Those whose bandwidth the plugin computes. Others share one value of the label, so that jobs cannot create series.
OPERATIONS = frozenset(
    ("AllGather", "AllGatherV", "AllReduce", "Broadcast", "Recv", "Reduce", "ReduceScatter", "Send", "SendRecv")
)
SIZE = re.compile(r"([0-9]{1,4}(?:\.[0-9]{2})?)(?:-[0-9]{1,4})?([KMGT]?)B")
MEBIBYTES = {"": 2**-20, "K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}
# The upper end of each class of message sizes in MiB. No range of sizes that the plugin writes crosses one.
SIZE_CLASSES = ((1.0, "0-1MiB"), (16.0, "1-16MiB"), (256.0, "16-256MiB"), (inf, "256MiB+"))


def bandwidths(content: bytes) -> tuple[Mapping[Key, float], str]:
    """Return the bandwidths in a file in bytes/s, and why its first wrong line is left out; empty if there is none.

    Lines with the same operation, size class and scope are averaged, by the geometric mean as the plugin does.
    """
    groups: dict[Key, list[float]] = {}
    wrong = ""
    complete = content.decode("utf-8", "replace").rpartition("\n")[0]  # the plugin may be writing the last line
    for number, line in enumerate(complete.split("\n"), 1):
        if line.partition("{")[0] not in FAMILIES:
            continue
        try:
            key, value = _sample(line)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:  # the parser trusts a line
            wrong = wrong or f"line {number} is left out: {printable(str(error), 100)}"
            continue
        if value:
            groups.setdefault(key, []).append(value)
    return {key: float(round(geometric_mean(values))) for key, values in groups.items()}, wrong


def _sample(line: str) -> tuple[Key, float]:
    """Return what a line says, in bytes/s. Raises ValueError or whatever the parser does."""
    if len(line) > LONGEST_LINE:
        raise ValueError(f"longer than {LONGEST_LINE} characters")
    (sample,) = (sample for family in text_string_to_metric_families(line) for sample in family.samples)
    metric, labels, value = FAMILIES[sample.name], sample.labels, float(sample.value) * GIGABYTES
    if not metric.in_range(value):
        raise ValueError(f"{sample.value:g} GB/s is no bandwidth")
    operation, nodes = labels.get("collective", labels.get("p2p_operation")), labels.get("n_nodes", "")
    if not operation or not nodes.isdecimal():
        raise ValueError("no operation, or no number of nodes")
    key = (
        ("operation", operation if operation in OPERATIONS else "other"),
        ("message_size", _size_class(labels.get("message_size", ""))),
        ("scope", "intra_node" if int(nodes) == 1 else "inter_node"),
    )
    return (metric, key), value


def _size_class(text: str) -> str:
    size = SIZE.fullmatch(text)
    if size is None:
        raise ValueError(f"message_size {text!r} is not a size such as 4-5GB")
    mebibytes = float(size[1]) * MEBIBYTES[size[2]]
    return next(name for end, name in SIZE_CLASSES if mebibytes < end)
