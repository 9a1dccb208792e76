"""The worst thing about a GPU in one line, and its findings in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpu_exporter.catalogue import project
from gpu_exporter.catalogue.causes import LEAST_LOSS
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Severity
from gpu_exporter.catalogue.failure_modes.network import port_fault
from gpu_exporter.catalogue.faults import TELEMETRY, mode_of
from gpu_exporter.conditions.prose import title
from gpu_exporter.diagnosis.diagnose import Diagnosis, Match
from gpu_exporter.diagnosis.loss import breakdown, lost, no_limit
from gpu_exporter.diagnosis.presence import RELEASED, explain
from gpu_exporter.diagnosis.words import statement
from gpu_exporter.model.snapshot import UNREAD, GpuStatus
from gpu_exporter.model.verdict import Action, Health, Verdict, most_drastic
from gpu_exporter.reports.numbers import capitalised

# How what has a severity looks on the page, in the terminal and in reports.
STYLES: Mapping[str, str] = {
    Severity.CRITICAL.value: "bad",
    Severity.WARNING.value: "warn",
    Severity.INFO.value: "info",
}


class Headline(NamedTuple):
    """One line about a GPU. `severity` is that of an alert, ok or unknown; `of` names the finding it is from."""

    severity: str
    words: str
    of: str = ""


def headline(status: GpuStatus, verdict: Verdict | None, diagnosis: Diagnosis | None) -> Headline:
    """Return the worst: no answer, then faults, then findings, then what limits the GPU."""
    if not status.up:
        expected, warns = status.reason in (RELEASED, UNREAD), status.reason in TELEMETRY
        severity = Severity.INFO if expected else Severity.WARNING if warns else Severity.CRITICAL
        return Headline(
            severity.value, capitalised(explain(status.reason) if status.reason else "the GPU does not answer")
        )
    if verdict and verdict.problems:
        worst = max(verdict.problems, key=lambda problem: list(Health).index(problem.health))
        todo = verdict.action.words
        severity = Severity.CRITICAL if worst.health is Health.UNHEALTHY else Severity.WARNING
        return Headline(severity.value, capitalised(worst.words) + (f": {todo}" if todo else ""))
    if diagnosis and diagnosis.worst:
        mode = diagnosis.worst.mode
        return Headline(mode.severity.value, summary(mode, diagnosis), mode.name)
    if diagnosis is None or diagnosis.bottleneck is None:
        known = diagnosis is not None and diagnosis.approximate
        why = "utilisation and power do not show it" if known else "profiling metrics are missing or too new"
        return Headline("unknown", f"What limits this GPU is unknown: {why}")
    text = ("approximately: " if diagnosis.approximate else "") + diagnosis.bottleneck.means
    if lost(diagnosis.shares) >= LEAST_LOSS:
        text += f". Time: {breakdown([diagnosis.shares])}"
    return Headline("ok", capitalised(text))


def summary(mode: FailureMode, *diagnoses: Diagnosis, gpu: str = "this GPU", singled_out: bool = False) -> str:
    """Return what a failure mode says about GPUs, as a sentence. `singled_out` GPUs cause what others have as well.

    If it is about network ports or NVLinks, they are named, as in the alert. Templates of Prometheus, whose numbers are
    in the evidence, are replaced by the meaning of the mode.
    """
    names = links(mode, diagnoses)
    named = f": {', '.join(names)}" if names else ""
    if "{{" in mode.summary:
        words = mode.meaning.split(". ")[0].removesuffix(".")
        return (words if gpu == "this GPU" else f"{gpu}: {words[:1].lower()}{words[1:]}") + named
    job = diagnoses[0].identity.job_name
    words = (singled_out and mode.singled_out) or mode.summary
    if not job:
        words = words.replace("job {job}", "the job").replace("Job {job}", "The job")
    return capitalised(words.replace("{gpu}", gpu).replace("{job}", job)) + named


def links(mode: FailureMode, diagnoses: Sequence[Diagnosis]) -> list[str]:
    """Return the network ports or NVLinks that a mode is about, if they are known."""
    identities, fault = [each.identity for each in diagnoses], port_fault(mode)
    if fault is not None:
        return sorted({port for each in identities for port in each.ports.get(fault, ())})
    return list(dict.fromkeys(f"NVLink {link}" for each in identities for link in each.nvlinks.get(mode.name, ())))


def repair(mode: FailureMode, *diagnoses: Diagnosis) -> Action:
    """Return what repairs GPUs: what the verdicts on them say about the faults that the mode alerts on, if they do."""
    repairs = (item for each in diagnoses for item in each.identity.repairs.items())
    return most_drastic((action for reason, action in repairs if mode_of(reason) == mode.name), mode.action)


def findings(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Return the failure modes that match, the worst first, with their numbers and what to do."""
    return [_finding(match, diagnosis) for match in diagnosis.matches]


def _finding(match: Match, diagnosis: Diagnosis) -> dict[str, Any]:
    mode = match.mode
    return {
        "name": mode.name,
        "severity": mode.severity.value,
        "words": summary(mode, diagnosis),
        "meaning": mode.meaning,
        "evidence": [statement(term, [value]) for term, value in match.because.items()],
        "advice": mode.advice,
        "action": repair(mode, diagnosis).words,
        "runbook": project.page(f"runbooks/{mode.page}.md"),
    }


def not_judged(diagnosis: Diagnosis) -> list[dict[str, str]]:
    """Return the failure modes that could not be judged, and why."""
    return [
        {"name": name, "why": "missing: " + ", ".join(map(title, missing)) if missing else "too few measurements yet"}
        for name, missing in diagnosis.unknown.items()
    ]


def headroom(diagnosis: Diagnosis) -> str:
    """Return how close a GPU that reaches no limit is to its limits, and what to do; empty for others."""
    return capitalised(no_limit(diagnosis.headroom))
