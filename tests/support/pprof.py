"""Profiles for pprof, decoded with Google's protocol buffers by the published schema."""

from __future__ import annotations

import gzip
from collections import defaultdict
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

# google/pprof, proto/profile.proto: name, number, type (3: int64, 4: uint64, 9: string, 11: message), repeated, and
# which message.
SCHEMA = {
    "Profile": (
        ("sample_type", 1, 11, True, "ValueType"),
        ("sample", 2, 11, True, "Sample"),
        ("mapping", 3, 11, True, "Mapping"),
        ("location", 4, 11, True, "Location"),
        ("function", 5, 11, True, "Function"),
        ("string_table", 6, 9, True, ""),
        ("time_nanos", 9, 3, False, ""),
        ("duration_nanos", 10, 3, False, ""),
        ("period_type", 11, 11, False, "ValueType"),
        ("period", 12, 3, False, ""),
    ),
    "ValueType": (("type", 1, 3, False, ""), ("unit", 2, 3, False, "")),
    "Sample": (("location_id", 1, 4, True, ""), ("value", 2, 3, True, ""), ("label", 3, 11, True, "Label")),
    "Label": (("key", 1, 3, False, ""), ("str", 2, 3, False, ""), ("num", 3, 3, False, "")),
    "Mapping": (("id", 1, 4, False, ""),),
    "Location": (("id", 1, 4, False, ""), ("line", 4, 11, True, "Line")),
    "Line": (("function_id", 1, 4, False, ""), ("line", 2, 3, False, "")),
    "Function": (("id", 1, 4, False, ""), ("name", 2, 3, False, ""), ("filename", 4, 3, False, "")),
}


def decoded(content: bytes) -> Any:
    """Return the profile of a compressed file."""
    found = _profile()
    found.ParseFromString(gzip.decompress(content))
    return found


def from_json(found: dict[str, Any]) -> Any:
    """Return a profile that a server sent as JSON."""
    return json_format.ParseDict(found, _profile(), ignore_unknown_fields=True)


def _profile() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="perftools", syntax="proto3")
    for name, rows in SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated, of_type in rows:
            message.field.add(
                name=field,
                number=number,
                type=kind,
                label=3 if repeated else 1,
                type_name=f".perftools.{of_type}" if of_type else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.Profile"))()


def folded_of(profile: Any) -> dict[str, dict[str, float]]:
    """Return seconds by folded stack for each sample type, after the checks of Go's `profile.CheckValid`.

    A frame with a file has the form that Kineto gives it.
    """
    strings = list(profile.string_table)
    assert strings[0] == ""
    functions = {each.id: (strings[each.name], strings[each.filename]) for each in profile.function}
    assert len(functions) == len(profile.function)
    locations = {each.id: _frame(*functions[each.line[0].function_id], each.line[0].line) for each in profile.location}
    assert 0 not in locations
    assert 0 not in functions
    assert len(locations) == len(profile.location)
    types = [strings[each.type] for each in profile.sample_type]
    found: dict[str, dict[str, float]] = {name: defaultdict(float) for name in types}
    for sample in profile.sample:
        assert len(sample.value) == len(types)
        assert all(strings[label.key] and not (label.str and label.num) for label in sample.label)
        stack = ";".join(locations[each] for each in reversed(sample.location_id))
        for name, value in zip(types, sample.value, strict=True):
            if value:
                found[name][stack] += value / 1e9
    return {name: dict(stacks) for name, stacks in found.items()}


def _frame(function: str, file: str, line: int) -> str:
    return f"{file}({line}): {function}" if file else function


def labels_of(profile: Any) -> list[dict[str, str]]:
    """Return the labels of each sample."""
    strings = list(profile.string_table)
    return [{strings[label.key]: strings[label.str] for label in sample.label} for sample in profile.sample]
