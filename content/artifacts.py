"""Catalogues -> files that are committed: pure functions, written by `make generate` and compared by `make lint`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from content.chart import files as chart
from content.chart import manifests, platforms
from content.docs import failure_modes as failure_pages
from content.docs import gpu_models, peer_series, reference, without_profiling
from content.docs import signals as signal_page
from gpu_exporter.alerting import alertmanager, rules, runbooks
from gpu_exporter.alerting import coverage as dcgm_csv
from gpu_exporter.alerting.boards import BOARDS, Board
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain
from gpu_exporter.model.errors import GpuExporterError


def _dashboard(board: Board) -> str:
    try:
        from content.dashboards import build as dashboards

        return dashboards.render(board)
    except ModuleNotFoundError as error:
        if error.name != "grafanalib":
            raise
        raise _needs_grafanalib() from None


def _without_profiling() -> str:
    return without_profiling.page({board.title: _dashboard(board) for board in BOARDS})


ARTIFACTS: Mapping[str, Callable[[], str]] = {
    "docs/metrics.md": reference.metrics,
    "docs/health.md": reference.health,
    "docs/configuration.md": reference.configuration,
    "docs/dcgm-exporter-flags.md": reference.page,
    "docs/xids.md": reference.xids,
    "docs/gpu-models.md": gpu_models.page,
    "docs/peer-series.md": peer_series.page,
    "alerts/recording.yaml": rules.recording,
    "alerts/examples/alertmanager.yaml": alertmanager.alertmanager,
    **{f"alerts/{domain.value}.yaml": partial(rules.alerts, domain) for domain in Domain},
    "alerts/examples/remote_write.yaml": rules.forwarding,
    "alerts/dcgm-exporter.csv": dcgm_csv.classic,
    "alerts/dcgm-exporter-4.9.csv": dcgm_csv.modern,
    "docs/failure-modes.md": failure_pages.failure_modes,
    "docs/signals.md": signal_page.signals,
    "docs/without-profiling.md": _without_profiling,
    f"{runbooks.FOLDER}/README.md": runbooks.index,
    **{runbooks.path(mode): partial(runbooks.runbook, mode) for mode in MODES},
    **{f"dashboards/{board.name}.json": partial(_dashboard, board) for board in BOARDS},
    f"{chart.FOLDER}/Chart.yaml": chart.chart,
    f"{chart.FOLDER}/values.yaml": chart.values_yaml,
    f"{chart.FOLDER}/values.schema.json": chart.schema,
    f"{chart.FOLDER}/files/defaults.yaml": chart.defaults,
    f"{chart.FOLDER}/files/rules.yaml": chart.bundle,
    f"{chart.FOLDER}/README.md": chart.readme,
    "docs/kubernetes-platforms.md": platforms.page,
    **{platforms.path(each): partial(platforms.preset, each) for each in platforms.PLATFORMS},
}


def check() -> None:
    """Raise GpuExporterError if the files cannot all be rendered: so none is written."""
    if not find_spec("grafanalib"):
        raise _needs_grafanalib()


def _needs_grafanalib() -> GpuExporterError:
    return GpuExporterError(
        "rendering dashboards needs the module grafanalib: run `pip install -e '.[dashboards]'` (Python 3.11 or newer)"
    )


def write(root: Path) -> list[str]:
    """Write every file below `root` that is not current; return the names of those that changed."""
    changed = []
    for name, text in _rendered(root):
        path = root / name
        if not _current(path, text):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            changed.append(name)
    return changed


def stale(root: Path) -> list[str]:
    """Return the names of the files below `root` that are not what the catalogues say."""
    return [name for name, text in _rendered(root) if not _current(root / name, text)]


def left_out(root: Path) -> str:
    """Return which files cannot be rendered for `root`, and the fix, in one line; "" if all can."""
    return manifests.left_out(root)


def _rendered(root: Path) -> Iterator[tuple[str, str]]:
    for name, render in ARTIFACTS.items():
        yield name, render()
    if not manifests.left_out(root):  # last: they are rendered from the chart below `root`, which is written by now
        yield from manifests.files(root).items()


def _current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text
