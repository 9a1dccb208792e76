"""Keeps a copy of a list of the API server: lists it once, then watches it for changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from gpu_exporter.kubernetes import limits
from gpu_exporter.kubernetes.client import Api
from gpu_exporter.kubernetes.objects import Event, Object
from gpu_exporter.model.lookup import LONGEST_WAIT, Incomplete, Lookup, LookupFailed

T = TypeVar("T")

# A watch is renewed after this time (seconds), which also detects a server that no longer exists.
WATCH_SECONDS = 60.0
FIRST_WAIT = 0.5
# After these failures the watch resumes at its version; after others it relists, so that no event can block it.
AWAY = frozenset({"unavailable", "timeout", "tls", "no_token", "unauthorized", "too_many_requests"})

Followed = Mapping[str, T]


class Watch(threading.Thread, Generic[T]):
    """Keeps the result of `read` for each object, by namespace and name, without those for which it returns None.

    Where `read` raises Incomplete, its `rest` is kept, and the drop is counted. `path` may ask the server where the
    list is. After the server was unreachable, the watch resumes at its version; if that is too old (410 Gone), or an
    event is malformed, it relists.
    """

    def __init__(
        self,
        lookup: Lookup[Followed[T]],
        api: Api,
        path: Callable[[Api], str],
        read: Callable[[Object], T | None],
        query: Mapping[str, str],
        seconds: float = WATCH_SECONDS,
    ) -> None:
        super().__init__(name=f"attribution-{lookup.source}", daemon=True)
        self.lookup = lookup
        self._api, self._path, self._read, self._query, self._seconds = api, path, read, query, seconds
        self._values: dict[str, T] = {}
        self._version = ""
        self._dropped: Incomplete | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        wait = FIRST_WAIT
        while not self._stopping.is_set():
            try:
                self._follow()
                wait = FIRST_WAIT
            except LookupFailed as error:
                wait = min(2 * wait, LONGEST_WAIT)
                if error.reason not in AWAY:
                    self._version = ""
                self.lookup.fail(error)
            except Exception:  # noqa: BLE001 - fail_unexpectedly logs it with its traceback
                self.lookup.fail_unexpectedly()
                self._version = ""
                wait = LONGEST_WAIT
            self._stopping.wait(wait)

    def _follow(self) -> None:
        path = self._path(self._api)
        if not self._version:
            items, version = self._api.list_objects(path, **self._query)
            self._values = {}
            for item in items:
                self._keep(item)
            self._version = version
            self._publish()
        for event in self._api.watch(path, self._seconds, resourceVersion=self._version, **self._query):
            if event is not None:
                self._take(event)
            self._publish()
        self.lookup.confirm()

    def _take(self, event: Event) -> None:
        item = event["object"]
        if event["type"] == "DELETED":
            self._values.pop(_key(item), None)
        elif event["type"] != "BOOKMARK":
            self._keep(item)
        self._version = item.get("metadata", {}).get("resourceVersion") or self._version

    def _keep(self, item: Object) -> None:
        key = _key(item)
        try:
            limits.check_length("the name", key, limits.LONGEST_NAMESPACE + 1 + limits.LONGEST_POD)
            value = self._read(item)
        except Incomplete as error:
            value, self._dropped = error.rest, error
        if value is None:
            self._values.pop(key, None)
        elif key in self._values or len(self._values) < limits.MOST_OBJECTS:
            self._values[key] = value
        else:
            why = f"API server: more than {limits.MOST_OBJECTS} objects: the others are left out"
            self._dropped = Incomplete("too_many", why)

    def _publish(self) -> None:
        self.lookup.answer(self._values.copy())
        if self._dropped:
            self.lookup.drop(self._dropped)
            self._dropped = None

    def stop(self) -> None:
        """Request the end; does not wait for a request in flight."""
        self._stopping.set()


def _key(item: Object) -> str:
    metadata = item.get("metadata", {})
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
