"""The thread that reads the files of NCCL's Inspector plugin every 15 s. Jobs write them, with any content."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_exporter.host.fabric.inspector_file import Key, bandwidths
from gpu_exporter.host.row_thread import RowThread
from gpu_exporter.io.file_access import open_regular
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.snapshot import Row

log = logging.getLogger(__name__)

PERIOD_SECONDS = 15.0
# The plugin rewrites a file every 30 s or less often, and deletes it when the job ends normally.
STALE_SECONDS = 90.0
# The plugin writes line by line: a file that was written just now may be incomplete.
WRITING_SECONDS = 1.0
# About 600 lines with a bandwidth; parsing takes up to 40 ms of CPU time.
LARGEST = 256 << 10


@dataclass(frozen=True, slots=True)
class Content:
    """What a file said that was `written` at this Unix time, and what is wrong with it."""

    written: float
    size: int
    values: Mapping[Key, float]
    problem: str = ""


class InspectorWatch(RowThread):
    """Keeps the bandwidths of the files up to date. A file is found by the UUID of its GPU, which is in its name."""

    def __init__(self, directory: Path, period: float = PERIOD_SECONDS) -> None:
        super().__init__("nccl-inspector", "NCCL Inspector", period)
        self._directory = directory
        self._contents: dict[str, Content] = {}
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

    def _content(self, gpu: Gpu, problems: dict[Path, str]) -> Content | None:
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


def _read(path: Path, before: Content | None, now: float) -> Content | None:
    """Return the content of a file at this Unix time; `before` while it is unchanged or being written, None if stale.

    Raises OSError, also for symbolic links.
    """
    with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        about = os.fstat(file.fileno())
        changed = before is None or (before.written, before.size) != (about.st_mtime, about.st_size)
        if changed and WRITING_SECONDS <= now - about.st_mtime <= STALE_SECONDS:
            return _parsed(file.read(LARGEST + 1), about)
    return before if before and now - before.written <= STALE_SECONDS else None


def _parsed(data: bytes, about: os.stat_result) -> Content:
    if len(data) > LARGEST:
        values: Mapping[Key, float] = {}
        problem = f"larger than {LARGEST >> 10} KiB: raise NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES of the job"
    else:
        values, problem = bandwidths(data)
        if problem:
            problem += "; use the plugin of NCCL 2.29.3 to 2.30, and no quotation marks in names of communicators"
    return Content(about.st_mtime, about.st_size, values, problem)
