"""The attacks of `tests.soak.storm`, each a process of its own, which ends by itself.

python -m tests.soak.attacks NAME SECONDS [ARGUMENT …]
"""

from __future__ import annotations

import base64
import os
import random
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tests.fuzz.hostile_text import TOKENS
from tests.support.job_sender import encoded, message

PAGES = ("/metrics", "/api/v1/gpus", "/metrics", "/api/v1/history", "/api/v1/events")
FORMATS = ("*/*", "application/openmetrics-text;version=1.0.0")
# The seconds between two new connections of an attack: about 150 a second of all attacks together.
PAUSE = 0.05
# A kernel log is rotated at this size.
MOST_LOG_BYTES = 8 << 20
# XIDs that are an application's fault, and others, which are reported for GPUs that this machine does not have.
OF_APPLICATIONS, OF_GPUS = (13, 31, 43), (48, 62, 63, 74, 79, 94, 119)


def rounds(end: float, pause: float) -> Iterator[int]:
    """Yield numbers from 0 on, with a pause after each, until the monotonic time `end`."""
    number = 0
    while time.monotonic() < end:
        yield number
        number += 1
        time.sleep(pause)


def crowd(
    end: float,
    target: str,
    sources: str,
    size: int,
    request: Callable[[int], bytes],
    pause: float = PAUSE,
    buffer: int = 1 << 16,
    drip: bytes = b"",
) -> None:
    """Hold connections from several addresses that send a request and read nothing. The oldest one is replaced, after
    each pause. With `drip`, some connection sends these bytes in each round.
    """
    held: deque[socket.socket] = deque()
    host, _, port = target.rpartition(":")
    addresses = sources.split(",")
    for number in rounds(end, pause):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        client.settimeout(1)
        held.append(client)
        with suppress(OSError):
            client.bind((addresses[number % len(addresses)], 0))
            client.connect((host, int(port)))
            client.sendall(request(number))
        if len(held) > size:
            held.popleft().close()
        if drip:
            with suppress(OSError):
                random.choice(held).sendall(drip)


def slow_readers(end: float, target: str, sources: str, size: str, pause: str, *headers: str) -> None:
    """Request pages again and again, and read none of them: so the kernel's buffers are full as well."""

    def request(number: int) -> bytes:
        page, form = PAGES[number % len(PAGES)], FORMATS[number % len(FORMATS)]
        lines = (f"GET {page} HTTP/1.1", "Host: x", f"Accept: {form}", *headers, "", "")
        return "\r\n".join(lines).encode() * 40

    crowd(end, target, sources, int(size), request, float(pause), buffer=2048)


def half_bodies(end: float, target: str, sources: str, size: str, path: str) -> None:
    """Send a quarter of a large body; now and then, one more byte of some of them."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 250000\r\n\r\n".encode()
    crowd(end, target, sources, int(size), lambda number: head + b"a" * 60_000, drip=b"a")


def silent(end: float, target: str, sources: str, size: str) -> None:
    """Connect, and send nothing or the begin of a request."""
    crowd(end, target, sources, int(size), lambda number: (b"", b"GET /metrics HTTP/1.1\r\nHost:")[number % 2])


def streams(end: float, target: str, sources: str, size: str, *headers: str) -> None:
    """Open streams of the live page."""
    lines = ("GET /api/v1/stream HTTP/1.1", "Host: x", *headers, "", "")
    crowd(end, target, sources, int(size), lambda number: "\r\n".join(lines).encode())


def guesses(end: float, target: str, sources: str, *users: str) -> None:
    """Guess passwords of existing and other users, in requests whose paths and headers are hostile."""

    def request(number: int) -> bytes:
        user, text = random.choice((*users, f"user-{number}")), hostile()
        credentials = base64.b64encode(f"{user}:{text}{number}".encode())
        path = random.choice((b"/metrics", b"/api/v1/node", b"/-/reload", b"/" + text.encode()))
        headers = b"Authorization: Basic %b\r\nX-Forwarded-For: %b" % (credentials, text.encode())
        return b"GET %b HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % (path, headers)

    crowd(end, target, sources, 100, request)


def hostile(*, printable: bool = False) -> str:
    """Return a text that a terminal, a page or a parser might obey; if it must be `printable`, a page or a parser."""
    texts = [each.decode("utf-8", "replace") for each in TOKENS]
    return "".join(random.choices([text for text in texts if text.isprintable() or not printable], k=3))


def become(uid: str) -> None:
    """Become an unprivileged user."""
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))


def connected(path: str) -> socket.socket | None:
    """Return a connection to the job socket, if it is accepted."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    with suppress(OSError):
        client.connect(path)
        return client
    client.close()
    return None


def forked(count: int) -> None:
    """Continue in so many further processes."""
    for _ in range(count):
        if os.fork() == 0:
            return


def grow(end: float, path: str, uid: str, uuid: str) -> None:
    """Be 64 ranks of as many jobs with 32 phases each, whose names are long and hostile, and others every minute."""
    become(uid)
    forked(15)
    held: list[socket.socket | None] = [None] * 4
    begin = time.monotonic()
    for number in rounds(end, 1.0):
        minute = int(time.monotonic() - begin) // 60
        phases = {
            f"{minute}-{phase}{hostile(printable=True)}"[:48].ljust(48, "x"): 0.001 * phase for phase in range(32)
        }
        for rank, client in enumerate(held):
            client = held[rank] = client or connected(path)
            if client:
                job = f"{minute}-{os.getpid()}{hostile(printable=True)}"[:110].ljust(110, '"')
                about = {"job_id": job, "attempt": f"a{minute}", "phase_seconds": phases}
                content = message(3 + number, 0.01, uuid=uuid, rank=rank, world_size=9, **about)
                try:
                    client.send(encoded(content))
                except OSError:
                    client.close()
                    held[rank] = None


def idle(end: float, path: str, *uids: str) -> None:
    """Hold all connections of the job socket as a few users, and never send anything."""
    for uid in uids:
        if os.fork() == 0:
            become(uid)
            forked(31)
            held: list[socket.socket | None] = [None] * 4
            for number in rounds(end, 0.5):
                client, held[number % 4] = held[number % 4], connected(path)
                if client:
                    client.close()
            return
    time.sleep(max(0.0, end - time.monotonic()))


def rank(end: float, path: str, uid: str, uuid: str, job: str) -> None:
    """Be an honest rank: send a message every second."""
    become(uid)
    client = None
    for number in rounds(end, 1.0):
        client = client or connected(path)
        if client:
            try:
                client.send(encoded(message(3 + number, uuid=uuid, job_id=job)))
            except OSError:
                client.close()
                client = None


def xids(end: float, path: str) -> None:
    """Fill the kernel log with XIDs and other lines, 2500 a second, and rotate it."""
    log = Path(path)
    for number in rounds(end, 0.2):
        if log.stat().st_size > MOST_LOG_BYTES:
            log.rename(f"{path}.1")
        with log.open("a", encoding="utf-8", errors="replace") as file:
            for line in range(500):
                bus = (number * 500 + line) % 256
                xid = random.choice(OF_APPLICATIONS if 6 <= bus < 14 else OF_GPUS)
                place = f"NVRM: Xid (PCI:0000:{bus:02x}:00): {xid}"
                file.write(f"Nov 26 21:00:00 host kernel: {place}, pid={line}, name={hostile()!r}, a text\n")


ATTACKS: Sequence[Callable[..., None]] = (
    *(slow_readers, half_bodies, silent, streams, guesses),
    *(grow, idle, rank, xids),
)


def main() -> None:
    """Run one attack, which leaves the cores to what it attacks, as if it came from another machine."""
    os.nice(10)
    name, seconds, *arguments = sys.argv[1:]
    attack = next(each for each in ATTACKS if each.__name__ == name)
    attack(time.monotonic() + float(seconds), *arguments)


if __name__ == "__main__":
    main()
