"""`python -m content`, or `make generate`: write the committed files that are rendered from the catalogues."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from content import artifacts
from gpu_exporter.model.errors import GpuExporterError

ROOT = Path(__file__).parents[1]


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 if a file is stale.")
@click.option("--root", type=click.Path(path_type=Path), default=ROOT, help="Root of another checkout.")
def generate(check: bool, root: Path) -> None:
    """Write the committed files that are rendered from the catalogues. Exit code 1 if --check finds a stale file."""
    try:
        artifacts.check()
        changed = artifacts.stale(root) if check else artifacts.write(root)
    except GpuExporterError as error:
        click.echo(error, err=True)
        sys.exit(2)
    for name in changed:
        click.echo(f"{name}: {'stale; run `make generate`' if check else 'written'}")
    if reason := artifacts.left_out(root):
        click.echo(reason, err=True)
    sys.exit(1 if check and changed else 0)


if __name__ == "__main__":
    generate()
