"""The reader of PyTorch's traces: layouts, invalid events, truncated files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces import chunks
from gpu_exporter.traces.kineto import read
from gpu_exporter.traces.model import DeviceKind, HostKind, Trace
from tests.support.traces import SyntheticTrace


def _example(count: int = 5) -> SyntheticTrace:
    trace = SyntheticTrace(rank=3, world_size=8)
    trace.step(1, 0, 1000)
    for number in range(count):
        trace.host("train.py(7): step", 100 * number, 90)
        trace.device(100 * number + 50.25, 20.5)
    trace.device(100 * count, 30, "ncclDevKernel_AllReduce", stream=13)
    trace.device(100 * count + 40, 2, "Memcpy HtoD (Pageable -> Device)", category="gpu_memcpy", args={"bytes": 4096})
    return trace


def _read(folder: Path, content: bytes) -> Trace:
    path = folder / "trace.json"
    path.write_bytes(content)
    return read(path)


def _layouts(trace: SyntheticTrace) -> dict[str, bytes]:
    content = trace.content()
    events = content.pop("traceEvents")
    first = {"traceEvents": events, **content}
    return {
        "header first": json.dumps(trace.content()).encode(),
        "indented": json.dumps(trace.content(), indent=2).encode(),
        "events first": json.dumps(first, separators=(",", ":")).encode(),
        "sorted keys": json.dumps(trace.content(), sort_keys=True, indent=1).encode(),
    }


@pytest.mark.parametrize("layout", ["header first", "indented", "events first", "sorted keys"])
def test_all_layouts_give_the_same_trace(tmp_path: Path, layout: str) -> None:
    trace = _read(tmp_path, _layouts(_example())[layout])
    assert len(trace.device_events) == 7
    assert len(trace.host_events) == 1 + 5 + 7
    assert trace.rank == 3
    assert trace.devices[0].multiprocessors == 132
    assert trace.dropped_events == 0
    assert [step.name for step in trace.steps] == ["ProfilerStep#1"]
    kinds = trace.device_events.kind.tolist()
    assert kinds == [DeviceKind.COMPUTE] * 5 + [DeviceKind.COMMUNICATION, DeviceKind.COPY]
    assert trace.device_events.bytes.tolist()[-1] == 4096
    assert trace.device_events.start.tolist()[0] == 50_250
    assert trace.device_events.end.tolist()[0] == 70_750


def test_a_plain_array_is_read(tmp_path: Path) -> None:
    trace = _read(tmp_path, json.dumps(_example().events).encode())
    assert len(trace.device_events) == 7
    assert trace.rank is None
    assert trace.dropped_events == 0


def test_relative_times_are_added_to_their_base(tmp_path: Path) -> None:
    base = 1_790_857_026_000_000_000
    trace = read(_example().write(tmp_path / "trace.json.gz", base=base))
    assert trace.device_events.start.tolist()[0] == base + 50_250


def test_whole_microseconds_since_the_epoch_are_exact(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    trace.device(1_669_783_687_464_181, 45)
    assert read(trace.write(tmp_path / "t.json")).device_events.start.tolist() == [1_669_783_687_464_181_000]


def test_chunks_do_not_change_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _example(300).write(tmp_path / "t.json", indent=2)
    whole = read(path)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1500)
    in_chunks = read(path)
    assert len(in_chunks.device_events) == len(whole.device_events) == 302
    assert in_chunks.device_events.start.tolist() == whole.device_events.start.tolist()
    assert in_chunks.dropped_events == 0


INVALID: dict[str, tuple[bytes, bytes]] = {
    "quotes in a name": (b'"name": "train.py(7): step"', b'"name": "{"device": "cpu"}(1): f"'),
    "a control character": (b'"name": "train.py(7): step"', b'"name": "train\x01.py(7): step"'),
    "a number without quotes": (b'"args": {}', b'"args": {"x": N/A}'),
    "not a number": (b'"args": {}', b'"args": {"x": nan}'),
    "a wrong escape": (b'"name": "train.py(7): step"', rb'"name": "C:\Users\train.py(7): step"'),
    "invalid UTF-8": (b'"name": "train.py(7): step"', b'"name": "train\xff.py(7): step"'),
}


@pytest.mark.parametrize("what", INVALID)
def test_invalid_events_are_repaired_and_counted(tmp_path: Path, what: str) -> None:
    text = json.dumps(_example().content()).encode()
    old, new = INVALID[what]
    assert old in text
    trace = _read(tmp_path, text.replace(old, new, 1))
    assert len(trace.device_events) == 7
    assert int((trace.host_events.kind == HostKind.PYTHON).sum()) == 5
    assert trace.dropped_events == 0
    assert trace.repaired == 1


def test_what_cannot_be_repaired_is_dropped_and_counted(tmp_path: Path) -> None:
    text = json.dumps(_example().content()).encode()
    broken = text.replace(b'"ts": 200, "dur": 90', b'"ts": [2}00, "dur": 90', 1)
    trace = _read(tmp_path, broken)
    assert trace.dropped == {"not valid JSON": 1}
    assert len(trace.device_events) == 7


def test_events_without_time_and_of_unknown_categories_are_counted(tmp_path: Path) -> None:
    example = _example()
    example.events.append({"ph": "X", "cat": "kernel", "name": "no time", "pid": 0, "tid": 7})
    example.host("ccp", 0, 5, "mtia_ccp_events")
    trace = _read(tmp_path, json.dumps(example.content()).encode())
    assert trace.dropped == {"without a valid time": 1, "of the category mtia_ccp_events": 1}


def test_numbers_in_quotes_are_read(tmp_path: Path) -> None:
    text = json.dumps(_example().content()).replace('"ts": 0,', '"ts": "0",', 1)
    assert _read(tmp_path, text.encode()).dropped_events == 0


def test_events_launched_before_the_trace_are_dropped_and_counted(tmp_path: Path) -> None:
    example = _example()
    example.device(1, 5, correlation=987654)
    trace = _read(tmp_path, json.dumps(example.content()).encode())
    assert trace.dropped == {"launched before the trace began": 1}
    assert len(trace.device_events) == 7


def test_without_any_launches_all_gpu_events_are_kept(tmp_path: Path) -> None:
    example = SyntheticTrace()
    for number in range(4):
        example.device(100 * number, 5, correlation=number + 1)
    assert len(_read(tmp_path, json.dumps(example.content()).encode()).device_events) == 4


@pytest.mark.parametrize("packed", [False, True])
def test_a_truncated_file_is_read_up_to_its_end(tmp_path: Path, packed: bool) -> None:
    text = json.dumps(_example(200).content()).encode()
    content = gzip.compress(text) if packed else text
    trace = _read(tmp_path, content[: len(content) * 2 // 3])
    assert 50 < len(trace.device_events) < 200
    assert trace.dropped_events >= 1


def test_several_gzip_members_are_one_file(tmp_path: Path) -> None:
    text = json.dumps(_example().content()).encode()
    trace = _read(tmp_path, gzip.compress(text[:700]) + gzip.compress(text[700:]))
    assert len(trace.device_events) == 7
    assert trace.dropped_events == 0


def test_memory_events_are_read(tmp_path: Path) -> None:
    example = _example()
    args = {"Total Allocated": 4096, "Total Reserved": 8192, "Device Type": 1, "Device Id": 0, "Addr": 2**63 + 5}
    example.events.append(
        {
            "ph": "i",
            "name": "[memory]",
            "cat": "cpu_instant_event",
            "pid": 1,
            "tid": 1,
            "ts": 7,
            "args": {**args, "Bytes": -512},
        }
    )
    memory = _read(tmp_path, json.dumps(example.content()).encode()).memory
    assert (memory.bytes.tolist(), memory.address.tolist(), memory.time.tolist()) == ([-512], [2**63 + 5], [7000])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"  \n", "the file is empty"),
        (b"hello", "no list of traceEvents"),
        (b"{}", "no list of traceEvents"),
        (b"\x1f\x8b\x08", "gzip"),
        (b'{"traceEvents": []}', "contains no events"),
        (b"[]", "contains no events"),
        (b'{"nodes": [{"name": "a"}]}', "no list of traceEvents"),
    ],
)
def test_what_is_no_trace_is_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(GpuExporterError, match=message):
        _read(tmp_path, content)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(_KEYS, _JSON)), max_size=4), _JSON)
def test_values_of_any_type_raise_no_other_error(tmp_path: Path, events: list[Any], other: Any) -> None:
    content = {
        **_example(1).content(),
        "distributedInfo": other,
        "deviceProperties": other,
        "baseTimeNanoseconds": other,
    }
    content["traceEvents"] = [*_example(1).events, *({"ph": "X", "cat": "kernel", **event} for event in events)]
    trace = _read(tmp_path, json.dumps(content).encode())
    assert len(trace.device_events) >= 3
