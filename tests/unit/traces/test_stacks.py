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
from gpu_exporter.traces.frames import cause_of, is_synchronising, is_user_frame
from gpu_exporter.traces.kineto import read
from gpu_exporter.traces.model import UNKNOWN
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
