"""`gpu-exporter release` and `resume`: requests to a running exporter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gpu_exporter.cli.options import Command, parsed, settings
from gpu_exporter.config import ENV_PREFIX
from gpu_exporter.diagnosis import remote
from gpu_exporter.inputs import release_duration


def _remote_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add options for the URL of a running exporter and the credentials."""
    file = click.Path(path_type=Path)
    for option in (
        click.option("--ca-file", type=file, help="File with the CA certificates to verify an https URL."),
        click.option("--password-file", type=file, help="File with the user's password."),
        click.option("--user", default="", help="User name to log in with, instead of the token."),
        settings("token_file"),
        click.option(
            "--url",
            envvar=f"{ENV_PREFIX}URL",
            default="http://localhost:9400",
            show_default=True,
            show_envvar=True,
            help="URL of the running exporter.",
        ),
    ):
        function = option(function)
    return function


@click.command("release", cls=Command)
@_remote_options
@click.option(
    "--for", "seconds", type=parsed(release_duration), default="10m", show_default=True, help="Resume after this time."
)
def release_command(seconds: float, **options: Any) -> None:
    """Make a running exporter release the driver, for a driver upgrade, a MIG change or a GPU reset.

    It stays released until `gpu-exporter resume` or until the time is over. Run the command again to set a new end
    time. Exit code 0 once the exporter has released the driver.
    """
    click.echo(remote.Remote(**options).post(f"/-/release?for={seconds:.3f}"))


@click.command("resume", cls=Command)
@_remote_options
def resume_command(**options: Any) -> None:
    """Make a running exporter use the driver again, after `gpu-exporter release`.

    Exit code 0 once the driver answers.
    """
    click.echo(remote.Remote(**options).post("/-/resume"))
