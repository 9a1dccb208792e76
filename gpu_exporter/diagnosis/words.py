"""Values of signals in plain words, as `diagnose` prints them: "GPU idle 68 % of the time". Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_exporter.catalogue import host_signals as h
from gpu_exporter.catalogue import nic_signals as n
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import BUSY_ENGINE
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import Fn, Leaf, Over, PeerMean, PeerMedian, PeerMin, PeerShare, no_case
from gpu_exporter.io.decoding import printable
from gpu_exporter.reports.numbers import duration, measured

if TYPE_CHECKING:
    from gpu_exporter.diagnosis.diagnose import Diagnosis

# Names of pods have at most 253 characters.
LONGEST_NAME = 256
IDLE = "GPU idle {} of the time"
VARYING: Mapping[Signal, str] = {
    s.SM_ACTIVE: "SM activity varies by {}",
    s.POWER_INSTANT_USE: "instantaneous power varies by {} of its limit",
}
# Codes that the help of a metric explains.
CODES: Mapping[Signal, Mapping[int, str]] = {
    s.RECOVERY: {
        **{
            0: "none",
            1: "reset the GPU",
            2: "reboot the node",
            3: "drain peer-to-peer traffic",
            4: "drain, then reset the GPU",
        },
        **{5: "recover the IMEX domain", 6: "bus-reset the GPU", 7: "power-cycle or reboot the node"},
    },
    n.DISTANCE: {1: "PIX", 2: "PXB", 3: "PHB", 4: "NODE", 5: "SYS"},
    s.FABRIC: {1: "not started", 2: "in progress", 3: "the GPU is part of it", 4: "failed"},
}
# Signals whose words are no name without a value. The table of failure modes uses the same names.
NOUNS: Mapping[Signal, str] = {
    s.GR_ACTIVE: "engine activity",
    s.SM_ACTIVE: "SM activity",
    s.SM_IDLE: "SM idle time",
    s.TENSOR_ACTIVE: "tensor core activity",
    s.DRAM_ACTIVE: "DRAM activity",
    s.FP64_ACTIVE: "FP64 activity",
    s.FP32_ACTIVE: "FP32 activity",
    s.FP16_ACTIVE: "FP16 activity",
    s.INT_ACTIVE: "integer activity",
    s.PCIE_WIDTH: "PCIe width",
    s.PCIE_MAX_WIDTH: "maximum PCIe width",
    s.PCIE_REPLAY_LIMIT: "PCIe replay limit",
    s.PCIE_RX_USE: "PCIe link use to the GPU",
    s.PCIE_TX_USE: "PCIe link use from the GPU",
    s.POWER_USE: "power as a share of its limit",
    s.POWER_NOW_USE: "power as a share of its limit, of a moment",
    s.POWER_INSTANT_USE: "instantaneous power as a share of its limit",
    s.POWER_SWING: "power swing",
    s.FB_USED: "device memory used",
    s.FB_FREE: "free device memory",
    s.NVLINK_FABRIC: "code of the NVLink fabric",
    s.FB_USE: "device memory use",
    s.FB_PEAK: "highest device memory used in a minute",
    s.FB_PEAK_USE: "highest device memory use in a minute",
    s.FB_PEAK_FREE: "lowest free device memory in a minute",
    s.THERMAL_MARGIN: "thermal margin",
    s.HW_THERMAL: "time in hardware thermal slowdown",
    s.SW_THERMAL: "time in driver thermal slowdown",
    s.POWER_BRAKE: "time under power brake",
    s.POWER_CAP: "time at the power cap",
    s.NVLINK_UP: "number of NVLinks that are up",
    s.NVLINK_LINKS: "number of NVLinks",
    s.NVLINK_EXPECTED: "expected number of NVLinks",
    s.PCIE_EXPECTED: "expected capacity of the PCIe link",
    s.PSTATE: "performance state",
    h.LAUNCH_CPU: "CPU time of the launching thread",
    h.LAUNCH_WAIT: "run queue delay of the launching thread",
    h.LAUNCH_BLOCKED: "blocked time of the main thread",
    h.ACTIVE: "number of active worker processes",
    h.WORKER_CPU: "CPU time of an active worker",
    h.WORKER_WAIT: "run queue delay of an active worker",
    h.WORKER_BLOCKED: "blocked time of an active worker",
    h.THROTTLED: "throttled share of the periods of the CPU limit",
    h.CPU_USE: "use of the allowed CPUs",
    h.FAULTS: "rate of major page faults",
    h.SWAP: "memory in swap",
    h.REMOTE: "time on another NUMA node",
    h.SHM_USE: "use of /dev/shm",
    n.UP: "state of the nearest network ports",
    n.RATE_SHARE: "share of the full network link rate",
    n.ERRORS: "network link errors",
    n.DOWNED: "network link failures",
    n.RETRANSMITS: "rate of retransmitted packets",
}


def statement(term: Leaf, values: Sequence[float]) -> str:
    """Return the value of a term in words; of several GPUs the lowest and the highest."""
    match term:
        case Over():
            return _over(term, values)
        case PeerShare():
            return f"{_range('ratio', values)} of the other ranks {term.mark.verb}"
        case PeerMedian():
            return f"median of the ranks that {term.mark.verb}: {_over(term.of, values)}"
        case PeerMin():
            return f"lowest of the ranks that {term.mark.verb}: {_over(term.of, values)}"
        case PeerMean():
            return f"mean of the other ranks: {_over(term.of, values)}"
        case _:
            raise no_case(term)


def series(term: Leaf) -> str:
    """Return the name of the recorded series of a term, or of what it is computed from."""
    return term.record or (term.signal if isinstance(term, Over) else term.mark).record


def name_of(term: Leaf) -> str:
    """Return the name of a term in JSON: the signal's name for its last value and for its mean."""
    match term:
        case Over():
            plain = term.fn.value in ("last", "mean")
            return term.signal.name if plain else f"{term.signal.name}_{term.fn.value}"
        case PeerShare():
            return f"other_ranks_that_{term.mark.verb.replace(' ', '_')}"
        case PeerMedian():
            return f"{term.of.signal.name}_of_ranks_that_{term.mark.verb.replace(' ', '_')}"
        case PeerMin():
            return f"{term.of.signal.name}_of_lowest_rank"
        case PeerMean():
            return f"{term.of.signal.name}_of_other_ranks"
        case _:
            raise no_case(term)


def subject(signal: Signal) -> str:
    """Return the name of a signal in words: SM activity."""
    text = signal.plain.replace(" of the time", "").replace("{}", "")
    return NOUNS.get(signal) or " ".join(text.strip(" :").split())


def _over(term: Over, values: Sequence[float]) -> str:
    signal, window = term.signal, f" (last {duration(term.window)})"
    amount = _range(signal.unit, values, CODES.get(signal))
    match term.fn:
        case Fn.LAST | Fn.MEAN:
            if signal is s.GR_ACTIVE and min(values) < BUSY_ENGINE.value:
                return IDLE.format(_range("ratio", [1.0 - value for value in values]))
            return signal.plain.format(amount)
        case Fn.MIN:
            return signal.plain.format(f"at least {amount}") + window
        case Fn.MAX:
            return signal.plain.format(f"at most {amount}") + window
        case Fn.STDDEV:
            return VARYING.get(signal, signal.plain).format(f"±{amount}") + " (standard deviation)"
        case Fn.INCREASE:
            return signal.plain.format(f"{amount} new") + window
        case Fn.PREDICT:
            # The line goes on below an amount of nothing.
            amount = _range(signal.unit, [max(0.0, value) for value in values])
            return signal.plain.format(amount) + f" (predicted for {duration(term.ahead)} from now)"
        case _:
            raise no_case(term.fn)


def _range(unit: str, values: Sequence[float], codes: Mapping[int, str] | None = None) -> str:
    """Return one amount, or the lowest and the highest."""
    return " to ".join(dict.fromkeys(_amount(unit, value, codes) for value in (min(values), max(values))))


def _amount(unit: str, value: float, codes: Mapping[int, str] | None) -> str:
    """Return a value with its unit, in the size that people use."""
    if codes and value in codes:
        return codes[int(value)]
    return measured(value, unit)


def names_of(group: Sequence[Diagnosis]) -> str:
    """Return the GPUs as `GPUs 0-3, 6`; instances and GPUs without an index one by one."""
    return named([(each.identity.gpu or each.device.uuid, each.device.instance) for each in group])


def named(devices: Sequence[tuple[str, str]]) -> str:
    """Return GPUs, each with its index and MIG instance, as `GPUs 0-3, 6`."""
    runs: list[list[str]] = []
    for index, instance in devices:
        name = printable(index, LONGEST_NAME)
        if instance:
            runs.append([f"{name} instance {printable(instance, LONGEST_NAME)}"])
        elif runs and name.isdecimal() and runs[-1][-1] == str(int(name) - 1):
            runs[-1].append(name)
        else:
            runs.append([name])
    names = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)
    return f"GPU{'s' * (len(devices) > 1)} {names}"
