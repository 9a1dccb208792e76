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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, inf
from typing import NamedTuple, TypeVar

from gpu_exporter.http.login_queue import LoginQueue

K = TypeVar("K")
V = TypeVar("V")

log = logging.getLogger(__name__)

# After a check the thread pauses for this many times its duration, so that guesses use at most a fifth of a core.
REST = 4
# A client gets an answer within this time; its check then continues.
PATIENCE = 5.0
WRONG_REMEMBERED = 1024
GUESSES = 8
TURNED_AWAY_SLOTS = 1 << 18
QUIET_SECONDS = 60.0


class Refusal(NamedTuple):
    """A response that is sent instead of the requested one."""

    status: int
    text: str
    headers: tuple[tuple[str, str], ...] = ()


UNAUTHORIZED = Refusal(401, "Unauthorized\n", (("WWW-Authenticate", 'Basic realm="gpu-exporter", charset="UTF-8"'),))


def too_many(seconds: float) -> Refusal:
    """Return the refusal that asks the client to retry after some seconds."""
    return Refusal(429, "Too Many Requests\n", (("Retry-After", str(max(1, ceil(seconds)))),))


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
    """One password to check: whether it matches a hash, and if not, compare it with `others`, to take as long as any.

    The verdict is None if the queue had no room for it.
    """

    client: str
    user: str
    password: bytes = field(repr=False)
    hashed: str = field(repr=False)
    others: Sequence[str]
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
        self._queue = LoginQueue[_Check](self._guesses)
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "bcrypt")
        self._pause = 1.0
        self._once_per_minute = OncePerMinute()

    def knows(self, users: Mapping[str, str], authorization: str) -> bool:
        """Return whether these are credentials of a user that were verified before."""
        given = _credentials(authorization)
        if given is None:
            return False
        user, password = given
        digest = self._digest(users.get(user) or _hash_of_nobody(highest_cost(users)), user, password)
        return hmac.compare_digest(self._right.get(user, b""), digest)

    async def refuse(self, users: Mapping[str, str], authorization: str, address: str) -> Refusal | None:
        """Return None if the credentials are those of a user, else the refusal."""
        given = _credentials(authorization)
        if given is None:
            return UNAUTHORIZED
        user, password = given
        # Every wrong password takes as long, also that of an unknown user, so that the time reveals no user.
        highest = highest_cost(users)
        hashed = users.get(user) or _hash_of_nobody(highest)
        digest = self._digest(hashed, user, password)
        # The digest includes the hash: a password verified against an older hash no longer counts.
        if hmac.compare_digest(self._right.get(user, b""), digest):
            return None
        if digest in self._wrong:
            return UNAUTHORIZED
        client = client_of(address)
        check = self._queue.get(client, digest)
        if check is None:
            first_seen = self._first_seen.get(digest)
            since = self._first_seen.now() if first_seen is None else first_seen
            verdict: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
            others = fillers(hashed, highest)
            check = _Check(client, user, password, hashed, others, user in users, digest, since, verdict)
            if not self._enqueue(check, is_new=first_seen is None):
                self._first_seen.keep(digest, since)
                return too_many(self._pause)
        try:
            right = await asyncio.wait_for(asyncio.shield(check.verdict), PATIENCE)
        except asyncio.TimeoutError:
            right = None
        if right is None:
            return too_many(self._pause)
        if right:
            return None
        if self._once_per_minute(client):
            log.warning("failed login from %s as %s", address, repr(user) if user in users else "an unknown user")
        return UNAUTHORIZED

    def _digest(self, hashed: str, user: str, password: bytes) -> bytes:
        text = b"%b%b:%b" % (hashed.encode(), user.encode("utf-8", "surrogateescape"), password)
        return hashlib.blake2b(text, key=self._key, digest_size=16).digest()

    def _enqueue(self, check: _Check, *, is_new: bool) -> bool:
        """Return whether a check may wait. A new password of a client that keeps guessing is rejected without a check,
        unless nobody else needs one.
        """
        if is_new and self._busy() and self._guesses(check.client) >= GUESSES:
            return False
        has_room, dropped = self._queue.make_room(check.client, check.since)
        if dropped:
            self._first_seen.keep(dropped.digest, dropped.since)
            dropped.verdict.set_result(None)
        if has_room:
            self._queue.add(check)
            if not self._busy():
                self._worker = asyncio.create_task(self._work())
        return has_room

    def _guesses(self, client: str) -> int:
        """Return how many wrong passwords the client has sent without a pause of a minute."""
        last, count = self._guessers.get(client, (-inf, 0))
        return count if time.monotonic() - last < QUIET_SECONDS else 0

    def _busy(self) -> bool:
        """Return whether a check is running, or the pause after one."""
        return self._worker is not None and not self._worker.done()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while (check := self._queue.next()) is not None:
            took = 0.0
            if check.digest in self._wrong or self._right.get(check.user) == check.digest:
                right = check.digest not in self._wrong  # checked for another client meanwhile
            else:
                matches, took = await loop.run_in_executor(
                    self._thread, _compare_all, check.password, check.hashed, check.others
                )
                right = matches and check.known_user
                self._pause = (1 + REST) * took
            if right:
                self._right[check.user] = check.digest
            else:
                _remember(self._wrong, check.digest, None)
                _remember(self._guessers, check.client, (time.monotonic(), self._guesses(check.client) + 1))
            check.verdict.set_result(right)
            if took:
                await asyncio.sleep(REST * took)


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


def highest_cost(users: Mapping[str, str]) -> int:
    """Return the cost of the costliest hash of a user: the logarithm of its number of rounds."""
    return max(_cost(hashed) for hashed in users.values())


def _cost(hashed: str) -> int:
    return int(hashed[4:6])


def _hash_of_nobody(cost: int) -> str:
    """Return a hash that matches no password."""
    return f"$2b${cost:02}${'.' * 53}"


def fillers(hashed: str, highest: int) -> list[str]:
    """Return hashes to compare, too, if a password does not match a hash, so that all wrong passwords take as long.

    One of each cost from that of the hash: 2^c + 2^c + 2^(c+1) + … + 2^(h-1) rounds are 2^h rounds.
    """
    return [_hash_of_nobody(cost) for cost in range(_cost(hashed), highest)]


def _compare_all(password: bytes, hashed: str, others: Sequence[str]) -> tuple[bool, float]:
    """Return whether the password matches, and the CPU seconds that the checks took. If it does not, compare others."""
    matches, took = _compare(password, hashed.encode())
    return matches, took + sum(_compare(password, other.encode())[1] for other in others if not matches)


def _compare(password: bytes, hashed: bytes) -> tuple[bool, float]:
    """Return whether the password matches, and the CPU seconds that the check took."""
    import bcrypt  # needs a megabyte of memory, so it is imported only if there are passwords

    begin = time.thread_time()
    try:
        matches = bcrypt.checkpw(password, hashed)
    except ValueError:  # older versions reject a password with a NUL
        matches = False
    return matches, time.thread_time() - begin
