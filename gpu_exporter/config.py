"""The settings: each is one field of `Config`, and so a flag, an environment variable and a key of the YAML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, overload

import yaml

from gpu_exporter.inputs import (
    Address,
    Devices,
    Hostengine,
    address,
    boolean,
    choice,
    count,
    device_list,
    duration,
    hostengine,
    interval,
    metric_set,
    names,
    nearest,
    patterns,
    positive,
    schema,
    speed,
    whole,
)
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import MetricSet, Schema
from gpu_exporter.model.source_kind import AUTO, SOURCE_KINDS

# Kubernetes injects GPU_EXPORTER_PORT, GPU_EXPORTER_SERVICE_HOST … for a service named gpu-exporter: no setting may have
# such a name, and unknown variables are not an error.
ENV_PREFIX = "GPU_EXPORTER_"

T = TypeVar("T")


# For mypy: the annotation of a setting is the type that its parser returns, or None if there is no default.
@overload
def _setting(help: str, parse: Callable[[str], T], default: str, flag: str = "", *, many: bool = False) -> T: ...


@overload
def _setting(help: str, parse: Callable[[str], T], *, flag: str = "", many: bool = False) -> T | None: ...


def _setting(
    help: str, parse: Callable[[str], Any], default: str | None = None, flag: str = "", *, many: bool = False
) -> Any:
    value, problem = None, ""
    try:
        value = parse(default) if default is not None else None
    except ValueError as error:
        problem = f"its parser refuses its default: {error}"
    metadata = {"help": help, "parse": parse, "default": default, "flag": flag, "many": many, "problem": problem}
    return field(default=value, metadata=metadata)


# fmt: off
@dataclass(frozen=True, slots=True)
class Config:
    """Every setting with its default. Seconds, paths and numbers, already checked."""

    address: Address          = _setting("Where to listen.", address, ":9400")
    interval: float           = _setting("Time between two collections; below 1s, what only pages show is read once a second, or as often as pages are asked for.", interval, "1s")
    high_resolution: bool     = _setting("Whether to read profiling counters ten times a second, for histograms of what is shorter than a tick; costs about half a per cent of a core for each GPU.", boolean, "false")
    gauge_window: float       = _setting("What the profiling gauges are the mean over.", duration, "15s")
    source: str               = _setting(f"Where to read from: {', '.join(f'{kind.name} ({kind.description})' for kind in SOURCE_KINDS.values())}.", choice(*SOURCE_KINDS), AUTO.name)
    dcgm_hostengine: Hostengine = _setting("DCGM's host engine: host:port, or a Unix socket as path or unix:///path; left out, it runs within the exporter.", hostengine, "")
    dcgm_bindings: Path | None = _setting("The directory of DCGM's Python bindings (else: where its packages put them).", Path)
    recording: Path | None    = _setting("The recording to replay.", Path)
    speed: float              = _setting("How fast to replay.", speed, "1")
    loop: bool                = _setting("Whether to replay over and over.", boolean, "true")
    nodes: int                = _setting("Nodes to simulate; several are served below /nodes.", positive, "1")
    gpus: int                 = _setting("GPUs to simulate in each node.", positive, "8")
    seed: int                 = _setting("The same seed simulates the same nodes.", whole, "1")
    faults: str               = _setting("What goes wrong in the simulation, as docs/simulated.md shows.", str, "")
    inject: str               = _setting("Failure modes to simulate, such as GpuMemoryBound:node-000/1, as docs/simulated.md shows.", str, "", many=True)
    devices: Devices          = _setting("Which GPUs: f (all; of those in MIG mode the instances), g (GPUs), i (instances), or some, such as g:0,2-3 or g:UUID.", device_list, "f")
    switch_devices: Devices   = _setting("Which NVSwitches (g) and NVLinks of them (i), as --devices; from DCGM.", device_list, "f")
    cpu_devices: Devices      = _setting("Which Grace CPUs (g) and cores (i), as --devices; from DCGM.", device_list, "f")
    metrics: MetricSet        = _setting("Which metrics to expose, default or full.", metric_set, "default")
    schema: Schema            = _setting("How DCGM's metrics are named: as dcgm-exporter up to 4.8.2 does (classic), or as from 4.9 on, in base units (si).", schema, "classic")
    collectors: Path | None   = _setting("dcgm-exporter's CSV file of fields: the classic families to expose, with TYPE and HELP (also -f).", Path)
    processes: bool           = _setting("Whether to expose memory and SM share of each process on a GPU, and whose it is.", boolean, "false")
    xid_count_window: float   = _setting("What DCGM_EXP_XID_ERRORS_COUNT counts over, where it is exposed.", duration, "5m")
    clock_events_count_window: float = _setting("What DCGM_EXP_CLOCK_EVENTS_COUNT counts over, where it is exposed.", duration, "5m")
    procfs: Path              = _setting("Where processes are looked up; must be the host's (hostPID, or mounted), except with NVIDIA's open kernel modules.", Path, "/proc")
    kernel_log: str           = _setting("The kernel log, for Xids: /dev/kmsg, a kern.log or journal as a file, or none.", str, "/dev/kmsg")
    state_dir: Path | None    = _setting("A directory in which Xids are kept over a restart.", Path)
    kubernetes: bool          = _setting("Whether to ask kubelet which pod has which GPU, as docs/attribution.md shows.", boolean, "false")
    pod_resources_socket: Path = _setting("kubelet's pod-resources socket.", Path, "/var/lib/kubelet/pod-resources/kubelet.sock")
    nvidia_resource_names: tuple[str, ...] = _setting("Resources that are NVIDIA's under other names, such as example.com/a100; all below nvidia.com/ are.", names, "")
    kubernetes_pods: bool     = _setting("Whether to ask the API server for this node's pods: workload, rank, UID.", boolean, "false")
    kubernetes_pod_labels: tuple[re.Pattern[str], ...] = _setting("Labels of pods to show on gpu_pod_info as label_*, as regular expressions of whole names; asks for pods, too.", patterns, "")
    kubernetes_dra: bool      = _setting("Whether to ask the API server for ResourceSlices, for pods that have GPUs by resource claims.", boolean, "false")
    kubernetes_service_account: Path = _setting("Where token and CA for the API server are.", Path, "/var/run/secrets/kubernetes.io/serviceaccount")
    hpc_job_mapping_dir: Path | None = _setting("Directory of job files, named by GPU, as dcgm-exporter has it for Slurm.", Path)
    expected_gpus: int | None = _setting("GPUs that ought to be there (else: bound to the driver, or most seen).", count)
    xid_overrides: Path | None = _setting("YAML or CSV file that changes rows of the Xid table.", Path)
    node_name: str            = _setting("The node's name, for the Hostname label (else: of a remote host engine, NODE_NAME of the environment, or the host's own).", str, "")
    no_hostname: bool         = _setting("Whether to leave the Hostname label out.", boolean, "false")
    replace_blanks_in_model_name: bool = _setting("Whether the modelName label has dashes for blanks.", boolean, "false")
    log_format: str           = _setting("How to log: text, or json with one object a line.", choice("text", "json"), "text")
    log_level: str            = _setting("How much to log.", choice("debug", "info", "warning", "error"), "info")
    token_file: Path | None   = _setting("Where to write a token with which this machine's users of `release` and `resume` may do so.", Path)
    web_config_file: Path | None = _setting("TLS, passwords and headers, as in Prometheus' exporter-toolkit.", Path, flag="web.config.file")
    web_systemd_socket: bool     = _setting("Whether to serve on the socket that systemd passes, instead of --address.", boolean, "false")
    web_enable_lifecycle: bool   = _setting("Whether POST /-/quit, /-/reload, /-/release and /-/resume do anything.", boolean, "false", "web.enable-lifecycle")
# fmt: on


def flag(setting: Field[Any]) -> str:
    """Return a setting's flag without the leading dashes. Only flags that other exporters share have dots."""
    return setting.metadata["flag"] or setting.name.replace("_", "-")


def check(settings: Iterable[Field[Any]]) -> None:
    """Raise ValueError, with the fix, for the first faulty setting."""
    names = {"config": "the YAML file"}
    for setting in settings:
        other = names.setdefault(flag(setting), setting.name)
        problem = setting.metadata["problem"]
        if other != setting.name:
            problem = f"its flag --{flag(setting)} is that of {other}, too: give it another"
        if problem:
            raise ValueError(f"config.py: {setting.name}: {problem}")


check(fields(Config))


def read_file(path: Path) -> dict[str, str]:
    """Return the settings of a YAML file as text, after validation. Raises GpuExporterError."""
    try:
        with path.open(encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError) as error:
        raise GpuExporterError(f"config {path}: {getattr(error, 'strerror', None) or error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise GpuExporterError(f"config {path}: not YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise GpuExporterError(f"config {path}: must be a mapping of settings to values")
    parsers = {setting.name: setting.metadata["parse"] for setting in fields(Config)}
    settings = {}
    for key, value in content.items():
        name = re.sub("[-.]", "_", str(key))
        if name not in parsers:
            raise GpuExporterError(f"config {path}: unknown key {key!r}{nearest(name, parsers)}")
        if isinstance(value, dict | list) or value is None:
            raise GpuExporterError(f"config {path}: {key} needs one value, not {value!r}")
        try:
            parsers[name](str(value))
        except ValueError as error:
            raise GpuExporterError(f"config {path}: {key}: {error}") from error
        settings[name] = str(value)
    return settings
