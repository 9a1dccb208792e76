"""Profiles for pprof, decoded with Google's protocol buffers by the published schema."""

from __future__ import annotations

import gzip
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from gpu_exporter.traces.pprof import profile

# google/pprof, proto/profile.proto: name, number, type (3: int64, 4: uint64, 9: string, 11: message), repeated, and
# which message.
SCHEMA = {
    "Profile": (
        ("sample_type", 1, 11, True, "ValueType"),
        ("sample", 2, 11, True, "Sample"),
        ("location", 4, 11, True, "Location"),
        ("function", 5, 11, True, "Function"),
        ("string_table", 6, 9, True, ""),
        ("duration_nanos", 10, 3, False, ""),
    ),
    "ValueType": (("type", 1, 3, False, ""), ("unit", 2, 3, False, "")),
    "Sample": (("location_id", 1, 4, True, ""), ("value", 2, 3, True, "")),
    "Location": (("id", 1, 4, False, ""), ("line", 4, 11, True, "Line")),
    "Line": (("function_id", 1, 4, False, ""), ("line", 2, 3, False, "")),
    "Function": (("id", 1, 4, False, ""), ("name", 2, 3, False, "")),
}


def decoded(content: bytes) -> Any:
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
    found = message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.Profile"))()
    found.ParseFromString(gzip.decompress(content))
    return found


def test_stacks_come_back() -> None:
    """With names in any script, thousands of frames, and both sample types."""
    gpu = {"main;train": 1.5, "main;größe;内核": 0.25, ";".join(f"f{each}" for each in range(500)): 2.0}
    idle = {"main;load": 0.001}
    found = decoded(profile({"gpu_time": gpu, "gpu_idle": idle}, 3.5))
    strings = list(found.string_table)
    assert strings[0] == ""
    assert [(strings[each.type], strings[each.unit]) for each in found.sample_type] == [
        ("gpu_time", "nanoseconds"),
        ("gpu_idle", "nanoseconds"),
    ]
    names = {each.id: strings[each.name] for each in found.function}
    frames = {each.id: names[each.line[0].function_id] for each in found.location}
    back: list[dict[str, float]] = [{}, {}]
    for sample in found.sample:
        stack = ";".join(frames[each] for each in reversed(sample.location_id))
        for column, value in enumerate(sample.value):
            if value:
                back[column][stack] = value / 1e9
    assert back == [gpu, idle]
    assert found.duration_nanos == 3_500_000_000


def test_the_same_profile_is_the_same_bytes() -> None:
    assert profile({"gpu_time": {"a;b": 1.0}}, 1.0) == profile({"gpu_time": {"a;b": 1.0}}, 1.0)
