"""The settings: each is one field of `Config`, and so a flag, an environment variable and a key of the YAML file."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import MetricSet, Schema

# Kubernetes injects GPU_EXPORTER_PORT, GPU_EXPORTER_SERVICE_HOST … for a service named gpu-exporter: no setting may be
# named so, and an unknown variable can't be an error.
ENV_PREFIX = "GPU_EXPORTER_"

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; an empty host means every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """`:9400`, `127.0.0.1:9400`, `[::1]:9400`, or a port alone."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is not an address; use host:port with a port from 0 to 65535, such as :9400")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r} is not an address; write an IPv6 host in brackets, such as [::1]:9400")
    return Address(host.strip("[]"), int(port))


@dataclass(frozen=True, slots=True)
class Hostengine:
    """Where DCGM's host engine listens: on a TCP address, on a Unix socket, or nowhere, within this process."""

    address: str = ""
    socket: str = ""

    def __str__(self) -> str:
        return (
            f"host engine at {self.socket or self.address}" if self.socket or self.address else "embedded host engine"
        )

    @property
    def embedded(self) -> bool:
        """It is started in this process."""
        return not self.address and not self.socket

    @property
    def local(self) -> bool:
        """Its GPUs are this machine's, as far as an address tells."""
        return not self.address or self.address.rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]")


HOSTENGINE_PORT = 5555


def hostengine(text: str) -> Hostengine:
    """`localhost:5555`, `[::1]:5555`, `unix:///run/nv-hostengine.sock`, `/run/nv-hostengine.sock`; nothing: embedded."""
    path = text.removeprefix("unix://")
    if path.startswith("/"):
        return Hostengine(socket=path)
    if not text:
        return Hostengine()
    wrong = f"{text!r} is no host engine; use host:port such as localhost:{HOSTENGINE_PORT}, or unix:///path/of/socket"
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::(\d+))?", text)
    if not found or not 0 < int(found[2] or HOSTENGINE_PORT) <= 65535:
        raise ValueError(wrong)
    return Hostengine(f"{found[1]}:{found[2] or HOSTENGINE_PORT}")


def duration(text: str) -> float:
    """`1s`, `100ms`, `2m`, or seconds as a plain number. Positive."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text.strip())
    if not found or not 0 < float(found[1]) < 1e9:
        raise ValueError(f"{text!r} is not a duration; use for example 1s or 100ms")
    return float(found[1]) * UNITS[found[2]]


def interval(text: str) -> float:
    """A duration from 100 ms, under which GPM windows can't be trusted, to an hour."""
    seconds = duration(text)
    if not 0.1 <= seconds <= 3600:
        raise ValueError(f"{text!r} is out of range; use 100ms to 1h")
    return seconds


def hand_over(text: str) -> float:
    """A duration of at most a day, after which a node that nobody resumed is watched again."""
    seconds = duration(text)
    if seconds > 24 * 3600:
        raise ValueError(f"{text!r} is too long; use at most 24h, and ask again")
    return seconds


@dataclass(frozen=True, slots=True)
class Devices:
    """Which devices: `kind` is f (whole GPUs, and instances where there are some), g (whole) or i (their parts).

    `chosen` are numbers or UUIDs; all, if it is empty.
    """

    kind: str = "f"
    chosen: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}:{','.join(map(str, self.chosen))}" if self.chosen else self.kind


MOST_DEVICES = 1024


def device_list(text: str) -> Devices:
    """`f`, `g`, `g:0,2-3`, `g:GPU-…`, `i`, `i:0`, as dcgm-exporter has them."""
    kind, colon, some = (part.strip() for part in text.partition(":"))
    if kind not in ("f", "g", "i") or (kind == "f" and colon):
        raise ValueError(f"{text!r} names no devices; use f, g, i, or some such as g:0,2-3 or g:GPU-<UUID>")
    found: list[int | str] = []
    for part in some.split(",") if colon else ():
        span = re.fullmatch(r"(\d{1,6})(?:\s*-\s*(\d{1,6}))?", part.strip())
        if span and int(span[1]) <= int(span[2] or span[1]) < MOST_DEVICES:
            found += range(int(span[1]), int(span[2] or span[1]) + 1)
        elif re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z-]+", part.strip()):
            found.append(part.strip())
        else:
            raise ValueError(f"{part.strip()!r} is no device; use a number, a range such as 2-3, or a UUID")
    return Devices(kind, tuple(dict.fromkeys(found)))


def speed(text: str) -> float:
    """A positive factor."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise ValueError(f"{text!r} is not a speed; use a positive number such as 2")
    return value


def count(text: str) -> int:
    """A number of GPUs."""
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a number of GPUs; use for example 8")
    return int(text)


def positive(text: str) -> int:
    """A number from 1 to 9999."""
    if not text.isdecimal() or not 1 <= int(text) <= 9999:
        raise ValueError(f"{text!r} is not a number from 1 to 9999; use for example 8")
    return int(text)


def whole(text: str) -> int:
    """A whole number."""
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise ValueError(f"{text!r} is not a whole number; use for example 1")
    return int(text)


def boolean(text: str) -> bool:
    """true or false, as YAML and environments write them."""
    known = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if text.lower() not in known:
        raise ValueError(f"{text!r} is neither true nor false")
    return known[text.lower()]


def choice(*names: str) -> Callable[[str], str]:
    """One of the names; an unknown one is answered with the nearest."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is not one of {', '.join(names)}{nearest(text, names)}")
        return text

    return parse


def names(text: str) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(dict.fromkeys(name for each in text.split(",") if (name := each.strip())))


def patterns(text: str) -> tuple[re.Pattern[str], ...]:
    """Regular expressions between commas."""
    found = []
    for pattern in names(text):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # what will mean something else in another Python
                found.append(re.compile(pattern))
        except (re.error, RecursionError, OverflowError, Warning) as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    return tuple(found)


def metric_set(text: str) -> MetricSet:
    """default or full."""
    return MetricSet(choice(MetricSet.DEFAULT.value, MetricSet.FULL.value)(text))


def schema(text: str) -> Schema:
    """classic or si."""
    return Schema(choice(*(each.value for each in Schema))(text))


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean …?` or nothing."""
    close = difflib.get_close_matches(name, list(names), 1, 0.5)
    return f"; did you mean {close[0]}?" if close else ""


def _setting(
    help: str, parse: Callable[[str], Any], default: str | None = None, flag: str = "", *, many: bool = False
) -> Any:
    metadata = {"help": help, "parse": parse, "default": default, "flag": flag, "many": many}
    return field(default=parse(default) if default is not None else None, metadata=metadata)


# fmt: off
@dataclass(frozen=True, slots=True)
class Config:
    """Every setting with its default. Seconds, paths and numbers, already checked."""

    address: Address          = _setting("Where to listen.", address, ":9400")
    interval: float           = _setting("Time between two collections; below 1s, what only pages show is read once a second, or as often as pages are asked for.", interval, "1s")
    high_resolution: bool     = _setting("Whether to read profiling counters ten times a second, for histograms of what is shorter than a tick; costs about half a per cent of a core for each GPU.", boolean, "false")
    gauge_window: float       = _setting("What the profiling gauges are the mean over.", duration, "15s")
    source: str               = _setting("Where to read from; auto: nvml, and DCGM beside it for a GPU without GPM, where there is one.", choice("auto", "nvml", "dcgm", "replay", "simulated"), "auto")
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
    """A setting's flag, without the dashes before it. Only what other exporters have, too, is spelt with dots."""
    return setting.metadata["flag"] or setting.name.replace("_", "-")


def read_file(path: Path) -> dict[str, str]:
    """The settings of a YAML file as text, known and checked. Raises GpuExporterError naming what is wrong."""
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
