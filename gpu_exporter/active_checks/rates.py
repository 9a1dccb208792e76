"""The rates that an active check has measured, with what they are compared with. Pure.

A rate has up to three references: what the model can do, the other GPUs of the node, and this GPU's own past.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gpu_exporter.active_checks.history import CheckHistory
from gpu_exporter.active_checks.run import MEASUREMENTS, CheckTarget, Outcome, Outcomes
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.capabilities import Quantity, Reference, reference
from gpu_exporter.model.verdict import Action, Health, Problem
from gpu_exporter.reports.numbers import percent, scaled

# Fewer pairs, those of two GPUs, have no median from which one of them could differ.
LEAST_PAIRS = 6
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rated:
    """A rate that was measured while no other GPU was tested, and `together` with all of them. `how` names the
    instruction. `usual` is what the model reaches, or its data sheet, as `source` says; `peers` is the median of the
    other GPUs of this model, `own` that of earlier checks. None where there is none."""

    quantity: Quantity
    value: float
    together: float | None
    spread: float
    usual: float | None
    peers: float | None
    own: float | None
    how: str = ""
    source: str = ""

    @property
    def share(self) -> float | None:
        """The rate as a share of `usual`."""
        return self.value / self.usual if self.usual else None


class Rates:
    """The rates of all GPUs, and of the pairs of GPUs that reach each other directly."""

    def __init__(self, outcomes: Outcomes, history: CheckHistory) -> None:
        self.pairs = {pair: answer["value"] for pair, answer in outcomes.pairs.items() if answer.get("direct")}
        self._outcomes, self._history = {outcome.target.index: outcome for outcome in outcomes.gpus}, history
        self._ring = {pair["from"]: pair["value"] for pair in outcomes.ring}
        self._usual_pair = statistics.median(self.pairs.values()) if self.pairs else 0.0
        self._values = {index: self._values_of(outcome) for index, outcome in self._outcomes.items()}

    def rated(self, index: int) -> tuple[Rated, ...]:
        """Return the rates of a GPU."""
        return tuple(self._rated(index, quantity, value) for quantity, value in self._values[index].items())

    def problems(self, index: int) -> Iterator[Problem]:
        """Yield the rates of a GPU and the links from it that are slower than a reference."""
        for rated in self.rated(index):
            yield from _slow(rated, self._outcomes[index].target)
        yield from (self._slow_pair(pair) for pair in self._slow_pairs() if pair[0] == index)

    def slow(self) -> tuple[Collection[tuple[int, str]], Collection[Pair]]:
        """Return the measurements of GPUs, by index and name, and the pairs that are slower than a reference."""
        slow = [
            (index, rated.quantity)
            for index, outcome in self._outcomes.items()
            for rated in self.rated(index)
            if any(_slow(rated, outcome.target))
        ]
        gpus = {index for index, quantity in slow if quantity is Quantity.NVLINK}
        pairs = {*self._slow_pairs(), *(pair for pair in self.pairs if not gpus.isdisjoint(pair))}
        return [(index, quantity.value) for index, quantity in slow if quantity is not Quantity.NVLINK], sorted(pairs)

    def _values_of(self, outcome: Outcome) -> dict[Quantity, float]:
        """Return what was measured of a GPU. One bad peer does not lower its NVLink rate, which is a median."""
        answers = {name: outcome.alone.get(name, {}) for name in MEASUREMENTS}
        values = {Quantity(name): answer["value"] for name, answer in answers.items() if "value" in answer}
        if links := [rate for pair, rate in self.pairs.items() if outcome.target.index in pair]:
            values[Quantity.NVLINK] = statistics.median(links)
        return values

    def _rated(self, index: int, quantity: Quantity, value: float) -> Rated:
        name, outcome = quantity.value, self._outcomes[index]
        target, answer = outcome.target, outcome.alone.get(name, {})
        known = _reference(target, quantity)
        peers = self._peers(index, quantity)
        together = self._ring.get(index) if quantity is Quantity.NVLINK else _together(outcome, name)
        return Rated(
            quantity,
            value,
            together,
            answer.get("spread", 0.0),
            known.value if known else None,
            statistics.median(peers) if peers else None,
            self._history.usual(target.uuid, name),
            answer.get("how", ""),
            "" if known is None else "model" if known.measured else "data sheet",
        )

    def _peers(self, index: int, quantity: Quantity) -> Sequence[float]:
        model = self._outcomes[index].target.model
        return [
            values[quantity]
            for other, values in self._values.items()
            if other != index and quantity in values and self._outcomes[other].target.model == model
        ]

    def _slow_pairs(self) -> Iterator[Pair]:
        """Yield the pairs that are slower than most, unless one of the GPUs is slow itself: `_slow` says so."""
        if len(self.pairs) < LEAST_PAIRS:
            return
        least = (1 - Quantity.NVLINK.tolerance) * self._usual_pair
        for pair, rate in self.pairs.items():
            if rate < least and all(self._values[index][Quantity.NVLINK] >= least for index in pair):
                yield pair

    def _slow_pair(self, pair: Pair) -> Problem:
        show = partial(scaled, unit=Quantity.NVLINK.unit)
        text = f"NVLink to GPU {pair[1]}: {show(self.pairs[pair])}, other pairs {show(self._usual_pair)}"
        return Problem(m.CHECK_LINK, self.pairs[pair], text, Action.DRAIN, "slow_link", Health.DEGRADED)


def _together(outcome: Outcome, name: str) -> float | None:
    value: float | None = outcome.together.get(name, {}).get("value")
    return None if outcome.together is outcome.alone else value


def _reference(target: CheckTarget, quantity: Quantity) -> Reference | None:
    return reference(target.model, quantity, target.rates, target.link)


def _slow(rated: Rated, target: CheckTarget) -> Iterator[Problem]:
    """Yield one problem that names every reference which the rate does not reach."""
    quantity, value, known = rated.quantity, rated.value, _reference(target, rated.quantity)
    missed = list(_missed(rated))
    if known and value < known.least:
        kind = "what this model reaches" if known.measured else "the data sheet"
        missed.append(f"{percent(value / known.value)} of {kind} ({scaled(known.value, quantity.unit)})")
    if missed:
        text = f"{quantity.words}: {scaled(value, quantity.unit)}, {', '.join(missed)}"
        yield Problem(quantity.metric, value, text, Action.DRAIN, f"slow_{quantity.value}", Health.DEGRADED)


def _missed(rated: Rated) -> Iterator[str]:
    references: Mapping[str, float | None] = {
        "the other GPUs of this node": rated.peers,
        "its own earlier checks": rated.own,
    }
    for whose, usual in references.items():
        if usual and rated.value < (1 - rated.quantity.tolerance) * usual:
            yield f"{percent(1 - rated.value / usual)} below {whose}"
