"""Logging as lines of text, or of JSON with the keys of Go's slog, as dcgm-exporter writes them."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone


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


def configure(level: str, form: str) -> None:
    """Log to stderr from this level on, as text or json."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if form == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_Json())
