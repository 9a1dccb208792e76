"""The commands other than `serve`: one module each, which parses the options and calls what does the work."""

from __future__ import annotations

import click

from gpu_exporter.cli.bundle import bundle_command
from gpu_exporter.cli.check import check_command
from gpu_exporter.cli.compare import compare_command
from gpu_exporter.cli.diagnose import diagnose_command
from gpu_exporter.cli.doctor import doctor_command
from gpu_exporter.cli.events import events_command
from gpu_exporter.cli.generate import generate_command
from gpu_exporter.cli.metrics import metrics_command
from gpu_exporter.cli.once import once_command
from gpu_exporter.cli.profile import profile_command
from gpu_exporter.cli.record import record_command
from gpu_exporter.cli.release import release_command, resume_command
from gpu_exporter.cli.remediate import remediate_command
from gpu_exporter.cli.sampler import sampler_command
from gpu_exporter.cli.top import top_command
from gpu_exporter.cli.trace import trace_command

# In the order in which the help lists them.
commands = click.Group(
    commands=[
        once_command,
        record_command,
        metrics_command,
        generate_command,
        doctor_command,
        check_command,
        events_command,
        diagnose_command,
        top_command,
        trace_command,
        profile_command,
        bundle_command,
        compare_command,
        release_command,
        resume_command,
        remediate_command,
        sampler_command,
    ]
)
