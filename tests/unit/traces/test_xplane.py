"""Profiles of JAX: GPUs, streams, copies, launches, Python, steps; damaged, truncated and of other devices."""

from __future__ import annotations

import gzip
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.frames import is_user_frame
from gpu_exporter.traces.model import UNKNOWN, DeviceKind, DeviceProperties, HostKind, Trace
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.result import TraceClass
from gpu_exporter.traces.xplane import is_xplane
from tests.support.xplane import SyntheticProfile

GPU, HOST, STREAM, PYTHON, LAUNCHES = "/device:GPU:0", "/host:CPU", "Stream #13(Compute)", "python", "Host Threads/7"
KERNEL = {"kernel_details": "regs:32 static_shared:0 dynamic_shared:0 grid:4,2,1 block:128,1,1 occ_pct:50"}
COPY = {"memcpy_details": "kind_src:pinned kind_dst:device size:4096 dest:0 async:1"}


def _profile(steps: int = 4) -> SyntheticProfile:
    """Return steps of 10 ms: 6 ms in load_batch, a copy, and 3 ms on the GPU."""
    made = SyntheticProfile()
    made.plane(GPU, device_vendor="Nvidia", core_count=132, memory_size=2**36)
    made.plane("Task Environment", profile_start_time=1_757_516_928_109_201_518)
    for number in range(steps):
        at = 10_000.0 * number + 10
        launch, copy = {"correlation_id": 10 * number + 1}, {"correlation_id": 10 * number + 2}
        made.event(HOST, PYTHON, "train", at, 9_990, {"step_num": number, "_r": 1})
        made.event(HOST, PYTHON, "$train.py:7 load_batch", at, 6_000)
        made.event(HOST, PYTHON, "$time sleep", at + 10, 5_900)
        made.event(HOST, PYTHON, "$pjit.py:200 cache_miss", at + 6_010, 100)
        made.event(HOST, LAUNCHES, "cuMemcpyHtoDAsync", at + 6_000, 5, copy)
        made.event(HOST, LAUNCHES, "cuLaunchKernel", at + 6_100, 5, launch)
        made.event(GPU, "Stream #14(MemcpyH2D)", "MemcpyH2D", at + 6_010, 100, {**copy, **COPY})
        made.event(GPU, STREAM, "loop_add_fusion", at + 6_110, 3_000, {**launch, **KERNEL})
        made.event(GPU, "XLA Ops", "loop_add_fusion", at + 6_110, 3_000)
    return made


def _read(folder: Path, made: SyntheticProfile) -> Trace:
    return read(made.write(folder / "host.xplane.pb"))


def test_every_line_becomes_columns(tmp_path: Path) -> None:
    """Streams, not the lines that repeat them; launches by correlation; frames and steps named as by PyTorch."""
    trace = _read(tmp_path, _profile(2))
    device, host = trace.device_events, trace.host_events
    assert [trace.names[row] for row in device.name] == ["Memcpy HtoD (Pinned -> Device)", "loop_add_fusion"] * 2
    assert device.kind.tolist() == [DeviceKind.COPY, DeviceKind.COMPUTE] * 2
    assert (device.stream[:2].tolist(), device.blocks.tolist()[1], device.bytes.tolist()[0]) == ([14, 13], 8, 4096)
    assert device.start.tolist()[0] == 1_757_516_928_109_201_518 + 6_020_000
    assert device.correlation.tolist() == [2, 1, 12, 11]
    assert trace.devices == {0: DeviceProperties("Nvidia", 132, 2**36)}
    kinds = {trace.names[row]: kind for row, kind in zip(host.name.tolist(), host.kind.tolist(), strict=True)}
    assert kinds == {
        "ProfilerStep#0": HostKind.ANNOTATION,
        "ProfilerStep#1": HostKind.ANNOTATION,
        "train.py(7): load_batch": HostKind.PYTHON,
        "<built-in function sleep>": HostKind.PYTHON,
        "jax/_src/pjit.py(200): cache_miss": HostKind.PYTHON,
        "cuMemcpyHtoDAsync": HostKind.RUNTIME,
        "cuLaunchKernel": HostKind.RUNTIME,
    }
    assert [name for name in kinds if is_user_frame(name)] == ["train.py(7): load_batch"]
    assert [step.name for step in trace.steps] == ["ProfilerStep#0", "ProfilerStep#1"]


def test_the_analysis_names_the_line_that_loads_data(tmp_path: Path) -> None:
    result = analyze([_read(tmp_path, _profile())])
    assert result.verdict.trace_class is TraceClass.DATA_LOADING
    assert "train.py(7): load_batch" in result.verdict.because
    assert len(result.ranks[0].steps) == 4


@pytest.mark.parametrize(
    ("name", "expected", "kind"),
    [
        ("MemcpyD2H", "Memcpy DtoH", DeviceKind.COPY),
        ("MemcpyOther", "Memcpy Other", DeviceKind.COPY),
        ("CopyDeviceToDevice", "Memcpy DtoD", DeviceKind.COPY),
        ("__amd_rocclr_copyBuffer.kd", "Memcpy", DeviceKind.COPY),
        ("__amd_rocclr_fillBufferAligned.kd", "Memset", DeviceKind.MEMSET),
        ("Memset", "Memset", DeviceKind.MEMSET),
        ("input_fusion.kd", "input_fusion", DeviceKind.COMPUTE),
        ("void f<int>(long*) [clone .kd]", "void f<int>(long*)", DeviceKind.COMPUTE),
        ("", "unnamed kernel", DeviceKind.COMPUTE),
        ("caf\udce9", "caf\ufffd", DeviceKind.COMPUTE),
        ("ncclDevKernel_AllReduce", "ncclDevKernel_AllReduce", DeviceKind.COMMUNICATION),
    ],
)
def test_names_and_kinds_of_gpu_work(tmp_path: Path, name: str, expected: str, kind: DeviceKind) -> None:
    """Of CUDA and ROCm."""
    made = SyntheticProfile()
    made.event(GPU, STREAM, name, 10, 5)
    trace = _read(tmp_path, made)
    assert (trace.names, trace.device_events.kind.tolist()) == ((expected,), [kind])


def test_work_whose_launch_was_not_recorded_stays(tmp_path: Path) -> None:
    """ROCm's collector leaves some launches out."""
    made = _profile(1)
    made.event("/device:GPU:1", STREAM, "input_fusion", 10, 5, {"correlation_id": 99})
    trace = _read(tmp_path, made)
    assert trace.device_events.correlation.tolist().count(UNKNOWN) == 1
    assert (len(trace.device_events), trace.dropped) == (3, {})


def test_times_that_are_none_are_counted(tmp_path: Path) -> None:
    made = _profile(1)
    made.event(GPU, STREAM, "before the profile", -10, 1)
    made.event(GPU, STREAM, "backwards", 10, -5)
    assert _read(tmp_path, made).dropped == {"without a valid time": 2}


@pytest.mark.parametrize(
    ("planes", "devices"), [(("/device:TPU:0", HOST), "/device:TPU:0"), ((HOST,), "none"), ((GPU,), GPU)]
)
def test_profiles_without_gpu_work(tmp_path: Path, planes: tuple[str, ...], devices: str) -> None:
    made = SyntheticProfile()
    for name in planes:
        made.event(name, "XLA Ops", "fusion", 1, 1)
    with pytest.raises(GpuExporterError, match=rf"no GPU events in this profile of JAX \(devices: {devices}\)"):
        _read(tmp_path, made)


def test_damaged_and_truncated_profiles(tmp_path: Path) -> None:
    """Each is one line, wherever the damage is. A file that is too short is called truncated."""
    text = _profile().space.SerializeToString()
    path = tmp_path / "t.xplane.pb"
    for length in range(10, len(text) - 1, 97):
        path.write_bytes(text[:length])
        with pytest.raises(GpuExporterError, match=r"truncated|no list of traceEvents|no GPU events|damaged"):
            read(path)
    path.write_bytes(text[:-1])
    with pytest.raises(GpuExporterError, match=rf"truncated: it has {len(text) - 1} of at least {len(text)} bytes"):
        read(path)
    path.write_bytes(gzip.compress(text)[:-9])
    with pytest.raises(GpuExporterError, match="the gzip data is truncated"):
        read(path)
    for at in range(3, len(text), 61):
        path.write_bytes(text[:at] + bytes([text[at] ^ 0xFF]) + text[at + 1 :])
        with suppress(GpuExporterError):
            analyze([read(path)])


@pytest.mark.parametrize(
    ("head", "expected"),
    [(b"\x0a\x05\x12\x03abc", True), (b"\x0a\xd0\x86\x03\x08\x02", True), (b'\n{"traceEvents"', False), (b"", False)],
)
def test_which_files_are_profiles_of_jax(head: bytes, expected: bool) -> None:
    assert is_xplane(head) is expected


def test_without_protobuf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _profile(1).write(tmp_path / "t.xplane.pb")
    monkeypatch.setitem(sys.modules, "google.protobuf.message", None)
    with pytest.raises(GpuExporterError, match=r"need the extra xplane: pip install protobuf$"):
        read(path)


def _field(number: int, value: int | bytes) -> bytes:
    """Return a field of protocol buffers, whose number and value are below 128, or are bytes of that length."""
    if isinstance(value, int):
        return bytes((number << 3, value))
    return bytes((number << 3 | 2, len(value))) + value


def _entry(key: int, name: bytes) -> bytes:
    return _field(1, key) + _field(2, _field(1, key) + _field(2, name))


def test_field_numbers_are_those_of_xplane_proto(tmp_path: Path) -> None:
    """Encoded by hand: XSpace.planes, XPlane, XLine, XEvent, XStat and the maps of metadata."""
    size, grid = _field(1, 2) + _field(4, 100), _field(1, 3) + _field(7, 4)
    # 5000 and 2000 ps
    event = _field(1, 1) + bytes((2 << 3, 0x88, 0x27)) + bytes((3 << 3, 0xD0, 0x0F)) + _field(4, grid)
    line = _field(1, 7) + _field(2, b"Stream #7(Kernel)") + _field(3, 50) + _field(4, event)
    parts = [_field(3, line), _field(4, _entry(1, b"fusion")), _field(5, _entry(3, b"kernel_details"))]
    parts += [_field(5, _entry(4, b"grid:6,7,1 block:1,1,1")), _field(5, _entry(2, b"core_count")), _field(6, size)]
    plane = _field(1, 1) + _field(2, b"/device:GPU:0") + b"".join(parts)
    path = tmp_path / "t.xplane.pb"
    path.write_bytes(bytes((0x0A, len(plane) & 0x7F | 0x80, len(plane) >> 7)) + plane + _field(4, b"host"))
    trace = read(path)
    assert (trace.names, trace.devices[0].multiprocessors) == (("fusion",), 100)
    events = trace.device_events
    assert (events.start.tolist(), events.end.tolist(), events.stream.tolist()) == ([55], [57], [7])
    assert events.blocks.tolist() == [42]
