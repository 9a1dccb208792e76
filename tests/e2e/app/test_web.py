"""TLS, client certificates, passwords and the lifecycle API, with real clients and a real server."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import trustme

from gpu_exporter.http.admission import Admission
from gpu_exporter.http.server import CLIENT_SECONDS
from gpu_exporter.http.web_config import SECURE_HEADERS
from gpu_exporter.live_page.page import PAGE_POLICY
from tests.conftest import Exporter, Serve
from tests.e2e.app.test_http import REQUEST, connected, first_ended, resident, rest
from tests.e2e.cli.test_bad_input import fails
from tests.support.tools import LIMIT, until

REPLAY = ("--source", "replay", "--recording", "h200_workloads")
TLS = {"cert_file": "server.pem", "key_file": "server.pem"}
MUTUAL = {**TLS, "client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.pem"}
BROWSER = {
    "Accept": "text/html,application/xhtml+xml,*/*;q=0.8",
    "Accept-Encoding": "gzip, deflate, br, zstd",
    "Sec-Fetch-Site": "none",
}


class Pki:
    """A certificate authority, and a folder with the certificates that it issued."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.authority = folder, trustme.CA()
        self.authority.cert_pem.write_to_path(folder / "ca.pem")
        self.issue("server")

    def issue(self, name: str, *names: str, days: float = 1) -> Path:
        """Write certificate and key to one file, at once as cert-manager and certbot do."""
        end = datetime.now(timezone.utc) + timedelta(days=days)
        issued = self.authority.issue_cert(*(names or ("127.0.0.1", "localhost")), not_after=end)
        path = self.folder / f"{name}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(path.with_suffix(".new"))
        return path.with_suffix(".new").rename(path)

    def context(self, client: Path | None = None) -> ssl.SSLContext:
        """Return a client's TLS context, optionally with a certificate of its own."""
        made = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        if client:
            made.load_cert_chain(client)
        return made

    def config(self, tls: Mapping[str, object] | None = None, users: Mapping[str, str] | None = None) -> str:
        """Write the web configuration; return its path."""
        path = self.folder / "web.yml"
        path.with_suffix(".new").write_text(json.dumps({"tls_server_config": tls, "basic_auth_users": users}))
        return str(path.with_suffix(".new").rename(path))


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    """A certificate authority with a certificate for the server."""
    return Pki(tmp_path)


def hashed(password: str, cost: int = 4) -> str:
    """Hash a password, as htpasswd does."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


def basic(user: str, password: str) -> dict[str, str]:
    """Return the header with these credentials."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def openssl(exporter: Exporter, pki: Pki, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Request /healthz with `openssl s_client`, which verifies the server."""
    return subprocess.run(
        [
            *("openssl", "s_client", "-connect", f"127.0.0.1:{exporter.port}", "-CAfile", str(pki.folder / "ca.pem")),
            *("-verify_return_error", "-ign_eof", *arguments),
        ],
        input="GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


def cpu_seconds(exporter: Exporter) -> float:
    """Return the CPU seconds that the exporter has used so far."""
    stat = Path(f"/proc/{exporter.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / 100


def refused(ask: Callable[[], Any]) -> str:
    """Return the message of the TLS error that this call raises."""
    with pytest.raises(OSError, match=r".") as caught:
        ask()
    return str(caught.value)


# --- TLS ---------------------------------------------------------------------------------------------------------


def test_openssl(serve: Serve, pki: Pki) -> None:
    """`openssl s_client` gets a verified answer with TLS 1.2 and 1.3, and none with older or weaker settings."""
    exporter = serve(*REPLAY, "--web.config.file", pki.config(TLS), tls=pki.context())
    for version in ("-tls1_2", "-tls1_3"):
        ran = openssl(exporter, pki, version)
        assert "Verify return code: 0 (ok)" in ran.stdout
        assert "HTTP/1.1 200 OK" in ran.stdout
    for old in (
        ("-tls1", "-cipher", "DEFAULT@SECLEVEL=0"),
        ("-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"),
        ("-tls1_2", "-cipher", "AES128-SHA"),
        ("-tls1_2", "-cipher", "aNULL@SECLEVEL=0"),
    ):
        ran = openssl(exporter, pki, *old)
        assert ran.returncode != 0
        assert "alert" in ran.stderr
        assert "HTTP/1.1" not in ran.stdout
    assert exporter.get("/healthz")[0].status == 200


def test_settings_of_the_handshake(serve: Serve, pki: Pki) -> None:
    """TLS versions, cipher suites (by their Go names) and the curve are those of the file."""
    suite = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
    tls = {**TLS, "max_version": "TLS12", "cipher_suites": [suite], "curve_preferences": ["CurveP384"]}
    exporter = serve(*REPLAY, "--web.config.file", pki.config(tls), tls=pki.context())
    ran = openssl(exporter, pki)
    assert "HTTP/1.1 200 OK" in ran.stdout
    assert "ECDHE-ECDSA-CHACHA20-POLY1305" in ran.stdout
    assert "secp384r1" in ran.stdout
    assert openssl(exporter, pki, "-tls1_3").returncode != 0
    assert openssl(exporter, pki, "-groups", "X25519").returncode != 0
    assert openssl(exporter, pki, "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256").returncode != 0


def test_expired_certificate_is_replaced_while_running(serve: Serve, pki: Pki) -> None:
    """Clients reject the expired certificate and accept the new one a moment later; open connections stay open."""
    pki.issue("server", days=-1)
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    exporter = serve(*REPLAY, "--web.config.file", pki.config(TLS), tls=blind)
    kept = exporter.connect()
    kept.request("GET", "/healthz")
    assert kept.getresponse().read() == b"ok\n"
    exporter.tls = pki.context()
    assert "certificate has expired" in refused(exporter.get)
    assert "certificate has expired" in openssl(exporter, pki).stderr

    (pki.folder / "server.pem").write_text("half a cert")
    until(lambda: "contains no PEM block" in exporter.log.read_text(), 5, "the line on the broken certificate")
    assert "certificate has expired" in refused(exporter.get)

    pki.issue("server")
    until(lambda: "reloaded" in exporter.log.read_text(), 5, "the reload")
    assert exporter.get()[0].status == 200
    assert "Verify return code: 0 (ok)" in openssl(exporter, pki).stdout
    kept.request("GET", "/healthz")
    assert kept.getresponse().read() == b"ok\n"
    kept.close()
    assert exporter.log.read_text().count("contains no PEM block") == 1


def test_client_certificates(serve: Serve, pki: Pki, tmp_path: Path) -> None:
    """Only a valid certificate of the right authority with the right name gets an answer."""
    tls = {**MUTUAL, "client_allowed_sans": ["prometheus.example"]}
    good = pki.context(pki.issue("good", "prometheus.example"))
    exporter = serve(*REPLAY, "--web.config.file", pki.config(tls), tls=good)
    assert exporter.get()[0].status == 200

    (tmp_path / "other").mkdir()
    forged = Pki(tmp_path / "other").issue("forged", "prometheus.example")
    bad = {
        "none": pki.context(),
        "forged": pki.context(forged),
        "expired": pki.context(pki.issue("expired", "prometheus.example", days=-1)),
        "another name": pki.context(pki.issue("another", "grafana.example")),
    }
    for why, context in bad.items():
        exporter.tls = context
        assert refused(exporter.get), why
    ran = openssl(exporter, pki, "-cert", str(forged), "-key", str(forged))
    assert "HTTP/1.1" not in ran.stdout
    ran = openssl(exporter, pki, "-cert", str(tmp_path / "good.pem"), "-key", str(tmp_path / "good.pem"))
    assert "HTTP/1.1 200 OK" in ran.stdout

    exporter.tls = good
    assert exporter.get()[0].status == 200
    log = exporter.log.read_text()
    assert log.count("TLS handshake with 127.0.0.1 failed") == 1
    assert "Traceback" not in log


def test_client_of_another_name(serve: Serve, pki: Pki) -> None:
    """The log says that the name was wrong."""
    tls = {**MUTUAL, "client_allowed_sans": ["prometheus.example"]}
    good = pki.context(pki.issue("good", "prometheus.example"))
    exporter = serve(*REPLAY, "--web.config.file", pki.config(tls), tls=good)
    exporter.tls = pki.context(pki.issue("another", "grafana.example"))
    assert refused(exporter.get)
    until(lambda: "failed: the client's certificate has no name" in exporter.log.read_text(), 5, "the line")
    assert "Traceback" not in exporter.log.read_text()


def test_certificate_if_given(serve: Serve, pki: Pki, tmp_path: Path) -> None:
    """VerifyClientCertIfGiven admits clients without a certificate, but not with a forged one."""
    tls = {**MUTUAL, "client_auth_type": "VerifyClientCertIfGiven"}
    exporter = serve(*REPLAY, "--web.config.file", pki.config(tls), tls=pki.context())
    (tmp_path / "other").mkdir()
    exporter.tls = pki.context(Pki(tmp_path / "other").issue("forged"))
    assert refused(exporter.get)


def test_silent_and_wrong_handshakes(serve: Serve, pki: Pki) -> None:
    """Clients that connect and say nothing delay no scrape and are closed in time; what is not TLS is closed."""
    exporter = serve(*REPLAY, "--web.config.file", pki.config(TLS), tls=pki.context())
    before = resident(exporter)
    begin = time.monotonic()
    with connected(exporter, Admission().share - 20) as silent:
        for hello in (REQUEST, b"\x16\x03\x01\x00\xa5\x01\x00", b"\x16\x03\x01" + b"\xff" * 1000, b"\0" * 10000):
            with connected(exporter) as (client,):
                client.sendall(hello)
                client.shutdown(socket.SHUT_WR)
                assert b"HTTP" not in rest(client)
        for _ in range(50):  # resets, before and during the handshake
            with connected(exporter) as (client,):
                client.send(b"\x16")
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert exporter.page().values("gpu_up") == [1.0]
        assert first_ended(silent) - begin > CLIENT_SECONDS - 0.5
        assert {rest(client) for client in silent} == {b""}
    assert exporter.get("/healthz")[0].status == 200
    assert resident(exporter) - before < 40
    log = exporter.log.read_text()
    assert "Traceback" not in log
    assert log.count("\n") < 15


# --- passwords ---------------------------------------------------------------------------------------------------


def test_browser(serve: Serve, pki: Pki) -> None:
    """A browser is asked for a password and then gets the live page. Every response has secure headers."""
    context = pki.context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    exporter = serve(*REPLAY, "--web.config.file", pki.config(TLS, {"me": hashed("right")}), tls=context)
    me = {**BROWSER, **basic("me", "right")}
    for path in ("/", "/metrics", "/healthz", "/readyz", "/nowhere", "/-/quit"):
        answer, body = exporter.get(path, BROWSER)
        assert (answer.status, body) == (401, b"Unauthorized\n")
        assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")
        assert SECURE_HEADERS.items() <= dict(answer.headers).items()
        answer, body = exporter.get(path, me)
        assert answer.status == {"/nowhere": 404, "/-/quit": 405}.get(path, 200)
        policy = {"Content-Security-Policy": PAGE_POLICY} if path == "/" else {}
        assert {**SECURE_HEADERS, **policy}.items() <= dict(answer.headers).items()
    assert exporter.ask("POST", "/-/quit", BROWSER)[0] == 401


def test_user_is_removed_while_connected(serve: Serve, pki: Pki) -> None:
    """Requests on an open connection are refused once the user is removed or has another password."""
    users = {"me": hashed("right"), "you": hashed("yours")}
    exporter = serve(*REPLAY, "--web.config.file", pki.config(users=users))
    kept = exporter.connect()

    def status(user: str, password: str) -> int:
        kept.request("GET", "/healthz", headers=basic(user, password))
        answer = kept.getresponse()
        answer.read()
        return answer.status

    assert (status("me", "right"), status("you", "yours")) == (200, 200)
    pki.config(users={"you": hashed("new")})
    until(lambda: status("me", "right") == 401, 5, "the removal")
    assert (status("you", "yours"), status("you", "new")) == (401, 200)
    pki.config(users={})
    until(lambda: "turning passwords off needs a restart" in exporter.log.read_text(), 5, "the refusal")
    assert (status("me", "right"), status("you", "new")) == (401, 200)
    kept.close()


def test_flood_of_wrong_passwords(serve: Serve, pki: Pki) -> None:
    """While ten clients send wrong passwords, the right one is accepted; bcrypt uses a fifth of a core at most."""
    users = {"me": hashed("right", 10), "verified": hashed("right", 10)}
    exporter = serve(*REPLAY, "--interval", "1h", "--web.config.file", pki.config(users=users))
    verified, right = basic("verified", "right"), basic("me", "right")
    assert exporter.get("/metrics", verified)[0].status == 200
    answers: list[int] = []
    accepted = threading.Event()
    begin, before = time.monotonic(), cpu_seconds(exporter)

    def flood(worker: int) -> None:
        """Send wrong passwords over one connection, at least 50 and until the right one is accepted."""
        connection = exporter.connect()
        for number in count():
            if number >= 50 and accepted.is_set():
                break
            connection.request("GET", "/metrics", headers=basic("me", f"{worker} {number}"))
            answer = connection.getresponse()
            answer.read()
            answers.append(answer.status)
        connection.close()

    with ThreadPoolExecutor(10) as pool:
        floods = [pool.submit(flood, worker) for worker in range(10)]
        try:
            # The right password is repeated until it is verified; a client that was verified before is always served.
            until(lambda: exporter.get("/metrics", right)[0].status == 200, what="the right password", every=0.5)
            assert exporter.get("/metrics", verified)[0].status == 200
            assert not any(each.done() for each in floods)
        finally:
            accepted.set()
        for each in floods:
            each.result()
    seconds, cpu = time.monotonic() - begin, cpu_seconds(exporter) - before
    assert set(answers) <= {401, 429}
    assert len(answers) >= 500
    assert cpu < 0.25 * seconds + len(answers) * 0.002 + 1
    log = exporter.log.read_text()
    assert 1 <= log.count("failed login from 127.0.0.1") <= 1 + seconds / 60
    assert exporter.stop() == 0
    assert "destroyed" not in exporter.log.read_text()


# --- lifecycle ---------------------------------------------------------------------------------------------------


def test_lifecycle_is_off(serve: Serve) -> None:
    """The lifecycle API is off by default, and GET is never allowed."""
    exporter = serve(*REPLAY)
    for path in ("/-/quit", "/-/reload"):
        for method in ("POST", "PUT"):
            assert exporter.ask(method, path) == (403, "Lifecycle API is not enabled.\n")
        assert exporter.ask("GET", path)[0] == 405
    assert exporter.get("/healthz")[0].status == 200


def test_lifecycle_needs_a_secret(pki: Pki) -> None:
    """Without one the start fails, also on a loopback address, and over TLS; the error names the fix."""
    for config in ((), ("--web.config.file", pki.config()), ("--web.config.file", pki.config(TLS))):
        said = fails("serve", *REPLAY, "--address", "127.0.0.1:0", "--web.enable-lifecycle", *config)
        assert "--web.enable-lifecycle: anyone on the network could stop monitoring; set --token-file, or add" in said


def test_lifecycle_with_a_token(serve: Serve, tmp_path: Path) -> None:
    """Only clients with the token may use it."""
    token = tmp_path / "token"
    exporter = serve(*REPLAY, "--web.enable-lifecycle", "--token-file", str(token))
    me = {"Authorization": f"Bearer {token.read_text().strip()}"}
    for path in ("/-/reload", "/-/quit", "/-/release", "/-/resume"):
        for headers in ({}, basic("me", "right"), {"Authorization": me["Authorization"] + "x"}):
            status, said = exporter.ask("POST", path, headers)
            assert (status, "needs the token" in said) == (403, True)
    assert exporter.ask("POST", "/-/reload", me) == (200, "ok\n")
    assert exporter.ask("POST", "/-/quit", {**me, "Origin": "http://evil.example"})[0] == 403
    origin = {"Origin": f"http://127.0.0.1:{exporter.port}"}
    assert exporter.ask("POST", "/-/quit", {**me, **origin}) == (200, "Goodbye!\n")
    assert exporter.process.wait(LIMIT) == 0
    assert not token.exists()


def test_lifecycle_with_client_certificates(serve: Serve, pki: Pki) -> None:
    """A verified client may do everything."""
    good = pki.context(pki.issue("good"))
    exporter = serve(*REPLAY, "--web.enable-lifecycle", "--web.config.file", pki.config(MUTUAL), tls=good)
    assert exporter.ask("POST", "/-/reload") == (200, "ok\n")


def test_a_token_file_that_is_something_else(tmp_path: Path) -> None:
    """The start fails, and the file stays."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    said = fails("serve", *REPLAY, "--address", "127.0.0.1:0", "--token-file", str(precious))
    assert "precious: exists and is not a token; delete it, or choose another file with --token-file" in said
    assert precious.read_text() == "precious"


def test_an_empty_web_config(serve: Serve, tmp_path: Path) -> None:
    """It is accepted, as by the toolkit, but the log says that nothing protects the metrics."""
    path = tmp_path / "web.yml"
    path.write_text("")
    exporter = serve(*REPLAY, "--web.config.file", str(path))
    assert exporter.log.read_text().count(f"web config {path} sets nothing: no TLS, no password; anyone can read") == 1


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_quit(serve: Serve, pki: Pki, method: str) -> None:
    """The process ends as with SIGTERM if the client is authorised, but not for a page of another site."""
    config = pki.config(TLS, {"me": hashed("right")})
    exporter = serve(*REPLAY, "--web.enable-lifecycle", "--web.config.file", config, tls=pki.context())
    me = basic("me", "right")
    assert exporter.ask(method, "/-/quit")[0] == 401
    for foreign in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert exporter.ask(method, "/-/quit", {**me, **foreign}) == (403, "Not allowed for pages of other sites.\n")
    assert exporter.ask("GET", "/-/quit", me)[0] == 405
    assert exporter.ask(method, "/-/quit", me) == (200, "Goodbye!\n")
    assert exporter.process.wait(LIMIT) == 0


def test_reload(serve: Serve, pki: Pki) -> None:
    """The file takes effect at once, or the response says what is wrong with it."""
    path = pki.config(users={"me": hashed("right")})
    exporter = serve(*REPLAY, "--web.config.file", path, env={"GPU_EXPORTER_WEB_ENABLE_LIFECYCLE": "true"})
    pki.config(users={"you": hashed("right")})
    assert exporter.ask("POST", "/-/reload", basic("me", "right")) == (200, "ok\n")
    assert exporter.get("/healthz", basic("me", "right"))[0].status == 401
    Path(path).write_text("basic_auth_users: {me: hunter2}")
    status, body = exporter.ask("POST", "/-/reload", basic("you", "right"))
    assert status == 500
    assert body.startswith(f"web config {path}: basic_auth_users: me: not a bcrypt hash")
    assert "hunter2" not in body
    assert exporter.get("/healthz", basic("you", "right"))[0].status == 200


def test_wrong_file_is_one_line(pki: Pki) -> None:
    """The start fails."""
    said = fails("serve", *REPLAY, "--address", "127.0.0.1:0", "--web.config.file", str(pki.folder / "none.yml"))
    assert "none.yml: No such file or directory" in said
    said = fails("serve", *REPLAY, "--address", "127.0.0.1:0", "--web.config.file", pki.config({"cert": "x"}))
    assert "tls_server_config: key_file is missing" in said
