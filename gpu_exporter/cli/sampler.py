"""`gpu-exporter sampler`: samples stacks for an exporter in another container."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from gpu_exporter.cli.commands import command
from gpu_exporter.cli.logs import configure
from gpu_exporter.cli.options import Command, settings
from gpu_exporter.cli.stop import stop_event
from gpu_exporter.config import Config

# The user of the exporter in the image and in the chart.
IMAGE_UID = 65534


@command("sampler", Command)
@settings("procfs", "log_level", "log_format")
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    required=True,
    help="Unix socket to create, in a folder that only the exporter shares: its --profile-socket.",
)
@click.option(
    "--client-uid",
    "users",
    type=click.IntRange(min=0),
    multiple=True,
    default=(IMAGE_UID,),
    show_default=True,
    help="User of the exporter, the only one besides root and the user of this command who is answered.",
)
def sampler_command(socket: Path, users: Sequence[int], **values: Any) -> None:
    """It samples only processes that hold a GPU, with py-spy, and at most 5 s of 16 processes at a time. It needs the
    host's PIDs and the capability SYS_PTRACE; the exporter then needs neither root nor capabilities.
    """
    from gpu_exporter.host.files import HostFiles
    from gpu_exporter.profiling.sample_server import SampleServer
    from gpu_exporter.profiling.sampler import holds_gpu, local_sampler

    config = Config(**values)
    files = HostFiles(config.procfs, config.sysfs)
    lines = configure(config.log_level, config.log_format)
    try:
        server = SampleServer(socket, local_sampler(files), files, lambda pid: holds_gpu(config.procfs, pid), users)
        with closing(server):
            server.run(stop_event())
    finally:
        lines.drain()
