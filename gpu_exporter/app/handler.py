"""The base of the exporter's handlers: it knows the nodes, who has the token, and who may see profiles."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from tornado.web import HTTPError

from gpu_exporter.app.endpoint import Endpoint
from gpu_exporter.http.handler import GuardedHandler
from gpu_exporter.http.login import Refusal


def user_of(authorization: str) -> str:
    """Return the user of a header of basic authentication, which the guard has checked; empty if there is none."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        return ""


class Handler(GuardedHandler):
    """Handles a request that the client is allowed to make. `endpoints` are the nodes by prefix: "", `/nodes/NAME`."""

    endpoints: Mapping[str, Endpoint]

    def initialize(self, endpoints: Mapping[str, Endpoint]) -> None:
        self.endpoints = endpoints

    def endpoint(self, prefix: str) -> Endpoint:
        """Return the node of this prefix. Raises HTTPError if there is none."""
        endpoint = self.endpoints.get(prefix)
        if endpoint is None:
            raise HTTPError(404)
        return endpoint

    def exists(self) -> bool:
        """Return whether there is such a node. Only paths of a node have a prefix; at the root it is empty."""
        return next(iter(self.path_args), "") in ("", *self.endpoints)

    def has_token(self) -> bool:
        """Return whether the client has the token of --token-file, and is on this machine."""
        token, authorization = self.settings["lifecycle"].token, self.request.headers.get("Authorization", "")
        # A proxy on this machine forwards requests of others.
        addresses = (self.request.remote_ip or "", self.client)
        return token is not None and all(token.allows(authorization, address) for address in addresses)

    @property
    def user(self) -> str:
        """The user who has logged in; empty without users in the web configuration."""
        user = user_of(self.request.headers.get("Authorization", ""))
        return user if user in self.settings["guard"].config.users else ""

    def is_trusted(self, endpoint: Endpoint) -> bool:
        """Return whether the client may see profiles, and with them lines of code and names that are masked."""
        return self.user in endpoint.trusted_users or self.has_token()


class TokenOrPassword(Handler):
    """Requires no password of a request with the token: a user who can read that file can read other processes, too."""

    async def login(self) -> Refusal | None:
        return None if self.has_token() else await super().login()
