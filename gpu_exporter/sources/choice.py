"""Ways to read fields, behind one protocol (`model.Source`), and the choice among them.

Each is imported only when it is chosen: a server of real GPUs carries no simulation, and a replay no bindings.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_exporter.config import Config
from gpu_exporter.inputs import Hostengine
from gpu_exporter.model.errors import GpuExporterError, SourceLost
from gpu_exporter.model.source import Source
from gpu_exporter.sources.dcgm import places as dcgm_places
from gpu_exporter.sources.nvml import driver
from gpu_exporter.sources.subset import SomeOf

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from gpu_exporter.sources.dcgm.source import DcgmSource

PACKAGED = Path(__file__).parent / "recording" / "packaged"
OF_DCGM_ALONE = ("switch_devices", "cpu_devices")
OF_DCGM = ("dcgm_hostengine", "dcgm_bindings")
WITH_DCGM = ("auto", "dcgm")
OF_SIMULATION = ("nodes", "gpus", "seed", "faults", "inject")


def chosen(config: Config) -> Mapping[str, Source]:
    """The source that was asked for, of each node by name. None but NVML is taken unless asked for by name."""
    for name in OF_SIMULATION if config.source != "simulated" else ():
        if getattr(config, name) != getattr(Config(), name):
            raise GpuExporterError(
                f"--{name} needs --source simulated: simulated GPUs are never mistaken for real ones"
            )
    if config.recording is not None and config.source != "replay":
        raise GpuExporterError("--recording needs --source replay: a recording is never mistaken for GPUs")
    for name in OF_DCGM if config.source not in WITH_DCGM else ():
        if getattr(config, name) != getattr(Config(), name):
            raise GpuExporterError(f"--{name.replace('_', '-')} needs --source dcgm, or auto")
    found = _fleet(config) if config.source == "simulated" else _one(config)
    by_dcgm = all(source.name == "dcgm" for source in found.values())
    for name in OF_DCGM_ALONE if not by_dcgm else ():
        if getattr(config, name) != getattr(Config(), name):
            log.warning("--%s is ignored: NVSwitches and CPUs need --source dcgm", name.replace("_", "-"))
    wanted = config.devices
    if wanted.kind == "i" and wanted.chosen and not by_dcgm:
        raise GpuExporterError(
            "--devices i:…: numbers of GPU instances are DCGM's: needs --source dcgm; or use i alone"
        )
    if wanted.kind != "g" or not wanted.chosen:
        return found
    return {name: SomeOf(source, wanted.chosen) for name, source in found.items()}


def _one(config: Config) -> Mapping[str, Source]:
    makers: Mapping[str, Callable[[Config], Source]] = {"replay": _replay, "dcgm": dcgm, "nvml": _nvml}
    source = makers.get(config.source, _auto)(config)
    return {node_name(config, source.name, os.environ): source}


def node_name(config: Config, source: str, environ: Mapping[str, str]) -> str:
    """Whose GPUs these are, for the label: as dcgm-exporter has it, but for a host engine on this host.

    `NODE_NAME` is what manifests for Kubernetes set, since the host name of a pod is its own.
    """
    engine = config.dcgm_hostengine
    remote = source == "dcgm" and not engine.local and not config.kubernetes
    host = engine.address.rpartition(":")[0].strip("[]") if remote else ""
    return config.node_name or host or environ.get("NODE_NAME", "") or socket.gethostname()


def dcgm(config: Config) -> DcgmSource:
    """The GPUs of a host engine."""
    from gpu_exporter.sources.dcgm.source import DcgmSource
    from gpu_exporter.sources.dcgm.switches_and_cpus import Chosen

    wanted = config.devices
    return DcgmSource(
        config.dcgm_hostengine,
        config.dcgm_bindings,
        procfs=config.procfs,
        instances=wanted.chosen if wanted.kind == "i" else (),
        chosen=Chosen(config.switch_devices, config.cpu_devices),
    )


def only(config: Config) -> Source:
    """The source of the one node that there is."""
    (source,) = chosen(config).values()
    return source


def named(config: Config, name: str) -> Source:
    """A source by name, whatever `config` has for others; `replay:FILE` has a recording of its own."""
    kind, _, file = name.partition(":")
    if file and kind != "replay":
        raise GpuExporterError(f"{name}: only replay has a file after its name, such as replay:gpus.jsonl.gz")
    defaults = Config()
    own = replace(config, source=kind, recording=Path(file) if file else config.recording)
    if kind != "replay":
        own = replace(own, recording=None)
    others = (*(OF_SIMULATION if kind != "simulated" else ()), *(OF_DCGM if kind not in WITH_DCGM else ()))
    return only(replace(own, **{setting: getattr(defaults, setting) for setting in others}))


def _fleet(config: Config) -> Mapping[str, Source]:
    from gpu_exporter.sources.simulated.source import fleet
    from gpu_exporter.sources.simulated.workload import workloads

    if config.nodes > 1 and config.node_name:
        raise GpuExporterError("--node-name is of one node: simulated ones are called node-000 and so on, leave it out")
    known = workloads(sorted(PACKAGED.glob("*.jsonl.gz")))
    sources = fleet(config.nodes, config.gpus, config.seed, config.faults, known, inject=config.inject)
    return sources if not config.node_name else {config.node_name: sources["node-000"]}


def _nvml(config: Config) -> Source:
    return local_gpus(procfs=config.procfs)


def _auto(config: Config) -> Source:
    """NVML, and DCGM where there is one. Without the driver's library here, a host engine that was named."""
    from gpu_exporter.sources.auto import AutoSource

    if config.dcgm_hostengine != Hostengine() and not driver.there():
        return dcgm(config)
    named = str(config.dcgm_hostengine) if config.dcgm_hostengine != Hostengine() else ""
    wanted = named or config.dcgm_bindings is not None or dcgm_places.installed()
    return AutoSource(_nvml(config), partial(dcgm, config) if wanted else None, named)


def _replay(config: Config) -> Source:
    from gpu_exporter.sources.recording.format import load
    from gpu_exporter.sources.recording.replay import ReplaySource

    return ReplaySource(load(recording(config.recording)), speed=config.speed, loop=config.loop)


def recording(named: Path | None) -> Path:
    """The file that is meant: a file, or a packaged recording's name. Raises GpuExporterError naming those."""
    packaged = {path.name.removesuffix(".jsonl.gz"): path for path in sorted(PACKAGED.glob("*.jsonl.gz"))}
    if named is None:
        names = ", ".join(packaged)
        raise GpuExporterError(f"--source replay needs --recording FILE, or one of the packaged ones: {names}")
    found = packaged.get(str(named), named)
    return named if found is not named and named.exists() else found


def local_gpus(*, procfs: Path = Path("/proc"), gpus: Sequence[int] | None = None) -> Source:
    """The GPUs of this machine, or some. Raises SourceLost if the bindings are not what they should be."""
    try:
        from gpu_exporter.sources.nvml.some import SomeGpus
        from gpu_exporter.sources.nvml.source import NvmlSource
    except (ImportError, AttributeError, SyntaxError) as error:
        from gpu_exporter.model.finding import Level
        from gpu_exporter.sources.nvml.bindings import bindings

        found = bindings()
        if found.level is not Level.FAIL:
            raise
        raise SourceLost(f"{found.what}: {found.cure}") from error
    return NvmlSource(procfs=procfs) if gpus is None else SomeGpus(gpus, procfs=procfs)
