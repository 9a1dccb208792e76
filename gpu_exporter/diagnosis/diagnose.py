"""Window of signals -> the bottleneck of each GPU and the failure modes that match, with the evidence. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from operator import or_

from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import APPROXIMATE, FILLS, Bottleneck, bottleneck_is, classified, mean
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.distributed import ALWAYS_LAST, STRAGGLERS
from gpu_exporter.catalogue.failure_modes.distributed import POWER_CAPPED as CAPPED
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Scope, Severity
from gpu_exporter.catalogue.roofline import Headroom, Position, headroom, position
from gpu_exporter.catalogue.time_shares import time_shares
from gpu_exporter.conditions.evaluate import FALSE, TRUE, UNKNOWN, TermValues, because, latest, truths, value, values
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import Condition, Fn, Over, required_signals, signals_of, terms
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.window import DeviceIdentity, Window

# What is missing where a rank of a launch-bound job was the last one for some seconds.
MINUTES = Signal("minutes_of_measurements", "seconds", "Five minutes of measurements", ())
# What is known of every GPU, and printed of those without profiling counters.
BASICS = tuple(map(mean, (s.UTIL, s.POWER_USE, s.SM_CLOCK, s.FB_USE)))
# What shows that power may lower the clock, where the reasons for lower clocks are missing.
_POWER, _CLOCK = mean(s.POWER_USE), mean(s.SM_CLOCK)


@cache
def counts_of(condition: Condition) -> tuple[Over, ...]:
    """Return the terms of a condition that say how much a signal has grown over a time."""
    return tuple(term for term in terms(condition) if isinstance(term, Over) and term.fn is Fn.INCREASE)


_COUNTS = [term for mode in MODES if mode.condition for term in counts_of(mode.condition)]
# The signals whose growth decides a failure mode, and over how many seconds at most.
COUNTED = {of.signal: max(term.window for term in _COUNTS if term.signal is of.signal) for of in _COUNTS}


def rank(severity: Severity | None, lost: float) -> tuple[int, float]:
    """Return the place of what is wrong among others: by severity, then what it costs (GPUs, or a share of a GPU).

    This is the one order of findings, incidents and GPUs. Costs are compared as they are shown; what is equal stays in
    the order it comes in: that of triage, or that of nodes and GPUs.
    """
    return severity.place if severity else len(Severity), -round(lost, 1)


@dataclass(frozen=True, slots=True)
class Match:
    """A failure mode that matches a GPU, and the evidence for it."""

    mode: FailureMode
    because: TermValues


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with one GPU. `matches` are in the order of `rank`; `unknown` are the modes that could not be
    judged, with the missing signals.

    `numbers` is the evidence for the bottleneck. `shares` is where its time went; empty if that is unknown. `headroom`
    is how close it is to the limits of its chip, if its kernels fill it, and `position` how close to what the best
    kernels reach on its model, if that is known. `approximate`: there are no profiling counters, and the class comes
    from utilisation and power.
    """

    device: DeviceKey
    identity: DeviceIdentity
    bottleneck: Bottleneck | None
    matches: tuple[Match, ...]
    unknown: Mapping[str, tuple[Signal, ...]]
    numbers: TermValues
    is_down: bool = False
    shares: Mapping[Cause, float] = field(default_factory=dict)
    headroom: Headroom | None = None
    position: Position | None = None
    approximate: bool = False

    @property
    def class_name(self) -> str:
        """The name of its class; empty if it is unknown."""
        return self.bottleneck.name if self.bottleneck else ""

    @property
    def worst(self) -> Match | None:
        """The first of the failure modes that match; None if none does."""
        return self.matches[0] if self.matches else None

    @property
    def rank(self) -> tuple[int, float]:
        """Its place among GPUs: by its most severe finding, then the share of its time that is lost."""
        lost = sum(share for cause, share in self.shares.items() if cause.is_loss)
        return rank(self.worst.mode.severity if self.worst else None, lost)

    @property
    def gpu_time(self) -> Mapping[Cause, float]:
        """Where the time of the GPU goes: of an instance, as much as its share of the GPU."""
        return {cause: share * self.identity.share for cause, share in self.shares.items()}

    @property
    def quality(self) -> str:
        """How good its engine activity, and with it its class, is."""
        return "approximate" if self.approximate else "exact"

    @property
    def largest(self) -> Cause | None:
        """What most of its time went to; None if that is unknown."""
        return max(self.shares, key=lambda cause: self.shares[cause], default=None)

    @property
    def waits(self) -> bool:
        """Whether it is seen to wait for other ranks, which costs it most of its time or is its class.

        A job that computes communicates as well: its ranks spend some of their time waiting.
        """
        share = self.shares.get(Cause.PEERS)
        is_class = self.bottleneck is not None and self.bottleneck.cause is Cause.PEERS
        return is_class or (share is not None and share == max(self.shares.values()))

    @property
    def cause(self) -> Cause | None:
        """What its class blames; if that is nothing, what most of its time went to. None without a class."""
        return self.bottleneck.cause or self.largest if self.bottleneck else None


def diagnose(window: Window, modes: Sequence[FailureMode] = MODES) -> tuple[Diagnosis, ...]:
    """Return a diagnosis for each GPU and MIG instance.

    A mode matches as soon as its condition holds; only its alert waits. It is only info where its alert is. Modes that
    concern a whole fleet are left out, unless they have a condition for the ranks that one node sees.
    """
    findings: list[list[Match]] = [[] for _ in window.devices]
    unknown: list[dict[str, tuple[Signal, ...]]] = [{} for _ in window.devices]
    up = values(Over(s.UP), window)
    down = [up.get(device) == 0 for device in window.devices]
    begins = [device in window.begins for device in window.devices]
    for mode in modes:
        if mode.name == ALWAYS_LAST and mode.condition is not None and window.is_brief:
            for place, truth in enumerate(truths(mode.condition, window)):
                if truth == TRUE and not (down[place] or begins[place]):
                    unknown[place][mode.name] = (MINUTES,)
        elif mode.condition is not None and mode.scope is not Scope.FLEET:
            left_out = [*map(or_, down, begins)] if mode.name in STRAGGLERS else down
            _judge(mode, mode.condition, window, left_out, findings, unknown)
        elif mode.on_node is not None and any(window.by_device(signal) for signal in signals_of(mode.on_node)):
            _judge_loops(mode, mode.on_node, window, findings)
    approximate = [truth == TRUE for truth in truths(APPROXIMATE, window)]
    columns = (window.devices.items(), down, classified(window), truths(FILLS, window), findings, unknown, approximate)
    return tuple(_diagnosis(window, *row) for row in zip(*columns, strict=True))


def _judge(
    mode: FailureMode,
    condition: Condition,
    window: Window,
    left_out: Sequence[bool],
    findings: Sequence[list[Match]],
    unknown: Sequence[dict[str, tuple[Signal, ...]]],
) -> None:
    """Add a mode to the findings of the devices that it matches, and to what is unknown of others.

    Devices that are left out match only modes of health.
    """
    column, only_health = truths(condition, window), mode.domain is Domain.HEALTH
    counts = counts_of(condition)
    if counts:
        column = bytes(
            UNKNOWN if truth == FALSE and any(_may_grow(of, window, device) for of in counts) else truth
            for device, truth in zip(window.devices, column, strict=True)
        )
    if not any(column):  # false of all devices
        return
    lesser = truths(mode.lesser, window) if mode.lesser else bytes(len(column))
    branches = [(truths(branch, window), advice) for branch, advice in mode.branches] if TRUE in column else []
    # The signal of an XID, which has extra labels, is missing until one occurs.
    can_be_unknown = not all(signal.extra_labels for signal in mode.needs)
    lacking = _lacking(condition, window)
    for place, (device, truth) in enumerate(zip(window.devices, column, strict=True)):
        if truth == FALSE or (left_out[place] and not only_health):
            continue
        if truth == TRUE:
            advice = next((text for holds, text in branches if holds[place] == TRUE), mode.advice)
            found = replace(mode, advice=advice)
            found = found.as_info if lesser[place] == TRUE else found
            findings[place].append(Match(found, _evidence(condition, window, device)))
        elif can_be_unknown:
            unknown[place][mode.name] = lacking(device)


def _may_grow(of: Over, window: Window, device: DeviceKey) -> bool:
    """Return whether a signal was watched for less than the time over which its growth counts."""
    points = window.points(device, of.signal)
    return bool(points) and latest(points, window.now - of.window) is None


def _evidence(condition: Condition, window: Window, device: DeviceKey) -> TermValues:
    """Return the values that make a condition true; that they are approximate is no evidence."""
    found = because(condition, window, device)
    return {term: number for term, number in found.items() if term != APPROXIMATE.left}


def _judge_loops(mode: FailureMode, condition: Condition, window: Window, findings: Sequence[list[Match]]) -> None:
    """Add a mode to the findings of the devices whose training loops match it, with what else they say about it."""
    for place, (device, truth) in enumerate(zip(window.devices, truths(condition, window), strict=True)):
        if truth == TRUE:
            further = window.of_loops.get((device, mode.name), {})
            findings[place].append(Match(mode, {**because(condition, window, device), **further}))


def _lacking(condition: Condition, window: Window) -> Callable[[DeviceKey], tuple[Signal, ...]]:
    """Return what tells the signals that a condition requires and a device does not have."""
    required = {signal: window.by_device(signal).keys() for signal in required_signals(condition)}
    everywhere = window.devices.keys()
    if any(devices and not devices >= everywhere for devices in required.values()):
        return lambda device: tuple(signal for signal, devices in required.items() if device not in devices)
    of_all = tuple(signal for signal, devices in required.items() if not devices)
    return lambda device: of_all


def _diagnosis(
    window: Window,
    device: tuple[DeviceKey, DeviceIdentity],
    is_down: bool,
    bottleneck: Bottleneck | None,
    fills: int,
    matches: Sequence[Match],
    unknown: Mapping[str, tuple[Signal, ...]],
    approximate: bool,
) -> Diagnosis:
    key, identity = device
    if is_down:
        return Diagnosis(key, identity, None, _ranked(matches, {}), unknown, {}, is_down)
    numbers = _evidence(bottleneck_is(bottleneck.name), window, key) if bottleneck else {}
    if approximate:
        known = {term: value(term, window, key) for term in BASICS}
        numbers = {**{term: number for term, number in known.items() if number is not None}, **numbers}
    elif not (key.instance or window.points(key, s.POWER_CAP)) and (value(_POWER, window, key) or 0.0) >= CAPPED.value:
        known = {term: value(term, window, key) for term in (_POWER, _CLOCK)}
        numbers = {**numbers, **{term: number for term, number in known.items() if number is not None}}
    shares = time_shares(window, key)
    ordered = _ranked(matches, shares)
    found = Diagnosis(key, identity, bottleneck, ordered, unknown, numbers, shares=shares, approximate=approximate)
    if fills != TRUE:
        return found
    of_roof = None if key.instance else position(window, key, identity.model)
    return replace(found, headroom=headroom(window, key), position=of_roof)


def rank_of(match: Match, shares: Mapping[Cause, float]) -> tuple[int, float]:
    """Return the place of a finding among others: it costs the time of its GPU that is lost to its cause."""
    cause = match.mode.cause
    return rank(match.mode.severity, shares.get(cause, 0.0) if cause.is_loss else 0.0)


def _ranked(matches: Sequence[Match], shares: Mapping[Cause, float]) -> tuple[Match, ...]:
    return tuple(sorted(matches, key=lambda match: rank_of(match, shares)))
