"""`gpu-exporter resume`: a request to a running exporter."""

from __future__ import annotations

from typing import Any

import click

from gpu_exporter.cli.commands import command
from gpu_exporter.cli.local_exporter import SETTINGS, LocalCommand, remote_of, remote_options
from gpu_exporter.cli.options import settings


@command("resume", LocalCommand)
@remote_options
@settings("token_file", *SETTINGS)
def resume_command(**options: Any) -> None:
    """Exit code 0 once the driver answers."""
    click.echo(remote_of(**options).post("/-/resume"))
