"""What a kernel does, by the words of its name and by the operator that launched it: its class, and its use of tensor
cores.

The words of the base name decide. Where these say nothing, because a template runs whatever function it is given, the
names of its arguments decide, then the operator, then the namespaces. `kernel_names.py` defines these parts of a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from enum import Enum
from functools import cache

from gpu_exporter.traces.kernel_names import KernelName, parsed, words

COMMUNICATION_CLASS, COPY_CLASS, ATTENTION_CLASS = "communication", "copy", "attention"
GEMM_CLASS, CONVOLUTION_CLASS, ELEMENTWISE_CLASS, OTHER_CLASS = "gemm", "convolution", "elementwise", "other"
NORMALIZATION_CLASS, SOFTMAX_CLASS, OPTIMIZER_CLASS = "normalization", "softmax", "optimizer"
EMBEDDING_CLASS, REDUCTION_CLASS, RANDOM_CLASS, POOLING_CLASS = "embedding", "reduction", "random", "pooling"
CAST_CLASS, SORT_CLASS, MOE_CLASS = "cast", "sort", "moe-routing"
SSM_CLASS, FFT_CLASS, SPARSE_CLASS = "ssm", "fft", "sparse"

_DTYPE = r"(?:b?float|bf|(?:mx|nv)?fp|lowp|half|double|u?int|f)(?:\d+)?"
# Classes by words, and by two or three words written as one. A word must match as a whole. The first that matches is
# the class: what happens beside other work, such as the cast of a fused kernel, comes after that work.
_WORDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile("|".join(text.replace("DTYPE", _DTYPE).split())))
    for name, text in (
        (
            COMMUNICATION_CLASS,
            r"""
            nccl\w* rccl\w* msccl\w* nvshmem\w* rocshmem\w* userbuffers kuserbuffers multimem lamport
            deepep all(?:reduce|gather|2all|toall)(?:v|base)? a2a reducescatter sendrecv
            crossdevicereduce symmmem customar (?:one|two|[12])shot quickreduce rsag sendsignal
            barriertriton onstream exchangesplit remotepush p2p pushpull pushsend pushrecv putsignal waitsignal halos?
            internode intranode dpsk nvls
            """,
        ),
        (COPY_CLASS, r"memcpy\w* memset\w* rocclr repack chunkcat"),
        (
            ATTENTION_CLASS,
            r"""
            flash flashattn\w* flashattention\w* (?:dot|self|cross)?attn\w* \w*attention fmha\w* mha mqa
            gqa nsa sdpa mla hstu simplicial neighborhood att sage kvcache
            (?:paged|batch|single)?decodewith\w* batchprefill\w* fwdgrouped\w* fwdkernelstage thdlse
            thdout dkdv\w* dkv splitdq bwd(?:kernel)?dq bwdpreprocess preprocessdo pa(?:prefill|decode)
            reshapeandcache merge(?:attn)?states? statemerge statesmerge
            """,
        ),
        # What prepares the arguments of other kernels.
        (OTHER_CLASS, r"tensormaps? gemmargs tmadesc\w* tmadescriptors? descriptors? updatescale"),
        (
            SSM_CLASS,
            r"""
            mamba\d? ssm ssu selective(?:scan|state) deltarule gateddelta gdn gdr kda kkt r?wkv\d* rwkv
            retention gla gsa hgrn dplr wyrepr mesanet tokenshift recurrent segsum comba chunkwise
            chunkstate chunkscan statepassing chunkcumsum stateupdate
            """,
        ),
        (
            CONVOLUTION_CLASS,
            r"""
            \w*conv(?:nd|\dd|2dim)? convolve\w* convolution\w* winograd\w* dgrad(?:\dd)? wgrad(?:\dd)?
            (?:\d+|xmma|direct)fprop fpropimplicit implicitgemm\w* im2col im2d2 col2im\w* cudnn
            [shdi]cudnn igemm(?:fwd|bwd|wrw) bwd(?:weight|data) computeoffsets computeboffsets deconv\w*
            depthwise\w*
            """,
        ),
        (NORMALIZATION_CLASS, r"2norm(?:fwd|bwd|forward|backward)"),
        (
            MOE_CLASS,
            r"""
            moe(?:aux\w*|align|sum|(?:un)?permute|sort\w*|gate|gating|topk|scatter|gather|finalize|expand)
            auxloss fusedgate topk(?:sum|reduce|weights?|ids?|withscore) dispatchlayout rowidmap
            """,
        ),
        (
            GEMM_CLASS,
            r"""
            (?:[a-z]|gc|tiny|split|grouped|batched|fused)?gemm(?:ex|lt|k|sn|vx?|[vk]\w?)?
            (?:[a-z])?gemv\w* [sb]gmv matmul\w* batchmatmul batchedgemm mulmat matvec nvjet cijk einsum
            marlin machete xdl xdlops splitk(?:reduce\w*|parallel|serial)? fusedmoe fmoe moegemm wgmma
            [a-z]?(?:syrk|trsm|trmm|herk|syr2k) [sdcz]symm lora contraction projkernel (?:up|down|gate)proj
            [wa]\d+[wa](?:fp)?\d+ t?gmm wvsplit\w*
            """,
        ),
        (ELEMENTWISE_CLASS, r"(?:act|silu|gelu|swiglu)andmul"),
        (SSM_CLASS, r"chunk"),
        (
            MOE_CLASS,
            r"""
            moe\w* experts? (?:pre|post)reorder expt expandinputrows finalizedeepseek routing\w* router
            topkgating gating gate(?:softmax|sigmoid) epscatter epgather maskedm alignblock sinkhorn
            """,
        ),
        (
            SOFTMAX_CLASS,
            r"""
            (?:log)?softmax\w* crossentropy\w* nllloss\w* nll logsumexp classifier \w*loss kldiv jsd
            sparsemax grpo dpo ce(?:forward|backward|fwd|bwd)
            """,
        ),
        (
            REDUCTION_CLASS,
            r"""
            l[12p]norm lpnorm globalnorm\w* gradnorm totalnorm normsquared segmentreduce
            reducesegments?
            """,
        ),
        (
            NORMALIZATION_CLASS,
            r"""
            (?:layer|rms|batch|group|instance|spectral|weight|local|qk|ada)?norm(?:alization|alize|alized)?(?:fwd|bwd)?
            (?:fused)?(?:ln|rms)(?:fwd|bwd|fw|bw)?
            [bg]n(?:fwd?|bwd?|stats?|finalize|relu|train|inference) gammabeta\w* gradgamma welford\w*
            rowwisemoments computegradinput fusedparams internalgradients dyt normfwd fusedresidual
            """,
        ),
        (
            OPTIMIZER_CLASS,
            r"""
            \w*adam[wx]? adamw\w* sgd\w* lamb lars lion adagrad adadelta rmsprop adafactor shampoo muon
            novograd momentum optimizer\w* optim ema lookahead optimi[sz]e
            """,
        ),
        (ELEMENTWISE_CLASS, r"m?rope rotary\w* rotated? neox gptj indexmul withindex clamp(?:min|max)?"),
        (
            SORT_CLASS,
            r"""
            \w*sort(?:ed)? \w*topk\w* topp minp scan (?:log)?cum(?:sum|prod|max|min)(?:exp)? radix\w*
            bitonic\w* searchsorted\w* unique\w* compact devicecompact deviceselect select(?:sweep|if)
            (?:device)?partition(?:config|impl|sweep|if) kth kthvalues? digits? nonzero bykey median
            prefixsum merge(?:path|sort) argsort blocksort copyif withink
            """,
        ),
        (
            RANDOM_CLASS,
            r"""
            philox distribution dropout curand\w* hiprand\w* rocrand\w* rand randn randint randperm
            random rng seed bernoulli (?:random|generate|int|float)uniform
            uniform(?:kernel|random|real|int) exponentialkernel multinomial sampling\w* samples?
            gensequenced xorwow
            """,
        ),
        (
            CAST_CLASS,
            r"""
            (?:de|re|un)?(?:k|fake)?(?:de|re)?quant\w* (?:de)?quati[sz]e\w* (?:up|down)?cast\w* typecast
            typeconvert convert(?:er|ion)?\w* conversion qparams? sharedexponent scalingfactors?
            (?:float|half|(?:fp|bf)\d+)to \d+2(?:float|half) (?:dynamic|static)(?:fp|int) fromamax
            scalefrom amaxscale toDTYPE DTYPE(?:to|2)DTYPE DTYPEcopy
            """,
        ),
        (
            POOLING_CLASS,
            r"""
            pooling\w* (?:max|avg|ave|average|adaptive|fractional|global)pool\w* pool\dd poolforward
            poolbackward adaptiveaverage adaptivemax mlopooling
            """,
        ),
        (
            EMBEDDING_CLASS,
            r"""
            embeddings?\w* embs? embed lookup gather\w* scatter\w* index\w* indices indexing take
            takealong bucketize\w* hash linearize stitch wte wpe encoderforward encoderbackward
            segments? onehot jagged tbe zch l[xrf]ucache permute[12]d getrows cachepopulate offsetsrange
            sparsefeatures gradweight maskedselect
            """,
        ),
        (FFT_CLASS, r"fft\w* [cr]2[cr] bluestein r2c c2r"),
        (SPARSE_CLASS, r"cusparse hipsparse rocsparse csr\w* coo bsr\w* spmm\w* spmv\w* sddmm\w*"),
        (GEMM_CLASS, r"(?:b|add|baddb|scaled|int8|sp)?mm mv mmt dot(?:general)? linear mlp ffn multiplication"),
        (
            COPY_CLASS,
            r"""
            \w*copy\w* cpy \w*cpy \w*transpose\w* (?:un)?permut\w* cat catarray concat\w* split slice
            slicing strided (?:un)?padd?(?:ed|ing)? reformat\w* (?:un|pre|de)?(?:pre)?shuffl\w*
            (?:un)?swizzl\w* interleave\w* reorder\w* rowmajorto\w* repeat roll flip swap\w* nchwto\w*
            nhwcto\w* tonchw tonhwc layout (?:re|un)?pack clone contiguous tensortransform transform4d
            transform0213 stack unfold repack fillbuffer
            """,
        ),
        (
            REDUCTION_CLASS,
            r"""
            [a-z]?reduc\w* r?sum sumrows? mean variance amax amin arg(?:max|min) minmax nrm2 asum dot
            hist(?:ogram)?\w* bincount count(?:s|er)? max min prod allclose norm2 aggregate
            """,
        ),
        (
            ELEMENTWISE_CLASS,
            r"""
            elementwise\w* elewise element pointwise\w* unary\w* binary\w* ternary vectorized map loop
            parallelfor foreach epilogue cwise\w* addv\d? add sub subtract mul multiply div divide neg
            negate abs exp exponential log sqrt rsqrt pow power sin cos tanh? (?:log)?sigmoid zeros?
            mult plus minus scalar identity penalty \w*[eis]lu silu swish swiglu geglu
            \w*glu softplus mish act activation dactivation d?bias biasadd axpy axpby scal scaled? fill
            filter clamp clip where select compare mask(?:ed)? triu tril lerp bcast broadcast\w* arange
            linspace transform(?:config|impl|kernel)? up(?:sample|scale)\w* interp residual assign iota equal
            logical bitwise pointwiseapply\w* sign round floor ceil reciprocal square maximum minimum
            mse huber threshold addcmul addcdiv tensorop optensor subtensor\w*
            """,
        ),
    )
)
CLASS_NAMES = frozenset({OTHER_CLASS, *(name for name, _ in _WORDS)})
# Templates that run any function for each element, or each element of lists of tensors, as those of optimizers.
_EACH_ELEMENT = re.compile(r"elementwise|pointwise|pointwiseapply\w*|elewise")
_LISTS = re.compile(r"multitensor")
# What runs the function that is its argument: cutlass::device_kernel, _kernel_agent of Thrust, trampoline_kernel.
_RUNNER = re.compile(
    r"_*(?:(?:cuda|device|global|parallel|launch|local|memory|static|generic|eigen|meta|trampoline|kernel|agent|k?entry"
    r"|main|impl|wrapper|invoke|run|function|cutlass|\d+)_*)+",
    re.IGNORECASE,
)
# Namespaces in which all kernels belong to one class. Others say nothing, unless the kernel is called just `kernel`.
_LIBRARIES = {
    **dict.fromkeys(("deep_ep", "nvshmem", "mscclpp", "internode", "intranode", "internode_ll"), COMMUNICATION_CLASS),
    **dict.fromkeys(("flash", "fmha"), ATTENTION_CLASS),
    "moe": MOE_CLASS,
    "cusparse": SPARSE_CLASS,
}
_RUNS = re.compile(r"parallelfor\w*|foreach")
# What a function for each element can be, beyond arithmetic.
_OF_ELEMENTS = frozenset(
    (COPY_CLASS, CAST_CLASS, RANDOM_CLASS, EMBEDDING_CLASS, NORMALIZATION_CLASS, OPTIMIZER_CLASS, POOLING_CLASS)
)
_OF_LISTS = frozenset((REDUCTION_CLASS, COPY_CLASS, CAST_CLASS))
# What no operator refutes.
_BY_NAME_ALONE = frozenset((COMMUNICATION_CLASS, COPY_CLASS, ATTENTION_CLASS))
_INDUCTOR = re.compile(r"^triton_(?P<kind>[a-z]+)_fused_?(?P<operators>\w*?)(?:_\d+)?$")
# Of the operators that a kernel of TorchInductor is named after, these decide. Others were only its neighbours.
_OF_POINTWISE = frozenset((EMBEDDING_CLASS, RANDOM_CLASS))
_OF_REDUCTION = frozenset((NORMALIZATION_CLASS, SOFTMAX_CLASS, SORT_CLASS, REDUCTION_CLASS))
_ROOT_OF_MEAN = re.compile(r"rsqrt|varmean")


# Types among template arguments, and how these are loaded, say nothing about the function.
_TYPE = re.compile(
    rf"(?:__)?(?:nv_|hip_)?{_DTYPE}(?:_t)?\d*|\d\w*|[aA]rray|char|bool|long|true|false|OpaqueType|\w+WithCast"
)


class _Certainty(Enum):
    """How much a name says: nothing, what its template does to any function, or what it does."""

    NOTHING, TEMPLATE, FUNCTION = range(3)


@cache
def kernel_class(name: str, operator: str = "") -> str:
    """Return the class of a kernel, copy or memset, which this operator launched ("" if that is not known)."""
    found, certainty = _by_name(name)
    if certainty is _Certainty.FUNCTION or found in _BY_NAME_ALONE or not operator:
        return found
    launched = operator_class(operator)
    # A function for each element is no matrix product, although that operator launches it, such as for a bias.
    may_be = _OF_ELEMENTS if certainty is _Certainty.TEMPLATE else CLASS_NAMES - {OTHER_CLASS}
    return launched if launched in may_be else found


def is_communication(name: str) -> bool:
    """Return whether a kernel exchanges data with other GPUs."""
    return kernel_class(name) == COMMUNICATION_CLASS


@cache
def operator_class(operator: str) -> str:
    """Return the class that the name of an operator says, such as aten::native_layer_norm."""
    return _first(words(operator.rpartition("::")[2]))


def _by_name(name: str) -> tuple[str, _Certainty]:
    """Return the class that a name says, and how certain that is."""
    if name.startswith(("Memcpy", "Memset", "[CUDA mem")):
        return COPY_CLASS, _Certainty.FUNCTION
    kernel = parsed(name)
    if match := _INDUCTOR.match(kernel.base):
        return _of_inductor(match["kind"], match["operators"])
    base = words(kernel.base)
    if any(map(_LISTS.fullmatch, base)):
        found = _of_arguments(kernel, _OF_LISTS)
        return found or OPTIMIZER_CLASS, _Certainty.FUNCTION
    found = _first(base)
    if found in (ELEMENTWISE_CLASS, REDUCTION_CLASS) and any(map(_EACH_ELEMENT.fullmatch, base)):
        function = _of_arguments(kernel, _OF_ELEMENTS)
        said = function or _of_arguments(kernel, frozenset((ELEMENTWISE_CLASS,)))
        return function or ELEMENTWISE_CLASS, _Certainty.FUNCTION if said else _Certainty.TEMPLATE
    if found != OTHER_CLASS:
        return found, _Certainty.FUNCTION
    if _RUNNER.fullmatch(kernel.base):
        if function := _of_arguments(kernel, CLASS_NAMES - {OTHER_CLASS}):
            return function, _Certainty.FUNCTION
        areas = map(_first, map(words, kernel.namespaces))
        return next(filter(OTHER_CLASS.__ne__, areas), OTHER_CLASS), _Certainty.NOTHING
    return next(filter(None, map(_LIBRARIES.get, kernel.namespaces)), OTHER_CLASS), _Certainty.NOTHING


def _first(candidates: Iterable[str], among: Set[str] = CLASS_NAMES) -> str:
    """Return the first class of which a word is among these."""
    candidates = tuple(candidates)
    return next(
        (name for name, pattern in _WORDS if name in among and any(map(pattern.fullmatch, candidates))), OTHER_CLASS
    )


def _of_arguments(kernel: KernelName, among: Set[str]) -> str:
    """Return the class that the first template argument with one of these says; "" if none does."""
    said = (words(argument) for argument in kernel.arguments if not _TYPE.fullmatch(argument))
    found = [_first(candidates) for candidates in said if not any(map(_RUNS.fullmatch, candidates))]
    return next((name for name in found if name in among), "")


def _of_inductor(kind: str, operators: str) -> tuple[str, _Certainty]:
    """Return the class of a kernel of TorchInductor, which is named after all operators that it is part of."""
    candidates = words(operators)
    if kind == "tem":
        found = _first(candidates, frozenset((ATTENTION_CLASS, CONVOLUTION_CLASS)))
        return (GEMM_CLASS if found == OTHER_CLASS else found), _Certainty.FUNCTION
    if kind == "poi":
        found = _first(candidates, _OF_POINTWISE)
        return (ELEMENTWISE_CLASS if found == OTHER_CLASS else found), _Certainty.FUNCTION
    if kind in ("red", "per", "spl"):
        if any(map(_ROOT_OF_MEAN.fullmatch, candidates)):
            return NORMALIZATION_CLASS, _Certainty.FUNCTION
        found = _first(candidates, _OF_REDUCTION)
        return (REDUCTION_CLASS if found == OTHER_CLASS else found), _Certainty.FUNCTION
    return ELEMENTWISE_CLASS, _Certainty.TEMPLATE


# Instructions of tensor cores and generators of kernels that use nothing else: MMA shapes, wgmma, MFMA ("xdl", "MI").
_TENSOR_CORES = re.compile(
    r"tensorop|16816|1688|16832|8816|(?<!\d)884|(?:w?g|[hiqd]|mx|um|utc)mma|mfma|xdl|nvjet|tf32|gtcx?\d|marlin|_MI\d+x\d+",
    re.IGNORECASE,
)
# Matrix and vector products, and those on the other cores: cuBLAS and cuDNN in fp32 and fp64, CUTLASS's SIMT kernels,
# Tensile without MFMA, and plain CUDA.
_VECTOR = re.compile(r"[a-z]?gemv\w*|[sb]gmv|matvec|mulmatvec|gemmk|mv")
_OTHER_CORES = re.compile(
    r"[sdcz]gemm\w*|gc?gemm|cgemm|gcgemm|simt|ffma|[sd]cudnn|f32f32f32f32|gemmsn|naive|cudapy|numba|sp3asm\w*|kokkos\w*"
)
_ENGINES = re.compile(r"(?:dgrad|wgrad|fprop|convolve|conv)\w*")


@cache
def multiplies_vectors(name: str) -> bool:
    """Return whether a product is of a matrix and a vector, which no tensor core speeds up: memory is its limit."""
    kernel = parsed(name)
    return any(map(_VECTOR.fullmatch, (word for part in (kernel.base, *kernel.namespaces) for word in words(part))))


@cache
def avoids_tensor_cores(name: str) -> bool:
    """Return whether a matrix product or convolution runs without tensor cores, according to its name."""
    if kernel_class(name) not in (GEMM_CLASS, CONVOLUTION_CLASS):
        return False
    if multiplies_vectors(name):
        return True
    kernel = parsed(name)
    if _TENSOR_CORES.search(kernel.base) or any(map(_TENSOR_CORES.search, kernel.arguments)):
        return False
    said = [word for part in (kernel.base, *kernel.namespaces, *kernel.arguments) for word in words(part)]
    in_floats = kernel.arguments[:1] in (("float",), ("double",)) and any(map(_ENGINES.fullmatch, said))
    return in_floats or kernel.base.startswith("Cijk_") or any(map(_OTHER_CORES.fullmatch, said))


def _runs(name: str) -> str:
    """Return the function that a kernel runs, if that is its first argument with a class; "" if it says more itself."""
    kernel = parsed(name)
    if not _RUNNER.fullmatch(kernel.base):
        return ""
    named = (argument for argument in kernel.arguments if not _TYPE.fullmatch(argument))
    return next((argument for argument in named if _first(words(argument)) != OTHER_CLASS), "")


def short_name(name: str, most: int = 80) -> str:
    """Return the name of a kernel without return type, template arguments and parameters; of a copy the whole name.

    What runs the function that is its argument, such as cutlass::device_kernel, has that function's name behind it.
    """
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
    if function := _runs(name):
        short = f"{short}<{function}>"
    return short if len(short) <= most else f"{short[: most - 1]}…"
