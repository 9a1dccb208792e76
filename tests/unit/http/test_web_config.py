"""The web configuration file: what is accepted, refused and logged; and the queue in front of bcrypt."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_exporter.http import login as module
from gpu_exporter.http.guard import Guard
from gpu_exporter.http.login import UNAUTHORIZED, Login, OncePerMinute, Refusal, client_of
from gpu_exporter.http.login_queue import WAITING
from gpu_exporter.http.tls import admits
from gpu_exporter.http.web_config import SECURE_HEADERS, parse
from gpu_exporter.model.errors import GpuExporterError
from tests.support.virtual_time import Clock

HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
BOMB = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
TLS = {"cert_file": "server.pem", "key_file": "server.key"}
MUTUAL = {**TLS, "client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.pem"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates and keys of every kind."""
    folder = tmp_path_factory.mktemp("web")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name in ("server", "other"):
        issued = authority.issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        (folder / f"{name}.pem").write_bytes(chain)
    subprocess.run(
        ["openssl", "pkey", "-aes256", "-passout", "pass:x", "-in", "server.key", "-out", "locked.key"],
        cwd=folder,
        check=True,
    )
    (folder / "empty.pem").touch()
    (folder / "large.pem").write_bytes(b"a" * (1 << 20) + b"b")
    os.mkfifo(folder / "fifo.pem")
    return folder


def guard(folder: Path, content: object, name: str = "web.yml") -> Guard:
    """A configuration from a file with this content."""
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return Guard(path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "# nothing\n",
        {},
        {"tls_server_config": {}},
        {"tls_server_config": None, "basic_auth_users": None},
        {"tls_server_config": TLS},
        {"tls_server_config": MUTUAL},
        {"tls_server_config": {**MUTUAL, "client_allowed_sans": ["a.example", "::1"]}},
        {"tls_server_config": {**MUTUAL, "client_auth_type": "VerifyClientCertIfGiven"}},
        {"tls_server_config": {**TLS, "client_auth_type": "RequestClientCert"}},
        {"tls_server_config": {**TLS, "client_auth_type": ""}},
        {"tls_server_config": {**TLS, "min_version": "TLS13", "max_version": "TLS13"}},
        {"tls_server_config": {**TLS, "cipher_suites": ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]}},
        {"tls_server_config": {**TLS, "cipher_suites": ["TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA"]}},
        {"tls_server_config": {**TLS, "prefer_server_cipher_suites": False, "curve_preferences": ["CurveP256"]}},
        {"http_server_config": {"http2": False, "headers": {"Strict-Transport-Security": "max-age=1"}}},
        {"basic_auth_users": {"a": HASH, "b": HASH.replace("$2b$", "$2y$")}},
        {"rate_limit": {"interval": "10ms", "burst": 5}},
        {"rate_limit": {"interval": 0}},
    ],
)
def test_takes(folder: Path, content: object) -> None:
    """Files that the toolkit accepts are accepted."""
    guard(folder, content)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("- a", "must be a mapping"),
        ("a: b: c", "not YAML in line 1"),
        ("\x00", "not YAML"),
        ("basic_auth_users: {me: a}\nbasic_auth_users: {}\n", "line 2: basic_auth_users is a duplicate key; keep one"),
        ("tls_server_config: {key: a, key: b}", "line 1: key is a duplicate key; keep one"),
        ("? [a]\n: b", "not YAML"),
        ("a: " + "[" * 100 + "]" * 100, "nested too deeply"),
        ("a: &a [x,x,x,x,x,x,x,x,x,x]\n" + BOMB, "its aliases expand to more than"),
        ("#" * 200_000, "larger than 128 KiB"),
        ("rate_limit: {interval: 1:30, burst: 1}", "line 1: 1:30 is a base 60 number in YAML; put it in quotes"),
        ("rate_limit: {interval: 1s, burst: 010}", "line 1: 010 is an octal number in YAML; put it in quotes"),
        ("basic_auth_users: {yes: x}", "basic_auth_users: key True: must be text; put it in quotes"),
        ({"rate_limit": {"interval": "5s", "burst": True}}, "rate_limit: burst: must be a number of requests"),
        ({"tls_sever_config": {}}, "unknown key tls_sever_config; did you mean tls_server_config?"),
        ({"tls_server_config": []}, "tls_server_config: must be a mapping"),
        ({"tls_server_config": {"cert": "x", "certfile": 1}}, "tls_server_config: unknown key certfile; did you mean"),
        ({"tls_server_config": {"min_version": "TLS13"}}, "tls_server_config: cert_file is missing"),
        ({"tls_server_config": {"cert_file": "server.pem"}}, "tls_server_config: key_file is missing"),
        ({"tls_server_config": {**TLS, "cert": "x"}}, "cert and cert_file are both set"),
        ({"tls_server_config": {**TLS, "cert_file": "none.pem"}}, "none.pem: No such file or directory"),
        ({"tls_server_config": {**TLS, "cert_file": "fifo.pem"}}, "fifo.pem: not a regular file"),
        ({"tls_server_config": {**TLS, "cert_file": "large.pem"}}, "large.pem: larger than 1 MiB"),
        ({"tls_server_config": {**TLS, "cert_file": "."}}, "not a regular file"),
        ({"tls_server_config": {**TLS, "cert_file": 5}}, "cert_file: must be text, not int"),
        ({"tls_server_config": {**TLS, "cert_file": "server.key"}}, "cert: contains no PEM block"),
        ({"tls_server_config": {**TLS, "key_file": "server.pem"}}, "key: contains no PEM block"),
        ({"tls_server_config": {**TLS, "key_file": "empty.pem"}}, "key_file is missing or empty"),
        ({"tls_server_config": {**TLS, "key_file": "other.key"}}, "cert and key do not belong together"),
        ({"tls_server_config": {**TLS, "key_file": "locked.key"}}, "key: is encrypted"),
        ({"tls_server_config": {**TLS, "min_version": "TLS11"}}, "min_version: TLS11 is insecure"),
        ({"tls_server_config": {**TLS, "min_version": "TLS14"}}, "min_version: 'TLS14' is not one of TLS12, TLS13"),
        ({"tls_server_config": {**TLS, "min_version": "TLS13", "max_version": "TLS12"}}, "allow no TLS version"),
        (
            {"tls_server_config": {**TLS, "max_version": "TLS12", "cipher_suites": ["TLS_AES_128_GCM_SHA256"]}},
            "allow no TLS version",
        ),
        ({"tls_server_config": {**TLS, "cipher_suites": ["TLS_RSA_WITH_RC4_128_SHA"]}}, "cipher_suites: 'TLS_RSA"),
        ({"tls_server_config": {**TLS, "cipher_suites": []}}, "cipher_suites: must be a list of at least one"),
        ({"tls_server_config": {**TLS, "curve_preferences": ["P256"]}}, "curve_preferences: 'P256' is not one of"),
        ({"tls_server_config": {**TLS, "client_auth_type": "RequireAnyClientCert"}}, "use RequireAndVerifyClientCert"),
        ({"tls_server_config": {**TLS, "client_auth_type": "Verify"}}, "client_auth_type: 'Verify' is not one of"),
        ({"tls_server_config": {**TLS, "client_ca_file": "ca.pem"}}, "client_ca needs client_auth_type"),
        ({"tls_server_config": {**TLS, "client_auth_type": "VerifyClientCertIfGiven"}}, "needs client_ca_file"),
        (
            {"tls_server_config": {**MUTUAL, "client_ca_file": "server.key"}},
            "client_ca: contains no usable certificate",
        ),
        ({"tls_server_config": {**MUTUAL, "client_ca_file": "empty.pem"}}, "client_ca_file"),
        (
            {
                "tls_server_config": {
                    **MUTUAL,
                    "client_auth_type": "VerifyClientCertIfGiven",
                    "client_allowed_sans": ["a"],
                }
            },
            "client_allowed_sans needs client_auth_type",
        ),
        ({"http_server_config": {"headers": {"Server": "x"}}}, "http_server_config: headers: unknown key Server"),
        ({"http_server_config": {"headers": {"X-Frame-Options": "allow"}}}, "X-Frame-Options: 'allow' is not one of"),
        ({"http_server_config": {"headers": {"X-XSS-Protection": "1\r\nX: y"}}}, "one line of printable ASCII"),
        ({"http_server_config": {"http2": "maybe"}}, "http2: 'maybe' is neither true nor false"),
        ({"basic_auth_users": {"me": "hunter2"}}, "basic_auth_users: me: not a bcrypt hash; make one with `htpasswd"),
        ({"basic_auth_users": {"me": None}}, "basic_auth_users: me: not a bcrypt hash"),
        ({"basic_auth_users": {"me": HASH.replace("$04$", "$31$")}}, "a bcrypt cost of 31 is out of range"),
        ({"basic_auth_users": {"m:e": HASH}}, "must not contain a colon"),
        ({"rate_limit": {"interval": 5, "burst": 1}}, "rate_limit: interval: must be text"),
        ({"rate_limit": {"interval": "5s"}}, "rate_limit: burst is missing"),
        ({"rate_limit": {"interval": "5s", "burst": 0}}, "rate_limit: burst: must be a number of requests"),
    ],
)
def test_refuses(folder: Path, content: object, said: str) -> None:
    """The error is one line that names the file, the key and the fix."""
    with pytest.raises(GpuExporterError) as caught:
        guard(folder, content)
    assert str(caught.value).startswith(f"web config {folder / 'web.yml'}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "warnings"),
    [("", 1), ("# nothing\n", 1), ("{}", 1), ({"tls_server_config": {}}, 1), ({"basic_auth_users": {"me": HASH}}, 0)],
)
def test_an_empty_file_is_a_warning(
    folder: Path, content: object, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is valid, as in the toolkit, but probably a mistake: one line says what it allows."""
    guard(folder, content)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warnings
    assert caplog.text.count("web.yml sets nothing: no TLS, no password; anyone can read the metrics") == warnings


@pytest.mark.parametrize(
    ("content", "authenticates"),
    [
        ("", False),
        ({"tls_server_config": TLS}, False),
        ({"tls_server_config": {**MUTUAL, "client_auth_type": "VerifyClientCertIfGiven"}}, False),
        ({"tls_server_config": MUTUAL}, True),
        ({"basic_auth_users": {"me": HASH}}, True),
    ],
)
def test_authenticates(folder: Path, content: object, authenticates: bool) -> None:
    """Every client needs a password or a certificate."""
    assert guard(folder, content).authenticates is authenticates


def test_no_secret_is_printed(folder: Path) -> None:
    """Neither an error nor a configuration printed by mistake shows a password, a hash or a key."""
    key = (folder / "server.key").read_text()
    for password in (
        '"hunter2',
        "hunter2",
        "[hunter2, }",
        "*hunter2",
        "!hunter2",
        "@hunter2",
        "%hunter2",
        "a: hunter2",
    ):
        content = f"basic_auth_users:\n  me: {password}\n"
        with pytest.raises(GpuExporterError) as caught:
            guard(folder, content)
        assert "hunter2" not in str(caught.value)
    inline = {"cert": (folder / "server.pem").read_text(), "key": key}
    whole = guard(folder, {"tls_server_config": inline, "basic_auth_users": {"me": HASH}})
    assert whole.context is not None
    assert HASH not in repr(whole.config)
    assert key.splitlines()[1] not in repr(whole.config)


@pytest.mark.slow
@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.dictionaries(st.text(), x)))
def test_any_document(document: object) -> None:
    """It is accepted, or refused with ValueError."""
    wrapped = {"tls_server_config": document, "basic_auth_users": document, "http_server_config": document}
    for content in (document, wrapped):
        with suppress(ValueError):
            parse(json.dumps(content).encode(), Path(), Path.read_bytes)


def test_headers(folder: Path) -> None:
    """Secure headers are always sent unless overridden; an empty value removes one."""
    assert Guard().config.headers == SECURE_HEADERS
    headers = guard(
        folder, {"http_server_config": {"headers": {"X-Frame-Options": "sameorigin", "Content-Security-Policy": ""}}}
    ).config.headers
    assert headers["X-Frame-Options"] == "sameorigin"
    assert "Content-Security-Policy" not in headers
    assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("allowed", "names", "expected"),
    [
        ([], [], True),
        (["a.example"], [("DNS", "a.example")], True),
        (["a.example"], [("DNS", "b.example"), ("URI", "a.example")], True),
        (["a.example"], [("DNS", "A.example")], False),
        (["a.example"], [("DNS", "*.example")], False),
        (["a.example"], [("DirName", "a.example")], False),
        (["a.example"], [], False),
        (["::1"], [("IP Address", "0:0:0:0:0:0:0:1")], True),
        (["10.0.0.1"], [("IP Address", "10.0.0.1\n")], True),
        (["spiffe://x/y"], [("URI", "spiffe://x/y")], True),
    ],
)
def test_client_names(folder: Path, allowed: list[str], names: list[tuple[str, str]], expected: bool) -> None:
    """A client's certificate needs one of the allowed names, exactly."""
    tls = guard(folder, {"tls_server_config": {**MUTUAL, **({"client_allowed_sans": allowed} if allowed else {})}})
    assert tls.config.tls
    assert admits(tls.config.tls, {"subjectAltName": tuple(names)}) is expected
    assert admits(tls.config.tls, None) is (not allowed)


def test_follows(tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A change takes effect. A faulty one is logged once and changes nothing, until the next change."""
    for name in ("server.pem", "server.key", "other.pem", "other.key", "ca.pem"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    followed = guard(tmp_path, {"tls_server_config": TLS})
    first = followed.context
    followed.follow()
    assert followed.context is first
    (tmp_path / "server.pem").write_bytes((tmp_path / "other.pem").read_bytes())
    for _ in range(3):
        followed.follow()
    assert followed.context is first
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "cert and key do not belong together" in caplog.text
    (tmp_path / "server.key").write_bytes((tmp_path / "other.key").read_bytes())
    followed.follow()
    assert followed.context is not first


def test_follows_swapped_links(tmp_path: Path, folder: Path) -> None:
    """A mounted Kubernetes secret changes by one swap of a link to a folder, whatever the files' times."""
    for version, source in (("1", "server"), ("2", "other")):
        (tmp_path / version).mkdir()
        for suffix in ("pem", "key"):
            file = tmp_path / version / f"server.{suffix}"
            file.write_bytes((folder / f"{source}.{suffix}").read_bytes())
            os.utime(file, (0, 0))
    (tmp_path / "..data").symlink_to("1")
    for suffix in ("pem", "key"):
        (tmp_path / f"server.{suffix}").symlink_to(f"..data/server.{suffix}")
    followed = guard(tmp_path, {"tls_server_config": TLS})
    assert followed.config.tls
    before = followed.config.tls.cert
    (tmp_path / "..new").symlink_to("2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    followed.follow()
    assert followed.config.tls.cert == (folder / "other.pem").read_bytes() != before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"tls_server_config": TLS}, "", "turning TLS on or off"),
        ("", {"tls_server_config": TLS}, "turning TLS on or off"),
        ({"tls_server_config": MUTUAL}, {"tls_server_config": TLS}, "making client certificates less strict"),
        (
            {"tls_server_config": {**MUTUAL, "client_allowed_sans": ["a"]}},
            {"tls_server_config": MUTUAL},
            "client_allowed_sans",
        ),
        ({"basic_auth_users": {"me": HASH}}, {"basic_auth_users": {}}, "turning passwords off"),
    ],
)
def test_a_reload_opens_nothing(folder: Path, old: object, new: object, said: str) -> None:
    """A file that is read half-written, or emptied, does not open access."""
    followed = guard(folder, old)
    before = followed.config
    (folder / "web.yml").write_text(new if isinstance(new, str) else json.dumps(new))
    with pytest.raises(GpuExporterError, match=f"{said}.*needs a restart"):
        followed.reload()
    assert followed.config is before


# --- logins ------------------------------------------------------------------------------------------------------


def basic(user: str, password: str) -> str:
    """Return the header with these credentials."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bytes]]:
    """Record the password and hash of each comparison, which takes 2 ms; `right` is the right password."""
    calls: list[tuple[bytes, bytes]] = []

    def compare(password: bytes, hashed: bytes) -> tuple[bool, float]:
        calls.append((password, hashed))
        time.sleep(0.002)
        return password == b"right", 0.002

    monkeypatch.setattr(module, "_compare", compare)
    return calls


Ask = Callable[..., Any]
USERS = {"me": HASH, "you": HASH.replace("$04$", "$05$")}


def statuses(refusals: list[Refusal | None]) -> list[int]:
    """Return the status codes, 200 if there was no refusal."""
    return [refusal.status if refusal else 200 for refusal in refusals]


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (basic("me", "right"), 200),
        (basic("me", "right").replace("Basic ", "basic   "), 200),
        (basic("me", "right" * 20), 401),
        (basic("me", ""), 401),
        (basic("me", "a\0b"), 401),
        (basic("ME", "right"), 401),
        (basic("", "right"), 401),
        (basic("nobody", "right"), 401),
        (basic("no\ud800body".encode("utf-8", "replace").decode(), "right"), 401),
        ("Basic " + base64.b64encode(b"\xff\xfe:right").decode(), 401),
        ("Basic " + base64.b64encode(b"me").decode(), 401),
        ("Basic !!!", 401),
        ("Basic \xff", 401),
        ("Basic", 401),
        ("Bearer " + basic("me", "right")[6:], 401),
        ("", 401),
    ],
)
def test_login(authorization: str, status: int) -> None:
    """Only the user's own password is right, with real bcrypt."""
    refusal = asyncio.run(Login().refuse({"me": HASH}, authorization, "::1"))
    assert (refusal.status if refusal else 200) == status


def test_the_right_password_is_verified_once(compared: list[tuple[bytes, bytes]]) -> None:
    """It is verified again only if the user's hash changes."""

    async def ask() -> list[Refusal | None]:
        login = Login()
        answers = [await login.refuse(USERS, basic("me", "right"), "a") for _ in range(10)]
        changed = {**USERS, "me": HASH[:-1] + "x"}
        answers += [await login.refuse(changed, basic("me", "right"), "a") for _ in range(10)]
        answers += [await login.refuse({"you": HASH}, basic("me", "right"), "a") for _ in range(2)]
        return answers

    assert statuses(asyncio.run(ask())) == [200] * 20 + [401] * 2
    assert [hashed[-1:] == b"x" for _, hashed in compared[:2]] == [False, True]
    assert len(compared) == 3


def test_the_same_wrong_password_is_compared_once(
    compared: list[tuple[bytes, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one line, without a password and without a name that might be one."""

    async def ask() -> list[Refusal | None]:
        login = Login()
        users = ("you", "sEcReT")
        return [await login.refuse(USERS, basic(user, "sEcReT"), "a") for _ in range(50) for user in users]

    assert set(asyncio.run(ask())) == {UNAUTHORIZED}
    assert len(compared) == 2
    assert len(caplog.records) == 1
    assert "sEcReT" not in caplog.text


@pytest.mark.parametrize("user", ["me", "you", "nobody"])
def test_every_wrong_password_costs_as_much(compared: list[tuple[bytes, bytes]], user: str) -> None:
    """Whether the hash of the user is cheap or costly, or there is no such user. No other hash matches a password."""
    assert asyncio.run(Login().refuse(USERS, basic(user, "wrong"), "a")) is UNAUTHORIZED
    assert sum(1 << int(hashed[4:6]) for _, hashed in compared) == 1 << 5
    own = USERS.get(user, "").encode()
    assert not any(bcrypt.checkpw(b"wrong", hashed) for _, hashed in compared if hashed != own)


@pytest.mark.parametrize(("cost", "highest", "costs"), [(10, 10, []), (10, 11, [10]), (4, 8, [4, 5, 6, 7])])
def test_fillers(cost: int, highest: int, costs: list[int]) -> None:
    """They are as many rounds as are missing to the highest cost."""
    assert [int(hashed[4:6]) for hashed in module.fillers(f"$2b${cost:02}$", highest)] == costs
    assert (1 << cost) + sum(1 << other for other in costs) == 1 << highest


@pytest.mark.slow
@pytest.mark.parametrize("address", ["attacker", "victim"])
def test_an_unverified_right_password_gets_through_a_flood(compared: list[tuple[bytes, bytes]], address: str) -> None:
    """Even if all come from its own address. The flood is refused, and uses at most a fifth of a thread."""

    async def ask() -> tuple[int, list[Refusal | None], float]:
        login, wrong, begin = Login(), [], time.monotonic()
        tries, flooding = 0, True

        async def flood(worker: int) -> None:
            number = 0
            while flooding:
                number += 1
                wrong.append(await login.refuse(USERS, basic("me", f"wrong {worker} {number}"), address))
                await asyncio.sleep(0.001)  # as a client would; otherwise Python itself starves the thread

        floods = [asyncio.create_task(flood(worker)) for worker in range(20)]
        while len(wrong) < 100:
            await asyncio.sleep(0.01)
        while True:
            tries += 1
            if await login.refuse(USERS, basic("me", "right"), "victim") is None:
                break
            await asyncio.sleep(0.05)
        flooding = False
        await asyncio.gather(*floods)
        return tries, wrong, time.monotonic() - begin

    tries, wrong, seconds = asyncio.run(ask())
    assert tries <= 4
    assert set(statuses(wrong)) == {401, 429}
    assert len(compared) * 0.01 < seconds * 1.3


@pytest.mark.slow
def test_flood_of_repeated_wrong_passwords(compared: list[tuple[bytes, bytes]]) -> None:
    """Clients that repeat the same wrong passwords wait like all others at that address.

    Counted in comparisons, which a busy machine does not change: at a fifth of a core, 60 of cost 10 take 15 s.
    """

    async def ask() -> int:
        login, flooding = Login(), True

        async def insist(worker: int) -> None:
            number = 0
            while flooding:
                number += 1
                wrong = basic("you", f"wrong {worker} {number}")
                while flooding and (refusal := await login.refuse(USERS, wrong, "a")) and refusal.status == 429:
                    await asyncio.sleep(0.01)

        floods = [asyncio.create_task(insist(worker)) for worker in range(30)]
        while len(compared) < 3:
            await asyncio.sleep(0.01)
        begin = len(compared)
        while await login.refuse(USERS, basic("me", "right"), "a") is not None:
            await asyncio.sleep(0.05)
        flooding, took = False, len(compared) - begin
        await asyncio.gather(*floods)
        return took

    assert asyncio.run(ask()) <= 60


@pytest.mark.slow
def test_queue_and_memory_are_bounded(compared: list[tuple[bytes, bytes]]) -> None:
    """The queue has a fixed length, of which each address gets a share."""

    async def ask() -> list[Refusal | None]:
        login = Login()
        asked = [
            login.refuse(USERS, basic("you", f"{client} {number}"), f"10.0.0.{client}")
            for number in range(20)
            for client in range(20)
        ]
        answers = await asyncio.gather(*asked)
        assert not len(login._queue)
        return list(answers)

    answers = asyncio.run(ask())
    assert statuses(answers).count(401) == len(compared) <= WAITING
    each = [sum(password.startswith(b"%d " % client) for password, _ in compared) for client in range(20)]
    assert min(each) >= 2


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_client_of(address: str, client: str) -> None:
    """An IPv6 network is one client."""
    assert client_of(address) == client


def test_seldom() -> None:
    """Once a minute for each key, and for a limited number of keys."""
    seldom = OncePerMinute(most=2)
    assert [seldom(key) for key in "aabbcc"] == [True, False, True, False, False, False]


def test_rate_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many requests at once as the burst allows, then one per interval, of all clients."""
    clock = Clock()
    monkeypatch.setattr("gpu_exporter.http.guard.time", clock)
    limited = guard(folder, {"rate_limit": {"interval": "50ms", "burst": 3}})

    async def ask() -> list[Refusal | None]:
        first = [await limited.refuse("", "a") for _ in range(5)]
        clock.pass_by(0.06)
        return [*first, await limited.refuse("", "b")]

    assert statuses(asyncio.run(ask())) == [200, 200, 200, 429, 429, 200]


def test_good_files_are_hardly_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A start logs nothing, a reload one line."""
    caplog.set_level(logging.INFO)
    good = guard(folder, {"tls_server_config": {**MUTUAL, "client_auth_type": "VerifyClientCertIfGiven"}})
    assert good.context
    assert good.context.verify_mode == ssl.CERT_OPTIONAL
    good.follow()
    assert not caplog.records
    good.reload()
    assert len(caplog.records) == 1
