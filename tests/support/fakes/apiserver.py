"""An API server: TLS, bearer token, lists and watches with resource versions, discovery, writes, dry runs."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import trustme

from tests.support.json_patch import PatchFailed, patched

Item = dict[str, Any]
PODS = "/api/v1/pods"
CORE, POLICY = "/api/v1", "/apis/policy"
GROUP = "/apis/resource.k8s.io"
# Collections whose objects can be read one by one.
SINGLE = ("/nodes", "/leases")


def pod_object(
    name: str,
    uid: str,
    labels: Mapping[str, str] | None = None,
    *,
    phase: str = "Running",
    **metadata: Any,
) -> Item:
    """Return a pod of the node `node` in the server's format."""
    return {
        "metadata": {"name": name, "namespace": "team", "uid": uid, "labels": dict(labels or {}), **metadata},
        "spec": {"nodeName": "node"},
        "status": {"phase": phase},
    }


def slice_object(
    name: str,
    devices: Mapping[str, Mapping[str, str]],
    *,
    generation: int = 1,
    version: str = "v1",
    driver: str = "gpu.nvidia.com",
) -> Item:
    """Return a ResourceSlice of the pool `node`, in the format of this API version."""
    listed = []
    for device, attributes in devices.items():
        known = {"attributes": {key: {"string": value} for key, value in attributes.items()}}
        listed.append({"name": device, **({"basic": known} if version == "v1beta1" else known)})
    pool = {"name": "node", "generation": generation, "resourceSliceCount": 1}
    return {"metadata": {"name": name}, "spec": {"driver": driver, "nodeName": "node", "pool": pool, "devices": listed}}


class FakeApiServer:
    """Serves until `stop`. `account` is the directory of a service account that it accepts.

    `raw` replaces every response; it is sent byte by byte, every `drip` seconds, if that is set. A list at version 0
    comes whole, as from the cache of a real server, unless `page_size` is set. `may_watch` is the verb `watch` of RBAC.
    `written` are the writes: method, path, and whether it was a dry run. Each of `refusals` answers one write instead.
    With `loses_answers`, a write is carried out and its connection closed without an answer. Without `versions`, the
    API group does not exist. `eviction_version` is that of the group policy. `connections` counts the TLS connections.
    """

    def __init__(self, directory: Path, versions: tuple[str, ...] = ("v1", "v1beta2")) -> None:
        self.account = directory / "serviceaccount"
        self.account.mkdir(parents=True)
        ca = trustme.CA()
        ca.cert_pem.write_to_path(str(self.account / "ca.crt"))
        self.token = "first-token"
        self.versions = versions
        self.eviction_version = "v1"
        self.status: int | None = None
        self.raw: bytes | None = None
        self.drip: float | None = None
        self.retry_after: int | None = None
        self.page_size: int | None = None
        self.may_watch = True
        # How many watches have begun.
        self.watches = 0
        self.connections = 0
        self.asked: list[str] = []
        self.epoch = 0
        self.written: list[tuple[str, str, bool]] = []
        self.refusals: list[int] = []
        self.loses_answers = False
        self._changed = threading.Condition()
        self._version = 100
        self._oldest = 0
        self._items: dict[str, dict[str, Item]] = {}
        self._events: list[tuple[int, str, Item]] = []
        self.stopping = False
        handler = type("Handler", (_Handler,), {"server_of": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("127.0.0.1").configure_cert(context)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def token(self) -> str:
        """The token that clients need; setting it writes their file."""
        return self._token

    @token.setter
    def token(self, token: str) -> None:
        self._token = token
        (self.account / "token").write_text(f"{token}\n")

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a pod of its cluster."""
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self._server.server_address[1]),
            "GPU_EXPORTER_KUBERNETES_SERVICE_ACCOUNT": str(self.account),
            "GPU_EXPORTER_NODE_NAME": "node",
        }

    def put(self, path: str, item: Item) -> None:
        """Create or change an object."""
        with self._changed:
            items, name = self._items.setdefault(path, {}), item["metadata"]["name"]
            kind = "MODIFIED" if name in items else "ADDED"
            self._version += 1
            item["metadata"]["resourceVersion"] = str(self._version)
            items[name] = item
            self._events.append((self._version, path, {"type": kind, "object": json.loads(json.dumps(item))}))
            self._changed.notify_all()

    def item(self, path: str) -> Item | None:
        """Return a copy of one object by its own path."""
        collection, _, name = path.rpartition("/")
        with self._changed:
            found = self._items.get(collection, {}).get(name)
            copied: Item | None = json.loads(json.dumps(found))
            return copied

    def write(self, method: str, path: str, body: Any, query: Mapping[str, str]) -> tuple[int, Item]:
        """Carry out a POST, or a PATCH with a JSON patch; return the status and the object, or why not."""
        dry_run, manager = query.get("dryRun") == "All", query["fieldManager"]
        with self._changed:
            self.written.append((method, path, dry_run))
            if self.refusals and not dry_run:
                return self.refusals.pop(0), {"kind": "Status"}
            if path.endswith("/eviction"):
                return self._evict(path.removesuffix("/eviction"), body, dry_run=dry_run)
            path = path.removesuffix("/status")
            collection, name = (path, body["metadata"]["name"]) if method == "POST" else path.rsplit("/", 1)
            before = self._items.get(collection, {}).get(name)
            if method == "POST":
                if before is not None:
                    return 409, {"kind": "Status", "reason": "AlreadyExists"}
                after = json.loads(json.dumps(body))
            elif before is None:
                return 404, {"kind": "Status"}
            else:
                try:
                    after = patched(before, body)
                except PatchFailed as error:
                    return 422, {"kind": "Status", "message": str(error)}
            flag = after.get("spec", {}).get("unschedulable")
            if before is not None and before.get("spec", {}).get("unschedulable") != flag:
                fields: Item = {"f:spec": {"f:unschedulable": {}}} if flag else {}
                after["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": fields}]
            if not dry_run:
                self.put(collection, after)
            return 201 if method == "POST" else 200, after

    def _evict(self, path: str, body: Any, *, dry_run: bool) -> tuple[int, Item]:
        """Delete a pod at once if it is as in the preconditions, and the disruption budgets allow it."""
        collection, _, name = path.rpartition("/")
        pod = self._items.get(collection, {}).get(name)
        assert body["apiVersion"] == f"policy/{self.eviction_version}"
        if pod is None:
            return 404, {"kind": "Status"}
        wanted = body["deleteOptions"]["preconditions"]
        if wanted != {key: pod["metadata"][key] for key in ("uid", "resourceVersion")}:
            return 409, {"kind": "Status"}
        namespace = collection.split("/")[4]
        budgets = self._items.get(f"{POLICY}/{self.eviction_version}/namespaces/{namespace}/poddisruptionbudgets", {})
        labels = pod["metadata"].get("labels", {}).items()
        chosen = [one for one in budgets.values() if one["spec"]["selector"]["matchLabels"].items() <= labels]
        if any(one["status"]["disruptionsAllowed"] < 1 for one in chosen):
            return 429, {"kind": "Status", "message": "Cannot evict pod as it would violate its disruption budget."}
        if not dry_run:
            for one in chosen:
                one["status"]["disruptionsAllowed"] -= 1
            self.delete(collection, name)
        return 201, {"kind": "Status"}

    def delete(self, path: str, name: str) -> None:
        """Delete an object."""
        with self._changed:
            self._version += 1
            item = self._items[path].pop(name)
            item["metadata"]["resourceVersion"] = str(self._version)
            self._events.append((self._version, path, {"type": "DELETED", "object": item}))
            self._changed.notify_all()

    def forget(self) -> None:
        """Expire all events and end watches, so that clients must list again."""
        with self._changed:
            self._version += 1
            self._oldest = self._version
            self._events.clear()
            self._changed.notify_all()

    def restore(self, path: str, items: Iterable[Item], version: int) -> None:
        """Continue with these objects at a lower version, as after a restore of etcd. Watches are cut off."""
        with self._changed:
            assert version < self._version
            self._items[path] = {item["metadata"]["name"]: item for item in items}
            self._version, self._oldest, self.epoch = version, 0, self.epoch + 1
            self._events.clear()
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop serving."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    # --- for the handler ------------------------------------------------------------------------------------------

    def page(self, path: str, start: int, selector: str = "", labels: str = "") -> Item:
        """Return the list of a path, or a page of it. Pods are also listed without their namespace."""
        with self._changed:
            paths = [one for one in self._items if one == path or (path == PODS and one.endswith("/pods"))]
            found = [item for one in paths for item in self._items[one].values()]
            items = [item for item in found if _selected(item, selector) and _labelled(item, labels)]
            end = start + (self.page_size or len(items))
            more = {"continue": str(end)} if end < len(items) else {}
            metadata = {"resourceVersion": str(self._version), **more}
            return {"kind": "List", "metadata": metadata, "items": items[start:end]}

    def wait_for_the_end(self) -> None:
        """Wait for `stop`, to keep the connection of an incomplete response open."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopping)

    def after(self, version: int, path: str, selector: str, seconds: float, epoch: int) -> Item | None:
        """Return the next event after a version, or None on a timeout or if a restore ended the `epoch`."""

        def found() -> Item | None:
            if version < self._oldest:
                status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                return {"type": "ERROR", "object": status}
            events = (event for at, of, event in self._events if of == path and at > version)
            return next((event for event in events if _selected(event["object"], selector)), None)

        with self._changed:
            self._changed.wait_for(lambda: found() or self.stopping or epoch != self.epoch, seconds)
            return None if self.stopping or epoch != self.epoch else found()


def _selected(item: Item, selector: str) -> bool:
    """Return whether a field selector selects an object; only the node's name can be selected."""
    key, _, value = selector.partition("=")
    assert key in ("", "spec.nodeName"), selector
    return not key or item.get("spec", {}).get("nodeName", "") == value


def _labelled(item: Item, selector: str) -> bool:
    """Return whether a label selector selects an object: `key=value`, and more after commas."""
    labels: Mapping[str, str] = item["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in (term.split("=") for term in selector.split(",") if term))


class _Handler(BaseHTTPRequestHandler):
    server_of: ClassVar[FakeApiServer]
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.server_of.connections += 1

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        server = self.server_of
        if server.stopping:  # a connection that was kept
            self.close_connection = True
            return
        server.asked.append(self.path)
        if server.raw is not None:
            for byte in server.raw if server.drip else ():
                self.wfile.write(bytes([byte]))
                time.sleep(server.drip or 0)
            self.wfile.write(server.raw)
            self.wfile.flush()
            server.wait_for_the_end()
        elif server.status:
            self._send(server.status, {"kind": "Status", "code": server.status})
        elif self.headers.get("Authorization") != f"Bearer {server.token}":
            self._send(401, {"kind": "Status", "code": 401})
        elif url.path.startswith(GROUP) and not server.versions:
            self._send(404, {"kind": "Status", "code": 404})
        elif query.get("watch") and not server.may_watch:
            self._send(403, {"kind": "Status", "code": 403})
        elif url.path == GROUP:
            versions = [{"groupVersion": f"resource.k8s.io/{each}", "version": each} for each in server.versions]
            self._send(200, {"kind": "APIGroup", "versions": versions})
        elif url.path == POLICY:
            self._send(200, {"kind": "APIGroup", "versions": [{"version": server.eviction_version}]})
        elif url.path == CORE:
            eviction = {"name": "pods/eviction", "group": "policy", "version": server.eviction_version}
            self._send(200, {"kind": "APIResourceList", "resources": [{"name": "pods"}, eviction]})
        elif query.get("watch"):
            self._watch(url.path, query)
        elif url.path.rpartition("/")[0].endswith(SINGLE):
            item = server.item(url.path)
            self._send(200 if item else 404, item or {"kind": "Status", "code": 404})
        else:
            selectors = query.get("fieldSelector", ""), query.get("labelSelector", "")
            self._send(200, server.page(url.path, int(query.get("continue", 0)), *selectors))

    def do_PATCH(self) -> None:
        self._write("PATCH")

    def do_POST(self) -> None:
        self._write("POST")

    def _write(self, method: str) -> None:
        url, server = urlsplit(self.path), self.server_of
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization") != f"Bearer {server.token}":
            self._send(401, {"kind": "Status", "code": 401})
            return
        kind = "application/json-patch+json" if method == "PATCH" else "application/json"
        assert self.headers["Content-Type"] == kind
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        status, item = server.write(method, url.path, body, query)
        if server.loses_answers:
            self.close_connection = True
            return
        self._send(status, item)

    def _send(self, status: int, content: Item) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.server_of.retry_after is not None:
            self.send_header("Retry-After", str(self.server_of.retry_after))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, path: str, query: Mapping[str, str]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        version, epoch = int(query["resourceVersion"]), self.server_of.epoch
        self.server_of.watches += 1
        selector, seconds = query.get("fieldSelector", ""), float(query["timeoutSeconds"])
        while event := self.server_of.after(version, path, selector, seconds, epoch):
            self._line(event)
            if event["type"] == "ERROR":
                break
            version = int(event["object"]["metadata"]["resourceVersion"])
        if epoch == self.server_of.epoch:
            self.wfile.write(b"0\r\n\r\n")
        else:  # the server that was restored is another process
            self.close_connection = True

    def _line(self, event: Item) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.wfile.flush()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Silent."""
