"""The history of a job from the exporters of its nodes. Answers are checked before anything uses them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import quote

from gpu_exporter.diagnosis.job_history import NodeHistory
from gpu_exporter.diagnosis.job_prometheus import prometheus_histories
from gpu_exporter.diagnosis.kept_records import KeptIncident, KeptUsage
from gpu_exporter.diagnosis.remote_scrapes import is_prometheus
from gpu_exporter.http.client import Refused, Remote, exporter_url
from gpu_exporter.io.decoding import json_as, printable
from gpu_exporter.model.errors import GpuExporterError

ANSWER_SECONDS = 30.0
AT_ONCE = 16
MOST_NODES = 4096
_BRACKETS = re.compile(r"([^\[\],]*)\[([^\[\]]+)\](.*)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def hosts(text: str) -> list[str]:
    """Return the hosts of a list as Slurm writes it: `node[01-16,20],login1`. Raises ValueError."""
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text.strip())
    found: list[str] = []
    for part in parts:
        found += _expanded(part.strip())
        if len(found) > MOST_NODES:
            raise ValueError(f"more than {MOST_NODES} nodes")
    if ",".join(parts) != text.strip() or not found or any(not re.fullmatch(r"[\w.:-]+", host) for host in found):
        raise ValueError(f"{printable(text, 80)!r} is not a list of nodes; use for example 'node[01-16]'")
    return list(dict.fromkeys(found))


def _expanded(part: str) -> Iterator[str]:
    match = _BRACKETS.fullmatch(part)
    if match is None:
        yield part
        return
    head, ranges, rest = match.groups()
    for each in ranges.split(","):
        bounds = _RANGE.fullmatch(each.strip())
        first, last = (bounds[1], bounds[2] or bounds[1]) if bounds else ("0", "-1")
        if not int(first) <= int(last) < int(first) + MOST_NODES:
            raise ValueError(f"{printable(each, 40)!r} is not a range of nodes")
        for number in range(int(first), int(last) + 1):
            for tail in _expanded(rest):
                yield f"{head}{number:0{len(first)}d}{tail}"


def histories(remotes: Sequence[Remote], job: str, since: float, until: float) -> tuple[list[NodeHistory], list[str]]:
    """Return the histories of nodes, and for each that has none, why. A single address may be that of a Prometheus.

    Raises GpuExporterError if a Prometheus does not answer.
    """
    if len(remotes) == 1 and is_prometheus(remotes[0]):
        return prometheus_histories(remotes[0], job, since, until), []
    with ThreadPoolExecutor(min(AT_ONCE, max(len(remotes), 1))) as pool:
        answers = list(pool.map(lambda remote: _answer(remote, since, until), remotes))
    found = [each for each in answers if isinstance(each, NodeHistory)]
    return found, [f"missing: {each}" for each in answers if isinstance(each, str)]


def _answer(remote: Remote, since: float, until: float) -> NodeHistory | str:
    """Return the history of a node, or in one line why there is none."""
    base = replace(remote, url=exporter_url(remote.url))
    period = f"since={quote(f'{since:.0f}')}&until={quote(f'{until:.0f}')}"
    before = time.time()
    try:
        text = base.get(f"/api/v1/incidents?{period}", ANSWER_SECONDS)
        history = json_as(NodeHistory, text)
    except Refused as error:
        if error.status == 404 and is_prometheus(base):
            return f"{base.url} is a Prometheus: give it alone"
        return str(error)
    except GpuExporterError as error:
        return str(error)
    except ValueError as error:
        return f"{base.url}: not a usable history: {printable(str(error), 160)}; is the exporter older than this one?"
    if history.now is None:
        return f"{base.url}: gpu-exporter {printable(history.version, 20)} keeps no history; upgrade it"
    after = time.time()
    ahead = history.now - before if history.now < before else max(0.0, history.now - after)
    return replace(
        history,
        node=printable(history.node, 100),
        version=printable(history.version, 40),
        incidents=[_printable(each) for each in history.incidents],
        usage=[_printable_usage(each) for each in history.usage],
        ahead=ahead,
    )


def _printable(incident: KeptIncident) -> KeptIncident:
    return replace(
        incident,
        words=printable(incident.words, 1000),
        cause=printable(incident.cause, 80),
        severity=incident.severity if incident.severity in ("critical", "warning", "info") else "info",
        culprits=[_labels(gpu) for gpu in incident.culprits],
        hit=[_labels(gpu) for gpu in incident.hit],
        jobs=[printable(job, 200) for job in incident.jobs],
        explains=[printable(name, 80) for name in incident.explains],
    )


def _labels(gpu: dict[str, str]) -> dict[str, str]:
    return {printable(name, 40): printable(text, 200) for name, text in gpu.items()}


def _printable_usage(usage: KeptUsage) -> KeptUsage:
    gpus = [
        replace(
            gpu,
            gpu=printable(gpu.gpu, 40),
            job=printable(gpu.job, 200),
            job_id=printable(gpu.job_id, 200),
            rank=printable(gpu.rank, 20),
            time={printable(name, 40): value for name, value in gpu.time.items()},
            activity={printable(name, 40): value for name, value in gpu.activity.items()},
        )
        for gpu in usage.gpus
    ]
    return replace(usage, gpus=gpus)
