"""Window of signals -> the bottleneck of each GPU and the failure modes that match, with the evidence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_exporter.catalogue.bottlenecks import Bottleneck, bottleneck_is, classify
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Scope
from gpu_exporter.catalogue.roofline import Headroom, Position, headroom, position
from gpu_exporter.catalogue.signals import UP
from gpu_exporter.catalogue.time_shares import time_shares
from gpu_exporter.conditions.evaluate import TermValues, evaluate, value
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import Over
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

    A mode matches as soon as its condition holds; only its alert waits. Modes that concern a whole fleet are left out.
    """
    return tuple(_diagnosis(window, device, identity, modes) for device, identity in window.devices.items())


def _diagnosis(window: Window, device: DeviceKey, identity: DeviceIdentity, modes: Sequence[FailureMode]) -> Diagnosis:
    matches, unknown = [], {}
    is_down = value(Over(UP), window, device) == 0
    for mode in modes:
        if mode.condition is None or mode.scope is Scope.FLEET or (is_down and mode.domain is not Domain.HEALTH):
            continue
        truth, because, missing = evaluate(mode.condition, window, device)
        if truth:
            matches.append(Match(mode, because))
        # The signal of an XID, which has extra labels, is missing until one occurs.
        elif truth is None and not all(signal.extra_labels for signal in mode.needs):
            unknown[mode.name] = missing
    bottleneck = None if is_down else classify(window, device)
    numbers = evaluate(bottleneck_is(bottleneck.name), window, device).because if bottleneck else {}
    shares, room = ({}, None) if is_down else (time_shares(window, device), headroom(window, device))
    place = None if is_down or device.instance else position(window, device, identity.model)
    return Diagnosis(device, identity, bottleneck, tuple(matches), unknown, numbers, is_down, shares, room, place)
