"""The files of the live page: loaded once, sent compressed, cached by the hash of their content."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
# Each is a path below /static. A test compares them with the folder.
NAMES = (
    "charts.js",
    "connection.js",
    "details.js",
    "dom.js",
    "drawing.js",
    "findings.js",
    "format.js",
    "icon.svg",
    "jobs.js",
    "nodes.js",
    "page.css",
    "page.js",
    "processes.js",
    "profiles.js",
    "rows.js",
    "summary.js",
    "timeline.js",
    "uPlot.LICENSE.txt",
    "uPlot.iife.min.js",
    "uPlot.min.css",
)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, compressed by gzip. `etag` changes with its content."""

    zipped: bytes
    etag: str
    content_type: str

    @property
    def plain(self) -> bytes:
        """The content, for the few clients that do not accept gzip."""
        return gzip.decompress(self.zipped)


def load() -> Mapping[str, Asset]:
    """Read all files."""
    return {name: _asset(name, (FOLDER / name).read_bytes()) for name in NAMES}


def template(name: str) -> str:
    """Return a page with placeholders."""
    return (FOLDER.parent / name).read_text("utf-8")


def _asset(name: str, content: bytes) -> Asset:
    digest = hashlib.sha256(content).hexdigest()[:32]
    return Asset(gzip.compress(content, mtime=0), f'"{digest}"', TYPES[Path(name).suffix])
