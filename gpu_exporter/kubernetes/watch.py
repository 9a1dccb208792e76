"""Keeps a copy of a list of the API server: lists it every few minutes, and watches it for changes in between."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from gpu_exporter.kubernetes import limits
from gpu_exporter.kubernetes.client import Api
from gpu_exporter.kubernetes.objects import Object, WatchEvent
from gpu_exporter.model.lookup import LONGEST_WAIT, Incomplete, Lookup, LookupFailed

T = TypeVar("T")

# A watch lasts about this long (seconds). Then the list is read again: a server that was restored from a backup has
# lower versions than before, and would report none of its changes to a watch that continues at a higher one.
WATCH_SECONDS = 300.0
# Nodes that started together do not stay together.
JITTER = 0.2
FIRST_WAIT = 0.5
LONGEST_RETRY_AFTER = 60.0

Followed = Mapping[str, T]


class ListWatch(threading.Thread, Generic[T]):
    """Keeps the result of `read` for each object, by namespace and name, without those for which it returns None.

    Where `read` raises Incomplete, its `rest` is kept, and the drop is counted. `path` may ask the server where the
    list is. After every failure it relists; at once if the version of its watch is too old (410 Gone).
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
        # Whether `_values` is a whole list of the server, however old.
        self._listed = False
        self._dropped: Incomplete | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        wait, relisted = FIRST_WAIT, False
        while not self._stopping.is_set():
            try:
                self._follow()
                wait, relisted = FIRST_WAIT, False
            except LookupFailed as error:
                if error.reason == "gone" and self.lookup.up and not relisted:
                    self.lookup.errors[error.reason] += 1
                    relisted = True
                    continue
                wait = min(2 * wait, LONGEST_WAIT)
                self.lookup.fail(error, self._values.copy() if self._listed else None)
                self._stopping.wait(min(error.retry_after, LONGEST_RETRY_AFTER))
            except Exception:  # noqa: BLE001 - fail_unexpectedly logs it with its traceback
                self.lookup.fail_unexpectedly()
                wait = LONGEST_WAIT
            self._stopping.wait(wait * random.uniform(0.5, 1.0))
        self._api.close()

    def _follow(self) -> None:
        self._listed = False
        path = self._path(self._api)
        items, version = self._api.list_objects(path, **self._query)
        self._values = {}
        for item in items:
            self._keep(item)
        self._listed = True
        seconds = self._seconds * random.uniform(1 - JITTER, 1 + JITTER)
        for event in self._api.watch(path, seconds, resourceVersion=version, **self._query):
            if event is not None:
                self._take(event)
            self._publish()

    def _take(self, event: WatchEvent) -> None:
        item = event["object"]
        if event["type"] == "DELETED":
            self._values.pop(_key(item), None)
        elif event["type"] != "BOOKMARK":
            self._keep(item)

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
