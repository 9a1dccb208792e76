"""Which resources are GPUs: the same in attribution, in remediation and in the rules."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpu_exporter.alerting import allocation
from gpu_exporter.kubernetes.objects import is_gpu
from gpu_exporter.remediation import pods, state

CONFIGURED = ("volcano.sh/vgpu-number", "nvidia.com/a100")


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/mig-1g.10gb", True),
        ("nvidia.com/mig-1g.10gb.me", True),
        ("nvidia.com/mig-3g.71gb.shared", True),
        ("nvidia.com/hostdev", False),
        ("nvidia.com/rdma_shared_device_a", False),
        ("nvidia.com/sriov_resource", False),
        ("nvidia.com/GV100GL_Tesla_V100", False),
        ("nvidia.com/GH100_H200", False),
        ("nvidia.com/NVIDIA_A10-4Q", False),
        ("nvidia.com/pgpu", False),
        ("nvidia.com/gpumem", False),
        ("nvidia.com/gpumem-percentage", False),
        ("nvidia.com/gpucores", False),
        ("nvidia.com/mig-", False),
        ("nvidia.com/", False),
        ("rdma/hca", False),
        ("example.com/gpu", False),
        ("example.com/nvidia.com/gpu", False),
        ("cpu", False),
    ],
)
def test_a_resource(resource: str, expected: bool) -> None:
    item: Any = {"spec": {"containers": [{"resources": {"limits": {resource: "1"}}}]}}
    node: Any = {"status": {"capacity": {"cpu": "64", resource: "1"}}}
    in_rules = re.fullmatch(allocation.RESOURCES, re.sub("[^a-zA-Z0-9_]", "_", resource))
    assert is_gpu(resource) is expected
    assert pods.read(item).has_gpus is expected
    assert state.read(node).has_gpus is expected
    assert bool(in_rules) is expected


@pytest.mark.parametrize("resource", CONFIGURED)
def test_a_configured_resource(resource: str) -> None:
    item: Any = {"spec": {"initContainers": [{"resources": {"limits": {resource: "1"}}}]}}
    node: Any = {"status": {"capacity": {resource: "1"}}}
    for configured in ((), CONFIGURED):
        assert is_gpu(resource, configured) is bool(configured)
        assert pods.read(item, configured).has_gpus is bool(configured)
        assert state.read(node, configured).has_gpus is bool(configured)


def test_a_pod_without_any() -> None:
    """A limit of 0 takes no GPU."""
    item: Any = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "0"}}}]}}
    assert pods.read(item).has_gpus is False
