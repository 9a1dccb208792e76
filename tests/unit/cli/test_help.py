"""The command line: groups of settings, switches, suggestions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import pytest

from content.docs.reference import EXIT_CODES
from gpu_exporter.cli.commands import SECTIONS, SUMMARIES
from gpu_exporter.cli.group import cli
from gpu_exporter.cli.options import SettingOption, variable_warnings
from gpu_exporter.config import Config, SettingGroup, flag
from gpu_exporter.io.user_text import boolean

DECORATED = re.compile(r'^@command\("(\w+)"', re.MULTILINE)
COMMAND_LINE = re.compile(rf"^  (?:{'|'.join(SUMMARIES)}) .*", re.MULTILINE)
SWITCHES = [setting for setting in fields(Config) if setting.metadata["parse"] is boolean]


def context(name: str) -> click.Context:
    """Return the context of a command without running it."""
    top = click.Context(cli, info_name="gpu-exporter")
    command = cli.get_command(top, name)
    assert command is not None
    return click.Context(command, info_name=name, parent=top, max_content_width=100)


def parsed(name: str, arguments: Sequence[str]) -> Mapping[str, Any]:
    """Return the values of a command's options."""
    ctx = context(name)
    with ctx:
        ctx.command.parse_args(ctx, list(arguments))
    return ctx.params


def test_help_lists_every_setting_in_its_group() -> None:
    """Common settings first, advanced ones last, in the groups of the table of settings."""
    text = context("serve").get_help()
    titles = [group.value for group in SettingGroup]
    positions = [text.index(f"\n{title}:\n") for title in titles]
    assert positions == sorted(positions)
    assert (titles[0], titles[-1]) == ("Common", "Advanced")
    sections = dict(
        zip(titles, re.split("|".join(rf"\n{re.escape(title)}:\n" for title in titles), text)[1:], strict=True)
    )
    for setting in fields(Config):
        assert f"--{flag(setting)} " in sections[setting.metadata["group"].value]


@pytest.mark.drift
def test_each_group_of_settings_can_be_read_at_a_glance() -> None:
    sizes = Counter(setting.metadata["group"] for setting in fields(Config))
    crowded = [f"{group.value} has {sizes[group]} settings" for group in SettingGroup if not 0 < sizes[group] <= 10]
    assert crowded == [], (
        f"{crowded}; fix: use another member of Group in gpu_exporter/config.py for the setting that others need least"
    )


def test_every_command_is_in_the_table() -> None:
    """And the command of a row has its name and its help."""
    modules = Path(str(files("gpu_exporter.cli"))).glob("*.py")
    assert {name for path in modules for name in DECORATED.findall(path.read_text())} == set(SUMMARIES)
    for name, summary in SUMMARIES.items():
        command = context(name).command
        assert command.name == name
        assert (command.help or "").partition("\n\n")[0] == summary


def test_exit_codes_are_those_of_commands_that_exist() -> None:
    named = {name for _, text in EXIT_CODES for name in re.findall(r"`([a-z]+)[ `]", text)}
    assert named <= set(SUMMARIES)
    assert len(named) > 4


def test_help_lists_commands_in_sections() -> None:
    """No summary is cut off, and all are aligned."""
    text = cli.get_help(click.Context(cli, info_name="gpu-exporter"))
    sections = re.split(rf"\n({'|'.join(SECTIONS)}):\n", text)
    assert sections[1::2] == list(SECTIONS)
    for summaries, section in zip(SECTIONS.values(), sections[2::2], strict=True):
        rows = [f"{name} {summary}" for name, summary in summaries.items()]
        assert section.split() == " ".join(rows).split()
    assert len({line.index(next(iter(line.split()[1:]))) for line in COMMAND_LINE.findall(text)}) == 1


@pytest.mark.parametrize(("name", "message"), [("diagnos", "Did you mean 'diagnose'?"), ("nothing", "")])
def test_a_misspelt_command(name: str, message: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        cli.main([name], standalone_mode=False)
    assert caught.value.format_message() == f"No such command '{name}'. {message}".strip()


@pytest.mark.parametrize("setting", SWITCHES, ids=lambda setting: setting.name)
@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("--{on}", True),
        ("--{off}", False),
        ("--{on}=true", True),
        ("--{on}=false", False),
        ("--{on} true", True),
        ("--{on} FALSE", False),
        ("--{off}=true", False),
        ("--{off} --{on}", True),
        ("--{on} --{off}", False),
    ],
)
def test_switches(setting: Any, form: str, expected: bool) -> None:
    """The last one wins; older forms with a value still work."""
    on = flag(setting)
    off = on.removeprefix("no-") if on.startswith("no-") else f"no-{on}"
    assert parsed("serve", form.format(on=on, off=off).split())[setting.name] is expected


def test_a_switch_with_a_wrong_value() -> None:
    with pytest.raises(
        click.UsageError,
        match=r"^--loop: 'maybe' is neither true nor false; use true or false, or --loop or --no-loop$",
    ):
        parsed("serve", ["--loop=maybe"])
    with pytest.raises(click.UsageError, match="unexpected extra argument"):
        parsed("serve", ["--loop", "maybe"])


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("off", False), ("1", True)])
def test_a_switch_in_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, expected: bool) -> None:
    monkeypatch.setenv("GPU_EXPORTER_PROCESSES", text)
    assert parsed("serve", [])["processes"] is expected
    assert parsed("serve", ["--no-processes"])["processes"] is False


@pytest.mark.parametrize(
    ("argument", "suggestion"), [("--foo", None), ("--intervall", "--interval"), ("--proceses", "--processes")]
)
def test_only_similar_options_are_suggested(argument: str, suggestion: str | None) -> None:
    with pytest.raises(click.NoSuchOption) as caught:
        parsed("serve", [argument])
    assert caught.value.possibilities == ([suggestion] if suggestion else None)


def test_unknown_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except those that Kubernetes injects."""
    for name in ("GPU_EXPORTER_PORT", "GPU_EXPORTER_INTERVALL", "GPU_EXPORTER_FOO"):
        monkeypatch.setenv(name, "1")
    assert variable_warnings() == [
        "GPU_EXPORTER_FOO is ignored: it is not a setting",
        "GPU_EXPORTER_INTERVALL is ignored: it is not a setting; did you mean GPU_EXPORTER_INTERVAL?",
    ]


def test_only_settings_are_grouped() -> None:
    """`--json` and the like are listed before the settings."""
    ctx = context("once")
    text = ctx.get_help()
    own = [param for param in ctx.command.params if not isinstance(param, SettingOption)]
    assert {"--json", "--config", "--debug"} <= {name for param in own for name in param.opts}
    assert text.index("--json") < text.index("\nCommon:\n")
