"""What the log says once the server listens: the URL to open, and the next step."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_exporter.io.user_text import Address

EVERYWHERE = ("", "0.0.0.0", "::")


def base_url(address: Address, port: int, *, tls: bool) -> str:
    """Return the URL of the server for this machine's browser. `port` is the one that is bound."""
    host = "localhost" if address.host in EVERYWHERE else address.host
    return f"{'https' if tls else 'http'}://{Address(host, port)}"


def greeting(url: str, nodes: Sequence[str] = ()) -> tuple[str, str]:
    """Return two lines: where to look, and what to do next. `nodes`: the names of several nodes that it serves."""
    found = f"have Prometheus discover the nodes at {url}/sd" if nodes else f"have Prometheus scrape {url}/metrics"
    node = f"{url}/nodes/{nodes[0]}" if nodes else url
    return (
        f"listening: open {url}/ in a browser, or {found}",
        f"next: run `gpu-exporter diagnose --url {node}` to see what limits the GPUs",
    )
