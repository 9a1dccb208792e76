"""The registry of sources: every kind has a factory that makes that kind, and mistakes name their fix."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.config import Config
from gpu_exporter.io.user_text import Devices
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.source_kind import SOURCE_KINDS, SourceKind
from gpu_exporter.sources.choice import FACTORIES, RESERVED, check_factories, make_source, make_sources, source_by_name
from tests.support.fakes.driver import FakeDriver

ROOT = Path(__file__).parents[3]
RECORDING = Path("h200_workloads")
CONFIGS: Mapping[str, dict[str, Any]] = {"replay": {"recording": RECORDING}}
# The name of a source on its samples, if it differs from the setting.
CHOSEN_AS = {"auto": "nvml"}


@pytest.mark.parametrize("kind", SOURCE_KINDS.values(), ids=list(SOURCE_KINDS))
def test_each_factory_makes_the_source_that_it_is_registered_for(kind: SourceKind) -> None:
    """Its name is a label and its description a warning: both are those of the table."""
    settings = CONFIGS.get(kind.name, {})
    (source,) = make_sources(Config(source=kind.name, **settings)).values()

    registered = SOURCE_KINDS[CHOSEN_AS.get(kind.name, kind.name)]
    assert SourceKind(source.name, source.description, source.live) == registered, (
        f"in {type(source).__module__}, take `name, description, live` from {registered.name.upper()}"
        " of gpu_exporter/model/source_kind.py"
    )
    assert source.live == kind.live
    source.close()


@pytest.mark.parametrize("kind", SOURCE_KINDS.values(), ids=list(SOURCE_KINDS))
def test_a_state_directory_without_effect(kind: SourceKind, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is not ignored silently."""
    settings = {**CONFIGS.get(kind.name, {}), "state_dir": tmp_path}
    for source in make_sources(
        Config(source=kind.name, nodes=2 if kind.name == "simulated" else 1, **settings)
    ).values():
        source.close()
    line = f"--state-dir is ignored: source {kind.name} has no GPUs of this machine"
    assert caplog.messages.count(line) == (not kind.live)


def test_the_choices_of_the_setting_are_the_kinds() -> None:
    parse = {setting.name: setting.metadata["parse"] for setting in fields(Config)}["source"]

    assert [parse(name) for name in SOURCE_KINDS] == list(FACTORIES)
    with pytest.raises(ValueError, match="'other' is not one of auto, nvml, dcgm, replay, simulated"):
        parse("other")


def test_an_unknown_source_is_an_error() -> None:
    """It never falls back to another one."""
    with pytest.raises(GpuExporterError, match=r"^--source: 'nmvl' is not one of auto, nvml, .*; did you mean nvml\?$"):
        make_sources(Config(source="nmvl"))


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (("auto", "new"), "source new has no factory: add one to FACTORIES in gpu_exporter/sources/choice.py"),
        ((), "--source can't choose auto: add it to SOURCE_KINDS in gpu_exporter/model/source_kind.py"),
    ],
    ids=["no factory", "not a choice"],
)
def test_a_faulty_entry_fails_with_the_fix(kinds: tuple[str, ...], message: str) -> None:
    """The module checks its own table when it is imported; the file to change exists."""
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        check_factories({"auto": FACTORIES["auto"]}, kinds)
    assert (ROOT / message.rpartition(" ")[2]).is_file()


def test_reserved_settings_and_sources_exist() -> None:
    assert {name for reserved in RESERVED for name in reserved.sources} <= SOURCE_KINDS.keys()
    assert {name for reserved in RESERVED for name in reserved.settings} <= {field.name for field in fields(Config)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nodes": 2}, "--nodes needs --source simulated: simulated GPUs are never mistaken for real ones"),
        ({"recording": RECORDING}, "--recording needs --source replay: a recording is never mistaken for GPUs"),
        ({"source": "nvml", "dcgm_bindings": Path("/x")}, "--dcgm-bindings needs --source dcgm, or auto"),
    ],
)
def test_settings_of_another_source_are_an_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(GpuExporterError, match=f"^{re.escape(message)}$"):
        make_sources(Config(**settings))


def test_a_named_source_ignores_the_settings_of_others() -> None:
    """As for `compare`, whose two sources share one set of options."""
    config = Config(source="simulated", nodes=2, recording=RECORDING)

    assert (source_by_name(config, "replay").name, source_by_name(config, "nvml").name) == ("replay", "nvml")
    assert source_by_name(Config(), "replay:h200_workloads").name == "replay"
    with pytest.raises(GpuExporterError, match="only replay has a file"):
        source_by_name(Config(), "nvml:file")


def test_only_chosen_gpus_are_read_for_a_library_call(tmp_path: Path) -> None:
    """In a process of its own, because the driver's library is loaded once; a missing GPU is named in the error."""
    code = (
        "from gpu_exporter.model.errors import SourceLost\n"
        "from gpu_exporter.sources.choice import local_gpus\n"
        "source = local_gpus(gpus=[2, 1]); source.open()\n"
        "print(source.count(), source.expected(), *(source.attach(n, ()).gpu.index for n in range(2)))\n"
        "source.close()\n"
        "try: local_gpus(gpus=[7]).open()\n"
        "except SourceLost as error: print(error)\n"
    )
    env = {**os.environ, **FakeDriver(tmp_path, 3).environment}
    output = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    counts, error = output.splitlines()

    assert counts == "2 2 2 1"
    assert error.startswith("gpus: there is no GPU 7: choose from 0 (GPU-")


def test_devices_narrow_the_source() -> None:
    source = make_source(Config(source="replay", recording=RECORDING))
    config = Config(source="replay", recording=RECORDING, devices=Devices("g", (0,)))
    (narrowed,) = make_sources(config).values()
    narrowed.open()

    assert source.count() >= narrowed.count() == 1
    assert narrowed.description == source.description
