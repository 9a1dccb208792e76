"""Which ranks `gpu-exporter diagnose` calls stragglers: from the messages of training loops, from telemetry, or both.

Needs neither PyTorch nor a GPU. What is fed are scrapes of an exporter; what judges them is the diagnosis itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.job_training import made_up_uuid
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes.mode import STRAGGLING_GPU
from gpu_exporter.diagnosis.diagnose import Diagnosis, diagnose
from gpu_exporter.diagnosis.headline import findings
from gpu_exporter.diagnosis.rolling import RollingWindow
from gpu_exporter.diagnosis.scrape import ScrapedSample, samples_by_name
from gpu_exporter.training.textfile import render

PARTS = ("data", "forward", "backward", "optimizer", "rest")
UNKNOWN = "unknown"
# Half as long as `diagnose` watches by default, so that a case need not last as long.
WINDOW_SECONDS = 10.0
# What a step timer renders: no value has a quote or a brace in it.
_LINE, _LABEL = re.compile(r"(\w+)\{(.*)\} (\S+)"), re.compile(r'(\w+)="([^"]*)"')
_PHASE = re.compile(r"its phase (\w+) takes")


class Named(NamedTuple):
    """A rank that is called a straggler: the failure mode, and the phase that takes longer, "" if none is named."""

    mode: str
    phase: str


class Verdict(NamedTuple):
    """The stragglers at the end, those at any time, after how many seconds the first was named, and all classes."""

    named: Mapping[int, Named]
    ever: frozenset[int]
    after: float | None
    classes: Mapping[int, str]


def samples_of(messages: Mapping[int, Mapping[str, Any]], now: float) -> list[ScrapedSample]:
    """Return what an exporter exposes of the last message of each rank."""
    samples: list[ScrapedSample] = []
    for rank, message in messages.items():
        uuid = uuid_of(rank, message)
        lines = _LINE.findall(render({**message, "uuid": uuid}, now))
        samples += (ScrapedSample(name, dict(_LABEL.findall(labels)), float(value)) for name, labels, value in lines)
        samples.append(ScrapedSample(m.INFO.name, {"UUID": uuid, "gpu": str(rank)}, 1.0))
    return samples


def uuid_of(rank: int, message: Mapping[str, Any]) -> str:
    """Return the GPU of a rank, or a made-up one for a rank on a CPU."""
    return str(message.get("uuid") or made_up_uuid(rank))


def judge(scrapes: Sequence[tuple[float, Sequence[ScrapedSample]]], ranks: Mapping[str, int]) -> Verdict:
    """Return what the diagnosis says of the scrapes of a job, made after each of them. `ranks` are those by UUID."""
    window = RollingWindow(WINDOW_SECONDS, job="job")
    named: dict[int, Named] = {}
    classes: dict[int, str] = {}
    ever: set[int] = set()
    after = None
    for at, samples in scrapes:
        window.add(at, samples_by_name(samples))
        found = {ranks[each.device.uuid]: each for each in diagnose(window.recent()) if each.device.uuid in ranks}
        named = {rank: straggler for rank, each in found.items() for straggler in _stragglers(each)}
        classes = {rank: each.bottleneck.name if each.bottleneck else UNKNOWN for rank, each in found.items()}
        ever |= named.keys()
        if named and after is None:
            after = at - scrapes[0][0]
    return Verdict(named, frozenset(ever), after, classes)


def _stragglers(diagnosis: Diagnosis) -> Iterator[Named]:
    for finding in findings(diagnosis):
        if finding["name"] in STRAGGLING_GPU:
            phases = (_PHASE.match(text) for text in finding["evidence"])
            yield Named(finding["name"], next((phase[1] for phase in phases if phase), ""))
            return


def parts_of(message: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds per step of a rank by part, without waiting; `self` and `step` are their sums."""
    count = max(sum(message["step"]["counts"]), 1)
    phases, own = message["phase_seconds"], message.get("self")
    step = message["step"]["sum"] / count
    found = {name: phases.get(name, 0.0) / count for name in PARTS[1:-1]}
    found["data"] = message["data_seconds"] / count
    found["waiting"] = phases.get("waiting", 0.0) / count
    found["rest"] = max(step - sum(found.values()), 0.0)
    return {**found, "step": step, "self": own["sum"] / max(sum(own["counts"]), 1) if own else float("nan")}
