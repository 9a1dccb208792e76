"""The folder of stored profiles: bounded in age, number and size, for one exporter. Only its user may read it."""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_exporter.io.file_access import read, write_private
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling.pyspy import SCRATCH_PREFIX
from gpu_exporter.profiling.records import (
    MOST_BYTES,
    ProcessStacks,
    Summary,
    decode_stacks,
    decode_summary,
    encode,
)

log = logging.getLogger(__name__)

# Unix milliseconds.
ID = re.compile(r"[0-9]{13}", re.ASCII)
SUFFIX, DRAFT = ".profile.gz", ".draft"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is kept at most: seconds, number of profiles, and bytes of their files."""

    seconds: float = 7 * 86400.0
    count: int = 2000
    bytes: int = 64 << 20


def newest(folder: Path, since: float) -> list[Summary]:
    """Return the profiles in a folder since a time (unix seconds), oldest first; none if it cannot be read."""
    found: list[Summary] = []
    try:
        names = sorted((path.name for path in folder.iterdir()), reverse=True)
    except OSError:
        return []
    for name in names:
        if not ID.fullmatch(name.removesuffix(SUFFIX)):
            continue
        try:
            summary = decode_summary(read(folder / name, MOST_BYTES))
        except (OSError, ValueError):  # just removed, or damaged
            continue
        if summary.at < since:
            break
        found.insert(0, summary)
    return found


@dataclass(frozen=True, slots=True)
class Stored:
    """A profile, and the bytes of its file; 0 if it could not be written, and is only in memory."""

    summary: Summary
    size: int


class ProfileStore:
    """The profiles, oldest first. One thread calls `load` and `add`; any may call the rest.

    The constructor raises GpuExporterError if the folder cannot be used.
    """

    def __init__(self, folder: Path, bounds: Bounds) -> None:
        self.folder, self._bounds = folder, bounds
        # Replaced as a whole: other threads read it.
        self._stored: Sequence[Stored] = ()
        self._complained = False
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
                raise GpuExporterError(
                    f"--profile-dir {folder}: must be a folder of this user, and no link", fix="choose another one"
                )
            folder.chmod(0o700)
        except OSError as error:
            raise GpuExporterError(f"--profile-dir {folder}: {error.strerror}", fix="choose another folder") from error

    @property
    def summaries(self) -> Sequence[Summary]:
        """The stored profiles, oldest first."""
        return [stored.summary for stored in self._stored]

    def load(self, now: float) -> None:
        """Read the profiles of an earlier process, and remove what it left half-written. `now` is in unix seconds."""
        found = []
        for path in sorted(self.folder.iterdir()):
            name = path.name.removesuffix(SUFFIX)
            if path.name.startswith(SCRATCH_PREFIX):
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.endswith(DRAFT):
                path.unlink(missing_ok=True)
            elif path.name.endswith(SUFFIX) and ID.fullmatch(name):
                try:
                    content = read(path, MOST_BYTES)
                    found.append(Stored(decode_summary(content), len(content)))
                except (OSError, ValueError) as error:
                    log.warning("profile %s is damaged and removed: %s", path, error)
                    path.unlink(missing_ok=True)
        self._stored = found
        self._trim(now)

    def add(self, summary: Summary, stacks: Sequence[ProcessStacks]) -> bool:
        """Store a profile; return False if only its summary is kept, because the file cannot be written.

        This is logged once, until it works again.
        """
        content = encode(summary, stacks)
        if len(content) > MOST_BYTES:
            content = encode(summary, ())
        size, path = len(content), self._path(summary.id)
        self._trim(summary.at, size)  # before, so that the folder never exceeds its bounds
        draft = path.with_suffix(DRAFT)
        try:
            write_private(draft, content)
            draft.replace(path)
            self._complained = False
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            if not self._complained:
                log.warning("profile %s cannot be stored: %s; only its summary is kept", path, error.strerror)
            self._complained, size = True, 0
        self._stored = [*self._stored, Stored(summary, size)]
        return size > 0

    def stacks(self, profile_id: str) -> list[ProcessStacks] | None:
        """Return the stacks of a stored profile; None if there is no such profile, or it has no file."""
        if not any(stored.summary.id == profile_id and stored.size for stored in self._stored):
            return None
        try:
            return decode_stacks(read(self._path(profile_id), MOST_BYTES))
        except (OSError, ValueError):  # removed meanwhile, or damaged
            return None

    def _path(self, profile_id: str) -> Path:
        return self.folder / f"{profile_id}{SUFFIX}"

    def _trim(self, now: float, room: int = 0) -> None:
        """Remove the oldest profiles until the bounds hold, also with a further file of `room` bytes."""
        stored, bounds = list(self._stored), self._bounds
        size = sum(each.size for each in stored) + room
        while stored and (
            now - stored[0].summary.at > bounds.seconds
            or len(stored) + bool(room) > bounds.count
            or size > bounds.bytes
        ):
            oldest = stored.pop(0)
            size -= oldest.size
            with suppress(OSError):
                self._path(oldest.summary.id).unlink(missing_ok=True)
        self._stored = stored
