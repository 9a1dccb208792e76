"""The true class and failure modes of each recorded GPU in each phase.

Programs ran these phases on H200s. A mode in parentheses, such as `(MODE)`, is right but need not be found.
"""

from __future__ import annotations

from pathlib import Path

from tests import PACKAGED_RECORDINGS, ROOT

PACKAGED = PACKAGED_RECORDINGS
MORE = ROOT / "tests" / "recordings"

Truth = tuple[str, frozenset[str], frozenset[str]]


def _is(bottleneck: str, *modes: str) -> Truth:
    must = frozenset(mode for mode in modes if not mode.startswith("("))
    # Instant power may swing in any work that starts and stops periodically.
    may = frozenset(mode.strip("()") for mode in modes) | {"GpuPowerOscillation"}
    return bottleneck, must, may


IDLE, COMPUTE, MIXED = _is("idle"), _is("compute-bound"), _is("mixed")
HOST, DATA = _is("host-bound", "GpuHostBound"), _is("data-loading-bound", "GpuDataLoadingBound")
MEMORY, FAKE = _is("memory-bound", "GpuMemoryBound"), _is("fake-load", "GpuFakeLoad")
NO_TENSOR, PCIE = _is("tensor-cores-idle", "GpuTensorCoresIdle"), _is("pcie-bound", "GpuPcieBound")
SMALL = _is("underfilled", "GpuUnderfilled")
WAITING, COMMUNICATING = _is("communicating"), _is("communicating", "(GpuCommunicationBound)")
STARVED = _is("host-bound", "GpuStragglerStarved", "(GpuHostBound)")
SLOW = _is("compute-bound", "GpuStragglerSlow")

TRUTH: dict[Path, dict[str, tuple[Truth, ...]]] = {
    PACKAGED / "h200_workloads.jsonl.gz": {
        "idle": (IDLE,),
        "compute_bound_bf16_gemm": (COMPUTE,),
        "no_tensor_fp32_gemm": (NO_TENSOR,),
        "memory_bound_copy": (MEMORY,),
        "memory_bound_elementwise": (MEMORY,),
        "fake_load_one_thread": (FAKE,),
        "launch_bound_tiny_kernels": (HOST,),
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
        "tiny_kernels": (HOST,),
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
        "small_batch_train": (HOST,),
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
        "hang": (_is("communicating", "GpuCollectiveStall"), _is("idle", "GpuCollectiveStall")),
    },
    MORE / "h200_x4_jobs.jsonl.gz": {
        "balanced": (COMPUTE,) * 4,
        "cpu_delay": (WAITING, WAITING, WAITING, STARVED),
        "slow_gpu": (WAITING, WAITING, WAITING, SLOW),
        "all_data_bound": (HOST,) * 4,
        "all_reduce": (COMMUNICATING,) * 4,
        "replicas_uneven": (COMPUTE, HOST, HOST, HOST),
        "hang": (*[_is("communicating", "GpuCollectiveStall")] * 3, _is("idle", "GpuCollectiveStall")),
    },
}
PHASES = [(path, phase) for path, phases in TRUTH.items() for phase in phases]
