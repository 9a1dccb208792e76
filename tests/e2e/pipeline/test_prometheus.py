"""promtool's lint, and a real Prometheus that scrapes a real exporter."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import bcrypt
import pytest
import trustme

from tests.conftest import Exporter, Serve
from tests.support.fakes.driver import FakeDriver
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import tool, until

SERIES_A_GPU = 130
START: dict[str, Callable[..., Exporter]] = {
    "replay": lambda serve, path, *more: serve("--source", "replay", "--recording", "h200_workloads", *more),
    "fake driver": lambda serve, path, *more: serve(*more, env=FakeDriver(path / "driver", 8).environment),
}


Watch = Callable[..., Prometheus]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    """Start a Prometheus that scrapes an exporter each second."""
    with ExitStack() as stack:

        def start(exporter: Exporter, **more: object) -> Prometheus:
            targets = [{"targets": [f"127.0.0.1:{exporter.port}"]}]
            return stack.enter_context(scraping(tmp_path, "1s", {"static_configs": targets, **more}))

        yield start


@pytest.mark.parametrize("source", START)
def test_promtool_complains_only_of_classic_names(serve: Serve, tmp_path: Path, source: str) -> None:
    """promtool objects to names of dcgm-exporter's families, but to no others."""
    exporter = START[source](serve, tmp_path, "--metrics", "full", "--interval", "200ms")
    page = exporter.until(lambda page: bool(page.values("gpu_sm_active_seconds_total")))
    lint = subprocess.run([tool("promtool"), "check", "metrics"], input=page.text, text=True, capture_output=True)
    complaints = (lint.stdout + lint.stderr).splitlines()
    assert any(line.startswith("DCGM_") for line in complaints), "promtool checked nothing"
    assert {line for line in complaints if not line.startswith(("DCGM_", "process_", "python_"))} == set()


@pytest.mark.parametrize("source", START)
def test_prometheus_takes_every_sample(serve: Serve, watch: Watch, tmp_path: Path, source: str) -> None:
    """A real Prometheus stores every sample with the right type, and logs no complaint."""
    exporter = START[source](serve, tmp_path, "--metrics", "full", "--interval", "100ms")
    page = exporter.until(lambda page: bool(page.values("gpu_sm_active_seconds_total")))
    prometheus = watch(exporter)
    until(lambda: prometheus.query("sum_over_time(up[30s])") >= [8.0], 20, "eight successful scrapes")
    sent = len(exporter.page().samples)
    until(lambda: prometheus.query("scrape_samples_scraped") == [sent], 20, "a scrape of every sample")
    assert sent >= len(page.samples)
    stored = '{job="gpu",__name__!~"up|scrape_.*"}'
    assert prometheus.query(f"count({stored})") == [sent]
    assert prometheus.query('count({source="replay"})') == ([sent] if source == "replay" else [])

    assert prometheus.type_of("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION") == "unknown"
    assert prometheus.type_of("DCGM_FI_DEV_GPU_TEMP") == "gauge"
    assert prometheus.type_of("gpu_sm_active_seconds") == "counter"
    assert prometheus.type_of("gpu_up") == "gauge"
    assert prometheus.type_of("process_cpu_seconds") == "counter"
    if source == "fake driver":
        # By the clock of the reads: on a busy machine a page may show them late.
        read_at = "on (gpu) rate(gpu_last_read_timestamp_seconds[5s])"
        rates = f"rate(gpu_sm_active_seconds_total[5s]) / {read_at}"
        until(lambda: prometheus.query(rates) == [pytest.approx(0.96, abs=0.05)] * 8, what="the rate of each GPU")

    log = prometheus.log.read_text()
    assert "Server is ready" in log
    bad = [line for line in log.splitlines() if "level=warn" in line or "level=error" in line or "ailed" in line]
    assert bad == []


def test_series_a_gpu_stay_within_the_budget(serve: Serve, tmp_path: Path) -> None:
    """The default set has at most 130 series per GPU on a node of eight, including all others."""
    exporter = START["fake driver"](serve, tmp_path, "--interval", "200ms")
    page = exporter.until(lambda page: len(page.values("gpu_sm_active_seconds_total")) == 8)
    each = [sum(labels.get("gpu") == str(gpu) for _, labels, _ in page.samples) for gpu in range(8)]
    assert min(each) > 60, "the page has too little on it to judge"
    assert max(each) <= SERIES_A_GPU
    assert len(page.samples) / 8 <= SERIES_A_GPU


def test_prometheus_scrapes_over_tls_with_a_password(serve: Serve, watch: Watch, tmp_path: Path) -> None:
    """A real Prometheus scrapes with client certificate and password, and each scrape after the first is quick."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, cert in (
        ("server", authority.issue_cert("127.0.0.1")),
        ("client", authority.issue_cert("prometheus.example")),
    ):
        cert.private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{name}.pem")
    tls = {
        "cert_file": "server.pem",
        "key_file": "server.pem",
        "client_auth_type": "RequireAndVerifyClientCert",
        "client_ca_file": "ca.pem",
        "client_allowed_sans": ["prometheus.example"],
    }
    users = {"prometheus": bcrypt.hashpw(b"right", bcrypt.gensalt(10)).decode()}
    (tmp_path / "web.yml").write_text(json.dumps({"tls_server_config": tls, "basic_auth_users": users}))
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    context.load_cert_chain(tmp_path / "client.pem")
    exporter = serve(
        "--source",
        "replay",
        "--recording",
        "h200_workloads",
        "--web.config.file",
        str(tmp_path / "web.yml"),
        tls=context,
    )
    names = {"ca_file": "ca.pem", "cert_file": "client.pem", "key_file": "client.pem"}
    prometheus = watch(
        exporter,
        scheme="https",
        tls_config={name: str(tmp_path / path) for name, path in names.items()},
        basic_auth={"username": "prometheus", "password": "right"},
    )
    until(lambda: prometheus.query("sum_over_time(up[30s])") >= [4.0], 20, "four successful scrapes")
    assert prometheus.query('count({source="replay"})')[0] > 50
