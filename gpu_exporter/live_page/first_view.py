"""The live page as it arrives: what its scripts replace, so that the values are there before and without them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from gpu_exporter.diagnosis.measurements import BY_NAME
from gpu_exporter.live_page.summary import BAD, WARN
from gpu_exporter.reports.numbers import capitalised, clock, measured, moment, whole_duration

_SIGNS = {BAD: "✖ ", WARN: "▲ "}
# The measurements of the table.
_COLUMNS = {"sm_active": "SM", "power": "Power", "temperature": "Temperature", "memory_used": "Memory"}
ABSENT = "\N{EN DASH}"
_HEAD = ("GPU", "Judgement", "Class", *_COLUMNS.values(), "Owner")


def tab_title(summary: Mapping[str, Any]) -> str:
    """Return what the tab says of a node."""
    return f"{_SIGNS.get(summary['tone'], '')}{summary['title']}"


def problems(answer: Mapping[str, Any], root: str) -> str:
    """Return the problems of a node as HTML. `root` is the path to the root of the server."""
    found = answer["summary"]["problems"]
    items = "".join(f'<li class="{each["tone"]}">{"".join(_problem(each, answer["at"], root))}</li>' for each in found)
    total = f'<p class="muted">{escape(cost)}.</p>' if (cost := answer["summary"]["cost"]) else ""
    return f'<ul class="problems">{items}</ul>{total}' if items else ""


def _problem(problem: Mapping[str, Any], now: float, root: str) -> Iterator[str]:
    yield f"<p>{_badge(problem)} <strong>{escape(problem['words'])}</strong></p>"
    about = [
        escape(problem["also_hit"]),
        escape(problem["owner"]),
        _since(problem["since"], now),
        escape(problem["cost"]),
    ]
    if any(about):
        yield f'<p class="muted">{" · ".join(filter(None, about))}</p>'
    if todo := " ".join(filter(None, (_ended(problem["action"]), problem["advice"].replace("`", "")))):
        yield f"<p><strong>What to do:</strong> {escape(todo)}"
        if problem["runbook"]:
            yield f' <a href="{root}runbooks/{escape(problem["runbook"])}">Runbook</a>'
        yield "</p>"
    yield from (f'<p class="where">{escape(line)}</p>' for line in problem["code"])


def _badge(judgement: Mapping[str, Any]) -> str:
    return f'<span class="badge {judgement["tone"]}">{escape(judgement["badge"])}</span>'


def _ended(action: str) -> str:
    return f"{capitalised(action)}." if action else ""


def _since(at: float | None, now: float) -> str:
    """Return since when something is so, as HTML; empty if that is unknown."""
    return f'<span title="{moment(at)}">since {clock(at, now)} ({whole_duration(now - at)})</span>' if at else ""


def table(answer: Mapping[str, Any]) -> str:
    """Return the GPUs in their order as a table."""
    summary = answer["summary"]
    by_id = {entry["id"]: entry for entry in answer["gpus"]}
    head = "".join(f'<th scope="col">{title}</th>' for title in _HEAD)
    rows = "".join("".join(_row(by_id[each], summary["judgements"][each], answer["at"])) for each in summary["order"])
    return (
        f"<p>Values of {moment(answer['at'])}; reload the page for new ones.</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _row(entry: Mapping[str, Any], judgement: Mapping[str, Any], now: float) -> Iterator[str]:
    name = f"GPU {entry['index']}" + (f" instance {entry['instance']} {entry['profile']}" if entry["instance"] else "")
    yield f'<tr><th scope="row">{escape(name)}</th>'
    since = " · ".join(filter(None, (escape(judgement["words"]), _since(judgement["since"], now))))
    yield f"<td>{_badge(judgement)} {since}</td><td>{escape(entry['class'] or 'unknown')}</td>"
    for name in _COLUMNS:
        value = entry["measurements"].get(name)
        yield f"<td>{ABSENT if value is None else measured(value, BY_NAME[name].unit)}</td>"
    yield f"<td>{escape(entry['owner'])}</td></tr>"
