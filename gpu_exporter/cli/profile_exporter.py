"""Has a running exporter take the profile that `gpu-exporter profile` is asked for, within the exporter's budget."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

import click

from gpu_exporter.http.client import Refused, Remote, Unreachable, exporter_url
from gpu_exporter.io.decoding import json_as, printable
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling.pyspy import Sampling
from gpu_exporter.profiling.records import ProcessStacks, StackKind, Summary, profile_again
from gpu_exporter.profiling.result import ProcessProfile
from gpu_exporter.profiling.targets import Wanted

# An exporter may wait for a job that writes a large trace.
MOST_SECONDS = 400.0
MOST_WHY = 400
BUDGET, OFF = 429, (404, 405)


@dataclass(frozen=True, slots=True)
class ProfileAnswer:
    """A profile that the exporter took: its summary, its stacks, and the outputs of the analysis of a trace."""

    profile: Summary
    stacks: tuple[ProcessStacks, ...]
    outputs: Mapping[str, str]

    @property
    def errors(self) -> list[GpuExporterError]:
        """Why processes have no profile, one for each, or why there is none."""
        if not (self.profile.failed or self.profile.processes):
            return [GpuExporterError("the processes ended before they were profiled")]
        return [GpuExporterError(printable(failed.why, MOST_WHY)) for failed in self.profile.failed]

    @property
    def traced(self) -> dict[str, bytes]:
        """The outputs of the analysis of a trace, by name."""
        return {name: base64.b64decode(text) for name, text in self.outputs.items()}

    def profiles(self) -> list[ProcessProfile]:
        """Return the profiles of the processes whose stacks were sampled."""
        sampling = Sampling(self.profile.seconds, self.profile.rate)
        processes = {process.pid: process for process in self.profile.processes if process.samples}
        return [
            profile_again(processes[of.pid], of, sampling)
            for of in self.stacks
            if of.kind is StackKind.WALL and of.pid in processes
        ]


def arguments(pids: Sequence[int], wanted: Wanted, seconds: float) -> list[tuple[str, str]]:
    """Return what a request for a profile says in its URL."""
    found = [("seconds", f"{seconds:g}s"), *(("pid", str(pid)) for pid in pids)]
    found += [("gpu", str(wanted.gpu))] if wanted.gpu is not None else []
    return found + [(name, text) for name, text in (("pod", wanted.pod), ("job", wanted.job)) if text]


def trace_query(outputs: Sequence[str], *, frames: bool) -> list[tuple[str, str]]:
    """Return what a request for a trace says besides."""
    return [("trace", "true"), ("frames", str(frames).lower()), *(("output", name) for name in outputs)]


def ask(remote: Remote, arguments: Sequence[tuple[str, str]], *, required: bool) -> ProfileAnswer | None:
    """Return the exporter's answer; None if there is no exporter, or it does not take this profile, which is printed.

    Raises GpuExporterError if that would exceed its budget, and with `required` for everything.
    """
    try:
        exporter = replace(remote, url=exporter_url(remote.url))
        body = exporter.post_whole(f"/api/v1/profiles?{urlencode(arguments)}", MOST_SECONDS)
        return json_as(ProfileAnswer, body)
    except Refused as error:
        if error.status == BUDGET:
            fix = "--standalone profiles from here, without the exporter and its limits"
            raise GpuExporterError(str(error), fix=fix) from error
        if required and error.status in OFF:
            fix = "start it with --profile, or leave out --url to profile from here"
            raise GpuExporterError(f"{remote.url}: takes no profiles", fix=fix) from error
        if required:
            raise
        if error.status not in OFF:
            click.echo(f"gpu-exporter: {error}; profiling without the exporter", err=True)
    except Unreachable:
        if required:
            raise
    except ValueError as error:
        raise GpuExporterError(f"{remote.url}: the answer is unusable: {error}; update both") from error
    return None
