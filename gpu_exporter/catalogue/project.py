"""The names under which this project is published.

They are empty until its owner sets them. After that, run `make generate`: links, the chart and the manifests follow. An
empty name is left out of what is rendered, so nothing refers to a name that somebody else could register.
"""

from __future__ import annotations

# The page of the source code, such as https://git.example/owner/gpu-exporter.
REPOSITORY = ""
# The folder docs/ at the tag or branch that users read, such as https://git.example/owner/gpu-exporter/blob/main/docs.
DOCS = ""
# The image without its tag, such as registry.example/owner/gpu-exporter.
IMAGE = ""
# The chart in its registry, such as oci://registry.example/owner/charts/gpu-exporter.
CHART = ""


def page(path: str) -> str:
    """Return the address of a page of the documentation, or its path there, with its anchor; empty without DOCS."""
    return f"{DOCS}/{path}" if DOCS else ""
