"""`release`, `resume` and `doctor` find the exporter by its settings, as in its container."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import Exporter, Serve, run
from tests.e2e.app.test_web import MUTUAL, REPLAY, TLS, Pki, hashed
from tests.e2e.cli.test_bad_input import fails
from tests.e2e.doctor.test_doctor import findings
from tests.support.tools import until

# The name of a Service, as in the certificate of a Secret: no client on this machine asks for it.
SERVICE = "gpu-exporter.monitoring.svc"


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    """An authority that nothing on this machine trusts, and a certificate for another name."""
    made = Pki(tmp_path)
    made.issue("server", SERVICE)
    return made


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """The path of the token file."""
    return tmp_path / "token"


def unverified(client: Path | None = None) -> ssl.SSLContext:
    """Return a context for the requests of the tests, which connect to 127.0.0.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if client:
        context.load_cert_chain(client)
    return context


def of_environment(exporter: Exporter, web: str, token: Path) -> Mapping[str, str]:
    """Return the variables of a container with these settings."""
    web_config = {"GPU_EXPORTER_WEB_CONFIG_FILE": web} if web else {}
    return {"GPU_EXPORTER_ADDRESS": f":{exporter.port}", "GPU_EXPORTER_TOKEN_FILE": str(token), **web_config}


def of_file(exporter: Exporter, web: str, token: Path) -> Mapping[str, str]:
    """Return the variable of a container with a file of settings, as the chart sets it."""
    path = token.with_name("config.yaml")
    path.write_text(json.dumps({"address": f":{exporter.port}", "web_config_file": web, "token_file": str(token)}))
    return {"GPU_EXPORTER_CONFIG": str(path)}


def of_dcgm_exporter(exporter: Exporter, web: str, token: Path) -> Mapping[str, str]:
    """Return the variables of a container of dcgm-exporter of which only the image was changed."""
    return {
        "DCGM_EXPORTER_LISTEN": f":{exporter.port}",
        "DCGM_EXPORTER_WEB_CONFIG_FILE": web,
        "GPU_EXPORTER_TOKEN_FILE": str(token),
    }


@pytest.mark.parametrize("environment", [of_environment, of_file, of_dcgm_exporter])
@pytest.mark.parametrize("users", [{}, {"prometheus": hashed("secret")}], ids=["", "password"])
def test_a_certificate_of_another_name(
    serve: Serve, pki: Pki, token: Path, environment: object, users: Mapping[str, str]
) -> None:
    """The exporter's own certificate is trusted, whatever it names. The token replaces the password."""
    web = pki.config(TLS, users)
    exporter = serve(*REPLAY, "--token-file", str(token), "--web.config.file", web, tls=unverified())
    assert callable(environment)
    env = environment(exporter, web, token)
    for command, said in (("release", "released until 20"), ("resume", "resumed")):
        ran = run(command, env=env)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.startswith(said)


def test_without_tls(serve: Serve, token: Path) -> None:
    """The port is that of the settings."""
    exporter = serve(*REPLAY, "--token-file", str(token))
    ran = run("release", env=of_environment(exporter, "", token))
    assert (ran.returncode, ran.stdout[:14]) == (0, "released until")
    assert run("resume", "--address", f"127.0.0.1:{exporter.port}", "--token-file", str(token)).stdout == "resumed\n"


def test_another_certificate_gets_no_token(serve: Serve, pki: Pki, token: Path) -> None:
    """The certificate is compared before anything is sent; the error is one line."""
    exporter = serve(*REPLAY, "--token-file", str(token), "--web.config.file", pki.config(TLS), tls=unverified())
    other = {"cert_file": str(pki.issue("other", SERVICE)), "key_file": "other.pem"}
    web = token.with_name("other.yml")
    web.write_text(json.dumps({"tls_server_config": other}))
    said = fails("release", env=of_environment(exporter, str(web), token))
    assert f"https://127.0.0.1:{exporter.port}: TLS: its certificate is not that of --web.config.file" in said
    assert exporter.page().value("gpu_exporter_released") == 0


def test_a_url_is_verified(serve: Serve, pki: Pki, token: Path) -> None:
    """By authority and name: it may be anywhere."""
    web = pki.config(TLS)
    exporter = serve(*REPLAY, "--token-file", str(token), "--web.config.file", web, tls=unverified())
    env = of_environment(exporter, web, token)
    url = f"https://localhost:{exporter.port}"
    assert "unable to get local issuer certificate; give the certificate authority with --ca-file" in fails(
        "release", "--url", url, env=env
    )
    assert "unable to get local issuer" in fails("release", env={**env, "GPU_EXPORTER_URL": url})
    assert "ostname mismatch" in fails("release", "--url", url, "--ca-file", str(pki.folder / "ca.pem"), env=env)


def test_an_exporter_without_tls(serve: Serve, token: Path) -> None:
    """The error says so."""
    exporter = serve(*REPLAY, "--token-file", str(token))
    url = f"https://localhost:{exporter.port}"
    assert "if it does not speak TLS, give --url http://" in fails("release", "--url", url, "--token-file", str(token))


@pytest.mark.parametrize("version", ["TLS12", "TLS13"])
def test_client_certificates(serve: Serve, pki: Pki, token: Path, version: str) -> None:
    """A server that requires one is recognised; the error says what to do."""
    web = pki.config({**MUTUAL, "max_version": version, "min_version": version})
    client = pki.issue("client", "client")
    exporter = serve(*REPLAY, "--token-file", str(token), "--web.config.file", web, tls=unverified(client))
    said = fails("release", env=of_environment(exporter, web, token))
    assert "if it requires a client certificate, which this command cannot send, use `curl --cert FILE" in said
    assert "--url https" not in said


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"web_config_file": "none.yml"}, "web config none.yml: No such file or directory"),
        ({"web_config_file": "bad.yml"}, "web config bad.yml: unknown key tls"),
        ({"address": "127.0.0.1:0"}, "--address 127.0.0.1:0 does not say on which port the exporter listens; give its"),
    ],
)
def test_unusable_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, str], message: str
) -> None:
    """The error is one line that names the setting."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yml").write_text("tls: {}")
    assert message in fails("release", env={f"GPU_EXPORTER_{name.upper()}": text for name, text in settings.items()})


@pytest.mark.parametrize("tls", [TLS, MUTUAL], ids=["certificate", "client certificates"])
def test_doctor_speaks_tls(serve: Serve, pki: Pki, token: Path, tls: Mapping[str, object]) -> None:
    """It recognises the exporter on its port, also one that refuses every client without a certificate."""
    web, client = pki.config(tls), pki.issue("client", "client")
    exporter = serve(*REPLAY, "--web.config.file", web, tls=unverified(client))
    env = of_environment(exporter, web, token)
    found = findings(run("doctor", *REPLAY, env=env))
    assert found[f":{exporter.port} is served by gpu-exporter already"] == ("ok", "")
    if tls is TLS:  # without the exporter's settings, its response says what it is
        address = f":{exporter.port}"
        said = f"{address} is served by gpu-exporter already"
        # On a busy machine, the exporter's answer may come too late for doctor.
        until(lambda: findings(run("doctor", *REPLAY, "--address", address)).get(said) == ("ok", ""), what=said)


def test_doctor_reports_a_faulty_web_configuration(tmp_path: Path) -> None:
    """It goes on with the other checks."""
    found = findings(run("doctor", *REPLAY, "--web.config.file", str(tmp_path / "none.yml"), "--address", ":0"))
    level, cure = found[f"web config {tmp_path / 'none.yml'}: No such file or directory"]
    assert (level, "as root" in cure) == ("warn", True)
