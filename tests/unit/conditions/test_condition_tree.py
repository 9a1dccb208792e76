"""The condition tree: every kind of node has a meaning everywhere, and mypy reports a kind that lacks one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from gpu_exporter.alerting import coverage
from gpu_exporter.alerting.coverage import Detectability
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS, bottleneck_is
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Inject, Severity
from gpu_exporter.conditions import evaluate, promql, prose
from gpu_exporter.conditions.evaluate import Device, Points
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import (
    And,
    Calc,
    Classification,
    Compare,
    Condition,
    Fn,
    Is,
    Leaf,
    Limit,
    Limits,
    Mark,
    NodeMax,
    OfBoard,
    Or,
    OrIfKnown,
    Over,
    PeerMean,
    PeerMedian,
    PeerMin,
    PeerShare,
    Term,
    Unless,
    children,
    leaves,
    limits_of,
    no_case,
    required_signals,
    shared,
    signals_of,
    terms,
)
from gpu_exporter.model.verdict import Action
from tests import ROOT

HIGH = Limit("high", 0.8, "ratio", "")
ACTIVE, BUSY = Over(s.GR_ACTIVE), Compare(Over(s.GR_ACTIVE), ">", HIGH)
FULL = Compare(Over(s.SM_ACTIVE, Fn.MEAN, 300), ">", 0.5)
SM, DENSE = FULL.left, Compare(Over(s.DRAM_ACTIVE), ">", 0.5)
LOW = Compare(ACTIVE, "<", HIGH)
MARK = Mark("waits", FULL)
CLASSES = Classification("gpu:test:class", {"full": FULL, "low": LOW}, Compare(Over(s.UP), "==", 0.0))
RANKS = (PeerMedian(ACTIVE, MARK), PeerMean(ACTIVE, MARK), PeerMin(ACTIVE, MARK))
OF_GPUS = (OfBoard((ACTIVE, Over(s.UP))), NodeMax(Over(s.GR_ACTIVE, bare=True)))
TERMS: Sequence[Term] = (ACTIVE, Calc(ACTIVE, "+", ACTIVE), *OF_GPUS, PeerShare(MARK), *RANKS)
CONDITIONS: Sequence[Condition] = (
    BUSY,
    And(BUSY, FULL),
    Or(BUSY, FULL, name="either"),
    Unless(BUSY, FULL),
    OrIfKnown(BUSY, FULL),
    bottleneck_is("mixed"),
)


class Points09:
    """A window in which one GPU and its peer have the value 0.9 for every signal, except for some."""

    now = 1000.0
    presence = s.GR_ACTIVE
    devices = (0, 1)

    def __init__(self, *without: Signal) -> None:
        self.limits: Limits = {}
        self.memo: dict[Hashable, Any] = {}
        self._without = without

    def by_device(self, signal: Signal) -> Mapping[Device, Points]:
        """One point, now."""
        return {} if signal in self._without else dict.fromkeys(self.devices, ((self.now, 0.9),))

    def ranks(self, device: Device) -> Sequence[Device]:
        """Two ranks."""
        return self.devices

    def alike(self, device: Device) -> Hashable:
        """All on one node."""
        return ""


def test_there_is_an_example_of_each_kind() -> None:
    """A new kind of node gets an example here, and with it every test below."""
    assert {type(term) for term in TERMS} == set(get_args(Term)), "fix: add an example to TERMS"
    assert {type(condition) for condition in CONDITIONS} == set(get_args(Condition)), "fix: add one to CONDITIONS"


@pytest.mark.parametrize("term", TERMS, ids=lambda term: type(term).__name__)
def test_each_term_has_every_meaning(term: Term) -> None:
    """PromQL, value, words, and the signals that it reads."""
    assert promql.term(term)
    assert evaluate.value(term, Points09(), 0) is not None
    assert evaluate.value(term, Points09(s.GR_ACTIVE), 0) is None
    assert prose.term(term)
    assert list(leaves(term))


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: type(condition).__name__)
def test_each_condition_has_every_meaning(condition: Condition) -> None:
    """PromQL, truth, words, signals, and whether an exporter exposes enough for it."""
    assert promql.condition(condition, {})
    assert evaluate.holds(condition, Points09(), 0) is not None
    assert prose.sentence(condition, {})
    assert list(prose.lines(condition, {}))
    assert list(terms(condition)) == [term for part in (children(condition) or [condition]) for term in terms(part)]
    assert signals_of(condition)
    mode = FailureMode("GpuOdd", Domain.HEALTH, Severity.INFO, 0, Action.NONE, "", "", Inject(), condition)
    assert coverage.detectability(mode, coverage.exposed(full=True)) is Detectability.YES
    assert mode.needs == signals_of(condition)


@pytest.mark.parametrize(
    ("condition", "without", "truth", "because", "missing"),
    [
        (And(BUSY, FULL), (), True, [ACTIVE, SM], ()),
        (And(BUSY, FULL), (s.SM_ACTIVE,), None, [], (s.SM_ACTIVE,)),
        (And(LOW, FULL), (s.SM_ACTIVE,), False, [], ()),
        (And(BUSY, FULL, DENSE), (s.DRAM_ACTIVE, s.SM_ACTIVE), None, [], (s.SM_ACTIVE, s.DRAM_ACTIVE)),
        (Or(FULL, BUSY), (), True, [SM, ACTIVE], ()),
        (Or(BUSY, FULL), (s.SM_ACTIVE,), True, [ACTIVE], ()),
        (Or(LOW, FULL), (), True, [SM], ()),
        (Or(LOW, FULL), (s.SM_ACTIVE,), None, [], (s.SM_ACTIVE,)),
        (Or(LOW, LOW), (), False, [], ()),
        # Once a part is false, the rest is not evaluated; what it requires is missing all the same.
        (Or(And(LOW, DENSE), FULL), (s.SM_ACTIVE, s.DRAM_ACTIVE), None, [], (s.DRAM_ACTIVE, s.SM_ACTIVE)),
        (Unless(BUSY, FULL), (), False, [], ()),
        (Unless(BUSY, LOW), (), True, [ACTIVE], ()),
        (Unless(BUSY, FULL), (s.SM_ACTIVE,), True, [ACTIVE], ()),
        (Unless(BUSY, FULL), (s.GR_ACTIVE,), False, [], ()),
        (Unless(FULL, DENSE), (s.SM_ACTIVE, s.DRAM_ACTIVE), None, [], (s.SM_ACTIVE,)),
        (OrIfKnown(BUSY, FULL), (), True, [ACTIVE, SM], ()),
        (OrIfKnown(LOW, FULL), (), True, [SM], ()),
        (OrIfKnown(LOW, FULL), (s.SM_ACTIVE,), False, [], ()),
        (OrIfKnown(BUSY, DENSE), (s.GR_ACTIVE, s.DRAM_ACTIVE), None, [], (s.GR_ACTIVE,)),
        (OrIfKnown(BUSY, Compare(SM, "<", HIGH)), (s.GR_ACTIVE,), None, [], (s.GR_ACTIVE,)),
        (Is(CLASSES, "full"), (), True, [SM], ()),
        (Is(CLASSES, "low"), (), False, [], ()),
        (Is(CLASSES, "full"), (s.SM_ACTIVE,), None, [], (s.SM_ACTIVE,)),
        (Is(CLASSES, "low"), (s.SM_ACTIVE,), None, [], ()),  # an earlier class is unknown
        (Compare(Calc(ACTIVE, "+", SM), ">", 1.0), (), True, [ACTIVE, SM], ()),
        (Compare(PeerMedian(ACTIVE, MARK), "==", ACTIVE), (), True, [PeerMedian(ACTIVE, MARK), ACTIVE], ()),
        (Compare(PeerMean(ACTIVE, MARK), ">", 0.5), (s.SM_ACTIVE,), None, [], ()),  # the mark counts as false
        (Compare(PeerShare(MARK), ">", 0.5), (s.GR_ACTIVE,), None, [], ()),
    ],
)
def test_evaluation(
    condition: Condition,
    without: Sequence[Signal],
    truth: bool | None,
    because: Sequence[Leaf],
    missing: Sequence[Signal],
) -> None:
    """Each kind of node has a result for a part that is unknown, names the terms that decided, and what is missing."""
    window = Points09(*without)
    assert evaluate.holds(condition, window, 0) is truth
    found = evaluate.because(condition, window, 0) if truth else {}
    assert list(found) == because
    assert found == {term: evaluate.value(term, window, 0) for term in because}
    lacking = [signal for signal in required_signals(condition) if 0 not in window.by_device(signal)]
    assert truth is not None or tuple(lacking) == missing


def test_limits_and_names_are_those_of_all_parts() -> None:
    """Also those of the marks that peers are compared by, inner names first."""
    low = Limit("low", 0.1, "ratio", "")
    inner = Or(BUSY, FULL, name="inner")
    outer = Unless(And(inner, Compare(PeerShare(Mark("low", Compare(ACTIVE, "<", low))), ">", 0.5)), FULL, name="outer")
    assert limits_of(outer) == (HIGH, low)
    assert list(shared(outer)) == [inner, outer]


def test_a_class_stands_for_its_condition() -> None:
    """A condition on a class reads its signals, and those of the classes before it."""
    last = bottleneck_is(BOTTLENECKS[-1].name)
    assert children(last) == (BOTTLENECKS[-1].condition,)
    assert last.before == tuple(bottleneck.condition for bottleneck in BOTTLENECKS[:-1])
    with pytest.raises(KeyError):
        bottleneck_is("no such class")


# --- a new kind of node cannot be forgotten --------------------------------------------------------------------------

NODE = '''
@dataclass(frozen=True, slots=True)
class Xor:
    """Exactly one of two."""

    left: Condition
    right: Condition


Condition = Xor | '''
# Every function that distinguishes kinds of conditions.
DISPATCHES = {
    "gpu_exporter/conditions/tree.py",
    "gpu_exporter/conditions/promql.py",
    "gpu_exporter/conditions/evaluate.py",
    "gpu_exporter/catalogue/failure_modes/mode.py",
    "gpu_exporter/alerting/coverage.py",
    "gpu_exporter/conditions/prose.py",
}


@pytest.mark.slow
def test_mypy_reports_a_missing_case(tmp_path: Path) -> None:
    """Add a kind of condition to a copy of the package: each dispatch without a case for it is an error."""
    shutil.copytree(ROOT / "gpu_exporter", tmp_path / "gpu_exporter", ignore=shutil.ignore_patterns("__pycache__"))
    tree = tmp_path / "gpu_exporter/conditions/tree.py"
    text = tree.read_text()
    assert text.count("\nCondition = ") == 1
    tree.write_text(text.replace("\nCondition = ", NODE))

    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), *DISPATCHES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    forgotten = [line for line in ended.stdout.splitlines() if '"no_case" has incompatible type "Xor"' in line]
    assert {line.partition(":")[0] for line in forgotten} == DISPATCHES, ended.stdout + ended.stderr
    assert len(forgotten) == 8, "tree.py and prose.py have two dispatches, the others one each"


def test_a_node_without_a_case_is_an_error() -> None:
    """Also at run time."""
    assert str(no_case(1)) == "no case for 1"  # type: ignore[arg-type]
