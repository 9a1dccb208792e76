"""kubelet's pod-resources API: which container has which devices.

Its messages (version v1) are built at run time by their field numbers on the wire. Numbers are those of Kubernetes 1.37
(its `kubelet/pkg/apis/podresources/v1`). Fields that the exporter does not read are left out. `tests/soak/protobuf.py`
reads a kubelet's answer with each protobuf from 4.25 on.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from gpu_exporter.io.decoding import printable
from gpu_exporter.io.file_access import FileWorker
from gpu_exporter.io.protobuf import Fields, message_classes
from gpu_exporter.kubernetes import limits
from gpu_exporter.kubernetes.objects import is_gpu
from gpu_exporter.model.lookup import Incomplete, LookupFailed
from gpu_exporter.owners.devices import DRIVER, Allocated, Claimed, Listing

LIST = "/v1.PodResourcesLister/List"

_PACKAGE = "gpu_exporter.podresources"
_MESSAGES: Fields = {
    "ListRequest": {},
    "ListReply": {"pod_resources": (1, "Pod*")},
    "Pod": {"name": (1, "string"), "namespace": (2, "string"), "containers": (3, "Container*")},
    "Container": {
        "name": (1, "string"),
        "devices": (2, "Devices*"),
        "dynamic_resources": (5, "DynamicResource*"),
    },
    "Devices": {"resource_name": (1, "string"), "device_ids": (2, "string*")},
    "DynamicResource": {
        "claim_name": (2, "string"),
        "claim_namespace": (3, "string"),
        "claim_resources": (4, "ClaimResource*"),
    },
    "ClaimResource": {"driver_name": (2, "string"), "pool_name": (3, "string"), "device_name": (4, "string")},
}


Device = TypeVar("Device", Allocated, Claimed)

OPTIONS = (
    ("grpc.max_receive_message_length", limits.MOST_KUBELET_BYTES),
    ("grpc.default_authority", "localhost"),  # gRPC's default, the path of the socket, is refused by strict servers
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
CHECK_SOCKET = "check --pod-resources-socket"


class Kubelet:
    """A client of the pod-resources API. It reconnects when kubelet has restarted and created a new socket (inode)."""

    def __init__(self, socket: Path, resources: Sequence[str], patience: float) -> None:
        self._socket, self._resources, self._patience = socket, frozenset(resources), patience
        self._messages = message_classes(_PACKAGE, _MESSAGES)
        self._files = FileWorker("kubelet-socket")
        self._channel: Any = None
        self._call: Callable[..., bytes] | None = None
        self._inode: tuple[int, int] | None = None

    def ask(self) -> Listing:
        """Make one List request. Raises LookupFailed, also if entries of the answer had to be dropped (Incomplete)."""
        call = self._connected()
        try:
            reply = call(self._messages["ListRequest"]().SerializeToString(), timeout=self._patience)
        except grpc.RpcError as error:
            raise _failed(error, self._socket) from error
        try:
            listed = self._messages["ListReply"].FromString(reply)
        except (DecodeError, ValueError) as error:  # ValueError: text that is not UTF-8, in protobuf's Python version
            message = f"{self._socket}: not a pod-resources reply"
            raise LookupFailed("malformed", message, fix="is it kubelet's socket?") from error
        allocated, dropped = _bounded(self._allocated(listed), self._socket)
        claimed, also_dropped = _bounded(_claimed(listed), self._socket)
        listing = Listing(tuple(sorted(allocated)), tuple(sorted(claimed)))
        if why := dropped or also_dropped:
            raise Incomplete(why.reason, why.message, listing)
        return listing

    def _connected(self) -> Callable[..., bytes]:
        try:
            inode = self._files.call(lambda: _inode(self._socket), self._patience)
        except TimeoutError as error:
            message = f"{self._socket}: {error.strerror}: the folder cannot be read"
            raise LookupFailed("timeout", message, fix="check its mount") from error
        if self._call is None or self._inode != inode:
            self.close()
            self._inode = inode
            self._channel = grpc.insecure_channel(f"unix:{self._socket}", options=OPTIONS)
            self._call = self._channel.unary_unary(LIST)
        return self._call

    def _allocated(self, listed: Any) -> Iterator[Allocated]:
        for pod in listed.pod_resources:
            for container in pod.containers:
                for devices in container.devices:
                    resource = devices.resource_name
                    if is_gpu(resource, self._resources):
                        for device in devices.device_ids:
                            yield Allocated(pod.namespace, pod.name, container.name, resource, device)

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()
        self._channel = self._call = None


def _claimed(listed: Any) -> Iterator[Claimed]:
    for pod in listed.pod_resources:
        for container in pod.containers:
            for dynamic in container.dynamic_resources:
                for claim in dynamic.claim_resources:
                    if claim.driver_name == DRIVER:
                        yield Claimed(pod.namespace, pod.name, container.name, claim.pool_name, claim.device_name)


_LONGEST = {
    "namespace": limits.LONGEST_NAMESPACE,
    "pod": limits.LONGEST_POD,
    "container": limits.LONGEST_CONTAINER,
    "resource": limits.LONGEST_RESOURCE,
    "pool": limits.LONGEST_POOL,
    "device": limits.LONGEST_DEVICE,
}


def _bounded(devices: Iterable[Device], socket: Path) -> tuple[list[Device], Incomplete | None]:
    """Return the devices within the limits, in kubelet's order, and why the last other one was dropped."""
    kept: list[Device] = []
    dropped = None
    for device in devices:
        try:
            for name, value in zip(device._fields, device, strict=True):
                limits.check_length(f"{socket}: the {name}", value, _LONGEST[name])
        except Incomplete as error:
            dropped = error
            continue
        if len(kept) == limits.MOST_DEVICES:
            why = f"{socket}: more than {limits.MOST_DEVICES} NVIDIA devices: the others are left out"
            return kept, Incomplete("too_many", why)
        kept.append(device)
    return kept, dropped


def _inode(socket: Path) -> tuple[int, int]:
    """Return device and inode of the socket. Raises LookupFailed if there is none that this user may use."""
    try:
        status = os.stat(socket)
    except FileNotFoundError as error:
        fix = f"mount the folder {socket.parent} of the host, read-only; kubelet makes it when it starts"
        raise LookupFailed("no_socket", f"{socket} does not exist", fix=fix) from error
    except PermissionError as error:
        raise _forbidden(socket) from error
    except OSError as error:
        raise LookupFailed("no_socket", f"{socket}: {error.strerror}", fix=CHECK_SOCKET) from error
    if not stat.S_ISSOCK(status.st_mode):
        raise LookupFailed("no_socket", f"{socket} is not a socket", fix=CHECK_SOCKET)
    if not os.access(socket, os.R_OK | os.W_OK):
        raise _forbidden(socket)
    return status.st_dev, status.st_ino


def _forbidden(socket: Path) -> LookupFailed:
    return LookupFailed("no_permission", f"this user may not open {socket}", fix="run as root")


def _failed(error: Any, socket: Path) -> LookupFailed:
    """Describe an error; the reason is gRPC's code."""
    code = error.code() or grpc.StatusCode.UNKNOWN
    causes = {
        grpc.StatusCode.UNAVAILABLE: ("nothing answers there", "is kubelet running?"),
        grpc.StatusCode.UNIMPLEMENTED: (
            "this kubelet has no pod-resources API v1",
            "it needs Kubernetes 1.20 or newer",
        ),
        grpc.StatusCode.DEADLINE_EXCEEDED: ("kubelet did not answer in time; gpu-exporter tries again", ""),
        grpc.StatusCode.RESOURCE_EXHAUSTED: ("too many requests, or too large an answer; gpu-exporter tries again", ""),
    }
    cause, fix = causes.get(code) or (printable(str(error.details()), 200), "")
    return LookupFailed(code.name.lower(), f"{socket}: {code.name}: {cause}", fix=fix)
