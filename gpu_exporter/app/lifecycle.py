"""The handlers of the paths below `/-/`, quit, reload, release and resume, and who may call them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from tornado.httputil import HTTPServerRequest

from gpu_exporter.app.handler import Handler
from gpu_exporter.http.guard import Guard
from gpu_exporter.http.handler import TEXT
from gpu_exporter.http.login import Refusal
from gpu_exporter.http.token_file import Token
from gpu_exporter.io.user_text import release_duration
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.pipeline.collector import Collector

# How long a request waits for a release or resume to be complete.
PATIENCE_SECONDS = 5.0
POLL_SECONDS = 0.05
DEFAULT_RELEASE = "10m"
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """What the lifecycle paths act on.

    If `enabled`, a password, a certificate or the `token` allows every path, depending on what is configured. Otherwise
    only release and resume are allowed, with the `token`.
    """

    enabled: bool = False
    quit: Callable[[], None] = lambda: None
    token: Token | None = None
    collectors: Sequence[Collector] = ()
    reload: Callable[[], None] = lambda: None

    def check(self, guard: Guard) -> None:
        """Raise GpuExporterError if the paths are enabled for clients without any secret."""
        if self.enabled and not guard.authenticates and self.token is None:
            raise GpuExporterError(
                "--web.enable-lifecycle: anyone on the network could stop monitoring; set --token-file, or add"
                " basic_auth_users or client certificates to --web.config.file"
            )


def is_cross_site(origin: str | None, fetch_site: str | None, host: str) -> bool:
    """Return whether a browser sent this request for a page of another site, judging by its headers.

    Programs other than browsers send neither `Origin` nor `Sec-Fetch-Site`. `host` is the `Host` header.
    """
    if fetch_site not in (None, "none", "same-origin"):
        return True
    if origin is None:
        return False
    try:
        there, here = urlsplit(origin), urlsplit(f"//{host}")
        port = DEFAULT_PORTS.get(there.scheme)
        return (there.hostname or "", there.port or port) != (here.hostname, here.port or port)
    except ValueError:
        return True


def cross_site(request: HTTPServerRequest) -> str:
    """Return why a request is refused that a browser sent for a page of another site; empty for others."""
    fetch_site = request.headers.get("Sec-Fetch-Site")
    is_refused = is_cross_site(request.headers.get("Origin"), fetch_site, request.host)
    return "Not allowed for pages of other sites.\n" if is_refused else ""


class _StateChange(Handler):
    """A request that changes the state of the process. Pages of other sites may not send it."""

    off = "Lifecycle API is not enabled.\n"
    no_token = "Not allowed: needs the token of --token-file, from this machine.\n"

    @property
    def lifecycle(self) -> Lifecycle:
        lifecycle: Lifecycle = self.settings["lifecycle"]
        return lifecycle

    def forbidden(self) -> str:
        """Return why the client may not do this; empty if it may."""
        if not self.lifecycle.enabled:
            return self.off
        return "" if self.settings["guard"].authenticates or self.has_token() else self.no_token

    async def post(self) -> None:
        forbidden = self.forbidden() or cross_site(self.request)
        if forbidden:
            await self.send(forbidden, TEXT, 403)
        else:
            await self.act()

    put = post

    async def act(self) -> None:
        raise NotImplementedError


class QuitHandler(_StateChange):
    """End the process."""

    async def act(self) -> None:
        await self.send("Goodbye!\n", TEXT)
        self.lifecycle.quit()


class ReloadHandler(_StateChange):
    """Reload the web configuration and the file of fields."""

    async def act(self) -> None:
        try:
            # A long file or a slow disk must not delay scrapes.
            await asyncio.to_thread(self.settings["guard"].reload)
            await asyncio.to_thread(self.lifecycle.reload)
        except GpuExporterError as error:
            await self.send(f"{error}\n", TEXT, 500)
        else:
            await self.send("ok\n", TEXT)


class _ReleaseOrResume(_StateChange):
    """A request to release or resume the driver, which the token allows even if the lifecycle paths are not enabled."""

    off = (
        "Not allowed: needs the token, from this machine (serve --token-file FILE, and the same file for this command),"
        " or serve --web.enable-lifecycle with a password or client certificate.\n"
    )

    async def login(self) -> Refusal | None:
        """Require no password of a request that has the token."""
        return None if self.has_token() else await super().login()

    def forbidden(self) -> str:
        return "" if self.has_token() else super().forbidden()

    async def settled(self, ask: Callable[[Collector], str]) -> str:
        """Wait until `ask` returns nothing for any node, at most PATIENCE_SECONDS. Return its last answer."""
        end = time.monotonic() + PATIENCE_SECONDS
        while (answer := next(filter(None, map(ask, self.lifecycle.collectors)), "")) and time.monotonic() < end:
            await asyncio.sleep(POLL_SECONDS)
        return answer


class ReleaseHandler(_ReleaseOrResume):
    """Release the driver for some time. Answer 409 with the reason if it is still in use after a few seconds."""

    async def act(self) -> None:
        try:
            seconds = release_duration(self.get_query_argument("for", DEFAULT_RELEASE))
        except ValueError as error:
            await self.send(f"for: {error}\n", TEXT, 400)
            return
        for collector in self.lifecycle.collectors:
            collector.hand_over_state.begin(seconds)
        problem = await self.settled(Collector.hand_over_problem)
        if problem:
            await self.send(f"{problem}\n", TEXT, 409)
        else:
            await self.send(
                f"{self.lifecycle.collectors[0].hand_over_state.hand_over or 'the release has already ended'}\n", TEXT
            )


class ResumeHandler(_ReleaseOrResume):
    """End the release. Answer 503 with the reason if the driver does not answer within a few seconds."""

    async def act(self) -> None:
        ended = [collector.hand_over_state.end() for collector in self.lifecycle.collectors]
        problem = await self.settled(Collector.problem)
        if problem:
            await self.send(f"{problem}; the exporter keeps trying\n", TEXT, 503)
        else:
            await self.send("resumed\n" if any(ended) else "it was not released\n", TEXT)
