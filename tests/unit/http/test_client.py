"""Credentials of a request: sent as they are, or refused with one line that does not repeat them."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gpu_exporter.http.client import Remote
from gpu_exporter.model.errors import GpuExporterError
from tests.conftest import run


@pytest.fixture
def received() -> Iterator[tuple[str, list[str | None]]]:
    """The URL of a server, and the Authorization headers that it has received."""
    headers: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers.append(self.headers["Authorization"])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", headers
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("token", ["gpu-exporter-a_b", "abc+/d==", "a.b~c%2F"])
def test_a_token_is_sent_unchanged(received: tuple[str, list[str | None]], tmp_path: Path, token: str) -> None:
    """Base64 has characters that an URL would escape."""
    url, headers = received
    (tmp_path / "token").write_text(f"{token}\n")
    Remote(url, token_file=tmp_path / "token").get("/")
    assert headers == [f"Bearer {token}"]


def test_a_password_is_utf_8(received: tuple[str, list[str | None]], tmp_path: Path) -> None:
    """As the exporter's and Prometheus' servers decode it."""
    url, headers = received
    (tmp_path / "password").write_text("pä:s%s €\n", encoding="utf-8")
    Remote(url, user="jürgen", password_file=tmp_path / "password").get("/")
    assert base64.b64decode(str(headers[0]).removeprefix("Basic ")).decode() == "jürgen:pä:s%s €"


@pytest.mark.parametrize("content", ["two words", "tökén", "a\nb", "", "a\x00b"])
def test_what_is_no_token_is_refused(tmp_path: Path, content: str) -> None:
    """The error names the file, not its content."""
    (tmp_path / "token").write_text(content, encoding="utf-8")
    with pytest.raises(GpuExporterError) as caught:
        Remote("http://127.0.0.1:1", token_file=tmp_path / "token").get("/")
    assert str(caught.value) == f"{tmp_path / 'token'}: not a token: must be one word of ASCII; check --token-file"


@pytest.mark.parametrize(
    "url",
    [
        "http://me:secret@127.0.0.1:1",
        "https://me@127.0.0.1:1",
        "http://a:b@c:secret@d",
        "http://u:s3cret@host:94x0",
        "u:s3cret@host:9400",
    ],
)
def test_a_url_with_credentials_is_refused(url: str) -> None:
    """They would be ignored, and shown in errors."""
    with pytest.raises(GpuExporterError) as caught:
        Remote(url).get("/")
    assert str(caught.value) == "--url contains a user name; give --user and --password-file instead"


@pytest.mark.slow
def test_diagnose_sends_a_token(received: tuple[str, list[str | None]], tmp_path: Path) -> None:
    """Of --token-file, never of the exporter's own setting: the URL may be anywhere."""
    url, headers = received
    (tmp_path / "token").write_text("secret")
    run("diagnose", "--url", url, "--for", "1s", "--token-file", str(tmp_path / "token"))
    assert set(headers) == {"Bearer secret"}
    headers.clear()
    run("diagnose", "--url", url, "--for", "1s", env={"GPU_EXPORTER_TOKEN_FILE": str(tmp_path / "token")})
    assert set(headers) == {None}
