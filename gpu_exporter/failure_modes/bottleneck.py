"""Why is it slow? What limits a GPU that works, and what to change."""

from __future__ import annotations

from gpu_exporter import metrics as m
from gpu_exporter import signals as s
from gpu_exporter.classes import WINDOW, Is
from gpu_exporter.conditions import Compare, Fn, Limit, Over
from gpu_exporter.failure_modes import profiles
from gpu_exporter.failure_modes.mode import Domain, FailureMode, Inject, Severity, Wave
from gpu_exporter.xids import Action

MINUTE = 60.0
SWING = Limit("powerSwing", 0.2, "ratio", "standard deviation of instant power, over the power limit")

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
        Is("fake-load"),
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
        Is("pcie-bound"),
    ),
    FailureMode(
        "GpuDataLoadingBound",
        Domain.BOTTLENECK,
        Severity.WARNING,
        20 * MINUTE,
        Action.NONE,
        "{gpu} waits for its data: the engine works {{ $value }} of the time",
        "More loader workers, pinned memory and prefetch; move decoding to the GPU; look at the storage.",
        Inject(profiles.SLOW_LOADER),
        Is("data-loading-bound"),
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
        Is("host-bound"),
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
        Is("underfilled"),
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
        Is("tensor-cores-idle"),
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
        Is("memory-bound"),
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
        Compare(Over(s.POWER_SWING, Fn.STDDEV, WINDOW), ">", SWING),
    ),
)
