"""How long the CPU of a rank is busy with a step, from when it queued events and when the GPU passed them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from gpu_exporter.training.recorder import cpu_seconds

# Eight layers, each with a wait for a collective. In each, the CPU is busy for 10 ms.
LAYERS, LAYER = 8, 0.010
# To queue an event, and that while the queue is full.
FREE, FULL = 2e-6, 40e-6

Moment = tuple[float, float]


def launch_bound(lead: float) -> list[Moment]:
    """The other ranks are late by `lead`, so the GPU passes the end of each wait so long after it was queued.

    After the last one, the GPU has little to do.
    """
    waits = [(layer * LAYER, layer * LAYER + lead) for layer in range(1, LAYERS + 1)]
    end = LAYERS * LAYER + LAYER / 10
    return [(0.0, max(lead - LAYER / 10, 0.0)), *waits, (end, max(end, LAYERS * LAYER + lead))]


def waits_at_once(at_layer: int, seconds: float) -> list[Moment]:
    """The CPU waits until the GPU has passed a wait of so many seconds, then both go on."""
    moments: list[Moment] = []
    late = 0.0
    for layer in range(LAYERS + 1):
        moments.append((layer * LAYER + late, layer * LAYER + late + (seconds if layer == at_layer else 0.0)))
        late += seconds if layer == at_layer else 0.0
    return moments


def lead_grows(work: float) -> list[Moment]:
    """The GPU needs `work` for each layer; after the last one, the CPU waits for it."""
    moments = [(layer * LAYER, layer * work) for layer in range(LAYERS + 1)]
    return [*moments, (LAYERS * work, LAYERS * work)]


@pytest.mark.parametrize(
    ("moments", "queued_in", "busy"),
    [
        pytest.param(launch_bound(0.0), FREE, LAYERS * LAYER, id="the last rank of a launch-bound job"),
        pytest.param(launch_bound(0.005), FREE, LAYERS * LAYER, id="half a layer ahead"),
        pytest.param(launch_bound(0.050), FREE, LAYERS * LAYER, id="five layers ahead"),
        pytest.param(launch_bound(0.050), FULL, 0.0, id="as far ahead as the queue allows"),
        pytest.param(lead_grows(0.03), FREE, LAYERS * LAYER, id="a busy GPU, and a loss that is read at the end"),
        pytest.param(waits_at_once(3, 0.1), FREE, LAYERS * LAYER, id="a straggler, and a loss that is read"),
        pytest.param([(0.0, 0.0), (0.1, 0.1), (0.2, 0.2)], FREE, 0.2, id="its own loader is late"),
    ],
)
def test_time_of_the_cpu(moments: Sequence[Moment], queued_in: float, busy: float) -> None:
    events = [(SimpleNamespace(queued_at=queued, queued_in=queued_in), passed) for queued, passed in moments]
    assert cpu_seconds(events) == pytest.approx(busy, abs=LAYER)
