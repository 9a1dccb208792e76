"""Runs an active check: all GPUs at once, then each alone, then the links between them. It only acts:
`verdicts.py` says what the results mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from gpu_exporter.active_checks.process import Answer, Child, end_all
from gpu_exporter.catalogue.capabilities import Quantity
from gpu_exporter.catalogue.gpu_models import GpuModel

# The measurements of a single GPU, in the order in which they run; `measure.MEASUREMENTS` has the same.
MEASUREMENTS = tuple(quantity.value for quantity in Quantity if quantity is not Quantity.NVLINK)
# What depends on how busy the host is at the moment: the better one of both measurements counts.
OF_HOST = (Quantity.PCIE_TO_GPU.value, Quantity.PCIE_FROM_GPU.value)
# How often what looks slow is measured again; the best result counts.
REPEATS = 2
# The longest that one request may take, and the first one, which may load the driver and compile.
STEP_SECONDS, OPEN_SECONDS = 6.0, 12.0
# The part of the time of level 2 in which it tests memory; in the other part it computes.
MEMORY_PART = 1 / 3
# The most that one request may use of the time that is left, and the least that a request is worth (seconds).
MOST_SHARE, LEAST_SECONDS = 0.4, 0.5
# What is left of the time limit to end processes and to report.
REPORT_SECONDS = 2.0
# By level: how long a check may take unless the user says something else.
TIME_LIMITS = {1: 30.0, 2: 90.0}


@dataclass(frozen=True, slots=True)
class CheckTarget:
    """A GPU to check. `rates` is what its model can do, `link` the capacity of its PCIe link in bytes/s, if known."""

    index: int
    uuid: str
    pci: str
    model: str
    rates: GpuModel | None = None
    link: float | None = None


@dataclass(slots=True)
class Outcome:
    """The answers about one GPU by measurement: `together` with all others, and `alone`. `failed` is the first failure
    with the name of its step."""

    target: CheckTarget
    together: dict[str, Answer] = field(default_factory=dict)
    alone: dict[str, Answer] = field(default_factory=dict)
    memory_test: Answer | None = None
    sustained: Answer | None = None
    failed: tuple[str, Answer] | None = None


@dataclass(slots=True)
class Outcomes:
    """The answers about all GPUs and each ordered pair of them, and how long each part took (seconds).

    `ring` has the rate of each GPU to the next one, while all of them copy. `links_error` says why pairs or the ring
    were not measured. `out_of_time`: not everything was measured within the time limit. `stuck` are processes that
    could not be ended, because they are in the driver.
    """

    gpus: list[Outcome]
    pairs: dict[tuple[int, int], Answer] = field(default_factory=dict)
    ring: Sequence[Answer] = ()
    links_error: str = ""
    out_of_time: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    stuck: list[int] = field(default_factory=list)


# Called ten times a second, with the GPUs that compute, and since when (monotonic seconds).
Tick = Callable[[Mapping[int, float]], None]
Slow = Callable[[Outcomes], tuple[Collection[tuple[int, str]], Collection[tuple[int, int]]]]


class _Session:
    """The children of a check, by index of their GPU."""

    def __init__(self, targets: Sequence[CheckTarget], end: float, load_seconds: float, tick: Tick) -> None:
        self.outcomes = Outcomes([Outcome(target) for target in targets])
        self.children = {target.index: Child() for target in targets}
        self.links = Child() if len(targets) > 1 else None
        self._end, self._tick = end, tick
        self.load_seconds = load_seconds
        self._working: dict[int, float] = {}

    def tick(self) -> None:
        self._tick(self._working)

    def works(self, *outcomes: Outcome) -> None:
        """Note which GPUs compute from now on."""
        now = time.monotonic()
        self._working = {outcome.target.index: self._working.get(outcome.target.index, now) for outcome in outcomes}

    def limit(self, seconds: float) -> float:
        """Return until when to wait for an answer. One that hangs must leave time for the others."""
        now = time.monotonic()
        return now + min(seconds, max(0.0, self._end - now) * MOST_SHARE)

    def limit_of(self, seconds: float) -> float:
        """Return until when to wait for an answer that takes so long by design."""
        return min(self._end, time.monotonic() + seconds)

    def ask(self, outcome: Outcome, request: Mapping[str, Any]) -> None:
        self.children[outcome.target.index].ask(request)

    def answer(self, outcome: Outcome, step: str, end: float) -> Answer:
        """Return an answer. What makes the GPU unusable is noted, once."""
        answer = self.children[outcome.target.index].answer(end, self.tick)
        if "error" in answer and outcome.failed is None:
            outcome.failed = step, answer
        return answer

    def has_time(self) -> bool:
        """Return whether there is time for another request; if not, no GPU is blamed for it."""
        enough = self._end - time.monotonic() >= LEAST_SECONDS
        self.outcomes.out_of_time |= not enough
        return enough

    def together(self, request: Mapping[str, Any], end: float) -> list[Answer]:
        """Ask all children at once, and return their answers in order."""
        self.works(*self.outcomes.gpus)
        for outcome in self.outcomes.gpus:
            self.ask(outcome, request)
        return [self.answer(outcome, request["do"], end) for outcome in self.outcomes.gpus]

    def ask_links(self, request: Mapping[str, Any]) -> Answer:
        """Return the answer of the process that has all GPUs."""
        assert self.links
        self.links.ask(request)
        return self.links.answer(self.limit(STEP_SECONDS), self.tick)

    def usable(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes.gpus if self.children[outcome.target.index].usable]

    def close(self) -> None:
        """End all children. All of them get the same time for that."""
        children = [*self.children.values(), *([self.links] if self.links else [])]
        stuck = end_all(children, min(self._end, time.monotonic() + REPORT_SECONDS))
        self.outcomes.stuck = [child.pid for child in stuck]


def run(
    targets: Sequence[CheckTarget],
    level: int,
    seconds: float,
    load_seconds: float,
    tick: Tick,
    slow: Slow,
) -> Outcomes:
    """Check these GPUs for at most so many seconds, of which level 2 tests memory and computes for `load_seconds`.

    `slow` returns the measurements of GPUs, by index, and the pairs of GPUs that look slow; these are measured again.
    """
    session = _Session(targets, time.monotonic() + seconds - REPORT_SECONDS, load_seconds, tick)
    try:
        for name, part in (("open", _open), ("together", _together), ("alone", _alone), ("links", _links)):
            _timed(session, name, part)
        _timed(session, "again", lambda session: _again(session, slow))
        if level > 1:
            _timed(session, "memory_test", _memory_test)
            _timed(session, "sustained", _sustained)
    finally:
        _timed(session, "close", _Session.close)
    return session.outcomes


def _timed(session: _Session, name: str, part: Callable[[_Session], None]) -> None:
    start = time.monotonic()
    part(session)
    session.outcomes.seconds[name] = round(time.monotonic() - start, 3)


def _open(session: _Session) -> None:
    end = session.limit(OPEN_SECONDS)
    for outcome in session.outcomes.gpus:
        session.ask(outcome, {"do": "open", "pci": outcome.target.pci})
    if session.links:
        targets = [outcome.target for outcome in session.outcomes.gpus]
        session.links.ask({"do": "links", "pcis": {str(target.index): target.pci for target in targets}})
    for outcome in session.outcomes.gpus:
        session.answer(outcome, "open", end)


def _together(session: _Session) -> None:
    for name in MEASUREMENTS:
        if not session.has_time():
            return
        answers = session.together({"do": name}, session.limit(STEP_SECONDS))
        for outcome, answer in zip(session.outcomes.gpus, answers, strict=True):
            outcome.together[name] = answer


def _alone(session: _Session) -> None:
    if len(session.outcomes.gpus) == 1:  # it was alone already
        session.outcomes.gpus[0].alone = session.outcomes.gpus[0].together
        return
    for outcome in session.usable():
        session.works(outcome)
        for name in MEASUREMENTS:
            if not session.has_time():
                return
            session.ask(outcome, {"do": name})
            answer = session.answer(outcome, name, session.limit(STEP_SECONDS))
            outcome.alone[name] = _better(answer, outcome.together.get(name, answer)) if name in OF_HOST else answer


def _links(session: _Session) -> None:
    """Measure the links between the GPUs that still answer. A pair that hangs ends it."""
    gpus = [outcome.target.index for outcome in session.usable()]
    if session.links is None or len(gpus) < 2:
        return
    session.works()
    opened = session.links.answer(session.limit(STEP_SECONDS), session.tick)
    session.outcomes.links_error = opened.get("error", "")
    if session.outcomes.links_error:
        return
    for source, target in permutations(gpus, 2):
        if not session.has_time():
            return
        answer = session.ask_links({"do": "pair", "from": source, "to": target})
        session.outcomes.pairs[source, target] = answer
        if not session.links.usable:
            session.outcomes.links_error = f"GPU {source} to GPU {target}: {answer['error']}; the others were skipped"
            return
    ring = session.ask_links({"do": "ring", "gpus": gpus})
    session.outcomes.ring = ring.get("pairs", [])
    if "error" in ring:
        session.outcomes.links_error = f"all at once: {ring['error']}"


def _again(session: _Session, slow: Slow) -> None:
    """Measure again what looks slow, so that a moment in which the host was busy is not taken for a fault."""
    by_index = {outcome.target.index: outcome for outcome in session.usable()}
    for _ in range(REPEATS):
        measurements, pairs = slow(session.outcomes)
        for index, name in measurements:
            if index in by_index and session.has_time():
                outcome = by_index[index]
                session.works(outcome)
                session.ask(outcome, {"do": name})
                answer = session.answer(outcome, name, session.limit(STEP_SECONDS))
                outcome.alone[name] = _better(outcome.alone[name], answer)
        for pair in pairs:
            if session.links and session.links.usable and session.has_time():
                session.works()
                answer = session.ask_links({"do": "pair", "from": pair[0], "to": pair[1]})
                session.outcomes.pairs[pair] = _better(session.outcomes.pairs[pair], answer)


def _better(one: Answer, other: Answer) -> Answer:
    """Return the answer with the higher rate, or the one with an error."""
    return max(one, other, key=lambda answer: answer.get("value", float("inf")))


def _memory_test(session: _Session) -> None:
    if session.links and not end_all([session.links], session.limit(REPORT_SECONDS)):  # its buffers are tested, too
        session.links = None
    seconds = session.load_seconds * MEMORY_PART
    answers = session.together({"do": "memory_test", "seconds": seconds}, session.limit_of(seconds + 2 * STEP_SECONDS))
    for outcome, answer in zip(session.outcomes.gpus, answers, strict=True):
        outcome.memory_test = answer


def _sustained(session: _Session) -> None:
    seconds = session.load_seconds * (1 - MEMORY_PART)
    answers = session.together({"do": "sustained", "seconds": seconds}, session.limit_of(seconds + STEP_SECONDS))
    for outcome, answer in zip(session.outcomes.gpus, answers, strict=True):
        outcome.sustained = answer
