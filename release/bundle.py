"""Pack what `gpu-exporter bundle` of the wheel writes into dist/: rules, dashboards, runbooks, chart and examples."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_exporter.version import __version__
from release.archive import normalise
from release.sbom import install
from release.source import DIST, commit_time, wheel

BUNDLE = DIST / f"gpu-exporter-{__version__}-bundle.tar.gz"


def main() -> None:
    """Write the archive, and print its name."""
    with TemporaryDirectory() as name:
        python = install(wheel(), Path(name) / "environment")
        folder = Path(name) / f"gpu-exporter-{__version__}"
        if subprocess.run([python.parent / "gpu-exporter", "bundle", "--out", folder], stdout=sys.stderr).returncode:
            sys.exit("cannot write the bundle")
        with tarfile.open(BUNDLE, "w:gz") as archive:
            archive.add(folder, folder.name)
    normalise(BUNDLE, commit_time())
    print(BUNDLE.relative_to(DIST.parent))


if __name__ == "__main__":
    main()
