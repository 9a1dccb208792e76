"""Bottlenecks: what limits a GPU that works, and what to change."""

from __future__ import annotations

from gpu_exporter.catalogue import bottlenecks
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import model_assumptions as a
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import WINDOW, bottleneck_is
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Inject, Place, Scope, Severity, Wave
from gpu_exporter.conditions.tree import And, Calc, Compare, Fn, Limit, OrIfKnown, Over
from gpu_exporter.model.verdict import Action

LAUNCH_BOUND = "GpuLaunchBound"
MINUTE = 60.0
SWING = Limit("powerSwing", 0.2, "ratio", "how far power swings up and down, as a share of the power limit", a.POWER)
# A constant load at the edge of two buckets seems to swing by 40 W, whatever the power limit of the GPU is.
COARSE = Limit(
    "coarsePower",
    50.0,
    "watts",
    "swing in watts up to which it may be an artefact of the 50 W histogram buckets",
    a.POWER,
    any_model="the width of a bucket of the histogram, whatever the board draws",
)
# Less than one request at a time, on average. By pod: an inference server may use several GPUs.
FEW_REQUESTS = "avg_over_time(pod:requests:count[30m]) < 1"
SWINGS = And(
    Compare(Calc(Over(s.POWER_SWING), "/", Over(s.POWER_LIMIT)), ">", SWING),
    Compare(Over(s.POWER_SWING), ">", COARSE),
)


def _quantile(share: float) -> str:
    return f'histogram_quantile({share}, rate({m.POWER_SAMPLES}_bucket{{UUID="…"}}[5m]))'


GAPS = (
    f'With `--metrics full`: `{s.SM_IDLE.record}{{UUID="…"}}` is the share of time in which at most 1 % of the SMs are active, and '
    f'`histogram_quantile(0.5, rate({m.IDLE_GAPS}_bucket{{UUID="…"}}[5m]))` is the length of a typical gap. Gaps of equal '
    "length mean a stall at each step. Gaps shorter than two seconds need `--high-resolution`."
)

MODES = (
    FailureMode(
        "GpuFakeLoad",
        Domain.BOTTLENECK,
        Severity.WARNING,
        30 * MINUTE,
        Action.NONE,
        "{gpu} looks fully used but does almost no work",
        "Find the process (nvidia-smi, then ps) and ask its owner: it may be a kernel in a busy loop, a "
        "debugger, or a script that only keeps utilisation up. End it if nobody claims it.",
        Inject(profiles.ONE_THREAD, alone=True),
        bottleneck_is("fake-load"),
        cause=Cause.UNDERFILLED,
        shows=bottlenecks.SM,
        meaning="`nvidia-smi` shows 100 % utilisation, but almost no work is done: a kernel runs all the time on a few "
        "SMs and touches no data. A single thread in a busy loop is enough.",
        impact="The GPU costs its full price and looks occupied, but does nothing. Autoscalers and quotas that rely on "
        "utilisation are misled.",
        diagnosis=(
            "Run `nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv`, then `ps -o "
            "pid,user,etime,args -p PID`, to see whose process it is. If the GPU belongs to a pod, "
            f'`{m.POD_INFO}{{UUID="…"}}` names it.',
            f'Compare `{s.UTIL.record}{{UUID="…"}}` (about 1) with `{s.SM_ACTIVE.record}{{UUID="…"}}` (about 0.01).',
            "Run `py-spy dump --pid PID`. Look for a busy loop, a debugger at a breakpoint or a script that "
            "keeps utilisation up.",
            "Is the GPU a rank of a job? A rank that waits in a collective usually has some SMs active, but "
            "check for GpuCollectiveStall all the same.",
        ),
        mitigation=(
            "Ask the owner; end the process if nobody claims it.",
            "Use SM activity instead of utilisation in autoscalers, quotas and idle policies.",
        ),
        wrong="A server whose kernel stays on the GPU and polls for requests (a persistent kernel) looks like this "
        "between requests, which is intended. Latency-bound services with tiny batches can come close to it.",
    ),
    FailureMode(
        "GpuPcieBound",
        Domain.BOTTLENECK,
        Severity.INFO,
        15 * MINUTE,
        Action.NONE,
        "The PCIe link of {gpu} is full",
        "If the SMs are busy at the same time (gpu:sm_active:ratio), copies overlap with work and nothing may be "
        "wrong. Otherwise move less data over PCIe: keep data on the GPU, decode there, and check whether "
        "offloading is needed.",
        Inject(profiles.HOST_COPY),
        bottleneck_is("pcie-bound"),
        cause=Cause.COPIES,
        meaning="The PCIe link was full in one direction on average over minutes.",
        impact="The GPU computes only as fast as data comes over the bus.",
        diagnosis=(
            f'Look at `{s.PCIE_RX_USE.record}{{UUID="…"}}` for host to GPU (input, offloaded weights or '
            f'optimizer state) and at `{s.PCIE_TX_USE.record}{{UUID="…"}}` for GPU to host (checkpoints, '
            "offloading, results).",
            "If GpuPcieLinkDegraded fires for the same GPU, repair the link first. "
            f'`{s.PCIE_LINK.record}{{UUID="…"}}` is what the link can carry now.',
            f'Look at `{s.SM_ACTIVE.record}{{UUID="…"}}`. If it is high, copies overlap with work, and nothing '
            "may be wrong. If it is low, the SMs wait for the copies.",
            "Which copies does a profiler trace show, how large are they, and do they come from pinned memory?",
        ),
        mitigation=(
            "Move less data: keep it on the GPU, send bytes instead of floats and convert them there, decode "
            "images and video on the GPU.",
            "Check whether offloading (ZeRO-Offload, CPU optimizers, KV cache swapping) is needed at all.",
            "Overlap copies with work: pinned memory, `non_blocking=True`, a separate stream for copies.",
        ),
        wrong="A benchmark of copies, or a program that loads a very large model, is PCIe-bound by design.",
    ),
    FailureMode(
        "GpuDataLoadingBound",
        Domain.BOTTLENECK,
        Severity.WARNING,
        30 * MINUTE,
        Action.NONE,
        "{gpu} waits for input data",
        "Look at the data loader processes on the host (top -H). If they use 100 % CPU, add loader workers or "
        "decode on the GPU. If they are in state D, the storage is too slow. Use pinned memory and prefetching "
        "in any case.",
        Inject(profiles.SLOW_LOADER),
        bottleneck_is("data-loading-bound"),
        cause=Cause.HOST,
        shows=bottlenecks.GR,
        keep=60 * MINUTE,
        meaning="The GPU often waits while data arrives over PCIe: its input is too slow. With `--metrics full`, this "
        "also covers a GPU that works most of the time but stops at each step.",
        impact="The time in which the GPU waits is lost. That usually costs more than tuning any kernel can gain.",
        diagnosis=(
            f'Look at `{s.GR_ACTIVE.record}{{UUID="…"}}`, the share of time in which the GPU works, and at '
            f'`{s.PCIE_RX.record}{{UUID="…"}}`, the data that arrives.',
            GAPS,
            "Run `top -H` on the host. Loader workers at 100 % point to decoding or augmentation; workers in "
            "state `D` point to storage (`iostat -x`, network file system).",
            "Run `py-spy dump --pid PID` several times. Is the main thread in `DataLoader.__next__`?",
            "Does the problem disappear with synthetic data on the GPU? Then the input is certainly the cause.",
        ),
        mitigation=(
            "Use more workers, `pin_memory=True`, `prefetch_factor` and `persistent_workers=True`, and CPU "
            "limits that let the workers run.",
            "Decode on the GPU (DALI, nvJPEG), store decoded data, or use larger sequential files (WebDataset, "
            "Parquet) on a local cache.",
            "Check the latency of the storage; shard the data, so that not every rank reads everything.",
        ),
        wrong="Inference with irregular requests waits for its users, not for a loader. The start of a job, and a "
        "first epoch that fills a cache, look like this too. Data that the GPU reads from a local cache by "
        "itself (GPUDirect Storage) is not recognised as loading, nor is the data of ranks that exchange theirs over NVLink: "
        "sharded training moves as much over PCIe without any. They are host-bound; a [step timer](../training.md) "
        "tells whether they wait for their loader (GpuJobDataBound).",
    ),
    FailureMode(
        "GpuHostBound",
        Domain.BOTTLENECK,
        Severity.INFO,
        30 * MINUTE,
        Action.NONE,
        "{gpu} waits for the CPU",
        "If GpuLaunchBound fires, too, follow that. Otherwise run py-spy top on the process: what does the main thread "
        "do between two launches? In DataLoader.__next__, add loader workers and prefetching. Check the CPU limit of "
        "the pod, too.",
        Inject(profiles.SLEEPY),
        bottleneck_is("host-bound"),
        shows=bottlenecks.GR,
        cause=Cause.HOST,
        unless=f"on (cluster, namespace, pod) {FEW_REQUESTS}",
        meaning="A job uses the GPU, but the GPU works less than 60 % of the time while little data arrives over PCIe. With "
        "`--metrics full`, this also covers a GPU that works up to 85 % of the time but stops at each step. The host is "
        "late with its work: Python, preprocessing, loading, checkpoints or kernel launches.",
        impact="The time in which the GPU waits is lost.",
        diagnosis=(
            f'Look at `{s.GR_ACTIVE.record}{{UUID="…"}}`, the share of time in which the GPU works. A steady '
            "line means a slow loop; a sawtooth means phases such as checkpoints or evaluation.",
            GAPS,
            f'Look at `{s.PCIE_RX.record}{{UUID="…"}}`. Above 35 MB/s while little else happens, the CPU launches '
            "kernels all the time (GpuLaunchBound); far below that, it does something else.",
            "Run `py-spy top --pid PID`. Where is the main thread: `DataLoader.__next__`, `.item()`, `.cpu()`, logging, "
            "tokenising, a lock, the garbage collector?",
            "Look at the gaps between kernels in a profiler trace, and at what the CPU does in them.",
        ),
        mitigation=(
            "In `DataLoader.__next__`: more loader workers, `prefetch_factor`, `persistent_workers=True`, a CPU limit "
            "that lets them run.",
            "Do not synchronise in the loop: no `.item()` and no `print` of a loss at each step; log every "
            "hundred steps.",
            "Raise the CPU limit of the pod, or move other work off the cores of the main thread.",
            "Write checkpoints asynchronously; evaluate on other GPUs.",
        ),
        wrong="Inference with little traffic is host-bound by nature: that is a matter of cost, not a fault. If Prometheus "
        "also scrapes the inference server (vLLM, SGLang, TGI or Triton), GpuWaitsForRequests fires instead. "
        "A slow data loader is reported as host-bound if its data uses less than 2 % of the PCIe link (1.3 GB/s at Gen5 "
        "x16), as tokens and small images do: check the loader, too. With the "
        "default fields of dcgm-exporter, PCIe traffic is not known well enough, and data loading is reported as "
        "host-bound. If GpuStragglerStarved fires for the same GPU, the other ranks of the job wait for this one: "
        "follow that runbook first.",
    ),
    FailureMode(
        LAUNCH_BOUND,
        Domain.BOTTLENECK,
        Severity.INFO,
        30 * MINUTE,
        Action.NONE,
        "{gpu} waits for kernel launches",
        "The CPU launches kernels all the time, and each is too short. Launch less often: CUDA graphs or torch.compile, "
        "larger batches, fused optimizers, no .item() in the loop.",
        Inject(profiles.TINY_KERNELS),
        And(bottleneck_is("host-bound"), bottlenecks.LAUNCHES, name="launch_bound"),
        shows=bottlenecks.GR,
        cause=Cause.HOST,
        explains={Place.GPU: ("GpuHostBound",)},
        meaning="The GPU is often idle, and the CPU sends it one small kernel after another: launches alone cause the "
        "traffic on the PCIe bus. The thread that launches them is the limit.",
        impact="The GPU is idle while it waits for the next kernel. A faster GPU would not help; a faster CPU core would.",
        diagnosis=(
            f'Look at `{s.PCIE_RX.record}{{UUID="…"}}`: a launch moves about 1 to 2 kB, so 100 MB/s are more than 50 000 '
            "launches per second.",
            "Run `top -H`. One thread at 100 % is the one that launches kernels.",
            "In a profiler trace, compare the duration of the kernels with the gaps between them.",
        ),
        mitigation=(
            'CUDA graphs, or `torch.compile(mode="reduce-overhead")`, which uses them.',
            "Fewer, larger kernels: larger batches, fused optimizers (`fused=True`), fused layers.",
            "Remove synchronisation and Python work from the loop.",
        ),
        wrong="A service that must answer single requests quickly may need it this way.",
    ),
    FailureMode(
        "GpuWaitsForRequests",
        Domain.BOTTLENECK,
        Severity.INFO,
        30 * MINUTE,
        Action.NONE,
        "{gpu} mostly waits: its inference server has no requests",
        "No fault. If this lasts for hours, run fewer replicas, or share the GPU (MIG, MPS).",
        Inject(
            {**profiles.SLEEPY, m.GR_ENGINE_ACTIVE: 0.04, m.SM_ACTIVE: 0.03, m.GPU_UTIL: 4.0},
            series={'vllm:num_requests_running{namespace="research",pod="gpuwaitsforrequests-worker-0"}': 0.0},
        ),
        fleet=f"{bottlenecks.GR.record} < {bottlenecks.HALF_ENGINE.value:g}\nand on (cluster, namespace, pod) {FEW_REQUESTS}",
        scope=Scope.FLEET,
        requires="inference server",
        cause=Cause.HOST,
        explains={
            Place.GPU: (
                LAUNCH_BOUND,
                "GpuHostBound",
            )
        },
        meaning="The inference server on this GPU handled less than one request at a time during the last half hour, and "
        "the GPU worked less than 60 % of the time.",
        impact="The GPU costs its full price.",
        diagnosis=(
            "Query `pod:requests:count` over a day: does traffic come back?",
            "Do other replicas get requests? Then the load balancer leaves this one out.",
        ),
        mitigation=(
            "Scale the number of replicas with the number of requests, at night down to one or to zero.",
            "Share the GPU between services with little traffic (MIG, MPS).",
        ),
        wrong="A warm standby waits on purpose. The alert needs the metrics of vLLM, SGLang, TGI or Triton, with the labels "
        "`namespace` and `pod` of the server's pod, and the owner of the GPU.",
    ),
    FailureMode(
        "GpuUnderfilled",
        Domain.BOTTLENECK,
        Severity.INFO,
        30 * MINUTE,
        Action.NONE,
        "{gpu} runs kernels that are too small for it",
        "No fault, but part of the GPU is unused. Use larger batches, fused kernels or several streams; or share "
        "the GPU (MIG, MPS), or take a smaller one.",
        Inject(profiles.SMALL_DECODE),
        bottleneck_is("underfilled"),
        cause=Cause.UNDERFILLED,
        shows=bottlenecks.SM,
        meaning="Kernels run without gaps, but each is too small to fill the GPU: the engine is busy, while part of the "
        "SMs is empty.",
        impact="A smaller GPU, or a share of this one, would do the same work.",
        diagnosis=(
            f'Look at `{s.SM_ACTIVE.record}{{UUID="…"}}`, the share of the SMs that is used. '
            f'`{s.DRAM_ACTIVE.record}{{UUID="…"}}` is not the limit here; otherwise the class would be '
            "memory-bound.",
            "Which batch size is used? Generating tokens for a few requests looks exactly like this.",
            "Does a profiler trace show grids with fewer blocks than the GPU has SMs?",
            "Is the GPU a rank of a job? A rank that waits in a collective looks similar, but moves data.",
        ),
        mitigation=(
            "Use larger batches (continuous batching for serving), longer sequences or fused kernels.",
            "Use several streams or processes (MPS), a MIG instance, or a smaller GPU.",
            "For serving, send more requests to each replica and run fewer replicas.",
        ),
        wrong="A service that must answer quickly may need it this way. A rank that waits in a collective over a "
        "network that gpu-exporter does not measure (no NVLink, little PCIe traffic) is reported as underfilled "
        "if its memory is active or it draws at least 30 % of its power limit.",
    ),
    FailureMode(
        "GpuTensorCoresIdle",
        Domain.BOTTLENECK,
        Severity.INFO,
        30 * MINUTE,
        Action.NONE,
        "{gpu} computes without its tensor cores",
        "If the program multiplies matrices, allow TF32 or use bf16 or fp8, and shapes that are multiples of 8. "
        "Programs that need FP64 or FP32 are fine as they are.",
        Inject(profiles.FP32_GEMM),
        bottleneck_is("tensor-cores-idle"),
        cause=Cause.USEFUL,
        shows=bottlenecks.TENSOR,
        meaning="The SMs are busy with floating-point arithmetic, but none of it runs on the tensor cores.",
        impact="Matrix products take much longer than necessary: an H200 does them in bf16 more than ten times as fast "
        "as in FP32 without TF32.",
        diagnosis=(
            f'Compare `{s.FP32_ACTIVE.record}{{UUID="…"}}` and `{s.FP64_ACTIVE.record}{{UUID="…"}}` to see which '
            "pipe works.",
            "In the program: is `torch.get_float32_matmul_precision()` `highest`? Is autocast missing? Were "
            "weights loaded as float32?",
            "Read the names of the matrix kernels in a profiler trace: `sgemm` is FP32 without tensor cores; "
            "`s16816`, `hmma`, `wgmma` or `tf32` use them.",
        ),
        mitigation=(
            'Set `torch.set_float32_matmul_precision("high")` (TF32) or use bf16 autocast; use fp8 where the '
            "model allows it.",
            "Use shapes that are multiples of 8 (16 for fp8), and channels-last layout for convolutions.",
            "For simulations in FP64 or FP32 and for elementwise work there is nothing to do: silence the alert "
            "for them.",
        ),
        wrong="Scientific programs that need FP64 or FP32, and work without matrix products (rendering, hashing, "
        "sparse work), are right as they are.",
    ),
    FailureMode(
        "GpuMemoryBound",
        Domain.BOTTLENECK,
        Severity.INFO,
        30 * MINUTE,
        Action.NONE,
        "{gpu} is limited by its memory",
        "Not a fault, and normal for token generation. To make the program faster: fuse elementwise kernels "
        "(torch.compile), use smaller data types, decode in larger batches.",
        Inject(profiles.COPY),
        bottleneck_is("memory-bound"),
        cause=Cause.USEFUL,
        shows=bottlenecks.DRAM,
        meaning="The memory bandwidth is used up, or the SMs are full of warps that all wait for scattered data. More "
        "arithmetic units would not help.",
        impact="None if the work is memory-bound by nature. Otherwise the tensor cores wait for memory.",
        diagnosis=(
            f'Look at `{s.DRAM_ACTIVE.record}{{UUID="…"}}`. From 0.6 to 0.9 the bandwidth is the limit (0.9 is '
            "about the maximum). Far below that, with all arithmetic pipes idle, the access is scattered "
            "(gathers, embeddings, hash tables).",
            f'Look at `{s.TENSOR_ACTIVE.record}{{UUID="…"}}`. Some tensor core activity points to attention or '
            "decoding, none to elementwise kernels or copies.",
            "Which kernels take the time in a profiler trace: chains of elementwise kernels, normalisation, gathers?",
        ),
        mitigation=(
            "For elementwise chains: `torch.compile`, fused optimizers, FlashAttention.",
            "For decoding: larger batches, quantised weights and KV cache, speculative decoding.",
            "For scattered access: sort the indices, use larger embedding rows, cache what is read often.",
            "Use smaller data types wherever the model allows it.",
        ),
        wrong="Token generation, and therefore much of inference, is memory-bound by nature. The alert says what to change "
        "*if* you want more speed, not that something is broken.",
    ),
    FailureMode(
        "GpuPowerOscillation",
        Domain.BOTTLENECK,
        Severity.INFO,
        20 * MINUTE,
        Action.NONE,
        "The power of {gpu} swings by {{ $value | humanizePercentage }} of its limit",
        "The job alternates between work and waiting. The bottleneck class says what it waits for; if the class is "
        "`mixed`, use a profiler. Overlap loading and communication with computation. For large jobs, inform "
        "the data centre operators.",
        Inject({m.POWER_INSTANT: Wave(118, 690, 0.5)}),
        And(
            OrIfKnown(Compare(Over(s.POWER_INSTANT_USE, Fn.STDDEV, WINDOW), ">", SWING), SWINGS),
            name="power_swings",
        ),
        keep=30 * MINUTE,
        cause=Cause.HOST,
        meaning="The power swings widely, within five minutes and for most of the last half hour, because the job alternates "
        "between work and waiting.",
        impact="For the job: it waits between bursts. For the data centre: thousands of GPUs in step move megawatts, "
        "which power supplies, breakers and the grid notice.",
        diagnosis=(
            f"With `--metrics full`: `{_quantile(0.1)}` and `{_quantile(0.9)}` are the powers between which it "
            "swings, from 50 samples a second. The heatmap of power shows both as bands.",
            f'Without it, `{s.POWER_INSTANT.record}{{UUID="…"}}` shows the swings; '
            f'`{s.POWER.record}{{UUID="…"}}` is a mean over two minutes and hides them.',
            f'Look at `{s.GR_ACTIVE.record}{{workload="…"}}`: does the whole job start and stop together? Does '
            "it wait for data, for the network or for checkpoints?",
            'Look at the bottleneck class over time, `gpu:bottleneck:class{UUID="…"}`, to see what the GPU waits '
            "for between two bursts.",
        ),
        mitigation=(
            "Overlap loading and communication with computation: the gaps are lost time.",
            "Follow the runbook of its bottleneck class.",
            "For large jobs, inform the data centre operators. Lower the power limit (`nvidia-smi -pl`), which cuts the peaks "
            "and costs little speed, and use power smoothing where the driver supports it.",
        ),
        wrong="Short jobs one after another, and inference in bursts, swing too; on a few GPUs that is harmless. "
        "Without `--metrics full`, swings that are faster than the scrapes are seen only by chance, and never if "
        "they are in step with the scrapes. With it, bursts that take less than a tenth of the time are seen "
        "only by chance.",
    ),
)
