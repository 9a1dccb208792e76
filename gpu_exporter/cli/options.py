"""Command line options made of settings, the commands that list them in groups, and exit codes."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from gpu_exporter.cli.commands import CommandFailure
from gpu_exporter.config import ENV_PREFIX, Config, SettingGroup, flag, read_file, unknown_variables, variable
from gpu_exporter.io.decoding import printable
from gpu_exporter.io.user_text import address, boolean, duration, interval, near, nearest, ratio, release_duration
from gpu_exporter.model.errors import GpuExporterError, WrongUsage

F = TypeVar("F", bound=Callable[..., Any])

EVERY_SETTING = tuple(setting.name for setting in fields(Config))
SOURCE_SETTINGS = (
    "source",
    "dcgm_hostengine",
    "dcgm_bindings",
    "recording",
    "speed",
    "loop",
    "procfs",
    "sysfs",
    "gpus",
    "seed",
    "faults",
    "inject",
)
OWNER_SETTINGS = (
    "kubernetes",
    "pod_resources_socket",
    "nvidia_resource_names",
    "kubernetes_pods",
    "kubernetes_pod_labels",
    "kubernetes_dra",
    "kubernetes_service_account",
    "hpc_job_mapping_dir",
)
# The exit code of commands whose 1 is a result, when they have none.
COULD_NOT_TELL = 2
# The exit code of click.UsageError, and of the same mistakes where a command finds them.
WRONG_USAGE = click.UsageError.exit_code
# How help names the value of an option.
VALUES: Mapping[Any, str] = {
    address: "host:port",
    duration: "duration",
    interval: "duration",
    ratio: "ratio",
    release_duration: "duration",
    Path: "path",
}
# What may stand alone behind a switch: `--loop false`.
TRUTHS = ("true", "false", "yes", "no", "on", "off", "1", "0")


class _Switch(click.types.BoolParamType):
    """`--x` or `--no-x`; true or false in the environment and in files."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        try:
            return boolean(value) if isinstance(value, str) else bool(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from error


class SettingOption(click.Option):
    """An option of a setting, which help lists in its group, without its environment variable."""

    def __init__(self, *arguments: Any, group: SettingGroup, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.group = group

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return f"{super().get_error_hint(ctx)} (env var: '{self.envvar}')"


class Command(click.Command):
    """A command whose help lists settings in groups. It ends with `error_code` after an error that the user can fix."""

    debug_help = "Show a traceback if an unexpected error ends the command."

    def __init__(self, *arguments: Any, error_code: int = 1, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.error_code = error_code
        self.params.append(click.Option(["--debug"], is_flag=True, expose_value=False, help=self.debug_help))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, self._without_truths(args))
        except click.NoSuchOption as error:
            names = [name for param in self.get_params(ctx) for name in (*param.opts, *param.secondary_opts)]
            close = near(error.option_name.lstrip("-"), [name.lstrip("-") for name in names])
            raise click.NoSuchOption(
                error.option_name, possibilities=[f"--{close}"] if close else None, ctx=ctx
            ) from None

    def _without_truths(self, args: list[str]) -> list[str]:
        """Replace `--x=false` and `--x false` with `--no-x`: dcgm-exporter writes the first, old command lines both."""
        switches = {
            name: (param.opts[0], param.secondary_opts[0]) if on else (param.secondary_opts[0], param.opts[0])
            for param in self.params
            if isinstance(param.type, _Switch)
            for on, names in ((True, param.opts), (False, param.secondary_opts))
            for name in names
        }
        plain: list[str] = []
        left = list(args)
        while left:
            argument = left.pop(0)
            if argument == "--":
                return [*plain, argument, *left]
            name, equals, value = argument.partition("=")
            if name in switches and not equals and left and left[0].lower() in TRUTHS:
                equals, value = "=", left.pop(0)
            if name in switches and equals:
                on, off = switches[name]
                try:
                    argument = on if boolean(value) else off
                except ValueError as error:
                    raise click.UsageError(f"{name}: {error}, or {on} or {off}") from error
            plain.append(argument)
        return plain

    def invoke(self, ctx: click.Context) -> Any:
        self.warn_of_variables(ctx)
        try:
            return super().invoke(ctx)
        except GpuExporterError as error:
            code = WRONG_USAGE if isinstance(error, WrongUsage) else self.error_code
            raise CommandFailure(str(error), code) from error
        except BrokenPipeError:
            raise
        except OSError as error:
            what = f"{error.filename}: " if error.filename else ""
            raise CommandFailure(f"{what}{error.strerror or error}", self.error_code) from error

    def warn_of_variables(self, ctx: click.Context) -> None:
        """Print a line for each environment variable that looks like a setting and is none."""
        for warning in variable_warnings():
            warn(warning)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of the command, then its settings in groups; for `serve`, the settings first."""
        general: list[tuple[str, str]] = []
        groups: dict[SettingGroup, list[tuple[str, str]]] = {group: [] for group in SettingGroup}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None:
                (groups[param.group] if isinstance(param, SettingOption) else general).append(record)
        sections = [(group.value, rows) for group, rows in groups.items() if rows]
        if self.name == "serve":
            sections.append((others := "Other", general))
        else:
            sections.insert(0, (others := "Options", general))
        for title, rows in sections:
            with formatter.section(title):
                formatter.write_dl(rows)
        example = next((param for param in self.params if isinstance(param, SettingOption)), None)
        if example is not None:
            formatter.write_paragraph()
            formatter.write_text(
                f'Every option except those under "{others}" can also be set in the environment ({example.opts[0]} as'
                f" {example.envvar}) and in the --config file (as {example.name})."
            )


def warn(text: str) -> None:
    """Print a warning to stderr."""
    click.echo(f"gpu-exporter: warning: {text}", err=True)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
one_job_option = click.option("--one-job", is_flag=True, help="Compare all GPUs with each other, as ranks of one job.")


def variable_warnings() -> list[str]:
    """Return a line for each environment variable that looks like a setting and is none."""
    names = [setting.upper() for setting in EVERY_SETTING]
    warnings = []
    for name in unknown_variables(os.environ):
        hint = nearest(name.removeprefix(ENV_PREFIX), names).replace("mean ", f"mean {ENV_PREFIX}")
        warnings.append(f"{printable(name, 80)} is ignored: it is not a setting{hint}")
    return warnings


def parsed(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return a parser of settings as a click type."""

    def convert(value: Any) -> Any:
        try:
            return parse(value) if isinstance(value, str) else value
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    convert.__name__ = VALUES.get(parse, "value")
    return convert


NO_NUMPY = "trace needs NumPy, which is not installed: pip install numpy"


def require_numpy() -> None:
    """Raise CommandFailure with one line if NumPy is not installed."""
    if importlib.util.find_spec("numpy") is None:
        raise CommandFailure(NO_NUMPY, COULD_NOT_TELL)


def settings(*names: str) -> Callable[[F], F]:
    """Add options for these settings: from the flag, else the environment, the config file, or the default."""

    def decorate(function: F) -> F:
        for setting in reversed(fields(Config)):
            if setting.name in names:
                about = setting.metadata
                function = click.option(
                    *_declarations(flag(setting), about["parse"]),
                    setting.name,
                    cls=SettingOption,
                    group=about["group"],
                    envvar=variable(setting.name),
                    help=about["help"],
                    **_kind(about),
                )(function)
        return click.option(
            "--config",
            type=click.Path(path_type=Path),
            envvar=variable("config"),
            is_eager=True,
            expose_value=False,
            callback=_file_of(names),
            help="YAML file of settings. Flags and environment variables override it.",
        )(function)

    return decorate


def _declarations(name: str, parse: Callable[[str], Any]) -> tuple[str, ...]:
    """Return the flags of a setting. The opposite of `--no-x` is `--x`."""
    if parse is not boolean:
        return (f"--{name}",)
    opposite = name.removeprefix("no-") if name.startswith("no-") else f"no-{name}"
    return (f"--{name}/--{opposite}",)


def _kind(about: Any) -> dict[str, Any]:
    """Return the attributes of an option that depend on the kind of its value."""
    parse, default = about["parse"], about["default"]
    if parse is boolean:
        return {"type": _Switch(), "default": boolean(default), "show_default": boolean(default)}
    if about["many"]:
        return {"type": parsed(parse), "multiple": True, "callback": _joined}
    return {"type": parsed(parse), "default": default, "show_default": bool(default)}


def _joined(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> str:
    """Join the values of an option that may be repeated."""
    return ",".join(values)


def _file_of(names: Sequence[str]) -> Callable[[click.Context, click.Parameter, Path | None], None]:
    """Return a callback that reads the file into the defaults of these settings; others belong to other commands."""

    def load_file(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
        if path is not None:
            many = {setting.name for setting in fields(Config) if setting.metadata["many"]}
            try:
                values = {name: value for name, value in read_file(path).items() if name in names}
            except GpuExporterError as error:
                raise CommandFailure(str(error), 2) from error
            ctx.default_map = {name: [value] if name in many else value for name, value in values.items()}

    return load_file
