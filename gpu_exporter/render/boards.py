"""The dashboards and their uids, which are promises: bookmarks and alerts link to them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode

DOCS = "https://github.com/gpu-exporter/gpu-exporter/blob/main/docs/runbooks"


@dataclass(frozen=True, slots=True)
class Board:
    """`chosen` are the variables that narrow it down, in order: labels of the recorded signals. `shows` are domains."""

    name: str
    title: str
    description: str
    chosen: tuple[str, ...]
    shows: tuple[Domain, ...] = ()

    @property
    def uid(self) -> str:
        return f"gpu-{self.name}"

    def link(self, **values: str) -> str:
        """Its address with some variables set; a value is what Grafana or a template of Prometheus fills in."""
        found = "&".join(f"var-{label}={value}" for label, value in values.items() if label in self.chosen)
        return f"/d/{self.uid}?{found}" if found else f"/d/{self.uid}"


FLEET = Board("fleet", "GPU / Fleet", "Is anything wrong, and who wastes?", ("cluster",))
NODE = Board("node", "GPU / Node", "The GPUs of a node side by side.", ("cluster", "node"))
GPU = Board(
    "gpu",
    "GPU / GPU",
    "Is it on fire? Is it working? Why is it slow?",
    ("cluster", "node", "gpu"),
    (Domain.HEALTH, Domain.BOTTLENECK),
)
JOB = Board(
    "job",
    "GPU / Job",
    "The ranks of a job side by side: who waits for whom?",
    ("cluster", "namespace", "workload"),
    (Domain.DISTRIBUTED,),
)
COST = Board(
    "cost",
    "GPU / Cost",
    "What GPUs cost, and what of it is paid for nothing.",
    ("cluster", "namespace", "workload"),
    (Domain.COST,),
)
BOARDS = (FLEET, NODE, GPU, JOB, COST)


def board_of(domain: Domain) -> Board:
    """The board with a row for this domain."""
    (found,) = (board for board in BOARDS if domain in board.shows)
    return found


def runbook(mode: FailureMode) -> str:
    """The address of its runbook."""
    return f"{DOCS}/{quote(page(mode))}.md"


def page(mode: FailureMode) -> str:
    """The name of its runbook's file, without suffix."""
    return mode.name.lower()
