"""Window of signals -> the bottleneck of each GPU and the failure modes that match, with the evidence. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_exporter.catalogue.bottlenecks import Bottleneck, bottleneck_is, classify
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Scope
from gpu_exporter.catalogue.roofline import Headroom, Position, headroom, position
from gpu_exporter.catalogue.signals import UP
from gpu_exporter.catalogue.time_shares import time_shares
from gpu_exporter.conditions.evaluate import FALSE, TRUE, Device, TermValues, because, truths, value
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import Condition, Over, required_signals
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.window import DeviceIdentity, Window


@dataclass(frozen=True, slots=True)
class Match:
    """A failure mode that matches a GPU, and the evidence for it."""

    mode: FailureMode
    because: TermValues


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with one GPU. `unknown` are the modes that could not be judged, with the missing signals.

    `numbers` is the evidence for the bottleneck. `shares` is where its time went; empty if that is unknown. `headroom`
    is how close it is to the limits of its chip, if its kernels fill it, and `position` how close to what the best
    kernels reach on its model, if that is known.
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

    @property
    def largest(self) -> Cause | None:
        """What most of its time went to; None if that is unknown."""
        return max(self.shares, key=lambda cause: self.shares[cause], default=None)

    @property
    def cause(self) -> Cause | None:
        """What its class blames; if that is nothing, what most of its time went to. None without a class."""
        return self.bottleneck.cause or self.largest if self.bottleneck else None


def diagnose(window: Window, modes: Sequence[FailureMode] = MODES) -> tuple[Diagnosis, ...]:
    """Return a diagnosis for each GPU and MIG instance, modes in triage order.

    A mode matches as soon as its condition holds; only its alert waits. It is only info where its alert is. Modes that
    concern a whole fleet are left out.
    """
    judged = [
        _judged(mode, mode.condition, window)
        for mode in modes
        if mode.condition is not None and mode.scope is not Scope.FLEET
    ]

    devices = enumerate(window.devices.items())
    return tuple(_diagnosis(window, place, device, identity, judged) for place, (device, identity) in devices)


@dataclass(frozen=True, slots=True)
class _JudgedMode:
    """A failure mode, its truth for each device, whether it is only info there (empty: never), and the devices that
    have the signals that it requires.
    """

    mode: FailureMode
    condition: Condition
    truths: bytes
    lesser: bytes
    requires: Mapping[Signal, Container[Device]]
    can_be_unknown: bool


def _judged(mode: FailureMode, condition: Condition, window: Window) -> _JudgedMode:
    # The signal of an XID, which has extra labels, is missing until one occurs.
    can_be_unknown = not all(signal.extra_labels for signal in mode.needs)
    requires = {signal: window.by_device(signal) for signal in required_signals(condition)}
    lesser = truths(mode.lesser, window) if mode.lesser else b""
    return _JudgedMode(mode, condition, truths(condition, window), lesser, requires, can_be_unknown)


def _diagnosis(
    window: Window, place: int, device: DeviceKey, identity: DeviceIdentity, judged: Iterable[_JudgedMode]
) -> Diagnosis:
    matches, unknown = [], {}
    is_down = value(Over(UP), window, device) == 0
    for each in judged:
        truth = each.truths[place]
        if truth == FALSE or (is_down and each.mode.domain is not Domain.HEALTH):
            continue
        if truth == TRUE:
            mode = each.mode.as_info if each.lesser and each.lesser[place] == TRUE else each.mode
            matches.append(Match(mode, because(each.condition, window, device)))
        elif each.can_be_unknown:
            missing = tuple(signal for signal, devices in each.requires.items() if device not in devices)
            unknown[each.mode.name] = missing
    bottleneck = None if is_down else classify(window, device)
    numbers = because(bottleneck_is(bottleneck.name), window, device) if bottleneck else {}
    shares, room = ({}, None) if is_down else (time_shares(window, device), headroom(window, device))
    of_roof = None if is_down or device.instance else position(window, device, identity.model)
    return Diagnosis(device, identity, bottleneck, tuple(matches), unknown, numbers, is_down, shares, room, of_roof)
