"""The base of the exporter's handlers: it knows the nodes, and who has the token."""

from __future__ import annotations

from collections.abc import Mapping

from tornado.web import HTTPError

from gpu_exporter.app.endpoint import Endpoint
from gpu_exporter.http.handler import GuardedHandler


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
