"""Of a straggler, the cause on its host is named; its victims have none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import host, profiles
from gpu_exporter.catalogue.failure_modes.mode import Ramp, Values
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.gather import RecordedScrapes
from gpu_exporter.diagnosis.window import seen

RANKS, STRAGGLER, SECONDS = 4, 2, 40
HOST = frozenset(mode.name for mode in host.MODES)
INJECTED: Mapping[str, Values] = {mode.name: mode.inject.values for mode in host.MODES}
OF_HOST = frozenset(row for values in INJECTED.values() for row in values if row.name.startswith("gpu_host_"))
# What a rank does that only waits in a collective.
SPINNING: Values = {m.HOST_LAUNCH_CPU: Ramp(0, 1.0), m.HOST_LAUNCH_WAIT: Ramp(0, 0.0), m.HOST_WORKERS_ACTIVE: 4.0}


def recording(path: Path, cause: str) -> Path:
    """Write a job in which one rank is starved, with the host of a cause."""
    header = {"format": "gpu-exporter-recording", "version": 1, "interval_seconds": 1.0, "driver": "580"}
    gpus = [{"gpu": gpu, "UUID": f"GPU-{gpu}", "modelName": "NVIDIA H200"} for gpu in range(RANKS)]
    lines = [{**header, "gpus": gpus}]
    for second in range(SECONDS):
        for gpu in range(RANKS):
            of_host = {row: INJECTED[cause][row] for row in INJECTED[cause] if row in OF_HOST}
            load = {**profiles.STARVED, **of_host} if gpu == STRAGGLER else {**profiles.OF_STARVED, **SPINNING}
            samples = {row.key: _at(value, second) for row, value in {**profiles.BOARD, **load}.items()}
            lines.append({"t": 1e9 + second, "gpu": gpu, "samples": samples})
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def _at(value: object, second: float) -> float:
    return value.start + value.per_second * second if isinstance(value, Ramp) else float(value)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("cause", sorted(HOST - {"GpuSharedMemoryFull", "GpuLaunchThreadSaturated"}))
def test_the_cause_of_a_straggler(tmp_path: Path, cause: str) -> None:
    """CPU limit, neighbours, storage, loader, or NUMA node."""
    path = recording(tmp_path / "job.jsonl", cause)

    found = {
        diagnosis.identity.gpu: {match.mode.name for match in diagnosis.matches}
        for diagnosis in diagnose(seen(RecordedScrapes(path), {}, job="job"))
    }

    assert "GpuStragglerStarved" in found[str(STRAGGLER)]
    assert found[str(STRAGGLER)] & HOST == {cause}
    assert [found[str(gpu)] & HOST for gpu in range(RANKS) if gpu != STRAGGLER] == [set()] * (RANKS - 1)
