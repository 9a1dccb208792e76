"""`gpu-exporter release`: a request to a running exporter."""

from __future__ import annotations

from typing import Any

import click

from gpu_exporter.cli.commands import command
from gpu_exporter.cli.local_exporter import SETTINGS, LocalCommand, remote_of, remote_options
from gpu_exporter.cli.options import parsed, settings
from gpu_exporter.io.user_text import release_duration


@command("release", LocalCommand)
@remote_options
@settings("token_file", *SETTINGS)
@click.option(
    "--for", "seconds", type=parsed(release_duration), default="10m", show_default=True, help="Resume after this time."
)
def release_command(seconds: float, **options: Any) -> None:
    """It stays released until `gpu-exporter resume` or until the time is over. Run the command again to set a new end
    time. Exit code 0 once the exporter has released the driver.
    """
    click.echo(remote_of(**options).post(f"/-/release?for={seconds:.3f}"))
