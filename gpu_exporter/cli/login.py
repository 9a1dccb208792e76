"""The options of commands that ask a running exporter or Prometheus, and the client that they describe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from gpu_exporter.model.errors import WrongUsage

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(path_type=Path)
password_option = click.option("--password-file", type=FILE, help="File with the user's password.")
ca_option = click.option("--ca-file", type=FILE, help="File with the CA certificates to verify an https URL.")
NAMES = ("user", "password_file", "token_file", "ca_file")


def login_options(function: F) -> F:
    """Add the options for credentials and certificates at `--url`."""
    options = (
        click.option("--user", default="", help="User name at that URL."),
        password_option,
        click.option("--token-file", type=FILE, help="File with a bearer token for that URL, instead of a user."),
        ca_option,
    )
    for option in reversed(options):
        function = option(function)
    return function


def login(values: dict[str, Any], *, asks: bool) -> dict[str, Any]:
    """Take the values of these options out of those of a command, which asks something at a URL or only reads here.

    Raises GpuExporterError for options that would have no effect.
    """
    credentials = {name: values.pop(name) for name in NAMES}
    if not asks and (given := next(filter(credentials.get, NAMES), "")):
        raise WrongUsage(f"--{given.replace('_', '-')} is for a server: name it with --url")
    refuse_half(credentials["user"], credentials["password_file"])
    return credentials


def refuse_half(user: str, password_file: Path | None) -> None:
    """Raise GpuExporterError for a user without a password, or a password without a user."""
    if bool(user) != bool(password_file):
        raise WrongUsage("--user and --password-file belong together: give both")
