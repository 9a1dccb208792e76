"""One line for each warning and error that is logged without `configure`."""

from __future__ import annotations

import logging


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        text = f"gpu-exporter: {record.getMessage()}" + (f": {type(error).__name__}: {error}" if error else "")
        return " ".join(text.split())


def without_tracebacks() -> None:
    """Print warnings and errors that are logged before, or without, `configure` as one line each."""
    if logging.lastResort:
        logging.lastResort.setFormatter(_OneLine())
