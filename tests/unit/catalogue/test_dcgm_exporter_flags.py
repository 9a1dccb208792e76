"""dcgm-exporter's command lines: what they become, and what is said of the rest."""

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
    is_dcgm_exporter_flag,
    translate,
)
from gpu_exporter.cli.group import cli
from gpu_exporter.config import Config
from gpu_exporter.inputs import Devices, device_list, hostengine
from gpu_exporter.sources.choice import node_name

ALLOWED = "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"


def becomes(line: str, environ: Mapping[str, str] | None = None) -> str:
    """A command line and an environment of theirs, as ours."""
    return " ".join(translate(line.split(), environ or {}).arguments)


@pytest.mark.parametrize(
    ("theirs", "ours"),
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
def test_flags_become_ours(theirs: str, ours: str) -> None:
    """As Go's flag package reads them; ours stay behind theirs, where they win."""
    assert becomes(theirs) == ours


@pytest.mark.parametrize(
    ("line", "environ", "ours"),
    [
        ("", {"DCGM_EXPORTER_LISTEN": ":9401"}, "--address=:9401"),
        ("", {"DCGM_EXPORTER_LISTEN": ""}, ""),
        ("", {"DCGM_EXPORTER_INTERVAL": "5000", "GPU_EXPORTER_INTERVAL": "2s"}, ""),
        ("--interval 2s", {"DCGM_EXPORTER_INTERVAL": "5000"}, "--interval 2s"),
        ("-c 1000", {"DCGM_EXPORTER_INTERVAL": "5000"}, "--interval=1000ms"),
        ("", {"DCGM_EXPORTER_NO_HOSTNAME": "true"}, "--no-hostname=true"),
        ("", {"DCGM_EXPORTER_DEBUG": "false"}, "--log-level=info"),
        ("", {"DCGM_REMOTE_HOSTENGINE_INFO": "h:1"}, "--source=dcgm --dcgm-hostengine=h:1"),
        ("--source nvml", {"DCGM_REMOTE_HOSTENGINE_INFO": "h:1"}, "--source nvml"),
        ("--source=dcgm", {"DCGM_REMOTE_HOSTENGINE_INFO": "h:1"}, "--dcgm-hostengine=h:1 --source=dcgm"),
        ("-r h:1", {"GPU_EXPORTER_SOURCE": "nvml"}, ""),
        ("-r h:1", {"GPU_EXPORTER_SOURCE": "dcgm"}, "--dcgm-hostengine=h:1"),
    ],
)
def test_ours_win(line: str, environ: Mapping[str, str], ours: str) -> None:
    """A flag over a variable, and of each kind ours over theirs."""
    assert becomes(line, environ) == ours


@pytest.mark.parametrize(
    ("line", "environ", "ours", "ignored"),
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
def test_what_another_flag_has_to_switch_on(line: str, environ: Mapping[str, str], ours: str, ignored: str) -> None:
    """Is no error without it, as in dcgm-exporter, but one line: nobody is asked who was not asked there."""
    arguments, said = translate(line.split(), environ)

    assert sorted(arguments) == sorted(ours.split())
    assert [each.partition(" is ignored: it has no effect without --")[0] for each in said] == (
        [ignored] if ignored else []
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-c 5s", "-c: '5s' is not a number of milliseconds; use for example 5000"),
        ("-c 1", "-c: '1ms' is out of range; use 100ms to 1h"),
        ("-c", "-c needs a value"),
        ("-a nowhere", "-a: 'nowhere' is not an address"),
        ("-d 0,1", "-d: '0,1' is not a device list; use f, g, i, or for example"),
        ("-n=maybe", "-n: 'maybe' is neither true nor false"),
        ("-log-format xml", "-log-format: 'xml' is not one of text, json"),
    ],
)
def test_a_wrong_value_names_the_flag(line: str, message: str) -> None:
    """As it was written, not what it would have become."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        translate(line.split(), {})


def test_a_wrong_variable_is_named() -> None:
    """Whoever sees the message does not see the manifest."""
    with pytest.raises(ValueError, match="DCGM_EXPORTER_INTERVAL: '30s' is not a number of milliseconds"):
        translate([], {"DCGM_EXPORTER_INTERVAL": "30s"})


@pytest.mark.parametrize("theirs", [each for each in FLAGS if not each.honoured], ids=lambda each: each.flags[0])
def test_what_is_not_honoured_is_one_line(theirs: DcgmExporterFlag) -> None:
    """By flag and by variable; a value that asks for nothing is not answered."""
    flag, value = f"-{theirs.flags[-1]}", "true" if theirs.is_switch else "anything"

    arguments, (said,) = translate([f"{flag}={value}"], {})
    assert arguments == ()
    assert said == f"{flag} is ignored: {theirs.hint}"
    assert translate([], {theirs.env: value}) == ((), (said.replace(flag, theirs.env, 1),))
    for quiet in theirs.quiet:
        assert translate([], {theirs.env: quiet}) == ((), ())


def test_every_flag_is_known_once_and_sets_what_there_is() -> None:
    """No flag and no variable is in the table twice; no setting is misspelt."""
    flags: Sequence[str] = [name for each in FLAGS for name in each.flags]

    assert len(set(flags)) == len(flags)
    assert len({each.env for each in FLAGS}) == len(FLAGS)
    assert {each.setting for each in FLAGS if each.setting} <= SETTINGS.keys()
    assert all(each.hint or each.setting for each in FLAGS)


def test_what_is_theirs_is_told_by_the_first_argument() -> None:
    """A command line without a subcommand."""
    assert is_dcgm_exporter_flag("-f")
    assert is_dcgm_exporter_flag("-f=x.csv")
    assert is_dcgm_exporter_flag("--kubernetes")
    assert not any(map(is_dcgm_exporter_flag, ("serve", "-h", "--help", "--version", "f", "-")))


def test_the_help_shows_ours_alone() -> None:
    """The other flags are on their page."""
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
def test_devices_are_read_as_there(text: str, devices: Devices) -> None:
    """And written as they were read."""
    assert device_list(text) == devices
    assert device_list(str(devices)) == devices


@pytest.mark.parametrize("text", ["", "x", "f:0", "g:", "g:1:2", "g:a", "g:3-1", "g:0-99999", "g:-1", "0"])
def test_what_is_no_device_is_said(text: str) -> None:
    """One line with examples."""
    with pytest.raises(ValueError, match="use"):
        device_list(text)


def test_defaults_change_nothing() -> None:
    """Settings that were added for dcgm-exporter's sake are off."""
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
def test_the_name_of_the_node(source: str, settings: dict[str, Any], environ: dict[str, str], expected: str) -> None:
    """As `internal/pkg/hostname` of dcgm-exporter finds it; a host engine on this host is this host's."""
    engine = hostengine(settings.get("dcgm_hostengine", ""))
    assert node_name(Config(**{**settings, "dcgm_hostengine": engine}), source, environ) == expected
