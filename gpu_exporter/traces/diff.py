"""What got slower between two traces of the same job: by operator, kernel, code and cause of idle time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpu_exporter.catalogue.causes import TRACE_WORDS, TraceCause
from gpu_exporter.io.decoding import printable
from gpu_exporter.traces.text_report import duration
from gpu_exporter.traces.totals import CAUSE, CLASS, FRAME, IDLE_FRAME, KERNEL, OPERATOR, Total, Totals

# Of a step: a change that is smaller is not mentioned in the text.
LEAST_CHANGE = 0.005
MOST_ROWS, MOST_NAME = 5, 120
TITLES: Mapping[str, str] = {
    OPERATOR: "GPU time by operator",
    KERNEL: "GPU time by kernel",
    CLASS: "GPU time by class of kernel",
    FRAME: "GPU time by code that launched it",
    CAUSE: "Idle time of the GPU by cause",
    IDLE_FRAME: "Idle time of the GPU by code of the host",
}


@dataclass(frozen=True)
class Change:
    """One name in both traces, in seconds and events per step; 0 where a trace does not have it."""

    name: str
    before_seconds: float
    after_seconds: float
    before_count: float
    after_count: float

    @property
    def seconds(self) -> float:
        """By how much it is slower."""
        return self.after_seconds - self.before_seconds


@dataclass(frozen=True)
class Diff:
    """Two traces compared. Times are per step (`unit` is "step") or of the whole trace ("trace").

    `changes` has a list for each of `totals.KEYS`, with the largest slowdown first.
    """

    unit: str
    before: Totals
    after: Totals
    changes: Mapping[str, Sequence[Change]]

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON."""
        found: dict[str, Any] = {"unit": self.unit}
        for name, of_trace in (("before", self.before), ("after", self.after)):
            found[name] = {
                "steps": of_trace.steps,
                "gpus": of_trace.gpus,
                "step_seconds": of_trace.step_seconds,
                "busy_seconds": of_trace.busy_seconds,
            }
        found["changes"] = {
            key: [{**asdict(change), "seconds": change.seconds} for change in of_key]
            for key, of_key in self.changes.items()
        }
        return found


def diff(before: Totals, after: Totals) -> Diff:
    """Compare two traces: by step if both have steps, otherwise as a whole."""
    unit = "step" if before.steps and after.steps else "trace"
    if unit == "trace":
        before, after = _whole(before), _whole(after)
    changes = {}
    nothing = Total(0.0, 0.0)
    for key in TITLES:
        old, new = before.by[key], after.by[key]
        rows = [
            Change(name, first.seconds, second.seconds, first.count, second.count)
            for name in dict.fromkeys((*new, *old))
            for first, second in ((old.get(name, nothing), new.get(name, nothing)),)
        ]
        changes[key] = sorted(rows, key=lambda row: -row.seconds)
    return Diff(unit, before, after, changes)


def _whole(totals: Totals) -> Totals:
    """Return totals of the whole trace instead of a step."""
    factor = max(1, totals.steps)
    by = {
        key: {name: Total(each.seconds * factor, each.count * factor) for name, each in of_key.items()}
        for key, of_key in totals.by.items()
    }
    return Totals(0, totals.gpus, totals.step_seconds * factor, totals.busy_seconds * factor, by)


def lines(found: Diff) -> Iterator[str]:
    """Yield the comparison as text: first what explains most of the difference."""
    before, after = found.before, found.after
    change = after.step_seconds - before.step_seconds
    what = "A step" if found.unit == "step" else "The trace"
    share = f" ({change / before.step_seconds:+.1%})" if before.step_seconds else ""
    yield f"{what} took {duration(before.step_seconds)}, and now takes {duration(after.step_seconds)}{share}."
    busy, idle = (after.busy_seconds - before.busy_seconds, change - (after.busy_seconds - before.busy_seconds))
    yield f"The GPU works {_signed(busy)} and is idle {_signed(idle)} than before."
    if culprit := main_cause(found):
        yield f"Most of it: {culprit}."
    least = LEAST_CHANGE * max(before.step_seconds, after.step_seconds)
    for key, title in TITLES.items():
        rows = [row for row in found.changes[key] if abs(row.seconds) >= least]
        slower, faster = rows[:MOST_ROWS], [row for row in rows[MOST_ROWS:] if row.seconds < 0][-MOST_ROWS:]
        if rows:
            yield ""
            yield f"{title}, per {found.unit}"
        for row in (*slower, *faster):
            counts = f"{row.before_count:.4g} -> {row.after_count:.4g} x" if key not in (CAUSE, IDLE_FRAME) else ""
            times = f"{duration(row.before_seconds):>8} -> {duration(row.after_seconds):>8}"
            yield f"  {_plus(row.seconds):>10}  {times}  {counts:>18}  {_words(key, row.name)}"


def main_cause(found: Diff) -> str:
    """Return the largest slowdown in words: of an operator, or of a cause of idle time; "" if nothing got slower."""
    rows = {key: found.changes[key][0] for key in (OPERATOR, CAUSE) if found.changes[key]}
    if not rows:
        return ""
    key, row = max(rows.items(), key=lambda item: item[1].seconds)
    if row.seconds < LEAST_CHANGE * found.after.step_seconds:
        return ""
    if key == OPERATOR:
        code = next((each.name for each in found.changes[FRAME] if each.seconds > 0), "")
        at = f", launched by {printable(code, MOST_NAME)}" if code else ""
        return f"{_plus(row.seconds)} in the operator {_words(key, row.name)}{at}"
    code = next((each.name for each in found.changes[IDLE_FRAME] if each.seconds > 0), "")
    return f"{_plus(row.seconds)} idle, {_words(key, row.name)}" + (
        f", in {printable(code, MOST_NAME)}" if code else ""
    )


def _words(key: str, name: str) -> str:
    return TRACE_WORDS[TraceCause(name)] if key == CAUSE else printable(name, MOST_NAME)


def _plus(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}"


def _signed(seconds: float) -> str:
    return f"{duration(abs(seconds))} {'less' if seconds < 0 else 'more'}"
