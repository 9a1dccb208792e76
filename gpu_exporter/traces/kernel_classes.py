"""What a kernel does, by its name: its class, whether it communicates, and whether tensor cores can do its work."""

from __future__ import annotations

import re
from functools import cache

# Communication beyond NCCL and RCCL: DeepEP, NVSHMEM, MSCCL, the all-reduces of vLLM, SGLang and TensorRT-LLM, and the
# symmetric memory of PyTorch.
COMMUNICATION = re.compile(
    r"nccl|rccl|deep_ep|dpsk::ep|nvshmem|msccl|cross_device_reduce|(?:one|two)[-_]?shot_?all_?reduce"
    r"|multimem|symm_mem|custom_ar|all_?reduce_?(?:kernel|fusion)|lamport|all_?gather_?kernel|reduce_?scatter_?kernel"
    r"|all_?to_?all|allreduce",
    re.IGNORECASE,
)
GEMM_CLASS, ELEMENTWISE_CLASS, COMMUNICATION_CLASS = "gemm", "elementwise", "communication"
# The first that matches is the class.
CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        (COMMUNICATION_CLASS, COMMUNICATION.pattern),
        ("copy", r"^memcpy|^memset|copybuffer|fillbuffer"),
        ("attention", r"flash|fmha|attention|attn|\bmha\b|sdpa|paged_|mla_"),
        ("convolution", r"conv|winograd|implicit_gemm|dgrad|wgrad|cudnn.*fprop|scudnn|miopen.*igemm|^igemm"),
        (
            GEMM_CLASS,
            r"gemm|gemv|cublas|cutlass|nvjet|matmul|splitk|split_k|^Cijk_|^ampere_|^volta_|^turing_|^sm\d+_xmma|\bmm_",
        ),
        ("normalization", r"layer_?norm|rms_?norm|batch_?norm|group_?norm|_norm_|bn_fw|bn_bw|welford|LayerNorm"),
        ("softmax", r"softmax|cross_?entropy|nll_loss"),
        ("optimizer", r"multi_tensor|adam|sgd|optimizer|lamb"),
        ("embedding", r"embedding|index_?select|gather|scatter|index_put|indexing_backward|indexFunc|index_kernel"),
        ("reduction", r"reduce|sum_|_sum|argmax|topk|sort|scan|cumsum"),
        ("random", r"philox|distribution|dropout|curand|random"),
        ("pooling", r"pool"),
        (ELEMENTWISE_CLASS, r"element_?wise|pointwise|_copy_kernel|fill|CatArray|triton_poi|vectorized|copy_kernel"),
        ("triton", r"^triton|triton_"),
    )
)
OTHER_CLASS = "other"
CLASS_NAMES = frozenset({OTHER_CLASS, *(name for name, _ in CLASSES)})
# Matrix products whose name says that they run in fp32 or fp64 without tensor cores.
_NO_TENSOR_CORES = re.compile(r"sgemm|dgemm|_simt_|fp32_|gemmSN|f32f32_f32f32_f32|gemv", re.IGNORECASE)
_TENSOR_CORES = re.compile(
    r"tensorop|16816|1688|884|hmma|imma|xmma|s16|h16|bf16|f16|fp16|fp8|e4m3|tf32|wgmma|nvjet|MFMA|_MT.*MI",
    re.IGNORECASE,
)


@cache
def kernel_class(name: str) -> str:
    """Return the class of a kernel, copy or memset."""
    return next((word for word, pattern in CLASSES if pattern.search(name)), OTHER_CLASS)


@cache
def is_communication(name: str) -> bool:
    """Return whether a kernel exchanges data with other GPUs."""
    return bool(COMMUNICATION.search(name))


@cache
def avoids_tensor_cores(name: str) -> bool:
    """Return whether a matrix product runs in fp32 or fp64 without tensor cores, according to its name."""
    if kernel_class(name) not in (GEMM_CLASS, "convolution"):
        return False
    return bool(_NO_TENSOR_CORES.search(name)) and not _TENSOR_CORES.search(name)


def short_name(name: str, most: int = 80) -> str:
    """Return the name of a kernel without return type, template arguments and parameters; of a copy the whole name."""
    if name.startswith("Mem"):
        return name[:most]
    text = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    depth = 0
    kept: list[str] = []
    for char in text:
        if char == "<":
            depth += 1
        elif char == ">":
            depth = max(0, depth - 1)
        elif not depth:
            if char == "(" and kept:
                break
            kept.append(char)
    short = "".join(kept).strip() or text
    return short if len(short) <= most else f"{short[: most - 1]}…"
