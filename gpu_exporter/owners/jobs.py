"""The job mapping directory that prologs of Slurm and other schedulers write, in dcgm-exporter's form.

A file is named after a GPU: the number of its device file (`0` for /dev/nvidia0), as Slurm counts, `<number>.<GPU
instance id>` for a MIG instance, or its UUID, which a prolog knows where CUDA_VISIBLE_DEVICES holds UUIDs. Each line is
the id of a job.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from gpu_exporter.io.file_access import FILE_SECONDS, FileWorker
from gpu_exporter.kubernetes import limits
from gpu_exporter.model.lookup import Incomplete, LookupFailed
from gpu_exporter.owners import files
from gpu_exporter.owners.devices import parse

LARGEST_FILE = 64 << 10
LARGEST_STAT = 4 << 20
# File names, which are device ids, and the job ids in each file.
Jobs = Mapping[str, tuple[str, ...]]


class JobFiles:
    """Reads the directory. Files from before this boot were left by a crash and are ignored."""

    def __init__(self, directory: Path, procfs: Path, patience: float = FILE_SECONDS) -> None:
        self._directory, self._procfs, self._patience = directory, procfs, patience
        self._worker = FileWorker("hpc-jobs-files")
        self._seen: dict[str, tuple[int, int, tuple[str, ...]]] = {}
        self._dropped: Incomplete | None = None

    def ask(self) -> Jobs:
        """Return the jobs by file name. Raises LookupFailed, with the jobs of readable files if there are any."""
        return files.call_in_time(self._ask, self._worker, str(self._directory), self._patience)

    def _ask(self) -> Jobs:
        self._dropped = None
        try:
            names = self._names()
        except OSError as error:
            reasons = {FileNotFoundError: "no_directory", PermissionError: "no_permission"}
            reason = reasons.get(type(error), "unreadable")
            fix = "the prolog creates it; check --hpc-job-mapping-dir"
            raise LookupFailed(reason, f"{self._directory}: {error.strerror}", fix=fix) from error
        booted = self._booted()
        jobs: dict[str, tuple[str, ...]] = {}
        problem = ""
        for name in names:
            try:
                jobs[name] = self._read(name, booted)
            except FileNotFoundError:  # an epilog has removed it
                continue
            except OSError as error:
                if error.errno == errno.EFBIG:
                    self._drop("too_long", f"{name} is {error.strerror}")
                    continue
                problem = f"{self._directory / name}: {error.strerror}"
        self._seen = {name: seen for name, seen in self._seen.items() if name in jobs}
        jobs = self._bounded(jobs)
        if problem:
            raise LookupFailed("unreadable", problem, jobs, fix="make it a file that this user can read")
        if self._dropped:
            raise Incomplete(self._dropped.reason, self._dropped.message, jobs)
        return jobs

    def _names(self) -> list[str]:
        """Return the names of files that may be job files, sorted."""
        names: list[str] = []
        with os.scandir(self._directory) as entries:
            for number, entry in enumerate(entries):
                if number == limits.MOST_JOB_ENTRIES or len(names) == limits.MOST_JOB_FILES:
                    self._drop("too_many", f"more than {len(names)} files of GPUs, or {number} in all")
                    break
                if parse(entry.name):
                    names.append(entry.name)
        return sorted(names)

    def _bounded(self, jobs: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Return the files that have jobs, up to a limit of jobs."""
        bounded, total = {}, 0
        for name, ids in jobs.items():
            total += len(ids)
            if total > limits.MOST_JOBS:
                self._drop("too_many", f"more than {limits.MOST_JOBS} jobs")
                break
            if ids:
                bounded[name] = ids
        return bounded

    def _drop(self, reason: str, why: str) -> None:
        self._dropped = Incomplete(reason, f"{self._directory}: {why}: the others are left out")

    def _read(self, name: str, booted: float) -> tuple[str, ...]:
        answer = files.read(self._directory / name, LARGEST_FILE)
        if answer is None:
            return ()
        content, about = answer
        if about.st_mtime < booted:
            return ()
        written = (about.st_mtime_ns, about.st_size)
        last = self._seen.get(name)
        jobs = _ids(content)
        if any(len(job) > limits.LONGEST_JOB for job in jobs):
            self._drop("too_long", f"{name} has a line of more than {limits.LONGEST_JOB} characters")
            jobs = tuple(job for job in jobs if len(job) <= limits.LONGEST_JOB)
        if len(jobs) > limits.MOST_JOBS_OF_GPU:
            self._drop("too_many", f"{name} has {len(jobs)} jobs, more than {limits.MOST_JOBS_OF_GPU}")
            jobs = jobs[: limits.MOST_JOBS_OF_GPU]
        if content and not content.endswith(b"\n") and (last is None or last[:2] != written):
            # Perhaps still being written: the last content holds until the file is unchanged between two reads.
            jobs = last[2] if last else ()
        self._seen[name] = (*written, jobs)
        return jobs

    def _booted(self) -> float:
        """Return the Unix time of the boot; 0 if it cannot be determined."""
        try:
            answer = files.read(self._procfs / "stat", LARGEST_STAT)
            lines = answer[0].decode(errors="replace").splitlines() if answer else ()
            return float(next(line for line in lines if line.startswith("btime ")).split()[1])
        except (OSError, StopIteration, ValueError, IndexError):
            return 0.0


def _ids(content: bytes) -> tuple[str, ...]:
    """Return each printable line once."""
    try:
        lines = [line.strip() for line in content.decode("utf-8").splitlines()]
    except UnicodeDecodeError:
        return ()
    return tuple(dict.fromkeys(line for line in lines if line and line.isprintable()))
