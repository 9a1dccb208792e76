"""The handlers of profiles, which show code: only for users who are allowed to see them."""

from __future__ import annotations

import asyncio
import math
import re

from gpu_exporter.app.endpoint import ProfileAccess
from gpu_exporter.app.handler import Handler, TokenOrPassword
from gpu_exporter.app.lifecycle import cross_site
from gpu_exporter.http.handler import JSON, TEXT

PPROF = "application/octet-stream"
OFF = "profiles are off: start the exporter with --profile (docs/profile.md)\n"
NOT_ALLOWED = "not allowed to see profiles, which show code: name your user in --profile-users (docs/profile.md)\n"
GONE = "there is no profile with this id and stacks\n"
SECONDS = re.compile(r"[0-9]{1,6}", re.ASCII)
BAD_SECONDS = "seconds: must be a whole number\n"
DEFAULT_SECONDS = "60"


class _OfProfiles(Handler):
    async def profiles(self, prefix: str) -> ProfileAccess | None:
        """Return the profiles of a node; after an answer, None if there are none or the client may not see them."""
        endpoint = self.endpoint(prefix)
        self.set_header("Cache-Control", "no-store")
        profiles = endpoint.profiles
        if profiles is None:
            await self.send(OFF, TEXT, 404)
        elif not self.is_trusted(endpoint):
            await self.send(NOT_ALLOWED, TEXT, 403)
        else:
            return profiles
        return None


class ProfilesHandler(TokenOrPassword, _OfProfiles):
    """The stored profiles, newest first; with `?id=` one of them with its stacks. POST takes one.

    The token of --token-file, from this machine, allows both.
    """

    async def get(self, prefix: str) -> None:
        profiles = await self.profiles(prefix)
        if profiles is None:
            return
        # Not on this thread: scrapes would wait for the disk.
        loop, wanted = asyncio.get_running_loop(), self.get_query_argument("id", "")
        if not wanted:
            await self.send(await loop.run_in_executor(None, profiles.views.listed), JSON)
            return
        body = await loop.run_in_executor(None, profiles.views.one, wanted)
        if body is None:
            await self.send(GONE, TEXT, 404)
        else:
            await self.send(body, JSON)

    head = get

    async def post(self, prefix: str) -> None:
        profiles = await self.profiles(prefix)
        if profiles is None:
            return
        if refusal := cross_site(self.request):
            await self.send(refusal, TEXT, 403)
            return
        arguments = {name: self.get_query_arguments(name) for name in self.request.query_arguments}
        reply = await profiles.ask(arguments, self.user or "token")
        if reply.retry_seconds:
            self.set_header("Retry-After", str(math.ceil(reply.retry_seconds)))
        await self.send(reply.body, JSON if reply.status == 200 else TEXT, reply.status)


class PprofHandler(_OfProfiles):
    """The profiles of the last `?seconds=`, for Parca, Pyroscope and `go tool pprof`."""

    async def get(self, prefix: str) -> None:
        profiles = await self.profiles(prefix)
        if profiles is None:
            return
        seconds = self.get_query_argument("seconds", DEFAULT_SECONDS)
        if not SECONDS.fullmatch(seconds):
            await self.send(BAD_SECONDS, TEXT, 400)
            return
        loop = asyncio.get_running_loop()
        await self.send(await loop.run_in_executor(None, profiles.views.pprof, float(seconds)), PPROF)

    head = get
