"""The image's HEALTHCHECK: does the exporter of this container answer, on whatever address it listens?

It reads no flags or files, but finds the sockets on which the process listens. It only uses the standard library,
because it is started every few seconds and must cost little.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

LISTENS = "0A"
# A refused login is an answer too.
ANSWERS = (b"200", b"401", b"403", b"429")
SECONDS = 4.0


def listening(procfs: Path) -> Iterator[tuple[str, int, bool]]:
    """Return the addresses and ports on which exporters listen, and whether they speak plain HTTP."""
    for process in procfs.glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if not any(word.endswith((b"gpu-exporter", b"gpu_exporter")) for word in words):
                continue
            links = [str(each.readlink()) for each in (process / "fd").iterdir()]
            secured = b"WEB_CONFIG_FILE=" in (process / "environ").read_bytes()
        except OSError:  # the process has ended, or is another user's
            continue
        secured |= any(re.match(rb"--web.config.file", word) for word in words)
        own = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
        for table in ("tcp", "tcp6"):
            file = procfs / "net" / table
            for line in file.read_text().splitlines()[1:] if file.exists() else ():
                part = line.split()
                if part[3] == LISTENS and part[9] in own:
                    host, _, port = part[1].partition(":")
                    yield _address(host), int(port, 16), not secured


def _address(text: str) -> str:
    """Decode an address, which the kernel writes as words of four bytes in the machine's byte order."""
    words = [bytes.fromhex(text[at : at + 8]) for at in range(0, len(text), 8)]
    raw = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def problem(host: str, port: int, speaks_http: bool) -> str:
    """Return why it does not answer; empty if it does. With TLS or passwords, the port only needs to be open."""
    try:
        with socket.create_connection((host, port), SECONDS) as connection:
            if not speaks_http:
                return ""
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            found = re.match(rb"HTTP/1\.1 (\d{3})", connection.recv(4096))
    except ConnectionResetError:  # it speaks TLS
        return ""
    except OSError as error:
        return str(error)
    return "" if not found or found[1] in ANSWERS else f"/healthz answers {found[1].decode()}"


def main(procfs: Path) -> None:
    """Exit with 0 if an exporter listens, and all that listen answer."""
    addresses = list(listening(procfs))
    if not addresses:
        sys.exit("no exporter listens")
    for host, port, speaks_http in addresses:
        if why := problem(host, port, speaks_http):
            sys.exit(f"{host} port {port}: {why}")


if __name__ == "__main__":
    main(Path(*sys.argv[1:2] or ["/proc"]))
