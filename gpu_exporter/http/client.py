"""A client of a running exporter or Prometheus. Every failure is an error of one line.

Responses are limited in size and time, and must be complete: a part of a response could hide a fault.
"""

from __future__ import annotations

import base64
import re
import ssl
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead, InvalidURL
from pathlib import Path
from urllib.parse import urlsplit

from gpu_exporter.http.negotiation import OPENMETRICS
from gpu_exporter.io.decoding import gunzip, json_as, printable
from gpu_exporter.io.file_access import FileWorker
from gpu_exporter.model.errors import GpuExporterError, WrongUsage

# For a whole exchange, from name resolution to the last byte. Longer than `release` and `resume` take to report that a
# driver call is stuck.
TIMEOUT_SECONDS = 15.0
MOST_BYTES = 1 << 28
MOST_METRICS_BYTES = 1 << 25
MOST_ANSWER_BYTES = 1 << 16
MOST_SECRET_BYTES = 1 << 16
EOF = "# EOF\n"


NO_TLS = (
    "if it does not speak TLS, give --url http://…; if it requires a client certificate, which this command cannot"
    " send, use `curl --cert FILE --key FILE` (docs/hand-over.md), or for diagnose the URL of a Prometheus"
)


class Unreachable(GpuExporterError):
    """No HTTP response came."""


class Refused(GpuExporterError):
    """A response with another status than 200."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _OtherCertificate(OSError):
    """The server has another certificate than the one that is accepted."""


def unverified_tls() -> ssl.SSLContext:
    """Return a TLS context that verifies nothing: compare the certificate, or send no secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class _Pinned(HTTPSConnection):
    """A connection to a server that has exactly this certificate (DER)."""

    def __init__(self, host: str, port: int | None, certificate: bytes, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout, context=unverified_tls())
        self._certificate = certificate

    def connect(self) -> None:
        """Connect, and compare the certificate before anything is sent."""
        super().connect()
        if self.sock.getpeercert(binary_form=True) != self._certificate:
            raise _OtherCertificate


class _Named(HTTPSConnection):
    """A connection to a server by address, whose certificate has this name."""

    def __init__(self, host: str, port: int | None, name: str, timeout: float, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._name, self._tls = name, context

    def connect(self) -> None:
        """Connect, and verify the certificate by name."""
        HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


@dataclass(frozen=True, slots=True)
class _Response:
    """A whole response. `sized`: it says where it ends; otherwise it ends where the connection does."""

    status: int
    reason: str
    kind: str  # the content type, without its parameters
    location: str
    body: bytes
    sized: bool

    @property
    def is_web_page(self) -> bool:
        return "html" in self.kind


@dataclass(frozen=True, slots=True)
class _Refusal:
    """An error of Prometheus' API."""

    error: str = ""


def exporter_url(url: str) -> str:
    """Return the URL before /metrics."""
    return re.sub(r"/metrics/?$", "", url)


@dataclass(frozen=True, slots=True)
class Remote:
    """A running exporter or Prometheus, and the credentials: a token, or a user with a password.

    If `certificate` (DER) is set, only a server with exactly this certificate is accepted; issuer and names do not
    matter. `server_name` is the name in the certificate, if it is not the host of the URL.
    """

    url: str
    token_file: Path | None = None
    user: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None
    certificate: bytes = b""
    server_name: str = ""

    @property
    def credentials(self) -> tuple[Path | None, str, Path | None, Path | None]:
        """All fields but the URL and the certificate."""
        return self.token_file, self.user, self.password_file, self.ca_file

    def post(self, path: str) -> str:
        """Return the response as one line. Raises GpuExporterError, with the response if it is a refusal."""
        return printable(" ".join(self._text(self._ask("POST", path, MOST_ANSWER_BYTES)).split()), 1000)

    def post_whole(self, path: str, seconds: float) -> str:
        """Return the body of the response, which must be complete in `seconds`. Raises GpuExporterError."""
        return self._text(self._ask("POST", path, MOST_BYTES, seconds=seconds))

    def get(self, path: str, seconds: float | None = None) -> str:
        """Return the body of the response, which must be complete in `seconds`. Raises GpuExporterError."""
        return self._text(self._ask("GET", path, MOST_BYTES, seconds=seconds))

    def metrics(self) -> str:
        """Return the /metrics response, complete and in a text format. Raises GpuExporterError."""
        response = self._ask("GET", "/metrics", MOST_METRICS_BYTES, accept="text/plain;version=0.0.4")
        where = f"{self.url}/metrics"
        if response.is_web_page:
            raise GpuExporterError(
                f"{where}: not Prometheus text but a web page, perhaps a login; give the URL of an exporter, or of a "
                "Prometheus"
            )
        if response.kind and response.kind != OPENMETRICS and not response.kind.startswith("text/"):
            raise GpuExporterError(
                f"{where}: not Prometheus text but {printable(response.kind, 60)}; give the URL of an exporter, or of "
                "a Prometheus"
            )
        text = self._text(response)
        if text and not text.endswith(EOF if response.kind == OPENMETRICS else "\n"):
            raise GpuExporterError(f"{where}: the response is incomplete: its last line is cut off; try again")
        if not (response.sized or text.endswith(EOF)):
            raise GpuExporterError(
                f"{where}: the response has neither a Content-Length nor chunks, so it may be incomplete; "
                "give the URL of a Prometheus that scrapes it"
            )
        return text

    def _text(self, response: _Response) -> str:
        try:
            return response.body.decode()
        except UnicodeDecodeError as error:
            raise GpuExporterError(f"{self.url}: the response is not text in UTF-8; give another --url") from error

    def _ask(self, method: str, path: str, most: int, *, accept: str = "", seconds: float | None = None) -> _Response:
        """Return a response with status 200. Raises GpuExporterError."""
        seconds = seconds or TIMEOUT_SECONDS
        connection = self._connection(seconds)
        headers = self._authorization() | ({"Accept": accept} if accept else {})
        target = f"{urlsplit(self.url).path.rstrip('/')}{path}"
        exchange = _Exchange(connection, method, target, headers, most)
        try:
            response = FileWorker("http").call(exchange.run, seconds)
        except TimeoutError as error:
            raise Unreachable(f"{self.url}: no complete response within {seconds:g} s; try again later") from error
        except (OSError, HTTPException, ValueError) as error:
            raise self._failure(error, began=exchange.began) from error
        if response.status != 200:
            refusal = f"{self.url}: {self._refusal(response, method, path.partition('?')[0])}"
            raise Refused(refusal, response.status)
        return response

    def _refusal(self, response: _Response, method: str, path: str) -> str:
        """Return what a response other than 200 says, and what to do."""
        status = f"{response.status} {printable(response.reason, 60)}".strip()
        said = "" if response.is_web_page else _said(response.body)
        if response.status == 401:
            verb = "check" if self.user else "give"
            return f"401: authentication required: {verb} --token-file, or --user and --password-file"
        if response.status == 403:
            said = said or "not allowed; give --token-file, or the --user of an account with access"
        if response.status == 404:
            return f"has no {path}; give the URL before it, such as http://localhost:9400 or http://host/prometheus"
        if 300 <= response.status < 400:
            where = f" to {printable(response.location, 200)}" if response.location else ""
            return f"{status}: redirects{where}; give the URL that it leads to"
        return f"{status}: {said}" if said else f"{status}; give another --url, or try again later"

    def _failure(self, error: OSError | HTTPException | ValueError, *, began: bool) -> GpuExporterError:
        """Return what is wrong with an exchange. `began`: the head of the response came."""
        match error:
            case ConnectionRefusedError():
                what = "nothing listens there: is it running? If it runs elsewhere, give its --url"
                return Unreachable(f"{self.url}: {what}")
            case _OtherCertificate():
                what = "its certificate is not that of --web.config.file; if that was just replaced, try again"
                return Unreachable(f"{self.url}: TLS: {what}, otherwise give the exporter's --url")
            case ssl.SSLCertVerificationError():
                why = f"{error.verify_message}; give the certificate authority with --ca-file"
                return Unreachable(f"{self.url}: TLS: {why}")
            case ssl.SSLError():  # a server that misses a client certificate, or TLS, may just close the connection
                return Unreachable(f"{self.url}: TLS: refused: {NO_TLS}")
            case InvalidURL() | UnicodeError():  # a malformed host or path
                return _not_a_url(self.url)
            case ConnectionError() | HTTPException() if began:
                return GpuExporterError(f"{self.url}: the response is incomplete; try again")
            case ValueError():
                return GpuExporterError(f"{self.url}: the response is unusable: {error}; give another --url")
            case ConnectionError() | HTTPException() if urlsplit(self.url).scheme == "https":
                return Unreachable(f"{self.url}: TLS: no HTTP response: {NO_TLS}")
            case ConnectionError() | HTTPException():
                return Unreachable(f"{self.url}: no HTTP response: does it speak TLS? Then give --url https://…")
        return Unreachable(f"{self.url}: {error.strerror or error}; give another --url")

    def _authorization(self) -> dict[str, str]:
        if self.user and self.password_file:
            password = _content(self.password_file, "check --password-file")
            credentials = f"{self.user}:{password}".encode()
            return {"Authorization": f"Basic {base64.b64encode(credentials).decode()}"}
        if self.token_file:
            token = _content(
                self.token_file,
                "check --token-file; for that of an exporter: is the exporter running? Run this as its user or as root",
            )
            if not re.fullmatch(r"[!-~]+", token):
                raise GpuExporterError(f"{self.token_file}: not a token: must be one word of ASCII; check --token-file")
            return {"Authorization": f"Bearer {token}"}
        return {}

    def _connection(self, seconds: float) -> HTTPConnection:
        if "@" in self.url.partition("?")[0]:  # it is not repeated, because it may contain a password
            raise GpuExporterError("--url contains a user name; give --user and --password-file instead")
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError as error:
            raise _not_a_url(self.url) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _not_a_url(self.url)
        if parts.scheme == "http":
            return HTTPConnection(parts.hostname, port, timeout=seconds)
        if self.certificate:
            return _Pinned(parts.hostname, port, self.certificate, seconds)
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
            if self.ca_file:  # many private CAs lack the key identifiers that Python 3.13 demands by default
                context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        except (OSError, ssl.SSLError) as error:
            raise GpuExporterError(
                f"{self.ca_file}: {error.strerror or 'not a certificate'}; name a file in PEM format with --ca-file"
            ) from error
        if self.server_name:
            return _Named(parts.hostname, port, self.server_name, seconds, context)
        return HTTPSConnection(parts.hostname, port, timeout=seconds, context=context)


@dataclass(slots=True)
class _Exchange:
    """One request and its response. `began`: the head of the response came."""

    connection: HTTPConnection
    method: str
    target: str
    headers: dict[str, str]
    most: int
    began: bool = field(default=False, init=False)

    def run(self) -> _Response:
        """Return the response. Raises OSError, HTTPException, and ValueError for a body that is unusable."""
        try:
            self.connection.request(self.method, self.target, headers=self.headers)
            with closing(self.connection.getresponse()) as answer:
                self.began = True
                sized = answer.chunked or answer.length is not None
                body = self._body(answer)
        finally:
            self.connection.close()
        kind = (answer.getheader("Content-Type") or "").partition(";")[0].strip().lower()
        return _Response(answer.status, answer.reason, kind, answer.getheader("Location") or "", body, sized)

    def _body(self, answer: HTTPResponse) -> bytes:
        body = answer.read(self.most + 1)
        if len(body) > self.most:
            raise ValueError(f"it is larger than {self.most / (1 << 20):g} MiB")
        if answer.length:  # what Content-Length promised beyond this
            raise IncompleteRead(body, answer.length)
        encoding = (answer.getheader("Content-Encoding") or "identity").strip().lower()
        if encoding in ("gzip", "x-gzip"):
            return gunzip(body, self.most)
        if encoding != "identity":
            raise ValueError(f"it has the unsupported encoding {printable(encoding, 40)}")
        return body


def _said(body: bytes) -> str:
    try:
        said = json_as(_Refusal, body).error
    except ValueError:
        said = body.decode("utf-8", "replace")
    return printable(" ".join(said.split()), 300)


def _not_a_url(text: str) -> GpuExporterError:
    return WrongUsage(f"{text!r} is not a URL; use for example http://localhost:9400")


def _content(path: Path, fix: str) -> str:
    """Return the text of a small file, which may be a pipe. Raises GpuExporterError with this fix."""

    def read() -> bytes:
        with path.open("rb") as file:
            return file.read(MOST_SECRET_BYTES)

    try:
        return FileWorker("secret-file").call(read).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise GpuExporterError(f"{path}: {why}", fix=fix) from error
