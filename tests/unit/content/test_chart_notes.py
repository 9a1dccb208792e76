"""The notes that Helm prints after an installation."""

from __future__ import annotations

import pytest

from tests.support.chart import SETS, beyond_restricted, kind, made, objects, pod, texts

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "said", "unsaid"),
    [
        ("defaults", "THE METRICS DO NOT SAY WHICH POD USES A GPU", "must allow privileged pods, which"),
        ("defaults", "helm upgrade gpus CHART --namespace gpu-monitoring --reuse-values --set attr", "-u USER"),
        ("attribution", "must allow privileged pods, which these values need: attribution.enabled:", "DO NOT SAY"),
        ("pod-monitor", "kubectl", "Nothing scrapes it"),
        ("restricted", 'The pods meet Pod Security "restricted"', "Nothing scrapes it"),
        ("no-rbac", "grant ServiceAccount given the rights that attribution.podLabels and attribution.dra", "bindings"),
        ("tls", "curl -s -k https://localhost:9400", "-u USER"),
        ("everything", "curl -s -u USER:PASSWORD -k https://localhost:9400", "Nothing scrapes it"),
        ("dcgm-remote", "DCGM's bindings are not installed", "these values need"),
        ("mirror", "exec ds/watch -- gpu-exporter doctor", "gpus-"),
        ("monitored", "relative to Grafana: set prometheusRule.grafanaUrl", "Runbooks:"),
        ("overridden", "Runbooks: https://runbooks.example/gpu/", "relative to Grafana"),
        ("host-network", "localhost:9401/metrics", "9400"),
    ],
)
def test_notes_fit_the_values(name: str, said: str, unsaid: str) -> None:
    """Each command fits this release, and notes on features that are off are absent."""
    notes = texts(SETS[name])["NOTES.txt"]
    assert said in notes
    assert unsaid not in notes
    assert "\n\n\n\n" not in notes


def test_notes_say_what_the_namespace_needs() -> None:
    """They name the features, and show the command to see the first metrics."""
    notes = {name: texts(SETS[name])["NOTES.txt"] for name in SETS}
    assert (
        "attribution.enabled:\n\n  kubectl label namespace gpu-monitoring pod-security.kubernetes.io/enforce=privileged"
        in notes["attribution"]
    )
    assert 'The pods meet Pod Security "restricted"' in notes["restricted"]
    assert (
        "rbac.create is off: grant ServiceAccount given the rights that attribution.podLabels and attribution.dra need"
        in notes["no-rbac"]
    )
    assert "https://localhost:9400/metrics" in notes["tls"]
    for name, text in notes.items():
        assert "/metrics | grep" in text
        assert ("which these values need" in text) is bool(beyond_restricted(pod(made(name)))), name


def test_deprecated_values_still_work() -> None:
    """They are merged into their successors, which take precedence, and the notes name them."""
    labels = {"labels": {"a": "old", "b": "old"}, "additionalLabels": {"a": "new"}}
    values = {name: {"enabled": True, **labels} for name in ("serviceMonitor", "prometheusRule")}
    notes = texts(values)["NOTES.txt"]
    for name, of in (("serviceMonitor", "ServiceMonitor"), ("prometheusRule", "PrometheusRule")):
        found = kind(objects(values), of)[-1]["metadata"]["labels"]
        assert (found["a"], found["b"]) == ("new", "old")
        assert f"{name}.labels is deprecated: use {name}.additionalLabels." in notes
    assert "deprecated" not in texts(SETS["monitored"])["NOTES.txt"]


@pytest.mark.parametrize("name", ["serviceMonitor", "podMonitor"])
def test_tls_needs_an_authority(name: str) -> None:
    """Without one, Prometheus accepts only certificates of public authorities."""
    values = {"web": {"tlsSecret": "tls"}, name: {"enabled": True}}
    assert f"{name}.tlsConfig is empty" in texts(values)["NOTES.txt"]
    values[name] = {"enabled": True, "tlsConfig": {"serverName": "gpus"}}
    assert "tlsConfig is empty" not in texts(values)["NOTES.txt"]
