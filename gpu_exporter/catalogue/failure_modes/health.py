"""Is it on fire? States of the board, its links and the driver, and of the exporter that watches them."""

from __future__ import annotations

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.conditions import And, Calc, Compare, Fn, Limit, Or, Over, Unless
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Inject, Ramp, Scope, Severity
from gpu_exporter.catalogue.faults import BUSY, FABRIC_DONE, LOW_MARGIN
from gpu_exporter.catalogue.signal import Signal
from gpu_exporter.model.verdict import Action

MINUTE, HOUR = 60.0, 3600.0

# fmt: off
XID_RECENT     = Limit("xidRecent", 600, "seconds", "how long an Xid is shown after it was last seen")
ECC_STORM      = Limit("eccStorm", 100, "errors", "corrected ECC errors within an hour that are more than chance")
HOT_HARDWARE   = Limit("hotHardware", 0.1, "ratio", "share of time in which hardware may slow a hot GPU down")
HOT_DRIVER     = Limit("hotDriver", 0.5, "ratio", "share of time in which the driver may slow a hot GPU down")
MARGIN         = Limit("thermalMargin", LOW_MARGIN, "celsius", "degrees before the slowdown that are too few")
BRAKE          = Limit("powerBrake", 0.01, "ratio", "share of time in which the power supply may brake the GPU")
LINK_BUSY      = Limit("linkBusy", BUSY / 100, "ratio", "utilisation at which the PCIe link is no longer saving power")
STALE          = Limit("stale", 150, "seconds", "age of the last good read of a GPU that is too old; more than an interval, a scrape and an evaluation")
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
  unless on (cluster, job, instance) ({m.UP}{{UUID!=""}} == 0)
  unless {_RELEASED_NODE}
)
* on (cluster, job, instance) group_left (node) topk by (cluster, job, instance) (1, last_over_time(gpu:exporter:info[6h]))""",
        implies=("GpuTelemetryStale",),
        meaning="The driver no longer answers for this GPU, or fewer GPUs answer than this node had. Usually it "
        "fell off the PCIe bus (Xid 79) or its firmware hung (Xid 119, 120). Programs on it fail with CUDA "
        "errors or hang.",
        impact="What ran on it is dead. The ranks of its job on other GPUs wait until they time out. A reset "
        "seldom brings back a GPU that is off the bus.",
        diagnosis=(
            "`gpu-exporter check` on the node names the GPU and the reason: `lost` is off the bus, "
            "`stalled` a driver call that does not return, `gone` a GPU that the driver has no more. In "
            f'Prometheus: `{m.DOWN}{{instance=~"NODE:.*"}}`.',
            "`gpu-exporter events`, or `journalctl -k -b | grep -i xid`: 79 is the bus, 119 and 120 the "
            "firmware. Read the lines *before* the first Xid: PCIe errors (AER) there point to slot, riser "
            "or power.",
            "`lspci -d 10de:` lists the GPU? Then the bus still sees it, and a reset may do. It is missing, "
            "or shows `rev ff`: only a reboot or a power cycle helps.",
            f'`{s.GPU_TEMP.record}{{node="…"}}` and `{s.POWER.record}{{node="…"}}` just before it went: '
            "heat, or a jump in power, point to cooling or power supply.",
        ),
        mitigation=(
            "Cordon and drain the node. Its job is dead already, so the grace period can be short.",
            "Keep evidence: `nvidia-bug-report.sh`, before the reboot.",
            "Reboot; if the GPU stays away, power-cycle. Then `gpu-exporter check` and `dcgmi diag -r 3` "
            "before it takes work again.",
            "A second time within a month: reseat it, then replace the board. Many nodes at once: suspect a "
            "driver update, and don't drain them all.",
        ),
        wrong="GPUs that were taken out or given to a virtual machine count as missing until the exporter "
        "restarts (with dcgm-exporter: for six hours); `--expected-gpus` says how many there ought to be. "
        "While `gpu-exporter release` holds, it is silent. A node or an exporter that is down is no lost "
        "GPU: that is GpuExporterDown.",
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
        meaning="The driver reported an Xid after which NVIDIA and the clouds that drain on their own take the node "
        "out of service. The label `xid` has the code; [Xid codes](../xids.md) says what it means.",
        impact="What runs on the GPU has failed or computes on memory that can't be trusted. New work will fail too.",
        diagnosis=(
            "`gpu-exporter events` shows code, time, process and what repairs it. The *first* Xid is the "
            "cause; 45 only says that programs were cleaned up after it.",
            f'`{s.RECOVERY.record}{{UUID="…"}}` is what the driver itself asks for; it outranks the table: 1 '
            "reset, 2 reboot, 3 drain peer traffic, 4 drain and reset.",
            "48, 64, 95, 140 are memory: `nvidia-smi -q -d ECC,ROW_REMAPPER`. A failed remap or an exceeded "
            "SRAM threshold means that the board goes.",
            "79 is the bus: see GpuLost. 119, 120 are the firmware (GSP): many nodes at once mean a driver "
            "bug, one node alone a sick board.",
        ),
        mitigation=(
            "Cordon and drain the node; end what still runs on this GPU.",
            "Do what the recovery action says, else the table: `gpu-exporter release --for 10m`, then "
            "`nvidia-smi --gpu-reset -i N`, then `gpu-exporter resume`; reboot if the reset fails.",
            "`gpu-exporter check`, then `dcgmi diag -r 3`, before it takes work. The same code again within "
            "a week: go one step further, reset, reboot, replace.",
        ),
        wrong="With dcgm-exporter alone the last code never clears: the alert stays until that exporter restarts, "
        "and can't show the same code twice. With ours it ends by itself ten minutes after the last event, "
        "repaired or not: the end of the alert does not say that the GPU is well.",
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
        meaning="Memory of this GPU had an error that ECC found and could not correct since the driver was loaded, "
        "or its SRAM had more of them than NVIDIA accepts. The program that read it was killed or got wrong "
        "data.",
        impact="At least one program failed (Xid 48, 94 or 95). Until the reset the bad place is fenced off at best.",
        diagnosis=(
            "`nvidia-smi -q -d ECC`: volatile, uncorrectable, DRAM or SRAM. Aggregate counts are the life "
            "of the board, and no news.",
            "`nvidia-smi -q -d ROW_REMAPPER`: `Pending: Yes` is repaired by a reset; `Remapping Failure "
            "Occurred: Yes` means that the board goes.",
            f'`SRAM Threshold Exceeded: Yes`, or `{s.SRAM_EXCEEDED.record}{{UUID="…"}}`: the board goes.',
            "`gpu-exporter events`: Xid 94 hit one program only, 95 or 48 may have hit all on this GPU.",
        ),
        mitigation=(
            "Cordon and drain the node; don't trust checkpoints written after the first error.",
            "Reset the GPU (`gpu-exporter release --for 10m`, `nvidia-smi --gpu-reset -i N`, `gpu-exporter "
            "resume`) or reboot: the count starts at 0 again, and the alert ends.",
            "`dcgmi diag -r 3`. If errors come again within days, or the SRAM threshold is exceeded: "
            "replace the board.",
        ),
        wrong="Hardly ever. It stays until the driver is loaded again, also when the row has long been fenced "
        'off: the level is the state "needs a reset". A contained error (Xid 94) hurt one program only, and '
        "the GPU may finish what it runs.",
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
        meaning="A bad memory row should have been replaced by a spare one and could not be. The driver says so "
        "when a bank has used up its spare rows, the same row fails again, or 512 rows are remapped.",
        impact="The next error in this row kills the program that touches it. No reset repairs it.",
        diagnosis=(
            "`nvidia-smi -q -d ROW_REMAPPER`: `Remapping Failure Occurred: Yes`, and how many banks have no "
            "spare rows left.",
            "`gpu-exporter events`: Xid 64 is the failed remapping itself; 48 or 95 beside it, programs that were hit.",
            f'`{s.REMAPPED.record}{{UUID="…"}}`: rows remapped so far.',
        ),
        mitigation=(
            "Cordon and drain the node; give this GPU no work.",
            "Run NVIDIA's field diagnostics: they decide whether the board qualifies for return. "
            "`nvidia-bug-report.sh` goes with it.",
            "Have the board replaced.",
        ),
        wrong="Never seen wrong: the flag is the driver's own, and survives resets and reboots.",
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
        meaning="The driver itself asks for a repair of this GPU. That outranks every table of Xids, this catalogue "
        "included.",
        impact="Until it is done, programs fail to start or fail soon.",
        diagnosis=(
            "`nvidia-smi -q | grep -A1 'Recovery Action'`, or the alert's value: 1 reset the GPU, 2 reboot "
            "the node, 3 drain peer-to-peer traffic, 4 drain and reset. What newer drivers add is in "
            "[health](../health.md).",
            "`gpu-exporter events`: Xid 154 is the change of this action; the Xid before it is why.",
            f"`{s.RECOVERY.record} > 0` over the cluster: GPUs that share an NVLink domain often ask "
            "together; the one with another Xid before 154 is the cause.",
        ),
        mitigation=(
            "1 and 4: cordon, let jobs on this GPU end, `gpu-exporter release --for 10m`, `nvidia-smi "
            "--gpu-reset -i N`, `gpu-exporter resume`.",
            "2: drain the node and reboot it.",
            "3: end the programs that use peer-to-peer with this GPU; then look again, for the action often changes.",
            "Asked again within a week: go one step further, and have the board looked at.",
        ),
        wrong="Hardly ever. Drivers before 570 don't have it: then it is silent, not well.",
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
        meaning="Some NVLinks of this GPU are up and others are not.",
        impact="Collectives take the slowest way: a job over this GPU is slowed down as a whole. On NVSwitch "
        "systems, CUDA may refuse to start.",
        diagnosis=(
            "`nvidia-smi nvlink --status -i N`: which links are inactive. "
            f'`{s.NVLINK_UP.record}{{node="…"}}`: the same links of several GPUs point to one switch or '
            "cable, those of one GPU to its board.",
            "`journalctl -u nvidia-fabricmanager -b` and `gpu-exporter events`: Xid 74, 136, 144 to 150, or "
            "an SXid of a switch.",
            "`nvidia-smi topo -m`: whether the system is cabled as you think. Bridged boards may have links "
            "that lead nowhere.",
        ),
        mitigation=(
            "When the job has ended, reset the GPU: `gpu-exporter release --for 10m`, `nvidia-smi "
            "--gpu-reset -i N`, `gpu-exporter resume`. On HGX A100, all GPUs of the baseboard are reset "
            "together.",
            "Still down: restart the fabric manager, then reboot.",
            "Still down: baseboard, bridge or cable have to be looked at.",
        ),
        wrong="Boards with bridges to some neighbours only have links that are down by design: silence the alert "
        "there. A GPU all of whose links are down is not found, for that is what a GPU without a bridge "
        "looks like; CUDA and NCCL complain then.",
    ),
    FailureMode(
        "GpuFabricNotReady",
        Domain.HEALTH,
        Severity.WARNING,
        10 * MINUTE,
        Action.NONE,
        "{gpu} is not part of the NVSwitch fabric (state {{ $value }})",
        "New CUDA programs fail on this GPU. Check on the node that the fabric manager runs and has the driver's version.",
        Inject({m.FABRIC: 2.0}),
        # DCGM also has 0 (no fabric), 5 and 6 (not known).
        And(
            Compare(Over(s.FABRIC), "!=", FABRIC_DONE),
            Compare(Over(s.FABRIC), ">=", 1.0),
            Compare(Over(s.FABRIC), "<=", 4.0),
        ),
        meaning="The fabric manager has not made this GPU part of the NVSwitch fabric. The state is 1 (not started), "
        "2 (in progress) or 4 (completed with an error); a GPU that is ready has 3. GPUs before Hopper do not report it.",
        impact="CUDA programs that start now fail with error 802, `system not yet initialized`. Programs that already "
        "run are not affected.",
        diagnosis=(
            "`nvidia-smi -q -i N | grep -A3 Fabric`: the alert's 4 is a completed state with a status other than "
            "success. If all GPUs of the node are affected, suspect the fabric manager; if only one is, its NVLinks or "
            "its board.",
            "`systemctl status nvidia-fabricmanager` and `journalctl -u nvidia-fabricmanager -b`: a version that "
            "differs from the driver's is the most frequent cause, often after an upgrade. With GPU Operator it runs in "
            "the driver's container: see that pod's log.",
            "With NVLink 5 (Blackwell) the subnet manager (NVLSM) has to run as well; in racks with NVLink switches "
            "the fabric manager runs on the switches.",
            f"In state 4, `{m.FABRIC_ERROR}` (`--metrics full`) is the NVML code with which the GPU's registration "
            "failed. `gpu-exporter events` shows NVLink Xids and SXids of the switches.",
        ),
        mitigation=(
            "Cordon the node, because jobs that start there fail, and wait until its jobs have ended.",
            "Install the fabric manager in the driver's version, then `systemctl restart nvidia-fabricmanager`.",
            "Still not ready: reboot the node. If one GPU is still not ready then, open a hardware case for its board.",
            "When it is ready (`gpu-exporter check`), uncordon the node.",
        ),
        wrong="GPUs pass through this state at boot and during a driver upgrade, so the alert waits for ten minutes. GPUs "
        "that run without a fabric on purpose, such as those of a virtual machine to which no partition is assigned, "
        "stay in it: silence the alert there.",
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
        meaning="Heat holds the clock down: the hardware did it in more than a tenth of the time, or the driver in "
        "more than half of it.",
        impact="The GPU is slower, and so is every job that it is a rank of.",
        diagnosis=(
            f'`{s.GPU_TEMP.record}{{node="…"}}` and `{s.MEMORY_TEMP.record}{{node="…"}}`: one GPU is hot: '
            "dust, heat sink, its fan or cold plate. All of them: inlet air, coolant, a fan wall.",
            "`nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i N`: which reason is active now, and how many "
            "degrees are left.",
            f'`{s.SM_CLOCK.record}{{node="…"}}`: how much speed it costs, against its neighbours under the same load.',
            "The node's BMC (`ipmitool sdr type fan`, `ipmitool sdr type temperature`): fans and inlet.",
        ),
        mitigation=(
            "Find the cause in the room first: inlet temperature, blanking panels, coolant flow, failed fans.",
            "Until then, lower the power limit: `nvidia-smi -i N -pl WATTS` costs less speed than hardware throttling.",
            "One GPU alone, and clean: have its thermal interface or cold plate looked at.",
        ),
        wrong="A power cap is not counted: that is normal at full load. With dcgm-exporter the cause comes from a mask or "
        "a counter, which may miss short events and may not distinguish hardware from driver.",
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
        meaning="A signal from outside (power supply, chassis, rack) made the board brake: it halved its clock or "
        "worse.",
        impact="Sudden and large: every job on the node slows down. Often the sign that power supplies have failed "
        "or that a rack is over its budget.",
        diagnosis=(
            f"`{s.POWER_BRAKE.record} > 0` over the cluster: one node: its power supplies. A rack: its feed "
            "or its power cap.",
            'BMC event log (`ipmitool sel list`) and supplies (`ipmitool sdr type "Power Supply"`): a '
            "failed or unplugged supply, lost redundancy.",
            "`nvidia-smi -q -d PERFORMANCE -i N`: `HW Power Brake Slowdown: Active`.",
            f'`{s.POWER.record}{{node="…"}}`, summed over the node, against what the chassis may draw.',
        ),
        mitigation=(
            "Replace or plug in the failed supply; raise a chassis power cap that is too low.",
            "Until then lower the GPUs' limits (`nvidia-smi -pl WATTS`) so that the sum fits: a steady "
            "limit is faster than braking.",
            "A whole rack: call the facility.",
        ),
        wrong="Some chassis brake for a moment at start-up or when a supply is swapped; the hold of five minutes "
        "leaves most of that out. The driver's own power cap is something else, and normal.",
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
        meaning="The GPU is a few degrees from slowing down. The margin is the driver's own where it has one, else "
        "the slowdown threshold less the temperature.",
        impact="None yet. A warmer room or a heavier job turns it into GpuThermalThrottling.",
        diagnosis=(
            f'`{s.THERMAL_MARGIN.record}{{node="…"}}`, over a day: creeping means dust or a failing pump; a '
            "step, something that changed.",
            f'Neighbours: `{s.GPU_TEMP.record}{{node="…"}}`. In an air-cooled box the GPUs behind others are '
            "always warmer.",
            "`nvidia-smi -q -d TEMPERATURE -i N`: the thresholds of this board.",
        ),
        mitigation=(
            "See to inlet temperature, filters and fans, before it costs speed.",
            "Lower the power limit of the warmest GPUs if the room can't be cooled now.",
        ),
        wrong="Boards that are cooled to the edge on purpose sit here under full load without ever slowing down: "
        "set `thermalMargin` lower there.",
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
        meaning="A memory row went bad and is fenced off; a spare one takes its place at the next reset.",
        impact="None for what runs now: NVIDIA says that a pending remapping does not affect future work. Each "
        "further bad row costs one more program.",
        diagnosis=(
            "`nvidia-smi -q -d ROW_REMAPPER`: `Pending: Yes`, and whether a remapping failed.",
            "`gpu-exporter events`: Xid 63 is the recording. 48 or 95 beside it means that a program was "
            "hit, and the reset is due now.",
            f'`{s.REMAPPED.record}{{UUID="…"}}`, over months: how often it happens on this board.',
        ),
        mitigation=(
            "Cordon the node or taint the GPU; let what runs end. Don't kill jobs for it.",
            "Then reset: `gpu-exporter release --for 10m`, `nvidia-smi --gpu-reset -i N`, `gpu-exporter "
            "resume`. A reboot does it too.",
            "Pending for more than a week: plan a maintenance window.",
        ),
        wrong="The state is the driver's own. On a GPU in MIG mode it can't be read while instances exist: then "
        "the alert is silent, not well.",
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
        meaning="Memory pages went bad and will be left out after the next load of the driver (GPUs before Ampere; "
        "newer ones remap rows).",
        impact="Programs can still be given the bad pages until then.",
        diagnosis=(
            "`nvidia-smi -q -d PAGE_RETIREMENT`: how many pages, for single or double bit errors, and "
            "whether some are pending.",
            "`gpu-exporter events`: Xid 63 (recorded) or 64 (recording failed).",
        ),
        mitigation=(
            "Let what runs end, then reboot the node, or unload and load the driver.",
            "NVIDIA's limit is about 60 retired pages: beyond it, or after 15 for double bit errors, "
            "replace the board.",
        ),
        wrong="The state is the driver's own; on Ampere and newer it does not exist.",
    ),
    FailureMode(
        "GpuInforomCorrupt",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.REPLACE,
        "The InfoROM of {gpu} is corrupt",
        "Start no new work on the GPU. Have the server's vendor flash its InfoROM; if that fails, replace the board.",
        Inject({m.INFOROM: 0.0}),
        Compare(Over(s.INFOROM), "<", 1.0),
        meaning="The checksums of the InfoROM are wrong. That is the board's own memory for its identity, its settings "
        "(ECC among them) and its record of memory errors and repairs.",
        impact="Running jobs can continue. After the next reset, settings, error counts and row remappings may be lost, "
        "and memory errors that had been repaired may come back.",
        diagnosis=(
            "`nvidia-smi -i N`: it ends with `WARNING: infoROM is corrupted at gpu …`. `nvidia-smi -q -i N | grep -i "
            "-A5 inforom` shows the versions.",
            "`gpu-exporter events`: Xid 125 is a damaged file system of the InfoROM. Did the node lose power, or was "
            "firmware being updated, just before?",
            f'`{s.INFOROM.record}{{node="…"}}`: if several boards show it at once, suspect a firmware update; if one '
            "does, the board.",
        ),
        mitigation=(
            "Cordon the node, and let running jobs end.",
            "Keep evidence: `nvidia-bug-report.sh`. Ask the server's vendor for the InfoROM image of this board, and flash "
            "it with the vendor's tool.",
            "If it can't be flashed, or is corrupt again: have the board replaced.",
            "`gpu-exporter check` reads the InfoROM at once: when it says that the GPU is healthy, uncordon the node.",
        ),
        wrong="The exporter reads the state once an hour, so the alert fires and ends up to an hour late. Boards without "
        "an InfoROM don't report it.",
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
        meaning="Memory banks of this GPU have few spare rows left, or none. The next bad row in such a bank can't "
        "be replaced.",
        impact="None yet. The next failure there is GpuRowRemapFailed, and costs a job.",
        diagnosis=(
            "`nvidia-smi -q -d ROW_REMAPPER`: the histogram of banks by spare rows left.",
            f'`{s.REMAPPED.record}{{UUID="…"}}` over months: a board that remaps often won\'t stop.',
            f'`{s.BANKS_NONE.record}{{UUID="…"}}`: above 0, the spare rows of a bank are used up.',
        ),
        mitigation=(
            "Plan the board's replacement; until then give it work that can be restarted.",
            "Run `dcgmi diag -r 3` at the next maintenance, and show the result to the vendor.",
        ),
        wrong="A bank with few spare rows may never have another bad one: it is a forecast, hence a warning. The "
        "histogram needs `--metrics full` with our exporter.",
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
        meaning="The PCIe link is narrower or slower than GPU and slot can do, while the GPU is busy. An idle link "
        "that saves power does not count.",
        impact="Everything between host and GPU is slower by that factor: loading data, offloading, checkpoints, "
        "and traffic to NICs.",
        diagnosis=(
            "`nvidia-smi "
            "--query-gpu=index,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max "
            "--format=csv` under load.",
            "`lspci -vv -s BUS_ID | grep -i lnk`: `LnkSta` against `LnkCap`, `(downgraded)`. Look at the "
            "bridge above it, too.",
            "`journalctl -k -b | grep -i 'aer\\|pcie'`: corrected errors before it fell point to the contact.",
            f'`{s.PCIE_WIDTH.record}{{node="…"}}` and `{s.PCIE_GEN.record}{{node="…"}}`: one GPU, or all '
            "below one switch?",
        ),
        mitigation=(
            "When the job has ended, reboot the node: the link is trained anew.",
            "Still degraded: reseat board and riser, then try another slot; update BIOS and switch firmware.",
            "If the slot is meant to be so, silence the alert for this node.",
        ),
        wrong="Slots wired with fewer lanes, and virtual machines that report what the host does not have, are "
        "degraded for ever by design. A GPU that is busy in bursts may be caught just as its link wakes: "
        "the hold of 15 minutes is for that.",
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
        meaning="More PCIe packets had to be sent again than a good link may have. The limit is the bit error rate "
        "that the PCI Express specification allows: it grows with lanes and generation.",
        impact="Bandwidth falls and latency grows. It is often the forerunner of a degraded link or a lost GPU.",
        diagnosis=(
            f'`{s.PCIE_REPLAYS.record}{{node="…"}}`: one GPU, or all below one switch or riser?',
            "`journalctl -k -b | grep -i aer`: which end reports errors, and of what kind.",
            f'`{s.PCIE_REPLAY_LIMIT.record}{{UUID="…"}}` is how many a good link of this kind may have '
            "within 15 minutes.",
            f'`{s.GPU_TEMP.record}{{UUID="…"}}`: bad contacts often err when warm.',
        ),
        mitigation=(
            "Drain the node when the job has ended.",
            "Reseat board and riser, clean the contacts; then try another slot. The errors go with the "
            "board: replace it. They stay: slot, riser or cable.",
        ),
        wrong="A handful of replays when a link is trained or after a reset is normal, and below the limit.",
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
        meaning="NVLinks of this GPU had to send again, to recover, or saw CRC errors within 15 minutes.",
        impact="Collectives are slower by what is sent again; recoveries stop the link for a moment. Programs "
        "don't fail yet.",
        diagnosis=(
            "`nvidia-smi nvlink --errorcounters -i N`: which link, and which kind.",
            f'`{s.NVLINK_REPLAYS.record}{{node="…"}}` and `{s.NVLINK_RECOVERIES.record}{{node="…"}}`: the '
            "GPU at the other end of a bad link counts too. Links to one switch only: the switch.",
            "`gpu-exporter events` and `journalctl -u nvidia-fabricmanager`: Xid 74, or an SXid.",
        ),
        mitigation=(
            "When the job has ended, reset the GPU and its peer.",
            "Errors come back on the same link: reseat or replace bridge, cable or board, beginning with "
            "what both ends share.",
            "A job that must run now can be kept off this GPU.",
        ),
        wrong="One or two replays in a day are harmless, and keep the alert on for half an hour after each. CRC "
        "errors alone hurt only from about a hundred a second.",
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
        meaning="Memory of this GPU had many errors that ECC corrected. Nothing was lost.",
        impact="None for results. Many of them may announce a row that goes bad.",
        diagnosis=(
            "`nvidia-smi -q -d ECC -i N`: volatile, corrected: DRAM or SRAM.",
            f'`{s.ECC_SBE.record}{{UUID="…"}}` over days: a burst (one weak cell that is read in a loop), or growth?',
            "`gpu-exporter events`: Xid 92 is NVIDIA's own sign of a high rate; Xid 63, a row that will be remapped.",
        ),
        mitigation=(
            "Nothing now. Watch for GpuRowRemapPending.",
            "If Xid 92 comes, or a remapping is pending: reset when the job has ended.",
            "Weeks of it on one board: run `dcgmi diag -r 3`, and ask the vendor.",
        ),
        wrong="Often harmless: one weak cell in a hot loop counts thousands until its row is remapped. NVIDIA "
        "asks for no action on corrected errors.",
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
        meaning="The driver reported an Xid that is in no table of NVIDIA's that we know.",
        impact="Not known. Hence an alert, and never a drain.",
        diagnosis=(
            "`gpu-exporter events`: the code, the process, and what came with it.",
            "`journalctl -k -b | grep -B5 -A20 'Xid'`: the whole message often says it in words.",
            f'`{s.RECOVERY.record}{{UUID="…"}}`: above 0, the driver wants something: do that.',
        ),
        mitigation=(
            "Look the code up in the Xid catalogue of your driver's release; ask NVIDIA with `nvidia-bug-report.sh`.",
            "Once you know it, add a row with `--xid-overrides`, and it alerts as what it is.",
        ),
        wrong="A newer driver brings new codes, most of them harmless: expect it after an upgrade.",
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
        meaning="The driver reported an Xid that is usually the program's own fault: an illegal access (31), an "
        "exception in a kernel (13), a channel that was closed (43).",
        impact="That program failed. The GPU is fine, and others on it go on.",
        diagnosis=(
            "`gpu-exporter events`: process and PID; `/api/v1/events` of the exporter has what the GPU was doing then.",
            "The same code from *several different* programs on this GPU within a day? Then suspect the "
            "GPU. The same program on many GPUs: the program.",
            "For 31 and 13: run it with `CUDA_LAUNCH_BLOCKING=1`, or under `compute-sanitizer`.",
        ),
        mitigation=(
            "Tell the owner of the job. Restarting it is their decision.",
            "Three different programs on one GPU: drain it, and run `dcgmi diag -r 3`.",
        ),
        wrong="Failing memory can look like a program's bad access: check GpuEccUncorrectable and "
        "GpuRowRemapPending of the same GPU. With dcgm-exporter there is no such alert: its last code "
        "never clears.",
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
        meaning="The exporter answers, but could not read this GPU for minutes. What the dashboards show "
        "of it is old, or gone.",
        impact="No other alert on this GPU can be trusted meanwhile. Often a GPU that is about to be lost.",
        diagnosis=(
            "`gpu-exporter doctor` on the node: which call hangs or fails, and why.",
            f'`{m.STALLED}{{instance=~"NODE:.*"}}`: above 0, a call is stuck in the driver: `nvidia-smi` '
            "will hang as well.",
            "`journalctl -k -b | grep -i 'nvrm\\|hung task'`: firmware timeouts (Xid 119), or a task blocked "
            "in the driver.",
            "`uptime`, CPU throttling of the exporter's pod: a starved exporter is late for *all* GPUs of the node.",
        ),
        mitigation=(
            "Stuck in the driver: drain the node and reboot. Killing processes won't free a thread in the kernel.",
            "All GPUs are stale, and `nvidia-smi` is quick: restart the exporter, raise its CPU limit.",
        ),
        wrong="Clocks that differ between node and Prometheus by a minute look the same, for all GPUs of the node "
        "at once: look at NTP. A driver upgrade without `gpu-exporter release` does it for a moment.",
    ),
    FailureMode(
        "GpuExporterDown",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.NONE,
        "Prometheus can't scrape {{ $labels.instance }}: nothing is known of the GPUs of "
        "{{ or $labels.node `its node` }}",
        "Look at the exporter's pod or service and at the network between; if the node is down too, see to that.",
        Inject(fault="down"),
        fleet="""(
  up{job=~"gpu|.*(gpu.?exporter|dcgm).*"} == 0
  or
  (up == 0 and on (cluster, job, instance) max_over_time(gpu:exporter:info[1d]))
)
* on (cluster, job, instance) group_left (node) topk by (cluster, job, instance) (1, last_over_time(gpu:exporter:info[1d]))
or on (cluster, job, instance)
up{job=~"gpu|.*(gpu.?exporter|dcgm).*"} == 0""",
        scope=Scope.FLEET,
        meaning="Prometheus can't scrape an exporter that had GPUs. Nothing is known of them, which is not the same "
        "as well.",
        impact="No alert on these GPUs can fire.",
        diagnosis=(
            "`up == 0` and the targets page of Prometheus: the error of the scrape: refused (not running), "
            "timeout (hangs, or network), 401 (password), 503 (it makes no pages any more: the body says why), certificate.",
            "`kubectl get pods -o wide` for the node, or `systemctl status`: crash loop, evicted, pending?",
            "`curl -s NODE:9400/healthz` from the node itself, then from elsewhere: the difference is the "
            "network (policy, firewall).",
            "Are other exporters of this node down as well? Then it is the node.",
        ),
        mitigation=(
            "The node is down: see to that; this alert is its consequence.",
            "The exporter is: its log says why in one line; `gpu-exporter doctor` on the node says what is missing.",
        ),
        wrong="A node that was removed for good keeps the alert until service discovery forgets it. A scrape job "
        "whose name contains neither gpu nor dcgm is known only once it was scraped, within the last day.",
    ),
    FailureMode(
        "GpuAttributionDown",
        Domain.HEALTH,
        Severity.WARNING,
        5 * MINUTE,
        Action.NONE,
        "The exporter {{ $labels.instance }} gets no answer from {{ $labels.source }}: soon nobody knows whose its GPUs are",
        "The exporter's log says in one line what is missing, and so does `gpu-exporter doctor` with the same flags.",
        Inject(series={f'{m.ATTRIBUTION_UP}{{source="kubelet"}}': 0.0}),
        fleet=f"""max by (cluster, job, instance, source) ({m.ATTRIBUTION_UP} == 0)
* on (cluster, job, instance) group_left (node) topk by (cluster, job, instance) (1, last_over_time(gpu:exporter:info[6h]))
or on (cluster, job, instance, source)
max by (cluster, job, instance, source) ({m.ATTRIBUTION_UP} == 0)""",
        scope=Scope.FLEET,
        requires="attribution",
        meaning="Somebody whom the exporter asks for the owners of GPUs does not answer: `source` is kubelet (pods), pods "
        "(their labels, at the API server), resource_slices (DRA), hpc_jobs (the prolog's files) or processes (procfs).",
        impact="The last answer is shown for ten minutes, whoever has the GPUs since. Then `namespace`, `pod` and `hpc_job` "
        "are empty, and alerts and bills name nobody. The GPUs are watched as before.",
        diagnosis=(
            f'`{m.ATTRIBUTION_ERRORS}{{instance=~"NODE:.*"}}`: its `reason` says what is wrong; '
            f"`{m.ATTRIBUTION_AGE}` how old the last answer is (absent: there never was one).",
            "`no_socket`, `unavailable`, `deadline_exceeded`: is kubelet running, and is its folder mounted, not the "
            "socket alone? A socket that is mounted itself stays the one of the kubelet before.",
            "`no_permission`: the socket of kubelet is root's: the container has to run as uid 0.",
            "`forbidden`, `unauthorized`, `no_token`: the service account. "
            "`kubectl auth can-i watch pods --as system:serviceaccount:NAMESPACE:NAME`.",
            "`no_directory`, `unreadable`: the folder of the prolog, and who may read it. `no_procfs`: `--procfs`.",
        ),
        mitigation=(
            "Mount, uid or rights: the chart sets them with `attribution.enabled`; compare what is installed with it.",
            "Kubelet is down: see to the node, this is its consequence.",
            "Nobody needs to know the owners: switch off what asks for them.",
        ),
        wrong="A kubelet that is upgraded for longer than five minutes fires it too; the labels outlive it for ten. "
        "One of the prolog's files that can't be read counts as no answer, although the others are read.",
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
        meaning="Something reports the utilisation of this GPU, but not its SM activity, so nobody can say what "
        "limits it.",
        impact="Every alert on bottlenecks and stragglers is blind on this GPU.",
        diagnosis=(
            'Which exporter is it? `gpu:exporter:info{instance=~"NODE:.*"}` has its job and instance.',
            f"Ours: `gpu-exporter doctor`, and `{m.SUPPORTED} == 0`: NVML has no SM activity before Hopper and "
            "under some hypervisors.",
            "dcgm-exporter: SM activity is commented out in the list of fields that it comes with.",
        ),
        mitigation=(
            "dcgm-exporter: give it our list, `--collectors dcgm-exporter.csv` (or "
            "`dcgm-exporter-4.9.csv`), and restart it.",
            "GPUs before Hopper: run dcgm-exporter beside ours; each GPU still counts once.",
            "A profiler (Nsight, `dcgmi profile --pause`) that holds the counters: wait until it ends.",
        ),
        wrong="GPUs without SM activity (consumer boards, vGPU guests) keep it for ever: silence it for them.",
    ),
)
