"""What the limits of conditions assume about GPU models. Each limit names one of these, by what it is compared with."""

from __future__ import annotations

from gpu_exporter.conditions.tree import Assumption

TIME = Assumption(
    "shares of time",
    "Time means the same on every model.",
    "With few SMs, a kernel of one block is more than 1 % of the SMs, so the share of time with idle SMs is lower "
    "than on large GPUs, and short stalls count as work.",
)
SM = Assumption(
    "SM activity",
    "One thread reads 0.008 and a rank that waits in NCCL 0.18 on H100 and H200: 1 and 24 of 132 SMs.",
    "On other models, the same blocks on their number of SMs. How many blocks NCCL uses there is assumed. In MIG "
    "mode, activity is assumed to be a share of the SMs of the instance.",
)
DRAM = Assumption(
    "DRAM activity",
    "HBM3 and HBM3e reach 0.89 when a kernel copies; a rank that waits reads 0.",
    "GDDR6 (L4, L40S) and HBM2e are assumed to reach as much, also for the headroom that "
    "`diagnose` shows. Matrix products load the memory by FLOP/s per byte/s "
    "of the model.",
)
PIPES = Assumption(
    "pipe activity",
    "Shares of the cycles of one SM, on Hopper.",
    "Other architectures have other numbers of units per SM: on Ada, half of the FP32 units also do integers, so "
    "the same kernel reads another activity of the integer pipe. "
    "DCGM does not report the FP64 pipe of L4 and L40S, so the sum of the floating-point pipes is unknown there.",
)
TIME_SHARES = Assumption(
    "time shares",
    "The SM activity of ranks that wait (0.17) and work (0.94), and the share of the link that copies use (0.92), "
    "on H100 and H200; of an H100, 0.79 while another one copied, too.",
    "On other models, waiting ranks fill another share of the SMs, so slightly more or less time counts as waiting "
    "(see below). Kernels that leave SMs empty while they work count as waiting, too.",
)
PCIE = Assumption(
    "use of the PCIe link",
    "Generation 5 with 16 lanes: full copies use 0.93 of the link, the fastest launches 0.003.",
    "Generation 4 and 6: the same bytes on another capacity. GB200 copies over NVLink-C2C, which is not a PCIe "
    "link: its PCIe traffic says nothing about the host. MIG instances have no PCIe traffic of their own.",
)
TRAFFIC = Assumption(
    "traffic in bytes per second",
    "Traffic differs by orders of magnitude: NVLink carries 0 in a hang and 200 MB/s or more in collectives; "
    "launches alone move 60 to 330 MB/s over PCIe.",
    "Launch traffic depends on the driver and the CPU, not on the model, unless launches go over NVLink-C2C.",
)
HOST = Assumption(
    "host evidence",
    "What the kernel says of processes does not depend on the GPU.",
    "Nothing.",
)
NETWORK = Assumption(
    "network between nodes",
    "States and counters of network cards do not depend on the GPU. None was measured on real network cards.",
    "Nothing.",
)
LOOPS = Assumption(
    "training loops",
    "Shares of the time of a loop do not depend on the GPU.",
    "Nothing.",
)
PEERS = Assumption(
    "comparison with peers",
    "All ranks of a job run on the same model, so its data cancels out.",
    "Jobs on mixed models are not compared: `modelName` is part of a job's identity.",
)
MEMORY = Assumption(
    "device memory",
    "Shares of the memory; 1 GiB as more than a CUDA context needs, and 200 MiB as less.",
    "A context is assumed to need between 200 MiB and 1 GiB on every model; the smallest slice has 5 GB.",
)
POWER = Assumption(
    "power",
    "Used by GpuPowerOscillation, which is about power itself, and for the class of GPUs without profiling counters. "
    "On H100 and H200, a busy GPU draws 0.17 to 0.50 of its limit while it waits, copies or runs small kernels, and "
    "0.55 to 1.0 while its SMs are filled, but for scattered reads (0.3), which memory utilisation shows.",
    "On a board of 72 W (L4), no swing exceeds 50 W, the width of the histogram's buckets; there, the alert "
    "depends on instantaneous power. A board with a low limit draws a larger share of it while it waits, so it has no "
    "class more often, and reaches its limit with less work: that memory utilisation is low is then what tells "
    "compute-bound.",
)
TEMPERATURE = Assumption(
    "temperature",
    "`thermalMargin` is a distance from the slowdown temperature that the driver reports for this board.",
    "GPUs that report neither a margin nor a threshold are never reported as hot.",
)
COUNTS = Assumption(
    "errors and ages",
    "Counts and times do not depend on the model.",
    "More memory has more corrected errors at the same rate per bit.",
)
ASSUMPTIONS = tuple(value for value in globals().values() if isinstance(value, Assumption))
