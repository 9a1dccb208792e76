"""A client of a running exporter or Prometheus. Every failure is an error of one line."""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

from gpu_exporter.model.errors import GpuExporterError

# Longer than an exporter takes to answer that a driver call is stuck.
TIMEOUT_SECONDS = 15.0
LONGEST_PAGE = 1 << 28


@dataclass(frozen=True, slots=True)
class Remote:
    """A running exporter or Prometheus, and the credentials: a token, or a user with a password."""

    url: str
    token_file: Path | None = None
    user: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None

    @property
    def credentials(self) -> tuple[Path | None, str, Path | None, Path | None]:
        """All fields but the URL."""
        return self.token_file, self.user, self.password_file, self.ca_file

    def post(self, path: str) -> str:
        """Return the answer as one line. Raises GpuExporterError, with the answer if it is a refusal."""
        return " ".join(self._ask("POST", path, 1 << 16).split())

    def get(self, path: str) -> str:
        """Return the page. Raises GpuExporterError if there is none."""
        return self._ask("GET", path, LONGEST_PAGE)

    def _ask(self, method: str, path: str, longest: int) -> str:
        headers = self._authorization()
        connection = self._connection()
        try:
            connection.request(method, f"{urlsplit(self.url).path.rstrip('/')}{path}", headers=headers)
            answer = connection.getresponse()
            text = answer.read(longest).decode("utf-8", "replace")
            whole = not answer.read(1)
        except ConnectionRefusedError as error:
            raise GpuExporterError(f"{self.url}: nothing listens there: is it running? else give its --url") from error
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or error.reason
            raise GpuExporterError(f"{self.url}: TLS: {why}; give its authority with --ca-file") from error
        except ValueError as error:  # a malformed host
            raise GpuExporterError(f"{self.url!r} is not a URL; use for example http://localhost:9400") from error
        except (ConnectionError, HTTPException) as error:
            raise GpuExporterError(f"{self.url}: no HTTP answer; does it speak TLS? then --url https://…") from error
        except OSError as error:
            raise GpuExporterError(f"{self.url}: {error.strerror or error}; give another --url") from error
        finally:
            connection.close()
        if answer.status == 401:
            raise GpuExporterError(f"{self.url}: not let in: give --token-file, or --user and --password-file")
        if answer.status == 404:
            raise GpuExporterError(
                f"{self.url}: has no {path.partition('?')[0]}; give the URL below which it is, such as "
                f"http://localhost:9400 or http://host/prometheus"
            )
        if answer.status != 200:
            page = "html" in (answer.getheader("Content-Type") or "")
            said = "" if page else " ".join(text.split())[:200]
            raise GpuExporterError(f"{self.url}: {said or f'{answer.status} {answer.reason}'}")
        if not whole:
            raise GpuExporterError(f"{self.url}: answers with more than {longest >> 20} MiB; ask for less")
        return text

    def _authorization(self) -> dict[str, str]:
        if self.user and self.password_file:
            credentials = f"{self.user}:{_content(self.password_file)}".encode()
            return {"Authorization": f"Basic {base64.b64encode(credentials).decode()}"}
        if self.token_file:
            return {"Authorization": f"Bearer {quote(_content(self.token_file))}"}
        return {}

    def _connection(self) -> HTTPConnection:
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError as error:
            raise GpuExporterError(f"{self.url!r} is not a URL; use for example http://localhost:9400") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise GpuExporterError(f"{self.url!r} is not a URL; use for example http://localhost:9400")
        if parts.scheme == "http":
            return HTTPConnection(parts.hostname, port, timeout=TIMEOUT_SECONDS)
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
        except (OSError, ssl.SSLError) as error:
            raise GpuExporterError(f"{self.ca_file}: {error.strerror or 'not a certificate'}") from error
        return HTTPSConnection(parts.hostname, port, timeout=TIMEOUT_SECONDS, context=context)


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise GpuExporterError(f"{path}: {why}; is the exporter running, and this its user or root?") from error
