"""The file of fields in use: loaded at the start, on SIGHUP, on POST /-/reload, and when it changes on disk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.selection import Selection, everything
from gpu_exporter.io.file_access import FileWorker
from gpu_exporter.io.user_text import file_content
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import Metric, MetricSet, Schema
from gpu_exporter.model.profile_reason import ProfileReason

if TYPE_CHECKING:
    from gpu_exporter.pipeline.fields_file import FieldsFile

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class FieldsSettings:
    """What decides which metrics are selected, named as in `Config`."""

    collectors: Path | None
    metrics: MetricSet
    schema: Schema
    processes: bool
    host_evidence: bool
    job_socket: Path | None
    profile: frozenset[ProfileReason]

    @property
    def needs_processes(self) -> bool:
        """Whether jobs or profiles are matched with the processes on each GPU, which need not be exposed."""
        return self.job_socket is not None or bool(self.profile)


class Fields:
    """The selection of metrics in use. The constructor raises GpuExporterError if the file of fields is faulty.

    If the file becomes faulty later, the previous selection stays in use. The log and `reload_state` say so.
    """

    def __init__(self, settings: FieldsSettings) -> None:
        self._file = _file(settings) if settings.collectors else None
        self.selection = everything(
            settings.metrics,
            processes=settings.processes,
            host=settings.host_evidence,
            jobs=settings.needs_processes,
            schema=settings.schema,
        )
        self.subscribers: Sequence[Callable[[Selection], None]] = ()
        self._asked: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        self._worker = FileWorker("fields-file")
        self._last: bytes | str = b""
        self._settling: bytes | str = b""
        self._ok, self._at = True, 0.0
        self.reload()

    def reload_state(self) -> Sequence[tuple[Metric, float]]:
        """Return the metrics of the last reload; none without a file."""
        return ((m.RELOAD_OK, self._ok), (m.RELOAD_AT, round(self._at, 3))) if self._file else ()

    def request_reload(self) -> None:
        """Request a reload. Safe to call from any thread."""
        self._asked.put(None)

    def run(self, stop: threading.Event) -> None:
        """Follow the file until `stop`."""
        while not stop.is_set():
            try:
                self._asked.get(timeout=FOLLOW_SECONDS if self._file else None)
            except Empty:
                self._follow()
                continue
            while not self._asked.empty():  # several requests lead to one reload
                self._asked.get()
            if self._file is None:
                log.info("SIGHUP: nothing to reload without --collectors; --web.config.file reloads by itself")
            else:
                self._try()

    def _follow(self) -> None:
        """Reload a changed file once two successive reads agree, because it may still be being written."""
        if self._file is None:
            return
        now = self._content(self._file.path)
        if now != self._last and now == self._settling:
            self._try()
        self._settling = now

    def _content(self, path: Path) -> bytes | str:
        """Return the content of the file, or why it cannot be read."""
        try:
            return self._worker.call(lambda: file_content(path))
        except OSError as error:
            return error.strerror or str(error)

    def _try(self) -> None:
        try:
            self.reload()
        except GpuExporterError as error:
            log.error("%s; the previous one stays in use", error)
        except Exception:
            log.exception("file of fields: unexpected error, please report it")

    def reload(self) -> None:
        """Load the file. If it is faulty, raise GpuExporterError and keep the previous selection."""
        if self._file is None:
            return
        with self._lock:
            self._last = now = self._content(self._file.path)
            try:
                if isinstance(now, str):
                    raise GpuExporterError(f"file of fields {self._file.path}: {now}")
                selection, warnings = self._file.select(now)
            except GpuExporterError:
                self._ok = False
                raise
            for warning in warnings:
                log.warning(warning)
            self.selection = selection
            for take in self.subscribers:
                take(selection)
            self._ok, self._at = True, time.time()
            shown = sum(name.startswith("DCGM_") for name in selection.families)
            labels = len(selection.labels) + len(selection.value_labels)
            log.info("file of fields %s: %d classic families, %d labels", self._file.path, shown, labels)


def _file(settings: FieldsSettings) -> FieldsFile:
    from gpu_exporter.pipeline.fields_file import FieldsFile

    assert settings.collectors is not None
    return FieldsFile(
        settings.collectors,
        settings.metrics,
        processes=settings.processes,
        jobs=settings.needs_processes,
        schema=settings.schema,
    )
