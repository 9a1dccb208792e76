"""`gpu-exporter release` and `resume`: requests to a running exporter."""

from __future__ import annotations

from typing import Any

import click

from gpu_exporter.cli.local_exporter import SETTINGS, LocalCommand, remote_of, remote_options
from gpu_exporter.cli.options import parsed, settings
from gpu_exporter.inputs import release_duration


@click.command("release", cls=LocalCommand)
@remote_options
@settings("token_file", *SETTINGS)
@click.option(
    "--for", "seconds", type=parsed(release_duration), default="10m", show_default=True, help="Resume after this time."
)
def release_command(seconds: float, **options: Any) -> None:
    """Make a running exporter release the driver, for a driver upgrade, a MIG change or a GPU reset.

    It stays released until `gpu-exporter resume` or until the time is over. Run the command again to set a new end
    time. Exit code 0 once the exporter has released the driver.
    """
    click.echo(remote_of(**options).post(f"/-/release?for={seconds:.3f}"))


@click.command("resume", cls=LocalCommand)
@remote_options
@settings("token_file", *SETTINGS)
def resume_command(**options: Any) -> None:
    """Make a running exporter use the driver again, after `gpu-exporter release`.

    Exit code 0 once the driver answers.
    """
    click.echo(remote_of(**options).post("/-/resume"))
