"""The exporters that several options name: --url, --nodes and --slurm-job."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError, WrongUsage

PLACE = "{node}"
SQUEUE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class NodesOption:
    """Where the exporters of a job are, as the user wrote it, and the port of those that are given without one."""

    urls: Sequence[str]
    nodes: str
    slurm_job: str
    port: int

    @property
    def is_several(self) -> bool:
        """Whether the nodes are to be watched together, even if it is only one."""
        return bool(self.nodes or self.slurm_job or len(self.urls) > 1)

    def addresses(self) -> list[str]:
        """Return the URLs of the exporters. Raises GpuExporterError."""
        from gpu_exporter.diagnosis.job_sources import hosts

        if self.nodes and self.slurm_job:
            raise WrongUsage("--nodes and --slurm-job exclude each other: give one")
        option = "--slurm-job" if self.slurm_job else "--nodes"
        nodes = nodes_of_job(self.slurm_job, os.environ) if self.slurm_job else self.nodes
        if not nodes:
            if any(PLACE in url for url in self.urls):
                raise WrongUsage(f"--url with {PLACE}: say which nodes with --nodes")
            return list(dict.fromkeys(self.urls))
        template = self.urls[0] if self.urls else f"http://{PLACE}:{self.port}"
        if len(self.urls) > 1 or PLACE not in template:
            raise WrongUsage(f"{option}: give one --url with {PLACE} in it, such as http://{PLACE}:9400")
        try:
            return [template.replace(PLACE, host) for host in hosts(nodes)]
        except ValueError as error:
            raise WrongUsage(f"{option}: {error}") from error


def nodes_of_job(job: str, environment: Mapping[str, str]) -> str:
    """Return the nodes of a Slurm job as Slurm lists them. Raises GpuExporterError."""
    if environment.get("SLURM_JOB_ID") == job and (nodes := environment.get("SLURM_JOB_NODELIST", "")):
        return nodes
    if not job.replace("_", "").isdecimal():
        raise WrongUsage(f"--slurm-job: {printable(job, 40)!r} is not the number of a job; use $SLURM_JOB_ID")
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%N"]
    instead = "give its nodes with --nodes, for example those that sacct lists"
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SQUEUE_SECONDS)
    except subprocess.CalledProcessError as error:
        why = printable((error.stderr.strip().splitlines() or ["squeue failed"])[-1], 200)
        raise GpuExporterError(f"--slurm-job {job}: {why}; {instead}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        why = "squeue does not answer" if isinstance(error, subprocess.TimeoutExpired) else "squeue cannot be run"
        raise GpuExporterError(f"--slurm-job {job}: {why} here; {instead}") from error
    nodes = ",".join(filter(None, done.stdout.split()))
    if not nodes:
        raise GpuExporterError(f"--slurm-job {job}: squeue names no node, so the job does not run; {instead}")
    return nodes
