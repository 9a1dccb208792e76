"""The presets of platforms: they render, reach GPUs as their page says, and ask for no more privileges than that."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import yaml

from content.chart import platforms
from content.chart.platforms import PLATFORMS, Platform
from tests import ROOT
from tests.support.chart import Values, beyond_restricted, exporter, kind, objects, pod, texts

pytestmark = pytest.mark.slow

FROM_HOST = {"privileged", "hostPath /home/kubernetes/bin/nvidia", "allowPrivilegeEscalation", "capabilities kept"}
# What Pod Security "restricted" does not allow.
BEYOND: Mapping[str, set[str]] = {"gke": FROM_HOST, "eks-bottlerocket": {"hostPath /dev/null"}}


def values(platform: Platform) -> Values:
    """Return the values of the committed file."""
    found: Values = yaml.safe_load((ROOT / platforms.path(platform)).read_text())
    return found


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda platform: platform.name)
def test_a_preset(platform: Platform) -> None:
    found = objects(values(platform))
    assert beyond_restricted(pod(found)) == BEYOND.get(platform.name, set())
    mode = platform.values["gpuAccess"]["mode"]
    assert ("runtimeClassName" in pod(found)) is (mode == "runtimeClass")
    variables = {each["name"]: each.get("value") for each in exporter(found)["env"]}
    assert (variables["NVIDIA_VISIBLE_DEVICES"] == "all") is (mode in ("env", "runtimeClass"))
    mounts = {each["mountPath"]: each.get("readOnly", False) for each in exporter(found)["volumeMounts"]}
    if mode == "hostPath":
        assert variables["LD_LIBRARY_PATH"].startswith("/usr/local/nvidia/")
        assert mounts["/usr/local/nvidia"] is True
    if "extraManifests" in platform.values:
        (runtime,) = kind(found, "RuntimeClass")
        assert runtime["metadata"]["name"] == pod(found)["runtimeClassName"]
    assert bool(kind(found, "SecurityContextConstraints")) is (platform.name == "openshift")
    assert ("these values need: gpuAccess.mode" in texts(values(platform))["NOTES.txt"]) is (platform.name in BEYOND)


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda platform: platform.name)
def test_a_platform_has_its_section(platform: Platform) -> None:
    """With a source for what it says."""
    page = (ROOT / "docs/kubernetes-platforms.md").read_text()
    assert f"## {platform.title}\n" in page
    assert "](https://" in platform.source
    assert all(need[0].isupper() and need.endswith((".", "`", ")")) for need in platform.needs)
