"""The history of a job from a Prometheus: its samples are judged one after the other, as the exporters would have.

It needs no rules. All ranks are judged together, so a straggler is found even if each node has one rank.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from urllib.parse import urlencode

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.incident_words import as_dicts
from gpu_exporter.diagnosis.incidents import of_diagnoses
from gpu_exporter.diagnosis.job_history import NodeHistory
from gpu_exporter.diagnosis.job_usage import RANK_FAMILIES
from gpu_exporter.diagnosis.kept_history import KeptHistory
from gpu_exporter.diagnosis.remote_scrapes import QUERY_SECONDS, queried, unusable
from gpu_exporter.diagnosis.rolling import Current, RollingWindow
from gpu_exporter.diagnosis.scrape import DeviceKey, Scrape, ScrapedSample, samples_by_name
from gpu_exporter.diagnosis.window import FAMILIES
from gpu_exporter.http.client import Remote
from gpu_exporter.io.decoding import json_as, printable
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.version import __version__

# A Prometheus may scrape only twice a minute, and a rate needs two scrapes.
WINDOW_SECONDS, JUDGED_SECONDS = 90.0, 30.0
# A query is of so many seconds and GPUs, which bounds the memory.
QUERIED_SECONDS, QUERIED_GPUS = 600.0, 64
MOST_GPUS = 4096


@dataclass(frozen=True, slots=True)
class _Labels:
    """The answer of /api/v1/series."""

    status: str
    data: list[dict[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def prometheus_histories(remote: Remote, job: str, since: float, until: float) -> list[NodeHistory]:
    """Return what the GPUs of a job did, by node; empty if the Prometheus does not know it. Raises GpuExporterError."""
    uuids = _uuids(remote, job, since, until)
    if not uuids:
        return []
    kept, window = KeptHistory(keeps_all=True), RollingWindow(WINDOW_SECONDS)
    began: dict[tuple[DeviceKey, str], float] = {}
    latest: dict[tuple[str, str], tuple[float, ScrapedSample]] = {}
    nodes: dict[str, str] = {}
    judged = 0.0
    for scrape in _scrapes(remote, uuids, since, until):
        by_name = samples_by_name(scrape.samples)
        window.add(scrape.at, by_name)
        for name in RANK_FAMILIES:
            for sample in by_name.get(name, ()):
                latest[name, repr(sorted(sample.labels.items()))] = (scrape.at, sample)
        if scrape.at - judged < JUDGED_SECONDS:
            continue
        judged = scrape.at
        diagnoses = {each.device: each for each in diagnose(window.recent())}
        nodes |= {device.uuid: each.identity.node for device, each in diagnoses.items()}
        found = {(device, match.mode.name) for device, each in diagnoses.items() for match in each.matches}
        began = {key: began.get(key, judged) for key in found}
        incidents = as_dicts(of_diagnoses(diagnoses.values(), began))
        latest = {key: each for key, each in latest.items() if each[0] > judged - WINDOW_SECONDS}
        kept.add(Current(judged, diagnoses, incidents=incidents), [sample for _, sample in latest.values()])
    kept.close()
    return list(_by_node(kept, nodes, since, until))


def _by_node(kept: KeptHistory, nodes: dict[str, str], since: float, until: float) -> Iterator[NodeHistory]:
    usage = kept.usage(since, until)
    for node in sorted(set(nodes.values())):
        periods = [replace(each, gpus=[gpu for gpu in each.gpus if nodes.get(gpu.UUID) == node]) for each in usage]
        yield NodeHistory(node, __version__, usage=[each for each in periods if each.gpus])
    # Each GPU of an incident says on which node it is.
    yield NodeHistory("", __version__, incidents=kept.incidents(since, until))


def _uuids(remote: Remote, job: str, since: float, until: float) -> list[str]:
    """Return the GPUs that a job had at any time."""
    namespace, _, workload = job.rpartition("/")
    of_pods = f'workload="{_quoted(workload)}"' + (f', namespace="{_quoted(namespace)}"' if namespace else "")
    of_id = f'job_id="{_quoted(job)}"'
    selectors = [
        f"{m.POD_INFO.name}{{{of_pods}}}",
        f"{m.JOB_INFO.name}{{{of_id}}}",
        f"{m.JOB_RANK_INFO.name}{{{of_id}}}",
    ]
    query = urlencode([*(("match[]", each) for each in selectors), ("start", f"{since:.0f}"), ("end", f"{until:.0f}")])
    try:
        answer = json_as(_Labels, remote.get(f"/api/v1/series?{query}", QUERY_SECONDS))
        if answer.status != "success" or answer.warnings:
            raise ValueError((answer.warnings or [answer.status])[0])
    except ValueError as error:
        raise unusable(remote, error) from error
    uuids = sorted({labels.get("UUID", "") for labels in answer.data} - {""})
    if len(uuids) > MOST_GPUS:
        raise GpuExporterError(f"job {printable(job, 80)} had more than {MOST_GPUS} GPUs; give a shorter time")
    return uuids


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _scrapes(remote: Remote, uuids: Sequence[str], since: float, until: float) -> Iterator[Scrape]:
    """Yield the samples of the GPUs in order of time, of which a part is in memory at once."""
    begin = since
    while begin < until:
        end = min(begin + QUERIED_SECONDS, until)
        parts = [
            queried(remote, FAMILIES, end - begin, at=end, only=f'UUID=~"{"|".join(map(_pattern, group))}"')
            for group in (uuids[at : at + QUERIED_GPUS] for at in range(0, len(uuids), QUERIED_GPUS))
        ]
        together: dict[float, list[ScrapedSample]] = defaultdict(list)
        for scrape in merge(*parts, key=lambda each: each.at):
            if begin < scrape.at <= end:
                together[scrape.at] += scrape.samples
        yield from (Scrape(at, samples) for at, samples in together.items())
        begin = end


def _pattern(uuid: str) -> str:
    return _quoted(re.escape(uuid).replace("\\-", "-"))
