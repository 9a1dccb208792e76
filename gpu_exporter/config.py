"""The settings: each is one field of `Config`, and so a flag, an environment variable and a key of the YAML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast, overload

from gpu_exporter.io.decoding import printable
from gpu_exporter.io.file_access import FileWorker, read
from gpu_exporter.io.user_text import (
    MAX_FILE_BYTES,
    Address,
    Devices,
    Hostengine,
    Network,
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
    networks,
    path_or_none,
    patterns,
    positive,
    reasons,
    schema,
    speed,
    web_url,
    whole,
)
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import MetricSet, Schema
from gpu_exporter.model.profile_reason import AUTOMATIC, ProfileReason
from gpu_exporter.model.source_kind import AUTO, SOURCE_KINDS

ENV_PREFIX = "GPU_EXPORTER_"
# Kubernetes injects variables such as GPU_EXPORTER_SERVICE_HOST and GPU_EXPORTER_PORT_9400_TCP for a Service named
# gpu-exporter, and GPU_EXPORTER_X_PORT for one named gpu-exporter-x. No setting may have such a name.
SERVICE_LINK = re.compile(
    rf"{ENV_PREFIX}(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
# An error names at most so many unknown keys of a file.
MOST_UNKNOWN = 20

T = TypeVar("T")


class SettingGroup(Enum):
    """The sections of `serve --help` and of docs/configuration.md, in this order: what most users need comes first."""

    COMMON = "Common"
    PODS = "Pods, jobs and node names"
    HEALTH = "Health and XIDs"
    PROFILES = "Profiles"
    ACCESS = "TLS, passwords and control"
    LOG = "Logging"
    COMPATIBLE = "Compatibility with dcgm-exporter"
    DCGM = "DCGM"
    TRIAL = "Recordings and simulated GPUs"
    ADVANCED = "Advanced"


# For mypy: the annotation of a setting is the type that its parser returns, or None if there is no default.
@overload
def _setting(
    group: SettingGroup, help: str, parse: Callable[[str], T], default: str, flag: str = "", *, many: bool = False
) -> T: ...


@overload
def _setting(
    group: SettingGroup, help: str, parse: Callable[[str], T], *, flag: str = "", many: bool = False
) -> T | None: ...


def _setting(
    group: SettingGroup,
    help: str,
    parse: Callable[[str], Any],
    default: str | None = None,
    flag: str = "",
    *,
    many: bool = False,
) -> Any:
    value, problem = None, ""
    try:
        value = parse(default) if default is not None else None
    except ValueError as error:
        problem = f"its parser refuses its default: {error}"
    metadata = {
        "group": group,
        "help": help,
        "parse": parse,
        "default": default,
        "flag": flag,
        "many": many,
        "problem": problem,
    }
    return field(default=value, metadata=metadata)


COMMON, PODS, HEALTH, PROFILES, ACCESS, LOG, COMPATIBLE, DCGM, TRIAL, ADVANCED = SettingGroup


# fmt: off
@dataclass(frozen=True, slots=True)
class Config:
    """Every setting with its default. Seconds, paths and numbers, already checked."""

    address: Address          = _setting(COMMON, "Address to listen on; `:9400` is port 9400 of all IPv4 and IPv6 addresses.", address, ":9400")
    source: str               = _setting(COMMON, f"Where to read GPUs from: {', '.join(f'{kind.name} ({kind.description})' for kind in SOURCE_KINDS.values())}.", choice(*SOURCE_KINDS), AUTO.name)
    devices: Devices          = _setting(COMMON, "GPUs to monitor: f (each GPU, or its instances if it is in MIG mode), g (GPUs only), i (instances only), or a list such as g:0,2-3 or g:UUID.", device_list, "f")
    metrics: MetricSet        = _setting(COMMON, "Set of metrics: default or full.", metric_set, "default")
    collectors: Path | None   = _setting(COMMON, "CSV file of fields, as for dcgm-exporter: the DCGM metrics to expose, with their TYPE and HELP (also -f).", Path)
    interval: float           = _setting(COMMON, "Time between two collections, 100ms to 1h. With NVML and less than 1s, only the profiling counters for histograms are read at that rate; all other values are read once a second, or more often if Prometheus scrapes more often.", interval, "1s")
    processes: bool           = _setting(COMMON, "Expose the device memory and SM share of each process, with its pod or job.", boolean, "false")
    host_evidence: bool       = _setting(COMMON, "Read from /proc, /sys and cgroups why a GPU waits for its processes: CPU limits, run queues, loader workers, storage; see docs/host-evidence.md.", boolean, "false")
    job_socket: Path | None   = _setting(COMMON, "Unix socket to create for training loops, which send their step times to it; see docs/jobs.md. Its directory must exist.", Path)
    live_page: bool           = _setting(COMMON, "Diagnose the GPUs continuously and keep their last hour in memory, for the page at / and its API.", boolean, "true")
    kubernetes: bool          = _setting(PODS, "Ask kubelet which pod uses which GPU; see docs/attribution.md.", boolean, "false")
    kubernetes_pods: bool     = _setting(PODS, "Ask the API server for the pods of this node: workload, rank, UID.", boolean, "false")
    kubernetes_pod_labels: tuple[re.Pattern[str], ...] = _setting(PODS, "Pod labels to expose on gpu_pod_info as label_*: regular expressions of whole names, separated by commas. Includes --kubernetes-pods.", patterns, "")
    kubernetes_dra: bool      = _setting(PODS, "Ask the API server for ResourceSlices, for pods that get GPUs through resource claims (DRA).", boolean, "false")
    nvidia_resource_names: tuple[str, ...] = _setting(PODS, "Other names of resources that are GPUs, such as example.com/a100. nvidia.com/gpu, nvidia.com/gpu.shared and nvidia.com/mig-* are included already.", names, "")
    hpc_job_mapping_dir: Path | None = _setting(PODS, "Directory of job files, one per GPU, as dcgm-exporter uses for Slurm. A file is named by minor number (0 for /dev/nvidia0) or UUID.", Path)
    node_name: str            = _setting(PODS, "Node name for the Hostname label. Default: the host of a remote host engine, NODE_NAME of the environment, or the host name.", str, "")
    no_hostname: bool         = _setting(PODS, "Omit the Hostname label.", boolean, "false")
    expected_gpus: int | None = _setting(HEALTH, "Number of GPUs that this node must have. Default: the number of NVIDIA GPUs on the PCI bus, or the most GPUs seen if that is higher.", count)
    kernel_log: Path | None   = _setting(HEALTH, "Kernel log to read XIDs from: /dev/kmsg, a file such as kern.log or a journal export, or none.", path_or_none, "/dev/kmsg")
    state_dir: Path | None    = _setting(HEALTH, "Directory that keeps XIDs, incidents, what GPUs did for jobs and what links reached across restarts, and the results of `check --active`.", Path)
    job_reports: Path | None  = _setting(HEALTH, "Directory for a report of each job that has ended on this node, as HTML and JSON; see docs/diagnose.md. Needs --state-dir.", Path)
    xid_overrides: Path | None = _setting(HEALTH, "YAML or CSV file with changes to the table of XIDs.", Path)
    profile: frozenset[ProfileReason] = _setting(PROFILES, f"When to sample the stacks of the processes on a GPU with py-spy automatically: {', '.join(reason.value for reason in AUTOMATIC)}, or several, separated by commas. Off by default; see docs/continuous-profiling.md.", reasons, "")
    profile_after: float      = _setting(PROFILES, "How long a GPU must stall, be a straggler or be host-bound before it is profiled.", duration, "5m")
    profile_users: tuple[str, ...] = _setting(PROFILES, "Users of --web.config.file who may see and request profiles, which show code, and see names despite --mask-names, separated by commas.", names, "")
    profile_dir: Path         = _setting(PROFILES, "Directory for profiles, which only this user may read. The exporter creates it.", Path, "/var/lib/gpu-exporter/profiles")
    profile_keep: float       = _setting(PROFILES, "How long profiles are kept; at most 2000 of them, and 64 MiB.", duration, "168h")
    profile_lines: bool       = _setting(PROFILES, "Also expose the line of code that keeps a GPU waiting as a metric, for dashboards: file without its folder, line and function, for all who may read metrics.", boolean, "false")
    profile_socket: Path | None = _setting(PROFILES, "Unix socket of `gpu-exporter sampler`, which then samples instead of the exporter.", Path)
    web_config_file: Path | None = _setting(ACCESS, "File with TLS, passwords and headers, in the format of Prometheus' exporter-toolkit.", Path, flag="web.config.file")
    web_enable_lifecycle: bool   = _setting(ACCESS, "Enable POST /-/quit and /-/reload, and /-/release and /-/resume without --token-file.", boolean, "false", "web.enable-lifecycle")
    mask_names: bool          = _setting(ACCESS, "On the live page and in the JSON API, replace the names of namespaces, workloads, pods, containers, programs and users by pseudonyms, except for --profile-users; see docs/security.md. /metrics keeps them.", boolean, "false")
    grafana_url: str          = _setting(ACCESS, "URL of your Grafana, for links from the live page to the dashboards.", web_url, "")
    web_trusted_proxies: tuple[Network, ...] = _setting(ACCESS, "Addresses and networks of proxies, such as 10.0.0.0/8, separated by commas. For limits and the log, the client of their requests is the one that X-Forwarded-For names.", networks, "")
    token_file: Path | None   = _setting(ACCESS, "File for a token that `gpu-exporter release`, `resume` and `profile` on this machine use to log in. `serve` writes it.", Path)
    log_level: str            = _setting(LOG, "Lowest level to log: debug, info, warning or error.", choice("debug", "info", "warning", "error"), "info")
    log_format: str           = _setting(LOG, "Log format: text, or json with one object per line.", choice("text", "json"), "text")
    schema: Schema            = _setting(COMPATIBLE, "Names of DCGM metrics: classic (as dcgm-exporter up to 4.8.2) or si (as 4.9 and newer, in base units).", schema, "classic")
    replace_blanks_in_model_name: bool = _setting(COMPATIBLE, "Write the modelName label with dashes instead of blanks.", boolean, "false")
    xid_count_window: float   = _setting(COMPATIBLE, "Time window of DCGM_EXP_XID_ERRORS_COUNT, if it is exposed.", duration, "5m")
    clock_events_count_window: float = _setting(COMPATIBLE, "Time window of DCGM_EXP_CLOCK_EVENTS_COUNT, if it is exposed.", duration, "5m")
    dcgm_hostengine: Hostengine = _setting(DCGM, "DCGM's host engine: host:port, or a Unix socket as a path or unix:///path. Default: the exporter runs one itself.", hostengine, "")
    dcgm_bindings: Path | None = _setting(DCGM, "Directory of DCGM's Python bindings. Default: where DCGM's packages install them.", Path)
    switch_devices: Devices   = _setting(DCGM, "NVSwitches (g) and their NVLinks (i) to monitor through DCGM, written as for --devices.", device_list, "f")
    cpu_devices: Devices      = _setting(DCGM, "Grace CPUs (g) and their cores (i) to monitor through DCGM, written as for --devices.", device_list, "f")
    recording: Path | None    = _setting(TRIAL, "Recording to replay: a file, or the name of a packaged one.", Path)
    speed: float              = _setting(TRIAL, "Replay speed; 2 is twice as fast.", speed, "1")
    loop: bool                = _setting(TRIAL, "Start the recording again at its end.", boolean, "true")
    nodes: int                = _setting(TRIAL, "Number of nodes to simulate. Several nodes are served below /nodes.", positive, "1")
    gpus: int                 = _setting(TRIAL, "Number of GPUs to simulate in each node.", positive, "8")
    seed: int                 = _setting(TRIAL, "Seed of the simulation: the same seed gives the same nodes.", whole, "1")
    faults: str               = _setting(TRIAL, "Faults to simulate; see docs/simulated.md.", str, "")
    inject: str               = _setting(TRIAL, "Failure modes to simulate, such as GpuMemoryBound:node-000/1; see docs/simulated.md.", str, "", many=True)
    high_resolution: bool     = _setting(ADVANCED, "Read profiling counters ten times a second, for histograms of changes that are shorter than a collection interval. Costs about 0.5 % of a core per GPU.", boolean, "false")
    gauge_window: float       = _setting(ADVANCED, "Time over which profiling gauges are averaged.", duration, "15s")
    nics: bool                = _setting(ADVANCED, "Read the network cards for RDMA (InfiniBand, RoCE, EFA) from /sys; see docs/fabric.md.", boolean, "true")
    nccl_inspector_dir: Path | None = _setting(ADVANCED, "Directory in which NCCL's Inspector plugin writes its files for Prometheus, to expose the bandwidth of collectives; see docs/fabric.md.", Path)
    procfs: Path              = _setting(ADVANCED, "The host's /proc, to look up processes: share it with hostPID or a mount. With NVIDIA's open kernel modules, the container's own /proc works, too.", Path, "/proc")
    sysfs: Path               = _setting(ADVANCED, "The host's /sys, for its PCI devices, and for --host-evidence and --nics: its cgroups and network cards.", Path, "/sys")
    pod_resources_socket: Path = _setting(ADVANCED, "kubelet's pod-resources socket.", Path, "/var/lib/kubelet/pod-resources/kubelet.sock")
    kubernetes_service_account: Path = _setting(ADVANCED, "Directory with the token and the CA for the API server.", Path, "/var/run/secrets/kubernetes.io/serviceaccount")
    web_systemd_socket: bool     = _setting(ADVANCED, "Serve on the socket that systemd passes, instead of --address.", boolean, "false")
# fmt: on


def flag(setting: Field[Any]) -> str:
    """Return a setting's flag without the leading dashes. Only flags that other exporters share have dots."""
    return setting.metadata["flag"] or setting.name.replace("_", "-")


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{ENV_PREFIX}{name.upper()}"


def unknown_variables(environ: Iterable[str]) -> list[str]:
    """Return the variables that begin like a setting and are none, apart from those that Kubernetes injects."""
    known = {variable(name) for name in ("config", "url", *(setting.name for setting in fields(Config)))}
    return sorted(
        name
        for name in environ
        if name.startswith(ENV_PREFIX) and name not in known and not SERVICE_LINK.fullmatch(name)
    )


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


def package_settings(config: Config, settings: type[T]) -> T:
    """Return the settings of one package: a dataclass whose fields are settings, under the same names."""
    return settings(**{each.name: getattr(config, each.name) for each in fields(cast(Any, settings))})


def read_file(path: Path) -> dict[str, str]:
    """Return the settings of a YAML file as text, after validation. Raises GpuExporterError."""
    from gpu_exporter.io.yaml_decoding import yaml_document

    try:
        content = yaml_document(FileWorker("config").call(lambda: read(path, MAX_FILE_BYTES)))
    except OSError as error:
        raise GpuExporterError(f"config {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise GpuExporterError(f"config {path}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise GpuExporterError(f"config {path}: must be a mapping of settings to values, such as `interval: 5s`")
    parsers = {setting.name: setting.metadata["parse"] for setting in fields(Config)}
    try:
        keys = _keys(path, content, parsers)
    except ValueError as error:  # an integer with thousands of digits
        raise GpuExporterError(f"config {path}: {error}") from error
    settings = {}
    for name, key in keys.items():
        try:
            settings[name] = _text(content[key], parsers[name])
            parsers[name](settings[name])
        except ValueError as error:
            raise GpuExporterError(f"config {path}: {key}: {error}") from error
    return settings


def _keys(path: Path, content: Mapping[Any, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the key of each setting in a file. Raises GpuExporterError that names all unknown keys."""
    keys: dict[str, Any] = {}
    unknown = []
    for key in content:
        name = re.sub("[-.]", "_", str(key))
        if name not in names:
            unknown.append(f"unknown key {printable(repr(key), 60)}{nearest(name, names)}")
        elif keys.setdefault(name, key) != key:
            raise GpuExporterError(f"config {path}: {keys[name]} and {key} are the same setting; keep one")
    if unknown:
        more = f"; and {len(unknown) - MOST_UNKNOWN} more" if len(unknown) > MOST_UNKNOWN else ""
        raise GpuExporterError(f"config {path}: {'; '.join(unknown[:MOST_UNKNOWN])}{more}")
    return keys


def _text(value: object, parse: Callable[[str], object]) -> str:
    """Return the text of a YAML value. Raises ValueError unless it is one value, and is text where text is needed."""
    if value is None:
        raise ValueError("needs one value; add it, or remove the key")
    if not isinstance(value, bool | int | float | str | date):
        raise ValueError(f"needs one value, not {printable(repr(value), 60)}")
    if parse in (str, Path, path_or_none) and isinstance(value, bool | float | date):
        raise ValueError(f"YAML reads this as {value}, which is not text; put it in quotes")
    if isinstance(value, str) and not value.isprintable():
        raise ValueError("has control characters; remove them")
    return str(value)
