"""kubelet's pod-resources API: which container was given which devices."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from gpu_exporter.attribution.listing import DOMAIN, DRIVER, Allocated, Claimed, Listing
from gpu_exporter.attribution.pod_resources import LIST, messages
from gpu_exporter.model.lookup import LookupFailed, brief

# gRPC's own limit is 4 MiB: less than what kubelet has to say of a node with thousands of shares.
LARGEST_REPLY = 64 << 20
OPTIONS = (
    ("grpc.max_receive_message_length", LARGEST_REPLY),
    ("grpc.default_authority", "localhost"),  # else the path of the socket, which strict servers refuse
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
)


class Kubelet:
    """A client of the pod-resources API. A kubelet that restarts creates a new socket, recognised by its inode."""

    def __init__(self, socket: Path, resources: Sequence[str], patience: float) -> None:
        self._socket, self._resources, self._patience = socket, frozenset(resources), patience
        self._messages = messages()
        self._channel: Any = None
        self._call: Callable[..., bytes] | None = None
        self._inode: tuple[int, int] | None = None

    def ask(self) -> Listing:
        """Make one List request. Raises LookupFailed."""
        call = self._connected()
        try:
            reply = call(self._messages["ListRequest"]().SerializeToString(), timeout=self._patience)
        except grpc.RpcError as error:
            raise _failed(error, self._socket) from error
        try:
            listed = self._messages["ListReply"].FromString(reply)
        except (DecodeError, ValueError) as error:  # ValueError: text that is no UTF-8, of protobuf's Python version
            raise LookupFailed("malformed", f"{self._socket}: no pod-resources reply: is it kubelet's?") from error
        return Listing(tuple(sorted(self._allocated(listed))), tuple(sorted(_claimed(listed))))

    def _connected(self) -> Callable[..., bytes]:
        try:
            there = os.stat(self._socket)
        except FileNotFoundError as error:
            cure = f"mount the folder {self._socket.parent} of the host, read-only; kubelet makes it when it starts"
            raise LookupFailed("no_socket", f"there is no {self._socket}: {cure}") from error
        except PermissionError as error:
            raise LookupFailed("no_permission", f"{self._socket} is closed to this user: run as root") from error
        except OSError as error:
            raise LookupFailed(
                "no_socket", f"{self._socket}: {error.strerror}: check --pod-resources-socket"
            ) from error
        if not stat.S_ISSOCK(there.st_mode):
            raise LookupFailed("no_socket", f"{self._socket} is no socket: check --pod-resources-socket")
        if not os.access(self._socket, os.R_OK | os.W_OK):
            raise LookupFailed("no_permission", f"{self._socket} is closed to this user: run as root")
        if self._call is None or self._inode != (there.st_dev, there.st_ino):
            self.close()
            self._inode = (there.st_dev, there.st_ino)
            self._channel = grpc.insecure_channel(f"unix:{self._socket}", options=OPTIONS)
            self._call = self._channel.unary_unary(LIST)
        return self._call

    def _allocated(self, listed: Any) -> Iterator[Allocated]:
        for pod in listed.pod_resources:
            for container in pod.containers:
                for devices in container.devices:
                    resource = devices.resource_name
                    if resource.startswith(DOMAIN) or resource in self._resources:
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


def _failed(error: Any, socket: Path) -> LookupFailed:
    """An error in words; the reason is gRPC's code."""
    code = error.code() or grpc.StatusCode.UNKNOWN
    cures = {
        grpc.StatusCode.UNAVAILABLE: "nobody answers there: is kubelet running?",
        grpc.StatusCode.UNIMPLEMENTED: "this kubelet has no pod-resources API v1: it needs Kubernetes 1.20 or newer",
        grpc.StatusCode.DEADLINE_EXCEEDED: "kubelet is too slow to answer: asked again",
        grpc.StatusCode.RESOURCE_EXHAUSTED: "kubelet is asked too often, or its answer is too large: asked again later",
    }
    why = cures.get(code) or brief(error.details())
    return LookupFailed(code.name.lower(), f"{socket}: {code.name}: {why}")
