"""What a diagnosis of several nodes says besides its GPUs, as text, JSON and HTML: notes, ranks and links. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpu_exporter.diagnosis.job_report import aligned, rank_lines, rank_table, ranks_as_json
from gpu_exporter.diagnosis.live_jobs import LiveJob, NodeLinks, live_jobs, node_links
from gpu_exporter.diagnosis.result import DiagnosisResult
from gpu_exporter.diagnosis.scrape import Measured, as_scraped
from gpu_exporter.diagnosis.several_nodes import Operation, SeveralNodes
from gpu_exporter.reports.html_document import safe_text, table
from gpu_exporter.reports.numbers import measured as amount
from gpu_exporter.reports.numbers import percent

NO_LINKS = "Nothing is known of the links between these nodes: their exporters see no network cards (docs/fabric.md)."
NO_JOBS = (
    "The exporters do not say which GPUs belong to one job (docs/attribution.md), so ranks are not compared; with"
    " --one-job, all of these GPUs are ranks of one."
)


class NodesReport:
    """The ranks and links of a result of `several` nodes."""

    def __init__(self, result: DiagnosisResult, several: SeveralNodes, measured: Measured = as_scraped) -> None:
        self._jobs = live_jobs(result.diagnoses, result.window, result.seconds, measured)
        nodes = {node for job in self._jobs if len(job.nodes) > 1 for node in job.nodes}
        of_nodes = [each for each in result.diagnoses if each.identity.node in nodes]
        links, operation = node_links(of_nodes, result.window, several.collectives, measured)
        self._links: list[NodeLinks] = links if any(each.is_known for each in links) else []
        self._operation: Operation | None = operation
        self._problem = NO_JOBS if not self._jobs else NO_LINKS if nodes and not self._links else ""

    def lines(self) -> Iterator[str]:
        """Yield the text."""
        for job in self._jobs:
            yield from rank_lines(_title(job), job.ranks)
        if self._links:
            yield "Links between the nodes, means of their GPUs:"
            yield from aligned([self._head(), *map(_row, self._links)])
        if self._problem:
            yield self._problem

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON: bytes per second, and what is unknown is null."""
        return {
            "jobs": [{"job": job.name or None, "ranks": ranks_as_json(job.ranks)} for job in self._jobs],
            "links": [
                {
                    "node": each.node,
                    "sent": each.sent,
                    "received": each.received,
                    "retransmits": each.retransmits,
                    "rate_ratio": each.rate_share,
                    "collectives": each.collectives,
                    "findings": list(each.findings),
                }
                for each in self._links
            ],
            **({"collectives": list(self._operation)} if self._operation else {}),
        }

    def html(self) -> Iterator[str]:
        """Yield a part of a page."""
        for job in self._jobs:
            yield f"<h2>{safe_text(_title(job))}</h2>\n"
            yield from rank_table(job.ranks, _title(job))
        if self._links:
            yield "<h2>Links between the nodes</h2>\n<p>Means of the GPUs of each node.</p>\n"
            yield from table(self._head(), [list(map(safe_text, _row(each))) for each in self._links], "Links")
        if self._problem:
            yield f"<p>{safe_text(self._problem)}</p>\n"

    def _head(self) -> Sequence[str]:
        bandwidth = f"NCCL {' '.join(self._operation)}" if self._operation else "NCCL"
        return ("node", "sent", "received", "retransmits", "slowest link", bandwidth, "findings")


def _title(job: LiveJob) -> str:
    return f"Ranks of job {job.name}" if job.name else "Ranks of the job"


def _row(links: NodeLinks) -> Sequence[str]:
    def of(value: float | None, unit: str) -> str:
        return "-" if value is None else amount(value, unit)

    return (
        links.node,
        of(links.sent, "bytes_per_second"),
        of(links.received, "bytes_per_second"),
        of(links.retransmits, "per_second"),
        "-" if links.rate_share is None else f"{percent(links.rate_share)} of its rate",
        of(links.collectives, "bytes_per_second"),
        ", ".join(links.findings),
    )
