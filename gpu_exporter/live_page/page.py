"""The HTML of the live page and of the list of nodes."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template

from gpu_exporter.live_page.assets import Asset, load, template
from gpu_exporter.live_page.node_list import ListedNode, list_values
from gpu_exporter.version import __version__

HTML = "text/html; charset=utf-8"
# Only what this server sends may run or be loaded.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class LivePage:
    """What the handlers need: the files by name, and the templates of both pages."""

    assets: Mapping[str, Asset]
    node: Template
    nodes: Template

    def of_node(self, name: str, links: Mapping[str, str], *, root: str = "") -> str:
        """Return the page of a node. `root` is the path of the root from there, if the node is one of several."""
        up = f'<a href="{root}">All nodes</a> · ' if root else ""
        values = {"node": html.escape(name), "links": _links(links)}
        return self.node.substitute(values, root=root, up=up, version=__version__)

    def of_nodes(self, nodes: Sequence[ListedNode], links: Mapping[str, str]) -> str:
        """Return the list of several nodes."""
        return self.nodes.substitute(list_values(nodes), links=_links(links), version=__version__)


def load_page() -> LivePage:
    """Read the files and templates. Does not belong on the HTTP thread."""
    return LivePage(load(), Template(template("page.html")), Template(template("nodes.html")))


def _links(paths: Mapping[str, str]) -> str:
    return " · ".join(
        f'<a href="{path[1:]}" title="{html.escape(description)}">{path}</a>' for path, description in paths.items()
    )
