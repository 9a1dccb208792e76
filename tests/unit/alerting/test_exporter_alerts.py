"""Alerts on exporters look up the node by an address, which may have belonged to another node recently."""

import pytest

from gpu_exporter.catalogue.failure_modes import MODES


@pytest.mark.parametrize("name", ["GpuLost", "GpuExporterDown", "GpuAttributionDown"])
def test_an_address_has_one_node(name: str) -> None:
    """Two nodes for one address on the one-side of a join are an error and stop every alert of the rule."""
    (mode,) = (mode for mode in MODES if mode.name == name)
    _, joined = mode.fleet.split("group_left (node)", 1)
    assert joined.lstrip().startswith("topk by (cluster, job, instance) (1,")
