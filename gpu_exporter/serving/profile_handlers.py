"""The handlers of profiles, which show code: only for users who are allowed to see them."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from typing import TYPE_CHECKING

from gpu_exporter.serving.handler import TEXT, Handler

if TYPE_CHECKING:
    from gpu_exporter.profiling.views import ProfileViews

JSON, PPROF = "application/json", "application/octet-stream"
OFF = "profiles are off: start the exporter with --profile (docs/profile.md)\n"
NOT_ALLOWED = "not allowed to see profiles, which show code: name your user in --profile-users (docs/profile.md)\n"
GONE = "there is no profile with this id and stacks\n"
SECONDS = re.compile(r"[0-9]{1,6}", re.ASCII)
BAD_SECONDS = "seconds: must be a whole number\n"
DEFAULT_SECONDS = "60"


def user_of(authorization: str) -> str:
    """Return the user of a header of basic authentication, which the guard has checked; empty if there is none."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        return ""


class _OfProfiles(Handler):
    async def profiles(self, prefix: str) -> ProfileViews | None:
        """Return the profiles of a node; after an answer, None if there are none or the client may not see them.

        Without users in the web configuration, nobody has logged in.
        """
        endpoint = self.endpoint(prefix)
        self.set_header("Cache-Control", "no-store")
        user = user_of(self.request.headers.get("Authorization", ""))
        if endpoint.profiles is None:
            await self.send(OFF, TEXT, 404)
        elif user not in endpoint.profile_users or user not in self.settings["guard"].config.users:
            await self.send(NOT_ALLOWED, TEXT, 403)
        else:
            return endpoint.profiles
        return None


class Profiles(_OfProfiles):
    """The stored profiles, newest first; with `?id=` one of them with its stacks."""

    async def get(self, prefix: str) -> None:
        profiles = await self.profiles(prefix)
        if profiles is None:
            return
        # Not on this thread: scrapes would wait for the disk.
        loop, wanted = asyncio.get_running_loop(), self.get_query_argument("id", "")
        if not wanted:
            await self.send(await loop.run_in_executor(None, profiles.listed), JSON)
            return
        body = await loop.run_in_executor(None, profiles.one, wanted)
        if body is None:
            await self.send(GONE, TEXT, 404)
        else:
            await self.send(body, JSON)

    head = get


class Pprof(_OfProfiles):
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
        await self.send(await loop.run_in_executor(None, profiles.pprof, float(seconds)), PPROF)

    head = get
