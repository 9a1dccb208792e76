"""Presets of the chart for Kubernetes platforms, and docs/kubernetes-platforms.md, from one table."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from content.chart.files import FOLDER, WIDTH
from gpu_exporter.alerting import banner
from gpu_exporter.reports.markdown import bullets, table

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform: the `values` that it needs, what a person has to do (`needs`), and where that is read (`source`)."""

    name: str
    title: str
    values: Values
    why: str
    needs: tuple[str, ...]
    source: str


RUNTIME_CLASS: Values = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}
_LABEL = "Label the nodes with GPUs if neither NFD nor GPU operator does: `kubectl label node NODE nvidia.com/gpu.present=true`."
PLATFORMS = (
    Platform(
        "gke",
        "GKE, Standard clusters (Container-Optimized OS and Ubuntu)",
        {"gpuAccess": {"mode": "hostPath"}, "priorityClassName": ""},
        "The nodes have no NVIDIA runtime: GKE's device plugin mounts the driver from `/home/kubernetes/bin/nvidia` into the pods that request a GPU. The exporter requests none, so it mounts the driver itself, and is privileged to open the device files.",
        (
            "The namespace has to be `enforce: privileged`.",
            "Autopilot clusters refuse privileged pods: use Google's own DCGM metrics there.",
            "The empty priority class, because GKE allows `system-node-critical` only with a ResourceQuota (*Priority class* in the chart's README).",
        ),
        "[GKE's device plugin](https://github.com/GoogleCloudPlatform/container-engine-accelerators/blob/master/cmd/nvidia_gpu/nvidia_gpu.go) (defaults of `-host-path` and `-container-path`), [reports about dcgm-exporter](https://github.com/NVIDIA/dcgm-exporter/issues/59)",
    ),
    Platform(
        "eks",
        "EKS, Amazon Linux 2023 with NVIDIA's driver",
        {"gpuAccess": {"mode": "env"}},
        "The default runtime of containerd is NVIDIA's.",
        (_LABEL, "Nodes of Karpenter have a label that the chart recognises."),
        "[nodeadm](https://github.com/awslabs/amazon-eks-ami/blob/main/nodeadm/internal/containerd/runtime_config_nvidia.go), which configures containerd on these nodes",
    ),
    Platform(
        "eks-bottlerocket",
        "EKS, Bottlerocket (variants with `nvidia`)",
        {"gpuAccess": {"mode": "volumeMounts"}},
        "NVIDIA's runtime is configured to ignore `NVIDIA_VISIBLE_DEVICES` of unprivileged containers, and to read the devices from mounts instead.",
        (
            "The namespace has to be `enforce: privileged`, because of the hostPath of /dev/null.",
            _LABEL,
            "With `attribution.enabled`, SELinux may deny kubelet's socket: set `podSecurityContext.seLinuxOptions` then.",
        ),
        "[Bottlerocket's settings](https://bottlerocket.dev/en/os/1.54.x/api/settings/nvidia-container-runtime): `visible-devices-as-volume-mounts` is true, `visible-devices-envvar-when-unprivileged` false",
    ),
    Platform(
        "aks",
        "AKS, Ubuntu and Azure Linux node pools with GPUs",
        {"gpuAccess": {"mode": "env"}},
        "The default runtime of containerd is NVIDIA's.",
        ("Nothing: the node pools have the label `kubernetes.azure.com/accelerator=nvidia`.",),
        "[AgentBaker](https://github.com/Azure/AgentBaker), which configures containerd on these nodes",
    ),
    Platform(
        "openshift",
        "OpenShift with GPU operator",
        {
            "openShift": {"scc": True},
            "gpuAccess": {"mode": "runtimeClass"},
            "networkPolicy": {"dnsPorts": [5353]},
        },
        "GPU operator creates the runtime class `nvidia`. Each namespace has its own users, so the pods need an SCC of their own, which the chart creates.",
        ("GPU operator.", "Prometheus of user workloads, or a ServiceMonitor that yours selects."),
        "[GPU operator on OpenShift](https://docs.nvidia.com/datacenter/cloud-native/openshift/latest/index.html), [SCCs](https://docs.redhat.com/en/documentation/openshift_container_platform/4.18/html/authentication_and_authorization/managing-pod-security-policies), [ports of the DNS operator](https://github.com/openshift/cluster-dns-operator)",
    ),
    Platform(
        "talos",
        "Talos Linux with NVIDIA's system extensions",
        {"gpuAccess": {"mode": "runtimeClass"}, "extraManifests": [RUNTIME_CLASS]},
        "The extension `nvidia-container-toolkit` adds a runtime that is not the default one. Talos has no runtime class for it, so the preset creates one: leave it out if you have it already.",
        (
            "The system extensions with the kernel modules and the container toolkit.",
            "Talos enforces Pod Security *baseline* by default, which the exporter meets. With `attribution.enabled`, the namespace has to be `enforce: privileged`.",
            _LABEL,
        ),
        "[Talos' guide](https://docs.siderolabs.com/talos/v1.7/configure-your-talos-cluster/hardware-and-drivers/nvidia-gpu-proprietary)",
    ),
    Platform(
        "k3s",
        "k3s and RKE2",
        {"gpuAccess": {"mode": "runtimeClass"}},
        "k3s adds NVIDIA's runtime to containerd if it finds its program when it starts, and has the runtime class `nvidia`.",
        ("NVIDIA Container Toolkit on the nodes; then restart k3s.", _LABEL),
        "[k3s' documentation](https://docs.k3s.io/advanced#alternative-container-runtime-support)",
    ),
    Platform(
        "kubeadm",
        "kubeadm and other clusters of your own with containerd",
        {"gpuAccess": {"mode": "runtimeClass"}, "extraManifests": [RUNTIME_CLASS]},
        "`nvidia-ctk` adds the runtime to containerd. If you make it the default one (`--set-as-default`), use `gpuAccess.mode: env` and no runtime class.",
        (
            "On each node with GPUs: NVIDIA Container Toolkit, `nvidia-ctk runtime configure --runtime=containerd`, and a restart of containerd.",
            _LABEL,
        ),
        "[NVIDIA Container Toolkit](https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html)",
    ),
)
INTRO = """# Kubernetes platforms

How does the exporter reach the GPUs on your platform? The chart has a preset for each of these, a file of values to which you
add your own:

```
helm install gpu-exporter helm/gpu-exporter --namespace gpu-monitoring --values helm/gpu-exporter/presets/gke.yaml \\
  --set image.repository=registry.example/gpu-exporter
```

If `gpu-exporter doctor` in a pod finds no GPU, it says what is missing. What was tried and what was only read is in the
[last table](#what-was-tried). Reports from a platform are welcome.

"""
TRIED = """## What was tried?

| what | on which platforms |
| --- | --- |
| The values are rendered, and each object meets the schemas of Kubernetes 1.28 to 1.37 | all; `make test-all` |
| An API server accepts each object, and admits a pod of each with its service account, runtime class and priority class | all, on Kubernetes 1.34, with `python -m tests.soak.install`; on OpenShift without its own admission |
| With IPv6 alone: the API server accepts the objects. A cluster without IPv4 was not tried | all |
| The exporter finds GPUs on a node | **none of them**: everything about nodes is read in the sources above, not tried |
"""


def preset(platform: Platform) -> str:
    """Return the preset of a platform: values.yaml with what it needs alone."""
    about = textwrap.fill(
        f"{platform.title}. {platform.why} See docs/kubernetes-platforms.md.",
        WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
    )
    values = yaml.safe_dump(dict(platform.values), sort_keys=False, width=WIDTH)
    return banner.comment(sys.modules[__name__]) + f"{about}\n{values}"


def path(platform: Platform) -> str:
    """Return the name of the preset's file."""
    return f"{FOLDER}/presets/{platform.name}.yaml"


def page() -> str:
    """Return docs/kubernetes-platforms.md."""
    listed = table(
        ("platform", "preset", "access to the GPUs"),
        (
            (each.title, f"[{each.name}](../{path(each)})", f"`gpuAccess.mode: {each.values['gpuAccess']['mode']}`")
            for each in PLATFORMS
        ),
    )
    return banner.markdown(sys.modules[__name__]) + INTRO + listed + "\n" + "".join(map(_section, PLATFORMS)) + TRIED


def _section(platform: Platform) -> str:
    values = yaml.safe_dump(dict(platform.values), sort_keys=False, width=WIDTH)
    return (
        f"## {platform.title}\n\n{platform.why}\n\n```yaml\n{values}```\n\n"
        f"{bullets(platform.needs)}\nRead in: {platform.source}.\n\n"
    )
