"""Classes, failure modes and time shares blame the same causes."""

from __future__ import annotations

from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.causes import COLOURS, SHARES, WORDS, Cause
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain
from gpu_exporter.catalogue.time_shares import TIME_SHARES


def test_each_class_but_the_default_has_a_cause_with_a_share() -> None:
    *others, default = BOTTLENECKS
    assert {bottleneck.cause for bottleneck in others} <= set(SHARES)
    assert (default.name, default.cause) == ("mixed", None)


def test_each_failure_mode_has_a_cause() -> None:
    of_faults = (Domain.HEALTH, Domain.NETWORK, Domain.REMEDIATION)
    wrong = [mode.name for mode in MODES if mode.cause is Cause.FAULT and mode.domain not in of_faults]
    assert not wrong, f"{wrong} blame a fault of the hardware; fix: give them their `cause`"
    wrong = [
        mode.name for mode in MODES if mode.domain is Domain.HEALTH and mode.cause not in (Cause.FAULT, Cause.THROTTLED)
    ]
    assert not wrong, f"{wrong} are modes of health; fix: leave out `cause`, or use THROTTLED"


def test_each_cause_is_blamed() -> None:
    blamed = {mode.cause for mode in MODES} | {bottleneck.cause for bottleneck in BOTTLENECKS}
    assert set(Cause) - blamed == {Cause.NO_PROCESS}  # a GPU that nobody uses is no failure


def test_each_share_is_computed_and_has_words_and_a_colour() -> None:
    assert set(TIME_SHARES) == set(SHARES) == set(COLOURS)
    assert set(WORDS) == set(Cause)
    assert [cause for cause in SHARES if not cause.is_loss] == [Cause.USEFUL]
