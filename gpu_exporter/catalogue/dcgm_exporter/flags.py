"""Translate dcgm-exporter's flags and environment to gpu-exporter's settings, or say what to use instead.

The flags are those of `pkg/cmd/app.go` of dcgm-exporter 4.5.3-4.8.2 and of the later source in its repository. They
are parsed as Go's `flag` package does: one dash or two, `-c 5000` or `-c=5000`, and a switch takes a value only after `=`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from gpu_exporter.config import ENV_PREFIX, SERVICE_LINK, Config, flag
from gpu_exporter.io.decoding import printable
from gpu_exporter.io.user_text import boolean
from gpu_exporter.model.source_kind import AUTO, DCGM

PREFIX = "DCGM_EXPORTER_"
SETTINGS = {setting.name: setting for setting in fields(Config)}
# `Config` refuses shorter intervals. dcgm-exporter accepts them, so they are raised to this, with a warning.
SHORTEST_MILLISECONDS = 100
TRUE = ("1", "t", "T", "TRUE", "true", "True")
FALSE = ("0", "f", "F", "FALSE", "false", "False")


def milliseconds(text: str) -> str:
    """Return a number of milliseconds as a duration of gpu-exporter."""
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is not a number of milliseconds; use for example 5000")
    return f"{text.strip()}ms"


def switch(text: str) -> str:
    """Return `true` or `false` for a boolean in Go's or gpu-exporter's spelling."""
    if text not in (*TRUE, *FALSE):
        boolean(text)
    return "true" if text in TRUE or (text not in FALSE and boolean(text)) else "false"


def debug(text: str) -> str:
    """Return the log level of the switch `--debug`."""
    return "debug" if switch(text) == "true" else "info"


def hostengine(text: str) -> str:
    """Return the address of a host engine without the scheme tcp, which gpu-exporter's form lacks."""
    if text.startswith("vsock://"):
        raise ValueError("gpu-exporter does not connect over vsock; use host:port, or unix:///path/of/socket")
    return text.removeprefix("tcp://")


def same(text: str) -> str:
    """Return the text unchanged."""
    return text


@dataclass(frozen=True, slots=True)
class DcgmExporterFlag:
    """One of dcgm-exporter's flags. `setting` is the setting that it sets, with `convert`; empty if it is ignored.

    `hint` is what to use instead, or, for an honoured flag, what differs. `is_switch` flags take no value on the command
    line. `quiet` values request nothing and cause no warning. `needs` is the flag without which this one has no effect.
    """

    flags: tuple[str, ...]
    env: str
    setting: str = ""
    convert: Callable[[str], str] = same
    hint: str = ""
    is_switch: bool = False
    quiet: tuple[str, ...] = ("",)
    needs: str = ""

    @property
    def honoured(self) -> bool:
        """Return whether the flag sets a setting."""
        return bool(self.setting)


def _value(flags: str, env: str, setting: str = "", convert: Callable[[str], str] = same, hint: str = "", quiet: tuple[str, ...] = ("",), needs: str = "") -> DcgmExporterFlag:  # fmt: skip
    return DcgmExporterFlag(tuple(flags.split()), env, setting, convert, hint, quiet=quiet, needs=needs)


def _switch(flags: str, env: str, setting: str = "", convert: Callable[[str], str] = switch, hint: str = "", needs: str = "") -> DcgmExporterFlag:  # fmt: skip
    return DcgmExporterFlag(
        tuple(flags.split()), env, setting, convert, hint, is_switch=True, quiet=("", *FALSE), needs=needs
    )


# fmt: off
FLAGS: tuple[DcgmExporterFlag, ...] = (
    _value("collectors f", "DCGM_EXPORTER_COLLECTORS", "collectors", hint="Without it, --metrics chooses the metrics. A wrong row causes a warning, not an exit. The image of gpu-exporter contains the three files of dcgm-exporter 4.8.2 in /etc/dcgm-exporter."),
    _value("config-file", "DCGM_EXPORTER_CONFIG_FILE", hint="gpu-exporter does not read this YAML file: name the CSV file of its metrics.file with -f, and its collection interval with -c."),
    _value("address a", "DCGM_EXPORTER_LISTEN", "address"),
    _value("collect-interval c", "DCGM_EXPORTER_INTERVAL", "interval", milliseconds, "Without it, values are collected every second, not every 30 s."),
    _value("remote-hostengine-info r", "DCGM_REMOTE_HOSTENGINE_INFO", "dcgm_hostengine", hostengine, "Also sets --source dcgm. If DCGM's Python bindings are not installed, a warning says so, and GPUs are read through NVML. Without this flag, GPUs are read without DCGM. vsock:// is not supported."),
    _value("devices d", "DCGM_EXPORTER_DEVICES_STR", "devices", hint="UUIDs are accepted instead of GPU numbers. A list of GPU instances needs --source dcgm, because the numbers are DCGM's. With g, metrics that a GPU in MIG mode has only per instance are missing."),
    _value("switch-devices s", "DCGM_EXPORTER_OTHER_DEVICES_STR", "switch_devices", hint="Needs --source dcgm."),
    _value("cpu-devices p", "DCGM_EXPORTER_CPU_DEVICES_STR", "cpu_devices", hint="Needs --source dcgm."),
    _switch("no-hostname n", "DCGM_EXPORTER_NO_HOSTNAME", "no_hostname"),
    _switch("replace-blanks-in-model-name rbmn", "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME", "replace_blanks_in_model_name"),
    _value("web-config-file", "DCGM_EXPORTER_WEB_CONFIG_FILE", "web_config_file"),
    _switch("web-systemd-socket", "DCGM_EXPORTER_SYSTEMD_SOCKET", "web_systemd_socket"),
    _value("web-read-timeout", "DCGM_EXPORTER_WEB_READ_TIMEOUT", hint="A client has 10 s to send a request.", quiet=("", "10s")),
    _value("web-write-timeout", "DCGM_EXPORTER_WEB_WRITE_TIMEOUT", hint="Not needed: responses are rendered before the scrape; a client has 10 s to read one.", quiet=("", "30s")),
    _value("max-concurrent-scrapes", "DCGM_EXPORTER_MAX_CONCURRENT_SCRAPES", hint="Not needed: responses are rendered before the scrape; connections are limited."),
    _switch("debug", "DCGM_EXPORTER_DEBUG", "log_level", debug),
    _value("log-format", "DCGM_EXPORTER_LOG_FORMAT", "log_format"),
    _value("xid-count-window-size x", "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE", "xid_count_window", milliseconds),
    _value("clock-events-count-window-size", "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE", "clock_events_count_window", milliseconds),
    _value("configmap-data m", "DCGM_EXPORTER_CONFIGMAP_DATA", hint="gpu-exporter does not read ConfigMaps from the API server: mount the ConfigMap as a volume and name its file with -f; changes are picked up.", quiet=("", "none")),
    # which pods and jobs use the GPUs
    _switch("kubernetes k", "DCGM_EXPORTER_KUBERNETES", "kubernetes"),
    _value("pod-resources-kubelet-socket", "DCGM_POD_RESOURCES_KUBELET_SOCKET", "pod_resources_socket"),
    _value("nvidia-resource-names", "NVIDIA_RESOURCE_NAMES", "nvidia_resource_names"),
    _switch("kubernetes-enable-pod-uid", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", "kubernetes_pods", hint="Shown on gpu_pod_info.", needs="kubernetes"),
    _switch("kubernetes-enable-pod-labels", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "kubernetes_pod_labels", lambda text: ".*" if switch(text) == "true" else "", "Shown on gpu_pod_info as label_*.", "kubernetes"),
    _value("kubernetes-pod-label-allowlist-regex", "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", "kubernetes_pod_labels", needs="kubernetes-enable-pod-labels"),
    _switch("kubernetes-enable-dra", "KUBERNETES_ENABLE_DRA", "kubernetes_dra", needs="kubernetes"),
    _switch("kubernetes-virtual-gpus", "KUBERNETES_VIRTUAL_GPUS", hint="A value is never repeated for each pod that shares a GPU: gpu_pod_info lists these pods, without a label vgpu, and --processes shows the memory and SM share of each."),
    _value("kubernetes-gpu-id-type", "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE", hint="Not needed: UUIDs and device names are both understood.", quiet=("", "uid", "device-name")),
    _value("hpc-job-mapping-dir", "DCGM_HPC_JOB_MAPPING_DIR", "hpc_job_mapping_dir"),
    _switch("container-labels", "DCGM_EXPORTER_CONTAINER_LABELS", hint="Use --processes: gpu_container_info has the containers of Docker and podman."),
    _value("container-runtime-socket", "DCGM_CONTAINER_RUNTIME_SOCKET", hint="Not needed: --processes finds containers without the socket of their runtime."),
    # no counterpart
    _switch("use-old-namespace o", "DCGM_EXPORTER_USE_OLD_NAMESPACE", hint="Metrics have the names that the file of fields (-f) gives them, including those of 1.x; the labels are UUID, pod, namespace and container, not uuid, pod_name, pod_namespace and container_name."),
    _switch("fake-gpus", "DCGM_EXPORTER_USE_FAKE_GPUS", hint="Use --source simulated or --source replay."),
    _switch("enable-dcgm-log", "DCGM_EXPORTER_ENABLE_DCGM_LOG", hint="DCGM is not part of gpu-exporter; use --log-level and --log-filename of nv-hostengine."),
    _value("watch-max-keep-age", "DCGM_EXPORTER_WATCH_MAX_KEEP_AGE", hint="gpu-exporter decides how many samples DCGM keeps.", quiet=("", "10m", "10m0s")),
    _value("watch-max-keep-samples", "DCGM_EXPORTER_WATCH_MAX_KEEP_SAMPLES", hint="gpu-exporter decides how many samples DCGM keeps.", quiet=("", "0")),
    _switch("health-require-gpus", "DCGM_EXPORTER_HEALTH_REQUIRE_GPUS", hint="/health never depends on GPUs; /readyz answers 503 if none responds."),
    _value("dcgm-log-level", "DCGM_EXPORTER_DCGM_LOG_LEVEL", hint="DCGM is not part of gpu-exporter; use --log-level and --log-filename of nv-hostengine.", quiet=("", "NONE")),
    _switch("dump-enabled", "DCGM_EXPORTER_DUMP_ENABLED", hint="Use `gpu-exporter doctor`, `gpu-exporter once --json` or `gpu-exporter record`."),
    _value("dump-directory", "DCGM_EXPORTER_DUMP_DIRECTORY", hint="Use `gpu-exporter record --out FILE`.", quiet=("", "/tmp/dcgm-exporter-debug")),
    _value("dump-retention", "DCGM_EXPORTER_DUMP_RETENTION", hint="gpu-exporter writes no dumps.", quiet=("", "24")),
    _switch("dump-compression", "DCGM_EXPORTER_DUMP_COMPRESSION", hint="Use `gpu-exporter record --out FILE.gz`."),
    _switch("disable-startup-validate", "DISABLE_STARTUP_VALIDATE", hint="No startup validation can prevent the start; `gpu-exporter doctor` checks the node."),
    _switch("enable-gpu-bind-unbind-watch", "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH", hint="Not needed: GPUs that appear or disappear are detected; `gpu-exporter release` releases the driver."),
    _value("gpu-bind-unbind-poll-interval", "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL", hint="Not needed: GPUs that appear or disappear are detected.", quiet=("", "1s")),
    _switch("enable-pprof", "DCGM_EXPORTER_ENABLE_PPROF", hint="Use a Python profiler such as py-spy."),
    _switch("enable-exporter-metrics", "DCGM_EXPORTER_ENABLE_EXPORTER_METRICS", hint="Not needed: gpu_exporter_* and process_* are always exposed."),
)
# fmt: on
BY_FLAG = {name: theirs for theirs in FLAGS for name in theirs.flags}
OWN_FLAGS = {flag(setting): name for name, setting in SETTINGS.items()}
# Arguments after this are not flags.
END = "--"


class Translation(NamedTuple):
    """Arguments of gpu-exporter, and warnings about flags of dcgm-exporter."""

    arguments: tuple[str, ...]
    warnings: tuple[str, ...]


class _Given(NamedTuple):
    theirs: DcgmExporterFlag
    spelling: str
    value: str


def is_dcgm_exporter_flag(argument: str) -> bool:
    """Return whether this first argument begins a command line of dcgm-exporter, which has no subcommand."""
    return _split(argument)[0] in BY_FLAG


def _split(argument: str) -> tuple[str, str | None]:
    """Return the name of a flag without its dashes, and the value after `=`; an empty name if it is not a flag."""
    name, equals, value = argument.partition("=")
    stripped = name.removeprefix("-").removeprefix("-")
    return (stripped if name.startswith("-") else "", value if equals else None)


def has_dcgm_exporter_variable(environ: Mapping[str, str]) -> bool:
    """Return whether a variable is set that begins with DCGM_EXPORTER_, as in a pod of which only the image was changed."""
    return any(each.env.startswith(PREFIX) and each.env in environ for each in FLAGS)


def implies_dcgm(arguments: Sequence[str], translated: Sequence[str]) -> bool:
    """Return whether only dcgm-exporter's flag or variable for a host engine, and no own setting, chose DCGM."""
    implied = f"--source={DCGM.name}"
    return implied in translated and implied not in arguments


def translate(arguments: Sequence[str], environ: Mapping[str, str]) -> Translation:
    """Return the arguments of `serve` with dcgm-exporter's replaced. Raise ValueError naming a wrong flag or variable.

    A flag of gpu-exporter overrides one of dcgm-exporter; so does a variable. Both override the config file.
    """
    rest, given = _read(arguments)
    ours = {
        OWN_FLAGS[name] for argument in rest if (name := _split(argument)[0]) in OWN_FLAGS and argument.startswith("--")
    }
    by_flag = {theirs.setting for theirs, _, _ in given}
    for theirs in FLAGS:
        value = environ.get(theirs.env, "")
        if value not in theirs.quiet or (value and theirs.honoured):
            over = {theirs.setting} & (ours | by_flag) or f"{ENV_PREFIX}{theirs.setting.upper()}" in environ
            if not theirs.setting or not over:
                given.append(_Given(theirs, theirs.env, value))
    on = _on(rest, given, environ)
    idle = [each for each in given if each.theirs.needs not in on and each.value not in each.theirs.quiet]
    given = [each for each in given if each.theirs.needs in on]
    valued = {theirs.setting for theirs, _, _ in given if theirs.setting and not theirs.is_switch}
    given = [each for each in given if not (each.theirs.is_switch and each.theirs.setting in valued)]
    source = _source(rest) or environ.get(f"{ENV_PREFIX}SOURCE", "")
    answers = [_answer(each, source) for each in given]
    put = [argument for answer in answers for argument in answer.arguments]
    warnings = [warning for answer in answers for warning in answer.warnings]
    warnings += [f"{each.spelling} is ignored: it has no effect without --{each.theirs.needs}" for each in idle]
    warnings += [f"{printable(name, 80)} is ignored: gpu-exporter does not know it" for name in _unknown(environ)]
    return Translation((*put, *rest), tuple(warnings))


def _unknown(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that begin like dcgm-exporter's and are none, apart from those of a Service of this name."""
    known = {theirs.env for theirs in FLAGS}
    return sorted(
        name
        for name in environ
        if name.startswith(PREFIX)
        and name not in known
        and not SERVICE_LINK.fullmatch(name.replace(PREFIX, ENV_PREFIX, 1))
    )


def _on(rest: Sequence[str], given: Sequence[_Given], environ: Mapping[str, str]) -> frozenset[str]:
    """Return the long names of the switches that are on, and "" for flags that need no switch."""
    said = {"kubernetes": environ.get(f"{ENV_PREFIX}KUBERNETES", "false")}
    said |= {theirs.flags[0]: value for theirs, _, value in given if theirs.is_switch}
    flags = [_split(argument) for argument in rest if argument.startswith("--")]
    said |= {name: "true" if value is None else value for name, value in flags}
    return frozenset({"", *(name for name, value in said.items() if value.lower() not in ("", "no", "off", *FALSE))})


def _read(arguments: Sequence[str]) -> tuple[list[str], list[_Given]]:
    """Split gpu-exporter's arguments from dcgm-exporter's. A flag of both, with two dashes, is gpu-exporter's."""
    rest: list[str] = []
    given: list[_Given] = []
    left = iter(arguments)
    for argument in left:
        if argument == END:
            rest += (argument, *left)
            break
        name, value = _split(argument)
        theirs = BY_FLAG.get(name)
        if theirs is None or (name in OWN_FLAGS and argument.startswith("--")):
            rest.append(argument)
            continue
        spelling = argument.partition("=")[0]
        if value is None:
            value = "true" if theirs.is_switch else next(left, None)
        if value is None:
            raise ValueError(f"{spelling} needs a value")
        given.append(_Given(theirs, spelling, value))
    return rest, given


def _source(arguments: Sequence[str]) -> str:
    """Return the value of `--source`, or an empty string."""
    found = [
        (index, _split(argument)[1]) for index, argument in enumerate(arguments) if _split(argument)[0] == "source"
    ]
    if not found:
        return ""
    index, value = found[-1]
    return "".join(arguments[index + 1 : index + 2]) if value is None else value


def _answer(given: _Given, source: str) -> Translation:
    theirs, spelling, value = given
    if not theirs.honoured:
        if value in theirs.quiet:
            return Translation((), ())
        return Translation((), (f"{spelling} is ignored: {theirs.hint}",))
    setting, warnings = SETTINGS[theirs.setting], tuple[str, ...]()
    try:
        converted = theirs.convert(value)
        if theirs.setting == "interval" and int(converted.removesuffix("ms")) < SHORTEST_MILLISECONDS:
            converted = f"{SHORTEST_MILLISECONDS}ms"
            warnings = (f"{spelling}: {value} ms is too short; values are collected every {converted}",)
        setting.metadata["parse"](converted)
    except ValueError as error:
        raise ValueError(f"{spelling}: {error}") from error
    arguments: tuple[str, ...] = (f"--{flag(setting)}={converted}",)
    if theirs.setting == "dcgm_hostengine":
        if source not in ("", AUTO.name, DCGM.name):
            return Translation((), (f"{spelling} is ignored: the source is {source}",))
        arguments = (f"--source={DCGM.name}", *arguments) if not source else arguments
    return Translation(arguments, warnings)
