"""The dashboards and their uids. The uids must not change: bookmarks and alerts link to them."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from gpu_exporter.catalogue import project
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode

# A variable's value for all: not .+, because it must also match series without a cluster or a job label.
EVERY = ".*"


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. `chosen` are its variables in order, which are labels of the recorded signals.

    `shows` are the domains of failure modes that it has a row for. `single` are the variables that have one value at
    first instead of all.
    """

    name: str
    title: str
    description: str
    chosen: tuple[str, ...]
    shows: tuple[Domain, ...] = ()
    single: tuple[str, ...] = ()

    @property
    def uid(self) -> str:
        return f"gpu-{self.name}"

    def link(self, **values: str) -> str:
        """Return its address with these variables set. A value may be a template of Grafana or Prometheus."""
        found = "&".join(f"var-{label}={value}" for label, value in values.items() if label in self.chosen)
        return f"/d/{self.uid}?{found}" if found else f"/d/{self.uid}"


FLEET = Board(
    "fleet", "GPU / Fleet", "Is anything wrong, and who wastes GPU time?", ("cluster",), (Domain.REMEDIATION,)
)
NODE = Board(
    "node", "GPU / Node", "The GPUs of a node side by side.", ("cluster", "node"), (Domain.NETWORK,), ("node",)
)
GPU = Board(
    "gpu",
    "GPU / GPU",
    "Is the GPU healthy? Is it working? What limits it?",
    ("cluster", "node", "gpu"),
    (Domain.HEALTH, Domain.BOTTLENECK),
    single=("node", "gpu"),
)
JOB = Board(
    "job",
    "GPU / Job",
    "The ranks of a job side by side: which rank holds up the job?",
    ("cluster", "namespace", "workload"),
    (Domain.DISTRIBUTED,),
    single=("workload",),
)
SERVER = Board(
    "server",
    "GPU / Server",
    "Inference servers: requests, latency, batch size, and what limits their GPUs.",
    ("cluster", "namespace", "pod"),
    single=("pod",),
)
COST = Board(
    "cost",
    "GPU / Cost",
    "What the GPUs cost, and how much of it is wasted.",
    ("cluster", "namespace", "workload"),
    (Domain.COST,),
)
# All runbooks, so that an alert links to the one of its own version, also without access to the project's docs.
RUNBOOKS = Board("runbooks", "GPU / Runbooks", "What to do about each alert.", ())
BOARDS = (FLEET, NODE, GPU, JOB, SERVER, COST, RUNBOOKS)


def board_of(mode: FailureMode) -> Board:
    """Return the dashboard with the panel of a mode: that of its domain, or Fleet if it is found in alerts of nodes."""
    (found,) = (board for board in BOARDS if mode.domain in board.shows)
    return FLEET if mode.requires == "alerts" else found


def runbook(mode: FailureMode) -> str:
    """Return the address of its runbook: in the project's docs if they are published, otherwise in Grafana."""
    return project.page(f"runbooks/{mode.page}.md") or panel_link(mode.page)


def panel_link(page: str) -> str:
    """Return the address of a runbook on its dashboard."""
    return f"{RUNBOOKS.link()}?viewPanel={panel_id(page)}"


def panel_id(page: str) -> int:
    """Return the id of the panel with a runbook. It depends on its name alone, so that links survive new versions."""
    return crc32(page.encode()) % 1_000_000
