"""Is it on fire? States of the board, its links and the driver, and of the exporter that watches them."""

from __future__ import annotations

from gpu_exporter import metrics as m
from gpu_exporter import signals as s
from gpu_exporter.conditions import And, Calc, Compare, Fn, Limit, Or, Over, Unless
from gpu_exporter.failure_modes.mode import Domain, FailureMode, Inject, Ramp, Scope, Severity
from gpu_exporter.signals import Signal
from gpu_exporter.thresholds import BUSY, LOW_MARGIN
from gpu_exporter.xids import Action

MINUTE, HOUR = 60.0, 3600.0

# fmt: off
XID_RECENT     = Limit("xidRecent", 600, "seconds", "how long an Xid is shown after it was last seen")
ECC_STORM      = Limit("eccStorm", 100, "errors", "corrected ECC errors within an hour that are more than chance")
HOT_HARDWARE   = Limit("hotHardware", 0.1, "ratio", "share of time in which hardware may slow a hot GPU down")
HOT_DRIVER     = Limit("hotDriver", 0.5, "ratio", "share of time in which the driver may slow a hot GPU down")
MARGIN         = Limit("thermalMargin", LOW_MARGIN, "celsius", "degrees before the slowdown that are too few")
BRAKE          = Limit("powerBrake", 0.01, "ratio", "share of time in which the power supply may brake the GPU")
LINK_BUSY      = Limit("linkBusy", BUSY / 100, "ratio", "utilisation at which the PCIe link is no longer saving power")
STALE          = Limit("stale", 60, "seconds", "age of the last good read of a GPU that is too old")
# fmt: on


def _on(signal: Signal) -> Compare:
    return Compare(Over(signal), ">", 0.0)


def _grown(signal: Signal) -> Over:
    return Over(signal, Fn.INCREASE, 15 * MINUTE)


RELEASED = Compare(Over(s.RELEASED), "==", 1.0)
# An exporter that was asked to let the driver go has no GPUs until it takes them up again.
_RELEASED_NODE = f"on (cluster, job, instance) ({m.RELEASED} == 1)"

MODES = (
    FailureMode(
        "GpuLost",
        Domain.HEALTH,
        Severity.CRITICAL,
        2 * MINUTE,
        Action.NODE_REBOOT,
        "{gpu} does not answer",
        "Drain the node; look for Xid 79 or 119 in the kernel log; reboot it, and replace the board if it happens again.",
        Inject(fault="lost"),
        Unless(Compare(Over(s.UP), "<", 1.0), RELEASED),
        fleet=f"""(
  (
    max by (cluster, job, instance) ({m.EXPECTED} - {m.VISIBLE})
    or
    max_over_time(gpu:dcgm_gpus:count[6h])
    - on (cluster, job, instance)
    (gpu:dcgm_gpus:count or 0 * max_over_time(gpu:dcgm_gpus:count[6h]))
  ) > 0
  and on (cluster, job, instance) up == 1
  unless on (cluster, job, instance) ({m.UP} == 0)
  unless {_RELEASED_NODE}
)
* on (cluster, job, instance) group_left (node) max by (cluster, job, instance, node) (last_over_time(gpu:exporter:info[6h]))""",
        implies=("GpuTelemetryStale",),
    ),
    FailureMode(
        "GpuXidFatal",
        Domain.HEALTH,
        Severity.CRITICAL,
        0,
        Action.DRAIN,
        "Xid {{ $labels.xid }} on {gpu}",
        "Drain the node, then do what the driver's recovery action says, else what the Xid table says.",
        Inject(xid=79),
        Compare(Over(s.XID_FATAL, Fn.AGE), "<", XID_RECENT),
    ),
    FailureMode(
        "GpuEccUncorrectable",
        Domain.HEALTH,
        Severity.CRITICAL,
        0,
        Action.GPU_RESET,
        "Uncorrectable memory errors on {gpu} since its driver was loaded",
        "Drain the node and reset the GPU; replace the board if errors come again or too many were in SRAM.",
        Inject({m.ECC_DBE_VOL: 2.0}),
        Or(_on(s.ECC_DBE), _on(s.SRAM_EXCEEDED)),
    ),
    FailureMode(
        "GpuRowRemapFailed",
        Domain.HEALTH,
        Severity.CRITICAL,
        0,
        Action.REPLACE,
        "A bad memory row of {gpu} could not be replaced",
        "Drain the node and have the board replaced: this is NVIDIA's own criterion.",
        Inject({m.REMAP_FAILURE: 1.0}),
        _on(s.REMAP_FAILED),
    ),
    FailureMode(
        "GpuRecoveryActionRequired",
        Domain.HEALTH,
        Severity.CRITICAL,
        0,
        Action.GPU_RESET,
        "The driver asks for recovery action {{ $value }} on {gpu}",
        "Do what it asks for: 1 reset the GPU, 2 reboot the node, 3 drain peer traffic, 4 drain and reset.",
        Inject({m.RECOVERY: 1.0}),
        _on(s.RECOVERY),
    ),
    FailureMode(
        "GpuNvlinkDown",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.GPU_RESET,
        "{{ $value }} NVLinks of {gpu} are down",
        "Reset the GPU when its job has ended; if links stay down, look at the fabric manager, then at the baseboard.",
        Inject({m.NVLINK_UP: 16.0}),
        And(Compare(Calc(Over(s.NVLINK_LINKS), "-", Over(s.NVLINK_UP)), ">", 0.0), _on(s.NVLINK_UP)),
    ),
    FailureMode(
        "GpuThermalThrottling",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.NONE,
        "Heat slows {gpu} down",
        "See to the cooling of this node: fans, air flow, coolant, inlet temperature.",
        Inject({m.CLOCK_EVENTS: 64.0 + 8.0, m.CLOCK_EVENT_SECONDS[3]: Ramp(0, 0.6), m.GPU_TEMP: 90.0}),
        Or(
            Compare(Over(s.HW_THERMAL, Fn.MEAN, 5 * MINUTE), ">", HOT_HARDWARE),
            Compare(Over(s.SW_THERMAL, Fn.MEAN, 5 * MINUTE), ">", HOT_DRIVER),
        ),
        keep=10 * MINUTE,
    ),
    FailureMode(
        "GpuPowerBrake",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.NONE,
        "The power supply brakes {gpu}",
        "Look at the power supplies, the power cap of the chassis and the rack's feed.",
        Inject({m.CLOCK_EVENTS: 128.0 + 8.0, m.CLOCK_EVENT_SECONDS[4]: Ramp(0, 0.5)}),
        Compare(Over(s.POWER_BRAKE, Fn.MEAN, 5 * MINUTE), ">", BRAKE),
        keep=10 * MINUTE,
    ),
    FailureMode(
        "GpuThermalMarginLow",
        Domain.HEALTH,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "{gpu} is {{ $value }} degrees from slowing down",
        "See to the cooling of this node before it costs speed.",
        Inject({m.TEMP_MARGIN: 2.0, m.GPU_TEMP: 85.0}),
        Or(Compare(Over(s.THERMAL_MARGIN), "<=", MARGIN), Compare(Over(s.THERMAL_DISTANCE), "<=", MARGIN)),
        keep=10 * MINUTE,
    ),
    FailureMode(
        "GpuRowRemapPending",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.GPU_RESET,
        "A bad memory row of {gpu} waits for a reset to be replaced",
        "Let what runs end, start nothing new, then reset the GPU.",
        Inject({m.REMAP_PENDING: 1.0}),
        _on(s.REMAP_PENDING),
    ),
    FailureMode(
        "GpuRetiredPagesPending",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.NODE_REBOOT,
        "Bad memory pages of {gpu} wait for a reboot to be retired",
        "Let what runs end, then reboot the node.",
        Inject({m.RETIRED_PENDING: 1.0}),
        _on(s.RETIRED_PENDING),
    ),
    FailureMode(
        "GpuSpareRowsLow",
        Domain.HEALTH,
        Severity.WARNING,
        HOUR,
        Action.REPLACE,
        "{{ $value }} memory banks of {gpu} have few spare rows left, or none",
        "Plan the board's replacement: the next bad row in such a bank can't be remapped.",
        Inject({m.REMAP_HISTOGRAM[4]: 1.0}),
        Or(_on(s.BANKS_NONE), _on(s.BANKS_LOW)),
    ),
    FailureMode(
        "GpuPcieLinkDegraded",
        Domain.HEALTH,
        Severity.WARNING,
        15 * MINUTE,
        Action.NODE_REBOOT,
        "The PCIe link of {gpu} is slower than GPU and slot can do",
        "Reboot the node; if the link stays slow, reseat the board, then try another slot and riser.",
        Inject({m.PCIE_WIDTH: 8.0}),
        And(
            Or(
                Compare(Over(s.PCIE_WIDTH, bare=True), "<", Over(s.PCIE_MAX_WIDTH)),
                Compare(Over(s.PCIE_GEN, bare=True), "<", Over(s.PCIE_MAX_GEN)),
            ),
            Compare(Over(s.UTIL, Fn.MEAN, 5 * MINUTE, bare=True), ">=", LINK_BUSY),
        ),
    ),
    FailureMode(
        "GpuPcieReplayStorm",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.DRAIN,
        "{{ $value }} PCIe replays within 15 minutes on {gpu}",
        "Drain the node and reseat the board; replays above the link's bit error limit mean a bad contact or riser.",
        Inject({m.PCIE_REPLAY: Ramp(0, 5.0)}),
        Compare(_grown(s.PCIE_REPLAYS), ">", Over(s.PCIE_REPLAY_LIMIT, Fn.MAX, 15 * MINUTE, bare=True)),
    ),
    FailureMode(
        "GpuNvlinkErrors",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.GPU_RESET,
        "NVLink errors on {gpu}",
        "Compare with the GPU at the other end of the link; reset both, and replace what errs again.",
        Inject({m.NVLINK_REPLAY: Ramp(0, 0.5)}),
        Or(*(Compare(_grown(each), ">", 0.0) for each in (s.NVLINK_REPLAYS, s.NVLINK_RECOVERIES, s.NVLINK_CRC))),
        keep=30 * MINUTE,
    ),
    FailureMode(
        "GpuEccCorrectableStorm",
        Domain.HEALTH,
        Severity.WARNING,
        0,
        Action.NONE,
        "{{ $value }} corrected memory errors within an hour on {gpu}",
        "Watch it: nothing is lost yet. If Xid 92 or a remap follows, reset the GPU when its job has ended.",
        Inject({m.ECC_SBE_VOL: Ramp(0, 0.2)}),
        Compare(Over(s.ECC_SBE, Fn.INCREASE, HOUR), ">", ECC_STORM),
    ),
    FailureMode(
        "GpuXidUnknown",
        Domain.HEALTH,
        Severity.WARNING,
        0,
        Action.NONE,
        "Undocumented Xid {{ $labels.xid }} on {gpu}",
        "Read the kernel log around it and ask NVIDIA; do not drain for it alone.",
        Inject(xid=999),
        Compare(Over(s.XID_UNKNOWN, Fn.AGE), "<", XID_RECENT),
    ),
    FailureMode(
        "GpuXidApplication",
        Domain.HEALTH,
        Severity.INFO,
        0,
        Action.RESTART_APP,
        "Xid {{ $labels.xid }} on {gpu}: usually the program's own fault",
        "Tell the owner of the job; look at the GPU only if the code comes from several programs.",
        Inject(xid=31),
        Compare(Over(s.XID_APPLICATION, Fn.AGE), "<", XID_RECENT),
    ),
    FailureMode(
        "GpuTelemetryStale",
        Domain.HEALTH,
        Severity.WARNING,
        2 * MINUTE,
        Action.NONE,
        "{gpu} was not read for {{ $value | humanizeDuration }}",
        "Ask `gpu-exporter doctor` on the node; a call that is stuck in the driver needs a reboot.",
        Inject(fault="wedged"),
        Unless(Compare(Over(s.LAST_READ, Fn.AGE), ">", STALE), RELEASED),
        implies=("GpuLost",),
    ),
    FailureMode(
        "GpuExporterDown",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.NONE,
        "Prometheus can't scrape {{ $labels.instance }}: nothing is known of the GPUs of {{ $labels.node }}",
        "Look at the exporter's pod or service and at the network between; if the node is down too, see to that.",
        Inject(fault="down"),
        fleet="""(
  up{job=~".*(gpu|dcgm).*"} == 0
  or
  (up == 0 and on (cluster, job, instance) max_over_time(gpu:exporter:info[1d]))
)
* on (cluster, job, instance) group_left (node) max by (cluster, job, instance, node) (last_over_time(gpu:exporter:info[1d]))
or on (cluster, job, instance)
up{job=~".*(gpu|dcgm).*"} == 0""",
        scope=Scope.FLEET,
    ),
    FailureMode(
        "GpuMetricsMissing",
        Domain.HEALTH,
        Severity.INFO,
        30 * MINUTE,
        Action.NONE,
        "{gpu} reports utilisation but no SM activity: its bottleneck is unknown",
        "Have dcgm-exporter export the fields of alerts/dcgm-exporter.csv; with our exporter, ask `gpu-exporter doctor`.",
        Inject(absent=(m.SM_ACTIVE,)),
        Unless(Compare(Over(s.UTIL, bare=True), ">=", 0.0), Compare(Over(s.SM_ACTIVE, bare=True), ">=", 0.0)),
        scope=Scope.FLEET,
    ),
)
