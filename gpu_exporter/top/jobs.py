"""The jobs with several GPUs: what they use and lose, and the worst finding on their GPUs. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gpu_exporter.diagnosis.diagnose import rank_of
from gpu_exporter.diagnosis.headline import STYLES
from gpu_exporter.diagnosis.loss import lost
from gpu_exporter.diagnosis.words import named
from gpu_exporter.reports.numbers import ABSENT, narrow
from gpu_exporter.top.lines import Glyphs, Line, Span, bar, cut, fit
from gpu_exporter.top.state import GpuRow

GPUS, SM, POWER, LOST = 14, 12, 8, 12
# Not "lost GPUs", which are those that do not answer.
TIME_LOST = "TIME LOST"
# The narrowest columns of the job and its finding.
LEAST_NAME, LEAST_FINDING = 12, 16
MOST_NAME = 48


def jobs(rows: Sequence[GpuRow]) -> dict[str, list[GpuRow]]:
    """Return the GPUs of each job that has several, the job that loses most GPU time first."""
    found: dict[str, list[GpuRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.node, len(row.index), row.index, row.key)):
        if row.diagnosis and row.diagnosis.identity.job:
            found[row.diagnosis.identity.job].append(row)
    several = {name: ranks for name, ranks in found.items() if len(ranks) > 1}
    return dict(sorted(several.items(), key=lambda job: (-round(_lost(job[1]), 1), job[0])))


def job_lines(rows: Sequence[GpuRow], width: int, marks: Glyphs) -> list[Line]:
    """Return a heading and a line for each job; nothing without jobs."""
    found = jobs(rows)
    if not found:
        return []
    left = width - 2 - (GPUS + SM + POWER + LOST + 5)
    name_width = min(max(LEAST_NAME, *map(len, found)), max(LEAST_NAME, left - LEAST_FINDING), MOST_NAME)
    titles = ((name_width, "JOB"), (GPUS, "GPUS"), (SM, "SM"), (POWER, "POWER"), (LOST, TIME_LOST))
    head = " ".join(fit(title, size, right=title in ("POWER", TIME_LOST)) for size, title in titles)
    lines: list[Line] = [cut((Span(f"  {head} FINDING", "head"),), width)]
    return lines + [cut(_line(name, ranks, name_width, marks), width) for name, ranks in found.items()]


def _line(name: str, ranks: Sequence[GpuRow], width: int, marks: Glyphs) -> Line:
    busy, watts = ([row.values[key] for row in ranks if key in row.values] for key in ("sm_active", "power"))
    mean = sum(busy) / len(busy) if busy else None
    lost_gpus, whole = _lost(ranks), sum(row.diagnosis.identity.share for row in ranks if row.diagnosis)
    is_known = any(row.diagnosis and row.diagnosis.shares for row in ranks)
    share = f"{lost_gpus:.1f} of {round(whole, 1):g}" if is_known else ABSENT
    gpus = named([(row.index, row.key.instance) for row in ranks]).partition(" ")[2]
    return (
        Span(f"  {fit(name, width)} ", "title"),
        Span(f"{fit(gpus, GPUS)} "),
        Span(f"{bar(mean, SM - 6, marks)}{narrow(mean, 'ratio'):>6} "),
        Span(f"{fit(narrow(sum(watts) if watts else None, 'watts'), POWER, right=True)} "),
        Span(f"{fit(share, LOST, right=True)} ", "warn" if lost_gpus >= 0.1 * whole else ""),
        _finding(ranks),
    )


def _lost(ranks: Sequence[GpuRow]) -> float:
    return sum(
        row.diagnosis.identity.share if row.down else lost(row.diagnosis.gpu_time) for row in ranks if row.diagnosis
    )


def _finding(ranks: Sequence[GpuRow]) -> Span:
    """Return the most severe finding, with the GPUs that have it."""
    diagnosed = [(row, row.diagnosis) for row in ranks if row.diagnosis]
    found = [(row, match.mode, rank_of(match, each.shares)) for row, each in diagnosed for match in each.matches]
    if not found:
        return Span(ABSENT, "dim")
    worst = min(found, key=lambda of: of[2])[1]
    hit = [(row.index, row.key.instance) for row, mode, _ in found if mode.name == worst.name]
    return Span(f"{worst.name} on {named(hit)}", STYLES[worst.severity.value])
