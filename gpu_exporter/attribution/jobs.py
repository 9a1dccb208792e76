"""The job mapping directory that prologs of Slurm and other schedulers keep, as dcgm-exporter has it.

A file is named by the GPU it is of: by index (`0`), of a MIG instance `<index>.<GPU instance id>`, or by UUID, as the
prolog knows it where CUDA_VISIBLE_DEVICES holds UUIDs. Each line of it is the id of a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpu_exporter.attribution import files
from gpu_exporter.attribution.devices import parse
from gpu_exporter.model.lookup import LookupFailed

LARGEST_FILE = 64 << 10
LONGEST_ID = 256
# Files by the name of a GPU, and the ids in it.
Jobs = Mapping[str, tuple[str, ...]]


class JobFiles:
    """Reads the directory. Files from before this boot were left by a crash and are ignored."""

    def __init__(self, directory: Path, procfs: Path) -> None:
        self._directory, self._procfs = directory, procfs
        self._seen: dict[str, tuple[int, int, tuple[str, ...]]] = {}

    def ask(self) -> Jobs:
        """Return the jobs by file name. Raises LookupFailed, with the jobs of readable files if there are any."""
        try:
            names = sorted(file.name for file in self._directory.iterdir() if parse(file.name))
        except OSError as error:
            reasons = {FileNotFoundError: "no_directory", PermissionError: "no_permission"}
            reason = reasons.get(type(error), "unreadable")
            cure = "the prolog makes it; check --hpc-job-mapping-dir"
            raise LookupFailed(reason, f"{self._directory}: {error.strerror}: {cure}") from error
        booted = self._booted()
        jobs: dict[str, tuple[str, ...]] = {}
        problem = ""
        for name in names:
            try:
                jobs[name] = self._read(name, booted)
            except FileNotFoundError:  # removed by an epilog meanwhile
                continue
            except OSError as error:
                problem = f"{self._directory / name}: {error.strerror}: make it a file that this user can read"
        self._seen = {name: seen for name, seen in self._seen.items() if name in jobs}
        jobs = {name: ids for name, ids in jobs.items() if ids}
        if problem:
            raise LookupFailed("unreadable", problem, jobs)
        return jobs

    def _read(self, name: str, booted: float) -> tuple[str, ...]:
        read = files.read(self._directory / name, LARGEST_FILE)
        if read is None:
            return ()
        content, about = read
        if about.st_mtime < booted:
            return ()
        written = (about.st_mtime_ns, about.st_size)
        last = self._seen.get(name)
        jobs = _ids(content)
        if content and not content.endswith(b"\n") and (last is None or last[:2] != written):
            # Perhaps still being written: the last content holds until the file is unchanged between two reads.
            jobs = last[2] if last else ()
        self._seen[name] = (*written, jobs)
        return jobs

    def _booted(self) -> float:
        """Unix time of the boot; 0 if it cannot be determined."""
        try:
            lines = (self._procfs / "stat").read_text(errors="replace").splitlines()
            return float(next(line for line in lines if line.startswith("btime ")).split()[1])
        except (OSError, StopIteration, ValueError, IndexError):
            return 0.0


def _ids(content: bytes) -> tuple[str, ...]:
    """Return each printable line once."""
    try:
        lines = [line.strip() for line in content.decode("utf-8").splitlines()]
    except UnicodeDecodeError:
        return ()
    return tuple(dict.fromkeys(line for line in lines if line and line.isprintable() and len(line) <= LONGEST_ID))
