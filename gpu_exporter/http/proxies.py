"""The clients behind trusted proxies. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from gpu_exporter.io.user_text import Network

# Proxies in a row that are followed.
MOST_HOPS = 16


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """The proxies whose header X-Forwarded-For counts, by their addresses."""

    networks: tuple[Network, ...] = ()

    def trust(self, address: str) -> bool:
        """Return whether a proxy with this address is trusted."""
        ip = _ip(address) if self.networks else None
        return ip is not None and any(ip in network for network in self.networks)

    def client(self, peer: str, forwarded: str) -> str:
        """Return the address of the client of a request from this peer, with this header X-Forwarded-For.

        Each proxy appends the address from which it was reached. So the header is read from the right, up to the first
        address that is no trusted proxy: whatever is left of it, the client may have invented.
        """
        client, hops = peer, forwarded.rsplit(",", MOST_HOPS)[-MOST_HOPS:]
        while hops and self.trust(client):
            ip = _ip(hops.pop())
            if ip is None:
                break
            client = str(ip)
        return client


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address in `10.0.0.1`, `10.0.0.1:80`, `2001:db8::1` or `[2001:db8::1]:80`; None if there is none."""
    match = re.fullmatch(r"\[(.+)\](?::\d+)?|([0-9.]+):\d+|(.+)", text.strip())
    try:
        ip = ipaddress.ip_address((match[1] or match[2] or match[3]).partition("%")[0] if match else "")
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip
