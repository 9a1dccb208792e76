"""The course of an active check, with children whose answers are made up, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_exporter.active_checks import run as r
from gpu_exporter.active_checks.process import Answer
from gpu_exporter.active_checks.run import MEASUREMENTS, OF_HOST, CheckTarget, Outcomes, run

Request = Mapping[str, Any]
Replies = Callable[[int | None, Request], tuple[float, Answer]]
ALL = (
    CheckTarget(0, "GPU-0", "0:1:0.0", "H100"),
    CheckTarget(1, "GPU-1", "0:2:0.0", "H100"),
    CheckTarget(5, "GPU-5", "0:3:0.0", "H100"),
)


class Node:
    """The children of a check: `replies` gives seconds and the answer to a request of a GPU, or of the links (None)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, replies: Replies) -> None:
        self.now, self.replies = 1000.0, replies
        self.asked: list[tuple[int | None, Request]] = []
        self.deadlines: list[tuple[str, float]] = []
        self.working: list[dict[int, float]] = []
        self.ended: list[tuple[list[FakeChild], float]] = []
        self.stuck: list[int] = []
        self.children: list[FakeChild] = []
        monkeypatch.setattr(r, "Child", lambda: FakeChild(self))
        monkeypatch.setattr(r, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(r, "end_all", self.end_all)

    def end_all(self, children: Sequence[FakeChild], end: float) -> list[FakeChild]:
        self.ended.append((list(children), end))
        return [child for child in children if child.number in self.stuck]

    def check(
        self,
        targets: Sequence[CheckTarget] = ALL,
        *,
        level: int = 1,
        seconds: float = 100.0,
        load_seconds: float = 9.0,
        slow: r.Slow = lambda outcomes: ((), ()),
    ) -> Outcomes:
        self.indices: list[int | None] = [target.index for target in targets]
        if len(targets) > 1:
            self.indices.append(None)
        return run(targets, level, seconds, load_seconds, lambda working: self.working.append(dict(working)), slow)

    def requests(self, of: int | None) -> list[str]:
        """Return what was asked of a GPU, or of the links."""
        return [
            f"{request['from']}-{request['to']}" if request["do"] == "pair" else request["do"]
            for index, request in self.asked
            if index == of
        ]


class FakeChild:
    """A child that answers what its node says, when it says so."""

    def __init__(self, node: Node) -> None:
        self.node, self.usable, self.pid = node, True, 4000 + len(node.children)
        self.number = len(node.children)
        self.waiting: list[tuple[float, Request]] = []
        node.children.append(self)

    @property
    def index(self) -> int | None:
        return self.node.indices[self.number]

    def ask(self, request: Request) -> None:
        self.node.asked.append((self.index, request))
        self.waiting.append((self.node.now, request))

    def answer(self, end: float, tick: Callable[[], None]) -> Answer:
        """Let the time pass that the answer takes, at most until `end`."""
        at, request = self.waiting.pop(0)
        seconds, answer = self.node.replies(self.index, request)
        self.node.deadlines.append((request["do"], end - self.node.now))
        self.node.now = max(self.node.now, min(at + seconds, end))
        tick()
        if at + seconds > end:
            answer = {"error": "late", "hung": True}
        self.usable = self.usable and "error" not in answer
        return answer


def healthy(index: int | None, request: Request) -> tuple[float, Answer]:
    """Answer after a tenth of a second, with a rate that says what was asked."""
    if request["do"] in ("open", "links"):
        return 0.1, {}
    if request["do"] == "ring":
        return 0.1, {"pairs": [{"from": gpu, "to": gpu, "value": 1.0} for gpu in request["gpus"]]}
    return 0.1, {"value": 100.0 + (index or 0)}


def test_everything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together, then each GPU alone, then each ordered pair, then all at once."""
    node = Node(monkeypatch, healthy)
    outcomes = node.check()
    for target in ALL:
        assert node.requests(target.index) == ["open", *MEASUREMENTS, *MEASUREMENTS]
    pairs = [(0, 1), (0, 5), (1, 0), (1, 5), (5, 0), (5, 1)]
    assert node.requests(None) == ["links", *(f"{one}-{other}" for one, other in pairs), "ring"]
    assert node.asked[3] == (None, {"do": "links", "pcis": {"0": "0:1:0.0", "1": "0:2:0.0", "5": "0:3:0.0"}})
    assert node.asked[2] == (5, {"do": "open", "pci": "0:3:0.0"})
    assert node.asked[-1] == (None, {"do": "ring", "gpus": [0, 1, 5]})
    for outcome in outcomes.gpus:
        value = 100.0 + outcome.target.index
        assert outcome.together == outcome.alone == {name: {"value": value} for name in MEASUREMENTS}
        assert (outcome.failed, outcome.memory_test, outcome.sustained) == (None, None, None)
    assert list(outcomes.pairs) == pairs
    assert [pair["from"] for pair in outcomes.ring] == [0, 1, 5]
    assert (outcomes.links_error, outcomes.out_of_time, outcomes.stuck) == ("", False, [])
    together, alone = 0.1 * len(MEASUREMENTS), 0.3 * len(MEASUREMENTS)
    assert outcomes.seconds == pytest.approx(
        {"open": 0.1, "together": together, "alone": alone, "links": 0.7, "again": 0.0, "close": 0.0}
    )
    (ended, end) = node.ended[-1]
    assert [child.pid for child in ended] == [4000, 4001, 4002, 4003]
    assert end == node.now + r.REPORT_SECONDS


def test_which_gpus_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """And since when: it is the same while they go on, and begins anew after a pause."""
    node = Node(monkeypatch, healthy)
    node.check(ALL[:2])
    together = 1000.1
    count = len(MEASUREMENTS)
    assert node.working[:2] == [{}, {}]  # they open
    assert node.working[2 : 2 + 2 * count] == [{0: together, 1: together}] * 2 * count
    alone = node.working[2 + 2 * count : 2 + 4 * count]
    assert alone[:count] == [{0: together}] * count
    assert alone[count:] == [{1: pytest.approx(together + 0.2 * count)}] * count
    assert node.working[2 + 4 * count :] == [{}] * 4


def test_one_gpu_was_alone_already(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, healthy)
    outcomes = node.check(ALL[2:], level=2)
    assert node.requests(5) == ["open", *MEASUREMENTS, "memory_test", "sustained"]
    (outcome,) = outcomes.gpus
    assert outcome.alone is outcome.together
    assert not outcomes.pairs
    assert node.working[-1] == {5: 1000.1}
    assert [child.pid for child in node.ended[-1][0]] == [4000]


@pytest.mark.parametrize("stuck", [[], [3]])
def test_level_2(monkeypatch: pytest.MonkeyPatch, stuck: list[int]) -> None:
    """Memory is tested for a third of the time, without the buffers of links; a stuck process does not prevent it."""
    node = Node(monkeypatch, healthy)
    node.stuck = stuck
    outcomes = node.check(level=2, load_seconds=9.0)
    seconds = {
        request["do"]: request["seconds"] for index, request in node.asked if index == 5 and "seconds" in request
    }
    assert seconds == pytest.approx({"memory_test": 3.0, "sustained": 6.0})
    assert list(seconds) == ["memory_test", "sustained"]
    assert {name: left for name, left in node.deadlines if name in seconds} == {
        "memory_test": pytest.approx(3.0 + 2 * r.STEP_SECONDS, abs=0.3),
        "sustained": pytest.approx(6.0 + r.STEP_SECONDS, abs=0.3),
    }
    assert [child.number for child in node.ended[0][0]] == [3]
    assert [child.number for child in node.ended[-1][0]] == [0, 1, 2, *stuck]
    assert outcomes.stuck == [4000 + number for number in stuck]
    values = [{"value": 100.0 + target.index} for target in ALL]
    assert [outcome.memory_test for outcome in outcomes.gpus] == values
    assert [outcome.sustained for outcome in outcomes.gpus] == values


def test_the_better_one_of_host_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """What depends on the host counts in its best moment. Other rates count alone."""
    measured = dict.fromkeys((0, 1, 5), 0)

    def replies(index: int | None, request: Request) -> tuple[float, Answer]:
        if index is None or request["do"] == "open":
            return healthy(index, request)
        measured[index] += 1
        return 0.1, {"value": 2.0 if measured[index] <= len(MEASUREMENTS) else 1.0}

    outcomes = Node(monkeypatch, replies).check()
    for outcome in outcomes.gpus:
        assert {name for name, answer in outcome.alone.items() if answer["value"] == 2.0} == set(OF_HOST)


def test_a_gpu_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first failure counts, the others are asked on, and its links are left out."""
    broken = {"error": "boom", "wrong": True}

    def replies(index: int | None, request: Request) -> tuple[float, Answer]:
        if index == 1 and request["do"] in MEASUREMENTS[2:]:
            return 0.1, {**broken, "error": request["do"]}
        return healthy(index, request)

    node = Node(monkeypatch, replies)
    outcomes = node.check()
    assert [outcome.failed for outcome in outcomes.gpus] == [
        None,
        (MEASUREMENTS[2], {"error": MEASUREMENTS[2], "wrong": True}),
        None,
    ]
    assert set(outcomes.gpus[1].together) == set(MEASUREMENTS)
    assert not outcomes.gpus[1].alone
    assert list(outcomes.pairs) == [(0, 5), (5, 0)]
    assert [pair["from"] for pair in outcomes.ring] == [0, 5]


def test_links_of_one_usable_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def replies(index: int | None, request: Request) -> tuple[float, Answer]:
        return (0.1, {"error": "no"}) if index == 1 else healthy(index, request)

    node = Node(monkeypatch, replies)
    outcomes = node.check(ALL[:2])
    assert node.requests(None) == ["links"]
    assert (outcomes.pairs, outcomes.links_error) == ({}, "")


@pytest.mark.parametrize(
    ("fails", "error", "pairs"),
    [
        ("links", "no peers", []),
        ("pair", "GPU 0 to GPU 5: no peers; the others were skipped", [(0, 1), (0, 5)]),
        ("ring", "all at once: no peers", [(0, 1), (0, 5), (1, 0), (1, 5), (5, 0), (5, 1)]),
    ],
)
def test_links_that_fail(monkeypatch: pytest.MonkeyPatch, fails: str, error: str, pairs: list[tuple[int, int]]) -> None:
    def replies(index: int | None, request: Request) -> tuple[float, Answer]:
        if index is None and request["do"] == fails and request.get("to", 5) == 5:
            return 0.1, {"error": "no peers"}
        return healthy(index, request)

    node = Node(monkeypatch, replies)
    outcomes = node.check()
    assert (outcomes.links_error, list(outcomes.pairs)) == (error, pairs)
    assert not outcomes.ring
    assert [outcome.failed for outcome in outcomes.gpus] == [None] * 3


def test_what_looks_slow_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice at most, and the best result counts."""
    values = iter([7.0, 200.0, 300.0, 50.0])

    def replies(index: int | None, request: Request) -> tuple[float, Answer]:
        if again:
            return 0.1, {"value": next(values)}
        return healthy(index, request)

    again: list[Outcomes] = []

    def slow(outcomes: Outcomes) -> tuple[list[tuple[int, str]], list[tuple[int, int]]]:
        again.append(outcomes)
        return [(5, "fp32"), (7, "fp32")], [(1, 5)]

    node = Node(monkeypatch, replies)
    outcomes = node.check(slow=slow)
    assert len(again) == r.REPEATS
    assert node.asked[-2 * r.REPEATS :] == [(5, {"do": "fp32"}), (None, {"do": "pair", "from": 1, "to": 5})] * 2
    assert outcomes.gpus[2].alone["fp32"] == {"value": 300.0}
    assert outcomes.pairs[1, 5] == {"value": 200.0}
    alone = {5: pytest.approx(node.now - 0.2)}
    assert node.working[-3:] == [{}, alone, {}]  # copies are not the load of a GPU


@pytest.mark.parametrize(
    ("one", "other", "better"),
    [
        ({"value": 1.0}, {"value": 2.0}, {"value": 2.0}),
        ({"value": 2.0}, {"value": 1.0}, {"value": 2.0}),
        ({"value": 2.0}, {"error": "x"}, {"error": "x"}),
        ({"error": "x"}, {"value": 2.0}, {"error": "x"}),
    ],
)
def test_the_better_answer(one: Answer, other: Answer, better: Answer) -> None:
    """An error is never hidden by a rate."""
    assert r._better(one, other) == better


def test_a_gpu_that_hangs_leaves_time_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer may take a few seconds, and a part of what is left if that is less."""

    def replies(index: int | None, request: Request) -> tuple[float, Answer]:
        return (1e9, {}) if index == 1 and request["do"] == "memory_copy" else healthy(index, request)

    node = Node(monkeypatch, replies)
    outcomes = node.check(seconds=100.0)
    assert outcomes.gpus[1].failed == ("memory_copy", {"error": "late", "hung": True})
    assert outcomes.seconds["together"] == pytest.approx(r.STEP_SECONDS + 0.1 * (len(MEASUREMENTS) - 1))
    assert not outcomes.out_of_time
    assert max(left for _, left in node.deadlines) == r.OPEN_SECONDS
    node = Node(monkeypatch, healthy)
    node.check(seconds=10.0 + r.REPORT_SECONDS)
    assert dict(reversed(node.deadlines))["open"] == pytest.approx(10.0 * r.MOST_SHARE)


@pytest.mark.parametrize(
    ("seconds", "together", "alone", "pairs"),
    [(1.0, 2, [0, 0], 0), (2.5, 6, [4, 0], 0), (3.5, 6, [6, 3], 0), (4.2, 6, [6, 6], 1)],
)
def test_too_little_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float, together: int, alone: list[int], pairs: int
) -> None:
    """No GPU is blamed, what was measured counts, and the processes have time to end. Each answer takes 0.19 s."""
    node = Node(monkeypatch, lambda index, request: (0.19, healthy(index, request)[1]))
    outcomes = node.check(ALL[:2], seconds=seconds + r.REPORT_SECONDS)
    assert outcomes.out_of_time
    assert [outcome.failed for outcome in outcomes.gpus] == [None, None]
    assert [len(outcome.together) for outcome in outcomes.gpus] == [together] * 2
    assert [len(outcome.alone) for outcome in outcomes.gpus] == alone
    assert (len(outcomes.pairs), outcomes.ring) == (pairs, ())
    assert 1000.0 + seconds - r.LEAST_SECONDS < node.now <= 1000.0 + seconds
    assert node.ended[-1][1] == pytest.approx(1000.0 + seconds)


def test_an_answer_by_design_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not beyond the limit of the whole check."""
    node = Node(monkeypatch, healthy)
    session = r._Session(ALL[:1], 1050.0, 1.0, lambda working: None)
    assert (session.limit_of(30.0), session.limit_of(60.0)) == (1030.0, 1050.0)
    assert (session.limit(30.0), session.limit(3.0)) == (1000.0 + 50 * r.MOST_SHARE, 1003.0)
    node.now = 2000.0
    assert session.limit(3.0) == 2000.0


def test_the_least_time_for_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, healthy)
    session = r._Session(ALL[:1], 1000.0 + r.LEAST_SECONDS, 1.0, lambda working: None)
    assert session.has_time()
    assert not session.outcomes.out_of_time
    node.now += 0.01
    assert not session.has_time()
    node.now -= 0.01
    assert session.has_time()
    assert session.outcomes.out_of_time
    node.now += 60
    assert session.limit(5.0) == node.now
