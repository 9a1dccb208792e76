"""Package the Helm chart of the last commit into dist/, the same bytes on every machine and at any time."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import helm_python

from release.source import DIST, checkout


def main() -> None:
    """Write the archive, and print its name."""
    DIST.mkdir(exist_ok=True)
    # Helm copies the times of the files, which are those of the commit here.
    with TemporaryDirectory() as folder:
        checkout(Path(folder))
        path = Path(helm_python.package(Path(folder) / "helm" / "gpu-exporter", destination=DIST))
    print(path.relative_to(DIST.parent))


if __name__ == "__main__":
    main()
