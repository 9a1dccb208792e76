"""The token: a secret in a file, with which users of this machine may release and resume."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from gpu_exporter.io.file_access import FileWorker, open_unlinked, read
from gpu_exporter.model.errors import GpuExporterError

# How long the token file may take to be removed at the end.
REMOVE_SECONDS = 0.5
MAX_TOKEN_BYTES = 1 << 10
# By its prefix a token file is recognised that an exporter left behind that was killed.
PREFIX = "gpu-exporter-"
WRITTEN = re.compile(rb"gpu-exporter-[A-Za-z0-9_-]{43}\n?")


class Token:
    """A secret in a file that only this user can read. It counts only in requests from this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._secret = f"{PREFIX}{secrets.token_urlsafe(32)}"
        self._worker = FileWorker("token-file")

    def __enter__(self) -> None:
        """Write the token to its file. Raises GpuExporterError, also if something else is there."""
        path = self._path
        try:
            self._worker.call(self._write)
        except (TimeoutError, FileExistsError) as error:
            raise GpuExporterError(f"token file {path}: {error.strerror}") from error
        except OSError as error:
            why = error.strerror or error
            raise GpuExporterError(f"token file {path}: {why}; its directory must exist and be writable") from error

    def _write(self) -> None:
        path = self._path
        if os.path.lexists(path) and not _is_token(path):
            raise FileExistsError(0, "exists and is not a token; delete it, or choose another file with --token-file")
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{self._secret}\n")
            draft.replace(path)
        except OSError:
            draft.unlink()
            raise

    def allows(self, authorization: str, address: str) -> bool:
        """Return whether a request with this header and from this address has the token."""
        return has_token(authorization, self._secret.encode()) and is_loopback(address)

    def __exit__(self, *exception: object) -> None:
        """Remove the file, unless it has other content by now."""
        with suppress(OSError):
            self._worker.call(self._remove, REMOVE_SECONDS)

    def _remove(self) -> None:
        if not self._path.is_symlink() and read(self._path, MAX_TOKEN_BYTES).strip() == self._secret.encode():
            self._path.unlink()


def has_token(authorization: str, secret: bytes) -> bool:
    """Return whether a header has this token. An empty token is none."""
    scheme, _, given = authorization.partition(" ")
    matches = secrets.compare_digest(given.strip().encode("utf-8", "replace"), secret)
    return scheme.lower() == "bearer" and matches and bool(secret)


def _is_token(path: Path) -> bool:
    """Return whether gpu-exporter wrote this file: a regular file, not a link, that contains only a token."""
    try:
        with open_unlinked(path) as file:
            return WRITTEN.fullmatch(file.read(MAX_TOKEN_BYTES)) is not None
    except OSError:
        return False


def is_loopback(address: str) -> bool:
    """Return whether the address of a peer is a loopback address."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return bool((getattr(ip, "ipv4_mapped", None) or ip).is_loopback)
