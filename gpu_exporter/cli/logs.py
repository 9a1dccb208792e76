"""Logging as lines of text, or of JSON with the keys of Go's slog, as dcgm-exporter writes them."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from datetime import datetime, timezone
from typing import Any, TextIO

from gpu_exporter.app.log_queue import LogQueue
from gpu_exporter.cli.group import LONGEST_MESSAGE
from gpu_exporter.io.decoding import printable

log = logging.getLogger(__name__)
# What the remediation controller decides.
decisions = logging.getLogger("gpu_exporter.remediation.decisions")


class _TextFormatter(logging.Formatter):
    """A message is one line, whatever its arguments contain; a traceback has several."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message, LONGEST_MESSAGE)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return "\n".join(printable(line, LONGEST_MESSAGE) for line in super().formatException(ei).split("\n"))


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def formatter(form: str) -> logging.Formatter:
    """Return what makes text or json of log records."""
    return _Json() if form == "json" else _TextFormatter("%(asctime)s %(levelname)s %(message)s")


def configure(level: str, form: str) -> LogQueue:
    """Log to stderr from this level on, as text or json, through the queue that is returned.

    Warnings and errors that no thread catches go the same way: Python would print them, and wait until that is read.
    """
    lines = LogQueue(_descriptor(sys.stderr))
    lines.setFormatter(formatter(form))
    logging.basicConfig(level=level.upper(), handlers=[lines])
    logging.captureWarnings(True)
    threading.excepthook = _uncaught
    sys.unraisablehook = _unraisable
    return lines


def write_decisions() -> LogQueue:
    """Write what is logged as a decision to stdout, one JSON object per line, through the queue that is returned."""
    lines = LogQueue(_descriptor(sys.stdout), lost='{"dropped": %d}')
    lines.setFormatter(logging.Formatter("%(message)s"))
    decisions.addHandler(lines)
    decisions.setLevel(logging.INFO)
    decisions.propagate = False
    return lines


def _descriptor(stream: TextIO | None) -> int:
    """Return the file descriptor of stdout or stderr, which may be closed."""
    return stream.fileno() if stream else os.open(os.devnull, os.O_WRONLY)


def _uncaught(args: threading.ExceptHookArgs) -> None:
    name = args.thread.name if args.thread else "?"
    error = (args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
    log.error("thread %s: unexpected error, please report it", name, exc_info=error)


def _unraisable(args: sys.UnraisableHookArgs) -> None:
    error = (args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
    log.error("%s: %r", args.err_msg or "Exception ignored in", args.object, exc_info=error)
