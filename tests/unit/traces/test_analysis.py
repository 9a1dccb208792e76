"""The analysis, on synthetic traces whose answers are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.exports import pprof_profile
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.result import AnalysisResult, IdleCause, TraceClass
from gpu_exporter.traces.verdict import Thresholds
from tests.support.pprof import decoded, folded_of
from tests.support.traces import AUTOGRAD, SyntheticTrace

STEPS, STEP = 5, 10_000.0


def _analyzed(folder: Path, *traces: SyntheticTrace, thresholds: Thresholds | None = None) -> AnalysisResult:
    found = [read(trace.write(folder / f"{number}.json")) for number, trace in enumerate(traces)]
    return analyze(found, thresholds or Thresholds())


def _cause(result: AnalysisResult, name: str) -> IdleCause:
    return next(cause for cause in result.ranks[0].idle_causes if cause.cause == name)


def _loop(fill: Callable[[SyntheticTrace, float], None], **attributes: int) -> SyntheticTrace:
    """Return a trace of steps of 10 ms, each of which `fill` makes from its start."""
    trace = SyntheticTrace(**attributes)
    trace.host("train.py(3): main", 0, STEPS * STEP + 100)
    for number in range(STEPS):
        trace.step(number, number * STEP, STEP)
        fill(trace, number * STEP)
    return trace


def _loading(trace: SyntheticTrace, start: float) -> None:
    """6 ms in the loader, 4 ms on the GPU."""
    trace.host("torch/utils/data/dataloader.py(700): __next__", start, 6000)
    trace.host("data.py(20): decode", start + 100, 5800)
    trace.device(start + 6010, 3990, launched=start + 6000)


def _items(trace: SyntheticTrace, start: float) -> None:
    """Ten times 500 us on the GPU, after which the host waits for it, and works for 450 us."""
    for part in range(10):
        at = start + part * 1000
        trace.host("train.py(9): log_loss", at + 20, 530)
        trace.host("aten::item", at + 25, 520, "cpu_op")
        trace.host("cudaStreamSynchronize", at + 30, 512, "cuda_runtime")
        trace.host("torch/nn/modules/module.py(1): forward", at + 555, 430)
        trace.device(at + 40, 500, launched=at)


def _tiny(trace: SyntheticTrace, start: float) -> None:
    """A kernel of 3 us every 10 us."""
    for part in range(1000):
        at = start + part * 10
        trace.host("aten::add", at, 9, "cpu_op")
        trace.device(at + 7, 3, "vectorized_elementwise_kernel", launched=at + 2)


def _checkpoint(trace: SyntheticTrace, start: float) -> None:
    trace.host("torch/serialization.py(900): save", start, 7000)
    trace.device(start + 7010, 2990, launched=start + 7000)


def _full(trace: SyntheticTrace, start: float) -> None:
    trace.device(start + 10, 9990, launched=start)


def _exposed(trace: SyntheticTrace, start: float) -> None:
    """6 ms of computing, 5 ms of communication, of which 1 ms overlaps."""
    trace.device(start + 10, 6000, launched=start)
    trace.device(start + 5010, 4990, "ncclDevKernel_AllReduce_Sum_bf16", launched=start + 20, stream=13)


def _pageable(trace: SyntheticTrace, start: float) -> None:
    trace.device(start + 10, 5000, "Memcpy HtoD (Pageable -> Device)", category="gpu_memcpy", launched=start)
    trace.device(start + 5010, 4990, launched=start + 20)


CASES: dict[Callable[[SyntheticTrace, float], None], TraceClass] = {
    _loading: TraceClass.DATA_LOADING,
    _items: TraceClass.SYNC,
    _tiny: TraceClass.LAUNCH,
    _checkpoint: TraceClass.CHECKPOINT,
    _full: TraceClass.COMPUTE,
    _exposed: TraceClass.COMMUNICATION,
    _pageable: TraceClass.COPY,
}


@pytest.mark.parametrize("fill", CASES, ids=lambda fill: fill.__name__.strip("_"))
def test_each_cause_has_its_class(tmp_path: Path, fill: Callable[[SyntheticTrace, float], None]) -> None:
    verdict = _analyzed(tmp_path, _loop(fill)).verdict
    assert verdict.trace_class is CASES[fill], verdict.because


def test_loading_time_is_exact_and_names_the_line(tmp_path: Path) -> None:
    result = _analyzed(tmp_path, _loop(_loading))
    rank = result.ranks[0]
    assert rank.span_seconds == pytest.approx((5 * STEP - 6010) * 1e-6)
    assert rank.busy_ratio * rank.span_seconds == pytest.approx(5 * 3990e-6)
    loading = _cause(result, "data_loading")
    assert loading.seconds == pytest.approx(4 * 6000e-6)
    assert loading.frames[0] == "data.py(20): decode"
    assert result.verdict.advice[0].kind == "data_loading"
    assert result.verdict.advice[0].saving_seconds == pytest.approx(4 * 6000e-6)
    assert "data.py(20): decode" in result.verdict.because


def test_copies_name_the_line_that_made_them(tmp_path: Path) -> None:
    def fill(trace: SyntheticTrace, start: float) -> None:
        trace.host("train.py(12): move", start + 20, 50)
        _pageable(trace, start + 25)

    result = _analyzed(tmp_path, _loop(fill))
    assert result.ranks[0].copy_frames[0].startswith("train.py(12): move")
    assert "train.py(12): move" in result.verdict.because
    advice = next(one for one in result.verdict.advice if one.kind == "pinned_memory")
    assert advice.frames[0].startswith("train.py(12): move")


def test_an_anonymous_frame_follows_the_one_that_it_is_in(tmp_path: Path) -> None:
    def fill(trace: SyntheticTrace, start: float) -> None:
        trace.host("data.py(20): load_batch", start, 6000)
        trace.host("data.py(22): <genexpr>", start + 10, 5900)
        trace.device(start + 6010, 3990, launched=start + 6000)

    frames = _cause(_analyzed(tmp_path, _loop(fill)), "data_loading").frames
    assert frames[0] == "data.py(20): load_batch > data.py(22): <genexpr>"


def test_time_after_a_synchronisation_names_the_line_that_waited(tmp_path: Path) -> None:
    waiting = _cause(_analyzed(tmp_path, _loop(_items)), "synchronisation")
    assert waiting.frames[0].startswith("train.py(9): log_loss")
    assert waiting.share == pytest.approx(0.46, abs=0.02)


def test_idle_causes_add_up_to_the_idle_time(tmp_path: Path) -> None:
    for fill in CASES:
        rank = _analyzed(tmp_path, _loop(fill)).ranks[0]
        assert sum(cause.seconds for cause in rank.idle_causes) == pytest.approx(rank.idle_ratio * rank.span_seconds)


def test_exposed_communication_is_what_nothing_hides(tmp_path: Path) -> None:
    rank = _analyzed(tmp_path, _loop(_exposed)).ranks[0]
    assert rank.communication_seconds == pytest.approx(5 * 4990e-6)
    assert rank.exposed_communication_seconds == pytest.approx(5 * 3990e-6)
    assert rank.steps[2].exposed_communication_seconds == pytest.approx(3990e-6)
    assert rank.steps[2].self_seconds == pytest.approx(6010e-6)


def test_communication_without_nccl_in_its_name_counts(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    for number, name in enumerate(("deep_ep::internode::combine", "vllm::cross_device_reduce_1stage", "nvshmem_put")):
        trace.device(100 * number, 50, name)
    assert _analyzed(tmp_path, trace).ranks[0].communication_seconds == pytest.approx(150e-6)


def test_overlapping_kernels_count_once(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    trace.device(0, 100, stream=7)
    trace.device(50, 100, stream=8)
    trace.device(200, 50)
    rank = _analyzed(tmp_path, trace).ranks[0]
    assert rank.busy_ratio == pytest.approx(200 / 250)
    assert rank.kernels == 3


def test_kernels_of_one_graph_launch_are_not_late(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    for replay in range(5):
        at = replay * 1000
        graph = trace.launch(at, 20, "cudaGraphLaunch")
        for node in range(90):
            trace.device(at + 30 + 10 * node, 9, "vectorized_elementwise_kernel", correlation=graph)
    result = _analyzed(tmp_path, trace)
    assert result.verdict.trace_class is TraceClass.COMPUTE


def test_backward_without_frames_is_named_by_the_main_thread(tmp_path: Path) -> None:
    def fill(trace: SyntheticTrace, start: float) -> None:
        trace.host("train.py(30): preprocess", start, 6000)
        trace.device(start + 6010, 3990, launched=start + 6000, thread=AUTOGRAD)

    python = _cause(_analyzed(tmp_path, _loop(fill)), "python")
    assert python.frames[0] == "train.py(30): preprocess"


def test_annotations_that_outlive_their_enter_frame_name_the_cause(tmp_path: Path) -> None:
    def fill(trace: SyntheticTrace, start: float) -> None:
        trace.host("torch/autograd/profiler.py(700): __enter__", start, 20)
        trace.host("DATA_LOADING", start + 10, 5000, "user_annotation")
        trace.host("<built-in function sleep>", start + 50, 4900)
        trace.device(start + 5100, 4800, launched=start + 5050)

    result = _analyzed(tmp_path, _loop(fill))
    assert result.verdict.trace_class is TraceClass.DATA_LOADING, result.verdict.because


def test_several_devices_of_a_file_are_apart(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    for number in range(4):
        trace.device(100 * number, 100, device=0)
        trace.device(100 * number, 50, device=1)
    busy = {rank.device: rank.busy_ratio for rank in _analyzed(tmp_path, trace).ranks}
    assert busy == {0: pytest.approx(1.0), 1: pytest.approx(200 / 350)}


def test_the_numbers_of_a_step(tmp_path: Path) -> None:
    """A step of no length is none. A GPU that is behind its host begins and ends a step later."""
    trace = SyntheticTrace()
    trace.step(1, 100, 0)
    trace.step(2, 100, 1000)
    trace.step(3, 1100, 1000)
    trace.device(50, 100, launched=40)
    trace.device(200, 300, launched=100)
    trace.device(400, 200, "nccl", stream=8, launched=190)
    trace.device(900, 400, launched=800)
    trace.device(1300, 50, launched=1100)
    trace.host("cudaStreamSynchronize", 950, 250, "cuda_runtime")
    first, second = _analyzed(tmp_path, trace).ranks[0].steps
    assert (first.name, second.name) == ("ProfilerStep#2", "ProfilerStep#3")
    assert (first.start_seconds, first.seconds, first.busy_ratio) == pytest.approx((100e-6, 1150e-6, 800 / 1150))
    assert (first.exposed_communication_seconds, first.self_seconds) == pytest.approx((100e-6, 1050e-6))
    assert (first.host_seconds, first.gpu_seconds) == pytest.approx((850e-6, 700e-6))
    assert (second.host_seconds, second.gpu_seconds) == pytest.approx((900e-6, 50e-6))


def test_steps_of_files_without_launches(tmp_path: Path) -> None:
    """What the host did is not known then, and the GPU time is that within the step."""
    trace = SyntheticTrace()
    trace.step(1, 0, 1000)
    trace.device(100, 300, correlation=1)
    trace.device(300, 200, "nccl", stream=8, correlation=2)
    (step,) = _analyzed(tmp_path, trace).ranks[0].steps
    assert (step.host_seconds, step.gpu_seconds) == pytest.approx((0, 300e-6))


def test_a_launch_of_a_millisecond_is_no_wait(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    trace.step(1, 0, 10_000)
    trace.device(6000, 100, correlation=trace.launch(100, 1000))
    trace.device(7000, 100, correlation=trace.launch(2000, 1000.001))
    (step,) = _analyzed(tmp_path, trace).ranks[0].steps
    assert step.host_seconds == pytest.approx((10_000 - 1000.001) * 1e-6)


def test_kernels_by_class_and_by_name(tmp_path: Path) -> None:
    """The twenty most costly names, and all classes; copies are one, too, but no kernels."""
    trace = SyntheticTrace()
    at = 0.0
    for number in range(25):
        trace.device(at, number + 1, f"gemm_{number}")
        trace.device(at + 30, 1, f"softmax_{number % 5}")
        at += 100
    trace.device(at, 50, "Memcpy DtoH", category="gpu_memcpy")
    (rank,) = _analyzed(tmp_path, trace).ranks
    assert [kernel.name for kernel in rank.top_kernels] == ["Memcpy DtoH", *(f"gemm_{at}" for at in range(24, 5, -1))]
    assert [(one.name, one.kernel_class, one.count) for one in rank.kernel_classes] == [
        ("gemm", "gemm", 25), ("copy", "copy", 1), ("softmax", "softmax", 25),
    ]  # fmt: skip
    assert [one.seconds for one in rank.kernel_classes] == pytest.approx([325e-6, 50e-6, 25e-6])
    assert [one.share for one in rank.kernel_classes] == pytest.approx([325 / 400, 50 / 400, 25 / 400])
    assert (rank.top_kernels[1].kernel_class, rank.top_kernels[1].count) == ("gemm", 1)
    assert (rank.top_kernels[1].seconds, rank.top_kernels[1].share) == pytest.approx((25e-6, 25 / 400))
    assert (rank.kernels, rank.device_name) == (50, "NVIDIA H200")


def test_times_of_each_kind(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    trace.device(0, 100)
    trace.device(50, 100, "nccl", stream=8, launched=1)
    trace.device(120, 100, "Memcpy HtoD", category="gpu_memcpy", stream=9, launched=2)
    trace.device(200, 10, "Memset", category="gpu_memset", stream=9, launched=3)
    trace.device(0, 0, device=1)  # never busy
    (rank,) = _analyzed(tmp_path, trace).ranks
    assert (rank.span_seconds, rank.busy_ratio, rank.idle_ratio) == pytest.approx((220e-6, 1.0, 0.0))
    assert (rank.compute_seconds, rank.communication_seconds, rank.copy_seconds) == pytest.approx(
        (110e-6, 100e-6, 100e-6)
    )
    assert (rank.exposed_communication_seconds, rank.exposed_copy_seconds) == pytest.approx((50e-6, 60e-6))
    assert (rank.kernels, rank.self_seconds) == pytest.approx((2, 170e-6))
    assert rank.copy_frames == rank.communication_frames == ("cudaLaunchKernel",)


def test_what_all_files_lack_is_added_up(tmp_path: Path) -> None:
    traces = [_loop(_full), _loop(_full)]
    for trace in traces:
        trace.host("odd", 0, -1)
        trace.host("odd", 0, 5, "mtia")
    result = _analyzed(tmp_path, *traces)
    assert result.dropped_reasons == {"of the category mtia": 2, "without a valid time": 2}
    assert (result.dropped_events, result.repaired_events) == (4, 0)
    only_cpu = [SyntheticTrace(), SyntheticTrace()]
    for trace in only_cpu:
        trace.host("odd", 0, 5, "mtia")
    with pytest.raises(
        GpuExporterError, match=r"^2 files: no GPU events, but 2 events of the category mtia: record with"
    ):
        _analyzed(tmp_path, *only_cpu)


def test_ranks_are_named_by_their_files(tmp_path: Path) -> None:
    """Otherwise by their position; one file has no straggler, whatever GPUs are in it."""
    slow = SyntheticTrace()
    for device, length in ((0, 100), (1, 500)):
        slow.device(0, length, device=device)
    result = _analyzed(tmp_path, slow)
    assert [(rank.rank, rank.device) for rank in result.ranks] == [(0, 0), (0, 1)]
    assert result.straggler is None
    for number, made in enumerate((_loop(_full, rank=5), _loop(_full))):
        made.write(tmp_path / f"{number}.json")
    named = analyze([read(tmp_path / "0.json"), read(tmp_path / "1.json")], details=True)
    assert [rank.rank for rank in named.ranks] == [5, 1]
    assert set(named.idle_stacks) == {5, 1}
    found = folded_of(decoded(pprof_profile(named)))
    stacks = {f"rank {rank};train.py(3): main;ProfilerStep;cudaLaunchKernel;sm90_gemm": 5 * 9990e-6 for rank in (5, 1)}
    assert found["gpu_time"] == pytest.approx(stacks)
    assert {stack.partition(";")[0] for stack in found["gpu_idle"]} == {"rank 5", "rank 1"}


def _rank(rank: int, *, host: float = 0.0, gpu: float = 0.0, slowest: float = 0.0) -> SyntheticTrace:
    """Return a rank that computes 5 ms a step, after `host` us and for `gpu` us longer, then waits for the slowest."""

    def fill(trace: SyntheticTrace, start: float) -> None:
        trace.host("train.py(5): work", start, host + 10)
        trace.device(start + host + 20, 5000 + gpu, launched=start + host)
        begin = start + 5020 + host + gpu
        trace.host("cudaStreamSynchronize", start + host + 20, STEP - host - 30, "cuda_runtime")
        trace.device(
            begin,
            start + 5020 + slowest + 500 - begin,
            "ncclDevKernel_AllReduce",
            launched=start + host + 5,
            stream=13,
            args={
                "Collective name": "allreduce",
                "In msg nelems": 1 << 20,
                "Out msg nelems": 1 << 20,
                "dtype": "BFloat16",
                "Group size": 4,
                "Process Group Name": "0",
                "Seq": int(start),
            },
        )

    return _loop(fill, rank=rank, world_size=4)


@pytest.mark.parametrize("kind", ["host", "gpu"])
def test_the_straggler_is_named_with_its_kind_and_excess(tmp_path: Path, kind: str) -> None:
    traces = [_rank(rank, slowest=3000, **({kind: 3000.0} if rank == 2 else {})) for rank in range(4)]
    result = _analyzed(tmp_path, *traces)
    assert result.straggler is not None
    assert (result.straggler.rank, result.straggler.kind) == (2, kind)
    assert result.straggler.excess_seconds == pytest.approx(3000e-6, rel=0.01)
    assert result.verdict.trace_class is TraceClass.STRAGGLER


def _launching(rank: int, *, leads: bool, host: float = 9000.0) -> SyntheticTrace:
    """Return a rank whose host launches for `host` us a step. The GPU of the rank that leads waits for the other."""

    def fill(trace: SyntheticTrace, start: float) -> None:
        trace.host("train.py(5): work", start, host)
        trace.host("cudaEventSynchronize", start + host + 10, STEP - host - 20, "cuda_runtime")
        trace.device(start + 20, 3000, launched=start)
        begin = start + (3020 if leads else 9000)
        trace.device(begin, start + 9500 - begin, "ncclDevKernel_AllReduce", launched=start + 30, stream=13)

    return _loop(fill, rank=rank, world_size=2)


def test_a_host_that_only_leads_makes_no_straggler(tmp_path: Path) -> None:
    """Hosts do not wait in collectives: one that launches as slowly as the other stays ahead of it."""
    result = _analyzed(tmp_path, _launching(0, leads=False), _launching(1, leads=True))
    exposed = [rank.exposed_communication_seconds for rank in result.ranks]
    assert exposed[1] > exposed[0] + STEPS * 5000e-6
    assert result.straggler is None


def test_a_host_that_waits_for_the_gpu_is_not_slow(tmp_path: Path) -> None:
    result = _analyzed(tmp_path, _launching(0, leads=False), _launching(1, leads=True, host=4000.0))
    assert result.straggler is not None
    assert (result.straggler.rank, result.straggler.kind) == (0, "host")


def test_a_launch_into_a_full_queue_is_a_wait(tmp_path: Path) -> None:
    def fill(trace: SyntheticTrace, start: float) -> None:
        full = trace.launch(start + 1000, 4000)
        trace.device(start + 5100, 100, correlation=full)

    step = _analyzed(tmp_path, _loop(fill)).ranks[0].steps[2]
    assert step.host_seconds == pytest.approx(6000e-6)
    assert step.gpu_seconds == pytest.approx(100e-6)


def test_balanced_ranks_have_no_straggler(tmp_path: Path) -> None:
    result = _analyzed(tmp_path, *(_rank(rank, slowest=100, host=rank * 30.0) for rank in range(4)))
    assert result.straggler is None
    assert [rank.rank for rank in result.ranks] == [0, 1, 2, 3]


def test_one_file_has_no_straggler_and_files_without_rank_have_their_position(tmp_path: Path) -> None:
    assert _analyzed(tmp_path, _loop(_full)).straggler is None
    assert [rank.rank for rank in _analyzed(tmp_path, _loop(_full), _loop(_full)).ranks] == [0, 1]


def test_bus_bandwidth_and_skew_of_collectives(tmp_path: Path) -> None:
    traces = [_rank(rank, slowest=3000, host=3000.0 if rank == 2 else 0.0) for rank in range(4)]
    found = _analyzed(tmp_path, *traces).ranks[0].collectives[0]
    assert (found.operation, found.ranks, found.count) == ("allreduce", 4, STEPS)
    # 2 MiB in the 500 us that the last rank needs; all-reduce: 2 (n - 1) / n.
    assert found.bus_bandwidth == pytest.approx(2 * (1 << 20) * 1.5 / 500e-6, rel=0.01)
    assert found.skew_seconds == pytest.approx(3000e-6, rel=0.01)


def test_thresholds_decide_the_class(tmp_path: Path) -> None:
    trace = _loop(_loading)
    assert _analyzed(tmp_path, trace, thresholds=Thresholds(least_share=0.9)).verdict.trace_class is TraceClass.MIXED
    lenient = _analyzed(tmp_path, trace, thresholds=Thresholds(compute_bound=0.9))
    assert lenient.verdict.trace_class is TraceClass.COMPUTE


def test_advice_on_kernels_states_its_saving(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    for number in range(10):
        at = number * 100
        for part in range(4):
            trace.device(at + part * 10, 10, "vectorized_elementwise_kernel", args={"grid": [1000, 1, 1]})
        trace.device(at + 40, 60, "volta_sgemm_128x64_tn", args={"grid": [66, 1, 1]})
    savings = {one.kind: one.saving_seconds for one in _analyzed(tmp_path, trace).verdict.advice}
    assert savings["fusion"] == pytest.approx(10 * 30e-6)
    # The products also have small grids: they count once.
    assert savings["tensor_cores"] == pytest.approx(10 * 60e-6 * 7 / 8)
    assert set(savings) == {"fusion", "tensor_cores"}


def test_launches_without_correlation_numbers_are_found_by_their_external_ids(tmp_path: Path) -> None:
    """As in traces of old versions on ROCm."""
    trace = SyntheticTrace()
    trace.device(0, 100, launched=-20)
    trace.device(600, 100)
    for event in trace.events:
        event["args"]["External id"] = event["args"].pop("correlation")
    (rank,) = _analyzed(tmp_path, trace).ranks
    assert [(cause.cause, round(cause.seconds * 1e6)) for cause in rank.idle_causes] == [("launch_overhead", 500)]


def test_launches_without_gpu_events_were_not_recorded(tmp_path: Path) -> None:
    """Advice to record the GPU, too, would be wrong: the job did."""
    trace = SyntheticTrace()
    trace.launch(0)
    trace.launch(10)
    with pytest.raises(GpuExporterError, match=r"0\.json: no GPU events, although the host launched 2 kernels"):
        _analyzed(tmp_path, trace)


@pytest.mark.parametrize("category", ["cpu_op", "mtia_ccp_events"])
def test_without_gpu_events_there_is_one_clear_error(tmp_path: Path, category: str) -> None:
    trace = SyntheticTrace()
    trace.host("aten::mm", 0, 50, category)
    with pytest.raises(GpuExporterError, match=r"0\.json: no GPU events.*ProfilerActivity.CUDA"):
        _analyzed(tmp_path, trace)


def test_amd_names_are_understood(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    for number in range(5):
        at = number * 1000
        trace.host("hipStreamSynchronize", at + 20, 500, "cuda_runtime")
        launch = trace.launch(at, 5, "hipLaunchKernel")
        trace.device(at + 10, 500, "Cijk_Alik_Bljk_BBS", correlation=launch)
    result = _analyzed(tmp_path, trace)
    assert result.verdict.trace_class is TraceClass.SYNC
    assert result.ranks[0].kernel_classes[0].name == "gemm"


def test_the_json_has_the_documented_keys(tmp_path: Path) -> None:
    content = _analyzed(tmp_path, _loop(_loading), _loop(_loading)).to_json()
    assert {"ranks", "verdict", "straggler", "dropped_events"} <= content.keys()
    keys = "rank device span_seconds busy_ratio idle_ratio compute_seconds communication_seconds copy_seconds kernels"
    assert {*keys.split(), "steps", "exposed_communication_seconds", "idle_causes"} <= content["ranks"][0].keys()
    assert {"cause", "seconds", "share", "frames"} == content["ranks"][0]["idle_causes"][0].keys()
    assert {"class", "because", "advice"} == content["verdict"].keys()
    assert content["verdict"]["class"] == "data-loading-bound"
