"""The true class and failure modes of each recorded GPU in each phase.

Programs ran these phases on H200s and H100s; benchmarks/phases says how it provokes those of the newer recordings.
Classes joined by `|` are equally right. A mode in parentheses, such as `(MODE)`, is right but need not be found.
"""

from __future__ import annotations

from pathlib import Path

from tests import PACKAGED_RECORDINGS, ROOT

PACKAGED = PACKAGED_RECORDINGS
MORE = ROOT / "tests" / "recordings"

Truth = tuple[frozenset[str], frozenset[str], frozenset[str]]


def _is(bottleneck: str, *modes: str) -> Truth:
    must = frozenset(mode for mode in modes if not mode.startswith("("))
    # Instant power may swing in any work that starts and stops periodically.
    may = frozenset(mode.strip("()") for mode in modes) | {"GpuPowerOscillation"}
    return frozenset(bottleneck.split("|")), must, may


IDLE, COMPUTE, MIXED = _is("idle"), _is("compute-bound"), _is("mixed")
HOST, DATA = _is("host-bound", "GpuHostBound"), _is("data-loading-bound", "GpuDataLoadingBound")
MEMORY, FAKE = _is("memory-bound", "GpuMemoryBound"), _is("fake-load", "GpuFakeLoad")
NO_TENSOR, PCIE = _is("tensor-cores-idle", "GpuTensorCoresIdle"), _is("pcie-bound", "GpuPcieBound")
SMALL = _is("underfilled", "GpuUnderfilled")
WAITING, COMMUNICATING = _is("communicating"), _is("communicating", "(GpuCommunicationBound)")
# Of a rank that waits, and moves no data meanwhile.
WAITING_SILENTLY = _is("waiting")
STARVED = _is("host-bound", "GpuStragglerStarved", "(GpuHostBound)")
SLOW = _is("compute-bound", "GpuStragglerSlow")

COMPUTE_OR_MEMORY = _is("compute-bound|memory-bound|mixed", "(GpuMemoryBound)")
# A rank that waits for a part of each step only.
PARTLY_WAITING = _is("communicating|compute-bound")
# Engine activity between 0.60 and 0.85: the host and the kernels limit the GPU in turn.
PARTLY_IDLE = _is("host-bound|compute-bound|mixed", "(GpuHostBound)")
PARTLY_STARVED = _is("host-bound|compute-bound|mixed", "GpuStragglerStarved", "(GpuHostBound)")
LOADING = _is("data-loading-bound", "GpuDataLoadingBound")
HANGING = _is("waiting", "GpuCollectiveStall")
ABSENT = _is("idle", "GpuCollectiveStall")
HOST_OR_WAITING = _is("host-bound|communicating|mixed", "(GpuHostBound)", "(GpuLaunchBound)", "(GpuCommunicationBound)")
LAUNCH = _is("host-bound", "GpuHostBound", "GpuLaunchBound")

# benchmarks/phases ran the same phases on both models: single workloads side by side, then jobs of two ranks.
SINGLE_A: dict[str, tuple[Truth, ...]] = {
    "no_process": (IDLE,),
    "idle_context": (IDLE,),
    "gemm_fp32": (NO_TENSOR,),
    "gemm_tf32": (COMPUTE,),
    "gemm_int8": (_is("compute-bound|mixed"),),
    "copy": (MEMORY,),
    "softmax": (COMPUTE_OR_MEMORY,),
    "one_thread": (FAKE,),
    "h2d_pinned": (PCIE,),
    "idle_after_load": (IDLE,),
    "duty_50": (HOST,),
    "duty_seconds": (HOST,),
    "copy_then_compute": (LOADING,),
    "copy_back": (_is("host-bound|pcie-bound|mixed", "(GpuHostBound)"),),
    "copy_overlapped": (COMPUTE,),
    "train_loader_30": (PARTLY_IDLE,),
    "evaluation_items": (LAUNCH,),
    "serving_50": (HOST,),
    "decode_batch": (MEMORY,),
    "few_blocks_float": (SMALL,),
    # In the counters, it is the same as a rank that waits in a collective.
    "few_blocks_chase": (_is("underfilled|communicating", "(GpuUnderfilled)"),),
    "sort": (COMPUTE_OR_MEMORY,),
    "layer_norms": (MEMORY,),
    "convolutions": (COMPUTE,),
    "model_load": (LOADING,),
    "two_processes_duty": (HOST,),
}
SINGLE_B: dict[str, tuple[Truth, ...]] = {
    "no_process": (IDLE,),
    "gemm_bf16": (COMPUTE,),
    "gemm_fp64": (COMPUTE,),
    "gemm_fp8": (COMPUTE,),
    "gemm_small": (COMPUTE,),
    "elementwise": (MEMORY,),
    "gather": (MEMORY,),
    "tiny_kernels": (LAUNCH,),
    "d2h_pinned": (PCIE,),
    "duty_25": (HOST,),
    "duty_75": (PARTLY_IDLE,),
    "short_gaps": (COMPUTE,),
    "copy_sleep_compute": (LOADING,),
    "copy_pageable": (LOADING,),
    "train": (COMPUTE,),
    "checkpoint_pauses": (HOST,),
    "serving_10": (HOST,),
    "serving_100": (MEMORY,),
    "polling_kernel": (_is("fake-load|communicating", "(GpuFakeLoad)"),),
    "few_blocks_integer": (SMALL,),
    "all_blocks_integer": (COMPUTE,),
    "scatter_add": (COMPUTE_OR_MEMORY,),
    "attention_prefill": (COMPUTE,),
    "alternating": (COMPUTE_OR_MEMORY,),
    "two_processes_gemm": (COMPUTE,),
    "mps_two_decoders": (MEMORY,),
}
JOBS: dict[str, tuple[Truth, ...]] = {
    "ddp_balanced": (COMPUTE, COMPUTE),
    "ddp_late_5ms": (PARTLY_WAITING, PARTLY_STARVED),
    "ddp_late_20ms": (WAITING, STARVED),
    "ddp_late_100ms": (WAITING, STARVED),
    "ddp_all_late": (HOST, HOST),
    "ddp_jitter": (_is("host-bound|communicating|compute-bound", "(GpuHostBound)"),) * 2,
    "ddp_launch_bound": (LAUNCH, LAUNCH),
    "ddp_launch_bound_late": (
        HOST_OR_WAITING,
        _is("host-bound", "GpuHostBound", "GpuLaunchBound", "GpuStragglerLaunchBound"),
    ),
    "ddp_slow_15": (PARTLY_WAITING, SLOW),
    "ddp_slow_40": (PARTLY_WAITING, SLOW),
    "ddp_slow_150": (WAITING, SLOW),
    "bulk_even": (COMPUTE, COMPUTE),
    "bulk_slow_50": (WAITING, SLOW),
    "bulk_slow_200": (WAITING, SLOW),
    "bulk_late_10ms": (PARTLY_WAITING, PARTLY_STARVED),
    "tensor_parallel": (PARTLY_WAITING, PARTLY_WAITING),
    "tensor_parallel_decode": (
        _is("host-bound|communicating|memory-bound|mixed", "(GpuHostBound)", "(GpuMemoryBound)"),
    )
    * 2,
    "tensor_parallel_graph": (_is("communicating|memory-bound|mixed", "(GpuMemoryBound)", "(GpuCommunicationBound)"),)
    * 2,
    "tensor_parallel_serving": (HOST, HOST),
    "pipeline_even": (PARTLY_WAITING, PARTLY_WAITING),
    "pipeline_uneven": (SLOW, WAITING),
    "expert_parallel": (COMMUNICATING, COMMUNICATING),
    "fsdp": (COMPUTE, COMPUTE),
    "reduce_4k": (HOST_OR_WAITING, HOST_OR_WAITING),
    "reduce_1m": (HOST_OR_WAITING, HOST_OR_WAITING),
    "reduce_1g": (COMMUNICATING, COMMUNICATING),
    "evaluation_on_last": (WAITING_SILENTLY, COMPUTE),
    "two_jobs": (COMPUTE, HOST),
    "peer_copies": (_is("communicating|mixed"),) * 2,
    "hang_4k": (HANGING, ABSENT),
    "hang_1m": (HANGING, ABSENT),
    "hang_64m": (HANGING, ABSENT),
    "hang_1g": (HANGING, ABSENT),
    "hang_gather": (HANGING, ABSENT),
    "hang_receive": (HANGING, ABSENT),
    "hang_1m_LL": (HANGING, ABSENT),
    "hang_1m_LL128": (HANGING, ABSENT),
    "hang_1m_Simple": (HANGING, ABSENT),
    "hang_crossed": (HANGING, HANGING),
}
# Both ranks were to have the same work, but rank 0 measured that it waited for rank 1 for 11 % of the time, and not 3 %
# as on the H200s: that rank 1 is a straggler is right, too.
H100_JOBS = {**JOBS, "bulk_even": (PARTLY_WAITING, _is("compute-bound", "(GpuStragglerSlow)"))}
TRUTH: dict[Path, dict[str, tuple[Truth, ...]]] = {
    PACKAGED / "h200_workloads.jsonl.gz": {
        "idle": (IDLE,),
        "compute_bound_bf16_gemm": (COMPUTE,),
        "no_tensor_fp32_gemm": (NO_TENSOR,),
        "memory_bound_copy": (MEMORY,),
        "memory_bound_elementwise": (MEMORY,),
        "fake_load_one_thread": (FAKE,),
        "launch_bound_tiny_kernels": (LAUNCH,),
        "pcie_h2d_pinned": (PCIE,),
        "data_loading_bound_train": (DATA,),
        "train_big_batch": (COMPUTE,),
    },
    PACKAGED / "h200_x2_ddp.jsonl.gz": {
        "ddp_balanced": (COMPUTE, COMPUTE),
        "ddp_straggler_cpu_delay": (WAITING, STARVED),
        "ddp_straggler_slow_gpu": (WAITING, SLOW),
        "ddp_all_data_bound": (HOST, HOST),
        "nccl_all_reduce_1g": (COMMUNICATING, COMMUNICATING),
    },
    MORE / "h200_more_workloads.jsonl.gz": {
        "idle": (IDLE,),
        "gemm_bf16": (COMPUTE,),
        "gemm_fp32": (NO_TENSOR,),
        "gemm_fp64": (COMPUTE,),
        "copy": (MEMORY,),
        "elementwise": (MEMORY,),
        "gelu": (MEMORY,),
        "softmax": (MIXED,),
        "gather": (MEMORY,),
        "one_thread_spin": (FAKE,),
        "tiny_kernels": (LAUNCH,),
        "h2d_pinned": (PCIE,),
        "d2h_pinned": (PCIE,),
        "h2d_pageable": (DATA,),
        "train_big": (COMPUTE,),
        "train_loader_sleeps": (HOST,),
        "train_loader_copies": (DATA,),
        "decode_eager": (HOST,),
        "decode_graph": (SMALL,),
        "decode_graph_big": (MEMORY,),
        "prefill_attention": (COMPUTE,),
        "conv_train": (MIXED,),
        "checkpoints": (HOST,),
        "small_batch_train": (LAUNCH,),
        "sgemm_tf32": (COMPUTE,),
        "half_duty": (HOST,),
    },
    MORE / "h200_x2_more_jobs.jsonl.gz": {
        "balanced": (COMPUTE, COMPUTE),
        "cpu_delay": (WAITING, STARVED),
        "slow_gpu": (WAITING, SLOW),
        "slow_by_side_kernel": (WAITING, _is("memory-bound", "GpuStragglerSlow", "GpuMemoryBound")),
        "all_data_bound": (HOST, HOST),
        "all_reduce": (COMMUNICATING, COMMUNICATING),
        "pipeline": (COMPUTE, COMPUTE),
        # With two ranks, an uneven pipeline has the signals of a slow rank; the advice names both.
        "pipeline_uneven": (SLOW, WAITING),
        "replicas_uneven": (COMPUTE, HOST),
        "replicas_one_idle": (COMPUTE, IDLE),
        "hang": (HANGING, ABSENT),
    },
    MORE / "h200_x4_jobs.jsonl.gz": {
        "balanced": (COMPUTE,) * 4,
        "cpu_delay": (WAITING, WAITING, WAITING, STARVED),
        "slow_gpu": (WAITING, WAITING, WAITING, SLOW),
        "all_data_bound": (HOST,) * 4,
        "all_reduce": (COMMUNICATING,) * 4,
        "replicas_uneven": (COMPUTE, HOST, HOST, HOST),
        "hang": (HANGING, HANGING, HANGING, ABSENT),
    },
    MORE / "h200_single_a.jsonl.gz": SINGLE_A,
    MORE / "h200_single_b.jsonl.gz": SINGLE_B,
    MORE / "h200_x2_phases.jsonl.gz": JOBS,
    MORE / "h100_single_a.jsonl.gz": SINGLE_A,
    MORE / "h100_single_b.jsonl.gz": SINGLE_B,
    MORE / "h100_x2_phases.jsonl.gz": H100_JOBS,
}
PHASES = [(path, phase) for path, phases in TRUTH.items() for phase in phases]
