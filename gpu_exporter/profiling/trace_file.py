"""The file that a job writes its trace to, which may be hostile: a link, a device, of another user, huge or endless."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling.processes import Process

MOST_TRACE_BYTES = 1 << 30
# A trace of half a second takes some 80 MB; the job needs as much again while it renames the file.
LEAST_FREE_BYTES = 512 << 20
# A job may have any number of files in its folder.
MOST_ENTRIES = 100_000
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TraceFile:
    """A name in a folder of the job's own file system, which nobody can guess, until `close`.

    The folder is opened once, below the root of the process, component by component and without following links: what
    the job does to its file system later leads nowhere else. Raises GpuExporterError if it cannot be opened.
    """

    def __init__(self, process: Process, folder: PurePosixPath, procfs: Path) -> None:
        self._process, self._folder = process, folder
        stem = f"gpu-exporter-{secrets.token_hex(16)}"
        # The process inserts its PID, as it knows it, before the suffix.
        self.requested = str(folder / f"{stem}.json")
        self._name = f"{stem}_{process.inner_pid}.json"
        self._descriptor = self._open_folder(procfs)
        self._remove_left()

    def close(self) -> None:
        """Remove the file, whether it is complete or not, and close the folder."""
        for name in (self._name, f"{self._name}.tmp"):
            self._unlink(name)
        os.close(self._descriptor)

    @property
    def path(self) -> str:
        """The path of the file as the job sees it, for messages."""
        return str(self._folder / self._name)

    def check_space(self) -> None:
        """Raise GpuExporterError if the file system has too little space for a trace."""
        free = self.free_bytes()
        if free < LEAST_FREE_BYTES:
            raise GpuExporterError(
                f"{self._process.title}: only {free >> 20} MiB are free in its {self._folder}, and a trace may need"
                f" {LEAST_FREE_BYTES >> 20}: free some, or use another --trace-dir"
            )

    def free_bytes(self) -> int:
        """Return how many bytes are free where the job writes."""
        usage = os.fstatvfs(self._descriptor)
        return usage.f_bavail * usage.f_frsize

    def written_bytes(self) -> int:
        """Return how much the job has written so far."""
        for name in (self._name, f"{self._name}.tmp"):
            try:
                return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_size
            except OSError:
                continue
        return 0

    def is_complete(self) -> bool:
        """Return whether the file has its final name, which the job gives it at the end."""
        try:
            os.stat(self._name, dir_fd=self._descriptor, follow_symlinks=False)
        except OSError:
            return False
        return True

    def take(self) -> int:
        """Return a descriptor of the complete file, which has no name any more.

        Raises GpuExporterError if it is no regular file of the process's user, is linked elsewhere or too large.
        """
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self._name, flags, dir_fd=self._descriptor)
        except OSError as error:
            why = "a symbolic link" if error.errno == errno.ELOOP else (error.strerror or str(error))
            raise GpuExporterError(f"{self._process.title}: its trace is not used: {why}") from error
        try:
            if problem := unusable(os.fstat(descriptor), self._process.uid):
                raise GpuExporterError(f"{self._process.title}: its trace is not used: {problem}")
        except GpuExporterError:
            os.close(descriptor)
            raise
        self._unlink(self._name)
        return descriptor

    def _unlink(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self._descriptor)

    def _remove_left(self) -> None:
        """Remove what this process wrote for an exporter that has ended. A process records one trace at a time."""
        ours = re.compile(rf"gpu-exporter-[0-9a-f]{{32}}_{self._process.inner_pid}\.json(?:\.tmp)?")
        with suppress(OSError):
            descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._descriptor)
            try:
                with os.scandir(descriptor) as entries:
                    for name in [entry.name for entry in islice(entries, MOST_ENTRIES) if ours.fullmatch(entry.name)]:
                        self._unlink(name)
            finally:
                os.close(descriptor)

    def _open_folder(self, procfs: Path) -> int:
        try:
            descriptor = os.open(procfs / str(self._process.pid) / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            fix = "run as root, or as its user; in a container, add the capability SYS_PTRACE"
            raise GpuExporterError(f"{self._process.title}: its files: {error.strerror}", fix=fix) from error
        for part in self._folder.parts[1:]:
            try:
                inner = os.open(part, _FOLDER, dir_fd=descriptor)
            except OSError as error:
                fix = "give a folder that it can write to with --trace-dir"
                what = f"{self._process.title}: {self._folder}: {error.strerror}"
                raise GpuExporterError(what, fix=fix) from error
            finally:
                os.close(descriptor)
            descriptor = inner
        return descriptor


def unusable(about: os.stat_result, uid: int) -> str:
    """Return why a file is not the trace that a process of this user wrote; empty if it may be."""
    if not stat.S_ISREG(about.st_mode):
        return "not a regular file"
    if about.st_uid != uid:
        return f"it belongs to user {about.st_uid}, not to user {uid} as the process"
    if about.st_nlink != 1:
        return "it has other names"
    if about.st_size > MOST_TRACE_BYTES:
        return f"larger than {MOST_TRACE_BYTES >> 20} MiB: use a shorter --seconds, or --no-stacks"
    return "" if about.st_size else "it is empty"
