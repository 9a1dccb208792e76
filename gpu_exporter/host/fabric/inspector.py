"""The thread that reads the files of NCCL's Inspector plugin every 15 s. Jobs write them, with any content.

In its Prometheus mode, the plugin writes bandwidths by operation, message size and scope. Source: `inspector_prom.cc`
of NCCL 2.30.7 (`plugins/profiler/inspector/`) and 2.29.3 (`ext-profiler/inspector/`). NCCL 2.30 writes the geometric
mean of the operations since the last file, by range of sizes such as `4-5GB`; NCCL 2.29 the last collective of each
communicator, with a size such as `4.00GB`. Sizes are powers of 1024, and a GB/s is 1e9 bytes/s. A bandwidth of 0 means
that the plugin does not compute it, as for AlltoAll.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import geometric_mean

from prometheus_client.parser import text_string_to_metric_families

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host.threads import RowThread
from gpu_exporter.io.decoding import printable
from gpu_exporter.io.file_access import open_unlinked
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Labels, Metric
from gpu_exporter.model.snapshot import Row

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


log = logging.getLogger(__name__)

PERIOD_SECONDS = 15.0
# The plugin rewrites a file every 30 s or less often, and deletes it when the job ends normally.
STALE_SECONDS = 90.0
# The plugin writes line by line: a file that was written just now may be incomplete.
WRITING_SECONDS = 1.0
# About 600 lines with a bandwidth; parsing takes up to 40 ms of CPU time.
LARGEST = 256 << 10


@dataclass(frozen=True, slots=True)
class InspectorContent:
    """What a file said that was `written` at this Unix time, and what is wrong with it."""

    written: float
    size: int
    values: Mapping[Key, float]
    problem: str = ""


class InspectorWatch(RowThread):
    """Keeps the bandwidths of the files up to date. A file is found by the UUID of its GPU, which is in its name."""

    def __init__(self, directory: Path) -> None:
        super().__init__("nccl-inspector", "NCCL Inspector", PERIOD_SECONDS)
        self._directory = directory
        self._contents: dict[str, InspectorContent] = {}
        self._complained: Collection[Path] = ()

    def read(self, now: float) -> Sequence[Row]:
        """Return the bandwidths of all files that were written lately. A problem of a file is logged once."""
        problems: dict[Path, str] = {}
        gpus = [gpu for gpu in self._gpus if gpu.uuid]
        read = {gpu.uuid: self._content(gpu, problems) for gpu in gpus} if self._is_accessible(problems) else {}
        self._contents = {uuid: content for uuid, content in read.items() if content}
        for path, problem in problems.items():
            if path not in self._complained:
                log.warning("NCCL Inspector: %s: %s", path, problem)
        self._complained = problems.keys()
        return [
            Row(metric, gpu, value, labels)
            for gpu in gpus
            if gpu.uuid in self._contents
            for (metric, labels), value in self._contents[gpu.uuid].values.items()
        ]

    def path(self, gpu: Gpu) -> Path:
        """Return the file of a GPU. CUDA_VISIBLE_DEVICES does not change its name."""
        return self._directory / f"nccl_inspector_metrics_{gpu.uuid.removeprefix('GPU-')}.prom"

    def _is_accessible(self, problems: dict[Path, str]) -> bool:
        try:
            os.stat(self._directory / ".")
        except OSError as error:
            problems[self._directory] = f"{error.strerror}: create it so that this user may enter it"
        return not problems

    def _content(self, gpu: Gpu, problems: dict[Path, str]) -> InspectorContent | None:
        path = self.path(gpu)
        try:
            content = _read(path, self._contents.get(gpu.uuid), time.time())
        except FileNotFoundError:  # no job with the plugin runs on this GPU
            return None
        except OSError as error:
            problems[path] = f"{error.strerror}: replace it by a regular file that this user can read"
            return None
        if content and content.problem:
            problems[path] = content.problem
        return content


def _read(path: Path, before: InspectorContent | None, now: float) -> InspectorContent | None:
    """Return the content of a file at this Unix time; `before` while it is unchanged or being written, None if stale.

    Raises OSError, also for symbolic links.
    """
    with open_unlinked(path) as file:
        about = os.fstat(file.fileno())
        changed = before is None or (before.written, before.size) != (about.st_mtime, about.st_size)
        if changed and WRITING_SECONDS <= now - about.st_mtime <= STALE_SECONDS:
            return _parsed(file.read(LARGEST + 1), about)
    return before if before and now - before.written <= STALE_SECONDS else None


def _parsed(data: bytes, about: os.stat_result) -> InspectorContent:
    if len(data) > LARGEST:
        values: Mapping[Key, float] = {}
        problem = f"larger than {LARGEST >> 10} KiB: raise NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES of the job"
    else:
        values, problem = bandwidths(data)
        if problem:
            problem += "; use the plugin of NCCL 2.29.3 to 2.30, and no quotation marks in names of communicators"
    return InspectorContent(about.st_mtime, about.st_size, values, problem)
