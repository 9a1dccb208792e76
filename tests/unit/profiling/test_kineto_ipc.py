"""The messages of Kineto's IPC."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.profiling.kineto_daemon import (
    MOST_PIDS,
    Poll,
    Registration,
    TraceOptions,
    configuration,
    decode,
    encode,
    registered,
    trace_configuration,
)


def test_messages_of_libkineto() -> None:
    assert decode(encode("ctxt", struct.pack("=iiq", 3, 42, 77))) == Registration(3, 42)
    assert decode(encode("req", struct.pack("=iiq3i", 2, 3, 77, 42, 41, 1))) == Poll((42, 41, 1), True)
    assert decode(encode("req", struct.pack("=iiq", 0, 0, 0))) == Poll((), False)


def test_replies() -> None:
    assert registered(1) == struct.pack("=Q32si", 4, b"ctxt", 1)
    assert configuration("A=1\n") == struct.pack("=Q32s", 4, b"req") + b"A=1\n"


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"x" * 39,
        encode("req", b""),
        encode("req", struct.pack("=iiq", 2, MOST_PIDS + 1, 0)),
        encode("req", struct.pack("=iiq", 2, -1, 0)),
        encode("req", struct.pack("=iiq", 2, 3, 0)),
        encode("ctxt", b"short"),
        encode("other", struct.pack("=iiq", 2, 0, 0)),
        struct.pack("=Q32s", 1 << 60, b"req") + bytes(16),
    ],
)
def test_other_datagrams_are_refused(datagram: bytes) -> None:
    with pytest.raises(ValueError, match=r"bytes|names"):
        decode(datagram)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_message_or_an_error(datagram: bytes) -> None:
    problem = ""
    try:
        decode(datagram)
    except ValueError as error:
        problem = str(error)
    assert "\n" not in problem


def test_the_configuration_of_a_trace() -> None:
    text = trace_configuration(TraceOptions(), "/tmp/x.json")
    assert text == (
        "ACTIVITIES_LOG_FILE=/tmp/x.json\nPROFILE_START_TIME=0\nACTIVITIES_DURATION_MSECS=500\n"
        "ACTIVITIES_WARMUP_PERIOD_SECS=2\nPROFILE_WITH_STACK=true\nPROFILE_REPORT_INPUT_SHAPES=false\n"
    )
    fewer = TraceOptions(0.2, stacks=False, activities=("kernel", "cuda_runtime"), warm_up=1)
    text = trace_configuration(fewer, "/tmp/x.json", start=1700000000.5)
    assert "PROFILE_START_TIME=1700000000500\nACTIVITIES_DURATION_MSECS=200\n" in text
    assert text.endswith("PROFILE_REPORT_INPUT_SHAPES=false\nACTIVITY_TYPES=kernel,cuda_runtime\n")
