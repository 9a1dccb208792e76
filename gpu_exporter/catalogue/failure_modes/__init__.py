"""The failure-mode catalogue: one file a domain, one entry a mode, in triage order."""

from __future__ import annotations

from gpu_exporter.catalogue.failure_modes import bottleneck, cost, distributed, health
from gpu_exporter.catalogue.failure_modes.mode import FailureMode

MODES: tuple[FailureMode, ...] = (*health.MODES, *distributed.MODES, *bottleneck.MODES, *cost.MODES)
