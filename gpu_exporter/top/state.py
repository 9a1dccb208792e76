"""What the live view shows: each GPU with its values, class, findings, owner and processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.model.verdict import Health

HEALTHY, UNKNOWN, DEGRADED, UNHEALTHY = (health.value for health in Health)
History = Sequence["float | None"]


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process on a GPU: device memory in bytes, the share of time in which its kernels ran, and its command."""

    pid: str
    memory: float | None = None
    sm: float | None = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU or MIG instance at the last scrape. All texts are printable.

    `down` is why it does not answer, `gone` for how many seconds it has not been seen. A value that could not be read
    is absent, and None in the history. `class_since` is when its class changed last (unix seconds). `explained` says of
    findings, by their names, what explains them, `hit_by` whose incident hits the GPU.
    """

    key: DeviceKey
    index: str
    model: str = ""
    node: str = ""
    down: str = ""
    gone: float = 0.0
    health: str = UNKNOWN
    reasons: tuple[str, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    history: Mapping[str, History] = field(default_factory=dict)
    owner: str = ""
    processes: tuple[ProcessRow, ...] = ()
    diagnosis: Diagnosis | None = None
    class_since: float | None = None
    explained: Mapping[str, str] = field(default_factory=dict)
    hit_by: str = ""

    @property
    def name(self) -> str:
        """The index, with the MIG instance if it is one."""
        return f"{self.index}/{self.key.instance}" if self.key.instance else self.index

    @property
    def class_name(self) -> str:
        """The identifier of its class; empty if it is unknown."""
        return self.diagnosis.class_name if self.diagnosis else ""


@dataclass(frozen=True, slots=True)
class View:
    """All GPUs at one moment. `at` is the time of the last scrape (unix seconds), 0 before the first one.

    `origin` names the source, `banner` says that the values are replayed or simulated, and `problem` why there are no
    newer ones. `interval` is the time between two collections. `since` is the time of the first diagnosis, 0 before it:
    what was found then may have begun before. `incidents` are the most urgent ones, as in JSON. `runbooks` is where the
    exporter serves its runbooks; empty if it serves none.
    """

    at: float = 0.0
    origin: str = ""
    banner: str = ""
    problem: str = ""
    missing: int = 0
    interval: float = 1.0
    since: float = 0.0
    gpus: tuple[GpuRow, ...] = ()
    incidents: Sequence[Mapping[str, Any]] = ()
    runbooks: str = ""
