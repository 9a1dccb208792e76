"""Write requirements/: the packages of the image with their versions and hashes, by extra. `make lock` runs it.

uv resolves what setup.cfg asks for, for the image's Python and every platform, with the hashes of all files of a
version. An extra gets the versions of the lock without extras, so that both can be installed together.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
# Those that `docker build --build-arg EXTRAS=…` offers.
EXTRAS = ("kubernetes", "profile")
# As in the Dockerfile.
PYTHON = "3.12"


def path(extra: str = "") -> Path:
    """Return the lock of the image with an extra."""
    return FOLDER / f"image{'-' if extra else ''}{extra}.txt"


def command(extra: str = "") -> list[str]:
    """Return the command that writes a lock."""
    own = ["--extra", extra, "--constraint", str(path())] if extra else []
    fixed = ["--generate-hashes", "--universal", "--python-version", PYTHON, "--no-annotate", "--quiet"]
    header = ["--custom-compile-command", "make lock"]
    return ["uv", "pip", "compile", "setup.cfg", *own, *fixed, *header, "--output-file", str(path(extra))]


def main() -> None:
    """Write all locks, that without extras first."""
    FOLDER.mkdir(exist_ok=True)
    for extra in ("", *EXTRAS):
        path(extra).unlink(missing_ok=True)
        subprocess.run(command(extra), cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
