"""Which rank of a job each file is, and whether the files are of one job at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.model import Distributed

# Clocks of hosts may disagree by minutes; profiles of one run do not begin hours apart.
LONGEST_APART_NS = 3_600_000_000_000
# Times before are not since 1970, but since the start of a machine or of a trace.
EPOCH_NS = 1_000_000_000_000_000_000


@dataclass(frozen=True)
class RankFile:
    """A file of a job: what it says about its rank, and when its GPUs begin, ns."""

    file: str
    distributed: Distributed | None
    starts: Sequence[int]


def rank_numbers(files: Sequence[RankFile]) -> list[int]:
    """Return the rank of each file: what it says, otherwise its position.

    Raises GpuExporterError if two files are of one rank, or of different jobs.
    """
    jobs = [(each.file, each.distributed.job) for each in files if each.distributed]
    for (file, job), (other_file, other_job) in pairwise(jobs):
        if job != other_job:
            raise GpuExporterError(f"{file} is of {job}, {other_file} of {other_job}: give files of one job")
    timed = sorted((start, each.file) for each in files for start in each.starts if start > EPOCH_NS)
    for (start, file), (later, other_file) in pairwise(timed):
        if later - start > LONGEST_APART_NS:
            raise GpuExporterError(
                f"{other_file} was recorded {(later - start) / LONGEST_APART_NS:.1f} h after {file}: give files of one"
                " run, or compare two with `trace diff`"
            )
    known: dict[int, str] = {}
    for position, each in enumerate(files):
        rank = each.distributed.rank if each.distributed else position
        if rank in known:
            raise GpuExporterError(
                f"{known[rank]} and {each.file} are both of rank {rank}: give one file of each rank"
                " (of several windows of a rank, analyse one at a time)"
            )
        known[rank] = each.file
    return list(known)
