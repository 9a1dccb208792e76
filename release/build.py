"""Build the wheel and the sdist of the last commit into dist/, the same bytes on every machine and at any time.

Built in a checkout, they depend on the times and modes of its files, on its umask and on leftovers of earlier builds.
Therefore the sdist is built from the files of the commit and rewritten, and the wheel is built from that sdist.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from release.archive import normalise, unpack
from release.source import DIST, checkout, commit_time


def main() -> None:
    """Write both files, and print their names."""
    time = commit_time()
    DIST.mkdir(exist_ok=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        checkout(folder / "commit")
        sdist = build("sdist", folder / "commit", folder / "sdist", time)
        normalise(sdist, time)
        with tarfile.open(sdist) as archive:
            unpack(archive, folder / "source")
        (source,) = (folder / "source").iterdir()
        wheel = build("wheel", source, folder / "wheel", time)
        for path in (sdist, wheel):
            print((DIST / path.name).relative_to(DIST.parent))
            (DIST / path.name).write_bytes(path.read_bytes())


def build(kind: str, source: Path, folder: Path, time: int) -> Path:
    """Build a wheel or an sdist with the setuptools of this environment; return its path."""
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(folder), str(source)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time)}
    # A wheel keeps the modes of the files that setuptools writes, which depend on the umask.
    built = subprocess.run(command, env=environment, umask=0o022, capture_output=True, text=True)
    if built.returncode:
        sys.exit(f"cannot build the {kind}:\n{built.stdout}{built.stderr}")
    (path,) = folder.iterdir()
    return path


if __name__ == "__main__":
    main()
