"""Who wastes? GPUs that are paid for and not used."""

from __future__ import annotations

from gpu_exporter import metrics as m
from gpu_exporter import signals as s
from gpu_exporter.classes import IDLE_ENGINE, QUIET_PCIE
from gpu_exporter.conditions import And, Compare, Fn, Limit, Over, Unless
from gpu_exporter.failure_modes import profiles
from gpu_exporter.failure_modes.mode import Domain, FailureMode, Inject, Ramp, Severity
from gpu_exporter.xids import Action

MINUTE, HOUR = 60.0, 3600.0

# fmt: off
HELD_MEMORY    = Limit("heldMemory", 1e9, "bytes", "device memory that a program holds, more than a context needs")
HOARDED_MEMORY = Limit("hoardedMemory", 0.8, "ratio", "share of the memory that is taken")
HOARDER_SM     = Limit("hoarderSm", 0.1, "ratio", "SM activity that such a program never reaches")
FULL_MEMORY    = Limit("fullMemory", 0.85, "ratio", "share of the memory in use at which growth is dangerous")
# fmt: on

PRICES = (
    Limit("usdPerKwh", 0.12, "USD", "price of a kilowatt-hour"),
    Limit("usdPerGpuHour", 2.50, "USD", "price of a GPU for an hour, electricity included"),
)

IDLE_FOR, HOARDED_FOR = 2 * HOUR, HOUR
# Programs take memory at once or load for minutes: what is still growing after a longer hold than window is no start.
GROWS_FOR, GROWTH_HOLD = 15 * MINUTE, 20 * MINUTE

MODES = (
    FailureMode(
        "GpuMemoryExhaustionPredicted",
        Domain.COST,
        Severity.WARNING,
        GROWTH_HOLD,
        Action.NONE,
        "The memory of {gpu} will be full within the hour",
        "Find the leak or the growing cache before it ends the job: compare allocated and reserved memory over steps.",
        Inject(
            {
                m.FB_USED: Ramp(110 * profiles.GIB, 10.0),
                m.FB_FREE: Ramp(143771.0 - 110 * profiles.GIB - 615, -10.0),
            }
        ),
        And(
            Compare(Over(s.FB_FREE, Fn.PREDICT, GROWS_FOR, ahead=HOUR, whole=True), "<", 0.0),
            Compare(Over(s.FB_USE), ">=", FULL_MEMORY),
        ),
    ),
    FailureMode(
        "GpuAllocatedIdle",
        Domain.COST,
        Severity.WARNING,
        15 * MINUTE,
        Action.NONE,
        "{gpu} is held and did nothing for two hours",
        "Ask its owner to give it back: notebooks, finished jobs and forgotten servers; set an idle timeout.",
        Inject({**profiles.IDLE, m.FB_USED: 20 * profiles.GIB}),
        Unless(
            And(
                Compare(Over(s.GR_ACTIVE, Fn.MAX, IDLE_FOR, whole=True), "<", IDLE_ENGINE),
                Compare(Over(s.FB_USED), ">=", HELD_MEMORY),
            ),
            Compare(Over(s.PCIE_RX_USE, Fn.MAX, IDLE_FOR), ">=", QUIET_PCIE),
        ),
        implies=("GpuMemoryHoarded",),
    ),
    FailureMode(
        "GpuMemoryHoarded",
        Domain.COST,
        Severity.INFO,
        15 * MINUTE,
        Action.NONE,
        "{gpu} is full of memory that is hardly used",
        "Share it (MIG, MPS) or give the program a memory limit; JAX and vLLM take all they can get by default.",
        Inject({**profiles.IDLE, m.GR_ENGINE_ACTIVE: 0.05, m.GPU_UTIL: 5.0, m.FB_USED: 130_000.0, m.FB_FREE: 13_156.0}),
        And(
            Compare(Over(s.FB_USE, Fn.MIN, HOARDED_FOR, whole=True), ">=", HOARDED_MEMORY),
            Compare(Over(s.SM_ACTIVE, Fn.MAX, HOARDED_FOR, whole=True), "<", HOARDER_SM),
        ),
        implies=("GpuHostBound", "GpuAllocatedIdle"),
    ),
)
