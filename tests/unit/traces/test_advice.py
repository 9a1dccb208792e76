"""What advice a trace gives: its kind, its upper bound on the saving, and its first words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_exporter.traces.advice import merged
from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.model import TraceRecorder
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.result import Advice
from tests.support.simulated_jobs import Job
from tests.support.traces import SyntheticTrace

US = 1e-6
ELEMENTWISE, SGEMM = "vectorized_elementwise_kernel", "volta_sgemm_128x64_tn"
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def _advice(folder: Path, trace: SyntheticTrace) -> dict[str, Advice]:
    return {one.kind: one for one in analyze([read(trace.write(folder / "trace.json"))]).verdict.advice}


def _idle(*frames: str, launch: str = "cudaLaunchKernel", gap: float = 900) -> SyntheticTrace:
    """Return two kernels of 100 us, between which the GPU is idle while the host is in these frames."""
    trace = SyntheticTrace()
    trace.device(0, 100, launched=-20)
    for number, frame in enumerate(frames):
        trace.host(frame, 90 + number, gap - 2 * number)
    trace.device(100 + gap, 100, correlation=trace.launch(100 + gap - 5, 4, launch))
    return trace


IDLE: dict[str, tuple[SyntheticTrace, str, str]] = {
    "a loader without workers": (
        _idle("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "d.py(3): decode"),
        "data_loading", "The loader runs in the main process"
    ),
    "a loader with workers": (
        _idle("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "d.py(3): decode"),
        "data_loading", "The loader's workers are too slow"
    ),
    "another loader": (_idle("data.py(3): load_batch"), "data_loading", "Load data in other processes"),
    "late launches": (_idle("train.py(3): main"), "cuda_graphs", "The host launches kernels more slowly"),
    "late launches of graphs": (_idle(launch="cudaGraphLaunch", gap=5), "cuda_graphs", "The GPU waits between"),
    "a checkpoint": (_idle("train.py(3): save_checkpoint"), "checkpoint", "Write checkpoints in the background"),
    "compilation": (_idle("cuModuleLoadData"), "compilation", "Code is compiled or loaded in the traced steps"),
    "garbage": (_idle("<built-in function collect>"), "garbage_collection", "Call gc.freeze()"),
    "other code": (_idle("train.py(3): main", gap=2000), "python", "Move this code of the host"),
}  # fmt: skip


@pytest.mark.parametrize("case", IDLE)
def test_idle_time(tmp_path: Path, case: str) -> None:
    """Each cause of idle time has its advice, which saves at most all of this idle time."""
    trace, kind, words = IDLE[case]
    (found,) = _advice(tmp_path, trace).values()
    assert found.kind == kind
    assert found.text.startswith(words)
    assert found.frames


def test_a_wait_for_the_gpu(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    trace.device(0, 100, launched=-20)
    trace.host("cudaStreamSynchronize", 10, 92, "cuda_runtime")
    trace.device(600, 100, launched=590)
    (found,) = _advice(tmp_path, trace).values()
    assert found.kind == "synchronisation"
    assert found.saving_seconds == pytest.approx(500 * US)
    assert found.text.startswith("The host waits for the GPU in the loop")


@pytest.mark.parametrize(
    ("copy", "words"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "1 x copy to the GPU per step: use pin_memory=True"),
        ("Memcpy DtoH (Device -> Pageable)", "1 x copy to the host per step: copy into pinned memory"),
    ],
)
def test_the_direction_of_a_copy_that_waits(tmp_path: Path, copy: str, words: str) -> None:
    """The same operator and calls copy in both."""
    trace = SyntheticTrace()
    trace.step(1, -100, 900)
    trace.host("aten::copy_", -30, 150, "cpu_op")
    trace.device(0, 100, copy, category="gpu_memcpy", correlation=trace.launch(-20, name="cudaMemcpyAsync"))
    trace.host("cudaStreamSynchronize", 10, 92, "cuda_runtime")
    trace.device(600, 100, launched=590)
    assert words in _advice(tmp_path, trace)["synchronisation"].text


def _kernels(*rows: tuple[str, float, float, int], blocks: int = 1320, multiprocessors: int = 132) -> SyntheticTrace:
    """Return kernels, each with a name, a start, a duration and a stream."""
    trace = SyntheticTrace(multiprocessors=multiprocessors)
    for name, start, duration, stream in rows:
        trace.device(start, duration, name, stream=stream, launched=-20, args={"grid": [blocks, 1, 1]})
    return trace


def _chain(count: int, duration: float = 50, name: str = ELEMENTWISE) -> SyntheticTrace:
    """Return a row of kernels, then one that nothing can be done about."""
    rows = [(name, number * duration, duration, 7) for number in range(count)]
    return _kernels(*rows, ("sm90_xmma_gemm_bf16", count * duration, 100, 7))


ADVICE: dict[str, tuple[SyntheticTrace, dict[str, float]]] = {
    # At best, the longest kernel of a chain remains.
    "three short kernels in a row": (_chain(3), {"fusion": 100}),
    "two in a row": (_chain(2), {}),
    "longer ones": (_chain(3, 50.001), {}),
    "of another kind": (_chain(3, name="sm90_xmma_gemm_bf16"), {}),
    "of unequal length": (
        _kernels((ELEMENTWISE, 0, 10, 7), ("softmax", 10, 40, 7), ("_norm_", 50, 20, 7), ("gemm", 70, 100, 7)),
        {"fusion": 30},
    ),
    "interrupted by another": (
        _kernels((ELEMENTWISE, 0, 10, 7), (ELEMENTWISE, 10, 10, 7), ("gemm", 20, 10, 7), (ELEMENTWISE, 30, 10, 7)),
        {},
    ),
    "in turns on two streams": (
        _kernels(*((ELEMENTWISE, 10 * number, 10, 7 + number % 2) for number in range(6))), {"fusion": 40}
    ),
    "on streams of their own": (_kernels(*((ELEMENTWISE, 10 * number, 10, number) for number in range(3))), {}),
    "two chains": (
        _kernels(*((ELEMENTWISE if number != 3 else "gemm", 10 * number, 10, 7) for number in range(7))), {"fusion": 40}
    ),
    # A quarter of the multiprocessors has work.
    "a small grid": (_kernels(("gemm", 0, 100, 7), blocks=33), {"larger_batch": 75}),
    "a grid of one block for each multiprocessor": (_kernels(("gemm", 0, 100, 7), blocks=132), {}),
    "an unknown grid": (_kernels(("gemm", 0, 100, 7), blocks=-1), {}),
    "an unknown GPU": (_kernels(("gemm", 0, 100, 7), blocks=1, multiprocessors=0), {}),
    # No tensor core multiplies vectors faster.
    "products of matrices and vectors": (
        _kernels(("std::enable_if<true, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16>", 0, 60, 7)), {}
    ),
    # What runs at the same time cannot save more than this time.
    "on streams at the same time": (
        _kernels(*((ELEMENTWISE, 10 * number, 10, stream) for stream in (7, 8) for number in range(3))), {"fusion": 20}
    ),
    "matrix products without tensor cores": (_kernels((SGEMM, 0, 60, 7), ("gemm", 60, 40, 7)), {"tensor_cores": 52.5}),
    # Advice that saves less than 1 % of the time is not given.
    "a saving of 1 %": (_kernels((SGEMM, 0, 8, 7), ("gemm", 8, 692, 7)), {"tensor_cores": 7}),
    "a saving of less": (_kernels((SGEMM, 0, 8, 7), ("gemm", 8, 693, 7)), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", ADVICE)
def test_kernels(tmp_path: Path, case: str) -> None:
    trace, expected = ADVICE[case]
    found = {kind: one.saving_seconds for kind, one in _advice(tmp_path, trace).items()}
    assert found == pytest.approx({kind: saving * US for kind, saving in expected.items()})


def _one_small_grid() -> SyntheticTrace:
    trace = _kernels(("gemm", 0, 100, 7), blocks=33)
    trace.device(100, 100, "gemm", args={"grid": [132, 1, 1]})
    return trace


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (_chain(3), "1 chains of short element-wise kernels take 150 us:"),
        (_one_small_grid(), "1 kernels have fewer thread blocks than the GPU has mul"),
        (_kernels((SGEMM, 0, 60, 7)), "matrix products take 60 us without tensor cores"),
    ],
)
def test_texts_name_the_numbers(tmp_path: Path, trace: SyntheticTrace, words: str) -> None:
    (found,) = _advice(tmp_path, trace).values()
    assert found.text.startswith(words)


def _copy(name: str = PAGEABLE, kernel: str = "gemm", kernel_start: float = 75) -> SyntheticTrace:
    """Return a copy from 0 to 100 us, and a kernel of 100 us."""
    trace = SyntheticTrace()
    trace.device(0, 100, name, category="gpu_memcpy", launched=-20, stream=8)
    trace.device(kernel_start, 100, kernel, launched=-10)
    return trace


COPIES: dict[str, tuple[SyntheticTrace, dict[str, float]]] = {
    "while a kernel computes for a quarter of it": (_copy(), {"pinned_memory": 75}),
    "while nothing computes": (_copy(kernel_start=100), {"pinned_memory": 100}),
    "while a kernel communicates": (_copy(kernel="nccl"), {"pinned_memory": 75, "overlap_communication": 100}),
    "all of it while a kernel computes": (_copy(kernel_start=0), {}),
    "of pinned memory": (_copy("Memcpy HtoD (Pinned -> Device)"), {}),
}


@pytest.mark.parametrize("case", COPIES)
def test_copies(tmp_path: Path, case: str) -> None:
    trace, expected = COPIES[case]
    found = {kind: one.saving_seconds for kind, one in _advice(tmp_path, trace).items()}
    assert found == pytest.approx({kind: saving * US for kind, saving in expected.items()})


def test_copies_that_come_late(tmp_path: Path) -> None:
    """The idle time before a copy is part of what it costs."""
    trace = SyntheticTrace()
    trace.device(0, 100, launched=-20)
    trace.device(109, 41, PAGEABLE, category="gpu_memcpy", launched=50)
    found = _advice(tmp_path, trace)["pinned_memory"]
    assert found.saving_seconds == pytest.approx(50 * US)
    assert found.text.startswith("1 copies use pageable memory")


def test_communication_that_nothing_hides(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    trace.device(0, 100, launched=-20)
    trace.device(60, 100, "ncclDevKernel_AllReduce", launched=-10, stream=8)
    found = _advice(tmp_path, trace)["overlap_communication"]
    assert (found.saving_seconds, found.saving_ratio) == pytest.approx((60 * US, 60 / 160))
    assert found.text.startswith("60 % of the communication runs while nothing computes")
    assert found.frames == ("cudaLaunchKernel",)


def test_the_largest_saving_comes_first(tmp_path: Path) -> None:
    found = _advice(tmp_path, _kernels((SGEMM, 0, 80, 7), ("gemm", 80, 30, 7), ("nccl", 110, 50, 8), blocks=66))
    assert list(found) == ["tensor_cores", "overlap_communication", "larger_batch"]
    assert found["larger_batch"].saving_seconds == pytest.approx(15 * US)  # the other product is counted already
    assert [one.kernels for one in found.values()] == [(SGEMM,), ("nccl",), ("gemm",)]


def test_advice_for_several_ranks() -> None:
    """Of each kind the mean, with the text of the rank that saves most, the largest first."""

    def one(kind: str, saving: float, text: str = "") -> Advice:
        return Advice(kind, text, saving, saving)

    ranks = [[one("a", 3.0, "first"), one("b", 1.0)], [one("b", 4.0), one("a", 3.0, "second"), one("c", 2.0)]]
    assert merged(ranks) == (one("a", 3.0, "first"), one("b", 2.5), one("c", 1.0))
    assert merged([[one("a", 0.01)], []]) == ()  # less than 1 % of all
    assert merged([]) == ()


def _waits(*frames: tuple[str, str], call: str = "cudaStreamSynchronize", steps: int = 3) -> SyntheticTrace:
    """Return steps with two waits in these frames, each a name and a category."""
    trace = SyntheticTrace()
    for step in range(steps):
        start = step * 2000
        trace.step(step, start, 2000)
        for at in (start, start + 1000):
            for depth, (name, category) in enumerate(frames):
                trace.host(name, at + 20 + depth, 600 - 2 * depth, category)
            trace.host(call, at + 50, 460, "cuda_runtime")
            trace.device(at + 10, 500, launched=at)
    return trace


ITEM = (("train.py(35): log", "python_function"), ("aten::item", "cpu_op"), ("aten::_local_scalar_dense", "cpu_op"))
WAITS: dict[str, tuple[SyntheticTrace, str, str]] = {
    "of the user": (_waits(*ITEM), "synchronisation", "The host waits for the GPU in the loop, 2 x .item() per step:"),
    "in a call": (
        _waits(("train.py(35): log", "python_function")),
        "synchronisation", "The host waits for the GPU in the loop, 2 x cudaStreamSynchronize per step: keep values",
    ),
    "of the allocator": (_waits(ITEM[0], call="cudaMalloc"), "allocation", "Memory of the GPU is allocated or freed"),
    "of the allocator of HIP": (_waits(ITEM[0], call="hipMalloc"), "allocation", "Memory of the GPU is allocated"),
    "of DDP": (
        _waits(ITEM[0], ("torch/nn/parallel/distributed.py(1500): forward", "python_function")), "", ""
    ),
    "of the hooks of DDP": (
        _waits(("autograd::engine::evaluate_function: AccumulateGrad", "cpu_op"), call="cudaEventSynchronize"), "", ""
    ),
}  # fmt: skip


def test_allocations_beside_a_wait_are_not_that_wait(tmp_path: Path) -> None:
    trace = _waits(("train.py(35): log", "python_function"))
    for number in range(60):
        trace.host("cudaMalloc", 521 + number, 0.5, "cuda_runtime")
    assert "2 x cudaStreamSynchronize per step" in _advice(tmp_path, trace)["synchronisation"].text


def test_work_that_waits_for_another_gpu_names_it(tmp_path: Path) -> None:
    """Such as the layers of a model that is spread over the GPUs of one process."""
    trace = SyntheticTrace()
    for step in range(3):
        for device in range(2):
            start = 2000 * step + 1000 * device
            trace.device(start, 1000, f"layer_{device}", launched=-100 + step, device=device)
    first, second = analyze([read(trace.write(tmp_path / "trace.json"))]).ranks
    found = [{cause.cause: cause.frames for cause in rank.idle_causes}["dependency"] for rank in (first, second)]
    assert found == [
        ("layer_0 on stream 7 after layer_1 on stream 7 of GPU 1",),
        ("layer_1 on stream 7 after layer_0 on stream 7 of GPU 0",),
    ]


RECORDED: dict[str, tuple[SyntheticTrace, dict[TraceRecorder, str]]] = {
    "launches": (
        _idle("main"),
        {
            TraceRecorder.PYTORCH: "torch.compile(mode=",
            TraceRecorder.JAX: "compile the whole step with one jax.jit",
            TraceRecorder.NSIGHT_SYSTEMS: "cudaStreamBeginCapture",
        },
    ),
    "launches of PyTorch": (_idle("aten::mm"), {TraceRecorder.NSIGHT_SYSTEMS: "torch.compile(mode="}),
    "synchronise": (
        _waits(("main", "user_annotation"), call="cudaDeviceSynchronize"),
        {
            TraceRecorder.PYTORCH: "2 x torch.cuda.synchronize() per step: leave it out",
            TraceRecorder.NSIGHT_SYSTEMS: "2 x cudaDeviceSynchronize per step: keep values on the GPU, read",
        },
    ),
}


@pytest.mark.parametrize("case", RECORDED)
def test_advice_is_for_what_the_program_is_written_with(tmp_path: Path, case: str) -> None:
    trace, expected = RECORDED[case]
    known = read(trace.write(tmp_path / "trace.json"))
    for recorder, words in expected.items():
        (found,) = analyze([replace(known, recorder=recorder)]).verdict.advice
        assert words in found.text
        assert ("torch" in found.text) == ("torch" in words)


def test_a_late_start_on_the_same_stream_is_no_dependency_on_another(tmp_path: Path) -> None:
    for stream, words in (
        (7, "began late although no other stream worked"),
        (9, "put independent work on a stream"),
    ):
        trace = SyntheticTrace()
        trace.device(0, 100, launched=-40)
        trace.device(150, 100, launched=-20, stream=stream)
        assert words in _advice(tmp_path, trace)["dependency"].text


@pytest.mark.parametrize("case", WAITS)
def test_waits_for_the_gpu(tmp_path: Path, case: str) -> None:
    """With how often and where; those that no line of the user causes are no advice for the user."""
    trace, kind, words = WAITS[case]
    found = _advice(tmp_path, trace)
    assert list(found) == ([kind] if kind else [])
    if kind:
        assert found[kind].text.startswith(words)
        assert found[kind].frames[0].startswith("train.py(35): log")


def test_launched_work_names_what_it_waited_for(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    trace.device(0, 100, "sm90_gemm", launched=-20)
    trace.device(1000, 100, "softmax_kernel", launched=-10, stream=9)
    result = analyze([read(trace.write(tmp_path / "t.json"))])
    words = "softmax_kernel on stream 9 after sm90_gemm on stream 7"
    assert [(cause.cause, cause.frames) for cause in result.ranks[0].idle_causes] == [("dependency", (words,))]
    (found,) = result.verdict.advice
    assert found.kind == "dependency"
    assert found.saving_seconds == pytest.approx(900 * US)
    assert words in found.text


def test_migrations_of_unified_memory(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    for start in (0, 200):
        trace.device(
            start, 100, "Memcpy HtoD (unified memory)", category="gpu_memcpy", args={"bytes": 1 << 20}, launched=-20
        )
    found = _advice(tmp_path, trace)["unified_memory"]
    assert found.text.startswith("2 migrations and page faults of unified memory (2 MiB): prefetch")
    assert found.saving_seconds == pytest.approx(200 * US)
    assert found.kernels == ("Memcpy HtoD (unified memory)",)


def test_no_advice_without_code_or_kernel(tmp_path: Path) -> None:
    """A gap of which the file has no frame."""
    trace = SyntheticTrace()
    trace.device(0, 100, "gemm", correlation=-1)
    trace.device(5000, 100, "gemm", correlation=-1)
    assert _advice(tmp_path, trace) == {}


@pytest.mark.parametrize(
    ("job", "kind", "words", "frame"),
    [
        (
            Job(host=lambda _, rank, step: 5000.0 * (rank == 2)),
            "host",
            "whose host is slower: make",
            "train.py(9): augment",
        ),
        (
            Job(gpu=lambda _, rank, step: 400.0 * (rank == 2)),
            "gpu",
            "whose GPU takes longer for as many kernels: check",
            "train.py(3)",
        ),
    ],
)
def test_the_first_advice_for_a_straggler_is_about_it(
    tmp_path: Path, job: Job, kind: str, words: str, frame: str
) -> None:
    traces = [read(trace.write(tmp_path / f"{rank}.json")) for rank, trace in enumerate(job.traces())]
    result = analyze(traces)
    assert result.straggler is not None
    first, *others = result.verdict.advice
    assert (result.straggler.kind, first.kind) == (kind, "straggler")
    assert first.text.startswith(
        f"The others wait {result.straggler.excess_seconds * 1e3:.3g} ms per step for rank 2, {words}"
    )
    assert first.frames[0].startswith(frame)
    # Overlapping communication saves only the transfer, and the slow code is not counted again.
    assert "python" not in {one.kind for one in others}
    transfer = sum(rank.exposed_transfer_seconds or 0.0 for rank in result.ranks) / len(result.ranks)
    saved = {one.kind: one.saving_seconds for one in others}
    assert saved["overlap_communication"] == pytest.approx(transfer, rel=0.01)


def test_a_rank_with_more_work_is_told_apart_from_a_slow_gpu(tmp_path: Path) -> None:
    job = Job(gpu=lambda _, rank, step: 400.0 * (rank == 2))
    traces = job.traces()
    for number in range(20):
        traces[2].device(1 + number, 1, "relu_kernel", launched=0, stream=20)
    result = analyze([read(trace.write(tmp_path / f"{rank}.json")) for rank, trace in enumerate(traces)])
    assert result.verdict.advice[0].text.endswith("which runs 146 kernels where the others run 126: give it less work.")


def test_savings_add_up(tmp_path: Path) -> None:
    """All advice together saves at most the time that a job takes."""
    for number, job in enumerate(
        (Job(loads=8000), Job(overlaps=False, transfer=3000), Job(host=lambda _, rank, step: 5000.0 * rank))
    ):
        traces = [read(trace.write(tmp_path / f"{number}-{rank}.json")) for rank, trace in enumerate(job.traces())]
        assert 0.1 < sum(one.saving_ratio for one in analyze(traces).verdict.advice) <= 1
