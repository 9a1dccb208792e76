"""Which programs use a GPU beside an active check, and whose they are."""

from __future__ import annotations

import pwd
from collections import defaultdict
from collections.abc import Iterator, Mapping

from gpu_exporter.active_checks.load import readings
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host import procfs
from gpu_exporter.host.files import HostFiles
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.owners.cgroup import process_owner

# What must be read for `users`.
ROWS = (m.PROCESSES, m.PROCESS_MEMORY, m.FB_USED)
# Memory in use (MiB) from which a GPU without visible processes is in use; the driver alone needs less.
HELD_MEMORY = 1000.0
HIDDEN = "not visible here (another container or PID namespace)"


def users(snapshot: Snapshot, files: HostFiles) -> dict[int, tuple[str, ...]]:
    """Return the programs that use each GPU, in words, by its index; GPUs that nothing uses are left out."""
    named: dict[int, dict[int, str]] = defaultdict(dict)
    for series, _ in snapshot.samples:
        if series.metric is m.PROCESS_MEMORY and series.gpu is not None:
            labels = dict(series.labels)
            named[series.gpu.index][int(labels["pid"])] = labels["process"]
    found = {index: tuple(_of_gpu(values, named[index], files)) for index, values in readings(snapshot).items()}
    return {index: programs for index, programs in found.items() if programs}


def _of_gpu(values: Mapping[Metric, float], named: Mapping[int, str], files: HostFiles) -> Iterator[str]:
    for pid, name in sorted(named.items()):
        yield f"process {pid} ({printable(name, 40)}){_owner(pid, files)}"
    hidden = int(values.get(m.PROCESSES, 0)) - len(named)
    memory = values.get(m.FB_USED, 0.0)
    if hidden > 0:
        yield f"{hidden} {'process that is' if hidden == 1 else 'processes that are'} {HIDDEN}"
    elif not named and memory >= HELD_MEMORY:
        yield f"a program that is {HIDDEN}, with {memory * 2**20 / 1e9:.1f} GB of its memory"


def _owner(pid: int, files: HostFiles) -> str:
    """Return of whom a process is: user, and pod, job or container by its cgroup."""
    owner = process_owner(files.process(f"{pid}/cgroup").decode("utf-8", "replace"))
    parts = [f"user {user}" if (user := _user(pid, files)) else ""]
    if owner:
        parts += [f"job {owner.job}" if owner.job else f"pod UID {owner.pod}" if owner.pod else ""]
        parts += [f"container {owner.container[:12]}" if owner.container else ""]
    text = ", ".join(filter(None, parts))
    return f" of {text}" if text else ""


def _user(pid: int, files: HostFiles) -> str:
    status = procfs.status(files.process(f"{pid}/status"))
    if status is None:
        return ""
    try:
        return pwd.getpwuid(status.uid).pw_name
    except KeyError:
        return str(status.uid)
