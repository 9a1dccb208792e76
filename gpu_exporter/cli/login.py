"""The options of commands that ask a running exporter or Prometheus, and the client that they describe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

NAMES = ("user", "password_file", "token_file", "ca_file")


def login_options(function: F) -> F:
    """Add the options for credentials and certificates at `--url`."""
    options = (
        click.option("--user", default="", help="User name at that URL."),
        click.option("--password-file", type=click.Path(path_type=Path), help="File with the user's password."),
        click.option(
            "--token-file",
            type=click.Path(path_type=Path),
            help="File with a bearer token for that URL, instead of a user.",
        ),
        click.option(
            "--ca-file", type=click.Path(path_type=Path), help="File with the CA certificates to verify an https URL."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def login(values: dict[str, Any]) -> dict[str, Any]:
    """Take the values of these options out of those of a command."""
    return {name: values.pop(name) for name in NAMES}
