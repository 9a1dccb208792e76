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

    async def prepare(self) -> None:
        """Refuse the request, before its method runs, if the client may not make it or there is no such node."""
        await super().prepare()
        prefix = next(iter(self.path_args), "")  # only paths of a node have one; at the root it is empty
        if not self._finished and prefix and prefix not in self.endpoints:
            raise HTTPError(404)

    def has_token(self) -> bool:
        """Return whether the client has the token of --token-file, and is on this machine."""
        token, authorization = self.settings["lifecycle"].token, self.request.headers.get("Authorization", "")
        return token is not None and token.allows(authorization, self.request.remote_ip or "")
