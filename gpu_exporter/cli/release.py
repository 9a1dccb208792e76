"""`gpu-exporter release` and `resume`: requests to a running exporter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gpu_exporter.cli import local_exporter
from gpu_exporter.cli.local_exporter import LocalCommand
from gpu_exporter.cli.options import parsed, settings
from gpu_exporter.config import ENV_PREFIX
from gpu_exporter.diagnosis import remote
from gpu_exporter.inputs import Address, release_duration


def _remote_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add options for the URL of a running exporter and the credentials."""
    file = click.Path(path_type=Path)
    for option in (
        click.option("--ca-file", type=file, help="File with the CA certificates to verify an https URL."),
        click.option("--password-file", type=file, help="File with the user's password."),
        click.option("--user", default="", help="User name to log in with, instead of the token."),
        settings("token_file", *local_exporter.SETTINGS),
        click.option(
            "--url",
            envvar=f"{ENV_PREFIX}URL",
            show_envvar=True,
            help="URL of the running exporter. Default: this machine, with the port of the exporter's setting --address"
            " and the certificate of its --web.config.file.",
        ),
    ):
        function = option(function)
    return function


@click.command("release", cls=LocalCommand)
@_remote_options
@click.option(
    "--for", "seconds", type=parsed(release_duration), default="10m", show_default=True, help="Resume after this time."
)
def release_command(seconds: float, **options: Any) -> None:
    """Make a running exporter release the driver, for a driver upgrade, a MIG change or a GPU reset.

    It stays released until `gpu-exporter resume` or until the time is over. Run the command again to set a new end
    time. Exit code 0 once the exporter has released the driver.
    """
    click.echo(_remote(**options).post(f"/-/release?for={seconds:.3f}"))


@click.command("resume", cls=LocalCommand)
@_remote_options
def resume_command(**options: Any) -> None:
    """Make a running exporter use the driver again, after `gpu-exporter release`.

    Exit code 0 once the driver answers.
    """
    click.echo(_remote(**options).post("/-/resume"))


def _remote(
    *, url: str | None, address: Address, web_config_file: Path | None, ca_file: Path | None, **login: Any
) -> remote.Remote:
    """Return the exporter at `url`, else that of this environment. Its own certificate names no CA and no localhost."""
    if url:
        return remote.Remote(url, ca_file=ca_file, **login)
    url, certificate = local_exporter.url_and_certificate(address, web_config_file)
    return remote.Remote(url, ca_file=ca_file, certificate=b"" if ca_file else certificate, **login)
