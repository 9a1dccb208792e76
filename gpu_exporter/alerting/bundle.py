"""The files to install beside the exporter: rules, dashboards, runbooks, chart and examples of this version.

Rules and runbooks are rendered, so that they can have the user's limits. The other files are package data; in a
checkout, `bundled/` links to where they are kept.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from gpu_exporter.alerting import alertmanager, coverage, rules, runbooks
from gpu_exporter.alerting.alert_texts import LINKS, RELATIVE
from gpu_exporter.alerting.levels import RuleLevel
from gpu_exporter.alerting.limits import largest_of, user_limits
from gpu_exporter.alerting.operator_rules import operator_rules
from gpu_exporter.catalogue import project
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain
from gpu_exporter.conditions.tree import Limits, duration
from gpu_exporter.io.decoding import json_as
from gpu_exporter.io.file_access import cause, read
from gpu_exporter.io.user_text import near, quoted
from gpu_exporter.io.yaml_decoding import MOST_YAML_BYTES, yaml_document
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.reports.markdown import outside, relinked
from gpu_exporter.version import __version__

BUNDLED = Path(__file__).parents[1] / "bundled"
# Lists the files of a bundle in its folder, so that the next version can remove those that it no longer has.
MANIFEST = "bundle.json"
# Names in folders that are not part of the bundle.
IGNORED = ("__pycache__", ".lint")
# What only the image needs.
OF_IMAGE = ("healthcheck.py", "dcgm-exporter/dcgm-exporter")

MOST_MANIFEST_BYTES = 1 << 20
# What `kubectl apply -k` applies for a cluster with Prometheus Operator.
KUSTOMIZATION = f"""# gpu-exporter {__version__}
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../plain, servicemonitor.yaml, prometheusrule.yaml]
"""
# A larger limit is not meant.
LARGEST = 1e15

Files = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class BundleChoice:
    """What users choose: their limits, the URL of Grafana for the links of alerts, and the domains of the rules.

    `interval` is how often rules are evaluated, in seconds; 0 is as in the repository.
    """

    limits: Limits = field(default_factory=dict)
    grafana_url: str = ""
    domains: Collection[Domain] = tuple(Domain)
    interval: float = 0.0

    @property
    def rule_interval(self) -> str:
        """`interval` as rules have it; "" is as in the repository."""
        return duration(self.interval) if self.interval else ""


@dataclass(frozen=True, slots=True)
class _Manifest:
    version: str
    files: list[str]


def limits(path: Path) -> Limits:
    """Return the limits in a YAML file of the form `name: number`. Raises GpuExporterError naming what is wrong."""
    known = {limit.name: limit for limit in user_limits()}
    try:
        document = yaml_document(read(path, MOST_YAML_BYTES)) or {}
    except (OSError, ValueError) as error:
        raise GpuExporterError(f"{path}: {cause(error)}") from error
    if not isinstance(document, dict):
        raise GpuExporterError(f"{path}: not a mapping of limits to numbers; write for example `usdPerGpuHour: 3`")
    for name, value in document.items():
        if name not in known:
            close = near(str(name), known)
            fix = f"did you mean {close}?" if close else "docs/failure-modes.md lists all limits"
            raise GpuExporterError(f"{path}: there is no limit {name!r}; {fix}")
        largest = largest_of(known[name])
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= (largest or LARGEST):
            what = f"{known[name].unit} from 0" + (f" to {largest:g}" if largest else "")
            raise GpuExporterError(f"{path}: {name} is {quoted(str(value))}, not a number of {what}")
    return {str(name): float(value) for name, value in document.items()}


def write(folder: Path, parts: Sequence[str], chosen: BundleChoice) -> list[str]:
    """Write these parts to a folder and return the paths of their files.

    The folder must be empty, new, or hold a bundle: then the files of these parts that no longer exist are removed.
    Raises GpuExporterError otherwise.
    """
    before = _written(folder)
    files = {f"{name}/{path}": text for name in parts for path, text in PARTS[name](chosen)}
    folder.mkdir(parents=True, exist_ok=True)
    _list(folder, {*before, *files})  # first, so that the command can be repeated if it is interrupted
    gone = {path for path in before if path.partition("/")[0] in parts and path not in files}
    for path in gone:
        (folder / path).unlink(missing_ok=True)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    _list(folder, {*before, *files} - gone)
    return list(files)


def _list(folder: Path, paths: Collection[str]) -> None:
    manifest = _Manifest(__version__, sorted(paths))
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")


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
    if any(path[:1] in ("/", "") or "\0" in path or ".." in path.split("/") for path in paths):
        raise GpuExporterError(f"{manifest} is damaged; delete {folder}, or name another folder with --out")
    return paths


def _alerts(chosen: BundleChoice) -> Files:
    selected = chosen.limits, chosen.domains, chosen.rule_interval
    yield "recording.yaml", _titled(rules.recording(*selected), "#")
    for domain in chosen.domains:
        yield (
            f"{domain.value}.yaml",
            _linked(rules.alerts(domain, chosen.limits, interval=chosen.rule_interval), chosen),
        )
    for level in RuleLevel:
        yield f"levels/{level.value}.yaml", _linked(rules.level_rules(level, *selected), chosen)
    yield "vmalert/rules.yaml", _linked(rules.vmalert_rules(*selected), chosen)
    yield "examples/remote_write.yaml", _titled(rules.forwarding(), "#")
    yield "examples/alertmanager.yaml", _titled(alertmanager.alertmanager(), "#")
    yield "dcgm-exporter.csv", _titled(coverage.classic(), "#")
    yield "dcgm-exporter-4.9.csv", _titled(coverage.modern(), "#")


def _linked(text: str, chosen: BundleChoice) -> str:
    """Return the text of alerts with links to Grafana; without its address, they say so."""
    if chosen.grafana_url:
        text = re.sub(rf"\n +{LINKS}: {re.escape(RELATIVE)}", "", text)
        text = text.replace("_url: /d/", f"_url: {chosen.grafana_url}/d/")
    return _titled(text, "#")


def _runbooks(chosen: BundleChoice) -> Files:
    yield "README.md", relinked(_titled(runbooks.index(), "<!--", " -->"), _target, runbooks.FOLDER)
    for mode in MODES:
        text = _titled(runbooks.runbook(mode, limits=chosen.limits), "<!--", " -->")
        yield Path(runbooks.path(mode)).name, relinked(text, _target, runbooks.FOLDER)


def _titled(text: str, start: str, end: str = "") -> str:
    """Return the text with the version in place of the note for developers in its first line."""
    return f"{start} gpu-exporter {__version__}{end}\n{text.partition(chr(10))[2]}"


def _target(link: str) -> str:
    """Return where a link of a runbook leads in the bundle, which has no other pages of the docs."""
    if link.startswith("../../alerts/"):
        return link.removeprefix("../")
    if link.startswith("../"):
        return project.page(link.removeprefix("../"))
    return link


def _stored(folder: str, home: str, chosen: BundleChoice) -> Files:
    """Yield the files of a folder of the package data, which is `home` in the repository."""
    root = BUNDLED / folder
    # The chart has a link to the dashboards, except in a wheel.
    for path in sorted(Path(here, name) for here, _, names in os.walk(root, followlinks=True) for name in names):
        name = path.relative_to(root)
        if not set(name.parts).intersection(IGNORED):
            text = path.read_text(encoding="utf-8")
            here = (Path(home) / name).parent.as_posix()
            yield name.as_posix(), relinked(text, outside, here) if path.suffix == ".md" else text


def _deploy(chosen: BundleChoice) -> Files:
    yield from ((name, text) for name, text in _stored("deploy", "deploy", chosen) if name not in OF_IMAGE)
    yield "compose.yaml", _compose((BUNDLED / "compose.yaml").read_text(encoding="utf-8"))
    rules_of_operator = operator_rules(chosen.limits, chosen.domains, chosen.rule_interval)
    yield "kubernetes/monitored/prometheusrule.yaml", _linked(rules_of_operator, chosen)
    yield "kubernetes/monitored/kustomization.yaml", KUSTOMIZATION


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


# Each yields the files of a folder of the bundle, with their content, by path below the folder.
PARTS: Mapping[str, Callable[[BundleChoice], Files]] = {
    "alerts": _alerts,
    "dashboards": partial(_stored, "dashboards", "dashboards"),
    "runbooks": _runbooks,
    "chart": partial(_stored, "chart", "helm/gpu-exporter"),
    "deploy": _deploy,
}
