"""Install the wheel of dist/ in an empty environment, check that environment, and list its packages in dist/*.cdx.json.

The format is CycloneDX. Versions are those that the package index has when this runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from email.parser import BytesParser
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from gpu_exporter.version import __version__
from release.source import DIST, commit_time, wheel

SBOM = DIST / f"gpu-exporter-{__version__}.cdx.json"


def main() -> None:
    """Write the list, and print its name."""
    with TemporaryDirectory() as name:
        python = install(wheel(), Path(name) / "environment")
        subject = Path(name) / "pyproject.toml"
        subject.write_text(project(wheel()))
        command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
        arguments = ["--pyproject", str(subject), "--output-file", str(SBOM), str(python)]
        subprocess.run(command + arguments, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(commit_time())})
    print(SBOM.relative_to(DIST.parent))


def project(path: Path) -> str:
    """Return a pyproject.toml that says what a wheel is: cyclonedx-bom reads the document's subject only from there."""
    with ZipFile(path) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = BytesParser().parsebytes(files.read(name))
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    lines = {"name": metadata["Name"], "version": metadata["Version"], "dependencies": required}
    return "[project]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())


def install(path: Path, folder: Path) -> Path:
    """Install a wheel and what it requires in a new environment without pip; return the interpreter."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--only-binary", ":all:", str(path)], check=True)
    subprocess.run([*pip, "check"], check=True)
    return python


if __name__ == "__main__":
    main()
