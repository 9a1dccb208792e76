"""What a stack of the host is doing, and which of its frames the user can change."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from gpu_exporter.catalogue.causes import TraceCause

PYTHON_FRAME = re.compile(r"^(?P<path>.+)\((?P<line>\d+)\): (?P<function>.+)$", re.DOTALL)
# Waits of the host for the GPU: calls of CUDA and HIP, and operators that contain such a call. Allocations of device
# memory wait, too.
SYNCHRONISING_CALL = re.compile(
    r"^(?:cuda|cu|hip)(?:Stream|Device|Event|Ctx)Synchronize|^(?:cuda|hip)Memcpy$|^cuMemcpy(?:DtoH|HtoD)?(?:_v2)?$"
    r"|^(?:cuda|hip)(?:Malloc|Free|HostAlloc|FreeHost|HostFree)$|^cuMem(?:Alloc|Free)(?:_v2)?$"
)
# What the allocator of a framework calls, and no line of the user: also pools, expandable segments and XLA's allocator.
_ALLOCATION = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free)(?:Async|FromPoolAsync|Managed|Host|Pitch|3D|Array)?$"
    r"|^(?:cuda|hip)(?:HostAlloc|HostFree|HostRegister|MemPoolTrimTo)$"
    r"|^cuMem(?:Alloc|Free)(?:Async|FromPoolAsync|Managed|Host|Pitch)?(?:_v2)?$|^cuMemHostAlloc$"
    r"|^(?:cu|hip)Mem(?:Create|Release|Map|Unmap|SetAccess|AddressReserve|AddressFree)$"
    r"|^Build buffer allocations$|^DeviceMemAllocator::"
)
# Calls that return at once, unless they initialise CUDA or load the kernels that they ask for.
_LOADING_CALL = re.compile(
    r"^(?:cuda|hip)(?:Occupancy\w+|Func(?:Get|Set)\w+|GetFuncBySymbol|GetSymbol\w+|(?:Event|Stream)Create\w*"
    r"|GraphInstantiate\w*|GetDeviceProperties\w*|DeviceGet\w+|SetDevice|GetDriverEntryPoint\w*)$"
    r"|^cu(?:Init|CtxCreate\w*|DevicePrimaryCtxRetain|Func(?:Get|Set)\w+|KernelGet\w+|Occupancy\w+|EventCreate"
    r"|StreamCreate\w*|GraphInstantiate\w*)$"
)
# What waits for arrays of JAX. While the GPU is idle, it waits for other threads, and does not say for what.
_ARRAY_WAIT = re.compile(r"(?:^|/)jax/_src/\S+: (?:block_until_ready|try_to_block)$")
# Frames of libraries that wait for events of their own, such as for buckets of gradients.
_OWN_WAIT = re.compile(
    r"torch/nn/parallel/|torch/distributed/|DistributedDataParallel|FullyShardedDataParallel|^FSDP::"
)
_AUTOGRAD, _EVENT_WAIT = "autograd::engine", re.compile(r"^(?:cuda|hip)EventSynchronize$")
# The first that matches is the cause.
_CAUSES: tuple[tuple[TraceCause, re.Pattern[str]], ...] = (
    (
        TraceCause.CHECKPOINT,
        re.compile(
            r"torch/serialization\.py|torch\.save|torch/distributed/checkpoint|safetensors|save_pretrained"
            r"|(?:save|write|load|read|restore)_?\w*check_?point|check_?point\w*_?(?:save|saving|write|writing)"
            r"|\b(?:save|write)_(?:state|model|weights|snapshot)\b|^checkpoint(?:ing)?$|orbax",
            re.IGNORECASE,
        ),
    ),
    (
        TraceCause.DATA_LOADING,
        re.compile(
            r"DataLoader|torch/utils/data/|data_?load|^datasets/|webdataset|nvidia/dali"
            r"|(?:get|next|load|fetch|read|make|prepare)_?batch|batch_?iter|collate|enumerate\(.*__next__",
            re.IGNORECASE,
        ),
    ),
    (
        TraceCause.COMPILATION,
        re.compile(
            r"torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph|bytecode_\w+|codegen|guards)\.py"
            r"|torch/_inductor/(?:scheduler|lowering|graph|async_compile|cpp_builder|select_algorithm|codegen/|fx_passes)"
            r"|triton/compiler|ptxas|nvrtcCompile|(?:cu|hip)(?:Module|Library)Load|Module Loading|Lazy Function Loading"
            r"|compile_fx_inner|dynamo_timed",
            re.IGNORECASE,
        ),
    ),
    (TraceCause.ALLOCATION, _ALLOCATION),
    (
        TraceCause.GARBAGE_COLLECTION,
        re.compile(r"built-in (?:function|method) collect|\bgc\.collect|Python GC|garbage_?collect", re.IGNORECASE),
    ),
)
# What the stack of a running process shows, beyond the causes above. A trace has the calls of CUDA instead.
_STACK_CAUSES: tuple[tuple[TraceCause, re.Pattern[str]], ...] = (
    (
        TraceCause.COLLECTIVES,
        re.compile(
            r"torch/distributed/(?:distributed_c10d|c10d_logger|_functional_collectives|rendezvous)\.py"
            r"|torch/distributed/algorithms/join\.py|^nccl[A-Z]|^c10d::|^gloo::|^MPI_|mpi4py|horovod"
        ),
    ),
    (
        TraceCause.SYNCHRONISATION,
        re.compile(r"torch/cuda/(?:__init__|streams)\.py\(\d+\): (?:\w+\.)?(?:synchronize|wait)$"),
    ),
    (TraceCause.GARBAGE_COLLECTION, re.compile(r"^gc_collect_|^PyGC_Collect")),
)
_LIBRARY = re.compile(
    r"(?:site|dist)-packages/|/lib/python3|lib/python3|^<frozen|^<built-in|^(?:jax|torch|torchvision|numpy|scipy|PIL|triton)/"
)
_GENERATED = "<eval_with_key>"


def cause_of(name: str) -> TraceCause | None:
    """Return the cause that a frame names; None if it names none.

    Of the user's code only the function counts, since files may have any name.
    """
    match = PYTHON_FRAME.match(name)
    text = match["function"] if match and is_user_frame(name) else name
    return next((cause for cause, pattern in _CAUSES if pattern.search(text)), None)


def stack_cause_of(name: str) -> TraceCause | None:
    """Return the cause that a frame of a running process names; None if it names none.

    Frames of Python are in Kineto's form, `path(line): function`; native frames are the names of functions.
    """
    if cause := cause_of(name):
        return cause
    if is_synchronising(name):
        return TraceCause.SYNCHRONISATION
    return next((cause for cause, pattern in _STACK_CAUSES if pattern.search(name)), None)


def is_synchronising(name: str) -> bool:
    """Return whether a runtime call makes the host wait for the GPU."""
    return bool(SYNCHRONISING_CALL.search(name))


def is_allocation(name: str) -> bool:
    """Return whether a runtime call allocates or frees memory: it waits for the GPU only sometimes."""
    return bool(_ALLOCATION.search(name))


def cause_of_long_call(name: str) -> TraceCause | None:
    """Return why a host is long in a call, or in a function of a library, that is short otherwise; None if it is not.

    Such calls are part of launching where they are short.
    """
    if _LOADING_CALL.match(name):
        return TraceCause.COMPILATION
    return TraceCause.UNKNOWN if _ARRAY_WAIT.search(name) else None


def is_user_frame(name: str) -> bool:
    """Return whether a frame is Python code that is neither of the standard library nor of an installed package."""
    match = PYTHON_FRAME.match(name)
    if not match or _LIBRARY.search(match["path"]) or _GENERATED in match["path"]:
        return False
    first = match["path"].split("/")[0].removesuffix(".py")
    return first not in sys.stdlib_module_names


def is_wait_of_library(names: Sequence[str]) -> bool:
    """Return whether a wait for the GPU is one that data-parallel libraries make, which no line of the user causes."""
    inside = next((at for at in range(len(names), 0, -1) if is_user_frame(names[at - 1])), 0)
    own = any(map(_OWN_WAIT.search, names[inside:]))
    return own or (bool(_EVENT_WAIT.match(names[-1])) and any(_AUTOGRAD in name for name in names))


COPY_TO_HOST, COPY_TO_GPU = "copy to the host", "copy to the GPU"
# What waits for the GPU, as users write it. The first that matches a frame or operator is it.
_WAITING_CODE: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (words, re.compile(pattern))
    for words, pattern in (
        (".item()", r"^aten::(?:item|_local_scalar_dense)$|method item of|^aten::is_nonzero$"),
        ("nonzero()", r"^aten::nonzero"),
        ("unique()", r"^aten::_?unique"),
        ("torch.cuda.synchronize()", r"torch/cuda/__init__\.py\(\d+\): synchronize$|^(?:cuda|hip)DeviceSynchronize$"),
        (COPY_TO_HOST, r"^aten::(?:_to_copy|copy_)$|method (?:cpu|tolist|numpy) of"),
    )
)


def waiting_code(names: Sequence[str], *, to_gpu: bool = False) -> str:
    """Return what made the host wait for the GPU, as users write it; otherwise the innermost name.

    Operators copy in either direction: `to_gpu` says in which.
    """
    code = next((words for words, pattern in _WAITING_CODE if any(map(pattern.search, names))), names[-1])
    return COPY_TO_GPU if to_gpu and code == COPY_TO_HOST else code
