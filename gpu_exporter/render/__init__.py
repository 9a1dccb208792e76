"""Catalogues -> files that are committed: pure functions, written by `generate` and compared by `generate --check`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from gpu_exporter.failure_modes.mode import Domain
from gpu_exporter.render import alertmanager, reference, rules

ARTIFACTS: Mapping[str, Callable[[], str]] = {
    "docs/metrics.md": reference.metrics,
    "docs/health.md": reference.health,
    "docs/configuration.md": reference.configuration,
    "docs/xids.md": reference.xids,
    "alerts/recording.yaml": rules.recording,
    "alerts/alertmanager.yaml": alertmanager.alertmanager,
    **{f"alerts/{domain.value}.yaml": partial(rules.alerts, domain) for domain in Domain},
}


def write(root: Path) -> list[str]:
    """Write every artifact below `root`; return the names of those that changed."""
    changed = stale(root)
    for name in changed:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ARTIFACTS[name](), encoding="utf-8")
    return changed


def stale(root: Path) -> list[str]:
    """The names of the artifacts below `root` that are not what the catalogues say."""
    return [
        name
        for name, render in ARTIFACTS.items()
        if not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != render()
    ]
