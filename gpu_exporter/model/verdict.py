"""The verdict on one GPU: whether it is healthy, and if not, why and what repairs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Metric


class Action(Enum):
    """What repairs a GPU, in NVML's words. A later one is more drastic."""

    NONE = "none"
    RESTART_APP = "restart_app"
    GPU_RESET = "gpu_reset"
    NODE_REBOOT = "node_reboot"
    DRAIN = "drain"
    REPLACE = "replace"

    @property
    def words(self) -> str:
        """What to do, in words; empty for NONE."""
        return _ACTIONS[self]


def most_drastic(actions: Iterable[Action], default: Action = Action.NONE) -> Action:
    """Return the most drastic of some actions; `default` if there are none."""
    return max(actions, key=list(Action).index, default=default)


_ACTIONS = {
    Action.NONE: "",
    Action.RESTART_APP: "restart the application",
    Action.GPU_RESET: "reset the GPU",
    Action.NODE_REBOOT: "drain and reboot the node",
    Action.DRAIN: "drain the node",
    Action.REPLACE: "replace the GPU",
}


class Health(Enum):
    """The states of a GPU; a later one is worse.

    UNKNOWN: no problem was seen, but something that this GPU can report could not be read. DEGRADED: running jobs may
    continue, no new one should start. UNHEALTHY: act now.
    """

    HEALTHY = "healthy"
    UNKNOWN = "unknown"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"

    def __lt__(self, other: Health) -> bool:
        order = list(Health)
        return order.index(self) < order.index(other)


@dataclass(frozen=True, slots=True)
class Problem:
    """A value that no healthy GPU has."""

    metric: Metric
    value: float
    words: str
    action: Action
    reason: str
    health: Health = Health.UNHEALTHY


@dataclass(frozen=True, slots=True)
class Unknown:
    """What could not be read, and why. `harmless`: this hardware or driver does not have it at all."""

    what: str
    why: str
    harmless: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The problems of one GPU, and what could not be read."""

    gpu: Gpu
    problems: tuple[Problem, ...] = ()
    unknown: tuple[Unknown, ...] = ()

    @property
    def health(self) -> Health:
        if self.problems:
            return max(problem.health for problem in self.problems)
        return Health.HEALTHY if all(unknown.harmless for unknown in self.unknown) else Health.UNKNOWN

    @property
    def words(self) -> str:
        """What is wrong with the GPU; empty without problems."""
        return "; ".join(problem.words for problem in self.problems)

    @property
    def action(self) -> Action:
        """The most drastic action that its problems ask for."""
        return most_drastic(problem.action for problem in self.problems)
