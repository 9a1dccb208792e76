"""Settings: the values that each parser accepts and refuses."""

from __future__ import annotations

import ast
import math
import os
import re
import string
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.config import (
    ENV_PREFIX,
    SERVICE_LINK,
    Config,
    SettingGroup,
    _setting,
    check,
    package_settings,
    read_file,
    unknown_variables,
)
from gpu_exporter.io import user_text
from gpu_exporter.io.user_text import Address
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.owners.settings import OwnerSettings
from gpu_exporter.pipeline.fields_in_force import FieldsSettings
from gpu_exporter.pipeline.renderer import Style
from gpu_exporter.pipeline.settings import CollectionSettings
from tests import ROOT

# The fix for a setting without effect.
READ = "each as an attribute of `config` where it matters, or remove it from gpu_exporter/config.py"
CONFIG_NAMES = ("config", "_config")
PACKAGES = (CollectionSettings, FieldsSettings, OwnerSettings, Style)
CHOICE = user_text.choice("nvml", "replay")


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (user_text.address, ":9400", Address("", 9400)),
        (user_text.address, "9400", Address("", 9400)),
        (user_text.address, ":0", Address("", 0)),
        (user_text.address, "127.0.0.1:65535", Address("127.0.0.1", 65535)),
        (user_text.address, "node-7:80", Address("node-7", 80)),
        (user_text.address, "[::1]:9400", Address("::1", 9400)),
        (user_text.address, "[::]:9400", Address("::", 9400)),
        (user_text.duration, "1s", 1.0),
        (user_text.duration, "100ms", 0.1),
        (user_text.duration, "2m", 120.0),
        (user_text.duration, "1h", 3600.0),
        (user_text.duration, "1.5", 1.5),
        (user_text.duration, " 15 ", 15.0),
        (user_text.interval, "100ms", 0.1),
        (user_text.interval, "0.1", 0.1),
        (user_text.interval, "1h", 3600.0),
        (user_text.speed, "0.5", 0.5),
        (user_text.speed, "1e3", 1000.0),
        (user_text.count, "0", 0),
        (user_text.count, "8", 8),
        (user_text.positive, "1", 1),
        (user_text.positive, "9999", 9999),
        (user_text.whole, "-7", -7),
        *((user_text.boolean, text, True) for text in ("true", "True", "YES", "on", "1")),
        *((user_text.boolean, text, False) for text in ("false", "False", "NO", "off", "0")),
        (CHOICE, "replay", "replay"),
        (user_text.names, "", ()),
        (user_text.names, "a/b, c,,a/b", ("a/b", "c")),
        (user_text.patterns, "team,app/.*", (re.compile("team"), re.compile("app/.*"))),
        (user_text.metric_set, "full", MetricSet.FULL),
        (user_text.metric_set, "default", MetricSet.DEFAULT),
    ],
)
def test_accepted(parse: Callable[[str], Any], text: str, expected: object) -> None:
    """All common forms."""
    parsed = parse(text)
    assert parsed == expected
    assert type(parsed) is type(expected)


@pytest.mark.parametrize(
    ("parse", "text", "why"),
    [
        (user_text.address, "", "host:port"),
        (user_text.address, ":", "host:port"),
        (user_text.address, "localhost", "host:port"),
        (user_text.address, "localhost:", "host:port"),
        (user_text.address, ":65536", "from 0 to 65535"),
        (user_text.address, ":-1", "host:port"),
        (user_text.address, ":94 00", "host:port"),
        (user_text.address, "tcp://1.2.3.4:9400/", "host:port"),
        (user_text.address, "[::1]", "host:port"),
        (user_text.patterns, "(b", "is not a regular expression: missing"),
        (user_text.patterns, "[0--", "not a regular expression"),
        (user_text.duration, "", "for example 1s"),
        (user_text.duration, "s", "for example 1s"),
        (user_text.duration, "0", "for example 1s"),
        (user_text.duration, "0.00ms", "for example 1s"),
        (user_text.duration, "-1s", "for example 1s"),
        (user_text.duration, "1d", "for example 1s"),
        (user_text.duration, "1m30s", "for example 1s"),
        (user_text.duration, "1,5s", "for example 1s"),
        (user_text.duration, "inf", "for example 1s"),
        (user_text.duration, "nan", "for example 1s"),
        (user_text.interval, "99ms", "100ms to 1h"),
        (user_text.interval, "3601", "100ms to 1h"),
        (user_text.interval, "soon", "for example 1s"),
        (user_text.speed, "0", "positive"),
        (user_text.speed, "-1", "positive"),
        (user_text.speed, "nan", "positive"),
        (user_text.speed, "inf", "positive"),
        (user_text.speed, "1e6", "positive"),
        (user_text.speed, "fast", "positive"),
        (user_text.count, "", "number of GPUs"),
        (user_text.count, "-1", "number of GPUs"),
        (user_text.count, "1.5", "number of GPUs"),
        (user_text.count, "two", "number of GPUs"),
        (user_text.positive, "0", "from 1 to 9999"),
        (user_text.positive, "10000", "from 1 to 9999"),
        (user_text.whole, "1.5", "whole number"),
        (user_text.boolean, "", "neither true nor false"),
        (user_text.boolean, "2", "neither true nor false"),
        (user_text.boolean, "y", "neither true nor false"),
        (CHOICE, "NVML", "not one of nvml, replay"),
        (CHOICE, "repaly", "did you mean replay?"),
        (user_text.metric_set, "all", "not one of default, full"),
    ],
)
def test_refused(parse: Callable[[str], Any], text: str, why: str) -> None:
    """The error has the value and what is allowed."""
    with pytest.raises(ValueError, match=r".") as caught:
        parse(text)
    assert repr(text) in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [(Address("", 9400), ":9400"), (Address("::1", 80), "[::1]:80"), (Address("127.0.0.1", 1), "127.0.0.1:1")],
)
def test_address_reads_back(given: Address, text: str) -> None:
    """An address is printed in the form in which it is written."""
    assert str(given) == text
    assert user_text.address(text) == given


PARSERS = [setting.metadata["parse"] for setting in fields(Config) if setting.name not in ("recording", "node_name")]


@given(st.text() | st.from_regex(r"[\[\]:.0-9a-z-]{0,12}:?[0-9.]{0,8}(ms|s|m|h)?"))
def test_any_text(text: str) -> None:
    """A parser accepts it or raises ValueError, and accepted numbers are finite."""
    for parse in PARSERS:
        try:
            value = parse(text)
        except ValueError:
            continue
        assert not isinstance(value, float) or 0 < value < math.inf


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("intervall", ["interval", "address"], "; did you mean interval?"),
        ("gauge_windw", ["gauge_window"], "; did you mean gauge_window?"),
        ("zzz", ["interval", "address"], ""),
        ("foo", ["loop", "log_format"], ""),
        ("fotmat", ["format"], "; did you mean format?"),
        ("", ["interval"], ""),
    ],
)
def test_nearest(name: str, known: list[str], expected: str) -> None:
    """Only similar words are suggested."""
    assert user_text.nearest(name, known) == expected


def test_defaults() -> None:
    """By default, live GPUs are exposed on port 9400 of every interface, without a recording."""
    settings = Config()
    assert (settings.address, settings.interval, settings.gauge_window) == (Address("", 9400), 1.0, 15.0)
    assert (settings.source, settings.recording, settings.metrics) == ("auto", None, MetricSet.DEFAULT)
    assert settings.expected_gpus is None


def test_no_setting_is_named_like_a_service_link() -> None:
    """Kubernetes' variables for a service named gpu-exporter cannot be mistaken for settings."""
    names = [f"{ENV_PREFIX}{setting.name.upper()}" for setting in fields(Config)]
    links = ("GPU_EXPORTER_SERVICE_HOST", "GPU_EXPORTER_PORT", "GPU_EXPORTER_PORT_9400_TCP_ADDR")

    assert all(map(SERVICE_LINK.fullmatch, links))
    assert [name for name in names if SERVICE_LINK.fullmatch(name)] == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", {}),
        ("# nothing\n", {}),
        ("interval: 0.5", {"interval": "0.5"}),
        ("gauge-window: 1m\nlog_level: debug", {"gauge_window": "1m", "log_level": "debug"}),
        ("address: 9400", {"address": "9400"}),
        ("address: :9400", {"address": ":9400"}),
        ("loop: false", {"loop": "False"}),
        ("expected-gpus: 8", {"expected_gpus": "8"}),
        ("interval: 1s\nnode_name: 42", {"interval": "1s", "node_name": "42"}),
        ("node_name: '010'", {"node_name": "010"}),
        ("loop: no\nprocesses: on", {"loop": "False", "processes": "True"}),
        ("state_dir: &dir /var/lib/x\ntoken_file: *dir", {"state_dir": "/var/lib/x", "token_file": "/var/lib/x"}),
        ("web.config.file: web.yml", {"web_config_file": "web.yml"}),
        ("web_enable_lifecycle: true", {"web_enable_lifecycle": "True"}),
    ],
)
def test_read_file(tmp_path: Path, content: str, expected: dict[str, str]) -> None:
    """Values of a file have the text that parsers accept."""
    path = tmp_path / "config.yaml"
    path.write_text(content)
    settings = read_file(path)
    assert settings == expected
    for setting in fields(Config):
        if setting.name in settings:
            setting.metadata["parse"](settings[setting.name])


@pytest.mark.parametrize("content", ["speeed: 1", "- 1", "interval: [1]", "interval:", "a: b: c", "\x00"])
def test_read_file_refuses(tmp_path: Path, content: str) -> None:
    """The error is one line with the file's name."""
    path = tmp_path / "config.yaml"
    path.write_text(content)
    with pytest.raises(GpuExporterError) as caught:
        read_file(path)
    assert str(caught.value).startswith(f"config {path}: ")
    assert "\n" not in str(caught.value)


BOMB = "a: &a [x, x]\n" + "".join(
    f"{letter}: &{letter} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, letter in zip(string.ascii_lowercase, string.ascii_lowercase[1:], strict=False)
)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (BOMB, "its aliases expand to more than"),
        ("speed: 1\nloop: no\nspeed: 2", "line 3: speed is a duplicate key; keep one"),
        ("gauge-window: 1m\ngauge_window: 2m", "gauge-window and gauge_window are the same setting; keep one"),
        ("interval: 1:30", "line 1: 1:30 is a base 60 number in YAML; put it in quotes"),
        ("speed: 1\nnode_name: 010", "line 2: 010 is an octal number in YAML; put it in quotes"),
        ("node_name: 1.10", "node_name: YAML reads this as 1.1, which is not text; put it in quotes"),
        ("kernel_log: off", "kernel_log: YAML reads this as False, which is not text; put it in quotes"),
        ("node_name: 2024-01-02", "node_name: YAML reads this as 2024-01-02, which is not text"),
        ("node_name: !!binary aGk=", "node_name: needs one value, not b'hi'"),
        ("foo: 1\nintervall: 2\nspeeed: 3", "unknown key 'foo'; unknown key 'intervall'; did you mean interval?; "),
        ("foo: 1\nintervall: 2\nspeeed: 3", "unknown key 'speeed'; did you mean speed?"),
        ("\n".join(f"x{n}: 1" for n in range(50)), "'x19'; and 30 more"),
    ],
    ids=lambda text: text[:20],
)
def test_read_file_refuses_ambiguous_and_unknown_content(tmp_path: Path, content: str, why: str) -> None:
    """The error is one line with the fix, for all unknown keys at once."""
    path = tmp_path / "config.yaml"
    path.write_text(content)
    with pytest.raises(GpuExporterError) as caught:
        read_file(path)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_config_file_that_would_block_or_fill_the_memory(tmp_path: Path) -> None:
    """A FIFO without a writer and a file that is too large are refused at once."""
    path = tmp_path / "config.yaml"
    os.mkfifo(path)
    with pytest.raises(GpuExporterError, match="not a regular file"):
        read_file(path)
    path.unlink()
    path.write_bytes(b"\n" * (1 << 21))
    with pytest.raises(GpuExporterError, match="larger than 1 MiB"):
        read_file(path)


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("GPU_EXPORTER_INTERVALL", True),
        ("GPU_EXPORTER_INTERVAL", False),
        ("GPU_EXPORTER_CONFIG", False),
        ("GPU_EXPORTER_URL", False),
        ("DCGM_EXPORTER_X", False),
        ("GPU_EXPORTER_SERVICE_HOST", False),
        ("GPU_EXPORTER_SERVICE_PORT", False),
        ("GPU_EXPORTER_SERVICE_PORT_METRICS", False),
        ("GPU_EXPORTER_PORT", False),
        ("GPU_EXPORTER_PORT_9400_TCP", False),
        ("GPU_EXPORTER_PORT_9400_TCP_PROTO", False),
        ("GPU_EXPORTER_PORT_9400_TCP_ADDR", False),
        ("GPU_EXPORTER_WEST_SERVICE_HOST", False),
        ("GPU_EXPORTER_WEST_PORT_9400_UDP_PORT", False),
        ("GPU_EXPORTER_PORTS", True),
    ],
)
def test_unknown_variables(name: str, unknown: bool) -> None:
    """Neither settings nor variables that Kubernetes injects for Services such as gpu-exporter-west."""
    assert unknown_variables([name, "PATH"]) == ([name] if unknown else [])


@pytest.mark.parametrize(
    ("default", "flag", "message"),
    [
        ("94 00", "", "its parser refuses its default: '94 00' is not an address; use host:port .*"),
        (":1", "interval", "its flag --interval is that of interval, too: give it another"),
        (":1", "config", "its flag --config is that of the YAML file, too: give it another"),
    ],
    ids=["default", "flag", "flag of the file"],
)
def test_a_faulty_setting_is_an_error(default: str, flag: str, message: str) -> None:
    """The module checks its own settings when it is imported; the error names the setting."""
    faulty: Any = _setting(SettingGroup.COMMON, "Where to listen.", user_text.address, default, flag)
    faulty.name = "listen"

    with pytest.raises(ValueError, match=rf"^config\.py: listen: {message}$"):
        check([*fields(Config), faulty])


def test_every_setting_is_read() -> None:
    """As `config.NAME`, in another module; a setting of a package, by a module of that package."""
    read = {attribute.attr for attribute in attributes(ROOT / "gpu_exporter") if named(attribute) in CONFIG_NAMES}
    for settings in PACKAGES:
        folder = ROOT.joinpath(*settings.__module__.split(".")[:-1])
        read |= {attribute.attr for attribute in attributes(folder)} & set(get_type_hints(settings))
    unread = [setting.name for setting in fields(Config) if setting.name not in read]

    assert unread == [], f"nothing reads {unread}; fix: read {READ}"


def attributes(folder: Path) -> Iterator[ast.Attribute]:
    """Yield every attribute that a module below a folder reads."""
    for path in folder.rglob("*.py"):
        if path.name != "config.py":
            yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute))


def named(attribute: ast.Attribute) -> str:
    """Return the name of the object of which an attribute is read."""
    value = attribute.value
    return value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""


@pytest.mark.parametrize("settings", PACKAGES)
def test_packages_name_and_type_their_settings_as_config_does(settings: type[Any]) -> None:
    """So `package_settings` needs no table from one to the other."""
    types = get_type_hints(Config)
    assert {name: types.get(name) for name in get_type_hints(settings)} == get_type_hints(settings)
    assert package_settings(Config(interval=7.0, no_hostname=True), settings)
