"""A client of the API server that also writes, with a limit on its rate. A write is never repeated by itself."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gpu_exporter.kubernetes import limits
from gpu_exporter.kubernetes.answers import decoded
from gpu_exporter.kubernetes.client import GET, PATIENCE, TOTAL_TIMEOUT_FACTOR, Api, Content
from gpu_exporter.kubernetes.rate_limit import RateLimit

T = TypeVar("T")

PER_SECOND, BURST = 5.0, 10
JSON_PATCH = "application/json-patch+json"
JSON = "application/json"
# The owner of what this client writes, in `metadata.managedFields`.
FIELD_MANAGER = "gpu-exporter-remediation"

Operation = Mapping[str, Any]


class Writer(Api):
    """An `Api` whose requests are limited in rate, and that writes.

    If the answer of a write is lost, LookupFailed is raised although the write may have been carried out: read the
    object again. With `dry_run` the server checks everything, rights and admission included, and stores nothing.
    """

    def __init__(
        self, host: str, port: int, account: Path, patience: float = PATIENCE, rate: RateLimit | None = None
    ) -> None:
        super().__init__(host, port, account, patience)
        self._rate = rate or RateLimit(PER_SECOND, BURST)

    def patch(self, path: str, operations: Sequence[Operation], kind: type[T], *, dry_run: bool = False) -> T:
        """Apply a JSON patch; return the new object. Raises LookupFailed: `conflict` if a `test` of it fails."""
        return self._write(Content("PATCH", json.dumps(operations).encode(), JSON_PATCH), path, kind, dry_run)

    def create(self, path: str, item: Mapping[str, Any], kind: type[T], *, dry_run: bool = False) -> T:
        """Create an object; return it. Raises LookupFailed: `conflict` if there is one of this name."""
        return self._write(Content("POST", json.dumps(item).encode(), JSON), path, kind, dry_run)

    def _body(self, path: str, query: Mapping[str, str], most: int, deadline: float, content: Content = GET) -> bytes:
        self._rate.take()
        return super()._body(path, query, most, deadline, content)

    def _write(self, content: Content, path: str, kind: type[T], dry_run: bool) -> T:
        query = {"fieldManager": FIELD_MANAGER, **({"dryRun": "All"} if dry_run else {})}
        deadline = time.monotonic() + TOTAL_TIMEOUT_FACTOR * self._patience
        return decoded(self._body(path, query, limits.MOST_EVENT_BYTES, deadline, content), kind, path)
