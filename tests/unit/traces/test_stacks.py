"""Stacks and timelines of threads, against brute force."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.catalogue.causes import TraceCause
from gpu_exporter.traces import stacks as module
from gpu_exporter.traces.frames import cause_of, is_synchronising, is_user_frame, stack_cause_of
from gpu_exporter.traces.model import UNKNOWN
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.stacks import Stacks
from tests.support.traces import SyntheticTrace

Span = tuple[int, int]


def _nested(random: Random, start: int, end: int, depth: int) -> list[Span]:
    """Return nested spans of whole microseconds in a window, the outer before the inner."""
    spans: list[Span] = []
    while depth and end - start > 1 and random.random() < 0.8:
        begin = random.randrange(start, end - 1)
        stop = random.randrange(begin + 1, end + 1)
        spans += [(begin, stop), *_nested(random, begin, stop, depth - 1)]
        start = stop
    return spans


@given(st.integers(0, 10_000), st.sampled_from([3, 1 << 18]))
def test_the_innermost_event_of_each_moment(seed: int, block: int) -> None:
    spans = _nested(Random(seed), 0, 60, 4)
    trace = SyntheticTrace()
    trace.device(0, 1)
    for number, (start, end) in enumerate(spans):
        trace.host(f"f{number}", start, end - start, thread=9)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        loaded = read(trace.write(Path(folder) / "t.json"))
        stacks = Stacks(loaded)
        timeline = stacks.timeline(len(loaded.threads) - 1) if spans else None
    for moment in range(60):
        open_spans = [number for number, (start, end) in enumerate(spans) if start <= moment < end]
        expected = tuple(f"f{number}" for number in open_spans)
        found: tuple[str, ...] = ()
        if timeline is not None:
            at = int(np.searchsorted(timeline.borders, moment * 1000 + 500, side="right")) - 1
            if 0 <= at < len(timeline.event) and timeline.event[at] != UNKNOWN:
                found = stacks.names(int(stacks.of_event[timeline.event[at]]))
        assert found == expected, json.dumps(spans)


def test_a_child_that_outlives_its_parent_is_cut(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    trace.device(0, 1)
    trace.host("outer", 0, 10, "cpu_op", thread=9)
    trace.host("inner", 5, 6, "cpu_op", thread=9)
    loaded = read(trace.write(tmp_path / "t.json"))
    timeline = Stacks(loaded).timeline(len(loaded.threads) - 1)
    assert timeline.borders.tolist() == [0, 5000, 10000]


@pytest.mark.parametrize(
    ("names", "responsible"),
    [
        (["train.py(3): f"], "train.py(3): f"),
        (["train.py(3): f", "<built-in function sleep>"], "train.py(3): f > <built-in function sleep>"),
        (["train.py(3): f", "train.py(9): g", "aten::mm"], "train.py(9): g > aten::mm"),
        (["train.py(3): f", "train.py(4): <listcomp>"], "train.py(3): f > train.py(4): <listcomp>"),
        (
            ["train.py(3): f", "train.py(4): <listcomp>", "train.py(5): <lambda>", "aten::mm"],
            "train.py(3): f > train.py(4): <listcomp> > train.py(5): <lambda> > aten::mm",
        ),
        (["train.py(3): <module>"], "train.py(3): <module>"),
        (["ProfilerStep#3", "aten::mm"], "aten::mm"),
        (["aten::linear", "aten::mm", "cudaLaunchKernel"], "aten::mm > cudaLaunchKernel"),
        (
            ["torch/a.py(1): f", "torch/b.py(1): g", "aten::mm", "cudaLaunchKernel"],
            "torch/b.py(1): g > cudaLaunchKernel",
        ),
        (["torch/a.py(1): f"], "torch/a.py(1): f"),
        (["aten::linear, seq = 3, op_id = 8", "aten::mm, seq = 4", "cudaMalloc"], "aten::mm > cudaMalloc"),
        (["train.py(3): f", "at object at 0x7f3a", "call at 0xAF"], "train.py(3): f > call"),
    ],
)
def test_the_code_responsible_for_a_stack(tmp_path: Path, names: list[str], responsible: str) -> None:
    trace = SyntheticTrace()
    for at, name in enumerate(names):
        trace.host(name, at, 100 - 2 * at, "python_function" if "): " in name else "cpu_op")
    loaded = read(trace.write(tmp_path / "t.json"))
    stacks = Stacks(loaded)
    assert stacks.responsible(0) == ""
    timeline = stacks.timeline(0)
    at = int(np.searchsorted(timeline.borders, 50_000)) - 1
    assert stacks.responsible(int(stacks.of_event[timeline.event[at]])) == responsible


def test_stacks_with_equal_names_are_one(tmp_path: Path) -> None:
    """Whatever the number of the step, the address of an object and the thread."""
    trace = SyntheticTrace()
    for number, thread in enumerate((1, 1, 2)):
        trace.host(f"ProfilerStep#{number}", 100 * number, 90, "user_annotation", thread)
        trace.host(f"<method f of X object at 0x{number}>", 100 * number + 1, 80, thread=thread)
    stacks = Stacks(read(trace.write(tmp_path / "t.json")))
    for thread in (0, 1):
        stacks.timeline(thread)
    assert stacks.count == 3
    assert [stacks.names(int(stack)) for stack in stacks.of_event[:2]] == [
        ("ProfilerStep",), ("ProfilerStep", "<method f of X>"),
    ]  # fmt: skip
    assert len(set(stacks.of_event.tolist())) == 2


@pytest.mark.parametrize(
    ("start", "end", "borders"),
    [
        (5, 105, [0, 5, 105]),  # most of it is beyond the frame
        (5, 15, [0, 5, 10]),  # half of it is: it is cut
        (5, 16, [0, 5, 16]),
        (20, 30, [0, 10, 20, 30]),
    ],
)
def test_an_annotation_may_outlive_the_frame_that_opened_it(
    tmp_path: Path, start: int, end: int, borders: list[int]
) -> None:
    trace = SyntheticTrace()
    trace.host("profiler.py(1): __enter__", 0, 10)
    trace.host("range", start, end - start, "user_annotation")
    timeline = Stacks(read(trace.write(tmp_path / "t.json"))).timeline(0)
    assert timeline.borders.tolist() == [1000 * border for border in borders]


def test_an_event_without_length_is_in_no_stack(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    trace.host("f", 0, 0)
    stacks = Stacks(read(trace.write(tmp_path / "t.json")))
    assert len(stacks.timeline(0).event) == 0
    assert stacks.of_event.tolist() == [UNKNOWN]


@pytest.mark.parametrize(
    ("frame", "cause"),
    [
        ("torch/utils/data/dataloader.py(701): __next__", TraceCause.DATA_LOADING),
        ("torch/distributed/distributed_c10d.py(5): all_reduce", TraceCause.COLLECTIVES),
        ("ncclAllReduce", TraceCause.COLLECTIVES),
        ("cudaStreamSynchronize", TraceCause.SYNCHRONISATION),
        ("torch/cuda/__init__.py(9): synchronize", TraceCause.SYNCHRONISATION),
        ("gc_collect_main", TraceCause.GARBAGE_COLLECTION),
        ("train.py(3): main", None),
    ],
)
def test_causes_that_frames_of_a_process_name(frame: str, cause: TraceCause | None) -> None:
    assert stack_cause_of(frame) is cause


@pytest.mark.parametrize(
    ("frame", "cause"),
    [
        ("torch/utils/data/dataloader.py(701): __next__", TraceCause.DATA_LOADING),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", TraceCause.DATA_LOADING),
        ("train.py(3): load_batch", TraceCause.DATA_LOADING),
        ("DATA_LOADING", TraceCause.DATA_LOADING),
        ("data_loader/train.py(3): main", None),
        ("torch/serialization.py(943): save", TraceCause.CHECKPOINT),
        ("train.py(9): save_checkpoint", TraceCause.CHECKPOINT),
        ("torch/utils/checkpoint.py(500): checkpoint", None),
        ("torch/_dynamo/eval_frame.py(600): _fn", None),
        ("torch/_dynamo/convert_frame.py(600): __call__", TraceCause.COMPILATION),
        ("cuModuleLoadData", TraceCause.COMPILATION),
        ("<built-in function collect>", TraceCause.GARBAGE_COLLECTION),
        ("aten::mm", None),
        ("os.py(680): __getitem__", None),
    ],
)
def test_causes_that_frames_name(frame: str, cause: TraceCause | None) -> None:
    assert cause_of(frame) is cause


@pytest.mark.parametrize(
    ("frame", "is_user"),
    [
        ("train.py(3): main", True),
        ("/home/x/project/model.py(77): forward", True),
        ("<stdin>(12): go", True),
        ("torch/nn/modules/module.py(1500): _call_impl", False),
        ("/usr/lib/python3.12/threading.py(973): _bootstrap", False),
        ("threading.py(973): _bootstrap", False),
        ("/venv/lib/python3.12/site-packages/transformers/x.py(1): f", False),
        ("<built-in function sleep>", False),
        ("nn.Module: Linear_0", False),
        ("aten::mm", False),
    ],
)
def test_frames_of_the_user(frame: str, is_user: bool) -> None:
    assert is_user_frame(frame) is is_user


@pytest.mark.parametrize(
    "name", ["cudaStreamSynchronize", "hipDeviceSynchronize", "cudaMemcpy", "cudaFree", "cuCtxSynchronize"]
)
def test_calls_that_wait_for_the_gpu(name: str) -> None:
    assert is_synchronising(name)


@pytest.mark.parametrize("name", ["cudaMemcpyAsync", "cudaLaunchKernel", "cudaFreeAsync", "cudaEventRecord"])
def test_calls_that_do_not_wait(name: str) -> None:
    assert not is_synchronising(name)
