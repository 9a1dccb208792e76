"""Write docs/licenses.md: the licenses of dependencies, from the metadata of packages, and of copied files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from configparser import ConfigParser
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from release.vendored import version

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licenses.md"
# Extras of setup.cfg. The image installs `kubernetes`.
RUNTIME = ("kubernetes",)
OPTIONAL = ("dashboards", "distributed", "plots", "profile", "top", "trace", "xplane", "zstd")
DEVELOPMENT = ("dev", "docs", "release", "bench", "mutation")
PYTHON = "3.12"  # of the image, for conditions such as python_version

SPDX = {
    "Apache": "Apache-2.0",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD 2-Clause License": "BSD-2-Clause",
    "GNU LGPL v3+": "LGPL-3.0-or-later",
}
# Read in their files: the metadata of the first two says too little, and the others are not installed by `make test`.
READ: Mapping[str, str] = {
    "nvidia-ml-py": "BSD-3-Clause",
    "promql-parser": "MIT",
    "cosmic-ray": "MIT",
    "nvitop": "Apache-2.0 AND GPL-3.0-only",
    "nvitop-exporter": "Apache-2.0",
}


class Copied(NamedTuple):
    """Files that contain material of another project."""

    files: str  # a pattern
    shipped: str
    origin: str
    license: str


APACHE = "Apache-2.0, Copyright NVIDIA Corporation"
COPIED = (
    Copied("deploy/dcgm-exporter/*.csv", "wheel, image", "unchanged files of NVIDIA's dcgm-exporter", APACHE),
    Copied("tests/dcgm_exporter/*.json", "no", "an unchanged file of NVIDIA's dcgm-exporter", APACHE),
    Copied(
        "tests/data/peer_queries.jsonl",
        "no",
        "queries of the dashboards and alerts of nvidia_gpu_exporter and nvitop-exporter",
        "MIT, Copyright Utku Özdemir; Apache-2.0, Copyright Xuehai Pan",
    ),
    Copied(
        "gpu_exporter/catalogue/dcgm_exporter/fields.csv",
        "wheel, image",
        "ids, names and types of fields from NVIDIA's DCGM and go-dcgm",
        APACHE,
    ),
    Copied(
        "gpu_exporter/catalogue/xids.csv",
        "wheel, image",
        "codes, mnemonics and immediate actions from NVIDIA's XID catalog",
        "facts from NVIDIA's documentation; the descriptions are this project's",
    ),
    Copied(
        "gpu_exporter/live_page/static/uPlot*",
        "wheel, image",
        f"unchanged files of uplot {version('uplot')}, which draws the charts of the live page",
        "MIT, Copyright Leon Sorokin",
    ),
    Copied(
        "tests/page/axe*",
        "no",
        f"unchanged files of axe-core {version('axe-core')}, which checks that the live page is accessible",
        "MPL-2.0, Copyright Deque Systems",
    ),
    Copied(
        "release/site/theme/assets/mermaid*",
        "no",
        f"unchanged files of @mermaid-js/tiny {version('@mermaid-js/tiny')} for diagrams of the documentation site",
        "MIT, Copyright Knut Sveidqvist",
    ),
    Copied(
        "release/site/theme/assets/iframe-worker*",
        "no",
        f"unchanged files of iframe-worker {version('iframe-worker')}, which searches the site without a server",
        "MIT, Copyright Martin Donath",
    ),
)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the page."""
    packages = ConfigParser()
    packages.read(ROOT / "setup.cfg")
    runtime = closure([packages["options"]["install_requires"], *extras(packages, RUNTIME)])
    optional = set(names(extras(packages, OPTIONAL))) - runtime
    development = set(names(extras(packages, DEVELOPMENT))) - runtime - optional
    copied = "\n".join(f"| `{c.files}` | {c.shipped} | {c.origin} | {c.license} |" for c in COPIED)
    return f"""\
<!-- Rendered by `make licenses`; edit release/licenses.py instead. -->
# Licenses

gpu-exporter is licensed under the [Apache License 2.0](../LICENSE).

## What do the wheel and the image need?

`pip install '.[kubernetes]'` installs these packages, and the image contains them. The wheel contains none.

{table(runtime)}

The image also contains Python and Debian packages of its base image. Their licenses are in `/usr/share/doc` of the
image. [The SBOM of a release](releases.md#verify-a-release) has the exact versions.

## What do optional features need?

`dashboards` and `plots` are for rendering dashboards and plots, `top` for the live view in the terminal, `trace` for
profiler traces, `zstd`, `xplane` and `distributed` for traces that are compressed with zstd, of JAX, and on a Dask
cluster or behind URLs, `profile` for profiles of running jobs. The image has none of these extras.

{table(optional)}

## What is used for development only?

Direct dependencies of the extras `dev`, `docs`, `release`, `bench` and `mutation`. They are never distributed.

{table(development)}

## Which files come from other projects?

| files | shipped in | what they are | license |
| --- | --- | --- | --- |
{copied}
"""


def table(names: Iterable[str]) -> str:
    """Return a table of packages and their licenses."""
    rows = [f"| {name} | {license_of(name)} |" for name in sorted(names)]
    return "\n".join(("| package | license |", "| --- | --- |", *rows))


def license_of(name: str) -> str:
    """Return the license of an installed package, as an SPDX expression if its metadata allows."""
    if name in READ:
        return READ[name]
    metadata = distribution(name).metadata
    stated = [text for key in ("License-Expression", "License") for text in metadata.get_all(key) or []]
    stated += [text for text in metadata.get_all("Classifier") or [] if text.startswith("License ::")]
    first = next((text for text in stated if text and "\n" not in text), "")
    if not first:
        raise SystemExit(f"{name}: its metadata has no license; add it to READ in release/licenses.py")
    return SPDX.get(first, first)


def extras(setup: ConfigParser, chosen: Iterable[str]) -> list[str]:
    """Return the requirements of extras, one text for each."""
    return [setup["options.extras_require"][name] for name in chosen]


def closure(required: Iterable[str]) -> set[str]:
    """Return the packages that are required, with those that these require."""
    found, queue = set[str](), list(names(required))
    while queue:
        name = queue.pop()
        if name not in found:
            found.add(name)
            queue += names(distribution(name).requires or [])
    return found


def names(required: Iterable[str]) -> Iterator[str]:
    """Yield the name of each required package, without those that only extras or other systems require."""
    for requirement in map(Requirement, filter(None, "\n".join(required).splitlines())):
        marker = requirement.marker
        if not marker or marker.evaluate({"extra": "", "python_version": PYTHON, "sys_platform": "linux"}):
            yield re.sub(r"[-_.]+", "-", requirement.name).lower()


if __name__ == "__main__":
    main()
