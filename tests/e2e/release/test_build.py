"""The files of a release depend on the commit only, and the wheel installs what its SBOM lists."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

from gpu_exporter.version import __version__
from tests import ROOT
from tests.e2e.release.conftest import TIME, copy_committed, make, pip, run

BUNDLE = f"gpu-exporter-{__version__}-bundle.tar.gz"
FILES = {
    f"gpu_exporter-{__version__}-py3-none-any.whl",
    f"gpu_exporter-{__version__}.tar.gz",
    f"gpu-exporter-{__version__}.tgz",
    BUNDLE,
}


def fake_clock() -> Mapping[str, str]:
    """Return the environment of a process whose clock is more than a year ahead."""
    (library,) = (ROOT / ".tools/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
    return {"LD_PRELOAD": str(library), "FAKETIME": "+400d", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def leave_traces(clone: Path) -> None:
    """Write what earlier builds and unfinished work leave behind."""
    stale = clone / "build" / "lib" / "gpu_exporter"
    stale.mkdir(parents=True)
    (stale / "removed.py").write_text("")
    (clone / "gpu_exporter" / "unfinished.py").write_text("")
    listed = clone / "gpu_exporter.egg-info"
    listed.mkdir()
    (listed / "SOURCES.txt").write_text("setup.cfg\ngpu_exporter/unfinished.py\n")
    (clone / "README.md").write_text("changed")


@pytest.mark.slowest
def test_two_builds_are_identical(built: Path, origin: Path, tmp_path: Path) -> None:
    """In another folder, with another umask, clock and time zone, and beside traces of other work."""
    clone = tmp_path / "a folder with another name" / "two"
    clone.parent.mkdir()
    run(["git", "clone", "--quiet", str(origin), str(clone)], tmp_path, umask=0o077)
    leave_traces(clone)
    elsewhere = {"TZ": "Asia/Tokyo", "LC_ALL": "C"}
    for target in ("wheel", "chart"):
        make(target, clone, umask=0o077, **elsewhere, **fake_clock())
    later = contents(clone)
    assert set(later) == FILES - {BUNDLE}
    # It downloads packages, for which the clock must be right.
    make("bundle", clone, umask=0o077, made=["wheel"], **elsewhere)
    first, second = contents(built), contents(clone) | later
    assert set(first) == set(second) == FILES
    assert [name for name in sorted(FILES) if first[name] != second[name]] == []


def contents(clone: Path) -> dict[str, bytes]:
    """Return the content of each file in dist/."""
    return {path.name: path.read_bytes() for path in (clone / "dist").iterdir()}


def test_archives_have_neutral_metadata(built: Path) -> None:
    """The time of the commit, no owners, and files that everybody may read."""
    (wheel,) = (built / "dist").glob("*.whl")
    with ZipFile(wheel) as archive:
        assert {entry.external_attr >> 16 & 0o444 for entry in archive.infolist()} == {0o444}
        assert "gpu_exporter/catalogue/xids.csv" in archive.namelist()
    members: list[tarfile.TarInfo] = []
    for packed in (built / "dist").glob("*.tar.gz"):
        with tarfile.open(packed) as files:
            members += files.getmembers()
    assert {(member.mtime, member.uid, member.gid, member.uname, member.gname) for member in members} == {
        (TIME, 0, 0, "", "")
    }
    assert {member.mode for member in members} == {0o644, 0o755}


def test_sbom_lists_what_the_wheel_installs(built: Path, installed: Path, tmp_path: Path) -> None:
    """Every package with its version, and no others; pip finds no conflict, and the command runs."""
    clone = shutil.copytree(built, tmp_path / "clone", symlinks=True)
    make("sbom", clone, made=["wheel"])
    document = json.loads((clone / "dist" / f"gpu-exporter-{__version__}.cdx.json").read_text())
    subject = document["metadata"]["component"]
    listed = {(normal(part["name"]), part["version"]) for part in (subject, *document["components"])}

    python = str(installed / "bin/python")
    pip(installed, "check")
    script = "import importlib.metadata as i, json; print(json.dumps([(d.name, d.version) for d in i.distributions()]))"
    present = {(normal(name), version) for name, version in json.loads(run([python, "-c", script], tmp_path))}
    assert listed == present
    assert (subject["name"], subject["version"]) == ("gpu-exporter", __version__)
    (root,) = (entry for entry in document["dependencies"] if entry["ref"] == subject["bom-ref"])
    assert len(root["dependsOn"]) > 4
    assert __version__ in run([str(installed / "bin/gpu-exporter"), "--version"], tmp_path)


def test_pip_leaves_no_build_folder(tmp_path: Path) -> None:
    """From it, the next build would copy modules that the sources have no more."""
    source = tmp_path / "source"
    copy_committed(source)
    own = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path / "wheels"))
    run([sys.executable, "-m", "pip", "wheel", *own, "."], source, TMPDIR=str(tmp_path))
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    assert "gpu_exporter/version.py" in ZipFile(wheel).namelist()
    assert not (source / "build").exists()
    assert [*tmp_path.glob("gpu-exporter-build-*")] == []


def normal(name: str) -> str:
    """Return the normalised name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()
