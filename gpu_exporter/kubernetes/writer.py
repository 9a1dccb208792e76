"""A client of the API server that also writes. A write is never repeated by itself.

A limit on its rate keeps a bug of the client from flooding the API server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gpu_exporter.kubernetes import limits
from gpu_exporter.kubernetes.client import GET, PATIENCE, TOTAL_TIMEOUT_FACTOR, Api, ListContent, decoded


class RequestLimit:
    """A token bucket of `burst` requests that refills at `per_second`. For one thread.

    `wait` blocks for so many seconds; `now` are monotonic seconds.
    """

    def __init__(
        self,
        per_second: float,
        burst: int,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate, self._burst, self._now, self._wait = per_second, burst, now, wait
        self._tokens, self._at = float(burst), now()

    def take(self) -> None:
        """Take one token; wait until there is one."""
        now = self._now()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1
        self._at = now
        if self._tokens < 0:
            self._wait(-self._tokens / self._rate)


T = TypeVar("T")

PER_SECOND, BURST = 5.0, 10
JSON_PATCH = "application/json-patch+json"
JSON = "application/json"
# The author of what this client writes: in `metadata.managedFields`, and of Events.
FIELD_MANAGER = "gpu-exporter-remediation"

Operation = Mapping[str, Any]


class KubernetesWriter(Api):
    """An `Api` whose requests are limited in rate, and that writes.

    If the answer of a write is lost, LookupFailed is raised although the write may have been carried out: read the
    object again. With `dry_run` the server checks everything, rights and admission included, and stores nothing.
    """

    def __init__(
        self, host: str, port: int, account: Path, patience: float = PATIENCE, rate: RequestLimit | None = None
    ) -> None:
        super().__init__(host, port, account, patience)
        self._rate = rate or RequestLimit(PER_SECOND, BURST)

    def patch(self, path: str, operations: Sequence[Operation], kind: type[T], *, dry_run: bool = False) -> T:
        """Apply a JSON patch; return the new object. Raises LookupFailed: `conflict` if a `test` of it fails."""
        return self._write(ListContent("PATCH", json.dumps(operations).encode(), JSON_PATCH), path, kind, dry_run)

    def create(self, path: str, item: Mapping[str, Any], kind: type[T], *, dry_run: bool = False) -> T:
        """Create an object; return it. Raises LookupFailed: `conflict` if there is one of this name."""
        return self._write(ListContent("POST", json.dumps(item).encode(), JSON), path, kind, dry_run)

    def _body(
        self, path: str, query: Mapping[str, str], most: int, deadline: float, content: ListContent = GET
    ) -> bytes:
        self._rate.take()
        return super()._body(path, query, most, deadline, content)

    def _write(self, content: ListContent, path: str, kind: type[T], dry_run: bool) -> T:
        query = {"fieldManager": FIELD_MANAGER, **({"dryRun": "All"} if dry_run else {})}
        deadline = time.monotonic() + TOTAL_TIMEOUT_FACTOR * self._patience
        return decoded(self._body(path, query, limits.MOST_EVENT_BYTES, deadline, content), kind, path)
