"""The messages of kubelet's pod-resources API, version v1, by their field numbers on the wire.

Built at run time, in a pool of their own: generated code would depend on the protobuf version that generated it, and
another library may have taken the API's own package name, `v1`. Numbers are those of Kubernetes 1.37 (its
`kubelet/pkg/apis/podresources/v1`). Fields that the exporter does not read are left out, and skipped when decoding.
`tests/soak/protobuf.py` reads a kubelet's answer with each protobuf from 4.25 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

LIST = "/v1.PodResourcesLister/List"

_PACKAGE = "gpu_exporter.podresources"
_STRING, _MESSAGE = 9, 11  # FieldDescriptorProto.Type
_ONE, _MANY = 1, 3  # FieldDescriptorProto.Label

# message: field: (number, label, type of a message)
_MESSAGES: Mapping[str, Mapping[str, tuple[int, int, str]]] = {
    "ListRequest": {},
    "ListReply": {"pod_resources": (1, _MANY, "Pod")},
    "Pod": {"name": (1, _ONE, ""), "namespace": (2, _ONE, ""), "containers": (3, _MANY, "Container")},
    "Container": {
        "name": (1, _ONE, ""),
        "devices": (2, _MANY, "Devices"),
        "dynamic_resources": (5, _MANY, "DynamicResource"),
    },
    "Devices": {"resource_name": (1, _ONE, ""), "device_ids": (2, _MANY, "")},
    "DynamicResource": {
        "claim_name": (2, _ONE, ""),
        "claim_namespace": (3, _ONE, ""),
        "claim_resources": (4, _MANY, "ClaimResource"),
    },
    "ClaimResource": {"driver_name": (2, _ONE, ""), "pool_name": (3, _ONE, ""), "device_name": (4, _ONE, "")},
}


def messages() -> Mapping[str, Any]:
    """Return the message classes by name."""
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, label, of) in fields.items():
            kind: dict[str, Any] = {"type": _MESSAGE, "type_name": f".{_PACKAGE}.{of}"} if of else {"type": _STRING}
            message.field.add(name=field, number=number, label=label, **kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }
