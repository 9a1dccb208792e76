"""Which form of the /metrics response a client gets: weights, versions and malformed headers."""

from __future__ import annotations

import pytest

from gpu_exporter.http.negotiation import accepts_gzip, accepts_openmetrics


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("", False),
        ("*/*", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; Version=1.0.0", True),
        ('application/openmetrics-text; version="1.0.0"', True),
        ("application/openmetrics-text; version=0.0.1", False),
        ("application/openmetrics-text; version=2.0.0", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text; Q = 0.000, text/plain", False),
        ("application/openmetrics-text;version=1.0.0;q=0,application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;q=0.001", True),
        ("application/openmetrics-text;q=0.1, */*", True),
        ("application/openmetrics-text;q=0.1, text/plain;q=0.2", False),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.2", True),
        ("application/openmetrics-text;q=", False),
        ("application/openmetrics-text;q=nan", False),
        ("application/openmetrics-text;q=-1", False),
        ("application/openmetrics-text;q=1e9", False),
        (",;=;q=\xff,,", False),
    ],
)
def test_openmetrics(header: str, accepted: bool) -> None:
    """Version 1, with a weight that is above 0 and not below that of text."""
    assert accepts_openmetrics(header) is accepted


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP;q=1.0", True),
        ("x-gzip", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; Q=0.00", False),
        ("gzip;q=0.0000", False),
        ("*;q=0, gzip", True),
        ("*, gzip;q=0", False),
        ("identity, *;q=0", False),
        ("gzip;q=x", False),
    ],
)
def test_gzip(header: str, accepted: bool) -> None:
    """The name decides, else `*`."""
    assert accepts_gzip(header) is accepted
