"""Health: states of the GPU, its links and the driver, and of the exporter that monitors them."""

from __future__ import annotations

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import model_assumptions as a
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes.mode import (
    STOPPED_JOB,
    Domain,
    FailureMode,
    Inject,
    Place,
    Ramp,
    Scope,
    Severity,
    slows_down,
)
from gpu_exporter.catalogue.faults import BUSY, FABRIC_DONE, FASTEST, FATAL_XID, LOST, LOW_MARGIN, TELEMETRY
from gpu_exporter.catalogue.faults import MARGIN as MARGIN_FAULT
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import And, Calc, Compare, Fn, Limit, NodeMax, Or, OrIfKnown, Over, Unless
from gpu_exporter.model.source_kind import DCGM
from gpu_exporter.model.verdict import Action

MINUTE, HOUR = 60.0, 3600.0
# Names of modes that other modules need. Those in catalogue/faults.py are of modes that alert on faults.
NVLINK_ERRORS, METRICS_MISSING = "GpuNvlinkErrors", "GpuMetricsMissing"

# fmt: off
XID_RECENT     = Limit("xidRecent", 600, "seconds", "how long an alert on an XID of an application, or on an undocumented one, lasts after the XID", a.COUNTS)
LINK_ERRORS    = Limit("nvlinkErrors", 10, "errors", "NVLink replays, or CRC errors, within an hour above which the alert fires", a.COUNTS)
LINK_RECOVERIES = Limit("nvlinkRecoveries", 1, "recoveries", "NVLink recoveries within an hour above which the alert fires", a.COUNTS)
ECC_STORM      = Limit("eccStorm", 100, "errors", "corrected ECC errors within an hour above which the alert fires", a.COUNTS)
HOT_HARDWARE   = Limit("hotHardware", 0.1, "ratio", "share of time under thermal throttling by the hardware above which the alert fires", a.TIME)
HOT_DRIVER     = Limit("hotDriver", 0.5, "ratio", "share of time under thermal throttling by the driver above which the alert fires", a.TIME)
MARGIN         = Limit("thermalMargin", LOW_MARGIN, "celsius", "degrees below the slowdown temperature that are too few", a.TEMPERATURE, any_model="a distance from the threshold of the board itself")
BRAKE          = Limit("powerBrake", 0.01, "ratio", "share of time under power brake above which the alert fires", a.TIME)
LINK_BUSY      = Limit("linkBusy", BUSY / 100, "ratio", "utilisation from which the PCIe link no longer saves power", a.TIME)
STALE          = Limit("stale", 150, "seconds", "age from which the last successful collection of a GPU is too old; longer than an interval, a scrape and an evaluation together", a.COUNTS)
# fmt: on


_RESET_IDLE = "cordon the node, wait until the jobs on this GPU have ended, then {} the GPU"
# What to do first, by the recovery action that the driver asks for.
_FIRST = {
    1: _RESET_IDLE.format("reset"),
    2: "drain the node, then reboot it",
    3: "cordon the node, and end the programs that use peer-to-peer traffic with this GPU",
    4: _RESET_IDLE.format("reset"),
    5: "drain the node, then restart the IMEX service (nvidia-imex) on the nodes of its domain",
    6: _RESET_IDLE.format("bus-reset"),
    7: "drain the node, then power-cycle or reboot it",
}
_FIRST_ACTION = "{{ else ".join(
    f"if eq $value {number}.0 }}}}{text[0].upper()}{text[1:]}" for number, text in _FIRST.items()
)

# In runbooks: how to reset a GPU.
COMMANDS = (
    "`gpu-exporter release --for 10m`, `nvidia-smi --gpu-reset -i N`, `gpu-exporter resume`; see [all "
    "steps](README.md#how-to-reset-a-gpu)"
)
RESET = "[reset the GPU](README.md#how-to-reset-a-gpu)"


def _on(signal: Signal) -> Compare:
    return Compare(Over(signal), ">", 0.0)


def _grown(signal: Signal) -> Over:
    return Over(signal, Fn.INCREASE, 15 * MINUTE)


_LINK = Over(s.PCIE_LINK, bare=True)
UNOBSERVED = Compare(Over(s.UNOBSERVED), "==", 1.0)
# An exporter that released the driver has no GPUs until it resumes.
_RELEASED_NODE = f"on (cluster, job, instance) ({m.RELEASED} == 1)"
# GPUs that cannot be read for a reason that says nothing about them.
_TELEMETRY = f'{m.DOWN}{{reason=~"{"|".join(TELEMETRY)}"}} == 1'
# A source without a list of GPUs, which may therefore lack none. The driver's empty list is one.
_NO_LIST = f'({m.SOURCE_DOWN}{{reason!="no_gpu"}} or {m.SOURCE_DOWN}{{source="{DCGM.name}"}}) == 1'

MODES = (
    FailureMode(
        LOST,
        Domain.HEALTH,
        Severity.CRITICAL,
        2 * MINUTE,
        Action.NODE_REBOOT,
        "{gpu} does not answer",
        "Drain the node; if many nodes are affected at once, suspect a driver update and do not drain them all. Look in the kernel log for XID 79 (the GPU fell off the PCIe bus) or XID 119 or 120 (its firmware "
        "hung), run nvidia-bug-report.sh, then reboot the node. If "
        "gpu_down_reason says reset_required, reset the GPU instead.",
        Inject(fault="lost"),
        Unless(Compare(Over(s.UP), "<", 1.0), UNOBSERVED),
        fleet=f"""(
  (
    max by (cluster, job, instance) ({m.EXPECTED} - {m.VISIBLE})
    or
    max_over_time(gpu:dcgm_gpus:count[6h])
    - on (cluster, job, instance)
    (gpu:dcgm_gpus:count or 0 * max_over_time(gpu:dcgm_gpus:count[6h]))
  ) > 0
  and on (cluster, job, instance) up == 1
  unless on (cluster, job, instance) ({m.UP}{{UUID!=""}} == 0)
  unless on (cluster, job, instance) ({_TELEMETRY})
  unless on (cluster, job, instance) ({_NO_LIST})
  unless {_RELEASED_NODE}
)
* on (cluster, job, instance) group_left (node) topk by (cluster, job, instance) (1, last_over_time(gpu:exporter:info[6h]))""",
        explains={
            Place.GPU: (
                "GpuRecoveryActionRequired",
                "GpuTelemetryStale",
            ),
            Place.NODE: (
                "GpuFabricNotReady",
                "GpuNvlinkDown",
            ),
            Place.JOB: STOPPED_JOB,
        },
        meaning="The driver no longer answers for this GPU, or fewer GPUs answer than this node had. Usually the GPU "
        "fell off the PCIe bus (XID 79) or its firmware hung (XID 119 or 120). Programs that use it fail with "
        "CUDA errors or hang. If the DCGM host engine or the driver's library does not answer, nothing is known about "
        "the GPUs, and GpuSourceDown fires instead.",
        impact="What ran on this GPU has failed. The ranks of the same job on other GPUs wait until they time out. A "
        "reset rarely brings back a GPU that fell off the bus.",
        diagnosis=(
            "Run `gpu-exporter check --json` on the node. It names the GPU and the `reason`: `lost` means that it "
            "fell off the bus, `stalled` that a driver call does not return, `gone` that the driver no longer lists "
            "the GPU, `reset_required` that a reset of the GPU is enough, `no_answer` that the driver does not say "
            f'why. Prometheus has the same reason in `{m.HEALTH_REASON}{{instance=~"NODE:.*"}}`.',
            "Run `gpu-exporter events`, `journalctl -k -b | grep -i xid` or `curl -s ADDRESS:9400/api/v1/events`. XID "
            "79 is the PCIe bus, 119 and 120 are the firmware. Read the lines *before* the first XID: PCIe errors "
            "(AER) there point to the slot, the riser or the power supply.",
            f"`{m.MISSING}` and `gpu-exporter check` name the PCI address of a GPU that is on the bus and that the driver "
            "does not list, and what it is bound to. If its initialisation failed, the kernel log has its address in a "
            "line with `NVRM` from when the driver was loaded.",
            "Run `lspci -d 10de:`. If it lists the GPU, the bus still sees it, and a reset may help. If the GPU "
            "is missing or shows `rev ff`, only a reboot or a power cycle helps.",
            f'Look at `{s.GPU_TEMP.record}{{node="NODE"}}` and `{s.POWER_NOW.record}{{node="NODE"}}` just before the '
            "failure. High temperature points to the cooling, a jump in power to the power supply.",
        ),
        mitigation=(
            "If many nodes are affected at once, suspect a driver update and do not drain them all. Otherwise cordon "
            "and drain the node. The job on this GPU has already failed, so a short grace period is enough.",
            "Run `nvidia-bug-report.sh` before the reboot, because the reboot destroys the evidence.",
            f"Reboot the node. If the reason is `reset_required`, {RESET} instead of rebooting. If the GPU does "
            "not come back, power-cycle the node. Run `gpu-exporter check` and `dcgmi diag -r 3` before the node "
            "takes work again.",
            "If it happens a second time within a month, reseat the GPU; if it happens again, replace it.",
        ),
        wrong="GPUs that were removed or given to a virtual machine count as missing until the exporter restarts (with "
        "dcgm-exporter: for six hours); set the number of GPUs with `--expected-gpus`. So do GPUs that are bound to another driver on purpose, except those "
        "bound to vfio or pci-stub. If the driver is not loaded when "
        "the exporter starts, the exporter does not know how many GPUs the node has, and the alert is silent: "
        "GpuSourceDown fires instead. While a DCGM host engine is down, a lost GPU fires this alert only if the kernel log "
        "has an XID 79 of it, or if the GPU has left the PCI bus. The alert is silent after "
        "`gpu-exporter release` until the driver is resumed. If the node or the exporter is down, "
        "GpuExporterDown fires instead of this alert.",
    ),
    FailureMode(
        FATAL_XID,
        Domain.HEALTH,
        Severity.CRITICAL,
        0,
        Action.DRAIN,
        "XID {{ $labels.xid }} on {gpu}: the GPU needs a repair",
        "If many nodes are affected at once, suspect a driver update and do not drain them all. Otherwise drain the node, then "
        "repair the GPU: do what the driver asks for (Recovery Action in nvidia-smi -q). If it asks for nothing, look the "
        "code up in the table of XID codes (linked from the runbook). The alert ends when the GPU is healthy again or its "
        "node has rebooted.",
        Inject(xid=79),
        _on(s.XID_FATAL),
        explains={
            Place.GPU: (
                LOST,
                "GpuRecoveryActionRequired",
                "GpuNvlinkDown",
                NVLINK_ERRORS,
                "GpuRowRemapPending",
                "GpuTelemetryStale",
                "GpuXidUnknown",
                "GpuXidApplication",
            ),
            Place.JOB: STOPPED_JOB,
        },
        meaning="The driver reported an XID for which NVIDIA's catalog recommends a repair, and cloud providers take the "
        "node out of service automatically. The label `xid` has the code; [XID codes](../xids.md) explains it.",
        impact="What runs on the GPU has failed or computes on memory that cannot be trusted. New work will fail too.",
        diagnosis=(
            "Run `gpu-exporter events` or `curl -s ADDRESS:9400/api/v1/events`. It shows the code, the time, the "
            "process and the repair. The *first* XID is the cause; 45 only says that programs were cleaned up after "
            "it.",
            f'Look at `{s.RECOVERY.record}{{UUID="…"}}`, which is what the driver itself asks for. It takes '
            "precedence over the table: 1 reset the GPU, 2 reboot the node, 3 drain peer-to-peer traffic, 4 drain "
            "and reset, 5 recover the IMEX domain, 6 bus-reset the GPU, 7 power-cycle or reboot the node.",
            "For 48, 64, 95 and 140 (memory), run `nvidia-smi -q -d ECC,ROW_REMAPPER`. If a remap failed or the "
            "SRAM threshold is exceeded, the GPU must be replaced.",
            "For 79 (PCIe bus), see GpuLost. For 119 and 120 (GSP firmware), many affected nodes point to a "
            "driver bug, a single node to a defective GPU.",
        ),
        mitigation=(
            "If many nodes are affected at once, suspect a driver update and do not drain them all. Otherwise cordon "
            "and drain the node, and end what still runs on this GPU.",
            "Do what the recovery action says; if there is none, do what the [table](../xids.md) says. To reset the "
            f"GPU: {COMMANDS}. If the reset fails, reboot the node.",
            "Run `gpu-exporter check`, then `dcgmi diag -r 3`, before the node takes work again. If the same "
            "code comes back within a week, take the next stronger step: reset, reboot, replace.",
        ),
        wrong="The alert lasts for at least ten minutes. After that, it ends when the [verdict](../health.md) on the GPU is "
        "healthy apart from the XID, or when the node reboots (its boot ID changes). An XID that leaves no "
        "other trace, such as 119 when the firmware recovers by itself, therefore ends after ten minutes without a "
        "repair: do the repair all the same. The clock of the node does not matter. With dcgm-exporter alone, there is no verdict: the alert starts when its "
        "gauge changes to the code and ends after a day, or as soon as the gauge shows another code, also that of an "
        "application; the same code does not show a second time until dcgm-exporter restarts.",
    ),
    FailureMode(
        "GpuEccUncorrectable",
        Domain.HEALTH,
        Severity.CRITICAL,
        0,
        Action.GPU_RESET,
        "Uncorrectable memory errors on {gpu}",
        "Cordon the node. If gpu-exporter events (with the chart: curl POD_IP:9400/api/v1/events) shows only XID 94, "
        "let other jobs on the GPU end; otherwise drain the node. Then reset the GPU. If the errors come back within "
        "days, or if nvidia-smi -q -d ECC shows that the SRAM threshold is exceeded, replace the GPU. Do not trust "
        "results or checkpoints written after the first error.",
        Inject({m.ECC_DBE_VOL: 2.0}),
        OrIfKnown(_on(s.ECC_DBE), _on(s.SRAM_EXCEEDED)),
        explains={
            Place.GPU: (
                FATAL_XID,
                LOST,
                "GpuRecoveryActionRequired",
                "GpuRowRemapPending",
                "GpuRetiredPagesPending",
                "GpuSpareRowsLow",
                "GpuEccCorrectableStorm",
                "GpuXidApplication",
            ),
            Place.JOB: STOPPED_JOB,
        },
        meaning="Since the driver was loaded, ECC found an error in the memory of this GPU that it could not correct, or "
        "SRAM errors exceeded the number that NVIDIA accepts. The program that read this memory was ended or got "
        "wrong data.",
        impact="At least one program failed (XID 48, 94 or 95). Until the reset, the bad memory row is at best fenced "
        "off.",
        diagnosis=(
            "Run `nvidia-smi -q -d ECC`. Look at the volatile, uncorrectable counts for DRAM and SRAM. The "
            "aggregate counts cover the lifetime of the GPU and say nothing about this event.",
            "Run `nvidia-smi -q -d ROW_REMAPPER`. `Pending: Yes` is repaired by a reset. With `Remapping Failure "
            "Occurred: Yes` the GPU must be replaced.",
            f'With `SRAM Threshold Exceeded: Yes`, or 1 in `{s.SRAM_EXCEEDED.record}{{UUID="…"}}`, the GPU must '
            "be replaced.",
            "Run `gpu-exporter events`. XID 94 affected one program only; 95 or 48 may have affected all "
            "programs on this GPU.",
        ),
        mitigation=(
            "Cordon the node. If `gpu-exporter events` shows only XID 94, let the other jobs on this GPU end; "
            "otherwise drain the node. Do not trust results or checkpoints written after the first error.",
            f"Reset the GPU ({COMMANDS}) or reboot the node. The error count starts at 0 again, and the alert ends. If it stays, the SRAM "
            "threshold is exceeded: replace the GPU.",
            "Run `dcgmi diag -r 3`. If errors come back within days, or the SRAM threshold is exceeded, replace "
            "the GPU.",
        ),
        wrong="False alarms are very rare. The alert stays until the GPU is reset or the driver is reloaded, even if "
        "the bad row is no longer used, because the GPU still needs the reset. After a contained error (XID 94), which "
        "hurts one program only, the GPU may finish its other work first.",
    ),
    FailureMode(
        "GpuRowRemapFailed",
        Domain.HEALTH,
        Severity.CRITICAL,
        0,
        Action.REPLACE,
        "{gpu} could not replace a bad memory row: replace the GPU",
        "Drain the node, give this GPU no more work, and have it replaced; NVIDIA's field diagnostics confirm the "
        "RMA. No reset repairs it.",
        Inject({m.REMAP_FAILURE: 1.0}),
        _on(s.REMAP_FAILED),
        explains={
            Place.GPU: (
                "GpuEccUncorrectable",
                FATAL_XID,
                "GpuRecoveryActionRequired",
                "GpuRowRemapPending",
                "GpuSpareRowsLow",
                "GpuEccCorrectableStorm",
            )
        },
        meaning="The GPU should have replaced a bad memory row by a spare one, and could not. The driver reports this "
        "when a bank has used up its spare rows, when the same row fails again, or when 512 rows are remapped.",
        impact="The next error in this row ends the program that touches it. No reset repairs it.",
        diagnosis=(
            "Run `nvidia-smi -q -d ROW_REMAPPER`. It shows `Remapping Failure Occurred: Yes`, and how many banks "
            "have no spare rows left.",
            "Run `gpu-exporter events`. XID 64 is the failed remapping itself; 48 or 95 at the same time shows "
            "that programs were hit.",
            f'Look at `{s.REMAPPED.record}{{UUID="…"}}`, the number of rows remapped so far.',
        ),
        mitigation=(
            "Cordon and drain the node; give this GPU no work.",
            "Run NVIDIA's field diagnostics, which decide whether the GPU qualifies for an RMA. Attach the "
            "output of `nvidia-bug-report.sh`.",
            "Have the GPU replaced.",
        ),
        wrong="No false alarm is known: the flag is the driver's own and survives resets and reboots.",
    ),
    FailureMode(
        "GpuRecoveryActionRequired",
        Domain.HEALTH,
        Severity.CRITICAL,
        0,
        Action.GPU_RESET,
        "The driver asks for a repair of {gpu}: {{ if eq $value 1.0 }}reset the GPU{{ else if eq $value 2.0 }}reboot "
        "the node{{ else if eq $value 3.0 }}drain peer-to-peer traffic{{ else if eq $value 4.0 }}drain, then reset "
        "the GPU{{ else if eq $value 5.0 }}recover the IMEX domain{{ else if eq $value 6.0 }}bus-reset the GPU{{ "
        "else if eq $value 7.0 }}power-cycle or reboot the node{{ else }}recovery action {{ $value }}{{ end }}",
        "Do what the driver asks for. To reset the GPU, with or without a drain, first cordon the node and wait "
        "until the jobs on this GPU have ended. To reboot or power-cycle the node, or to recover the IMEX "
        "domain, first drain the node. To drain peer-to-peer traffic, cordon the node and end the programs that use it "
        "with this GPU. For the commands, see the section Fix of the runbook.",
        Inject({m.RECOVERY: 1.0}),
        _on(s.RECOVERY),
        annotations={
            "description": f"{{{{ {_FIRST_ACTION}{{{{ else }}}}Drain the node, and look the number up in the documentation of the "
            "driver{{ end }}. For the commands, see the section Fix of the runbook."
        },
        explains={
            Place.GPU: (
                "GpuNvlinkDown",
                "GpuRowRemapPending",
                "GpuRetiredPagesPending",
            )
        },
        meaning="The driver itself asks for a repair of this GPU. Its request takes precedence over every table of XIDs, "
        "including the one of gpu-exporter.",
        impact="Until the repair is done, programs fail to start or fail soon after.",
        diagnosis=(
            "Run `nvidia-smi -q | grep -A1 'Recovery Action'`, or read the value of the alert: 1 reset the GPU, 2 "
            "reboot the node, 3 drain peer-to-peer traffic, 4 drain and reset, 5 recover the IMEX domain, 6 "
            "bus-reset the GPU, 7 power-cycle or reboot the node.",
            "Run `gpu-exporter events`. XID 154 is the change of this action; the XID before it is the reason.",
            f"Look at `{s.RECOVERY.record} > 0` in the whole cluster. GPUs that share an NVLink domain often ask "
            "together; the one with another XID before 154 is the cause.",
        ),
        mitigation=(
            "For 1, 4 and 6: cordon the node, wait until the jobs on this GPU have ended, then reset the GPU: "
            f"{COMMANDS}. If the reset fails, reboot the node.",
            "For 2 and 7: drain the node and reboot it. For 7, power-cycle it if the reboot does not help.",
            "For 3: cordon the node and end the programs that use peer-to-peer traffic with this GPU. Then check again, "
            "because the action often changes.",
            "For 5: drain the node, then restart the IMEX service (`nvidia-imex`) on the nodes of its domain.",
            "For any other number: drain the node and look the number up in the documentation of your driver.",
            "If the driver asks again within a week, take the next stronger step and have the GPU inspected.",
        ),
        wrong="False alarms are very rare. Drivers before 570 do not report the action: with them the absence of this "
        "alert does not mean that the GPU is healthy.",
    ),
    FailureMode(
        "GpuNvlinkDown",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.GPU_RESET,
        "Number of NVLinks down on {gpu}: {{ $value }}",
        "Cordon the node. Reset the GPU when its job has ended. If links stay down, wait until all jobs on the node have "
        "ended and restart the fabric manager; if that does not help, reboot "
        "the node. If they are still down, have the baseboard, the bridge or the cable inspected.",
        Inject({m.NVLINK_UP: 16.0}),
        And(Compare(Calc(Over(s.NVLINK_EXPECTED), "-", Over(s.NVLINK_UP)), ">", 0.0), _on(s.NVLINK_UP)),
        explains=slows_down(NVLINK_ERRORS, "GpuNvlinkImbalance"),
        meaning="Some NVLinks of this GPU are up, and others that should be up are down. On SXM boards and in an "
        "NVSwitch fabric, all should be up; on boards with bridges, those that were up before, also on other GPUs of the "
        "same model on the node.",
        impact="Collectives run at the speed of the slowest path, so the whole job on this GPU slows down. On NVSwitch "
        "systems, CUDA may refuse to start.",
        diagnosis=(
            "Run `nvidia-smi nvlink --status -i N` to see which links are inactive. Compare "
            f'`{s.NVLINK_UP.record}{{node="NODE"}}`: if the same links are down on several GPUs, suspect one switch '
            "or cable; if only one GPU is affected, suspect that GPU.",
            "Run `journalctl -u nvidia-fabricmanager -b` and `gpu-exporter events`. XID 74, 136 or 149 "
            "reports a link that went down; 144 to 148 and 150 report other NVLink errors. An SXid comes from a switch.",
            "Run `nvidia-smi topo -m` to check that the system is cabled as you expect. GPUs with NVLink bridges "
            "may have links that lead nowhere.",
        ),
        mitigation=(
            f"Cordon the node. When the job has ended, reset the GPU: {COMMANDS}. On HGX A100, all GPUs of the baseboard must be reset together.",
            "If links are still down, wait until all jobs on the node have ended and restart the fabric manager; if that "
            "does not help, reboot the node.",
            "If links are still down after that, have the baseboard, the bridge or the cable inspected.",
        ),
        wrong="A bridge that was removed on purpose counts as a fault until the exporter has restarted and `links.json` "
        "in `--state-dir` is deleted. GPUs of one node with different numbers of bridges need a silence. If *all* links of a GPU are down, this alert does not fire, because a GPU without a bridge "
        "looks the same; CUDA and NCCL report errors in that case.",
    ),
    FailureMode(
        "GpuFabricNotReady",
        Domain.HEALTH,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "{gpu} is not part of the NVSwitch fabric (state {{ $value }})",
        "If this GPU runs without a fabric on purpose (for example in a virtual machine), silence the alert. Otherwise "
        "cordon the node: new CUDA programs fail on this GPU, running ones do not. Check that the fabric manager runs "
        "and has the same version as the driver. Restart it only when the jobs on the node have ended. State 1 is not "
        "started, 2 in progress, 4 failed.",
        Inject({m.FABRIC: 2.0}),
        # DCGM also has 0 (no fabric), 5 and 6 (not known).
        And(
            Compare(Over(s.FABRIC), "!=", FABRIC_DONE),
            Compare(Over(s.FABRIC), ">=", 1.0),
            Compare(Over(s.FABRIC), "<=", 4.0),
        ),
        explains={Place.GPU: ("GpuNvlinkDown",)},
        meaning="The fabric manager has not made this GPU part of the NVSwitch fabric. The state is 1 (not started), 2 "
        "(in progress) or 4 (completed with an error); a GPU that is ready has 3. GPUs before Hopper do not "
        "report it.",
        impact="CUDA programs that start now fail with error 802, `system not yet initialized`. Programs that already "
        "run are not affected.",
        diagnosis=(
            "Run `nvidia-smi -q -i N | grep -A3 Fabric`. State 4 of the alert is a completed state with a status "
            "other than success. If all GPUs of the node are affected, suspect the fabric manager; if only one "
            "is, suspect its NVLinks or the GPU.",
            "Run `systemctl status nvidia-fabricmanager` and `journalctl -u nvidia-fabricmanager -b`. A version "
            "that differs from the driver's is the most frequent cause, often after an upgrade. With GPU "
            "Operator the fabric manager runs in the driver's container: see the log of that pod.",
            "With NVLink 5 (Blackwell) the subnet manager (NVLSM) must run as well. In racks with NVLink "
            "switches, the fabric manager runs on the switches.",
            f"In state 4, `{m.FABRIC_ERROR}` (`--metrics full`) is the NVML code with which the registration of "
            "the GPU failed. `gpu-exporter events` shows NVLink XIDs and the SXids of the switches.",
        ),
        mitigation=(
            "Cordon the node, because jobs that start there fail, and wait until its jobs have ended.",
            "Install the version of the fabric manager that matches the driver, then run `systemctl restart "
            "nvidia-fabricmanager`.",
            "If the GPU is still not ready, reboot the node. If a single GPU is still not ready after that, open "
            "a hardware case for it.",
            "When `gpu-exporter check` says that the GPU is healthy, uncordon the node.",
        ),
        wrong="GPUs pass through this state at boot and during a driver upgrade, so the alert waits for ten minutes. "
        "GPUs that run without a fabric on purpose, such as those of a virtual machine to which no partition is "
        "assigned, stay in it: silence the alert for them.",
    ),
    FailureMode(
        "GpuThermalThrottling",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.NONE,
        "{gpu} is throttled because it is too hot",
        "Cordon the node. Check its cooling: fans, air flow, coolant, inlet temperature. Until it is fixed, move jobs of "
        "several GPUs away: they run at the speed of this one. If GPUs of several nodes are throttled, call the facility.",
        Inject(
            {
                m.CLOCK_EVENTS: 64.0 + 8.0,
                m.CLOCK_EVENT_SECONDS[3]: Ramp(0, 0.6),
                m.GPU_TEMP: 90.0,
                m.TEMP_MARGIN: -3.0,
            }
        ),
        Or(
            Compare(Over(s.HW_THERMAL, Fn.MEAN, 5 * MINUTE), ">", HOT_HARDWARE),
            Compare(Over(s.SW_THERMAL, Fn.MEAN, 5 * MINUTE), ">", HOT_DRIVER),
        ),
        keep=10 * MINUTE,
        cause=Cause.THROTTLED,
        explains=slows_down("GpuThermalMarginLow"),
        meaning="The GPU lowers its clock because it is too hot. The hardware did so in more than a tenth of the last "
        "five minutes, or the driver in more than half of them.",
        impact="The GPU is slower, and so is every job that has a rank on it.",
        diagnosis=(
            f'Compare `{s.GPU_TEMP.record}{{node="NODE"}}` and `{s.MEMORY_TEMP.record}{{node="NODE"}}`. If one GPU is '
            "hot, look for dust and check its heat sink, fan or cold plate. If all are hot, check the inlet air, "
            "the coolant and the node's fans.",
            "Run `nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i N` to see which throttle reason is active now and "
            "how many degrees are left.",
            f'Compare `{s.SM_CLOCK.record}{{node="NODE"}}` with GPUs under the same load to see how much speed it costs.',
            "Ask the BMC of the node (`ipmitool sdr type fan`, `ipmitool sdr type temperature`) for fan speeds "
            "and inlet temperature.",
        ),
        mitigation=(
            "Cordon the node. Look for the cause in the room first: inlet temperature, blanking panels, coolant "
            "flow, failed fans.",
            "Until then, a lower power limit (`nvidia-smi -i N -pl WATTS`) costs less speed than hardware throttling. It "
            "still makes this GPU slower than the other ranks of its job (GpuStragglerSlow): lower the limits of all of "
            "them, or move the job. Raise the limit again after the repair.",
            "If a single, clean GPU is affected, have its thermal interface or cold plate inspected.",
        ),
        wrong="Running at the power limit does not count: that is normal at full load. dcgm-exporter reports the "
        "throttle reason as a mask or a counter, which may miss short events and may not distinguish hardware "
        "from driver.",
    ),
    FailureMode(
        "GpuPowerBrake",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.NONE,
        "{gpu} is throttled by the power supply of its node or rack",
        "Cordon the node. Check its power supplies, the power cap of the chassis and the power feed of the rack. If "
        "GPUs of several nodes are affected, call the facility.",
        Inject({m.CLOCK_EVENTS: 128.0 + 8.0, m.CLOCK_EVENT_SECONDS[4]: Ramp(0, 0.5)}),
        Compare(Over(s.POWER_BRAKE, Fn.MEAN, 5 * MINUTE), ">", BRAKE),
        keep=10 * MINUTE,
        cause=Cause.THROTTLED,
        explains=slows_down(),
        meaning="An external signal (power supply, chassis or rack) made the GPU lower its clock to half or less.",
        impact="The slowdown is sudden and large, and affects every job on the node. It often means that power supplies "
        "have failed or that a rack exceeds its power budget.",
        diagnosis=(
            f"Look at `{s.POWER_BRAKE.record} > 0` in the whole cluster. One affected node points to its power "
            "supplies, a whole rack to its feed or its power cap.",
            "Read the BMC event log (`ipmitool sel list`) and the state of the supplies (`ipmitool sdr type "
            '"Power Supply"`). Look for a failed or unplugged supply and for lost redundancy.',
            "Run `nvidia-smi -q -d PERFORMANCE -i N`. It shows `HW Power Brake Slowdown: Active`.",
            f'Sum `{s.POWER_NOW.record}{{node="NODE"}}` over the node and compare it with what the chassis may draw.',
        ),
        mitigation=(
            "Cordon the node. Replace or plug in the failed supply; raise a chassis power cap that is too low.",
            "Until then, lower the power limits of the GPUs (`nvidia-smi -pl WATTS`) so that their sum fits. A "
            "steady limit costs less speed than braking.",
            "If a whole rack is affected, call the facility.",
        ),
        wrong="Some chassis brake for a moment at start-up or when a supply is swapped; because the alert waits for "
        "five minutes, it rarely fires then. Throttling at the GPU's own power limit (`sw_power_cap`) is not a power "
        "brake; it is normal at full load and does not fire this alert.",
    ),
    FailureMode(
        "GpuThermalMarginLow",
        Domain.HEALTH,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        MARGIN_FAULT.template("{gpu}"),
        "Check the cooling of this node (inlet temperature, filters, fans), and give it no new jobs. Running jobs can go on "
        "while the GPU is not throttled. If the room cannot be cooled now, lower the power limits of all GPUs of a job alike.",
        Inject({m.TEMP_MARGIN: 2.0, m.GPU_TEMP: 85.0}),
        Compare(Over(s.THERMAL_MARGIN), "<=", MARGIN),
        keep=10 * MINUTE,
        meaning="The GPU has nearly reached its temperature limit, or has exceeded it. The margin is the driver's own where "
        "the driver reports one: that limit can be some degrees below the temperature at which the hardware slows the GPU "
        "down. Otherwise, the latter is the limit.",
        impact="None while the margin is positive. A warmer room or a heavier job turns it into GpuThermalThrottling.",
        diagnosis=(
            f'Look at `{s.THERMAL_MARGIN.record}{{node="NODE"}}` over a day. A slow decrease points to dust or a '
            "failing pump, a step to something that changed.",
            f'Compare with the other GPUs of the node: `{s.GPU_TEMP.record}{{node="NODE"}}`. In an air-cooled '
            "chassis, the GPUs behind others are always warmer.",
            "Run `nvidia-smi -q -d TEMPERATURE -i N` to see the thresholds of this GPU.",
        ),
        mitigation=(
            "Check inlet temperature, filters and fans before it costs speed.",
            "If the room cannot be cooled now, lower the power limits of all GPUs of a job alike: a single GPU with a lower "
            "limit slows down all ranks.",
        ),
        wrong="GPUs whose cooling is designed with little reserve stay here under full load without ever slowing down: "
        "set `thermalMargin` lower for them.",
    ),
    FailureMode(
        "GpuRowRemapPending",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.GPU_RESET,
        "{gpu} needs a reset to replace a bad memory row",
        "If GpuEccUncorrectable fires too, follow that alert. Otherwise do not end running jobs for this: cordon the "
        "node, wait until the jobs on this GPU have ended, then reset the GPU.",
        Inject({m.REMAP_PENDING: 1.0}),
        _on(s.REMAP_PENDING),
        meaning="A memory row went bad and is fenced off. A spare row takes its place at the next reset.",
        impact="None for running programs: NVIDIA says that a pending remapping does not affect future work. Each "
        "further bad row can end one more program.",
        diagnosis=(
            "Run `nvidia-smi -q -d ROW_REMAPPER`. It shows `Pending: Yes`, and whether a remapping failed.",
            "Run `gpu-exporter events`. XID 63 records the remapping. If 48 or 95 comes with it, a program was "
            "hit, and the GPU must be reset now.",
            f'Look at `{s.REMAPPED.record}{{UUID="…"}}` over months to see how often this happens on this GPU.',
        ),
        mitigation=(
            "Cordon the node or taint the GPU, and let running jobs end. Do not end them for this.",
            f"Then reset the GPU: {COMMANDS}. A reboot has the same effect.",
            "If it has been pending for more than a week, plan a maintenance window.",
        ),
        wrong="The state is the driver's own. It cannot be read from a GPU in MIG mode while instances exist: then the "
        "absence of the alert does not mean that the GPU is healthy.",
    ),
    FailureMode(
        "GpuRetiredPagesPending",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.NODE_REBOOT,
        "{gpu} needs a reboot of its node to retire bad memory pages",
        "Cordon the node, let running jobs end, then reboot it. If more than 60 pages are retired, or more than "
        "15 for double-bit errors, replace the GPU.",
        Inject({m.RETIRED_PENDING: 1.0}),
        _on(s.RETIRED_PENDING),
        meaning="Memory pages went bad, and the driver will stop using them when it is loaded next. This concerns GPUs "
        "before Ampere; newer ones remap rows.",
        impact="Until then, programs can still be given the bad pages.",
        diagnosis=(
            "Run `nvidia-smi -q -d PAGE_RETIREMENT`. It shows how many pages were retired for single-bit or "
            "double-bit errors, and whether some are pending.",
            "Run `gpu-exporter events`. Look for XID 63 (recorded) or 64 (recording failed).",
        ),
        mitigation=(
            "Cordon the node, let running jobs end, then reboot it, or unload and load the driver.",
            "Replace the GPU if more than 60 pages are retired, or more than 15 for double-bit errors.",
        ),
        wrong="No false alarm is known: the state is the driver's own. Ampere and newer GPUs do not have it.",
    ),
    FailureMode(
        "GpuInforomCorrupt",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.REPLACE,
        "The InfoROM of {gpu} is corrupt",
        "Cordon the node and let running jobs end. Ask the server's vendor for the InfoROM image and flash it; "
        "if that fails, replace the GPU.",
        Inject({m.INFOROM: 0.0}),
        Compare(Over(s.INFOROM), "<", 1.0),
        meaning="The checksums of the InfoROM are wrong. The InfoROM is the GPU's own storage for its identity, its "
        "settings (ECC among them) and its record of memory errors and repairs.",
        impact="Running jobs can continue. After the next reset, settings, error counts and row remappings may be lost, "
        "and memory errors that had been repaired may come back.",
        diagnosis=(
            "Run `nvidia-smi -i N`: its output ends with `WARNING: infoROM is corrupted at gpu …`. `nvidia-smi "
            "-q -i N | grep -i -A5 inforom` shows the versions.",
            "Run `gpu-exporter events`: XID 125 is a damaged file system of the InfoROM. Did the node lose "
            "power, or was firmware being updated, just before?",
            f'Look at `{s.INFOROM.record}{{node="NODE"}}`. If several GPUs show it at once, suspect a firmware '
            "update; if one does, suspect that GPU.",
        ),
        mitigation=(
            "Cordon the node, and let running jobs end.",
            "Run `nvidia-bug-report.sh` to keep evidence. Ask the server's vendor for the InfoROM image of this "
            "GPU, and flash it with the vendor's tool.",
            "If the InfoROM cannot be flashed, or becomes corrupt again, have the GPU replaced.",
            "`gpu-exporter check` reads the InfoROM immediately. When it says that the GPU is healthy, uncordon "
            "the node.",
        ),
        wrong="The exporter reads the state once an hour, so the alert fires and ends up to an hour late. GPUs without "
        "an InfoROM do not report it.",
    ),
    FailureMode(
        "GpuSpareRowsLow",
        Domain.HEALTH,
        Severity.WARNING,
        HOUR,
        Action.REPLACE,
        "Few or no spare rows are left in memory banks of {gpu}",
        "Plan the replacement of this GPU: nothing has failed yet. Until then, give it only work that can be restarted: a "
        "bad row in a bank without spare rows cannot be remapped.",
        Inject({m.REMAP_HISTOGRAM[4]: 1.0}),
        Or(_on(s.BANKS_NONE), _on(s.BANKS_LOW)),
        meaning="Memory banks of this GPU have few spare rows left, or none. The next bad row in such a bank cannot be "
        "replaced.",
        impact="None yet. The next failure in such a bank is GpuRowRemapFailed and ends a job.",
        diagnosis=(
            "Run `nvidia-smi -q -d ROW_REMAPPER` to see how many banks have how many spare rows left.",
            f'Look at `{s.REMAPPED.record}{{UUID="…"}}` over months: a GPU that remaps rows often will continue '
            "to do so.",
            f'Look at `{s.BANKS_NONE.record}{{UUID="…"}}`: above 0, a bank has used up all its spare rows.',
        ),
        mitigation=(
            "Plan the replacement of the GPU; until then, give it work that can be restarted.",
            "Run `dcgmi diag -r 3` at the next maintenance, and show the result to the vendor.",
        ),
        wrong="A bank with few spare rows may never have another bad row: the alert is a forecast and therefore only a "
        "warning. With gpu-exporter, the alert needs `--metrics full`.",
    ),
    FailureMode(
        "GpuPcieLinkDegraded",
        Domain.HEALTH,
        Severity.WARNING,
        15 * MINUTE,
        Action.NODE_REBOOT,
        "The PCIe link of {gpu} has lost speed or lanes",
        "Cordon the node and reboot it when its jobs have ended. If the link stays slow, reseat the GPU, then try "
        "another slot and riser.",
        Inject({m.PCIE_WIDTH: 8.0}),
        Unless(
            And(
                # Without gpu-exporter, the evidence is what the link and those of the node's other GPUs had lately.
                OrIfKnown(
                    Unless(
                        Compare(_LINK, "<", NodeMax(Over(s.PCIE_LINK, Fn.MAX, 2 * HOUR, bare=True))),
                        Compare(Over(s.PCIE_EXPECTED), ">", 0.0),
                    ),
                    Compare(_LINK, "<", Over(s.PCIE_EXPECTED, Fn.MAX, 2 * HOUR)),
                ),
                Compare(Over(s.UTIL, Fn.MEAN, 5 * MINUTE, bare=True), ">=", LINK_BUSY),
            ),
            Compare(Over(s.PSTATE), ">", float(FASTEST)),
        ),
        explains=slows_down("GpuPcieBound", "GpuDataLoadingBound", "GpuHostBound"),
        meaning="While the GPU is busy, its PCIe link is narrower or slower than it was before, than the port above the "
        "GPU allows, or, if the port is unknown, than those of other GPUs of the same model on the node. A link that "
        "was always narrow is no fault: many slots and cloud instances have 8 lanes. An idle link that saves power does "
        "not count.",
        impact="Everything between host and GPU is slower by the same factor: data loading, offloading, checkpoints, "
        "and traffic to network cards.",
        diagnosis=(
            "Under load, run `nvidia-smi "
            "--query-gpu=index,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max "
            "--format=csv`.",
            "Run `lspci -vv -s BUS_ID | grep -i lnk` and compare `LnkSta` with `LnkCap`; look for "
            "`(downgraded)`. Check the bridge above the GPU, too.",
            "Run `journalctl -k -b | grep -i 'aer\\|pcie'`. Corrected errors before the link slowed down point "
            "to a bad contact.",
            f'Compare `{s.PCIE_WIDTH.record}{{node="NODE"}}` and `{s.PCIE_GEN.record}{{node="NODE"}}`: is one GPU '
            "affected, or all GPUs below one switch?",
            f'`{s.PCIE_EXPECTED.record}{{UUID="…"}}` is the capacity for which there is evidence, in bytes per second.',
        ),
        mitigation=(
            "Cordon the node. When its jobs have ended, reboot it, so that the link is trained again.",
            "If the link is still slow, reseat GPU and riser, then try another slot; update the BIOS and the "
            "switch firmware.",
        ),
        wrong="If lanes were taken away on purpose, for example by other bifurcation in the BIOS, delete `links.json` in "
        "`--state-dir` and restart the exporter. A slot with fewer lanes than its port names looks degraded: "
        "silence the alert for it. In virtual machines, which do not show the slot, a link that was slow from the "
        "beginning is detected only beside faster ones, and so it is with dcgm-exporter, which knows the last two hours.",
    ),
    FailureMode(
        "GpuPcieReplayStorm",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.DRAIN,
        '{{ $value | printf "%.0f" }} PCIe replays within 15 minutes on {gpu}',
        "Cordon the node. When its jobs have ended, reseat the GPU and the riser: more transmission errors than the "
        "specification of PCIe allows usually mean a bad contact or riser.",
        Inject({m.PCIE_REPLAY: Ramp(0, 5.0)}),
        Compare(_grown(s.PCIE_REPLAYS), ">", Over(s.PCIE_REPLAY_LIMIT, Fn.MAX, 15 * MINUTE, bare=True)),
        explains=slows_down("GpuPcieLinkDegraded"),
        meaning="More PCIe packets had to be sent again than a good link may have. The limit is the bit error rate that "
        "the PCI Express specification allows; it grows with the number of lanes and the generation.",
        impact="Bandwidth falls and latency grows. A degraded link or a lost GPU often follows.",
        diagnosis=(
            f'Look at `{s.PCIE_REPLAYS.record}{{node="NODE"}}`: is one GPU affected, or all GPUs below one switch '
            "or riser?",
            "Run `journalctl -k -b | grep -i aer` to see which end of the link reports errors, and of what kind.",
            f'Compare with `{s.PCIE_REPLAY_LIMIT.record}{{UUID="…"}}`, the number of replays that a good link of '
            "this kind may have within 15 minutes.",
            f'Look at `{s.GPU_TEMP.record}{{UUID="…"}}`: bad contacts often fail when they are warm.',
        ),
        mitigation=(
            "Cordon the node, and wait until its jobs have ended.",
            "Reseat the GPU and the riser and clean the contacts; then try another slot. If the errors move with "
            "the GPU, replace the GPU. If they stay, replace the slot, riser or cable.",
        ),
        wrong="A few replays when a link is trained or after a reset are normal, and stay below the limit. With the default "
        "fields of dcgm-exporter, the lanes and the generation of the link are unknown, and the limit is that of the fastest "
        "link: a slower one is reported later.",
    ),
    FailureMode(
        NVLINK_ERRORS,
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.GPU_RESET,
        "NVLink errors on {gpu}",
        "Check which link has errors (nvidia-smi nvlink --errorcounters -i N): programs do not fail yet. If the count "
        "grows, cordon the node, and reset this GPU and the one at the other "
        "end of the link when their jobs have ended. If the errors come back on the same link, have bridge, cable or "
        "GPU replaced.",
        Inject({m.NVLINK_REPLAY: Ramp(0, 0.5)}),
        Or(
            Compare(Over(s.NVLINK_REPLAYS, Fn.INCREASE, HOUR), ">", LINK_ERRORS),
            Compare(Over(s.NVLINK_RECOVERIES, Fn.INCREASE, HOUR), ">", LINK_RECOVERIES),
            Compare(Over(s.NVLINK_CRC, Fn.INCREASE, HOUR), ">", LINK_ERRORS),
        ),
        keep=30 * MINUTE,
        explains=slows_down("GpuNvlinkImbalance"),
        meaning="Within an hour, NVLinks of this GPU had to repeat more than ten transmissions, had to recover more than "
        "once, or saw more than ten CRC errors.",
        impact="Collectives lose the time of the repeated transmissions, and a recovery stops the link for a moment. "
        "Programs do not fail yet.",
        diagnosis=(
            "Run `nvidia-smi nvlink --errorcounters -i N` to see which link has which kind of error.",
            f'Compare `{s.NVLINK_REPLAYS.record}{{node="NODE"}}` and `{s.NVLINK_RECOVERIES.record}{{node="NODE"}}`: '
            "the GPU at the other end of a bad link counts errors too. If all affected links lead to one switch, "
            "suspect the switch.",
            "Run `gpu-exporter events` and `journalctl -u nvidia-fabricmanager`. Look for XID 74 or an SXid.",
        ),
        mitigation=(
            "One or two replays a day need no repair. If the count grows, cordon the node. When the jobs on both GPUs "
            f"have ended, {RESET} and the GPU at the other end of the link.",
            "If errors come back on the same link, reseat or replace bridge, cable or GPU. Start with the part "
            "that both ends share.",
        ),
        wrong="CRC errors alone cost speed only from about a hundred a second. A link that is trained again, for example "
        "after a reset of the GPU at its other end, counts errors for a moment.",
    ),
    FailureMode(
        "GpuEccCorrectableStorm",
        Domain.HEALTH,
        Severity.WARNING,
        0,
        Action.NONE,
        '{{ $value | printf "%.0f" }} corrected memory errors within an hour on {gpu}',
        "Look for GpuRowRemapPending. If it fires, cordon the node, and reset the GPU when its jobs have ended. Otherwise "
        "keep using the GPU, also if XID 92 occurred, and watch it: ECC corrected every error, and no data was lost.",
        Inject({m.ECC_SBE_VOL: Ramp(0, 0.2)}),
        Compare(Over(s.ECC_SBE, Fn.INCREASE, HOUR), ">", ECC_STORM),
        meaning="ECC corrected many errors in the memory of this GPU. No data was lost.",
        impact="None for results. Many corrected errors may announce a memory row that goes bad.",
        diagnosis=(
            "Run `nvidia-smi -q -d ECC -i N` and look at the volatile, corrected counts for DRAM and SRAM.",
            f'Look at `{s.ECC_SBE.record}{{UUID="…"}}` over days. A single burst points to one weak cell that a '
            "program reads in a loop; steady growth is more serious.",
            "Run `gpu-exporter events`. XID 92 is NVIDIA's own sign of a high rate; XID 63 announces a row that "
            "will be remapped.",
        ),
        mitigation=(
            "Keep using the GPU, and watch for GpuRowRemapPending.",
            f"If it fires, cordon the node and {RESET} when its jobs have ended.",
            "If it continues for weeks on one GPU, run `dcgmi diag -r 3` and ask the vendor.",
        ),
        wrong="The alert is often harmless: one weak cell that is read in a loop counts thousands of errors until its "
        "row is remapped. NVIDIA does not ask for any action on corrected errors.",
    ),
    FailureMode(
        "GpuXidUnknown",
        Domain.HEALTH,
        Severity.WARNING,
        0,
        Action.NONE,
        "Undocumented XID {{ $labels.xid }} on {gpu}",
        "Do not drain the node for this alone. Read the kernel log around the event, which often explains it in "
        "words, and ask NVIDIA about the code.",
        Inject(xid=999),
        Compare(Over(s.XID_UNKNOWN), "<", XID_RECENT),
        meaning="The driver reported an XID that is in none of NVIDIA's tables known to gpu-exporter.",
        impact="Unknown. The alert therefore asks for a look, never for a drain.",
        diagnosis=(
            "Run `gpu-exporter events`. It shows the code, the process and other events at the same time.",
            "Run `journalctl -k -b | grep -B5 -A20 'Xid'`. The complete message often explains the error in words.",
            f'Look at `{s.RECOVERY.record}{{UUID="…"}}`. Above 0, the driver asks for a repair: follow '
            "GpuRecoveryActionRequired.",
        ),
        mitigation=(
            "Look the code up in the XID catalogue of your driver's release, or ask NVIDIA with the output of "
            "`nvidia-bug-report.sh`.",
            "When you know what the code means, add it with `--xid-overrides`; the exporter then raises the "
            "alert for its kind.",
        ),
        wrong="A newer driver brings new codes, most of them harmless: expect this alert after a driver upgrade.",
    ),
    FailureMode(
        "GpuXidApplication",
        Domain.HEALTH,
        Severity.INFO,
        0,
        Action.RESTART_APP,
        "XID {{ $labels.xid }} on {gpu}: probably an error of the program",
        "Tell the owner of the job: the program failed, usually by its own fault. Check the GPU only if several "
        "different programs get this code on it within a day.",
        Inject(xid=31),
        Compare(Over(s.XID_APPLICATION), "<", XID_RECENT),
        meaning="The driver reported an XID that is usually caused by the program: an illegal memory access (31), an "
        "exception in a kernel (13) or a closed channel (43).",
        impact="That program failed. The GPU is fine, and other programs on it continue.",
        diagnosis=(
            "Run `gpu-exporter events` for the process and its PID. `/api/v1/events` of the exporter also has "
            "the load of the GPU at that moment.",
            "Did *several different* programs get the same code on this GPU within a day? Then suspect the GPU. "
            "Did the same program get it on many GPUs? Then suspect the program.",
            "For 31 and 13, run the program with `CUDA_LAUNCH_BLOCKING=1` or under `compute-sanitizer`.",
        ),
        mitigation=(
            "Tell the owner of the job. Restarting it is their decision.",
            "If three different programs got it on one GPU, drain the node and run `dcgmi diag -r 3`.",
        ),
        wrong="Failing memory can look like an illegal access by the program: check GpuEccUncorrectable and "
        "GpuRowRemapPending for the same GPU. This alert does not exist with dcgm-exporter, whose last code "
        "never clears.",
    ),
    FailureMode(
        "GpuTelemetryStale",
        Domain.HEALTH,
        Severity.WARNING,
        2 * MINUTE,
        Action.NONE,
        "{gpu} has not been read for {{ $value | humanizeDuration }}",
        "Run gpu-exporter doctor on the node (with the chart: in the exporter's pod). If a call hangs in the driver (timeout 10 nvidia-smi does not answer "
        "either), drain the node and reboot it. If all GPUs of the node are stale and nvidia-smi answers, restart "
        "the exporter.",
        Inject(fault="wedged"),
        Unless(Compare(Over(s.READ_AGE), ">", STALE), UNOBSERVED),
        meaning="The exporter answers, but could not read this GPU for minutes. Its metrics are missing, because the "
        "exporter withdraws values that are too old.",
        impact="Most other alerts cannot fire for this GPU meanwhile. If GpuLost fires too, follow its runbook. If the "
        "DCGM host engine or the driver's library does not answer, GpuSourceDown fires once for the node instead.",
        diagnosis=(
            "Run `gpu-exporter doctor` on the node. It says which call hangs or fails, and why.",
            f'Look at `{m.STALLED}{{instance=~"NODE:.*"}}`. Above 0, a call hangs in the driver, and so will '
            "`nvidia-smi`: run it as `timeout 10 nvidia-smi`.",
            "Run `journalctl -k -b | grep -i 'nvrm\\|hung task'`. Look for firmware timeouts (XID 119) or a task "
            "that is blocked in the driver.",
            "Check `uptime` and the CPU throttling of the exporter's pod: an exporter without enough CPU is late for "
            "*all* GPUs of the node.",
        ),
        mitigation=(
            "If a call hangs in the driver, drain the node and reboot it. Killing processes does not free a "
            "thread in the kernel.",
            "If all GPUs are stale and `nvidia-smi` answers, restart the exporter and raise its CPU request"
            " (or limit, if it has one).",
        ),
        wrong="The exporter measures the age, so the clocks of the node and of Prometheus do not matter.",
    ),
    FailureMode(
        "GpuSourceDown",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.NONE,
        "The exporter {{ $labels.instance }}{{ with $labels.node }} (node {{ . }}){{ end }} cannot read its GPUs: their "
        "state is unknown",
        "Do not drain or reboot the node for this: nothing is known about its GPUs. With --source dcgm, check that "
        "nv-hostengine runs and answers (dcgmi discovery -l), read its log, and restart it. Otherwise run gpu-exporter "
        "doctor on the node (with the chart: in the exporter's pod).",
        Inject(fault="reload"),
        fleet=f"""(
  max by (cluster, job, instance) (
    (min_over_time({m.SOURCE_UP}[1m]) == 0 and avg_over_time({m.SOURCE_UP}[10m]) < 0.5)
    or
    {_TELEMETRY}
  )
  unless on (cluster, job, instance) ({m.DOWN}{{reason="stalled"}} == 1)
  unless {_RELEASED_NODE}
)
* on (cluster, job, instance) group_left (node) topk by (cluster, job, instance) (1, last_over_time(gpu:exporter:info[6h]))
or on (cluster, job, instance)
max by (cluster, job, instance) (
  (min_over_time({m.SOURCE_UP}[1m]) == 0 and avg_over_time({m.SOURCE_UP}[10m]) < 0.5)
  unless {_RELEASED_NODE}
)""",
        scope=Scope.FLEET,
        explains={Place.NODE: ("GpuTelemetryStale", METRICS_MISSING)},
        meaning="The exporter answers, but what it reads the GPUs through does not: the DCGM host engine is down, restarts "
        "again and again, hangs or is overloaded, its bindings are missing, or the driver's library cannot be used. "
        "This says nothing about the GPUs, which may be healthy and at work.",
        impact="No other alert on these GPUs can fire, except those on XIDs in the kernel log. Jobs are not affected. "
        "gpu-exporter remediate does nothing on this node meanwhile.",
        diagnosis=(
            f'Look at `{m.SOURCE_DOWN}{{instance=~"NODE:.*"}}`: its labels say which source is down, and why; for single '
            f"GPUs, `{m.DOWN}` does. `source_lost` means that the source does not answer, `unread` that a GPU is still being "
            "attached.",
            "For the source dcgm: run `systemctl status nvidia-dcgm`, or look at the pod of the host engine. Does it run, "
            "and does `dcgmi discovery -l` answer within a second? See [what breaks with DCGM](../dcgm.md#when-something-breaks).",
            "Run `top` on the node. A host engine at 100 % of a core is overloaded: fewer metrics (`--fields`), or "
            "longer intervals, cost it less.",
            "For the sources nvml and auto: run `gpu-exporter doctor` in the exporter's pod, and `nvidia-smi` on the node. "
            "If only the first fails, the container has lost its devices or its driver library.",
        ),
        mitigation=(
            "Restart the host engine (`systemctl restart nvidia-dcgm`, or its pod). With an embedded host engine, restart "
            "gpu-exporter. The exporter reconnects by itself, and its counters continue.",
            "If the container has lost its devices, restart it. If the driver was upgraded without a reboot, load its "
            "kernel module again, or reboot the node once its jobs have ended.",
            "If `nvidia-smi` hangs on the node, too, suspect the driver: see GpuLost.",
        ),
        wrong="An upgrade of the driver or of the host engine that takes longer than about four minutes fires the alert; "
        "shorter ones do not. A host engine that is restarted again and again fires it after about ten minutes, if its "
        "GPUs cannot be read for more than half of the time.",
    ),
    FailureMode(
        "GpuExporterDown",
        Domain.HEALTH,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "Prometheus cannot scrape {{ $labels.instance }}{{ with $labels.node }} (node {{ . }}){{ end }}: its "
        "GPUs are not monitored",
        "Check whether the node is up. If it is, look at the exporter's pod or service and its log, then at the "
        "network between Prometheus and the exporter.",
        Inject(fault="down"),
        fleet="""(
  up{job=~"gpu|.*(gpu.?exporter|dcgm).*"} == 0
  or
  (up == 0 and on (cluster, job, instance) max_over_time(gpu:exporter:info[1d]))
)
* on (cluster, job, instance) group_left (node) topk by (cluster, job, instance) (1, last_over_time(gpu:exporter:info[1d]))
or on (cluster, job, instance)
up{job=~"gpu|.*(gpu.?exporter|dcgm).*"} == 0""",
        unless="on (cluster, node) max by (cluster, node) (max_over_time(kube_node_spec_unschedulable[10m])) == 1",
        scope=Scope.FLEET,
        explains={
            Place.NODE: (
                "GpuSourceDown",
                LOST,
                "GpuTelemetryStale",
                "GpuAttributionDown",
                METRICS_MISSING,
            )
        },
        meaning="Prometheus cannot scrape an exporter. The state of its GPUs is unknown, which does not mean that "
        "they are healthy.",
        impact="No alert for these GPUs can fire.",
        diagnosis=(
            "Query `up == 0` and read the error of the scrape on the targets page of Prometheus: refused (the "
            "exporter does not run), timeout (it hangs, or a network problem), 401 (password), 503 (the exporter "
            "no longer updates its metrics: the body says why), or a certificate error.",
            "Run `kubectl get pods -o wide` for the node, or `systemctl status`. Does the exporter restart again and "
            "again (`CrashLoopBackOff`)?",
            "Run `curl -s ADDRESS:9400/healthz` on the node itself, then from elsewhere. If only the second fails, "
            "check the network (policy, firewall).",
            "Are other exporters of this node down as well? Then the problem is the node.",
        ),
        mitigation=(
            "If the node is down, repair the node; this alert is only the consequence.",
            "If only the exporter is down, its log gives the reason in one line, and `gpu-exporter doctor` on "
            "the node says what is missing.",
        ),
        wrong="The alert is silent for a node of Kubernetes that is cordoned, which needs kube-state-metrics: a reboot of a "
        "drained node is planned. Otherwise a reboot that takes longer than ten minutes fires it. A node that was removed "
        "for good keeps the alert firing until service discovery removes its target. The "
        "alert is silent for a target that service discovery does not list, because it has no `up`: a pod that is "
        "pending or was evicted has no address. Alert on `kube_daemonset_status_number_unavailable > 0` as well. A "
        "scrape job that is not named `gpu`, and whose name contains neither `gpu-exporter` nor `dcgm`, is covered "
        "by this alert only if one of its scrapes succeeded within the last day.",
    ),
    FailureMode(
        "GpuAttributionDown",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.NONE,
        "Attribution lookup {{ $labels.source }} fails on exporter {{ $labels.instance }}{{ with $labels.node }} "
        "(node {{ . }}){{ end }}: GPUs will lose their owner labels",
        "Read the exporter's log, which says in one line what is missing, or run gpu-exporter doctor with the flags "
        "of the exporter. GPUs are still monitored; only their owners are missing.",
        Inject(series={f'{m.ATTRIBUTION_UP}{{source="kubelet"}}': 0.0}),
        fleet=f"""max by (cluster, job, instance, source) ({m.ATTRIBUTION_UP} == 0)
* on (cluster, job, instance) group_left (node) topk by (cluster, job, instance) (1, last_over_time(gpu:exporter:info[6h]))
or on (cluster, job, instance, source)
max by (cluster, job, instance, source) ({m.ATTRIBUTION_UP} == 0)""",
        scope=Scope.FLEET,
        requires="attribution",
        meaning="A service or file that the exporter asks for the owners of GPUs does not answer. The label `source` "
        "says which: kubelet (pods), pods (pod labels, from the API server), resource_slices (DRA), hpc_jobs "
        "(files written by the job prolog) or processes (procfs).",
        impact="The exporter shows the last answer for ten minutes, even if the GPUs have other owners by then. After "
        "that `namespace`, `pod` and `hpc_job` are empty, and alerts and cost reports name no owner. The GPUs "
        "themselves are still monitored.",
        diagnosis=(
            f'Look at `{m.ATTRIBUTION_ERRORS}{{instance=~"NODE:.*"}}`: its label `reason` says what is wrong. '
            f"`{m.ATTRIBUTION_AGE}` is the age of the last answer; it is absent if there never was one.",
            "For `no_socket`, `unavailable`, `timeout` or `deadline_exceeded`: does kubelet (or the API server, or "
            "the directory) answer, and is the directory of kubelet's socket mounted, not only the socket? "
            "A mounted socket file still belongs to the old kubelet "
            "after kubelet restarts.",
            "For `no_permission`: the kubelet socket belongs to root, so the container must run as uid 0.",
            "For `forbidden`, `unauthorized` or `no_token`: check the service account with `kubectl auth can-i "
            "watch pods --as system:serviceaccount:NAMESPACE:NAME`.",
            "For `wrong_node`: the API server has no pods on a node of this name, although kubelet has. Set "
            "`--node-name` to the node's name in `kubectl get nodes`.",
            "For `no_directory` or `unreadable`: check the directory of the job files and its permissions. For "
            "`no_procfs`: check `--procfs`.",
            "For `too_large` or `resource_exhausted`: see [how much is "
            "accepted](../attribution.md#how-much-is-accepted).",
        ),
        mitigation=(
            "Correct the mount, the uid or the permissions. The chart sets them with `attribution.enabled`; "
            "compare your installation with it.",
            "If kubelet is down, repair the node; this alert is only the consequence.",
            "If nobody needs the owners, switch off the settings that ask for them.",
        ),
        wrong="A kubelet upgrade that takes longer than five minutes also fires the alert; the labels stay for ten. A "
        "single job file that cannot be read counts as no answer, although the other files are read.",
    ),
    FailureMode(
        METRICS_MISSING,
        Domain.HEALTH,
        Severity.WARNING,
        30 * MINUTE,
        Action.NONE,
        "{gpu} has no SM activity metric: slow ranks of its jobs, and most bottlenecks, are not detected",
        "With dcgm-exporter up to 4.8, start it with --collectors alerts/dcgm-exporter.csv; from 4.9 on, with "
        "alerts/dcgm-exporter-4.9.csv. With gpu-exporter, run gpu-exporter doctor on the node (in the chart's pod). If DCGM's "
        "counters have stopped, end the profiler that holds them, or restart DCGM.",
        Inject(absent=(m.SM_ACTIVE,)),
        Unless(Compare(Over(s.UTIL, bare=True), ">=", 0.0), Compare(Over(s.SM_ACTIVE, bare=True), ">=", 0.0)),
        scope=Scope.FLEET,
        lesser=Unless(
            Compare(Over(s.APPROXIMATE, bare=True), "==", 1.0), Compare(Over(s.PROFILING_STOPPED, bare=True), "==", 1.0)
        ),
        lesser_because="The GPU has no profiling metrics at all: this GPU, its driver or its hypervisor does not offer "
        "them.",
        meaning="An exporter reports the utilisation of this GPU, but not its SM activity. What limits the GPU is then known "
        "[only in part](../without-profiling.md). The same is said of a GPU whose profiling counters are all 0 although "
        "it works, or keep their values while its power changes: DCGM's counters have stopped, and their values are left "
        "out, so that the GPU does not count as idle or busy because of them.",
        impact="GpuStragglerSlow, GpuStragglerLaunchBound and most alerts on bottlenecks cannot fire for this GPU. If it "
        "still has the activity of its engine, its memory and its tensor cores, as with the default fields of dcgm-exporter, "
        "GpuCollectiveStall and GpuStragglerStarved can.",
        diagnosis=(
            'Find out which exporter it is: `gpu:exporter:info{instance=~"NODE:.*"}` has its job and instance.',
            f"With gpu-exporter: run `gpu-exporter doctor` and look at `{m.SUPPORTED} == 0`. NVML has no SM "
            "activity before Hopper and under some hypervisors.",
            f'Query `{s.PROFILING_STOPPED.record}{{UUID="…"}}`: it is 1 if the counters have stopped, which the end of the '
            "summary says, too. Often a profiler holds them (Nsight, CUPTI, `dcgmi profile --pause`), or DCGM lost them after "
            'an XID: look at the log of nv-hostengine for "Profiling", and at the XIDs of the GPU.',
            "With dcgm-exporter: SM activity is commented out in its default list of fields.",
        ),
        mitigation=(
            "For dcgm-exporter: start it with `--collectors dcgm-exporter.csv` (or `dcgm-exporter-4.9.csv`), the "
            "files in [alerts/](../../alerts/dcgm-exporter.csv).",
            "For GPUs before Hopper: install DCGM on the node, through which gpu-exporter reads these metrics, or run "
            "dcgm-exporter beside gpu-exporter; each GPU still counts once.",
            "If a profiler (Nsight, `dcgmi profile --pause`) holds the performance counters, wait until it ends, or run "
            "`dcgmi profile --resume`.",
            "If the counters have stopped and no profiler runs: run `dcgmi dmon -e 1001 -c 1` against the same host engine, "
            "which makes it count again in some cases; else restart nv-hostengine, or the pod of dcgm-exporter if that has "
            "no separate host engine. Jobs on the GPU go on.",
        ),
        wrong="GPUs without profiling metrics (consumer GPUs, vGPU guests) keep the alert firing for ever, as info.",
    ),
)
