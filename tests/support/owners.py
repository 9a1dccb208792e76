"""Owners of GPUs in a /metrics response."""

from __future__ import annotations

from collections.abc import Callable

from tests.conftest import Page
from tests.support.fakes.driver import identity, mig_device

POWER, USED = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED"
OWNER = ("namespace", "pod", "container")
UUID = [str(identity(gpu)["UUID"]) for gpu in range(4)]
MIG = mig_device(9, "3g.71gb"), mig_device(5, "4g.71gb")


def owner(page: Page, uuid: str, name: str = POWER, **labels: str) -> tuple[str, ...]:
    """Return the owner labels of a GPU's only series, which must exist, also if they are empty."""
    found = [
        have for n, have, _ in page.samples if n == name and have["UUID"] == uuid and labels.items() <= have.items()
    ]
    assert len(found) == 1, f"{name} of {uuid}: {found}"
    return tuple(found[0][label] for label in OWNER)


def owned(uuid: str, pod: str) -> Callable[[Page], bool]:
    """Return a condition: the GPU's series exists, which a busy machine may delay, and has the label of this pod."""
    return lambda page: any(n == POWER and have["UUID"] == uuid and have["pod"] == pod for n, have, _ in page.samples)


def rows(page: Page, name: str = "gpu_pod_info", uuid: str | None = None) -> list[dict[str, str]]:
    """Return the labels of the series of this name, without those that every GPU has."""
    found = [labels for n, labels, _ in page.samples if n == name and uuid in (None, labels.get("UUID"))]
    return [{key: value for key, value in labels.items() if key not in ("gpu", "UUID")} for labels in found]


def up(source: str = "kubelet", value: float = 1) -> Callable[[Page], bool]:
    """Return a condition: gpu_exporter_attribution_up has this value."""
    return lambda page: page.values("gpu_exporter_attribution_up", source=source) == [value]
