"""Build the site of this version beside those of earlier versions: `python -m release.site [--out FOLDER]`.

Each minor version has a folder of its own, which the next build of that version replaces; `versions.json`, from which
pages show the choice of versions, lists the folders that exist. To publish the site, copy the whole folder to a server.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from gpu_exporter.version import __version__
from release.site.links import ROOT

VERSION = re.compile(r"\d+\.\d+")
REDIRECT = """<!doctype html>
<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}/index.html">
<a href="{0}/index.html">Documentation</a>
"""


def main() -> None:
    """Build the site, and print where its first page is."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    out: Path = options.parse_args().out.resolve()
    build(out / minor(__version__), in_versions=True)
    write_versions(out)
    print(out / "index.html")


def build(folder: Path, *, in_versions: bool = False) -> None:
    """Build the site into a folder; with a choice of versions if it is one of several. Exits if a link is dead."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", **({"SITE_VERSIONS": "1"} if in_versions else {})}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    if code := subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
        sys.exit(code)


def write_versions(out: Path) -> None:
    """Write which versions a folder has, and a first page that leads to the newest."""
    versions = listed(out)
    (out / "versions.json").write_text(json.dumps(versions, indent=2) + "\n", "utf-8")
    (out / "index.html").write_text(REDIRECT.format(versions[0]["version"]), "utf-8")


def minor(version: str) -> str:
    """Return major and minor version: `0.2` of `0.2.1`."""
    return ".".join(version.split(".")[:2])


def listed(out: Path) -> list[dict[str, object]]:
    """Return the versions in a folder, the newest first, in the format of Material for MkDocs."""
    names = [path.name for path in out.iterdir() if path.is_dir() and VERSION.fullmatch(path.name)]
    names.sort(key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    return [{"version": name, "title": name, "aliases": ["latest"] * (name == names[0])} for name in names]


if __name__ == "__main__":
    main()
