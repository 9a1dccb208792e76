"""The TLS settings, passwords and rate limit in use: follows the web configuration and the files that it names."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from pathlib import Path

from gpu_exporter.http.login import Login, Refusal, too_many
from gpu_exporter.http.proxies import TrustedProxies
from gpu_exporter.http.tls import context
from gpu_exporter.http.web_config import RateLimit, WebConfig, parse
from gpu_exporter.io.file_access import FileWorker
from gpu_exporter.io.user_text import file_content
from gpu_exporter.model.errors import GpuExporterError

log = logging.getLogger(__name__)

# How often the files are read.
FOLLOW_SECONDS = 1.0


class _Files:
    """The contents of files, or the errors, as last read, to notice changes.

    Contents are compared because times and inodes are unreliable after a copy or an atomic swap of symbolic links.
    """

    def __init__(self) -> None:
        self._seen: dict[Path, bytes | str] = {}

    def read(self, path: Path) -> bytes:
        content = self._seen[path] = file_content(path)
        if isinstance(content, str):
            raise OSError(0, content)
        return content

    def changed(self) -> bool:
        return any(file_content(path) != seen for path, seen in self._seen.items())


class _Bucket:
    """The rate limit of Prometheus' exporter-toolkit, over the requests of all clients."""

    def __init__(self, limit: RateLimit) -> None:
        self.limit = limit
        self._tokens, self._at = float(limit.burst), time.monotonic()

    def take(self) -> bool:
        now = time.monotonic()
        self._tokens = min(self.limit.burst, self._tokens + (now - self._at) / self.limit.interval)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Guard:
    """The web configuration in use. The constructor raises GpuExporterError if the file is faulty."""

    def __init__(self, path: Path | None = None, proxies: TrustedProxies | None = None) -> None:
        self.path = path
        self.proxies = proxies or TrustedProxies()
        self.config = WebConfig()
        self.context: ssl.SSLContext | None = None
        self._files = _Files()
        self._worker = FileWorker("web-config-file")
        self._lock = threading.Lock()
        self._late = False
        self._bucket: _Bucket | None = None
        self._login: Login | None = None
        if path is not None:
            self._take(*self._load(path))

    @property
    def authenticates(self) -> bool:
        """Whether every client needs a password or a certificate."""
        tls = self.config.tls
        return bool(self.config.users) or (tls is not None and tls.client_auth == ssl.CERT_REQUIRED)

    def admits(self, authorization: str) -> bool:
        """Return whether a request may certainly be answered; otherwise `refuse` decides."""
        return self._bucket is None and (
            not self.config.users or (self._login is not None and self._login.knows(self.config.users, authorization))
        )

    async def refuse(self, authorization: str, address: str) -> Refusal | None:
        """Return None if a request may be answered, else the refusal to send instead."""
        bucket = self._bucket  # a reload may replace it
        if bucket and not bucket.take():
            return too_many(bucket.limit.interval)
        if self._login and self.config.users:
            return await self._login.refuse(self.config.users, authorization, address)
        return None

    def run(self, stop: threading.Event) -> None:
        """Follow the files until `stop`."""
        while self.path and not stop.wait(FOLLOW_SECONDS):
            try:
                self.follow()
            except Exception:
                log.exception("web config %s: unexpected error, please report it", self.path)

    def follow(self) -> None:
        """Reload changed files. A faulty one is logged once, and again after its next change."""
        try:
            if self._worker.call(self._files.changed):
                self.reload()
            self._late = False
        except OSError as error:
            if not self._late:
                log.error("web config %s: %s; the previous one stays in use", self.path, error.strerror)
            self._late = True
        except GpuExporterError as error:
            log.error("%s; the previous one stays in use", error)

    def reload(self) -> None:
        """Reload the files. If one is faulty, raise GpuExporterError and keep the previous configuration."""
        if self.path is None:
            return
        with self._lock:
            config, made = self._load(self.path)
            refusal = _refusal(self.config, config)
            if refusal:
                raise GpuExporterError(f"web config {self.path}: {refusal}")
            self._take(config, made)
        log.info("web config %s: reloaded", self.path)

    def _load(self, path: Path) -> tuple[WebConfig, ssl.SSLContext | None]:
        files = _Files()
        try:
            loaded = self._worker.call(lambda: _loaded(path, files))
        except TimeoutError as error:  # not all files were read, so the next change is not compared with these
            raise GpuExporterError(f"web config {path}: {error.strerror}") from error
        except OSError as error:
            self._files = files
            raise GpuExporterError(f"web config {path}: {error.strerror}") from error
        except ValueError as error:
            self._files = files
            raise GpuExporterError(f"web config {path}: {' '.join(str(error).split())}") from error
        self._files = files
        return loaded

    def _take(self, config: WebConfig, made: ssl.SSLContext | None) -> None:
        """Use this configuration. New certificates must not meet older rules, so the rules are replaced first."""
        if config == WebConfig():
            log.warning("web config %s sets nothing: no TLS, no password; anyone can read the metrics", self.path)
        if config.rate_limit != self.config.rate_limit:
            self._bucket = _Bucket(config.rate_limit) if config.rate_limit else None
        if config.users and self._login is None:
            self._login = Login()
        self.config, self.context = config, made


def _loaded(path: Path, files: _Files) -> tuple[WebConfig, ssl.SSLContext | None]:
    """Return the configuration in these files. Raises OSError, ValueError."""
    config = parse(files.read(path), path.parent, files.read)
    try:
        return config, context(config.tls) if config.tls else None
    except ValueError as error:
        raise ValueError(f"tls_server_config: {error}") from error


def _refusal(old: WebConfig, new: WebConfig) -> str:
    """Return why a reload is refused; empty if it is not. A file that is read half-written must not open access."""
    if (old.tls is None) != (new.tls is None):
        return "turning TLS on or off needs a restart"
    if old.tls and new.tls and new.tls.client_auth < old.tls.client_auth:
        return "making client certificates less strict needs a restart"
    if old.tls and new.tls and old.tls.client_sans and not new.tls.client_sans:
        return "removing client_allowed_sans needs a restart"
    if old.users and not new.users:
        return "turning passwords off needs a restart"
    return ""
