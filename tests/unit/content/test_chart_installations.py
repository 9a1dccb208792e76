"""The installations that `tests.soak.install` tries in a real control plane, without one."""

from __future__ import annotations

import pytest
from helm_python import HelmError

from tests.soak.install import pods, rendered
from tests.support.chart import NAMESPACE, beyond_restricted
from tests.support.chart_installations import INSTALLATIONS, PRIVILEGED, RESTRICTED

pytestmark = pytest.mark.slow

RENDERED = [name for name, each in INSTALLATIONS.items() if not each.chart]


def test_there_are_enough() -> None:
    """Some are refused by the chart, and some by the admission of a cluster."""
    assert len(INSTALLATIONS) >= 36
    assert len(INSTALLATIONS) - len(RENDERED) >= 5
    assert sum(bool(each.refused) for each in INSTALLATIONS.values()) >= 6


@pytest.mark.parametrize("name", sorted({*INSTALLATIONS} - {*RENDERED}))
def test_the_chart_refuses_it(name: str) -> None:
    """In one line."""
    with pytest.raises(HelmError) as caught:
        rendered(INSTALLATIONS[name].values, NAMESPACE)
    (line,) = str(caught.value).strip().splitlines()
    assert INSTALLATIONS[name].chart in line


@pytest.mark.parametrize("name", RENDERED)
def test_pods_fit_the_namespace(name: str) -> None:
    """Pod Security refuses them only where that is expected."""
    installation = INSTALLATIONS[name]
    beyond = {what for pod in pods(rendered(installation.values, NAMESPACE)) for what in beyond_restricted(pod["spec"])}
    refused = "PodSecurity" in installation.refused or installation.level not in (RESTRICTED, PRIVILEGED)
    if installation.level == RESTRICTED:
        assert bool(beyond) is ("violates" in installation.refused or "runAsNonRoot" in installation.refused), beyond
    elif installation.level == PRIVILEGED:
        assert not refused
        assert beyond or name in ("containers, volumes and variables of its own",)
    else:
        assert beyond
