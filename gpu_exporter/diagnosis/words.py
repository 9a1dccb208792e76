"""Values of signals in plain words, as `diagnose` prints them: "GPU idle 68 % of the time". Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_exporter.catalogue import nic_signals as n
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import BUSY_ENGINE
from gpu_exporter.catalogue.causes import LEAST_LOSS
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import Fn, Leaf, Over, PeerMean, PeerMedian, PeerMin, PeerShare, no_case
from gpu_exporter.io.decoding import printable
from gpu_exporter.reports.numbers import agreeing, duration, gpu_hours, measured, ranges

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


def _over(term: Over, values: Sequence[float]) -> str:
    return agreeing(_in_plural(term, values))


def _in_plural(term: Over, values: Sequence[float]) -> str:
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
    whole = ranges(int(index) for index, instance in devices if index.isdecimal() and not instance)
    others = (
        f"{printable(index, LONGEST_NAME)}{f' instance {printable(instance, LONGEST_NAME)}' * bool(instance)}"
        for index, instance in devices
        if instance or not index.isdecimal()
    )
    return f"GPU{'s' * (len(devices) > 1)} {', '.join(filter(None, (whole, *others)))}"


def places(gpus: Iterable[tuple[str, str, str]]) -> str:
    """Return GPUs, each with its node, index and MIG instance: GPU 1 on node-a; GPUs 0-3 on node-b, node-c."""
    nodes: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for node, index, instance in gpus:
        nodes[printable(node, LONGEST_NAME)].append((index, instance))
    by_names: dict[str, list[str]] = defaultdict(list)
    for node, devices in nodes.items():
        by_names[named(devices)].append(node)
    return "; ".join(f"{names} on {', '.join(of)}" if any(of) else names for names, of in by_names.items())


def explaining(cause: str, effects: Sequence[str]) -> str:
    """Return the root cause of an incident with what it explains."""
    return f"root cause: {cause}" + (f", which explains {', '.join(effects)}" if effects else "")


def hit_words(gpus: str) -> str:
    """Return which other GPUs an incident hits, as the page, `top` and reports say it."""
    return f"also hit: {gpus}"


def cost(lost_gpus: float, price: float | None = None) -> str:
    """Return what an incident costs while it lasts; empty if that is not worth a line. `price` is of a GPU-hour."""
    return f"costs {gpu_hours(lost_gpus, price)} an hour" if lost_gpus >= LEAST_LOSS else ""


def cost_so_far(hours: float, price: float | None = None, *, has_ended: bool) -> str:
    """Return what an incident has cost since it began, in words that nobody takes for a cost per hour."""
    return f"cost {gpu_hours(hours, price)} in all" if has_ended else f"has cost {gpu_hours(hours, price)} so far"
