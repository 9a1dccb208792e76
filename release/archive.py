"""Archives whose bytes depend on names and contents only."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack an archive; the modes of files do not depend on the umask."""
    archive.extractall(folder, filter="data")


def normalise(path: Path, time: int) -> None:
    """Rewrite a .tar.gz: sorted, with one time, without owners, and with the modes 644 and 755."""
    with tarfile.open(path) as archive:
        members = sorted(archive.getmembers(), key=lambda member: member.name)
        contents = {member.name: stream.read() for member in members if (stream := archive.extractfile(member))}
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            entry = tarfile.TarInfo(member.name)
            entry.type, entry.linkname, entry.mtime = member.type, member.linkname, time
            if member.islnk():  # setuptools links files that are in the package twice
                entry.type, entry.linkname = tarfile.REGTYPE, ""
            entry.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            content = contents.get(member.name, b"")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    with path.open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=time) as compressed:
        compressed.write(plain.getvalue())
