"""The file of fields in force: read at the start, on SIGHUP, on POST /-/reload, and when it changed on disk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.selection import Selection, everything
from gpu_exporter.config import Config
from gpu_exporter.inputs import file_content
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import Metric

if TYPE_CHECKING:
    from gpu_exporter.exposition.fields_file import FieldsFile

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 1.0


class Fields:
    """What is shown. Raises GpuExporterError if there is a file and it is wrong from the start.

    A content that is wrong later leaves what was in force before; the log and `told` say so.
    """

    def __init__(self, config: Config) -> None:
        self._file = _file(config) if config.collectors else None
        self.selection = everything(config.metrics, processes=config.processes, schema=config.schema)
        self.takers: Sequence[Callable[[Selection], None]] = ()
        self._asked: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        self._seen: bytes | str = b""
        self._settling: bytes | str = b""
        self._ok, self._at = True, 0.0
        self.reload()

    def reload_state(self) -> Sequence[tuple[Metric, float]]:
        """How the last reading went, for the page; nothing without a file."""
        return ((m.RELOAD_OK, self._ok), (m.RELOAD_AT, round(self._at, 3))) if self._file else ()

    def ask(self) -> None:
        """Have the file read anew soon. May be called by a signal's handler."""
        self._asked.put(None)

    def run(self, stop: threading.Event) -> None:
        """Follow the file until `stop`."""
        while not stop.is_set():
            try:
                self._asked.get(timeout=FOLLOW_SECONDS)
            except Empty:
                self._follow()
                continue
            while not self._asked.empty():  # many signals are one
                self._asked.get()
            if self._file is None:
                log.info(
                    "SIGHUP: there is no file of fields (--collectors) to read anew; --web.config.file is followed"
                )
            else:
                self._try()

    def _follow(self) -> None:
        """Take over a change once the file has stayed the same for one look: whoever writes it may not be done."""
        if self._file is None:
            return
        now = file_content(self._file.path)
        if now != self._seen and now == self._settling:
            self._try()
        self._settling = now

    def _try(self) -> None:
        try:
            self.reload()
        except GpuExporterError as error:
            log.error("%s; what was in force before still is", error)
        except Exception:
            log.exception("file of fields: unexpected error, please report it")

    def reload(self) -> None:
        """Take over what is in the file now. Raises GpuExporterError and stays as it is if that is wrong."""
        if self._file is None:
            return
        with self._lock:
            self._seen = now = file_content(self._file.path)
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
            for take in self.takers:
                take(selection)
            self._ok, self._at = True, time.time()
            shown = sum(name.startswith("DCGM_") for name in selection.families)
            log.info("%s is in force: %d classic families, %d labels", self._file.path, shown, len(selection.labels))


def _file(config: Config) -> FieldsFile:
    from gpu_exporter.exposition.fields_file import FieldsFile  # nobody else needs it, and DCGM's names that it brings

    assert config.collectors is not None
    return FieldsFile(config.collectors, config.metrics, processes=config.processes, schema=config.schema)
