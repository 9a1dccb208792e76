"""Command line options made of settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from gpu_exporter.config import ENV_PREFIX, Config, flag, read_file
from gpu_exporter.inputs import boolean

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


def parsed(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return a parser of settings as a click type."""

    def convert(value: Any) -> Any:
        try:
            return parse(value) if isinstance(value, str) else value
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    convert.__name__ = "value"
    return convert


def settings(*names: str) -> Callable[[F], F]:
    """Add options for these settings: from the flag, else the environment, the config file, or the default."""

    def decorate(function: F) -> F:
        for setting in reversed(fields(Config)):
            if setting.name not in names:
                continue
            parse = setting.metadata["parse"]
            bare: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if parse is boolean else {}
            if setting.metadata["many"]:
                bare = {"multiple": True, "callback": _joined}
            function = click.option(
                f"--{flag(setting)}",
                setting.name,
                envvar=f"{ENV_PREFIX}{setting.name.upper()}",
                type=parsed(parse),
                default=None if setting.metadata["many"] else setting.metadata["default"],
                show_default=bool(setting.metadata["default"]),
                show_envvar=True,
                help=setting.metadata["help"],
                **bare,
            )(function)
        return click.option(
            "--config",
            type=click.Path(path_type=Path),
            envvar=f"{ENV_PREFIX}CONFIG",
            show_envvar=True,
            is_eager=True,
            expose_value=False,
            callback=_file_of(names),
            help="YAML file of settings, below environment and flags.",
        )(function)

    return decorate


def _joined(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> str:
    """Join the values of an option that may be repeated."""
    return ",".join(values)


def _file_of(names: Sequence[str]) -> Callable[[click.Context, click.Parameter, Path | None], None]:
    """Return a callback that reads the file into the defaults of these settings; others belong to other commands."""

    def load_file(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
        if path is not None:
            many = {setting.name for setting in fields(Config) if setting.metadata["many"]}
            values = {name: value for name, value in read_file(path).items() if name in names}
            ctx.default_map = {name: [value] if name in many else value for name, value in values.items()}

    return load_file
