"""Which client a request is from, given the peer and X-Forwarded-For."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.http.proxies import MOST_HOPS, TrustedProxies
from gpu_exporter.io.user_text import networks

PROXIES = TrustedProxies(networks("10.0.0.0/8, 192.0.2.1, 2001:db8:1::/48"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.5", "203.0.113.5"),
        ("::ffff:10.0.0.1", "203.0.113.5", "203.0.113.5"),
        ("2001:db8:1::1", "2001:db8:2::5", "2001:db8:2::5"),
        # several proxies
        ("10.0.0.1", "203.0.113.5, 192.0.2.1,10.0.0.2", "203.0.113.5"),
        ("10.0.0.1", "10.0.0.3", "10.0.0.3"),
        # the client has invented what is left of its address
        ("10.0.0.1", "127.0.0.1, 203.0.113.5", "203.0.113.5"),
        ("10.0.0.1", "203.0.113.9, 198.51.100.7, 10.0.0.2", "198.51.100.7"),
        # any other peer cannot forward
        ("203.0.113.5", "127.0.0.1", "203.0.113.5"),
        ("192.0.2.2", "10.0.0.1", "192.0.2.2"),
        ("0.0.0.0", "203.0.113.5", "0.0.0.0"),
        ("", "203.0.113.5", ""),
        # forms
        ("10.0.0.1", "203.0.113.5:8080", "203.0.113.5"),
        ("10.0.0.1", " [2001:db8:2::5]:443 ", "2001:db8:2::5"),
        ("10.0.0.1", "[2001:db8:2::5]", "2001:db8:2::5"),
        ("10.0.0.1", "fe80::1%eth0", "fe80::1"),
        ("10.0.0.1", "::ffff:203.0.113.5", "203.0.113.5"),
        # a hop without an address ends the search
        ("10.0.0.1", "203.0.113.5, unknown", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.5, _hidden, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "203.0.113.5,", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.5 10.0.0.2", "10.0.0.1"),
        ("10.0.0.1", "999.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.5, " + "10.0.0.2, " * 4000 + "10.0.0.3", "10.0.0.2"),
    ],
)
def test_client(peer: str, forwarded: str, client: str) -> None:
    assert PROXIES.client(peer, forwarded) == client


def test_nobody_is_trusted_by_default() -> None:
    assert TrustedProxies().client("10.0.0.1", "203.0.113.5") == "10.0.0.1"


@given(st.text(max_size=200))
def test_any_header(forwarded: str) -> None:
    """Only a trusted proxy is followed, for a limited number of hops."""
    assert PROXIES.client("203.0.113.5", forwarded) == "203.0.113.5"
    assert PROXIES.client("10.0.0.1", f"{forwarded}, 203.0.113.5" + ", 10.0.0.1" * (MOST_HOPS - 1)) == "203.0.113.5"


@pytest.mark.parametrize("text", ["10.0.0.1/8", "example.com", "10.0.0.0/33", "10.0.0.1, x"])
def test_addresses_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an IP address or network; use for example"):
        networks(text)
