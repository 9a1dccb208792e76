"""Basic authentication against bcrypt hashes.

A verified password is accepted at once. Checks of other passwords use at most a fifth of a core. Everything runs on the
server's event loop, except bcrypt, which has a thread of its own.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import logging
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, inf
from typing import NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")

log = logging.getLogger(__name__)

# After a check the thread pauses for this many times its duration, so that guesses use at most a fifth of a core.
REST = 4
# Checks that may wait: of one client, and of all. A client gets an answer within PATIENCE; its check then continues.
WAITING_EACH, WAITING = 8, 64
PATIENCE = 5.0
WRONG_REMEMBERED = 1024
GUESSES = 8
TURNED_AWAY_SLOTS = 1 << 18
QUIET_SECONDS = 60.0


class Refusal(NamedTuple):
    """A response that is sent instead of the requested one."""

    status: int
    text: str
    header: tuple[str, str]


UNAUTHORIZED = Refusal(401, "Unauthorized\n", ("WWW-Authenticate", 'Basic realm="gpu-exporter", charset="UTF-8"'))


def too_many(seconds: float) -> Refusal:
    """Return the refusal that asks the client to retry after some seconds."""
    return Refusal(429, "Too Many Requests\n", ("Retry-After", str(max(1, ceil(seconds)))))


@lru_cache(1024)
def client_of(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if ip.version == 4 or ip.ipv4_mapped:
        return str(getattr(ip, "ipv4_mapped", None) or ip)
    return str(ipaddress.ip_network((ip, 64), strict=False))


class OncePerMinute:
    """Return True once a minute for each key, so that no client can fill the log."""

    def __init__(self, most: int = 256) -> None:
        self._said: dict[str, float] = {}
        self._most = most

    def __call__(self, key: str) -> bool:
        now = time.monotonic()
        if now - self._said.get(key, -QUIET_SECONDS) < QUIET_SECONDS:
            return False
        if len(self._said) >= self._most:
            self._said = {old: at for old, at in self._said.items() if now - at < QUIET_SECONDS}
        if len(self._said) >= self._most:
            return False
        self._said[key] = now
        return True


class _FirstSeen:
    """The times when rejected digests were first sent. The memory has a fixed size: new entries overwrite old ones."""

    def __init__(self) -> None:
        self._slots = memoryview(bytearray(8 * TURNED_AWAY_SLOTS)).cast("Q")
        self._begin = time.monotonic()

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begin

    def get(self, digest: bytes) -> float | None:
        """Return when the digest was first sent; None if that is not remembered."""
        slot, mark = self._place(digest)
        entry = self._slots[slot]
        return entry % (1 << 32) / 10 if entry >> 32 == mark else None

    def keep(self, digest: bytes, since: float) -> None:
        """Remember when the digest was first sent."""
        slot, mark = self._place(digest)
        self._slots[slot] = mark << 32 | int(since * 10) % (1 << 32)

    def _place(self, digest: bytes) -> tuple[int, int]:
        return int.from_bytes(digest[:4], "big") % TURNED_AWAY_SLOTS, int.from_bytes(digest[4:8], "big")


@dataclass(eq=False)
class _Check:
    """One password to check. The verdict is None if the queue had no room for the check."""

    user: str
    password: bytes = field(repr=False)
    hashed: bytes = field(repr=False)
    known_user: bool
    digest: bytes
    since: float
    verdict: asyncio.Future[bool | None]


class Login:
    """Checks credentials. Verified ones are kept only as digests with a key of this process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}
        self._wrong: dict[bytes, None] = {}
        self._guessers: dict[str, tuple[float, int]] = {}
        self._first_seen = _FirstSeen()
        self._waiting: dict[str, dict[bytes, _Check]] = {}
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "bcrypt")
        self._pause = 1.0
        self._once_per_minute = OncePerMinute()

    async def refuse(self, users: Mapping[str, str], authorization: str, address: str) -> Refusal | None:
        """Return None if the credentials are those of a user, else the refusal."""
        given = _credentials(authorization)
        if given is None:
            return UNAUTHORIZED
        user, password = given
        # An unknown user takes as long as a wrong password, so that the time does not reveal which users exist.
        hashed = users.get(user) or _hash_of_nobody(users)
        digest = self._digest(hashed, user, password)
        # The digest includes the hash: a password verified against an older hash no longer counts.
        if hmac.compare_digest(self._right.get(user, b""), digest):
            return None
        if digest in self._wrong:
            return UNAUTHORIZED
        verdict = await self._verdict(client_of(address), user, password, hashed, user in users, digest)
        if verdict is None:
            return too_many(self._pause)
        if verdict:
            return None
        client = client_of(address)
        _remember(self._guessers, client, (time.monotonic(), self._guesses(client) + 1))
        if self._once_per_minute(client):
            log.warning("failed login from %s as %s", address, repr(user) if user in users else "an unknown user")
        return UNAUTHORIZED

    def _digest(self, hashed: str, user: str, password: bytes) -> bytes:
        text = b"%b%b:%b" % (hashed.encode(), user.encode("utf-8", "surrogateescape"), password)
        return hashlib.blake2b(text, key=self._key, digest_size=16).digest()

    async def _verdict(
        self, client: str, user: str, password: bytes, hashed: str, known_user: bool, digest: bytes
    ) -> bool | None:
        check = self._waiting.get(client, {}).get(digest)
        if check is None:
            first_seen = self._first_seen.get(digest)
            since = self._first_seen.now() if first_seen is None else first_seen
            # A new password of a client that keeps guessing is rejected at once, without a check.
            guess = first_seen is None and self._busy() and self._guesses(client) >= GUESSES
            if guess or not self._make_room(client, since):
                self._first_seen.keep(digest, since)
                return None
            future = asyncio.get_running_loop().create_future()
            check = _Check(user, password, hashed.encode(), known_user, digest, since, future)
            self._waiting.setdefault(client, {})[digest] = check
            if not self._busy():
                self._worker = asyncio.create_task(self._work())
        try:
            return await asyncio.wait_for(asyncio.shield(check.verdict), PATIENCE)
        except asyncio.TimeoutError:
            return None

    def _guesses(self, client: str) -> int:
        """Return how many wrong passwords the client has sent without a pause of a minute."""
        last, count = self._guessers.get(client, (-inf, 0))
        return count if time.monotonic() - last < QUIET_SECONDS else 0

    def _busy(self) -> bool:
        """Return whether a check is running, or the pause after one."""
        return self._worker is not None and not self._worker.done()

    def _make_room(self, client: str, since: float) -> bool:
        """Return whether another check of this client may wait. May drop a newer check, or one of the greediest client.

        The age of a check counts from its first attempt. A guesser sends a new password each time, a configured client
        always the same one, so the latter gets through even if guessers at its address keep the queue full.
        """
        mine = self._waiting.get(client, {})
        if len(mine) >= WAITING_EACH:
            return self._turn_away(mine, since)
        if sum(map(len, self._waiting.values())) < WAITING:
            return True
        greediest = max(self._waiting.values(), key=len)
        if len(greediest) > len(mine) + 1:
            return self._turn_away(greediest)
        newest = max(
            self._waiting.values(), key=lambda checks: max((check.since for check in checks.values()), default=0)
        )
        return self._turn_away(newest, since)

    def _turn_away(self, checks: dict[bytes, _Check], since: float = -1.0) -> bool:
        """Drop the newest of these checks if it is newer than `since`; return whether one was dropped."""
        newest = max(checks.values(), key=lambda check: check.since, default=None)
        if newest is None or newest.since <= since:
            return False
        del checks[newest.digest]
        self._first_seen.keep(newest.digest, newest.since)
        newest.verdict.set_result(None)
        return True

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while (check := self._next()) is not None:
            if check.digest in self._wrong or self._right.get(check.user) == check.digest:
                check.verdict.set_result(check.digest not in self._wrong)  # checked for another client meanwhile
                continue
            matches, took = await loop.run_in_executor(self._thread, _compare, check.password, check.hashed)
            right = matches and check.known_user
            if right:
                self._right[check.user] = check.digest
            else:
                _remember(self._wrong, check.digest, None)
            check.verdict.set_result(right)
            self._pause = (1 + REST) * took
            await asyncio.sleep(REST * took)

    def _next(self) -> _Check | None:
        """Return the next check: clients take turns, and the oldest check of a client goes first."""
        while self._waiting:
            client = next(iter(self._waiting))
            checks = self._waiting.pop(client)
            if not checks:
                continue
            check = min(checks.values(), key=lambda check: check.since)
            del checks[check.digest]
            if checks:
                self._waiting[client] = checks
            return check
        return None


def _remember(entries: dict[K, V], key: K, value: V) -> None:
    """Add an entry as the newest, and remove the oldest if there are too many."""
    entries.pop(key, None)
    entries[key] = value
    if len(entries) > WRONG_REMEMBERED:
        del entries[next(iter(entries))]


def _credentials(authorization: str) -> tuple[str, bytes] | None:
    """Return user and password of a Basic header. bcrypt uses 72 bytes of a password; the rest is dropped."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except ValueError:
        return None
    return (user.decode("utf-8", "surrogateescape"), password[:72]) if colon else None


def _hash_of_nobody(users: Mapping[str, str]) -> str:
    """Return a hash that matches no password and takes as long to check as the costliest hash of a user."""
    return f"$2b${max(hashed[4:6] for hashed in users.values())}${'.' * 53}"


def _compare(password: bytes, hashed: bytes) -> tuple[bool, float]:
    """Return whether the password matches, and the CPU seconds that the check took."""
    import bcrypt  # needs a megabyte of memory, so it is imported only if there are passwords

    begin = time.thread_time()
    try:
        matches = bcrypt.checkpw(password, hashed)
    except ValueError:  # older versions reject a password with a NUL
        matches = False
    return matches, time.thread_time() - begin
