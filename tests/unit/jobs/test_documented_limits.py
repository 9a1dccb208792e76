"""docs/jobs.md names the limits of the job socket."""

from __future__ import annotations

import pytest

from gpu_exporter.jobs.connections import (
    FIRST_MESSAGE_SECONDS,
    IDLE_SECONDS,
    MOST_CONNECTIONS,
    MOST_OF_PROCESS,
    MOST_OF_USER,
    NEW_SECONDS,
)
from gpu_exporter.jobs.store import (
    OF_NODE,
    OF_NODE_UNVERIFIED,
    OF_PROCESS,
    OF_USER,
    OF_USER_UNVERIFIED,
    Use,
)
from gpu_exporter.model.job_message import LONGEST_PHASE, MOST_PHASES
from tests import ROOT


def row(name: str, use: Use) -> str:
    """Return a row of the table of limits."""
    return f"| {name} | {use.jobs} | {use.ranks} | {use.series} | {use.bytes / 1024:.0f} KiB |"


@pytest.mark.drift
@pytest.mark.parametrize(
    "text",
    [
        row("node", OF_NODE),
        row("of which not verified", OF_NODE_UNVERIFIED),
        row("user", OF_USER),
        row("of a user, not verified", OF_USER_UNVERIFIED),
        f"One process has at most {OF_PROCESS.ranks} ranks.",
        f"share {MOST_PHASES} names of phases of at most {LONGEST_PHASE} characters",
        f"Of {MOST_CONNECTIONS} connections, one user has at most {MOST_OF_USER} and one process {MOST_OF_PROCESS}.",
        f"A connection that sends no valid message within {FIRST_MESSAGE_SECONDS:.0f} s is closed.",
        f"one that has been silent for {IDLE_SECONDS:.0f} s gives way, or for {NEW_SECONDS:.0f} s if it never sent",
    ],
)
def test_docs_name_each_limit(text: str) -> None:
    docs = " ".join((ROOT / "docs" / "jobs.md").read_text().split())
    assert text in docs, f"docs/jobs.md lacks `{text}`; fix: edit docs/jobs.md"
