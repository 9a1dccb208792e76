"""Update or verify the copied JavaScript: `python -m release.vendored [verify | update NAME [VERSION]]`; needs npm.

The live page draws with uPlot, its tests check it with axe-core, and the documentation site draws diagrams with Mermaid
and searches without a server through iframe-worker. All are unchanged files of their npm packages.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypedDict

ROOT = Path(__file__).parents[1]


class Package(NamedTuple):
    """An npm package: the file with its version and checksums, and its files by the path of their copy."""

    lock: Path
    files: Mapping[Path, str]


class Lock(TypedDict):
    """The version of a package, npm's checksum of its archive, and SHA-256 of each copied file."""

    package: str
    version: str
    license: str
    integrity: str
    files: dict[str, str]


LIVE, TESTS, SITE = ROOT / "gpu_exporter" / "live_page", ROOT / "tests" / "page", ROOT / "release" / "site"
ASSETS = SITE / "theme" / "assets"
PACKAGES: Mapping[str, Package] = {
    "uplot": Package(
        LIVE / "uplot.json",
        {
            LIVE / "static" / "uPlot.iife.min.js": "dist/uPlot.iife.min.js",
            LIVE / "static" / "uPlot.min.css": "dist/uPlot.min.css",
            LIVE / "static" / "uPlot.LICENSE.txt": "LICENSE",
        },
    ),
    "axe-core": Package(
        TESTS / "axe.json",
        {TESTS / "axe.min.js": "axe.min.js", TESTS / "axe.LICENSE.txt": "LICENSE"},
    ),
    "@mermaid-js/tiny": Package(
        SITE / "mermaid.json",
        {ASSETS / "mermaid.tiny.js": "dist/mermaid.tiny.js", ASSETS / "mermaid.LICENSE.txt": "LICENSE"},
    ),
    "iframe-worker": Package(
        SITE / "iframe-worker.json",
        {ASSETS / "iframe-worker.js": "shim/index.js", ASSETS / "iframe-worker.LICENSE.txt": "LICENSE"},
    ),
}


def main(arguments: Sequence[str]) -> None:
    """Run one command; exit with the problems, one per line."""
    if arguments and arguments[0] == "update" and len(arguments) > 1 and arguments[1] in PACKAGES:
        update(arguments[1], arguments[2] if len(arguments) > 2 else "latest")
    elif arguments not in ([], ["verify"]):
        raise SystemExit(f"{__doc__}\nNAME: {', '.join(PACKAGES)}")
    problems = [problem for name in PACKAGES for problem in verify(name)]
    if problems:
        raise SystemExit("\n".join(problems))


def version(name: str) -> str:
    """Return the version of the copies."""
    lock: Lock = json.loads(PACKAGES[name].lock.read_text("utf-8"))
    return lock["version"]


def verify(name: str) -> list[str]:
    """Return which copied files differ from the checksums, with the fix."""
    package = PACKAGES[name]
    lock: Lock = json.loads(package.lock.read_text("utf-8"))
    fix = f"fix: python -m release.vendored update {name} {lock['version']}"
    expected = {package.lock.parent / path: digest for path, digest in lock["files"].items()}
    if expected.keys() != package.files.keys():
        return [f"{package.lock.relative_to(ROOT)} lists other files; {fix}"]
    return [
        f"{path.relative_to(ROOT)} differs from {name} {lock['version']}; {fix}"
        for path, digest in expected.items()
        if not path.is_file() or _digest(path.read_bytes()) != digest
    ]


def update(name: str, wanted: str) -> None:
    """Copy the files of a version, and write their checksums. npm compares the archive with that of its registry."""
    package = PACKAGES[name]
    with TemporaryDirectory() as scratch:
        packed = subprocess.run(
            ["npm", "pack", f"{name}@{wanted}", "--json", "--pack-destination", scratch],
            check=True,
            capture_output=True,
            text=True,
        )
        (about,) = json.loads(packed.stdout)
        contents = _unpacked(Path(scratch) / about["filename"])
    for path, member in package.files.items():
        path.write_bytes(contents[f"package/{member}"])
    lock = Lock(
        package=name,
        version=about["version"],
        license=json.loads(contents["package/package.json"])["license"],
        integrity=about["integrity"],
        files={path.relative_to(package.lock.parent).as_posix(): _digest(path.read_bytes()) for path in package.files},
    )
    package.lock.write_text(json.dumps(lock, indent=2) + "\n", "utf-8")


def _unpacked(archive: Path) -> Mapping[str, bytes]:
    with tarfile.open(archive) as packed:
        members = {member.name: packed.extractfile(member) for member in packed if member.isfile()}
        return {name: file.read() for name, file in members.items() if file}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
