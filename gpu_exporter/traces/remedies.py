"""How to mend a loss, in the words of what the program is written with."""

from __future__ import annotations

from enum import Enum

from gpu_exporter.traces.model import Trace, TraceRecorder


class Framework(Enum):
    """What a program is written with. CUDA: whatever calls CUDA or HIP itself."""

    PYTORCH = 0
    JAX = 1
    CUDA = 2


_OF_PYTORCH = ("aten::", "at::native::", "torch/")
# By kind of advice: for PyTorch, for JAX, for programs that call CUDA.
_REMEDIES = {
    "data_loading": (
        "in other processes, ahead of the step: DataLoader(num_workers=…, pin_memory=True)",
        "in other processes, ahead of the step, and copy it with jax.device_put",
        "in other threads, ahead of the step",
    ),
    "cuda_graphs": (
        'capture the step in a CUDA graph (torch.compile(mode="reduce-overhead"), torch.cuda.graph), or enlarge the'
        " batch",
        "compile the whole step with one jax.jit, or enlarge the batch",
        "capture what repeats in a CUDA graph (cudaStreamBeginCapture), or give each kernel more work",
    ),
    "checkpoint": (
        "in the background, such as with torch.distributed.checkpoint.async_save, or rarely",
        "in the background, such as with orbax.checkpoint.AsyncCheckpointer, or rarely",
        "in the background, or rarely",
    ),
    "compilation": (
        "avoid changing shapes (dynamic=True), and keep the compile cache",
        "avoid changing shapes, and keep the compile cache (jax_compilation_cache_dir)",
        "load kernels before the loop (CUDA_MODULE_LOADING=EAGER)",
    ),
    "allocation": (
        "trace later ones, when the allocator has cached what it needs. Otherwise avoid torch.cuda.empty_cache() and"
        " changing shapes",
        "trace later ones, when XLA has the memory that it needs. Otherwise let JAX preallocate, and avoid changing"
        " shapes",
        "allocate before the loop, and use the memory again",
    ),
    "synchronisation": (
        "keep values on the GPU, read them every hundred steps, and copy with non_blocking=True",
        "keep values on the GPU, and read them every hundred steps",
        "keep values on the GPU, read them rarely, and copy them into pinned memory with cudaMemcpyAsync",
    ),
    "pinned_memory": (
        "use pin_memory=True, and to(device, non_blocking=True)",
        "copy inputs ahead of the step with jax.device_put",
        "allocate it with cudaMallocHost, and copy with cudaMemcpyAsync",
    ),
    "tensor_cores": (
        'use autocast (bfloat16), or torch.set_float32_matmul_precision("high")',
        'use bfloat16, or jax.default_matmul_precision("tensorfloat32")',
        "use fp16, bf16 or TF32 if their precision is enough",
    ),
    "fusion": (
        "fuse them with torch.compile or a fused optimizer and norm",
        "put them into one jax.jit, so that XLA fuses them",
        "fuse them into one kernel",
    ),
}


def framework_of(trace: Trace) -> Framework:
    """Return what the traced program is written with. Nsight Systems records any: names of kernels and ranges tell."""
    if trace.recorder is TraceRecorder.JAX:
        return Framework.JAX
    if trace.recorder is TraceRecorder.PYTORCH or any(word in name for name in trace.names for word in _OF_PYTORCH):
        return Framework.PYTORCH
    return Framework.CUDA


def remedy(kind: str, framework: Framework) -> str:
    """Return what to do about a loss, as the end of a sentence without its full stop."""
    return _REMEDIES[kind][framework.value]
