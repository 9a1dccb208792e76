"""The HTML of the live page and of the list of nodes, and their files.

The files are loaded once, sent compressed, and cached by the hash of their content.
"""

from __future__ import annotations

import gzip
import hashlib
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

from gpu_exporter.live_page.node_list import ListedNode, list_values
from gpu_exporter.version import __version__

FOLDER = Path(__file__).parent / "static"
TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
# Each is a path below /static. A test compares them with the folder.
NAMES = (
    "charts.js",
    "connection.js",
    "details.js",
    "dom.js",
    "drawing.js",
    "findings.js",
    "format.js",
    "icon.svg",
    "jobs.js",
    "nodes.js",
    "page.css",
    "page.js",
    "processes.js",
    "profiles.js",
    "rows.js",
    "strip.js",
    "summary.js",
    "timeline.js",
    "uPlot.LICENSE.txt",
    "uPlot.iife.min.js",
    "uPlot.min.css",
)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, compressed by gzip. `etag` changes with its content."""

    zipped: bytes
    etag: str
    content_type: str

    @property
    def plain(self) -> bytes:
        """The content, for the few clients that do not accept gzip."""
        return gzip.decompress(self.zipped)


def load() -> Mapping[str, Asset]:
    """Read all files."""
    return {name: _asset(name, (FOLDER / name).read_bytes()) for name in NAMES}


def template(name: str) -> str:
    """Return a page with placeholders."""
    return (FOLDER.parent / name).read_text("utf-8")


def _asset(name: str, content: bytes) -> Asset:
    digest = hashlib.sha256(content).hexdigest()[:32]
    return Asset(gzip.compress(content, mtime=0), f'"{digest}"', TYPES[Path(name).suffix])


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
    runbook: Template
    # The address of Grafana; empty if it is unknown.
    grafana_url: str = ""

    def of_node(
        self, name: str, links: Mapping[str, str], answer: Mapping[str, Any] | None = None, *, root: str = ""
    ) -> str:
        """Return the page of a node with its values, the answer of `/api/v1/gpus`, if there are some yet. `root` is the
        path of the root from there, if the node is one of several."""
        up = f'<a href="{root}">All nodes</a> · ' if root else ""
        values = {"node": html.escape(name), "links": _links(links), **_first_view(answer, root), **self._boards(name)}
        return self.node.substitute(values, root=root, up=up, version=__version__)

    def _boards(self, node: str) -> Mapping[str, str]:
        """Return the link to the dashboard of a node, and where those of its GPUs and jobs are, for the scripts."""
        if not self.grafana_url:
            return {"board": "", "boards": ""}
        from gpu_exporter.alerting import boards

        name = quote(node, safe="")
        links = {
            "gpu": boards.GPU.link(node=name, gpu="{gpu}"),
            "job": boards.JOB.link(namespace="{namespace}", workload="{workload}"),
        }
        places = "".join(f' data-{kind}-board="{html.escape(self.grafana_url + link)}"' for kind, link in links.items())
        return {"board": self._board(boards.NODE.link(node=name), "Dashboard of this node"), "boards": places}

    def _board(self, link: str, words: str) -> str:
        """Return a link to a dashboard, before other links; empty if the address of Grafana is unknown."""
        return f'<a href="{html.escape(self.grafana_url + link)}">{words}</a> · ' if self.grafana_url else ""

    def of_nodes(self, nodes: Sequence[ListedNode], links: Mapping[str, str]) -> str:
        """Return the list of several nodes."""
        board = ""
        if self.grafana_url:
            from gpu_exporter.alerting import boards

            board = self._board(boards.FLEET.link(), "Dashboard of all nodes")
        return self.nodes.substitute(list_values(nodes), board=board, links=_links(links), version=__version__)

    def of_runbook(self, title: str, content: str, board: str, *, is_index: bool) -> str:
        """Return the page of a runbook, or of their index. `content` is HTML, `board` the path of the dashboard."""
        up = ("./", "Live page") if is_index else ("../runbooks", "All runbooks")
        values = {"title": html.escape(title), "content": content, "up": up[0], "up_name": up[1]}
        values["board"] = self._board(board, "Dashboard")
        return self.runbook.substitute(values, root="" if is_index else "../", version=__version__)


def _first_view(answer: Mapping[str, Any] | None, root: str) -> Mapping[str, str]:
    if answer is None:
        return {"tab": "", "title": "Loading …", "health": "", "problems": "", "table": ""}
    from gpu_exporter.live_page import first_view

    return {
        "tab": f"{html.escape(first_view.tab_title(answer['summary']))} · ",
        "title": html.escape(answer["summary"]["title"]),
        "health": html.escape(answer["summary"]["health"]),
        "problems": first_view.problems(answer, root),
        "table": first_view.table(answer),
    }


def load_page(grafana_url: str = "") -> LivePage:
    """Read the files and templates. Does not belong on the HTTP thread."""
    node, nodes, runbook = (Template(template(name)) for name in ("page.html", "nodes.html", "runbook.html"))
    return LivePage(load(), node, nodes, runbook, grafana_url)


def _links(paths: Mapping[str, str]) -> str:
    return " · ".join(
        f'<a href="{path[1:]}" title="{html.escape(description)}">{path}</a>' for path, description in paths.items()
    )
