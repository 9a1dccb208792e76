"""Messages of protocol buffers that are made at run time from a table of their fields.

Generated code would depend on the version of protobuf that generated it. Fields that the table leaves out are skipped
when decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# FieldDescriptorProto.Type; whatever else a field says is the name of a message.
_TYPES = {"double": 1, "int64": 3, "uint64": 4, "string": 9, "bytes": 12}
_MESSAGE = 11
_ONE, _MANY = 1, 3  # FieldDescriptorProto.Label

# message: field: (number, type); the type of a repeated field ends in *
Fields = Mapping[str, Mapping[str, tuple[int, str]]]


def message_classes(package: str, messages: Fields) -> Mapping[str, Any]:
    """Return the message classes by name, in a pool of their own: another library may have taken the names."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            of = kind.rstrip("*")
            types = {"type": _TYPES[of]} if of in _TYPES else {"type": _MESSAGE, "type_name": f".{package}.{of}"}
            message.field.add(name=field, number=number, label=_MANY if kind.endswith("*") else _ONE, **types)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
