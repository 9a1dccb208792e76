"""`gpu-exporter generate`: the committed files that are rendered from the catalogues. For developers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from content import artifacts
from gpu_exporter.cli.commands import command
from gpu_exporter.cli.options import Command


@command("generate", Command, error_code=2)
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 if a file is stale.")
@click.option("--root", type=click.Path(path_type=Path), default=".", help="Root directory of the repository.")
def generate_command(check: bool, root: Path) -> None:
    """Exit code 1 if --check finds a stale file."""
    artifacts.check(root)
    changed = artifacts.stale(root) if check else artifacts.write(root)
    for name in changed:
        click.echo(f"{name}: {'stale; run `gpu-exporter generate`' if check else 'written'}")
    if reason := artifacts.left_out(root):
        click.echo(reason, err=True)
    sys.exit(1 if check and changed else 0)
