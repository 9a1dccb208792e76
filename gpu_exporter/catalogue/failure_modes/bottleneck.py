"""Why is it slow? What limits a GPU that works, and what to change."""

from __future__ import annotations

from gpu_exporter.catalogue import bottlenecks
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import WINDOW, bottleneck_is
from gpu_exporter.catalogue.conditions import And, Calc, Compare, Fn, Limit, OrIfKnown, Over
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Inject, Severity, Wave
from gpu_exporter.model.verdict import Action

MINUTE = 60.0
SWING = Limit("powerSwing", 0.2, "ratio", "how far power swings up and down, over the power limit")
# A constant load at the edge of two buckets seems to swing by 40 W, whatever the limit of its board is.
COARSE = Limit("coarsePower", 50.0, "watts", "swing that may be the width of two buckets, and none")
SWINGS = And(
    Compare(Calc(Over(s.POWER_SWING), "/", Over(s.POWER_LIMIT)), ">", SWING),
    Compare(Over(s.POWER_SWING), ">", COARSE),
)


def _quantile(share: float) -> str:
    return f'histogram_quantile({share}, rate({m.POWER_SAMPLES}_bucket{{UUID="…"}}[5m]))'


GAPS = (
    f'With `--metrics full`: `{s.SM_IDLE.record}{{UUID="…"}}` is the share of time in which its SMs rest, and '
    f'`histogram_quantile(0.5, rate({m.IDLE_GAPS}_bucket{{UUID="…"}}[5m]))` how long the usual gap is: one length, again '
    "and again, is a stall at each step. Gaps of less than a second take `--high-resolution`."
)

MODES = (
    FailureMode(
        "GpuFakeLoad",
        Domain.BOTTLENECK,
        Severity.WARNING,
        30 * MINUTE,
        Action.NONE,
        "{gpu} looks busy and does next to nothing",
        "Find the process (`nvidia-smi`): a spinning kernel, a debugger, or a script that keeps utilisation up.",
        Inject(profiles.ONE_THREAD),
        bottleneck_is("fake-load"),
        shows=bottlenecks.SM,
        meaning="`nvidia-smi` shows 100 %, and next to nothing is done: a kernel runs all the time, on a handful of "
        "SMs, and touches no data. One spinning thread is enough.",
        impact="The GPU is paid for, looks taken, and does nothing. Autoscalers and quotas that look at "
        "utilisation are fooled.",
        diagnosis=(
            "`nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv`, then `ps -o "
            "pid,user,etime,args -p PID`: whose is it?",
            f'`{s.UTIL.record}{{UUID="…"}}` against `{s.SM_ACTIVE.record}{{UUID="…"}}`: 1 and 0.01.',
            "`py-spy dump --pid PID`: a busy loop, a debugger at a breakpoint, a script that keeps utilisation up?",
            "Is it a rank of a job? One that waits in a collective has some SMs active; but look for a "
            "stall of its job all the same.",
        ),
        mitigation=(
            "Ask the owner; end it if nobody claims it.",
            "Judge by SM activity instead of utilisation: in autoscalers, quotas and idle policies.",
        ),
        wrong="A server whose kernel waits for requests in a loop on the GPU (a persistent kernel) looks so "
        "between requests, and must. Tiny batches of a latency-bound service can come near.",
    ),
    FailureMode(
        "GpuPcieBound",
        Domain.BOTTLENECK,
        Severity.INFO,
        15 * MINUTE,
        Action.NONE,
        "The PCIe link of {gpu} is full",
        "Move less: keep data on the GPU, prefetch, compress, decode on the GPU; check that offloading is wanted.",
        Inject(profiles.HOST_COPY),
        bottleneck_is("pcie-bound"),
        meaning="The PCIe link is full in one direction, on average over minutes.",
        impact="The GPU computes as fast as data comes over the bus, whatever else it could do.",
        diagnosis=(
            f'`{s.PCIE_RX_USE.record}{{UUID="…"}}` is host to GPU: input, offloaded weights or optimizer '
            f'state. `{s.PCIE_TX_USE.record}{{UUID="…"}}` is GPU to host: checkpoints, offloading, results.',
            "GpuPcieLinkDegraded on the same GPU? Then mend the link first. "
            f'`{s.PCIE_LINK.record}{{UUID="…"}}` is what it can carry now.',
            f'`{s.SM_ACTIVE.record}{{UUID="…"}}`: high: copies overlap with work, and it may be fine; low: '
            "the SMs wait.",
            "A profiler's trace: which copies, of what size, from pinned memory or not?",
        ),
        mitigation=(
            "Move less: keep data on the GPU, send bytes instead of floats and convert there, decode images "
            "and video on the GPU.",
            "Offloading (ZeRO-Offload, CPU optimizers, KV cache swap): ask whether it is needed at all.",
            "Overlap: pinned memory, `non_blocking=True`, a stream of its own for copies.",
        ),
        wrong="A benchmark of copies, or a load of a very large model, is bound by PCIe as it should be.",
    ),
    FailureMode(
        "GpuDataLoadingBound",
        Domain.BOTTLENECK,
        Severity.WARNING,
        20 * MINUTE,
        Action.NONE,
        "{gpu} waits for its data, which comes over PCIe",
        "More loader workers, pinned memory and prefetch; move decoding to the GPU; look at the storage.",
        Inject(profiles.SLOW_LOADER),
        bottleneck_is("data-loading-bound"),
        shows=bottlenecks.GR,
        meaning="The engine often waits, and meanwhile data comes over PCIe: input is too slow. Also where it works most "
        "of the time, if it rests at each step.",
        impact="The share of time in which the engine waits is lost. It usually costs more than any kernel can be "
        "tuned to win.",
        diagnosis=(
            f'`{s.GR_ACTIVE.record}{{UUID="…"}}` is the share of time in which it works; '
            f'`{s.PCIE_RX.record}{{UUID="…"}}`, what comes in bytes per second.',
            GAPS,
            "On the host: `top -H`: loader workers at 100 % (decoding, augmentation), or in `D` (storage: "
            "`iostat -x`, network file system)?",
            "`py-spy dump --pid PID`, several times: does the main thread stand in `DataLoader.__next__`?",
            "Does it go away with synthetic data on the GPU? Then it is the input for sure.",
        ),
        mitigation=(
            "More workers, `pin_memory=True`, `prefetch_factor`, `persistent_workers=True`; CPU limits that "
            "let them run.",
            "Decode on the GPU (DALI, nvJPEG), store what is decoded, use larger sequential files "
            "(WebDataset, Parquet) on a local cache.",
            "Storage: see its latency; shard so that not every rank reads everything.",
        ),
        wrong="Inference with uneven requests waits for its users, not for a loader. Start-up, and the first "
        "epoch that fills a cache, look so too. What is read from a local cache by the GPU itself "
        "(GPUDirect Storage) does not show as such.",
    ),
    FailureMode(
        "GpuHostBound",
        Domain.BOTTLENECK,
        Severity.INFO,
        30 * MINUTE,
        Action.NONE,
        "{gpu} waits for its host, and not for data",
        "CUDA graphs or torch.compile, larger batches, no .item() in the loop; profile the Python side of a step.",
        Inject(profiles.TINY_KERNELS),
        bottleneck_is("host-bound"),
        shows=bottlenecks.GR,
        meaning="A job holds the GPU, whose engine works less than about 60 % of the time while PCIe is quiet: "
        "nothing is asked of it. The host is late: launches, Python, preprocessing, small batches, "
        "checkpoints.",
        impact="The share of time in which the engine waits is lost.",
        diagnosis=(
            f'`{s.GR_ACTIVE.record}{{UUID="…"}}`: how much it works. Steady means a slow loop; a sawtooth '
            "means phases (checkpoint, evaluation).",
            GAPS,
            "`py-spy top --pid PID`: where is the main thread? `.item()`, `.cpu()`, logging, tokenising, a "
            "lock, the garbage collector?",
            "`top -H`: one thread at 100 % is the launching thread: kernels are too small, or Python too "
            "slow. CPU throttling of the pod: its limit.",
            "A profiler's trace: gaps between kernels, and what the CPU does in them.",
        ),
        mitigation=(
            'Fewer launches: CUDA graphs, `torch.compile(mode="reduce-overhead")`, fused optimizers, larger batches.',
            "No waiting in the loop: no `.item()` and no `print` of a loss at each step; log every hundredth.",
            "CPU: raise the limit, pin to the GPU's NUMA node; write checkpoints asynchronously.",
            "A server that waits for requests: share the GPU (MIG, MPS), or scale in.",
        ),
        wrong="Inference at low traffic is host-bound by nature: that is cost, not a fault. With dcgm-exporter's "
        "own list of fields PCIe is not known well enough, and data loading is taken for this. A starved "
        "straggler's victims are not meant; the straggler is.",
    ),
    FailureMode(
        "GpuUnderfilled",
        Domain.BOTTLENECK,
        Severity.INFO,
        30 * MINUTE,
        Action.NONE,
        "The kernels on {gpu} are too small for the chip",
        "Larger batches, fused kernels, several streams; or share the GPU (MIG, MPS), or take a smaller one.",
        Inject(profiles.SMALL_DECODE),
        bottleneck_is("underfilled"),
        shows=bottlenecks.SM,
        meaning="Kernels follow one another without a gap, and each is too small to fill the chip: engine busy, SMs "
        "partly empty.",
        impact="A smaller GPU, or a share of this one, would do as much.",
        diagnosis=(
            f'`{s.SM_ACTIVE.record}{{UUID="…"}}`: the share of the chip that is used. '
            f'`{s.DRAM_ACTIVE.record}{{UUID="…"}}`: not the limit, or it would be memory-bound.',
            "Which batch size? Decoding token by token for a few requests looks exactly so.",
            "A profiler's trace: grids with fewer blocks than the chip has SMs.",
            "Is it a rank of a job? See whether it waits: a rank in a collective looks alike, but moves bytes.",
        ),
        mitigation=(
            "Larger batches (continuous batching for serving), longer sequences, fused kernels.",
            "Several streams or processes (MPS); or give it a MIG instance, or a smaller GPU.",
            "For serving: more requests on each replica, fewer replicas.",
        ),
        wrong="A service that must answer at once may want it so. A rank that waits in a collective over a "
        "network that nobody measures here (no NVLink, little PCIe) is taken for it when its memory is not "
        "idle.",
    ),
    FailureMode(
        "GpuTensorCoresIdle",
        Domain.BOTTLENECK,
        Severity.INFO,
        30 * MINUTE,
        Action.NONE,
        "{gpu} computes without its tensor cores",
        "Allow TF32, use bf16 or fp8, and shapes that are multiples of 8; what needs FP64 or FP32 pipes is fine as it is.",
        Inject(profiles.FP32_GEMM),
        bottleneck_is("tensor-cores-idle"),
        shows=bottlenecks.TENSOR,
        meaning="The SMs are full of floating-point arithmetic, and none of it runs on the tensor cores.",
        impact="An H200 does matrix products in bf16 more than ten times as fast as in FP32 without TF32.",
        diagnosis=(
            f'`{s.FP32_ACTIVE.record}{{UUID="…"}}` and `{s.FP64_ACTIVE.record}{{UUID="…"}}`: which pipe works?',
            "In the program: `torch.get_float32_matmul_precision()` is `highest`? No autocast? Weights "
            "loaded as float32?",
            "A profiler's trace: names of matrix kernels: `sgemm` is FP32 without tensor cores; `s16816`, "
            "`hmma`, `wgmma` or `tf32` are with them.",
        ),
        mitigation=(
            '`torch.set_float32_matmul_precision("high")` (TF32), or bf16 autocast; fp8 where the model allows it.',
            "Shapes that are multiples of 8 (16 for fp8), and channels last for convolutions.",
            "Simulations in FP64 or FP32, and elementwise work: nothing to do; silence it for them.",
        ),
        wrong="Science codes that need FP64 or FP32, and work without matrix products (rendering, hashing, sparse "
        "work), are right as they are.",
    ),
    FailureMode(
        "GpuMemoryBound",
        Domain.BOTTLENECK,
        Severity.INFO,
        30 * MINUTE,
        Action.NONE,
        "Memory limits {gpu}",
        "Fuse element-wise kernels, use smaller types, batch decoding; token generation is rightly memory-bound.",
        Inject(profiles.COPY),
        bottleneck_is("memory-bound"),
        shows=bottlenecks.DRAM,
        meaning="Memory bandwidth is used up, or the SMs are full of warps that all wait for scattered data. More "
        "arithmetic units would not help.",
        impact="None, if the work is so by nature. Otherwise the tensor cores wait for memory.",
        diagnosis=(
            f'`{s.DRAM_ACTIVE.record}{{UUID="…"}}`: 0.6 to 0.9 is bandwidth (0.9 is about the most there '
            "is). Far below with every pipe idle: scattered access (gathers, embeddings, hash tables).",
            f'`{s.TENSOR_ACTIVE.record}{{UUID="…"}}`: beside it, some: attention or decoding; none: '
            "elementwise kernels, copies.",
            "A profiler's trace: which kernels take the time: elementwise chains, normalisation, gathers?",
        ),
        mitigation=(
            "Elementwise chains: `torch.compile`, fused optimizers, FlashAttention.",
            "Decoding: larger batches, quantised weights and KV cache, speculative decoding.",
            "Scattered access: sort the indices, larger embedding rows, cache what is asked often.",
            "Smaller types wherever the model allows it.",
        ),
        wrong="Token generation is rightly memory-bound: so is a good share of inference. It says what to change "
        "*if* you want it faster, not that something is broken.",
    ),
    FailureMode(
        "GpuPowerOscillation",
        Domain.BOTTLENECK,
        Severity.INFO,
        15 * MINUTE,
        Action.NONE,
        "The power of {gpu} swings by {{ $value | humanizePercentage }} of its limit",
        "The job starts and stops in step: overlap loading and communication with computing; warn the facility.",
        Inject({m.POWER_INSTANT: Wave(118, 690, 0.5)}),
        OrIfKnown(Compare(Over(s.POWER_INSTANT_USE, Fn.STDDEV, WINDOW), ">", SWING), SWINGS),
        meaning="The power of the moment swings widely, many times a minute: the job starts and stops in step.",
        impact="For the job: it waits between bursts. For the room: thousands of GPUs in step move megawatts, "
        "which supplies, breakers and the grid feel.",
        diagnosis=(
            f"With `--metrics full`: `{_quantile(0.1)}` and `{_quantile(0.9)}` are the powers between which it swings, "
            "of 50 samples a second; the heatmap of board power shows both as bands.",
            f'Without, `{s.POWER_INSTANT.record}{{UUID="…"}}` shows it; `{s.POWER.record}{{UUID="…"}}` is a mean over '
            "a second, and hides anything faster.",
            f'`{s.GR_ACTIVE.record}{{workload="…"}}`: does the whole job start and stop together? Waiting '
            "for data, for the network, for checkpoints?",
            'Its class over time, `gpu:bottleneck:class{UUID="…"}`: what it waits for between two bursts.',
        ),
        mitigation=(
            "Overlap loading and communication with computing: the gaps are what you lose.",
            "Check which class it is of, and go to that runbook.",
            "Large jobs: tell the facility; lower the power limit (`nvidia-smi -pl`), which cuts the peaks "
            "and costs little; use power smoothing where the driver has it.",
        ),
        wrong="Short jobs one after another, and inference in bursts, swing too, and are harmless on a few GPUs. "
        "Without `--metrics full`, swings that are faster than the scrapes are seen by chance only, and not at all in step "
        "with them; bursts that take less than a tenth of the time, by chance with it, too.",
    ),
)
