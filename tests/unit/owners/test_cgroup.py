"""Cgroups of real nodes: each PID gets its owner, and a path that only looks similar gets none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_exporter.host.procfs import TICKS
from gpu_exporter.owners.cgroup import ProcessOwner, process_owner
from gpu_exporter.owners.processes import LARGEST_FILE, ProcessLookup

UID = "01234567-89ab-4cde-8f01-23456789abcd"
OTHER = "f1234567-89ab-4cde-8f01-23456789abcd"
BARE, SLICE = UID.replace("-", ""), UID.replace("-", "_")
CID, OUTER = "c" * 64, "d" * 64
POD = ProcessOwner(pod=BARE, container=CID)
SYSTEMD = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice"
KIND = (
    "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice"
    f"/kubelet-kubepods-besteffort-pod{SLICE}.slice"
)

V1 = "12:pids:{0}\n11:hugetlb:{0}\n10:memory:{0}\n9:cpu,cpuacct:{0}\n1:name=systemd:{0}\n0::/\n"
SLURM_V1 = """11:memory:/slurm/uid_1000/job_123/step_0/task_0
10:cpuset:/slurm/uid_1000/job_123/step_0
9:devices:/slurm/uid_1000/job_123
8:pids:/system.slice/slurmd.service
1:name=systemd:/system.slice/slurmd.service
"""

TREES = {
    "v2, cgroupfs, guaranteed": (f"0::/kubepods/pod{UID}/{CID}\n", POD),
    "v2, cgroupfs, burstable": (f"0::/kubepods/burstable/pod{UID}/{CID}\n", POD),
    "v2, systemd, containerd": (f"0::{SYSTEMD}/cri-containerd-{CID}.scope\n", POD),
    "v2, systemd, guaranteed, cri-o": (f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{CID}.scope\n", POD),
    "v2, systemd, cri-o, crun": (f"0::{SYSTEMD}/crio-{CID}.scope/container\n", POD),
    "v2, systemd, docker": (f"0::{SYSTEMD}/docker-{CID}.scope\n", POD),
    "v2, its own cgroups inside": (f"0::{SYSTEMD}/cri-containerd-{CID}.scope/init.scope\n", POD),
    "v2, containerd with its own driver": (
        f"0::/system.slice/containerd.service/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{CID}\n",
        POD,
    ),
    # An unprivileged container has its own cgroup namespace, which hides the common ancestors.
    "v2, from a pod of its class": (f"0::/../../pod{UID}/{CID}\n", POD),
    "v2, from a pod of another class": (f"0::/../../../burstable/pod{UID}/{CID}\n", POD),
    "v2, from beside kubepods": (f"0::/../../../kubepods/burstable/pod{UID}/{CID}\n", POD),
    "v2, systemd, from a pod of its class": (
        f"0::/../../kubepods-burstable-pod{SLICE}.slice/cri-containerd-{CID}.scope\n",
        POD,
    ),
    "v2, systemd, from a pod of another class": (
        f"0::/../../../kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{CID}.scope/x\n",
        POD,
    ),
    "v2, systemd, guaranteed, from a pod of another class": (
        f"0::/../../../kubepods-pod{SLICE}.slice/crio-{CID}.scope/container\n",
        POD,
    ),
    "v2, systemd, from a container of docker": (f"0::/../..{SYSTEMD}/cri-containerd-{CID}.scope\n", POD),
    "v2, containerd with its own driver, from a pod": (
        f"0::/../kubepods-burstable-pod{SLICE}.slice:cri-containerd:{CID}\n",
        POD,
    ),
    "kind, v2, from a pod": (
        f"0::/../../../kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{SLICE}.slice"
        f"/cri-containerd-{CID}.scope\n",
        POD,
    ),
    "docker, v2, from another container": (
        f"0::/../docker-{CID}.scope\n",
        ProcessOwner(container=CID, runtime="docker"),
    ),
    "podman, from another container": (
        f"0::/../../libpod-{CID}.scope/container\n",
        ProcessOwner(container=CID, runtime="podman"),
    ),
    "slurm, v2, from a container of docker": (
        "0::/../slurmstepd.scope/job_123/step_0/user/task_0\n",
        ProcessOwner(job="123", step="0"),
    ),
    "v2, static pod": (f"0::/kubepods/burstable/pod{BARE}/{CID}\n", POD),
    "v2, static pod, systemd": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{BARE}.slice/cri-containerd-{CID}.scope\n",
        POD,
    ),
    "v1, cgroupfs": (V1.format(f"/kubepods/besteffort/pod{UID}/{CID}"), POD),
    "v1, systemd": (V1.format(f"{SYSTEMD}/cri-containerd-{CID}.scope"), POD),
    "kind, v2, systemd": (f"0::/system.slice/docker-{OUTER}.scope{KIND}/cri-containerd-{CID}.scope\n", POD),
    "kind, v2, inside": (f"0::{KIND}/cri-containerd-{CID}.scope\n", POD),
    "kind, v1, cgroupfs": (V1.format(f"/docker/{OUTER}/kubelet/kubepods/burstable/pod{UID}/{CID}"), POD),
    "kind on podman": (f"0::/machine.slice/libpod-{OUTER}.scope/container{KIND}/cri-containerd-{CID}.scope\n", POD),
    "k3d": (f"0::/docker/{OUTER}/kubepods/besteffort/pod{UID}/{CID}\n", POD),
    "docker, v2": (f"0::/system.slice/docker-{CID}.scope\n", ProcessOwner(container=CID, runtime="docker")),
    "docker, v1": (V1.format(f"/docker/{CID}"), ProcessOwner(container=CID, runtime="docker")),
    "podman": (f"0::/machine.slice/libpod-{CID}.scope/container\n", ProcessOwner(container=CID, runtime="podman")),
    "podman, rootless": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{CID}.scope/container\n",
        ProcessOwner(container=CID, runtime="podman"),
    ),
    "podman, cgroupfs": (f"0::/libpod_parent/libpod-{CID}\n", ProcessOwner(container=CID, runtime="podman")),
    "nerdctl": (f"0::/system.slice/nerdctl-{CID}.scope\n", ProcessOwner(container=CID, runtime="containerd")),
    "slurm, v1": (SLURM_V1, ProcessOwner(job="123", step="0", user="1000")),
    "slurm, v1, a node name": ("9:memory:/slurm_gpu-7/uid_1000/job_9\n", ProcessOwner(job="9", user="1000")),
    "slurm, v2": (
        "0::/system.slice/slurmstepd.scope/job_123/step_batch/user/task_0\n",
        ProcessOwner(job="123", step="batch"),
    ),
    "slurm, v2, several slurmd": (
        "0::/system.slice/gpu-7_slurmstepd.scope/job_123/step_4/user/task_special\n",
        ProcessOwner(job="123", step="4"),
    ),
}
LOOK_ALIKE = {
    "nothing": "",
    "the root": "0::/\n",
    "a login": "0::/user.slice/user-1000.slice/session-3.scope\n",
    "a service": "0::/system.slice/nvidia-persistenced.service\n",
    "kubelet itself": "0::/system.slice/kubelet.service\n",
    "a pod without a container": f"0::/kubepods/burstable/pod{UID}\n",
    "a user's own kubepods": f"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/{CID}\n",
    "kubepods below a service": f"0::/system.slice/evil.service{SYSTEMD}/cri-containerd-{CID}.scope\n",
    "a uid too short": f"0::/kubepods/burstable/pod{UID[:-1]}/{CID}\n",
    "a uid too long": f"0::/kubepods/burstable/pod{UID}0/{CID}\n",
    "a uid of two kinds": f"0::/kubepods/burstable/pod{UID.replace('-', '_', 1)}/{CID}\n",
    "a uid that is no hex": f"0::/kubepods/burstable/pod{UID.replace('0', 'g')}/{CID}\n",
    "a container id too short": f"0::/kubepods/burstable/pod{UID}/{CID[:-1]}\n",
    "a slice in the wrong parent": f"0::/kubepods.slice/kubepods-pod{SLICE}.slice.d/cri-containerd-{CID}.scope\n",
    "classes that differ": (
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{CID}.scope\n"
    ),
    "a parent that is missing": f"0::/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/crio-{CID}.scope\n",
    "a pod at the root": f"0::/pod{UID}/{CID}\n",
    "classes that differ, from a pod": (
        f"0::/../../../kubepods-besteffort.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{CID}.scope\n"
    ),
    "another container of our own pod": f"0::/../cri-containerd-{CID}.scope\n",
    "another container of our own pod, cgroupfs": f"0::/../{CID}\n",
    "a user's own kubepods, from a pod": (
        f"0::/../../../../user.slice/user-1000.slice/user@1000.service/kubepods-pod{SLICE}.slice/crio-{CID}.scope\n"
    ),
    "kubepods below a service, from a pod": f"0::/../../../../system.slice/evil.service/pod{UID}/{CID}\n",
    "the container's monitor": f"0::{SYSTEMD}/crio-conmon-{CID}.scope\n",
    "two pods": f"3:cpu:/kubepods/pod{UID}/{CID}\n2:memory:/kubepods/pod{OTHER}/{CID}\n",
    "two jobs": "3:cpu:/slurm/uid_0/job_1/step_0\n2:memory:/slurm/uid_0/job_2/step_0\n",
    "a pod and a job": f"3:cpu:/kubepods/pod{UID}/{CID}\n2:memory:/slurm/uid_0/job_2\n",
    "a job below a service": "0::/system.slice/evil.service/slurmstepd.scope/job_1/step_0\n",
    "a job that is no number": "0::/system.slice/slurmstepd.scope/job_1x/step_0\n",
    "slurmd": "0::/system.slice/slurmd.service\n",
    "no colons": f"/kubepods/pod{UID}/{CID}\n",
    "a relative path": f"0::kubepods/pod{UID}/{CID}\n",
    "another rootless user": f"0::/user.slice/user-1.slice/user@2.service/user.slice/libpod-{CID}.scope\n",
    "a newline of its own": f"0::/\nkubepods/pod{UID}/{CID}\n",
    "digits that are none": "0::/system.slice/slurmstepd.scope/job_\u0661\u0662/step_0\n",
}


@pytest.mark.parametrize(("text", "expected"), TREES.values(), ids=TREES)
def test_cgroup_has_this_owner(text: str, expected: ProcessOwner) -> None:
    """All forms of cgroup drivers and runtimes."""
    assert process_owner(text) == expected


@pytest.mark.parametrize("text", LOOK_ALIKE.values(), ids=LOOK_ALIKE)
def test_cgroup_has_no_owner(text: str) -> None:
    """Similar paths, and others."""
    assert process_owner(text) is None


# --- the files -----------------------------------------------------------------------------------------------------

HERE = ProcessOwner(pod=BARE, container=CID)
CGROUP = f"0::/kubepods/burstable/pod{UID}/{CID}\n"


def tree(procfs: Path, pid: int, cgroup: str | bytes = CGROUP, *, started: int = 100, name: str = "python3") -> Path:
    """Add a process to a procfs."""
    directory = procfs / str(pid)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "stat").write_text(f"{pid} ({name}) S 1 {'0 ' * 17}{started} 4096 12\n")
    (directory / "cgroup").write_bytes(cgroup.encode() if isinstance(cgroup, str) else cgroup)
    return directory


def looked_up(procfs: Path, *pids: int, at: float = 60.0) -> dict[int, ProcessOwner]:
    """Return the owners of PIDs that the driver reported `at` seconds after the boot."""
    lookup = ProcessLookup(procfs)
    lookup.wanted = dict.fromkeys(pids, at)
    return dict(lookup.ask())


def test_a_process_is_found(tmp_path: Path) -> None:
    """Also with a strange name."""
    for pid, name in enumerate(("python3", "a b", ")", "(x) S 1 2", "é"), 1):
        tree(tmp_path, pid, name=name)
    assert looked_up(tmp_path, 1, 2, 3, 4, 5, 6) == dict.fromkeys(range(1, 6), HERE)


def test_reused_pid_has_no_owner(tmp_path: Path) -> None:
    """A process that started after the driver reported the PID is another one."""
    tree(tmp_path, 7, started=61 * TICKS)
    assert looked_up(tmp_path, 7) == {}


def test_a_reused_pid_is_looked_up_again(tmp_path: Path) -> None:
    """The cached owner belongs to PID and start time."""
    lookup = ProcessLookup(tmp_path)
    lookup.wanted = {7: 60.0}
    tree(tmp_path, 7)
    assert lookup.ask() == {7: HERE}
    tree(tmp_path, 7, "0::/user.slice\n", started=200)
    assert lookup.ask() == {}
    tree(tmp_path, 7, CGROUP.replace(UID, OTHER), started=300)
    assert lookup.ask() == {7: ProcessOwner(pod=OTHER.replace("-", ""), container=CID)}


def test_strange_files_have_no_owner(tmp_path: Path) -> None:
    """Huge, not UTF-8, links, pipes, directories, empty: no error, no owner, and no wait."""
    tree(tmp_path, 1, CGROUP + "x" * LARGEST_FILE)
    tree(tmp_path, 2, b"0::/kubepods/burstable/pod" + UID.encode()[:-1] + b"\xe9/" + CID.encode())
    (tree(tmp_path, 3) / "cgroup").rename(tmp_path / "elsewhere")
    (tmp_path / "3/cgroup").symlink_to(tmp_path / "elsewhere")
    (tree(tmp_path, 4) / "cgroup").unlink()
    os.mkfifo(tmp_path / "4/cgroup")
    (tree(tmp_path, 5) / "cgroup").unlink()
    (tmp_path / "5/cgroup").mkdir()
    tree(tmp_path, 6, "")
    (tree(tmp_path, 7) / "stat").write_text("7 (x) S 1\n")
    (tree(tmp_path, 8) / "stat").write_text("x" * (LARGEST_FILE + 1))
    tree(tmp_path, 9, CGROUP.encode() + b"\xff\xfe\n")
    assert looked_up(tmp_path, *range(1, 10)) == {9: HERE}  # malformed lines are ignored


def test_a_process_that_is_a_link(tmp_path: Path) -> None:
    """A real procfs has no links."""
    tree(tmp_path / "far", 1)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/1").symlink_to(tmp_path / "far/1")
    assert looked_up(tmp_path / "proc", 1) == {}
