"""The report of a job that runs or has ended: as text, JSON and HTML. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpu_exporter.catalogue.causes import WORDS, Cause
from gpu_exporter.diagnosis.job_history import MODE, PastJob, RankTotals
from gpu_exporter.diagnosis.kept_records import KeptIncident
from gpu_exporter.diagnosis.words import cost_so_far, explaining, hit_words, places
from gpu_exporter.io.decoding import printable
from gpu_exporter.reports.html_document import page_foot, page_head, safe_text, table, verdict
from gpu_exporter.reports.numbers import counted, duration, gpu_hours, moment, percent

HOUR = 3600.0
LONGEST_ADVICE = 1000
# Of more ranks, text has those that lost most.
MOST_RANKS = 16
_WORDS = {cause.value: words for cause, words in WORDS.items()}
_HEAD = ("rank", "node", "GPU", "useful", "lost most to", "steps", "step", "own time", "")


def exit_code(history: PastJob) -> int:
    """Return 1 if there was an incident that is more than info."""
    return int(any(each.severity != "info" for each in history.incidents))


def as_json(history: PastJob, price: float | None = None) -> dict[str, Any]:
    """Return a report for JSON: times in unix seconds, GPU time in hours."""
    lost = history.lost / HOUR
    return {
        "job": history.job,
        "since": history.since,
        "until": history.until,
        "start": history.start,
        "end": history.end,
        "gpu_hours": round(history.seconds / HOUR, 3),
        "time_gpu_hours": {cause: round(seconds / HOUR, 3) for cause, seconds in history.time.items()},
        "lost_gpu_hours": round(lost, 3),
        **({"lost_usd": round(lost * price, 2)} if price is not None else {}),
        "goodput": None if history.goodput is None else round(history.goodput, 4),
        "incidents": [
            {**each.as_dict(), **({"lost_usd": round(each.lost_gpu_hours * price, 2)} if price is not None else {})}
            for each in history.incidents
        ],
        "ranks": ranks_as_json(history.ranks),
        "remarks": list(history.remarks),
    }


def ranks_as_json(ranks: Iterable[RankTotals]) -> list[dict[str, Any]]:
    """Return ranks for JSON, without what is unknown."""
    return [_rank(rank) for rank in ranks]


def _rank(rank: RankTotals) -> dict[str, Any]:
    found = {
        "rank": rank.rank,
        "node": rank.node,
        "gpu": rank.gpu,
        "UUID": rank.uuid,
        "GPU_I_ID": rank.instance,
        "seconds": round(rank.seconds, 1),
        "time": {cause: round(seconds, 1) for cause, seconds in rank.time.items()},
        "steps": rank.steps,
        "step_seconds": round(rank.step_seconds / rank.steps, 4) if rank.steps else None,
        "self_seconds": None if rank.own is None else round(rank.own, 4),
        "excess_seconds": round(rank.excess, 4),
        "straggler_seconds": round(rank.straggled, 1) or None,
        "state": rank.note,
        "activity": {name: round(seconds, 1) for name, seconds in rank.activity.items()},
        "restarts": rank.restarts,
    }
    return {name: value for name, value in found.items() if value not in ("", None, {})}


def lines(history: PastJob, price: float | None = None) -> Iterator[str]:
    """Yield the report as text."""
    yield from _summary(history, price)
    for each in history.incidents:
        yield f"Incident ({each.severity}): {each.words}"
        yield from (f"    {fact}" for fact in _facts(each, price))
        if advice := _advice(each):
            yield f"    -> {advice}"
    if not history.incidents:
        yield "No incident was recorded."
    yield from rank_lines("Ranks", history.ranks)
    yield from (f"Note: {remark}" for remark in history.remarks)


def rank_lines(title: str, ranks: Sequence[RankTotals]) -> Iterator[str]:
    """Yield a table of ranks as text; of many, those that lost most."""
    shown = ranks
    if len(ranks) > MOST_RANKS:
        worst = sorted(ranks, key=lambda rank: (-rank.excess, not rank.note, -rank.straggled, -rank.lost))[:MOST_RANKS]
        shown = [rank for rank in ranks if rank in worst]
        title = f"{title}, the {MOST_RANKS} of {len(ranks)} that lost most (--json has all)"
    if shown:
        yield f"{title}:"
        yield from aligned([_HEAD, *map(_row, shown)])


def rank_table(ranks: Sequence[RankTotals], label: str) -> Iterator[str]:
    """Yield a table of ranks as HTML."""
    yield from table(_HEAD, [list(map(safe_text, _row(rank))) for rank in ranks], label)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "    " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _summary(history: PastJob, price: float | None) -> Iterator[str]:
    gpus = len({(rank.uuid, rank.instance) for rank in history.ranks})
    nodes = len({rank.node for rank in history.ranks})
    span = f"{moment(history.start)} to {moment(history.end)}, {duration(history.end - history.start)}"
    yield f"Job {history.job}: {counted(gpus, 'GPU')} on {counted(nodes, 'node')}, seen from {span}"
    if history.seconds:
        parts = (
            f"{percent(seconds / history.seconds)} {_WORDS.get(cause, cause)}"
            for cause, seconds in history.time.items()
        )
        yield f"Where the GPU time went: {', '.join(parts)}."
        yield f"Lost: {gpu_hours(history.lost / HOUR, price)} of {gpu_hours(history.seconds / HOUR)}."
    if history.goodput is not None:
        yield f"Goodput: {percent(history.goodput)} of the time in training steps."
    for rank in sorted(history.ranks, key=lambda rank: -rank.excess)[:3]:
        if rank.excess and rank.own is not None:
            yield (
                f"Straggler: {_name(rank)}: its own work takes {duration(rank.own)} per step,"
                f" {duration(rank.excess)} more than usual."
            )


def _name(rank: RankTotals) -> str:
    number = f"rank {rank.rank} on " if rank.rank else ""
    return f"{number}{rank.node} GPU {rank.gpu or rank.uuid}"


def _facts(incident: KeptIncident, price: float | None) -> Iterator[str]:
    end = f"to {moment(incident.end)}" if incident.end is not None else f"last seen {moment(incident.seen)}"
    length = (incident.end or incident.seen) - incident.start
    yield f"{moment(incident.start)} {end}, {duration(length)}"
    yield f"{explaining(incident.cause, incident.explains)}; culprit: {_places(incident.culprits)}"
    if incident.hit:
        yield hit_words(_places(incident.hit))
    yield cost_so_far(incident.lost_gpu_hours, price, has_ended=incident.end is not None)


def _advice(incident: KeptIncident) -> str:
    """Return what the node said to do first; without that, what the failure mode says."""
    mode = MODE.get(incident.cause)
    return printable(incident.advice, LONGEST_ADVICE) or (mode.advice if mode else "")


def _places(gpus: Sequence[Mapping[str, str]]) -> str:
    return places((gpu.get("node", ""), gpu.get("gpu") or gpu.get("UUID", ""), gpu.get("GPU_I_ID", "")) for gpu in gpus)


def _row(rank: RankTotals) -> tuple[str, ...]:
    useful = rank.time.get(Cause.USEFUL.value, 0.0)
    lost = {cause: seconds for cause, seconds in rank.time.items() if cause != Cause.USEFUL.value and seconds}
    most = max(lost, key=lost.__getitem__, default="")
    return (
        rank.rank or "-",
        rank.node,
        f"{rank.gpu or rank.uuid}{f'/{rank.instance}' if rank.instance else ''}",
        percent(useful / rank.seconds) if rank.seconds and rank.time else "-",
        f"{percent(lost[most] / rank.seconds)} {_WORDS.get(most, most)}" if most and rank.seconds else "-",
        f"{rank.steps:.0f}" if rank.steps else "-",
        duration(rank.step_seconds / rank.steps) if rank.steps else "-",
        "-" if rank.own is None else duration(rank.own),
        _straggles(rank),
    )


def _straggles(rank: RankTotals) -> str:
    straggles = f"straggler for {duration(rank.straggled)}" if rank.straggled else "straggler" if rank.excess else ""
    return ", ".join(filter(None, (straggles, rank.note)))


def page(history: PastJob, price: float | None = None) -> str:
    """Return the report as one HTML document without scripts."""
    return "".join(_document(history, price))


def _document(history: PastJob, price: float | None) -> Iterator[str]:
    title = f"Job {history.job}"
    yield from page_head(title)
    yield f"<h1>{safe_text(title)}</h1>\n"
    urgent = [each for each in history.incidents if each.severity != "info"]
    kind = min((each.severity for each in urgent), default="ok")  # critical before warning
    count = len(history.incidents)
    yield from verdict(kind, counted(count, "incident"), list(_summary(history, price)))
    for each in history.incidents:
        yield f"<h2>{safe_text(f'{each.severity}: {each.words}')}</h2>\n<ul>\n"
        yield from (f"<li>{safe_text(fact)}</li>\n" for fact in _facts(each, price))
        yield f"</ul>\n<p>{safe_text(_advice(each))}</p>\n"
    if history.ranks:
        yield "<h2>Ranks</h2>\n"
        yield from rank_table(history.ranks, "Ranks")
    yield from (f"<p>{safe_text(remark)}</p>\n" for remark in history.remarks)
    yield from page_foot(as_json(history, price), "diagnosis")
