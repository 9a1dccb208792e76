"""Ways to read fields, behind one protocol (`model.Source`), and the choice among them.

Each is imported only when it is chosen: a server of real GPUs carries no simulation, and a replay no bindings.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_exporter.config import Config
from gpu_exporter.model import GpuExporterError, Source, SourceLost

if TYPE_CHECKING:
    from gpu_exporter.sources.dcgm import DcgmSource

PACKAGED = Path(__file__).parent.parent / "recordings"
OF_DCGM = ("dcgm_hostengine", "dcgm_bindings")
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
    for name in OF_DCGM if config.source != "dcgm" else ():
        if getattr(config, name) != getattr(Config(), name):
            raise GpuExporterError(f"--{name.replace('_', '-')} needs --source dcgm")
    if config.source == "simulated":
        return _fleet(config)
    return {config.node_name or socket.gethostname(): _of_one_node(config)}


def _of_one_node(config: Config) -> Source:
    if config.source == "replay":
        return _replay(config)
    if config.source == "dcgm":
        return dcgm(config)
    return local_gpus(procfs=config.procfs)


def dcgm(config: Config) -> DcgmSource:
    """The GPUs of a host engine."""
    from gpu_exporter.sources.dcgm import DcgmSource

    return DcgmSource(config.dcgm_hostengine, config.dcgm_bindings, procfs=config.procfs)


def only(config: Config) -> Source:
    """The source of the one node that there is."""
    (source,) = chosen(config).values()
    return source


def _fleet(config: Config) -> Mapping[str, Source]:
    from gpu_exporter.sources.simulated import fleet
    from gpu_exporter.sources.simulated.workload import workloads

    if config.nodes > 1 and config.node_name:
        raise GpuExporterError("--node-name is of one node: simulated ones are called node-000 and so on, leave it out")
    known = workloads(sorted(PACKAGED.glob("*.jsonl.gz")))
    sources = fleet(config.nodes, config.gpus, config.seed, config.faults, known, inject=config.inject)
    return sources if not config.node_name else {config.node_name: sources["node-000"]}


def _replay(config: Config) -> Source:
    from gpu_exporter.recording import load
    from gpu_exporter.sources.replay import ReplaySource

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
        from gpu_exporter.sources.nvml import NvmlSource
        from gpu_exporter.sources.nvml.some import SomeGpus
    except (ImportError, AttributeError, SyntaxError) as error:
        from gpu_exporter.finding import Level
        from gpu_exporter.machine import bindings

        found = bindings()
        if found.level is not Level.FAIL:
            raise
        raise SourceLost(f"{found.what}: {found.cure}") from error
    return NvmlSource(procfs=procfs) if gpus is None else SomeGpus(gpus, procfs=procfs)
