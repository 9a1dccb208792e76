"""Diagnoses as text, as JSON and as an exit code. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_exporter.catalogue import project
from gpu_exporter.catalogue.bottlenecks import LOW_POWER_CLASS
from gpu_exporter.catalogue.causes import LEAST_LOSS
from gpu_exporter.catalogue.failure_modes import MODES, host
from gpu_exporter.catalogue.failure_modes.distributed import ALWAYS_LAST
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Scope
from gpu_exporter.catalogue.roofline import Headroom, Position
from gpu_exporter.conditions.evaluate import TermValues
from gpu_exporter.conditions.prose import title
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import Over
from gpu_exporter.diagnosis import incident_words, loss
from gpu_exporter.diagnosis.diagnose import MINUTES, Diagnosis, Match
from gpu_exporter.diagnosis.headline import links, repair
from gpu_exporter.diagnosis.incidents import DiagnosedIncident, of_diagnoses, order_of_gpus
from gpu_exporter.diagnosis.loss import achieved, breakdown, lost, no_limit, summary
from gpu_exporter.diagnosis.presence import Absent, explain
from gpu_exporter.diagnosis.scrape import DeviceKey, Measured, as_scraped
from gpu_exporter.diagnosis.unseen_health import unseen_health
from gpu_exporter.diagnosis.window import DeviceIdentity, uuid_of
from gpu_exporter.diagnosis.words import LONGEST_NAME, name_of, names_of, series, statement
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.source_kind import DCGM, OF_SIMULATED, REPLAY, SIMULATED, SOURCE_KINDS

if TYPE_CHECKING:
    from gpu_exporter.diagnosis.nodes_report import NodesReport
    from gpu_exporter.diagnosis.result import DiagnosisResult

UNKNOWN_CLASS = (
    "class unknown: profiling metrics are missing, such as SM activity: `gpu-exporter doctor` on the node says why; "
    "dcgm-exporter needs more fields (docs/migration.md#back)"
)
UNCLEAR = "class unknown: without profiling metrics, utilisation and power do not show what limits this GPU"
APPROXIMATE_HINT = (
    "What is approximate comes from utilisation and power, because profiling metrics are missing, or 0 on a busy GPU "
    "(docs/without-profiling.md). Profiler traces, `gpu-exporter profile` and the step timer show more, on every GPU."
)
# What to do about a finding, by device and name of the mode.
Advice = Mapping[tuple[DeviceKey, str], str]
# What a process belongs to, by the label that says it.
BELONGS_TO = {"uid": "user id", "pod_uid": "pod UID", "container_id": "container", "hpc_job": "job"}
# Failure modes that compare the ranks of a job.
OF_JOBS = frozenset(mode.name for mode in MODES if mode.scope is Scope.JOB)


def exit_code(diagnoses: Sequence[Diagnosis], absent: Sequence[Absent] = ()) -> int:
    """Return 0 if nothing is wrong, 1 if a failure mode matches or a GPU is absent, 2 if a GPU could not be judged."""
    if any(diagnosis.matches for diagnosis in diagnoses) or not all(gpus.expected for gpus in absent):
        return 1
    return 0 if all(diagnosis.bottleneck for diagnosis in diagnoses if is_reported(diagnosis)) else 2


def result_code(result: DiagnosisResult) -> int:
    """Return the exit code of a result: 2 instead of 0 if a node is missing."""
    code = exit_code(result.diagnoses, result.absent)
    return 2 if code == 0 and result.several and result.several.missing else code


def as_json(result: DiagnosisResult, price: float | None = None, measured: Measured = as_scraped) -> dict[str, Any]:
    """Return a result for JSON: what was watched, the profiles, the incidents and the GPUs, and of several nodes the
    ranks and links."""
    about: dict[str, Any] = {"source": result.source, "watched_seconds": round(result.seconds, 1)}
    if result.several:
        about["notes"] = list(notes(result))
    if result.profiles:
        about["profiles"] = list(result.profiles)
    found = as_dict(result.diagnoses, result.absent, price)
    about["unseen_health"] = list(unseen_health(result.diagnoses))
    nodes = nodes_report(result, measured)
    incidents = incident_words.with_code(found["incidents"], result.profile_lines)
    return {**about, **found, "incidents": incidents, **(nodes.as_json() if nodes else {})}


def nodes_report(result: DiagnosisResult, measured: Measured = as_scraped) -> NodesReport | None:
    """Return what a result says of the ranks and links of several nodes; None if it is of one exporter."""
    if result.several is None:
        return None
    from gpu_exporter.diagnosis.nodes_report import NodesReport  # few results need it

    return NodesReport(result, result.several, measured)


def notes(result: DiagnosisResult) -> Iterator[str]:
    """Yield what is doubtful about several nodes."""
    yield from map(str, result.several.notes if result.several else ())


def report_lines(result: DiagnosisResult, *, every: bool, verbose: bool, price: float | None) -> Iterator[str]:
    """Yield the whole report, one line for each statement. `every` and `verbose` are those of `lines`."""
    yield from (line for line, _ in beginning(result))
    if nodes := nodes_report(result):
        yield from nodes.lines()
    # Without a GPU that can be judged, there is one empty line.
    code = result.profile_lines
    yield from list(lines(result.diagnoses, every=every, verbose=verbose, price=price, code=code)) or [""]
    yield from (line for line, _ in end(result, price))


def beginning(result: DiagnosisResult) -> Iterator[tuple[str, str]]:
    """Yield what is said before the GPUs, with its style: which are absent, what was watched, and what is doubtful."""
    for line in absences(result.absent):
        yield line, "bad"
    yield origin(result), ""
    yield from ((f"Note: {note}", "") for note in notes(result))
    if phases := phases_together(result):
        yield phases, ""


def end(result: DiagnosisResult, price: float | None) -> Iterator[tuple[str, str]]:
    """Yield what is said after the GPUs, with its style: profiles, lost time, what to try, and the verdict."""
    lost_time = time_lines(result.diagnoses, price)
    known = result.profile_lines
    said = {text.strip() for text, _ in incident_words.lines(of_diagnoses(result.diagnoses), code=known)}
    profiled = dict.fromkeys(line for of_gpu in known.values() for line in of_gpu if line not in said)
    approximate = APPROXIMATE_HINT if any(each.approximate for each in result.diagnoses) else ""
    hints = (*hints_of(result.diagnoses), approximate)
    not_seen = unseen_words(result.diagnoses)
    for line in filter(None, (*profiled, result.profile_problem, *lost_time, *hints, not_seen)):
        yield line, ""
    code = result_code(result)
    seen = " in what was seen" if not_seen else ""
    if code == 2 and result.several and result.several.missing:
        yield f"nothing wrong was found{seen} on the nodes that answered", ""
    elif code == 0 and has_headroom(result.diagnoses):
        words = "the GPUs could do more: see where their time went and which limit they reach"
        yield f"no fault was found{seen}, but {words}", ""
    elif code == 0:
        yield f"nothing wrong was found{seen}", "" if not_seen else "good"
    elif code != 1:
        yield "some GPUs could not be judged: --all lists what is missing", ""


def unseen_words(diagnoses: Sequence[Diagnosis]) -> str:
    """Return as a sentence which parts of health are not in what was read; empty if all are."""
    unseen = ", ".join(unseen_health(diagnoses))
    return f"Not seen, and so not judged: {unseen}." if unseen else ""


def origin(result: DiagnosisResult) -> str:
    """Return what was watched, and for how long."""
    return f"{_watched(result)} Alerts need longer to fire."


def _watched(result: DiagnosisResult) -> str:
    seconds = f"{result.seconds:.0f} s"
    if result.recorded:
        return f"Replayed {seconds} of {OF_SIMULATED if result.is_simulated else REPLAY.description}."
    match result.source:
        case SIMULATED.name:
            return f"Watched simulated GPUs for {seconds}."
        case DCGM.name:
            return f"Watched the GPUs of DCGM's host engine for {seconds}."
        case source if source in SOURCE_KINDS:
            return f"Watched the GPUs of this machine for {seconds}."
    return f"Analysed the last {seconds} of {result.source}."


def phases_together(result: DiagnosisResult) -> str:
    """Return which phases of a recording were analysed together, as a sentence; empty if there is only one."""
    recorded = result.recorded
    phases = [printable(phase, 60) for phase in recorded.phases] if recorded and not recorded.phase else ()
    if len(phases) < 2:
        return ""
    return f"Its {len(phases)} phases are analysed together; select one with --phase: {', '.join(phases)}"


def as_dict(
    diagnoses: Sequence[Diagnosis], absent: Sequence[Absent] = (), price: float | None = None
) -> dict[str, Any]:
    """Return incidents and GPUs for JSON, in order of node and index; `class` is null if none could be determined."""
    found = of_diagnoses(diagnoses)
    return {
        "absent": [{"node": gpus.node, "gpus": gpus.gpus, "why": gpus.why} for gpus in absent],
        "incidents": incident_words.as_dicts(found, price),
        **incident_words.total_cost(found, price),
        "gpus": [_as_dict(diagnosis) for diagnosis in diagnoses if is_reported(diagnosis)],
    }


def absences(absent: Sequence[Absent]) -> Iterator[str]:
    """Yield a line for each absent GPU."""
    for gpus in absent:
        of_node = f" ({printable(gpus.node, LONGEST_NAME)})" if gpus.node else ""
        yield f"{printable(gpus.gpus, LONGEST_NAME)}{of_node}: {printable(gpus.why, LONGEST_NAME)}"


def is_reported(diagnosis: Diagnosis) -> bool:
    """A GPU in MIG mode is left out unless there is a finding on it: its instances do the work."""
    return bool(diagnosis.bottleneck or diagnosis.matches or not diagnosis.identity.has_instances)


def _as_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    device, identity = diagnosis.device, diagnosis.identity
    return {
        "gpu": identity.gpu,
        "UUID": uuid_of(device),
        **({"GPU_I_ID": device.instance} if device.instance else {}),
        **({"cluster": device.cluster} if device.cluster else {}),
        **{name: value for name in ("node", "namespace", "pod") if (value := getattr(identity, name))},
        **({"workload": identity.job_name} if identity.job_name else {}),
        "modelName": identity.model,
        **({"down": identity.down} if diagnosis.is_down else {}),
        **({"process": dict(identity.process)} if identity.process else {}),
        **({"neighbours": list(identity.neighbours)} if identity.neighbours else {}),
        "class": diagnosis.class_name or None,
        "quality": diagnosis.quality,
        "cause": diagnosis.cause.value if diagnosis.cause else None,
        "evidence": _rounded(diagnosis.numbers),
        "time": loss.as_json(diagnosis.shares),
        **({"headroom": _headroom(diagnosis.headroom)} if diagnosis.headroom else {}),
        **({"achieved": _achieved(diagnosis.position)} if diagnosis.position else {}),
        "modes": [
            {
                "name": match.mode.name,
                "severity": match.mode.severity.value,
                "domain": match.mode.domain.value,
                "cause": match.mode.cause.value,
                "action": repair(match.mode, diagnosis).value,
                "because": _rounded(match.because),
                "advice": match.mode.advice,
            }
            for match in diagnosis.matches
        ],
        "unknown": {name: [signal.name for signal in missing] for name, missing in diagnosis.unknown.items()},
    }


def _headroom(headroom: Headroom) -> dict[str, Any]:
    shares = {name: round(getattr(headroom, name), 4) for name in ("tensor", "memory", "pipes")}
    return {**shares, "limited_by": headroom.limited_by or None}


def _achieved(position: Position) -> dict[str, Any]:
    batch = None if position.batch is None else round(position.batch, 2)
    shares = {"tensor": round(position.tensor, 4), "memory": round(position.memory, 4)}
    return {**shares, "measured": position.measured, "checked": position.checked, "larger_batch": batch}


def has_headroom(diagnoses: Sequence[Diagnosis]) -> bool:
    """Return whether a GPU that works loses time, draws little power, or reaches none of its limits."""
    working = [each for each in diagnoses if each.bottleneck and each.bottleneck.name != "idle"]
    if any(each.bottleneck.name == LOW_POWER_CLASS for each in working if each.bottleneck):
        return True
    return any(lost(each.shares) >= LEAST_LOSS or (each.headroom and not each.headroom.limited_by) for each in working)


def time_lines(diagnoses: Sequence[Diagnosis], price: float | None = None) -> Iterator[str]:
    """Yield lines on where the time of all GPUs went, if there are several or a price is known."""
    if len(diagnoses) > 1 or price is not None:
        yield from summary([diagnosis.gpu_time for diagnosis in diagnoses], price)


def _rounded(evidence: TermValues) -> dict[str, float]:
    return {name_of(term): float(f"{value:.4g}") for term, value in evidence.items()}


def lines(
    diagnoses: Sequence[Diagnosis],
    *,
    every: bool = False,
    verbose: bool = False,
    price: float | None = None,
    code: incident_words.Code = incident_words.NO_CODE,
) -> Iterator[str]:
    """Yield the incidents, and a block for each group of GPUs with identical findings: class, modes, evidence, advice.

    The worst come first. With `every`, also the modes that could not be judged; `verbose` adds the names of the series.
    """
    incidents = of_diagnoses(diagnoses)
    yield from (line for line, _ in incident_words.lines(incidents, price, code))
    said = incident_words.advice(incidents)
    for group in groups(diagnoses, incidents, every=every):
        yield from _block(group, said, every=every, verbose=verbose)


def groups(
    diagnoses: Sequence[Diagnosis], incidents: Sequence[DiagnosedIncident], *, every: bool = False
) -> list[list[Diagnosis]]:
    """Return GPUs with identical findings together; with `every`, also what could not be judged.

    First those that cause incidents, in the order of these, then the worst of the others.
    """
    found: dict[Hashable, list[Diagnosis]] = defaultdict(list)
    for diagnosis in filter(is_reported, diagnoses):
        modes = frozenset((match.mode.name, match.mode.severity) for match in diagnosis.matches)
        unknown = tuple(diagnosis.unknown.items()) if every else ()
        reached = diagnosis.headroom.limited_by if diagnosis.headroom else None
        where = where_of(diagnosis)
        down = diagnosis.is_down and diagnosis.identity.down
        kind = (bool(diagnosis.device.instance), diagnosis.approximate)
        found[where, kind, diagnosis.class_name, down, modes, unknown, reached].append(diagnosis)
    place = order_of_gpus(incidents)
    return sorted(found.values(), key=lambda group: min(map(place, group)))


def where_of(diagnosis: Diagnosis) -> str:
    """Return the cluster, node, model and owner of a GPU, as far as they are known."""
    identity = diagnosis.identity
    names = (diagnosis.device.cluster, identity.node, identity.model, identity.pod or identity.job_name)
    return ", ".join(printable(name, LONGEST_NAME) for name in names if name)


def _block(group: Sequence[Diagnosis], said: Advice, *, every: bool, verbose: bool) -> Iterator[str]:
    first, where = group[0], where_of(group[0])
    yield f"{names_of(group)}{f' ({where})' if where else ''}  {what_is(first)}"
    printed: set[str] = set()
    if texts := evidence([diagnosis.numbers for diagnosis in group], printed, verbose=verbose):
        yield f"    {', '.join(texts)}"
    if shares := breakdown([diagnosis.shares for diagnosis in group]):
        yield f"    time: {shares}"
    if first.position:
        yield f"    achieved: {achieved(first.position)}"
    if text := no_limit(first.headroom):
        yield f"    {text}"
    for match in first.matches:
        yield f"  {match.mode.name} ({match.mode.severity.value})"
        if texts := because(match, group, printed, verbose=verbose):
            yield f"    {', '.join(texts)}"
        if match.mode in host.MODES:
            yield from (f"    {text}" for text in processes(group, printed))
        yield f"    {what_to_do(match, first, said)}"
    if every:
        for name, missing in first.unknown.items():
            yield f"  {name}: not judged, {why_unknown(name, missing, first.identity, verbose=verbose)}"


def what_to_do(match: Match, diagnosis: Diagnosis, said: Advice) -> str:
    """Return the advice of a finding, or where it is."""
    return said.get((diagnosis.device, match.mode.name)) or f"-> {match.mode.advice}"


def what_is(diagnosis: Diagnosis) -> str:
    """Return what limits a GPU, or why it does not answer."""
    if diagnosis.is_down:
        return explain(diagnosis.identity.down) or "does not answer"
    return class_words(diagnosis)


def class_words(diagnosis: Diagnosis, since: str = "") -> str:
    """Return the class of a GPU, whether it is approximate, since when, and what it means; or why it has none."""
    bottleneck = diagnosis.bottleneck
    if bottleneck is None:
        return UNCLEAR if diagnosis.approximate else UNKNOWN_CLASS
    return f"{bottleneck.name}{' (approximate)' * diagnosis.approximate}{since}: {bottleneck.means}"


def runbook(mode: FailureMode) -> str:
    """Return where the runbook of a failure mode is: its address, or its path in the repository."""
    path = f"runbooks/{mode.page}.md"
    return project.page(path) or f"docs/{path}"


def processes(group: Sequence[Diagnosis], printed: set[str]) -> Iterator[str]:
    """Yield a line for the process on each GPU, once."""
    for diagnosis in group:
        labels = {name: printable(text, LONGEST_NAME) for name, text in diagnosis.identity.process.items()}
        if not labels or f"process {diagnosis.device.uuid}" in printed:
            continue
        printed.add(f"process {diagnosis.device.uuid}")
        of_gpu = f" on GPU {diagnosis.identity.gpu}" if len(group) > 1 else ""
        belongs = [f"{words} {labels[name]}" for name, words in BELONGS_TO.items() if name in labels]
        about = ", ".join(filter(None, (labels.get("command") or labels.get("process", ""), *belongs)))
        yield f"process {labels.get('pid', '')}{of_gpu}: {about}"
        if diagnosis.identity.neighbours:
            yield f"its CPUs are also used by {', '.join(diagnosis.identity.neighbours)}"


def why_unknown(mode: str, missing: Sequence[Signal], identity: DeviceIdentity, *, verbose: bool) -> str:
    """Return why a failure mode could not be judged."""
    if missing:
        return "missing: " + ", ".join(signal.record if verbose else title(signal) for signal in missing)
    if mode not in OF_JOBS:
        return "not watched for long enough"
    if identity.workload:
        return "no other GPU of the job was seen"
    return "the job is unknown: use --one-job if all GPUs are ranks of one job"


def hints_of(diagnoses: Sequence[Diagnosis]) -> tuple[str, str]:
    """Return what this watch could not tell of jobs, and what to try; empty where there is nothing to say."""
    return _unknown_job(diagnoses), _may_be_last(diagnoses)


def _unknown_job(diagnoses: Sequence[Diagnosis]) -> str:
    """Say that several GPUs communicate, and that their job is unknown, so that no ranks were compared."""
    communicating = [
        diagnosis
        for diagnosis in diagnoses
        if diagnosis.class_name == "communicating" and not diagnosis.identity.workload
    ]
    if not communicating or len({diagnosis.device.uuid for diagnosis in diagnoses}) < 2:
        return ""
    return (
        "The GPUs communicate, but their job is unknown. If they are ranks of one job, run again with --one-job to "
        "find a straggler."
    )


def _may_be_last(diagnoses: Sequence[Diagnosis]) -> str:
    """Say which rank of a launch-bound job was the last one in a watch that is too short to tell that it always is."""
    last = [diagnosis for diagnosis in diagnoses if MINUTES in diagnosis.unknown.get(ALWAYS_LAST, ())]
    if not last:
        return ""
    return (
        f"{names_of(last)} was the last to launch in a launch-bound job. One of its ranks always is; whether it is the "
        "same one for minutes, which would make it a straggler, is unknown: run again with --for 5m."
    )


def because(match: Match, group: Sequence[Diagnosis], printed: set[str], *, verbose: bool = False) -> list[str]:
    """Return what shows a finding that these GPUs have: the values that are not `printed` yet, and faulty links."""
    values = [found.because for each in group for found in each.matches if found.mode is match.mode]
    return [*evidence(values, printed, verbose=verbose), *links(match.mode, group)]


def evidence(by_gpu: Sequence[TermValues], printed: set[str], *, verbose: bool = False) -> list[str]:
    """Return the values that are not `printed` yet, in words."""
    texts = []
    terms = dict.fromkeys(term for of_gpu in by_gpu for term in of_gpu)
    for term in sorted(terms, key=lambda term: not isinstance(term, Over)):  # those of this GPU, then of other ranks
        if name_of(term) not in printed:
            printed.add(name_of(term))
            text = statement(term, [of_gpu[term] for of_gpu in by_gpu if term in of_gpu])
            texts.append(f"{text} [{series(term)}]" if verbose else text)
    return texts
