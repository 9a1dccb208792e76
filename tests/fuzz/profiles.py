"""Fuzzing of what profiled jobs send: Kineto's messages, and stacks with names that they chose."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpu_exporter.profiling import text_report
from gpu_exporter.profiling.kineto_daemon import decode, encode
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import Sampling
from gpu_exporter.profiling.result import process_profile
from gpu_exporter.profiling.stacks import parse
from tests.fuzz.harness import Parser, Target

PROCESS = Process(7, 1, 0, "train.py", 7)
MESSAGE_TOKENS = (b"req\0", b"ctxt\0", struct.pack("=i", 64), struct.pack("=i", -1), struct.pack("=Q", 1 << 63))
STACK_TOKENS = (
    b"thread (7): MainThread;",
    b'process 8:"x";',
    b" (/a.py:1);",
    b" (libc.so.6);",
    b";;",
    b" 99999999999999\n",
)


@contextmanager
def _messages(folder: Path) -> Iterator[Parser]:
    def take(content: bytes) -> Iterable[str]:
        decode(content)
        return ()

    yield Parser(take)


@contextmanager
def _stacks(folder: Path) -> Iterator[Parser]:
    def take(content: bytes) -> Iterable[str]:
        stacks = parse(content.decode("utf-8", "replace"), {7}, native=True)
        return text_report.lines([process_profile(PROCESS, stacks, Sampling())])

    yield Parser(take)


def _valid_messages() -> Sequence[bytes]:
    return [
        encode("ctxt", struct.pack("=iiq", 0, 42, 7)),
        encode("req", struct.pack("=iiq3i", 2, 3, 7, 42, 41, 1)),
        encode("req", struct.pack("=iiq", 0, 0, 0)),
    ]


def _valid_stacks() -> Sequence[bytes]:
    return [
        b"thread (7): MainThread;main (/home/u/train.py:9);load_batch (/home/u/train.py:3) 60\n"
        b"thread (8): pool;wait (/usr/lib/python3.11/threading.py:327);pthread_cond_wait (libc.so.6) 50\n",
        b'process 7:"train.py";process 9:"train.py";thread (9): MainThread;decode (/home/u/train.py:3) 60\n',
    ]


TARGETS = (
    Target("kineto", _valid_messages, _messages, (ValueError,), MESSAGE_TOKENS),
    Target("stacks", _valid_stacks, _stacks, tokens=STACK_TOKENS),
)
