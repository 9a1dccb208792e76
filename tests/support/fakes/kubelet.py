"""A kubelet that speaks the pod-resources API: a real gRPC server on a unix socket.

It encodes messages byte by byte from the field numbers, independently of the code under test.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

LIST = "/v1.PodResourcesLister/List"


def varint(number: int) -> bytes:
    """Return a number in protobuf's encoding."""
    out = b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def field(number: int, content: str | bytes) -> bytes:
    """Return a field of bytes, text, or a message."""
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


@dataclass(frozen=True)
class Given:
    """Devices that a plugin allocated, by their ids."""

    resource: str
    devices: Sequence[str]

    def encode(self) -> bytes:
        """Return a ContainerDevices, with a NUMA node, which the exporter ignores."""
        topology = field(3, field(1, varint(1 << 3) + varint(1)))
        return field(2, field(1, self.resource) + b"".join(field(2, each) for each in self.devices) + topology)


@dataclass(frozen=True)
class Claim:
    """A device of a resource claim."""

    pool: str
    device: str
    driver: str = "gpu.nvidia.com"

    def encode(self) -> bytes:
        """Return a DynamicResource with one ClaimResource and its CDI device."""
        cdi = field(1, field(1, f"k8s.{self.driver}/device={self.device}"))
        claim = cdi + field(2, self.driver) + field(3, self.pool) + field(4, self.device) + field(5, "share-1")
        return field(5, field(2, "claim") + field(3, "default") + field(4, claim))


def pod(name: str, *has: Given | Claim, namespace: str = "team", container: str = "main") -> bytes:
    """Return a pod whose container has these devices; its second container has none."""
    main = field(1, container) + b"".join(each.encode() for each in has) + varint(3 << 3) + varint(7)  # cpu_ids
    return field(1, name) + field(2, namespace) + field(3, main) + field(3, field(1, "sidecar"))


def given(name: str, device: str, resource: str = "nvidia.com/gpu", **of: str) -> bytes:
    """Return a pod with one device."""
    return pod(name, Given(resource, [device]), **of)


class FakeKubelet:
    """Serves from `start` to `stop`. After a stop, a start makes another server on another socket of the same name."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.pods: Sequence[bytes] = ()
        self.raw: bytes | None = None
        self.code: grpc.StatusCode | None = None
        self.delay = 0.0
        self.asked = 0
        self._server: grpc.Server | None = None
        self._starts = 0
        self._asked = threading.Lock()

    def start(self) -> None:
        """Listen on a new socket, and stop the server of the old one, if there is one."""
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        limits = [("grpc.max_send_message_length", -1)]
        before, self._server = self._server, grpc.server(ThreadPoolExecutor(4), options=limits)
        self._server.add_generic_rpc_handlers((_Handler(self),))
        # A server that ends removes the file of its name, which must not be that of the next one.
        self._starts += 1
        own = self.socket.with_name(f"{self._starts}.sock")
        self._server.add_insecure_port(f"unix:{own}")
        self._server.start()
        own.replace(self.socket)
        if before:
            before.stop(None).wait()

    def stop(self) -> None:
        """Stop, and remove the socket."""
        if self._server:
            self._server.stop(None).wait()
            self._server = None
        with suppress(FileNotFoundError):
            self.socket.unlink()

    def list(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Return the response."""
        with self._asked:
            self.asked += 1
        time.sleep(self.delay)
        if self.code is not None:
            context.abort(self.code, "as the test wants it")
        return b"".join(field(1, each) for each in self.pods) if self.raw is None else self.raw


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, kubelet: FakeKubelet) -> None:
        self._kubelet = kubelet

    def service(self, call: Any) -> Any:
        """Return the handler of the one implemented method."""
        return grpc.unary_unary_rpc_method_handler(self._kubelet.list) if call.method == LIST else None
