"""dcgm-exporter's command lines: their translation, and warnings of flags that are ignored."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gpu_exporter.catalogue.dcgm_exporter.flags import (
    FLAGS,
    SETTINGS,
    DcgmExporterFlag,
    implies_dcgm,
    is_dcgm_exporter_flag,
    translate,
)
from gpu_exporter.cli.group import cli
from gpu_exporter.config import Config
from gpu_exporter.io.user_text import Devices, device_list, hostengine
from gpu_exporter.sources.choice import node_name

ALLOWED = "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"


def translated(line: str, environ: Mapping[str, str] | None = None) -> str:
    """Return a command line and an environment of dcgm-exporter as options of gpu-exporter."""
    return " ".join(translate(line.split(), environ or {}).arguments)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ""),
        ("-f my.csv", "--collectors=my.csv"),
        ("-f=my.csv", "--collectors=my.csv"),
        ("--f my.csv", "--collectors=my.csv"),
        ("-collectors my.csv", "--collectors=my.csv"),
        ("--collectors my.csv", "--collectors my.csv"),
        ("-a :9401", "--address=:9401"),
        ("-c 5000", "--interval=5000ms"),
        ("--collect-interval=30000", "--interval=30000ms"),
        ("-r localhost:5555", "--source=dcgm --dcgm-hostengine=localhost:5555"),
        ("-r tcp://h:5555", "--source=dcgm --dcgm-hostengine=h:5555"),
        ("-r unix:///run/engine.sock", "--source=dcgm --dcgm-hostengine=unix:///run/engine.sock"),
        ("-d g:0,1", "--devices=g:0,1"),
        ("-s f -p g:0", "--switch-devices=f --cpu-devices=g:0"),
        ("-n", "--no-hostname=true"),
        ("-n=false", "--no-hostname=false"),
        ("-rbmn", "--replace-blanks-in-model-name=true"),
        ("--web-config-file w.yml", "--web.config.file=w.yml"),
        ("--debug", "--log-level=debug"),
        ("--debug=F", "--log-level=info"),
        ("-log-format json", "--log-format=json"),
        ("-x 60000", "--xid-count-window=60000ms"),
        ("--clock-events-count-window-size 1000", "--clock-events-count-window=1000ms"),
        ("-web-systemd-socket", "--web-systemd-socket=true"),
        (
            "-f a.csv --interval 2s --metrics full -c 1000",
            "--collectors=a.csv --interval=1000ms --interval 2s --metrics full",
        ),
        ("-f a.csv -- -f b.csv", "--collectors=a.csv -- -f b.csv"),
        ("--none-such -f a.csv", "--collectors=a.csv --none-such"),
    ],
)
def test_flags_are_translated(line: str, expected: str) -> None:
    """Parsed as by Go's flag package. gpu-exporter's own flags come last, where they win."""
    assert translated(line) == expected


@pytest.mark.parametrize(
    ("line", "environ", "expected"),
    [
        ("", {"DCGM_EXPORTER_LISTEN": ":9401"}, "--address=:9401"),
        ("", {"DCGM_EXPORTER_LISTEN": ""}, ""),
        ("", {"DCGM_EXPORTER_INTERVAL": "5000", "GPU_EXPORTER_INTERVAL": "2s"}, ""),
        ("--interval 2s", {"DCGM_EXPORTER_INTERVAL": "5000"}, "--interval 2s"),
        ("-c 1000", {"DCGM_EXPORTER_INTERVAL": "5000"}, "--interval=1000ms"),
        ("", {"DCGM_EXPORTER_INTERVAL": "33"}, "--interval=100ms"),
        ("", {"DCGM_EXPORTER_NO_HOSTNAME": "true"}, "--no-hostname=true"),
        ("", {"DCGM_EXPORTER_DEBUG": "false"}, "--log-level=info"),
        ("", {"DCGM_REMOTE_HOSTENGINE_INFO": "h:1"}, "--source=dcgm --dcgm-hostengine=h:1"),
        ("--source nvml", {"DCGM_REMOTE_HOSTENGINE_INFO": "h:1"}, "--source nvml"),
        ("--source=dcgm", {"DCGM_REMOTE_HOSTENGINE_INFO": "h:1"}, "--dcgm-hostengine=h:1 --source=dcgm"),
        ("-r h:1", {"GPU_EXPORTER_SOURCE": "nvml"}, ""),
        ("-r h:1", {"GPU_EXPORTER_SOURCE": "dcgm"}, "--dcgm-hostengine=h:1"),
    ],
)
def test_own_flags_win(line: str, environ: Mapping[str, str], expected: str) -> None:
    """A flag overrides a variable; each kind of gpu-exporter's own settings overrides that of dcgm-exporter."""
    assert translated(line, environ) == expected


@pytest.mark.parametrize(
    ("line", "environ", "expected", "ignored"),
    [
        ("-k --kubernetes-enable-pod-uid", {}, "--kubernetes-pods=true --kubernetes=true", ""),
        ("--kubernetes-enable-pod-uid", {}, "", "--kubernetes-enable-pod-uid"),
        ("--kubernetes-enable-pod-uid=false", {}, "", ""),
        ("--kubernetes-enable-dra -k=false", {}, "--kubernetes=false", "--kubernetes-enable-dra"),
        ("--kubernetes", {"KUBERNETES_ENABLE_DRA": "true"}, "--kubernetes-dra=true --kubernetes", ""),
        ("", {"KUBERNETES_ENABLE_DRA": "1", "GPU_EXPORTER_KUBERNETES": "true"}, "--kubernetes-dra=true", ""),
        ("", {"KUBERNETES_ENABLE_DRA": "1"}, "", "KUBERNETES_ENABLE_DRA"),
        (
            "-k --kubernetes-enable-pod-labels --kubernetes-pod-label-allowlist-regex ^app$",
            {},
            "--kubernetes-pod-labels=^app$ --kubernetes=true",
            "",
        ),
        ("-k", {ALLOWED: "^app$"}, "--kubernetes=true", ALLOWED),
        ("-k --kubernetes-enable-pod-labels", {}, "--kubernetes-pod-labels=.* --kubernetes=true", ""),
    ],
)
def test_flags_that_need_another_flag(line: str, environ: Mapping[str, str], expected: str, ignored: str) -> None:
    """A flag without the flag that it needs is ignored with one warning, as in dcgm-exporter."""
    arguments, warnings = translate(line.split(), environ)

    assert sorted(arguments) == sorted(expected.split())
    assert [each.partition(" is ignored: it has no effect without --")[0] for each in warnings] == (
        [ignored] if ignored else []
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-c 5s", "-c: '5s' is not a number of milliseconds; use for example 5000"),
        ("-c 9999999", "-c: '9999999ms' is out of range; use 100ms to 1h"),
        ("-c", "-c needs a value"),
        ("-a nowhere", "-a: 'nowhere' is not an address"),
        ("-r vsock://2:5555", "-r: gpu-exporter does not connect over vsock; use host:port"),
        ("-d 0,1", "-d: '0,1' is not a device list; use f, g, i, or for example"),
        ("-n=maybe", "-n: 'maybe' is neither true nor false"),
        ("-log-format xml", "-log-format: 'xml' is not one of text, json"),
    ],
)
def test_a_wrong_value_names_the_flag(line: str, message: str) -> None:
    """As it was written, not as it is translated."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        translate(line.split(), {})


def test_a_wrong_variable_is_named() -> None:
    """The reader of the message may not know the manifest."""
    with pytest.raises(ValueError, match="DCGM_EXPORTER_INTERVAL: '30s' is not a number of milliseconds"):
        translate([], {"DCGM_EXPORTER_INTERVAL": "30s"})


@pytest.mark.parametrize("flag", [each for each in FLAGS if not each.honoured], ids=lambda each: each.flags[0])
def test_unsupported_flags_are_one_warning(flag: DcgmExporterFlag) -> None:
    """By flag and by variable; a value that switches nothing on has none."""
    name, value = f"-{flag.flags[-1]}", "true" if flag.is_switch else "anything"

    arguments, (warning,) = translate([f"{name}={value}"], {})
    assert arguments == ()
    assert warning == f"{name} is ignored: {flag.hint}"
    assert translate([], {flag.env: value}) == ((), (warning.replace(name, flag.env, 1),))
    for quiet in flag.quiet:
        assert translate([], {flag.env: quiet}) == ((), ())


def test_the_table_is_consistent() -> None:
    """Flags and variables are unique; settings exist."""
    flags: Sequence[str] = [name for each in FLAGS for name in each.flags]

    assert len(set(flags)) == len(flags)
    assert len({each.env for each in FLAGS}) == len(FLAGS)
    assert {each.setting for each in FLAGS if each.setting} <= SETTINGS.keys()
    assert all(each.hint or each.setting for each in FLAGS)


def test_the_first_argument_decides() -> None:
    """A command line of dcgm-exporter has no subcommand."""
    assert is_dcgm_exporter_flag("-f")
    assert is_dcgm_exporter_flag("-f=x.csv")
    assert is_dcgm_exporter_flag("--kubernetes")
    assert not any(map(is_dcgm_exporter_flag, ("serve", "-h", "--help", "--version", "f", "-")))


def test_the_help_has_only_own_flags() -> None:
    """The others are on their docs page."""
    context = cli.make_context("gpu-exporter", ["serve"], resilient_parsing=True)
    command = cli.get_command(context, "serve")
    assert command is not None
    text = command.get_help(context)

    assert "--collectors" in text
    assert "docs/dcgm-exporter-flags.md" in " ".join(text.split())
    assert "--collect-interval" not in text


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("f", Devices()),
        ("g", Devices("g")),
        ("i", Devices("i")),
        ("g:0", Devices("g", (0,))),
        ("g:0,2-4", Devices("g", (0, 2, 3, 4))),
        ("g:1,1", Devices("g", (1,))),
        ("i:0-1", Devices("i", (0, 1))),
        ("g:GPU-00000000-0000-0000-0000-000000000001,3", Devices("g", ("GPU-00000000-0000-0000-0000-000000000001", 3))),
    ],
)
def test_device_lists(text: str, devices: Devices) -> None:
    """They are parsed as by dcgm-exporter, and printed as they are parsed."""
    assert device_list(text) == devices
    assert device_list(str(devices)) == devices


@pytest.mark.parametrize("text", ["", "x", "f:0", "g:", "g:1:2", "g:a", "g:3-1", "g:0-99999", "g:-1", "0"])
def test_bad_device_lists(text: str) -> None:
    """The error is one line with examples."""
    with pytest.raises(ValueError, match="use"):
        device_list(text)


def test_defaults_change_nothing() -> None:
    """Settings for compatibility with dcgm-exporter are off by default."""
    config = Config()

    assert (config.devices, config.collectors, config.no_hostname) == (Devices(), None, False)


@pytest.mark.parametrize(
    ("source", "settings", "environ", "expected"),
    [
        ("nvml", {}, {"NODE_NAME": "worker-7"}, "worker-7"),
        ("nvml", {"node_name": "mine"}, {"NODE_NAME": "worker-7"}, "mine"),
        ("nvml", {}, {}, socket.gethostname()),
        ("nvml", {"dcgm_hostengine": "far:5555"}, {}, socket.gethostname()),
        ("dcgm", {"dcgm_hostengine": "far:5555"}, {}, "far"),
        ("dcgm", {"dcgm_hostengine": "far:5555"}, {"NODE_NAME": "worker-7"}, "far"),
        ("dcgm", {"dcgm_hostengine": "[fd00::7]:5555"}, {}, "fd00::7"),
        ("dcgm", {"dcgm_hostengine": "far:5555", "kubernetes": True}, {"NODE_NAME": "worker-7"}, "worker-7"),
        ("dcgm", {"dcgm_hostengine": "localhost:5555"}, {}, socket.gethostname()),
        ("dcgm", {"dcgm_hostengine": "/run/engine.sock"}, {}, socket.gethostname()),
        ("dcgm", {}, {"NODE_NAME": "worker-7"}, "worker-7"),
    ],
)
def test_node_name(source: str, settings: dict[str, Any], environ: dict[str, str], expected: str) -> None:
    """Found as by `internal/pkg/hostname` of dcgm-exporter; a local host engine has this host's name."""
    engine = hostengine(settings.get("dcgm_hostengine", ""))
    assert node_name(Config(**{**settings, "dcgm_hostengine": engine}), source, environ) == expected


def test_short_interval_is_a_warning() -> None:
    """dcgm-exporter accepts it; such a pod must start."""
    assert translate((), {"DCGM_EXPORTER_INTERVAL": "33"}).warnings == (
        "DCGM_EXPORTER_INTERVAL: 33 ms is too short; values are collected every 100ms",
    )


@pytest.mark.parametrize(
    ("line", "environ", "implied"),
    [
        ("-r h:1", {}, True),
        ("", {"DCGM_REMOTE_HOSTENGINE_INFO": "h:1"}, True),
        ("--source dcgm -r h:1", {}, False),
        ("--source=dcgm -r h:1", {}, False),
        ("-r h:1", {"GPU_EXPORTER_SOURCE": "dcgm"}, False),
        ("--dcgm-hostengine h:1", {}, False),
    ],
)
def test_only_a_flag_of_dcgm_exporter_implies_dcgm(line: str, environ: Mapping[str, str], implied: bool) -> None:
    """An own setting is never replaced."""
    arguments = line.split()
    assert implies_dcgm(arguments, translate(arguments, environ).arguments) is implied


def test_unknown_variables_are_warnings() -> None:
    """Those of a newer dcgm-exporter, but not those that Kubernetes injects for a Service named dcgm-exporter."""
    service = {"DCGM_EXPORTER_SERVICE_HOST": "10.0.0.1", "DCGM_EXPORTER_PORT_9400_TCP_PORT": "9400"}
    environ = {**service, "DCGM_EXPORTER_NEW": "1", "DCGM_EXPORTER_WEB_READ_TIMEOUT": "10s"}
    assert translate((), environ) == ((), ("DCGM_EXPORTER_NEW is ignored: gpu-exporter does not know it",))


def test_newer_flags_start_the_server() -> None:
    """Those of the source after 4.8.2, by flag and by variable."""
    line = "--config-file c.yaml --web-read-timeout 5s --web-write-timeout=1m --health-require-gpus -a :9401"
    arguments, warnings = translate(line.split(), {"DCGM_EXPORTER_CONFIG_FILE": "d.yaml"})
    assert arguments == ("--address=:9401",)
    assert [each.partition(" ")[0] for each in warnings] == [
        "--config-file",
        "--web-read-timeout",
        "--web-write-timeout",
        "--health-require-gpus",
        "DCGM_EXPORTER_CONFIG_FILE",
    ]
