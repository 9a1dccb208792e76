"""The live page, the list of nodes, and their files."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

from tornado.web import HTTPError

from gpu_exporter.serving.handler import Handler
from gpu_exporter.serving.live import node_list
from gpu_exporter.serving.live.assets import Asset, load, template
from gpu_exporter.serving.negotiation import accepts_gzip
from gpu_exporter.serving.security.web_config import SECURE_HEADERS
from gpu_exporter.version import __version__

HTML = "text/html; charset=utf-8"
CSP = "Content-Security-Policy"
# Only what this server sends may run or be loaded.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A browser keeps the file, and asks each time whether it has changed.
REVALIDATE = "no-cache"


@dataclass(frozen=True, slots=True)
class LivePage:
    """What the handlers below need: the files by name, and the templates of both pages."""

    assets: Mapping[str, Asset]
    node: Template
    nodes: Template


def load_page() -> LivePage:
    """Read the files and templates. Does not belong on the HTTP thread."""
    return LivePage(load(), Template(template("page.html")), Template(template("nodes.html")))


class Page(Handler):
    """The live page of a node; at the root of several nodes, their list."""

    async def get(self, prefix: str) -> None:
        live: LivePage = self.settings["live_page"]
        # A header that the user has set in the web configuration stays.
        if self._headers.get(CSP) == SECURE_HEADERS[CSP]:
            self.set_header(CSP, PAGE_POLICY)
        if not prefix and "" not in self.endpoints:
            links = _links(self.settings["links_of_list"])
            body = live.nodes.substitute(node_list.values(self.endpoints), links=links, version=__version__)
        else:
            endpoint = self.endpoint(prefix)
            values = {"node": html.escape(endpoint.node), "links": _links(self.settings["links_of_node"])}
            root = "../../" if prefix else ""
            up = '<a href="../../">All nodes</a> · ' if prefix else ""
            body = live.node.substitute(values, root=root, up=up, version=__version__)
        await self.send(body, HTML)

    head = get


class Static(Handler):
    """A file of the page."""

    async def get(self) -> None:
        live: LivePage = self.settings["live_page"]
        asset = live.assets.get(self.request.path.rpartition("/")[2])
        if asset is None:
            raise HTTPError(404)
        self.set_header("ETag", asset.etag)
        self.set_header("Cache-Control", REVALIDATE)
        self.set_header("Vary", "Accept-Encoding")
        if self.check_etag_header():
            self.set_status(304)
            await self.finish()
        elif accepts_gzip(self.request.headers.get("Accept-Encoding", "")):
            self.set_header("Content-Encoding", "gzip")
            await self.send(asset.zipped, asset.content_type)
        else:
            await self.send(asset.plain, asset.content_type)

    head = get


def _links(paths: Mapping[str, str]) -> str:
    return " · ".join(
        f'<a href="{path[1:]}" title="{html.escape(description)}">{path}</a>' for path, description in paths.items()
    )
