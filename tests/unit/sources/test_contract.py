"""The contract of every source. A new source without hardware is tested as soon as it has a name.

A source of real GPUs needs an entry in FAKES. `tests/dcgm/test_contract.py` tests DCGM with its own fake.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.catalogue.metrics import NON_GPU_ENTITIES, selected
from gpu_exporter.config import Config
from gpu_exporter.model.gpu import Owner, Sample
from gpu_exporter.model.metric import MetricSet, Pace
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.source import Source
from gpu_exporter.model.source_kind import AUTO, DCGM, SOURCE_KINDS
from gpu_exporter.pipeline.pages import Variant
from gpu_exporter.pipeline.renderer import Renderer, source_labels
from gpu_exporter.sources.auto import AutoSource
from gpu_exporter.sources.choice import make_sources
from gpu_exporter.sources.subset import Subset
from tests.support.fakes.driver import FakeDriver

FULL = selected(MetricSet.FULL)
# Settings that a source needs besides its name.
SETTINGS: Mapping[str, dict[str, Any]] = {"replay": {"recording": Path("h200_x2_ddp")}}
# Functions that make fakes in a directory and return the environment for a source of real GPUs.
FAKES: Mapping[str, Callable[[Path], Mapping[str, str]]] = {
    "nvml": lambda directory: FakeDriver(directory, 2).environment
}
TESTED_ELSEWHERE = {AUTO.name, DCGM.name}
WITHOUT_HARDWARE = [kind.name for kind in SOURCE_KINDS.values() if not kind.live]


def check_source(name: str) -> None:
    """Use a source as the exporter does, from `open` to `close`, and twice: it also reconnects."""
    for source in make_sources(Config(source=name, **SETTINGS.get(name, {}))).values():
        for _ in range(2):
            samples = samples_of(source)
            check_labels(source, samples)
            source.close()
        source.close()


def samples_of(source: Source) -> list[Sample]:
    """Open the source, and return the samples of every GPU and of other devices."""
    source.open()
    count, expected = source.count(), source.expected()
    assert count > 0, f"{source.name} has no GPUs; fix: give it some in SETTINGS or FAKES of {__name__}"
    assert expected is None or expected >= 0, f"expected() is {expected}; fix: return a number of GPUs, or None"
    assert source.reload_needed() in (True, False, None), "fix: return True, False or None from reload_needed()"
    samples: list[Sample] = []
    uuids = set()
    for index in range(count):
        device = source.attach(index, FULL)
        gpu = device.gpu
        uuids.add(gpu.uuid)
        assert gpu.index == index, f"attach({index}) returns GPU {gpu.index}; fix: return the GPU of that index"
        reading = device.read(frozenset(Pace))
        assert reading.values, f"GPU {index} has no values; fix: read the metrics that attach() is given"
        for series, value in reading.values.items():
            metric = series.metric
            assert metric in FULL, f"{metric} was not asked for; fix: read only the metrics that attach() is given"
            assert series.gpu == gpu, f"{metric} is of {series.gpu}; fix: make each Series of the GPU that is read"
            assert metric.low <= value <= metric.high, f"{metric} is {value}; fix: correct its scale"
        answered = {series.metric for series in (*reading.values, *reading.failed)}
        both = sorted(map(str, answered & reading.unsupported.keys()))
        assert not both, f"{both} have values and are unsupported; fix: leave them out of Reading.unsupported"
        assert list(device.events()) == list(device.events()) == [], "fix: return only new XIDs from events()"
        owners = source.owners(gpu)
        assert all(isinstance(owner, Owner) for owner in owners), "fix: return Owner objects from owners()"
        samples += [Sample(series, value) for series, value in reading.values.items()]
        device.close()
        device.close()
    assert "" not in uuids, "a GPU has no UUID; fix: set Gpu.uuid in attach()"
    assert len(uuids) == count, "two GPUs have one UUID; fix: set Gpu.uuid in attach()"
    others = source.non_gpu_samples()
    wrong = [str(other.series.metric) for other in others if other.series.metric.entity not in NON_GPU_ENTITIES]
    assert not wrong, f"{wrong} belong to GPUs; fix: return them from Device.read, not from non_gpu_samples()"
    return [*samples, *others]


def check_labels(source: Source, samples: list[Sample]) -> None:
    """Check that every series of a source that is not live, and no other, has the label `source`."""
    page = Renderer("node-1", source_labels(source)).render(Snapshot(0.0, source.name, tuple(samples)))
    lines = [line for line in page.body(Variant(False, False)).decode().splitlines() if not line.startswith("#")]
    labelled = [line for line in lines if f'source="{source.name}"' in line]

    assert lines
    assert labelled == ([] if source.live else lines)


@pytest.mark.parametrize("name", WITHOUT_HARDWARE)
def test_source_without_hardware(name: str) -> None:
    """In this process."""
    check_source(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAKES)
def test_source_on_a_fake(name: str, tmp_path: Path) -> None:
    """In a process of its own, because the driver's library is loaded once."""
    code = f"from {__name__} import check_source; check_source({name!r})"
    env = {**os.environ, **FAKES[name](tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr


def test_every_source_is_tested() -> None:
    """No source is skipped for want of hardware."""
    untested = sorted(SOURCE_KINDS.keys() - {*WITHOUT_HARDWARE, *FAKES, *TESTED_ELSEWHERE})

    assert untested == [], f"untested: {untested}; fix: add them to FAKES of tests/unit/sources/test_contract.py"


# What a source around another leaves at its default, because the one inside does not matter.
DEFAULTS: Mapping[type[Source], frozenset[str]] = {
    AutoSource: frozenset({"dead", "expected", "gil_lock", "gpu_index", "identities", "instant", "reports_xids"})
    | {"through_hostengine"},  # NVML says whether a GPU answers
    Subset: frozenset({"bus", "gil_lock", "identities", "instant"}),
}


@pytest.mark.parametrize("around", DEFAULTS)
def test_a_source_around_another_hides_no_ability(around: type[Source]) -> None:
    """A method that `Source` gets is forwarded, or is left at its default on purpose."""
    unforwarded = {name for name in vars(Source) if not name.startswith("_")} - vars(around).keys()

    assert unforwarded == DEFAULTS[around], f"fix: forward them in {around.__name__}, or name them in DEFAULTS"
