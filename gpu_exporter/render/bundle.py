"""The files to install beside the exporter: rules, dashboards, runbooks, chart and examples of this version.

Rules and runbooks are rendered, so that they can have the user's limits. The other files are package data; in a
checkout, `bundled/` links to where they are kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from gpu_exporter.catalogue import project
from gpu_exporter.catalogue.conditions import Limits
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.cost import PRICES
from gpu_exporter.catalogue.failure_modes.mode import Domain
from gpu_exporter.decoding import MOST_YAML_BYTES, json_as, yaml_document
from gpu_exporter.file_access import read
from gpu_exporter.inputs import near
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.render.docs import runbooks
from gpu_exporter.render.docs.failure_modes import all_limits
from gpu_exporter.render.docs.markdown import relinked
from gpu_exporter.render.rules import alertmanager, dcgm_exporter_csv, rules
from gpu_exporter.version import __version__

BUNDLED = Path(__file__).parents[1] / "bundled"
# Lists the files of a bundle in its folder, so that the next version can remove those that it no longer has.
MANIFEST = "bundle.json"
# Names in folders that are not part of the bundle.
IGNORED = ("__pycache__", ".lint")

MOST_MANIFEST_BYTES = 1 << 20

Files = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Part:
    """A folder of the bundle: what it is, and its files with their content, by path below the folder."""

    help: str
    files: Callable[[Limits], Files]


@dataclass(frozen=True, slots=True)
class _Manifest:
    version: str
    files: list[str]


def limits(path: Path) -> Limits:
    """Return the limits in a YAML file of the form `name: number`. Raises GpuExporterError naming what is wrong."""
    known = {limit.name: limit for limit in (*all_limits(), *PRICES)}
    try:
        document = yaml_document(read(path, MOST_YAML_BYTES)) or {}
    except (OSError, ValueError) as error:
        raise GpuExporterError(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise GpuExporterError(f"{path}: not a mapping of limits to numbers; write for example `gpuHour: 3`")
    for name, value in document.items():
        if name not in known:
            close = near(str(name), known)
            fix = f"did you mean {close}?" if close else "docs/failure-modes.md lists all limits"
            raise GpuExporterError(f"{path}: there is no limit {name!r}; {fix}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise GpuExporterError(f"{path}: {name} is {value!r}, not a number of {known[name].unit}")
    return {str(name): float(value) for name, value in document.items()}


def write(folder: Path, parts: Sequence[str], chosen: Limits) -> list[str]:
    """Write these parts to a folder and return the paths of their files.

    The folder must be empty, new, or hold a bundle: then the files of these parts that no longer exist are removed.
    Raises GpuExporterError otherwise.
    """
    files = {f"{name}/{path}": text for name in parts for path, text in PARTS[name].files(chosen)}
    others = []
    for path in _written(folder):
        if path.partition("/")[0] not in parts:
            others.append(path)
        elif path not in files:
            (folder / path).unlink(missing_ok=True)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    manifest = _Manifest(__version__, sorted((*others, *files)))
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")
    return list(files)


def _written(folder: Path) -> list[str]:
    """Return the paths of the files of the bundle that a folder holds."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        if folder.is_dir() and any(folder.iterdir()):
            raise GpuExporterError(f"{folder} holds other files; name a new or an empty folder with --out")
        return []
    try:
        paths = json_as(_Manifest, read(manifest, MOST_MANIFEST_BYTES)).files
    except (OSError, ValueError):
        paths = [".."]
    if any(path.startswith("/") or ".." in path.split("/") for path in paths):
        raise GpuExporterError(f"{manifest} is damaged; delete {folder}, or name another folder with --out")
    return paths


def _alerts(chosen: Limits) -> Files:
    yield "recording.yaml", _titled(rules.recording(chosen), "#")
    for domain in Domain:
        yield f"{domain.value}.yaml", _titled(rules.alerts(domain, chosen), "#")
    yield "examples/alertmanager.yaml", _titled(alertmanager.alertmanager(), "#")
    yield "dcgm-exporter.csv", _titled(dcgm_exporter_csv.classic(), "#")
    yield "dcgm-exporter-4.9.csv", _titled(dcgm_exporter_csv.modern(), "#")


def _runbooks(chosen: Limits) -> Files:
    yield "README.md", relinked(_titled(runbooks.index(), "<!--", " -->"), _target, runbooks.FOLDER)
    for mode in MODES:
        text = _titled(runbooks.runbook(mode, limits=chosen), "<!--", " -->")
        yield Path(runbooks.path(mode)).name, relinked(text, _target, runbooks.FOLDER)


def _titled(text: str, start: str, end: str = "") -> str:
    """Return the text with the version in place of the note for developers in its first line."""
    return f"{start} gpu-exporter {__version__}{end}\n{text.partition(chr(10))[2]}"


def _target(link: str) -> str:
    """Return where a link of a runbook leads in the bundle, which has no other pages of the docs."""
    if link.startswith("../../alerts/"):
        return link.removeprefix("../")
    if link.startswith("../"):
        return f"{project.DOCS}/{link.removeprefix('../')}" if project.DOCS else ""
    return link


def _stored(folder: str, chosen: Limits) -> Files:
    """Yield the files of a folder of the package data."""
    root = BUNDLED / folder
    for path in sorted(root.rglob("*")):
        if path.is_file() and not set(path.relative_to(root).parts).intersection(IGNORED):
            yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def _deploy(chosen: Limits) -> Files:
    yield from _stored("deploy", chosen)
    yield "compose.yaml", _compose((BUNDLED / "compose.yaml").read_text(encoding="utf-8"))


def _compose(text: str) -> str:
    """Return compose.yaml without what needs a checkout: the build of the image, and paths from the root."""
    image = f"{project.IMAGE}:{__version__}" if project.IMAGE else "${IMAGE:?set IMAGE to your image of gpu-exporter}"
    for old, new in (
        ("  build: .\n", ""),
        ("image: gpu-exporter:local", f"image: {image}"),
        (" --build\n", "\n"),
        (" --build  ", "  "),
        ("- ./deploy/", "- ./"),
        ("- ./alerts", "- ../alerts"),
        ("- ./dashboards", "- ../dashboards"),
    ):
        text = text.replace(old, new)
    return text


PARTS: Mapping[str, Part] = {
    "alerts": Part("Recording rules, alerts, an example for Alertmanager, field lists for dcgm-exporter", _alerts),
    "dashboards": Part("Dashboards for Grafana", partial(_stored, "dashboards")),
    "runbooks": Part("A page for each alert", _runbooks),
    "chart": Part("The Helm chart", partial(_stored, "chart")),
    "deploy": Part("A systemd unit, a Compose file and manifests for kubectl", _deploy),
}
