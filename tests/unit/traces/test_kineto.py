"""The reader of PyTorch's traces: layouts, invalid events, truncated files."""

from __future__ import annotations

import gzip
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces import chunks, content
from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.columns import integers
from gpu_exporter.traces.model import UNKNOWN, DeviceKind, DeviceProperties, Distributed, HostKind, Trace
from gpu_exporter.traces.reader import read
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
    assert trace.distributed
    assert trace.distributed.rank == 3
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
    assert trace.distributed is None
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
    example = _example(300)
    for number in range(0, 300, 7):
        args = {"Collective name": "allreduce", "In msg nelems": number}
        example.device(100 * number + 60, 5, "nccl", launched=100 * number, args=args)
    path = example.write(tmp_path / "t.json", indent=2)
    whole = read(path)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1500)
    monkeypatch.setattr(content, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(content, "HEAD_BYTES", 100)
    in_chunks = read(path)
    assert len(in_chunks.device_events) == 302 + len(range(0, 300, 7))
    for table in ("device_events", "host_events", "collectives"):
        one, other = getattr(whole, table), getattr(in_chunks, table)
        assert all((getattr(one, each.name) == getattr(other, each.name)).all() for each in fields(one)), table
    of_collective = in_chunks.device_events.rows(in_chunks.collectives.event)
    assert {in_chunks.names[name] for name in of_collective.name} == {"nccl"}
    assert of_collective.start.tolist() == [100_000 * number + 60_000 for number in range(0, 300, 7)]
    assert in_chunks.dropped_events == 0


INVALID: dict[str, tuple[bytes, bytes]] = {
    "quotes in a name": (b'"name": "train.py(7): step"', b'"name": "{"device": "cpu"}(1): f"'),
    "a control character": (b'"name": "train.py(7): step"', b'"name": "train\x01.py(7): step"'),
    "a number without quotes": (b'"args": {}', b'"args": {"x": N/A}'),
    "not a number": (b'"args": {}', b'"args": {"x": nan}'),
    "a wrong escape": (b'"name": "train.py(7): step"', rb'"name": "C:\Users\train.py(7): step"'),
    "invalid UTF-8": (b'"name": "train.py(7): step"', b'"name": "train\xff.py(7): step"'),
}


@pytest.mark.parametrize("place", [0, 40, 99])
def test_one_invalid_event_among_many_is_repaired_or_dropped_alone(tmp_path: Path, place: int) -> None:
    text = json.dumps(_example(100).content()).encode()
    old = b'"name": "train.py(7): step", "pid": 100, "tid": 100, "ts": %d' % (100 * place)
    repaired = _read(tmp_path, text.replace(old, old.replace(b"step", b"st\x01ep")))
    assert (len(repaired.host_events), repaired.repaired, repaired.dropped_events) == (203, 1, 0)
    dropped = _read(tmp_path, text.replace(old, old.replace(b'"ts": ', b'"ts": [2}')))
    assert (len(dropped.host_events), dropped.repaired, dropped.dropped) == (202, 0, {"not valid JSON": 1})


@pytest.mark.parametrize("count", [1, 2, 4])
def test_arguments_that_look_like_events_are_part_of_one(tmp_path: Path, count: int) -> None:
    example = _example()
    example.host("aten::cat", 0, 5, "cpu_op", inputs=[{"name": "x", "ts": number} for number in range(count)])
    trace = _read(tmp_path, json.dumps(example.content()).encode())
    assert (len(trace.host_events), trace.dropped_events, trace.repaired) == (14, 0, 0)


def test_arguments_that_are_no_object_are_left_out(tmp_path: Path) -> None:
    text = json.dumps(_example().content()).replace('"args": {}', '"args": "none"')
    trace = _read(tmp_path, text.encode())
    assert (len(trace.host_events), trace.dropped_events) == (13, 0)


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


REPEATING = ("Trace", "gpu_user_annotation", "cuda_sync", "cuda_event", "ac2g", "fwdbwd", "")


def test_events_that_repeat_others_are_not_counted(tmp_path: Path) -> None:
    example = _example()
    for category in REPEATING:
        example.host("again", 0, 5, category)
    trace = _read(tmp_path, json.dumps(example.content()).encode())
    assert (len(trace.host_events), trace.dropped_events) == (13, 0)


@pytest.mark.parametrize(
    ("changes", "dropped"),
    [
        ({"dur": 0}, 0),
        ({"ts": -1}, 0),
        ({"dur": -1}, 1),
        ({"dur": None}, 1),
        ({"ts": None}, 1),
        ({"ts": 5e15}, 1),
        ({"ts": -5e15}, 1),
        ({"dur": 5e15}, 1),
    ],
)
def test_times_that_are_none_are_counted(tmp_path: Path, changes: dict[str, Any], dropped: int) -> None:
    """Times beyond 146 years, too."""
    example = _example()
    example.host("odd", 0, 5)
    example.events[-1].update(changes)
    trace = _read(tmp_path, json.dumps(example.content()).encode())
    assert trace.dropped == ({"without a valid time": 1} if dropped else {})
    assert len(trace.host_events) == 14 - dropped


def test_begin_and_end_events_are_counted(tmp_path: Path) -> None:
    example = _example()
    for phase in ("B", "E", "M", "i"):
        example.host("part", 0, 5)
        example.events[-1]["ph"] = phase
    trace = _read(tmp_path, json.dumps(example.content()).encode())
    assert trace.dropped == {"begin or end events without the other": 2}


@pytest.mark.parametrize(
    ("args", "column", "expected"),
    [
        ({"device": 3}, "device", 3),
        ({"device": None}, "device", 0),  # the process of the event
        ({"device": "GPU"}, "device", UNKNOWN),
        ({"device": 40_000}, "device", 32_767),
        ({"stream": 0}, "stream", 0),
        ({"stream": -1}, "stream", 7),  # the thread of the event
        ({"stream": "stream 9"}, "stream", UNKNOWN),
        ({"grid": [4, 3, 2]}, "blocks", 24),
        ({"grid": [2**31 - 1, 2, 1]}, "blocks", 2**31 - 1),
        ({"grid": []}, "blocks", UNKNOWN),
        ({"grid": [4, "x"]}, "blocks", UNKNOWN),
        ({"grid": [-4, 1, 1]}, "blocks", UNKNOWN),
        ({"grid": [2**31, 1, 1]}, "blocks", UNKNOWN),
        ({"grid": [0, 1, 1]}, "blocks", 0),
        ({"grid": [0, 0, 0]}, "blocks", UNKNOWN),
        ({"bytes": 4096.0}, "bytes", 4096),
    ],
)
def test_arguments_of_gpu_events(tmp_path: Path, args: dict[str, Any], column: str, expected: int) -> None:
    example = SyntheticTrace()
    example.device(0, 5, args=args)
    (found,) = getattr(read(example.write(tmp_path / "t.json")).device_events, column).tolist()
    assert found == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], [1, 2]),
        ([1, "7"], [1, 7]),
        ([1.9, None, "stream 7", float("nan"), float("inf")], [1, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN]),
        ([2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
        ([2**63, 2**64 - 1], [-(2**63), -1]),  # addresses
        ([2**64, -(2**63) - 1], [UNKNOWN, UNKNOWN]),
        ([[1], [2]], [UNKNOWN, UNKNOWN]),
        ([], []),
    ],
)
def test_whole_numbers(values: list[Any], expected: list[int]) -> None:
    assert integers(values).tolist() == expected


def test_events_that_start_together_are_in_order_of_what_contains_what(tmp_path: Path) -> None:
    """The longer before the shorter; of equal ones, the frame before the operator before the call."""
    example = SyntheticTrace()
    for name, duration, category in (
        ("call", 5, "cuda_runtime"), ("short", 3, "python_function"), ("frame", 5, "python_function"),
        ("operator", 5, "cpu_op"), ("long", 9, "cuda_runtime"),
    ):  # fmt: skip
        example.host(name, 10, duration, category)
    example.host("first", 9, 1)
    trace = read(example.write(tmp_path / "t.json"))
    assert [trace.names[name] for name in trace.host_events.name] == [
        "first", "long", "frame", "operator", "call", "short",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["ProfilerStep#12", "ProfilerStep 12", "ProfilerStep12", "ProfilerStep # 12"])
def test_names_of_steps(tmp_path: Path, name: str) -> None:
    example = SyntheticTrace()
    example.host("ProfilerStep", 0, 5, "user_annotation")
    example.host(f"{name} of many", 0, 5, "user_annotation")
    example.host(name, 10, 5, "user_annotation")
    (step,) = read(example.write(tmp_path / "t.json")).steps
    assert (step.name, step.start, step.end, step.thread) == (name, 10_000, 15_000, 0)


HEADERS: dict[str, tuple[dict[str, Any], object]] = {
    "rank": ({"distributedInfo": {"rank": 0}}, Distributed(0, 1)),
    "rank and size": ({"distributedInfo": {"rank": 2, "world_size": 4, "backend": "nccl"}}, Distributed(2, 4, "nccl")),
    "no rank": ({"distributedInfo": {"rank": -1, "world_size": 4}}, None),
    "nothing": ({"distributedInfo": [1]}, None),
}


@pytest.mark.parametrize("case", HEADERS)
def test_ranks_of_the_header(tmp_path: Path, case: str) -> None:
    header, expected = HEADERS[case]
    trace = _read(tmp_path, json.dumps({**header, "traceEvents": _example().events}).encode())
    assert trace.distributed == expected


def test_gpus_of_the_header(tmp_path: Path) -> None:
    rows = [{"id": 1, "name": "H200", "numSms": 132, "totalGlobalMem": 5}, {"id": 0, "numSms": -4}, {"name": "?"}, 3]
    trace = _read(tmp_path, json.dumps({"deviceProperties": rows, "traceEvents": _example().events}).encode())
    assert trace.devices == {1: DeviceProperties("H200", 132, 5), 0: DeviceProperties()}


@pytest.mark.parametrize(("base", "added"), [(5, 5), (-5, 0), (2**62, 0), ("5", 0), (0, 0)])
def test_bases_that_are_no_time_are_ignored(tmp_path: Path, base: Any, added: int) -> None:
    content = {"baseTimeNanoseconds": base, "traceEvents": _example().events}
    trace = _read(tmp_path, json.dumps(content).encode())
    assert trace.device_events.start.tolist()[0] == 50_250 + added
    assert trace.host_events.start.tolist()[0] == trace.steps[0].start == added


def test_numbers_in_quotes_are_read(tmp_path: Path) -> None:
    text = json.dumps(_example().content()).replace('"ts": 0,', '"ts": "0",', 1)
    assert _read(tmp_path, text.encode()).dropped_events == 0


def test_events_launched_before_the_trace_are_dropped_and_counted(tmp_path: Path) -> None:
    example = _example()
    example.device(1, 5, correlation=987654)
    trace = _read(tmp_path, json.dumps(example.content()).encode())
    assert trace.dropped == {"launched before the trace began": 1}
    assert len(trace.device_events) == 7


def test_work_launched_before_the_trace_is_no_idle_time_of_what_runs_beside_it(tmp_path: Path) -> None:
    """A stream that lags behind runs it after work of other streams that was launched in the trace."""
    trace = SyntheticTrace()
    trace.device(0, 10, correlation=987651)
    for start in (10, 50):
        trace.device(start, 10)
    trace.device(20, 30, correlation=987654, stream=9)
    found = _read(tmp_path, json.dumps(trace.content()).encode())
    assert found.dropped == {"launched before the trace began": 1}
    (rank,) = analyze([found]).ranks
    assert (rank.busy_ratio, rank.kernels) == (1.0, 3)


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


@pytest.mark.parametrize("unlaunched", [1, 2])
def test_gpu_events_without_launches_are_kept_if_most_have_none(tmp_path: Path, unlaunched: int) -> None:
    """The writer left out launches then."""
    example = SyntheticTrace()
    example.device(300, 5)
    for number in range(unlaunched):
        example.device(100 * number, 5, correlation=number + 50)
    trace = read(example.write(tmp_path / "t.json"))
    assert (len(trace.device_events), trace.dropped_events) == ((1, 1) if unlaunched == 1 else (3, 0))


def test_zeros_after_a_gzip_file_are_no_damage(tmp_path: Path) -> None:
    content = gzip.compress(json.dumps(_example().content()).encode())
    trace = _read(tmp_path, content + bytes(3000))
    assert (len(trace.device_events), trace.dropped_events) == (7, 0)


def test_progress_is_in_bytes_of_the_file(tmp_path: Path) -> None:
    path = _example().write(tmp_path / "t.json.gz")
    calls: list[tuple[int, int]] = []
    read(path, lambda done, total: calls.append((done, total)))
    assert calls == [(path.stat().st_size, path.stat().st_size)]


EVENT = b'{"ph": "X", "name": "a"}'


@pytest.mark.parametrize(
    ("buffer", "cut"),
    [
        (EVENT, None),
        (EVENT + b", " + EVENT, (len(EVENT), len(EVENT) + 2)),
        (EVENT + b",\n" + EVENT + b" ,  " + EVENT, (2 * len(EVENT) + 2, 2 * len(EVENT) + 6)),
        (EVENT + b", " + EVENT[:-1] + b" " * (chunks.NEAR_END + 99), (len(EVENT), len(EVENT) + 2)),
        (b'{"ph": "' + b" " * (chunks.NEAR_END + 99), None),
    ],
)
def test_the_last_event_of_a_buffer(buffer: bytes, cut: tuple[int, int] | None) -> None:
    assert chunks.last_cut(buffer) == cut


def test_the_pieces_of_a_chunk() -> None:
    assert chunks.pieces(EVENT + b" , \n" + EVENT + b",[" + EVENT) == [EVENT, EVENT + b",[" + EVENT]


@pytest.mark.parametrize(
    ("header", "tail", "value"),
    [
        (b'{"a": 1,', b', "a": 2}', 1),
        (b"{", b', "a" : {"b": [3]}}', {"b": [3]}),
        (b'{"a": [1, ', b', "a": 2}', 2),  # damaged
        (b"{", b"}", None),
        (b'{"aa": 1', b"}", None),
    ],
)
def test_values_around_the_events(header: bytes, tail: bytes, value: object) -> None:
    assert chunks.metadata(header, tail, "a") == value


@pytest.mark.parametrize(
    ("limit", "text", "message"),
    [
        ("MOST_HEADER_BYTES", b'{"a": "' + b"x" * 5000, "no list of traceEvents"),
        ("MOST_EVENT_BYTES", b'[{"name": "' + b"x" * 5000, "one event is larger than 64 MiB"),
    ],
)
def test_memory_stays_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, text: bytes, message: str
) -> None:
    for module, name in ((chunks, "CHUNK_BYTES"), (content, "CHUNK_BYTES"), (content, "HEAD_BYTES")):
        monkeypatch.setattr(module, name, 100)
    monkeypatch.setattr(chunks, limit, 1000)
    read_bytes = 0

    def progress(done: int, total: int) -> None:
        nonlocal read_bytes
        read_bytes = done

    path = tmp_path / "t.json"
    path.write_bytes(text)
    with pytest.raises(GpuExporterError, match=message):
        read(path, progress)
    assert 1000 < read_bytes <= 1200


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf \n" + json.dumps(_example().events).encode()
    assert len(_read(tmp_path, text).device_events) == 7


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
    example.events.append({**example.events[-1], "ts": 3.5, "args": {"Bytes": 9, "Addr": 7, "Device Id": 40_000}})
    example.events += [{**example.events[-1], "ts": time} for time in (None, 5e15)]
    memory = read(example.write(tmp_path / "trace.json", base=10)).memory
    assert (memory.bytes.tolist(), memory.address.tolist()) == ([9, -512], [7, 2**63 + 5])
    assert memory.time.tolist() == [3510, 7010]
    assert memory.device.tolist() == [32_767, 0]
    assert (memory.allocated.tolist(), memory.reserved.tolist()) == ([UNKNOWN, 4096], [UNKNOWN, 8192])


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
        (b'{"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1}]}', "contains no events"),
        (b"[\xf6\x11" + b"\x8e" * 60_000, "no list of traceEvents"),
        (b'{"nodes": [{"name": "a"}]}', "no list of traceEvents"),
        (b'[{"id": 1, "timestamps": []}, {"id": 2, "timestamps": []}]', "no event in this JSON is one of the PyTorch"),
        (b'[{"ph": "X", "name": "[MEMCPY] HtoD", "ts": 1, "dur": 2}]', "no event in this JSON is one of the PyTorch"),
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
