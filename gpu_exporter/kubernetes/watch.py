"""Follows a list of the API server: listed once, then told what changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from gpu_exporter.kubernetes.client import Api, Object
from gpu_exporter.model.lookup import LONGEST_WAIT, Lookup, LookupFailed, brief

T = TypeVar("T")

# After this time a watch is begun again, which also finds out about a server that is silent because it is gone.
WATCH_SECONDS = 60.0
FIRST_WAIT = 0.5
# After these the watch goes on where it was; after others it might stumble over the same event for ever.
AWAY = frozenset({"unavailable", "timeout", "tls", "no_token", "unauthorized", "too_many_requests"})

Followed = Mapping[str, T]


class Watch(threading.Thread, Generic[T]):
    """Keeps what `read` makes of each object, by namespace and name; what `read` makes nothing of is left out.

    `path` may ask the server where the list is. After a server that was away the watch goes on where it was; a version
    that is too old (410 Gone), or an event that can't be read, is listed anew.
    """

    def __init__(
        self,
        told: Lookup[Followed[T]],
        api: Api,
        path: Callable[[Api], str],
        read: Callable[[Object], T | None],
        query: Mapping[str, str],
        seconds: float = WATCH_SECONDS,
    ) -> None:
        super().__init__(name=f"attribution-{told.source}", daemon=True)
        self.told = told
        self._api, self._path, self._read, self._query, self._seconds = api, path, read, query, seconds
        self._known: dict[str, T] = {}
        self._version = ""
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
                self.told.fail(error)
            except Exception:  # noqa: BLE001 - it is logged there, with its place
                self.told.broke()
                self._version = ""
                wait = LONGEST_WAIT
            self._stopping.wait(wait)

    def _follow(self) -> None:
        path = self._path(self._api)
        if not self._version:
            items, version = self._api.pages(path, **self._query)
            self._known = {}
            for item in items:
                self._keep(item)
            self._version = version
            self._publish()
        for event in self._api.watch(path, self._seconds, resourceVersion=self._version, **self._query):
            if event:
                self._take(event)
            self._publish()
        self.told.alive()

    def _take(self, event: Object) -> None:
        found = event.get("object")
        if not isinstance(found, dict):
            raise LookupFailed("malformed", "API server: an event without an object")
        if event.get("type") == "ERROR":
            code = found.get("code")
            why = brief(found.get("message"))
            raise LookupFailed("gone" if code == 410 else "refused", f"API server: watch ended: {why}")
        if event.get("type") == "DELETED":
            self._known.pop(_key(found), None)
        elif event.get("type") != "BOOKMARK":
            self._keep(found)
        self._version = str((found.get("metadata") or {}).get("resourceVersion") or self._version)

    def _keep(self, item: Object) -> None:
        found = self._read(item)
        if found is None:
            self._known.pop(_key(item), None)
        else:
            self._known[_key(item)] = found

    def _publish(self) -> None:
        self.told.tell(self._known.copy())

    def stop(self) -> None:
        """End soon; who is being asked is not waited for."""
        self._stopping.set()


def _key(item: Object) -> str:
    metadata = item.get("metadata") or {}
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
