"""The paths below `/-/`: quit, reload, release, resume. Who may call them, and what they answer."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_exporter.collection.collector import Collector
from gpu_exporter.file_access import FileWorker, read
from gpu_exporter.inputs import hand_over
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.serving.handler import TEXT, Handler

# How long a release or resume may take before the answer is that it has not happened yet.
PATIENCE_SECONDS = 5.0
POLL_SECONDS = 0.05
DEFAULT_RELEASE = "10m"
MAX_TOKEN_BYTES = 1 << 10
# How long the token file may take to be removed at the end.
REMOVE_SECONDS = 0.5


class Token:
    """A secret in a file that only this user can read. Whoever sends it from this machine may release and resume."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._secret = secrets.token_urlsafe(32)
        self._worker = FileWorker("token-file")

    def __enter__(self) -> None:
        """Write it to the file. Raises GpuExporterError."""
        path = self._path
        try:
            self._worker.call(self._write)
        except TimeoutError as error:
            raise GpuExporterError(f"token file {path}: {error.strerror}") from error
        except OSError as error:
            why = error.strerror or error
            raise GpuExporterError(f"token file {path}: {why}; its directory must exist and be writable") from error

    def _write(self) -> None:
        path = self._path
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with suppress(FileNotFoundError):
            draft.unlink()
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{self._secret}\n")
        draft.replace(path)

    def allows(self, authorization: str, address: str) -> bool:
        """Whether a request with these comes from this machine and has the token."""
        scheme, _, given = authorization.partition(" ")
        matches = secrets.compare_digest(given.strip().encode("utf-8", "replace"), self._secret.encode())
        return scheme.lower() == "bearer" and matches and is_loopback(address)

    def __exit__(self, *exception: object) -> None:
        """Remove the file, unless another process has written its own there."""
        with suppress(OSError):
            self._worker.call(self._remove, REMOVE_SECONDS)

    def _remove(self) -> None:
        if read(self._path, MAX_TOKEN_BYTES).strip() == self._secret.encode():
            self._path.unlink()


def is_loopback(address: str) -> bool:
    """Whether the address of a peer is a loopback address."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return bool((getattr(ip, "ipv4_mapped", None) or ip).is_loopback)


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """What the lifecycle paths act on. If `enabled`, anybody may call them; with `token`, release and resume."""

    enabled: bool = False
    quit: Callable[[], None] = lambda: None
    token: Token | None = None
    nodes: Sequence[Collector] = ()
    reload: Callable[[], None] = lambda: None


class _Change(Handler):
    """A request that changes the state of the process; pages of other sites may not send it."""

    off = "Lifecycle API is not enabled.\n"

    @property
    def lifecycle(self) -> Lifecycle:
        lifecycle: Lifecycle = self.settings["lifecycle"]
        return lifecycle

    def allowed(self) -> bool:
        return self.lifecycle.enabled

    async def post(self) -> None:
        if not self.allowed():
            await self.send(self.off, TEXT, 403)
        elif self.request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            await self.send("Another site's page may not do this.\n", TEXT, 403)
        else:
            await self.act()

    put = post

    async def act(self) -> None:
        raise NotImplementedError


class Quit(_Change):
    """End the process."""

    async def act(self) -> None:
        await self.send("Goodbye!\n", TEXT)
        self.lifecycle.quit()


class Reload(_Change):
    """Read the web configuration and the fields file again."""

    async def act(self) -> None:
        try:
            # A scrape must not wait for a long file or a slow disk.
            await asyncio.to_thread(self.settings["guard"].reload)
            await asyncio.to_thread(self.lifecycle.reload)
        except GpuExporterError as error:
            await self.send(f"{error}\n", TEXT, 500)
        else:
            await self.send("ok\n", TEXT)


class _HandOver(_Change):
    off = (
        "Not allowed: needs the token, from this machine (serve --token-file FILE, and the same file for this command),"
        " or serve --web.enable-lifecycle.\n"
    )

    async def prepare(self) -> None:
        """Require no password of a request that has the token."""
        if not self._has_token():
            await super().prepare()

    def _has_token(self) -> bool:
        token = self.lifecycle.token
        return token is not None and token.allows(
            self.request.headers.get("Authorization", ""), self.request.remote_ip or ""
        )

    def allowed(self) -> bool:
        return self.lifecycle.enabled or self._has_token()

    async def settled(self, ask: Callable[[Collector], str]) -> str:
        """Wait until `ask` returns nothing for every node; return what it still says at the end of the patience."""
        end = time.monotonic() + PATIENCE_SECONDS
        while (answer := next(filter(None, map(ask, self.lifecycle.nodes)), "")) and time.monotonic() < end:
            await asyncio.sleep(POLL_SECONDS)
        return answer


class Release(_HandOver):
    """Release the driver for some time; 409 with the reason if it is still in use after a few seconds."""

    async def act(self) -> None:
        try:
            seconds = hand_over(self.get_query_argument("for", DEFAULT_RELEASE))
        except ValueError as error:
            await self.send(f"for: {error}\n", TEXT, 400)
            return
        for node in self.lifecycle.nodes:
            node.handover.begin(seconds)
        problem = await self.settled(Collector.release_problem)
        if problem:
            await self.send(f"{problem}\n", TEXT, 409)
        else:
            await self.send(f"{self.lifecycle.nodes[0].handover.release or 'the release is over already'}\n", TEXT)


class Resume(_HandOver):
    """End the release; 503 with the reason if the driver does not answer within a few seconds."""

    async def act(self) -> None:
        ended = [node.handover.end() for node in self.lifecycle.nodes]
        problem = await self.settled(Collector.problem)
        if problem:
            await self.send(f"{problem}; tried again until it answers\n", TEXT, 503)
        else:
            await self.send("resumed\n" if any(ended) else "it was not released\n", TEXT)
