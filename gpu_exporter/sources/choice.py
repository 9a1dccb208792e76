"""The registry of sources: which factory makes the source that `--source` names.

A factory imports its source only when it is called: a server of real GPUs loads no simulation, and a replay no
bindings. Names, descriptions and whether a source is live are in `model/source_kind.py`.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpu_exporter.config import Config
from gpu_exporter.io.user_text import Hostengine, choice, nearest
from gpu_exporter.model.errors import SourceLost, WrongUsage
from gpu_exporter.model.source import Source
from gpu_exporter.model.source_kind import AUTO, DCGM, NVML, OF_SIMULATED, REPLAY, SIMULATED, SOURCE_KINDS
from gpu_exporter.sources.dcgm import places as dcgm_places
from gpu_exporter.sources.nvml import driver
from gpu_exporter.sources.subset import Subset

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from gpu_exporter.sources.dcgm.source import DcgmSource

PACKAGED = Path(__file__).parent / "recording" / "packaged"
DCGM_ENTITIES = ("switch_devices", "cpu_devices")

# Makes a source; a simulation makes one for each of its nodes, by the node's name.
Factory = Callable[[Config], Source | Mapping[str, Source]]


class Reserved(NamedTuple):
    """Settings that only these sources read. To set one for another source is an error that ends with `needs`."""

    settings: tuple[str, ...]
    sources: tuple[str, ...]
    needs: str


RESERVED = (
    Reserved(
        ("nodes", "gpus", "seed", "faults", "inject"),
        (SIMULATED.name,),
        "needs --source simulated: simulated GPUs are never mistaken for real ones",
    ),
    Reserved(("recording",), (REPLAY.name,), "needs --source replay: a recording is never mistaken for GPUs"),
    Reserved(("dcgm_hostengine", "dcgm_bindings"), (AUTO.name, DCGM.name), "needs --source dcgm, or auto"),
)


def make_sources(config: Config) -> Mapping[str, Source]:
    """Return the source that `--source` names, by the node's name; narrowed to `--devices` if that is set.

    Raises GpuExporterError for a source that does not exist, and for settings that it does not read.
    """
    sources = _make_all(config)
    reads_dcgm = all(source.name == DCGM.name for source in sources.values())
    for setting in DCGM_ENTITIES if not reads_dcgm else ():
        if _is_set(config, setting):
            log.warning("--%s is ignored: NVSwitches and CPUs need --source dcgm", setting.replace("_", "-"))
    devices = config.devices
    if devices.kind == "i" and devices.chosen and not reads_dcgm:
        raise WrongUsage("--devices i:…: numbers of GPU instances are DCGM's: needs --source dcgm; or use i alone")
    if devices.kind != "g" or not devices.chosen:
        return sources
    return {node: Subset(source, devices.chosen) for node, source in sources.items()}


def _make_all(config: Config) -> Mapping[str, Source]:
    try:
        choice(*SOURCE_KINDS)(config.source)
    except ValueError as error:
        raise WrongUsage(f"--source: {error}") from error
    refuse_unread(config)
    made = FACTORIES[config.source](config)
    return made if isinstance(made, Mapping) else {node_name(config, made.name, os.environ): made}


def refuse_unread(config: Config) -> None:
    """Raise GpuExporterError for a setting that the source does not read."""
    for reserved in RESERVED:
        for setting in reserved.settings if config.source not in reserved.sources else ():
            if _is_set(config, setting):
                raise WrongUsage(f"--{setting.replace('_', '-')} {reserved.needs}")


def _is_set(config: Config, setting: str) -> bool:
    return bool(getattr(config, setting) != getattr(Config(), setting))


def origin(source: Source) -> str:
    """Return the name of the source from which the values come: of a replay, the one that was recorded."""
    if source.name != REPLAY.name:
        return source.name
    return SIMULATED.name if source.description == OF_SIMULATED else REPLAY.name


def node_name(config: Config, source: str, environ: Mapping[str, str]) -> str:
    """Return the node of these GPUs, for the `Hostname` label: as dcgm-exporter has it, but for a local host engine.

    Kubernetes manifests set `NODE_NAME`, because the host name of a pod is the pod's own.
    """
    remote = is_remote(config, source)
    host = config.dcgm_hostengine.address.rpartition(":")[0].strip("[]") if remote else ""
    return config.node_name or host or environ.get("NODE_NAME", "") or socket.gethostname()


def without_missing_dcgm(config: Config) -> Config:
    """Return the settings with NVML instead of a host engine that cannot be asked without DCGM's bindings, and warn.

    Only for a host engine of this machine that dcgm-exporter's flags name: their reader expects metrics, not an error.
    Without the driver's library, nothing else can be read, and the error about the bindings is the right one.
    """
    here = config.dcgm_hostengine.local or config.kubernetes
    if not here or config.dcgm_bindings is not None or dcgm_places.installed() or not driver.library_exists():
        return config
    log.warning(
        "the %s (-r, DCGM_REMOTE_HOSTENGINE_INFO) is not used, because DCGM's Python bindings are not installed: the"
        " GPUs of this machine are read through NVML; to use DCGM, install datacenter-gpu-manager-4-core, or name the"
        " bindings with --dcgm-bindings",
        config.dcgm_hostengine,
    )
    return replace(config, source=AUTO.name, dcgm_hostengine=Hostengine())


def is_remote(config: Config, source: str) -> bool:
    """Return whether these are GPUs of another machine: in Kubernetes, a host engine is on the node of its exporter."""
    return source == DCGM.name and not config.dcgm_hostengine.local and not config.kubernetes


def is_local(config: Config, source: Source) -> bool:
    """Return whether a source reads the GPUs of this machine, not a recording, simulated GPUs or another machine's."""
    return source.live and not is_remote(config, source.name)


def make_source(config: Config) -> Source:
    """Return the source of the only node. Raises GpuExporterError as `make_sources` does."""
    (source,) = make_sources(config).values()
    return source


def source_by_name(config: Config, name: str) -> Source:
    """A source by name, without the settings of `config` that are reserved for others. `replay:FILE` has its recording.

    Raises GpuExporterError as `make_sources` does.
    """
    kind, _, file = name.partition(":")
    if file and kind != REPLAY.name:
        raise WrongUsage(f"{name}: only replay has a file after its name, such as replay:gpus.jsonl.gz")
    unread = [setting for reserved in RESERVED if kind not in reserved.sources for setting in reserved.settings]
    of_kind = replace(config, source=kind, recording=Path(file) if file else config.recording)
    return make_source(replace(of_kind, **{setting: getattr(Config(), setting) for setting in unread}))


# --- factories --------------------------------------------------------------------------------------------------------


def _auto(config: Config) -> Source:
    """NVML, and DCGM where it is installed. Without the driver's library here, the host engine that is named."""
    from gpu_exporter.sources.auto import AutoSource

    if config.dcgm_hostengine != Hostengine() and not driver.library_exists():
        return _dcgm(config)
    hostengine = str(config.dcgm_hostengine) if config.dcgm_hostengine != Hostengine() else ""
    with_dcgm = hostengine or config.dcgm_bindings is not None or dcgm_places.installed()
    return AutoSource(_nvml(config), partial(_dcgm, config) if with_dcgm else None, hostengine)


def _nvml(config: Config) -> Source:
    return local_gpus(procfs=config.procfs, sysfs=config.sysfs)


def _dcgm(config: Config) -> DcgmSource:
    from gpu_exporter.sources.dcgm.source import DcgmSource
    from gpu_exporter.sources.dcgm.switches_and_cpus import ChosenDevices

    devices = config.devices
    return DcgmSource(
        config.dcgm_hostengine,
        config.dcgm_bindings,
        sysfs=config.sysfs,
        procfs=config.procfs,
        instances=devices.chosen if devices.kind == "i" else (),
        chosen=ChosenDevices(config.switch_devices, config.cpu_devices),
    )


def _replay(config: Config) -> Source:
    from gpu_exporter.sources.recording.format import load
    from gpu_exporter.sources.recording.replay import ReplaySource

    return ReplaySource(load(recording(config.recording)), speed=config.speed, loop=config.loop)


def _simulated(config: Config) -> Mapping[str, Source]:
    from gpu_exporter.sources.simulated.source import FleetSettings, fleet
    from gpu_exporter.sources.simulated.workload import workloads

    if config.nodes > 1 and config.node_name:
        raise WrongUsage("--node-name names one node, but several are simulated (node-000 and so on): leave it out")
    settings = FleetSettings(config.nodes, config.gpus, config.seed, config.faults, config.inject)
    sources = fleet(settings, workloads(sorted(PACKAGED.glob("*.jsonl.gz"))))
    return sources if not config.node_name else {config.node_name: sources["node-000"]}


def check_factories(
    factories: Mapping[str, Factory], kinds: Collection[str] = tuple(SOURCE_KINDS)
) -> Mapping[str, Factory]:
    """Return the factories, if there is one for each kind of source. Raises TypeError naming the fix."""
    for name in kinds:
        if name not in factories:
            raise TypeError(f"source {name} has no factory: add one to FACTORIES in gpu_exporter/sources/choice.py")
    for name in factories:
        if name not in kinds:
            raise TypeError(
                f"--source can't choose {name}: add it to SOURCE_KINDS in gpu_exporter/model/source_kind.py"
            )
    return factories


FACTORIES = check_factories(
    {
        AUTO.name: _auto,
        NVML.name: _nvml,
        DCGM.name: _dcgm,
        REPLAY.name: _replay,
        SIMULATED.name: _simulated,
    }
)


def recording(named: Path | None) -> Path:
    """Return the path of a recording: a file, or a packaged one by its name. Raises GpuExporterError naming those."""
    packaged = {path.name.removesuffix(".jsonl.gz"): path for path in sorted(PACKAGED.glob("*.jsonl.gz"))}
    names = ", ".join(packaged)
    if named is None:
        raise WrongUsage(f"--source replay needs --recording FILE, or one of the packaged ones: {names}")
    try:
        named.stat()
    except FileNotFoundError as error:
        if str(named) in packaged:
            return packaged[str(named)]
        hint = nearest(str(named), packaged)
        raise WrongUsage(
            f"recording {named}: no such file; use a file or one of the packaged recordings: {names}{hint}"
        ) from error
    except OSError:  # reading the file reports it
        pass
    return named


def local_gpus(
    *, procfs: Path = Path("/proc"), sysfs: Path = Path("/sys"), gpus: Sequence[int | str] | None = None
) -> Source:
    """Return the GPUs of this machine through NVML: all, or those of these indices or UUIDs.

    Raises SourceLost if the module pynvml is missing, too old or not NVIDIA's.
    """
    try:
        from gpu_exporter.sources.nvml.source import NvmlSource
    except (ImportError, AttributeError, SyntaxError) as error:
        from gpu_exporter.model.finding import FindingLevel
        from gpu_exporter.sources.nvml.bindings import bindings

        finding = bindings()
        if finding.level is not FindingLevel.FAIL:
            raise
        raise SourceLost(finding.what, fix=finding.cure) from error
    source = NvmlSource(sysfs, procfs)
    return source if gpus is None else Subset(source, gpus, setting="gpus")
