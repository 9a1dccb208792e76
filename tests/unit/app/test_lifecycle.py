"""The token and its file, the secret that the lifecycle API needs, and requests of other sites."""

from __future__ import annotations

import stat
from http.client import HTTPConnection
from pathlib import Path

import pytest

from gpu_exporter.app.lifecycle import Lifecycle, is_cross_site
from gpu_exporter.app.server import exporter_server
from gpu_exporter.http.guard import Guard
from gpu_exporter.http.proxies import TrustedProxies
from gpu_exporter.http.token_file import Token, is_loopback
from gpu_exporter.io.user_text import Address, networks, release_duration
from gpu_exporter.model.errors import GpuExporterError
from tests.support.tools import LIMIT


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False),
        ("::ffff:192.0.2.1", False),
        ("fe80::1%eth0", False),
        ("0.0.0.0", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_loopback(address: str, wanted: bool) -> None:
    """Only a peer's address counts, and only one that never leaves the machine."""
    assert is_loopback(address) is wanted


def test_token(tmp_path: Path) -> None:
    """Both the token and the address must be right."""
    token = Token(tmp_path / "token")
    token.__enter__()
    text = (tmp_path / "token").read_text().strip()
    assert len(text) >= 40
    assert token.allows(f"Bearer {text}", "127.0.0.1")
    assert token.allows(f"bearer  {text} ", "::1")
    for given, address in (
        (f"Bearer {text}", "192.0.2.1"),
        (f"Basic {text}", "127.0.0.1"),
        (text, "127.0.0.1"),
        (f"Bearer {text[:-1]}", "127.0.0.1"),
        ("Bearer", "127.0.0.1"),
        ("Bearer \udcff", "127.0.0.1"),
        ("", "127.0.0.1"),
    ):
        assert not token.allows(given, address)


@pytest.mark.parametrize(
    ("proxies", "forwarded", "status"),
    [
        ("", "", 200),
        ("", "203.0.113.5", 200),
        ("127.0.0.1", "203.0.113.5", 403),
        ("127.0.0.1", "127.0.0.1, 203.0.113.5", 403),
        ("127.0.0.1", "127.0.0.1", 200),
    ],
)
def test_a_token_behind_a_proxy(tmp_path: Path, proxies: str, forwarded: str, status: int) -> None:
    """A trusted proxy on this machine does not make its clients local."""
    token, guard = Token(tmp_path / "token"), Guard(proxies=TrustedProxies(networks(proxies)))
    with token:
        server = exporter_server(Address("127.0.0.1", 0), [], guard, Lifecycle(enabled=True, token=token))
        server.start()
        connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
        secret = (tmp_path / "token").read_text().strip()
        connection.request(
            "POST", "/-/reload", headers={"Authorization": f"Bearer {secret}", "X-Forwarded-For": forwarded}
        )
        assert connection.getresponse().status == status
        connection.close()
        server.stop()


def test_token_file(tmp_path: Path) -> None:
    """Only its user can read it. It replaces a token of an exporter that was killed, and leaves a newer one alone."""
    path = tmp_path / "token"
    first, second = Token(path), Token(path)
    first.__enter__()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second.__enter__()
    first.__exit__()
    assert second.allows(f"Bearer {path.read_text().strip()}", "::1")
    second.__exit__()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["precious", "", "gpu-exporter-notes", "x" * 43, "gpu-exporter-" + "x" * 44])
def test_another_file_is_not_overwritten(tmp_path: Path, content: str) -> None:
    """It is an error that names the fix, and the file stays."""
    path = tmp_path / "token"
    path.write_text(content)
    token = Token(path)
    with pytest.raises(GpuExporterError, match=r"token: exists and is not a token; delete it, or choose another file"):
        token.__enter__()
    token.__exit__()
    assert [file.name for file in tmp_path.iterdir()] == ["token"]
    assert path.read_text() == content


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Neither to a token nor to nothing, at the start and at the end."""
    path, other = tmp_path / "token", tmp_path / "other"
    path.symlink_to(other)
    for _ in range(2):
        with pytest.raises(GpuExporterError, match=r"exists and is not a token"):
            Token(path).__enter__()
        other.write_text(f"gpu-exporter-{'x' * 43}\n")
    path.unlink()
    token = Token(path)
    token.__enter__()
    path.replace(other)
    path.symlink_to(other)
    token.__exit__()
    assert {file.name for file in tmp_path.iterdir()} == {"token", "other"}


@pytest.mark.parametrize(
    ("origin", "fetch_site", "host", "refused"),
    [
        (None, None, "node-1:9400", False),
        (None, "none", "node-1:9400", False),
        ("http://node-1:9400", "same-origin", "node-1:9400", False),
        ("http://node-1:9400", None, "node-1:9400", False),
        ("http://NODE-1:9400", None, "node-1:9400", False),
        ("https://node-1", None, "node-1:443", False),
        ("https://node-1:443", None, "node-1", False),
        ("http://[::1]:9400", None, "[::1]:9400", False),
        ("http://node-1:9401", None, "node-1:9400", True),
        ("http://node-1", None, "node-1:9400", True),
        ("http://evil.example", None, "node-1:9400", True),
        ("http://evil.example", "same-origin", "node-1:9400", True),
        ("http://node-1:9400@evil.example", None, "node-1:9400", True),
        ("null", None, "node-1:9400", True),
        ("", None, "node-1:9400", True),
        ("http://[", None, "node-1:9400", True),
        ("http://node-1:9400,http://evil.example", None, "node-1:9400", True),
        (None, "cross-site", "node-1:9400", True),
        ("http://node-1:9400", "same-site", "node-1:9400", True),
    ],
)
def test_requests_of_other_sites(origin: str | None, fetch_site: str | None, host: str, refused: bool) -> None:
    """Origin and Host decide; browsers that send Sec-Fetch-Site must agree; without either it is not a browser."""
    assert is_cross_site(origin, fetch_site, host) is refused


def test_lifecycle_needs_a_secret(tmp_path: Path) -> None:
    """A token, password or client certificate; else the error names the fix."""
    with pytest.raises(GpuExporterError, match=r"^--web.enable-lifecycle: anyone .*; set --token-file, or add"):
        Lifecycle(True).check(Guard())
    Lifecycle(False).check(Guard())
    Lifecycle(True, token=Token(tmp_path / "token")).check(Guard())
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{me: $2y$10${'a' * 53}}}")
    Lifecycle(True).check(Guard(path))


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("24h", 86400), ("90", 90)])
def test_hand_over_time(text: str, seconds: float) -> None:
    """Up to a day."""
    assert release_duration(text) == seconds


@pytest.mark.parametrize("text", ["25h", "86401", "0", "-1", "forever", ""])
def test_wrong_hand_over_time(text: str) -> None:
    """A node must not stay blind for good."""
    with pytest.raises(ValueError, match=r"too long|not a duration"):
        release_duration(text)
