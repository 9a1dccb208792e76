"""TLS and passwords in the chart: one scheme for everything that connects to the exporter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_exporter.http import web_config
from tests.support.chart import BASIC_AUTH, HASH, USER, Values, exporter, kind, objects, only, pod, texts

pytestmark = pytest.mark.slow

TLS_CONFIG = {"insecureSkipVerify": True}
FILES = {"cert_file": "/etc/gpu-exporter/tls/tls.crt", "key_file": "/etc/gpu-exporter/tls/tls.key"}
OWN = {"cert_file": "/own/tls.crt", "key_file": "/own/tls.key"}
USERS = {"basic_auth_users": {USER: HASH}}


def web(config: Values | None = None, **values: str) -> Values:
    """Return the value `web`."""
    return {"config": config or {}, **values}


def rendered(values: Values) -> Any:
    """Return the web configuration in the chart's Secret, or None without one."""
    secrets = kind(objects({"web": values}), "Secret")
    return yaml.safe_load(secrets[0]["stringData"]["web.yml"]) if secrets else None


@pytest.mark.parametrize(
    ("values", "scheme", "probe"),
    [
        (web(), "http", "HTTP"),
        (web({"http_server_config": {}}), "http", "HTTP"),
        (web({"tls_server_config": {}}), "http", "HTTP"),
        (web(USERS), "http", ""),
        (web({"tls_server_config": OWN}), "https", "HTTPS"),
        (web(tlsSecret="tls"), "https", "HTTPS"),
        (web({"tls_server_config": {"min_version": "TLS13"}}, tlsSecret="tls"), "https", "HTTPS"),
        (web(USERS, tlsSecret="tls"), "https", ""),
        (web(existingSecret="own", scheme="http"), "http", ""),
        (web(existingSecret="own", scheme="https"), "https", ""),
        (web(existingSecret="own", scheme="http", tlsSecret="tls"), "http", ""),
    ],
)
def test_one_scheme(values: Values, scheme: str, probe: str) -> None:
    """ServiceMonitor, probes, notes and test connect as the exporter listens. A probe without a password needs none."""
    monitor: dict[str, Any] = {"enabled": True, "basicAuth": BASIC_AUTH}
    found = objects({"web": values, "serviceMonitor": monitor})
    (endpoint,) = only(found, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == scheme
    for name in ("livenessProbe", "readinessProbe"):
        assert exporter(found)[name].get("httpGet", {}).get("scheme", "") == probe
    assert f"{scheme}://localhost:9400/metrics" in texts({"web": values})["NOTES.txt"]
    (test,) = only(found, "Pod")["spec"]["containers"]
    (port_only,) = (each["value"] for each in test["env"] if each["name"] == "PORT_ONLY")
    assert port_only == ("" if values == web() else "yes")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (web(), None),
        (web(USERS), USERS),
        (web(tlsSecret="tls"), {"tls_server_config": FILES}),
        (web(USERS, tlsSecret="tls"), {**USERS, "tls_server_config": FILES}),
        (web({"tls_server_config": OWN}, tlsSecret="tls"), {"tls_server_config": OWN}),
        (
            web({"tls_server_config": {"cert": "PEM", "max_version": "TLS12"}}, tlsSecret="tls"),
            {"tls_server_config": {"cert": "PEM", "max_version": "TLS12", "key_file": FILES["key_file"]}},
        ),
        (web(tlsSecret="tls", existingSecret="own", scheme="https"), None),
    ],
)
def test_the_secret_turns_tls_on(values: Values, expected: Mapping[str, Any] | None) -> None:
    """Keys of the user take precedence, and the exporter accepts the result."""
    content = rendered(values)
    assert content == expected
    if content:
        parsed = web_config.parse(yaml.safe_dump(content).encode(), Path("/"), lambda path: b"PEM")
        assert (parsed.tls is not None) is ("tls_server_config" in content)
        (settings,) = (each["data"] for each in kind(objects({"web": values}), "ConfigMap"))
        assert yaml.safe_load(settings["config.yaml"])["web_config_file"] == "/etc/gpu-exporter/web/web.yml"
        sources = pod(objects({"web": values}))["volumes"][0]["projected"]["sources"]
        assert {"key": "web.yml", "path": "web/web.yml"} in [
            item for each in sources if "secret" in each for item in each["secret"]["items"]
        ]


def test_a_changed_secret_name_restarts_nothing_else() -> None:
    """The exporter reloads certificates, but not whether there is TLS."""
    sums = [
        only(objects({"web": values}), "DaemonSet")["spec"]["template"]["metadata"]["annotations"].get("checksum/web")
        for values in (web(), web(tlsSecret="a"), web(tlsSecret="b"))
    ]
    assert sums[0] is None
    assert sums[1] == sums[2] is not None


def test_commands_in_the_pod_find_the_exporter_by_its_settings() -> None:
    """A URL from the chart's values would be wrong with `web.existingSecret` and with the names of a certificate."""
    for values in (web(), web(tlsSecret="tls"), web(existingSecret="own", scheme="https")):
        names = {each["name"] for each in exporter(objects({"web": values}))["env"]}
        assert {"GPU_EXPORTER_CONFIG", "GPU_EXPORTER_TOKEN_FILE"} <= names
        assert "GPU_EXPORTER_URL" not in names


def test_a_password_reaches_prometheus() -> None:
    """Without it, every scrape would fail with 401. `test_chart_invalid_values.py` has the error."""
    found = objects({"web": web(USERS), "serviceMonitor": {"enabled": True, "basicAuth": BASIC_AUTH}})
    (endpoint,) = only(found, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["basicAuth"] == BASIC_AUTH


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"web": web(tlsSecret="tls"), "serviceMonitor": {"enabled": True}}, True),
        ({"web": web(tlsSecret="tls"), "serviceMonitor": {"enabled": True, "tlsConfig": TLS_CONFIG}}, False),
        ({"web": web(tlsSecret="tls")}, False),
        ({"serviceMonitor": {"enabled": True}}, False),
    ],
)
def test_notes_say_that_prometheus_cannot_verify(values: Values, *, expected: bool) -> None:
    assert ("serviceMonitor.tlsConfig is empty" in texts(values)["NOTES.txt"]) is expected
