"""What the live page says first: the problems of a node, one judgement of each GPU, and their order. Pure.

Everything is derived from the entries of `/api/v1/gpus`, in which names may be masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_exporter.catalogue.causes import LEAST_LOSS, WORDS, Cause
from gpu_exporter.diagnosis.headline import STYLES
from gpu_exporter.diagnosis.incident_words import silent
from gpu_exporter.diagnosis.rolling import RANK_WORDS, RankState
from gpu_exporter.diagnosis.words import cost, hit_words, named
from gpu_exporter.model.verdict import Action, Health
from gpu_exporter.reports.numbers import capitalised, gpu_hours, percent

GOOD, WARN, BAD, IDLE, UNKNOWN = "good", "warn", "bad", "idle", "unknown"
TONES = {Health.HEALTHY: GOOD, Health.DEGRADED: WARN, Health.UNHEALTHY: BAD, Health.UNKNOWN: UNKNOWN}
_WORST = [BAD, WARN, UNKNOWN]
_SICK = [Health.UNHEALTHY.value, Health.DEGRADED.value]
# What a rank of a job does, if no finding says why.
_TONES = {RankState.WAITED_FOR: BAD, RankState.WAITING: IDLE}
_RANKS = {state.value: (tone, capitalised(RANK_WORDS[state])) for state, tone in _TONES.items()}
# How many clauses the title has.
MOST_CLAUSES = 2

Entry = Mapping[str, Any]


class PageProblem(NamedTuple):
    """An incident, a sick GPU, GPUs that are missing, or a job that waits. `gpus` are the ids of those that cause it,
    `hit` those of others. `title` says in a few words what `words` says in a sentence."""

    tone: str
    badge: str
    title: str
    words: str
    gpus: Sequence[str] = ()
    hit: Sequence[str] = ()
    also_hit: str = ""
    owner: str = ""
    since: float | None = None
    cost: str = ""
    action: str = ""
    advice: str = ""
    runbook: str = ""
    code: Sequence[str] = ()


class Judgement(NamedTuple):
    """What the page says about one GPU, or one rank of a job, wherever it is shown."""

    tone: str
    badge: str
    words: str = ""
    since: float | None = None


def id_of(uuid: str, instance: str, index: int) -> str:
    """Return the id of a GPU or MIG instance; a GPU that was never identified has only its index."""
    return f"{uuid}/{instance}" if instance else uuid or f"gpu{index}"


def summarise(
    entries: Sequence[Entry], jobs: Sequence[Entry], incidents: Sequence[Entry], missing: int, lost: float = 0.0
) -> dict[str, Any]:
    """Return title, tone, problems, judgements by id, and the ids in order, the worst first; all for JSON.

    `lost` is what the incidents cost together, in GPU-hours per hour.
    """
    by_id = {entry["id"]: entry for entry in entries}
    problems = [*_incidents(by_id, incidents), *_missing(missing)]
    problems += _sick(entries, problems)
    problems += _held_up(by_id, jobs, incidents)
    problems.sort(key=lambda problem: _WORST.index(problem.tone))
    states = {rank["id"]: rank["state"] for job in jobs for rank in job["ranks"]}
    judged = {entry["id"]: _judged(entry, states.get(entry["id"], ""), problems, by_id) for entry in entries}
    return {
        "title": _title(entries, problems, missing),
        "health": _health(entries, missing) + _hit(entries, problems),
        "tone": problems[0].tone if problems else GOOD if entries else UNKNOWN,
        "cost": _total_cost(problems, lost),
        "problems": [problem._asdict() for problem in problems],
        "judgements": {name: judgement._asdict() for name, judgement in judged.items()},
        "order": _order(entries, problems, judged),
    }


def names_of_entries(entries: Iterable[Entry]) -> str:
    """Return GPUs as in `GPUs 0-3, 6`."""
    return named([(entry["index"], entry["instance"]) for entry in entries])


def _devices(incident: Entry, role: str, by_id: Mapping[str, Entry]) -> list[Entry]:
    ids = (id_of(device["UUID"], device.get("GPU_I_ID", ""), 0) for device in incident[role])
    return [by_id[each] for each in ids if each in by_id]


def _incidents(by_id: Mapping[str, Entry], incidents: Sequence[Entry]) -> Iterator[PageProblem]:
    """Yield the incidents that somebody has to look at. What the verdict on a GPU says is more precise."""
    said: set[str] = set()
    for incident in incidents:
        gpus, hit = _devices(incident, "culprits", by_id), _devices(incident, "hit", by_id)
        if incident["severity"] == "info" or not gpus:
            continue
        sick = [entry for entry in gpus if entry["health"] in _SICK and entry["problems"]]
        name = names_of_entries(gpus)
        words = incident["words"]
        if len(gpus) == len(sick) == 1 and sick[0]["id"] not in said:
            said.add(sick[0]["id"])
            words = _words(name, sick[0])
        worst = max((Health(entry["health"]) for entry in sick), default=None)
        yield PageProblem(
            tone=BAD if worst is Health.UNHEALTHY else STYLES[incident["severity"]],
            badge=(worst.value if worst else incident["severity"]).capitalize(),
            title=_clause(name, len(gpus) > 1, worst, hit, incident),
            words=words,
            gpus=[entry["id"] for entry in gpus],
            hit=[entry["id"] for entry in hit],
            also_hit=hit_words(names_of_entries(hit)) if hit else "",
            owner=_owner(gpus, incident),
            since=min(filter(None, (incident["since"], *(each["since"] for each in sick))), default=None),
            cost=cost(incident["lost_gpu_hours_per_hour"]),
            action="" if incident["action"].lower() in incident["advice"].lower() else incident["action"],
            advice=incident["advice"],
            runbook=incident["cause"].lower(),
            code=incident.get("code", ()),
        )


def _clause(name: str, several: bool, worst: Health | None, hit: Sequence[Entry], incident: Entry) -> str:
    """Return what the title says of an incident."""
    clauses = [f"{'are' if several else 'is'} {worst.value}"] if worst else []
    if hit:
        verb = ("hold up" if several else "holds up") if incident["jobs"] else ("affect" if several else "affects")
        clauses.append(f"{verb} {names_of_entries(hit)}")
    return f"{name} {' and '.join(clauses)}" if clauses else f"{name}: {incident['cause']}"


def _words(name: str, entry: Entry) -> str:
    """Return why a GPU is not healthy, or does not answer, as a sentence."""
    if entry["problems"]:
        why = "; ".join(problem["what"] for problem in entry["problems"])
        return f"{name}: {why}" if entry["up"] else silent(name, why)
    reasons = "" if not entry["up"] else "; ".join(f"{each['what']}: {each['why']}" for each in entry["unknown"])
    return f"{name}: {reasons or entry['headline']['words']}"


def _owner(gpus: Sequence[Entry], incident: Entry) -> str:
    owners = {entry["owner"] for entry in gpus}
    return str(next(iter(incident["jobs"]), "") or (owners.pop() if len(owners) == 1 else ""))


def _total_cost(problems: Sequence[PageProblem], lost: float) -> str:
    """Return what problems cost together if several cost something."""
    if sum(bool(problem.cost) for problem in problems) < 2:
        return ""
    return f"Together, they cost {gpu_hours(lost)} an hour"


def _sick(entries: Sequence[Entry], problems: Sequence[PageProblem]) -> Iterator[PageProblem]:
    """Yield the GPUs that are not healthy, and cause no incident. The verdict is on the whole GPU."""
    shown = {gpu for problem in problems for gpu in problem.gpus}
    for entry in entries:
        if entry["instance"] or entry["health"] == Health.HEALTHY.value or entry["id"] in shown:
            continue
        name = names_of_entries([entry])
        unknown = entry["health"] == Health.UNKNOWN.value
        yield PageProblem(
            tone=TONES[Health(entry["health"])],
            badge=entry["health"].capitalize(),
            title=f"the health of {name} is unknown" if unknown else f"{name} is {entry['health']}",
            words=_words(name, entry),
            gpus=[entry["id"]],
            owner=entry["owner"],
            since=entry["since"],
            action=Action(entry["action"]).words if entry["problems"] else "",
        )


def _missing(number: int) -> Iterator[PageProblem]:
    if number:
        title = f"{number} expected {'GPU is' if number == 1 else 'GPUs are'} missing"
        words = f"{title}: the driver does not list {'it' if number == 1 else 'them'}"
        yield PageProblem(BAD, "Missing", title, words, action="run `gpu-exporter doctor` on the node")


def _held_up(by_id: Mapping[str, Entry], jobs: Sequence[Entry], incidents: Sequence[Entry]) -> Iterator[PageProblem]:
    """Yield the jobs whose ranks wait for one of them, if no incident says why."""
    explained = explained_jobs(incidents)
    for job in jobs:
        waiting, slow = (
            [by_id[rank["id"]] for rank in job["ranks"] if rank["state"] == state.value and rank["id"] in by_id]
            for state in (RankState.WAITING, RankState.WAITED_FOR)
        )
        if not waiting or job["name"] in explained:
            continue
        slow_names = names_of_entries(slow) if slow else ""
        yield PageProblem(
            WARN,
            "Slow",
            f"job {job['name']} is slow",
            waiting_words(job["name"], names_of_entries(waiting), len(waiting), slow_names),
            gpus=[entry["id"] for entry in slow],
            hit=[entry["id"] for entry in waiting],
        )


def explained_jobs(incidents: Iterable[Entry]) -> set[str]:
    """Return the jobs of incidents that need attention."""
    return {job for incident in incidents if incident["severity"] != "info" for job in incident["jobs"]}


def waiting_words(job: str, waiting: str, number: int, slow: str) -> str:
    """Return what some ranks of a job wait for, as a sentence. `slow` names the ranks of this node that hold it up."""
    return f"Job {job}: {waiting} {'waits' if number == 1 else 'wait'} for {slow or 'a rank on another node'}"


def _health(entries: Sequence[Entry], missing: int) -> str:
    """Return how many GPUs are healthy."""
    whole = [entry["health"] for entry in entries if not entry["instance"]]
    total, healthy = len(whole) + missing, whole.count(Health.HEALTHY.value)
    if not total:
        return "No GPU"
    if healthy == total:
        return "The GPU is healthy" if total == 1 else f"All {total} GPUs are healthy"
    return f"{healthy} of {total} {'GPU' if total == 1 else 'GPUs'} healthy"


def _hit(entries: Sequence[Entry], problems: Sequence[PageProblem]) -> str:
    """Return how many GPUs the problems of others hit, and whose; a victim of several counts once."""
    whole = {entry["id"] for entry in entries if not entry["instance"]}
    victims = whole & {gpu for problem in problems for gpu in problem.hit if gpu not in problem.gpus}
    if not victims:
        return ""
    shown = {gpu for problem in problems if victims.intersection(problem.hit) for gpu in problem.gpus}
    culprits = [entry for entry in entries if entry["id"] in shown]
    by = names_of_entries(culprits) if culprits else "a rank on another node"
    subject = "it is" if len(whole) == 1 else f"{len(victims)} {'is' if len(victims) == 1 else 'are'}"
    return f"; {subject} hit by {by}"


def _title(entries: Sequence[Entry], problems: Sequence[PageProblem], missing: int) -> str:
    clauses = list(dict.fromkeys(problem.title for problem in problems))
    if not clauses:
        return _health(entries, missing)
    more = f", and {len(clauses) - MOST_CLAUSES} more" if len(clauses) > MOST_CLAUSES else ""
    return capitalised("; ".join(clauses[:MOST_CLAUSES]) + more)


def _judged(entry: Entry, state: str, problems: Sequence[PageProblem], by_id: Mapping[str, Entry]) -> Judgement:
    """Return the judgement of a GPU: a cause, a victim, or neither."""
    line, health = entry["headline"], Health(entry["health"])
    # The problem above, and the opened row, say what to do: a row has no room for it.
    of_verdict = entry["up"] and entry["problems"]
    said = line["words"].partition(": ")[0] if of_verdict else line["words"]
    for problem in problems:
        if entry["id"] in problem.gpus:
            healthy = health in (Health.HEALTHY, Health.UNKNOWN) and problem.badge.lower() != entry["health"]
            badge = ("Root cause" if problem.hit else problem.badge) if healthy else health.value.capitalize()
            return Judgement(problem.tone, badge, _hit_too(entry, problems, by_id) + said, line["since"])
    for problem in problems:
        if entry["id"] in problem.hit:
            causes = [by_id[gpu] for gpu in problem.gpus]
            return Judgement(
                IDLE, f"Hit by {names_of_entries(causes)}" if causes else capitalised(RANK_WORDS[RankState.WAITING])
            )
    if health is Health.HEALTHY and state in _RANKS:
        return Judgement(*_RANKS[state])
    since = line["since"] if line["severity"] == "info" else None
    words = largest_loss(entry["time"]) if line["severity"] == "ok" else said
    return Judgement(TONES[health], health.value.capitalize(), words, since)


def _hit_too(entry: Entry, problems: Sequence[PageProblem], by_id: Mapping[str, Entry]) -> str:
    """Return whose problems hit a GPU that has a problem itself, as a sentence; empty if none do."""
    hit_by = (problem for problem in problems if entry["id"] in problem.hit and entry["id"] not in problem.gpus)
    causes = dict.fromkeys(gpu for problem in hit_by for gpu in problem.gpus)
    return f"Hit by {names_of_entries(by_id[gpu] for gpu in causes)}. " if causes else ""


def largest_loss(time: Mapping[str, float]) -> str:
    """Return what costs a GPU most of its time; empty if little is lost."""
    losses = {Cause(cause): share for cause, share in time.items() if Cause(cause).is_loss}
    cause = max(losses, key=losses.__getitem__, default=None)
    if cause is None or losses[cause] < LEAST_LOSS:
        return ""
    return f"{capitalised(WORDS[cause])}: {percent(losses[cause])} of the time"


def _order(entries: Sequence[Entry], problems: Sequence[PageProblem], judged: Mapping[str, Judgement]) -> list[str]:
    """Return the ids of GPUs, each followed by its MIG instances: causes first, then victims, then the rest."""
    places = {gpu: place for place, problem in reversed(list(enumerate(problems))) for gpu in problem.gpus}
    worst: dict[str, int] = {}
    for entry in entries:
        tone = judged[entry["id"]].tone
        place = places.get(entry["id"], len(problems) + (0 if tone == BAD else 1 if tone == IDLE else 2))
        worst[entry["index"]] = min(place, worst.get(entry["index"], place))
    return [entry["id"] for entry in sorted(entries, key=lambda entry: worst[entry["index"]])]
