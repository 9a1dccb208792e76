"""The state of the keyboard and the lines of the whole screen. Pure: a view, a size and keys -> lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_exporter.catalogue.failure_modes.mode import Severity
from gpu_exporter.diagnosis.diagnose import rank
from gpu_exporter.diagnosis.headline import STYLES
from gpu_exporter.diagnosis.loss import lost
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.io.decoding import printable
from gpu_exporter.reports.numbers import counted, whole_duration
from gpu_exporter.top.detail import detail, hit_by_incident, lasted
from gpu_exporter.top.jobs import job_lines
from gpu_exporter.top.lines import Glyphs, Line, Span, cut, fit, padded, width_of, wrapped
from gpu_exporter.top.state import DEGRADED, UNHEALTHY, GpuRow, View
from gpu_exporter.top.table import columns_for, heading, line

# A view that is older than this and than some collections is outdated, and its age is shown.
OLD_SECONDS, OLD_INTERVALS = 3.5, 2.5
LEAST_DETAIL = 5
# The table of GPUs needs the room.
MOST_INCIDENTS = 3
HELP = (
    ("up, down, j, k", "choose a GPU; also PgUp, PgDn, Home, End"),
    ("Enter, space", "show everything about the chosen GPU, or go back"),
    ("Tab", "show the jobs with several GPUs, or go back"),
    ("s, F6, < and >", "sort by the next of: worst first, index, loss, SM, power, temperature, memory, owner"),
    ("W, P, M, T", "sort by: worst first, SM, memory, temperature"),
    ("r, I", "reverse the order"),
    ("/, \\, F3, F4", "show only GPUs whose index, model, owner, class, finding or process contains a text"),
    ("Esc", "clear the filter, or go back"),
    ("?, h, F1", "show or hide this help"),
    ("q, F10, Ctrl-C", "quit"),
)
ABOUT = (
    "HEALTH is the verdict of the exporter, CLASS what limits the GPU, and FINDING the worst failure mode, over the"
    " last seconds (--for). LOSS is the share of its time that a GPU loses. A dash means that a value cannot be read."
)


def _urgency(row: GpuRow, place: float = 0) -> tuple[float, ...]:
    """Return the place of a GPU among others: `place`, that of the first incident that it causes, then its own."""
    own = row.diagnosis.rank if row.diagnosis else rank(None, 0.0)
    is_down = bool(row.gone or row.down)
    return (place, not is_down, row.health != UNHEALTHY, row.health != DEGRADED, *own)


def _is_sick(row: GpuRow) -> bool:
    return bool(row.gone or row.down) or row.health == UNHEALTHY


def _lost(row: GpuRow) -> float:
    return lost(row.diagnosis.shares) if row.diagnosis else 0.0


def _by(name: str) -> Callable[[GpuRow], float]:
    return lambda row: -row.values.get(name, -1.0)


ORDERS: dict[str, Callable[[GpuRow], object] | None] = {
    "worst first": _urgency,
    "index": None,
    "loss": lambda row: -_lost(row),
    "SM": _by("sm_active"),
    "power": _by("power"),
    "temperature": _by("temperature"),
    "memory": _by("memory_used"),
    "owner": lambda row: (not row.owner, row.owner),
}
# The order that a key chooses, as in htop.
ORDER_KEYS = {"W": "worst first", "P": "SM", "M": "memory", "T": "temperature"}
# What other keys mean, as in htop and nvitop.
SAME_KEYS = {
    "f1": "?",
    "h": "?",
    "f3": "/",
    "f4": "/",
    "\\": "/",
    "f6": "s",
    ">": "s",
    ".": "s",
    ",": "<",
    "I": "r",
    "f10": "q",
}


@dataclass(slots=True)
class Screen:
    """What is chosen and how it is shown. `size` is columns and rows."""

    marks: Glyphs
    size: tuple[int, int] = (80, 24)
    order: str = "worst first"
    chosen: int = field(default=0, init=False)
    offset: int = field(default=0, init=False)
    scroll: int = field(default=0, init=False)
    reverse: bool = field(default=False, init=False)
    filter: str = field(default="", init=False)
    typing: bool = field(default=False, init=False)
    expanded: bool = field(default=False, init=False)
    jobs: bool = field(default=False, init=False)
    help: bool = field(default=False, init=False)
    done: bool = field(default=False, init=False)
    _pressed: bool = field(default=False, init=False)
    _shown: int = field(default=0, init=False)
    _key: DeviceKey | None = field(default=None, init=False)

    # --- keys ---------------------------------------------------------------------------------------------------------

    def press(self, key: str) -> None:
        """Handle a key: a character, or a name such as `up`."""
        self._pressed = True
        if not self.typing:
            key = SAME_KEYS.get(key, key)
        if key == "ctrl-c" or (key == "q" and not self.typing):
            self.done = True
        elif self.typing:
            self._type(key)
        elif key == "?":
            self.help, self.scroll = not self.help, 0
        elif key in ("esc", "enter", " ", "tab") and (self.help or self.expanded or self.jobs):
            self.help = self.expanded = self.jobs = False
            self.scroll = 0
        elif key == "tab":
            self.jobs, self.scroll = True, 0
        elif key in ("enter", " "):
            self.expanded, self.scroll = True, 0
        elif key == "esc":
            self.filter = ""
        elif key == "/":
            self.typing, self.filter = True, ""
        elif key in ("s", "<", "r") or key in ORDER_KEYS:
            self._sort(key)
        else:
            self._move(key)

    def _sort(self, key: str) -> None:
        names = list(ORDERS)
        if key == "r":
            self.reverse = not self.reverse
        else:
            step = {"s": 1, "<": -1}.get(key, 0)
            self.order = ORDER_KEYS.get(key) or names[(names.index(self.order) + step) % len(names)]
        self.chosen, self._key = 0, None

    def _type(self, key: str) -> None:
        if key in ("enter", "esc"):
            self.typing = False
            self.filter = "" if key == "esc" else self.filter
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key

    def _move(self, key: str) -> None:
        page = max(1, self.size[1] - 6)
        step = {"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -page, "pgdn": page, "home": -(10**6), "end": 10**6}
        if key not in step:
            return
        if self.expanded or self.help or self.jobs:
            self.scroll = max(0, self.scroll + step[key])
        else:
            self.chosen = min(max(0, self.chosen + step[key]), max(0, self._shown - 1))
            self._key = None

    # --- lines --------------------------------------------------------------------------------------------------------

    def lines(self, view: View, now: float | None = None) -> list[Line]:
        """Return exactly as many lines as the screen has rows."""
        width, height = self.size
        now = time.time() if now is None else now
        head, foot = self._head(view, now), self._foot()
        rows = self._rows(view)
        self._shown = len(rows)
        self._choose(rows)
        room = max(0, height - len(head) - 1)
        body = self._help() if self.help else self._body(view, rows, now, room)
        lines = [*head, *body[:room]]
        lines += [()] * (height - 1 - len(lines))
        return [*(cut(spans, width) for spans in lines[: height - 1]), foot]

    def _choose(self, rows: Sequence[GpuRow]) -> None:
        """Follow the chosen GPU when values change the order; the first place until a key is pressed."""
        keys = [row.key for row in rows]
        self.chosen = keys.index(self._key) if self._key in keys else min(self.chosen, max(0, len(rows) - 1))
        self._key = keys[self.chosen] if keys and self._pressed else None

    def _rows(self, view: View) -> list[GpuRow]:
        wanted, key = self.filter.lower(), ORDERS[self.order]
        rows = [row for row in view.gpus if not wanted or wanted in _searched(row)]
        if key is _urgency:  # in the order of their incidents, as in `diagnose`
            places = {
                (gpu.get("UUID"), gpu.get("GPU_I_ID", "")): place
                for place, each in reversed(list(enumerate(view.incidents)))
                for gpu in each["culprits"]
            }
            # A GPU that is lost or unhealthy without one is behind the critical ones.
            sick = sum(each["severity"] == Severity.CRITICAL.value for each in view.incidents) - 0.5
            others = {row.key: sick if _is_sick(row) else len(view.incidents) for row in rows}
            rows.sort(key=lambda row: _urgency(row, places.get((row.key.uuid, row.key.instance), others[row.key])))
        elif key:
            rows.sort(key=key)  # type: ignore[arg-type]  # each key is comparable with itself
        return rows[::-1] if self.reverse else rows

    def _head(self, view: View, now: float) -> list[Line]:
        width = self.size[0]
        count = counted(len(view.gpus), "GPU")
        missing = f", {view.missing} missing" if view.missing else ""
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        left = f"gpu-exporter top  {view.origin}  {count}{missing}"
        lines: list[Line] = [(Span(fit(left, max(0, width - len(clock) - 1)), "title"), Span(f" {clock}", "title"))]
        if view.banner:
            lines.append(padded((Span(f" {view.banner}"),), width, "banner"))
        age = now - view.at
        if view.problem or (view.at and age > max(OLD_SECONDS, OLD_INTERVALS * view.interval)):
            old = f" The values are {whole_duration(age)} old." if view.at else ""
            text = f" {view.problem or 'No new values.'}"
            lines.append(padded((Span(fit(text, max(0, width - width_of(old))) + old),), width, "problem"))
        for each in view.incidents[:MOST_INCIDENTS]:
            if each["severity"] != "info":
                lines += _incident(each, view, width)
        return lines

    def _foot(self) -> Line:
        width = self.size[0]
        if self.typing:
            return padded((Span(f" Filter: {self.filter}_   Enter keeps it, Esc clears it"),), width, "keys")
        shown = f"filter: {self.filter}  " if self.filter else ""
        order = f"sort: {self.order}{' (reversed)' if self.reverse else ''}"
        text = f" {shown}? help  s {order}  / filter  Enter details  Tab jobs  q quit"
        return padded((Span(text),), width, "keys")

    def _body(self, view: View, rows: Sequence[GpuRow], now: float, room: int) -> list[Line]:
        width = self.size[0]
        if not rows:
            text = (
                "No GPU matches the filter." if view.gpus else "Waiting for the first values …" if not view.at else ""
            )
            return [(), (Span(f"  {text or 'No GPU was found; `gpu-exporter doctor` says why.'}", "dim"),)]
        at = view.at or now
        of_jobs = job_lines(rows, width, self.marks)
        if self.jobs:
            lines = of_jobs or [(Span("  No job has several GPUs.", "dim"),)]
            self.scroll = min(self.scroll, max(0, len(lines) - room))
            return lines[self.scroll :]
        if self.expanded:
            lines = detail(rows[self.chosen], at, width, self.marks, view)
            self.scroll = min(self.scroll, max(0, len(lines) - room))
            return lines[self.scroll :]
        columns = columns_for(width, rows)
        visible = max(1, min(len(rows), room - 1 - (LEAST_DETAIL + 1 if room > 3 * LEAST_DETAIL else 0)))
        self.offset = min(max(self.offset, self.chosen - visible + 1), self.chosen, max(0, len(rows) - visible))
        shown = rows[self.offset : self.offset + visible]
        lines = [heading(columns, width)]
        lines += [
            line(row, columns, width, self.marks, chosen=place == self.chosen)
            for place, row in enumerate(shown, self.offset)
        ]
        if room - len(lines) > LEAST_DETAIL:
            lines.append((Span(self.marks.rule * width, "dim"),))
            lines += detail(rows[self.chosen], at, width, self.marks, view)
        for block in (of_jobs, *self._others(rows, at, view)):
            if block and room - len(lines) > len(block):
                lines += [(Span(self.marks.rule * width, "dim"),), *block]
        return lines

    def _others(self, rows: Sequence[GpuRow], at: float, view: View) -> Iterator[list[Line]]:
        """Yield the details of the other GPUs with findings, for screens that have room."""
        for place, row in enumerate(rows):
            if place != self.chosen and row.diagnosis and row.diagnosis.matches:
                yield detail(row, at, self.size[0], self.marks, view)

    def _help(self) -> list[Line]:
        width = self.size[0]
        lines: list[Line] = [()]
        for keys, words in HELP:
            lines += wrapped(words, width, " " * 18, first=f"  {keys:<15} ")
        return [*lines, (), *wrapped(ABOUT, width, "  ", first="  ")]


def _incident(incident: Mapping[str, Any], view: View, width: int) -> Iterator[Line]:
    """Yield what broke, which other GPUs it hits, for how long, and where its culprit is in its code.

    What does not fit one line has two.
    """
    lasting = lasted(incident["since"], view.at, view.since) if incident["since"] else ""
    about = ", ".join(filter(None, (hit_by_incident(incident), lasting)))
    hit = f"({about})" if about else ""
    text, style = printable(f" {incident['words']}", width), STYLES[incident["severity"]]
    if hit and width_of(text) + 1 + len(hit) > width:
        yield cut((Span(text, style),), width)
        yield cut((Span(f"   {hit}", style),), width)
    else:
        yield (Span(f"{text} {hit}".rstrip(), style),)
    for code in incident.get("code", ())[:1]:
        yield cut((Span(f"   {code}", "dim"),), width)


def _searched(row: GpuRow) -> str:
    """Return all texts of a GPU in which the filter looks."""
    findings = [match.mode.name for match in row.diagnosis.matches] if row.diagnosis else []
    commands = [process.command for process in row.processes]
    job = row.diagnosis.identity.job if row.diagnosis else ""
    texts = (job, row.name, row.model, row.node, row.owner, row.class_name, row.health, row.down, row.key.uuid)
    return "\n".join((*texts, *findings, *commands)).lower()
