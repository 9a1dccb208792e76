"""Rates of active checks against their references, and which of several GPUs and links is slow."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

import pytest

from gpu_exporter.active_checks.child import MEASUREMENTS as OF_CHILD
from gpu_exporter.active_checks.history import CheckHistory, Run
from gpu_exporter.active_checks.process import Answer
from gpu_exporter.active_checks.rates import Pair, Rated, Rates
from gpu_exporter.active_checks.run import MEASUREMENTS, CheckTarget, Outcome, Outcomes
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.capabilities import MEASURED, Quantity, datasheet, reference
from gpu_exporter.catalogue.gpu_models import B200, BY_NAME, H100, H200
from gpu_exporter.model.verdict import Action, Health

GOOD = {"memory_copy": 3.02e12, "memory_read": 3.07e12, "bf16": 915e12, "fp32": 66e12}


def outcomes(
    *changes: Mapping[str, float], model: str = H100.name, pairs: Mapping[Pair, float] | None = None
) -> Outcomes:
    """Return the results of as many GPUs, with changes of their rates, and of the links between all of them."""
    gpus = []
    for index, changed in enumerate(changes):
        alone: dict[str, Answer] = {name: {"value": value} for name, value in {**GOOD, **changed}.items()}
        gpus.append(
            Outcome(CheckTarget(index, f"GPU-{index}", f"0:{index}:0.0", model), together=alone, alone=dict(alone))
        )
    linked = {pair: 395e9 for pair in permutations(range(len(gpus)), 2)} | dict(pairs or {})
    return Outcomes(gpus, {pair: {"value": rate, "direct": True} for pair, rate in linked.items()})


def problems(of: Outcomes, history: CheckHistory | None = None) -> dict[int, list[str]]:
    """Return the reasons why GPUs are slow, by index."""
    rates = Rates(of, history or CheckHistory())
    found = {gpu.target.index: [problem.reason for problem in rates.problems(gpu.target.index)] for gpu in of.gpus}
    return {index: reasons for index, reasons in found.items() if reasons}


def test_equal_gpus_are_healthy() -> None:
    assert problems(outcomes({}, {}, {}, {})) == {}
    assert Rates(outcomes({}, {}), CheckHistory()).slow() == ([], [])


@pytest.mark.parametrize("name", GOOD)
def test_the_slow_one_of_several_gpus(name: str) -> None:
    """Two are enough: the faster one is the reference."""
    of = outcomes({}, {name: 0.7 * GOOD[name]}, model="unknown")
    assert problems(of) == {1: [f"slow_{name}"]}
    assert Rates(of, CheckHistory()).slow()[0] == [(1, name)]


def test_models_are_not_compared_with_others() -> None:
    of = outcomes({}, {"bf16": 300e12}, model="unknown")
    of.gpus[1] = Outcome(CheckTarget(1, "GPU-1", "0:1:0.0", "another"), alone=of.gpus[1].alone)
    assert problems(of) == {}


def test_all_gpus_slower_than_their_model() -> None:
    """Neither the other GPUs nor the past show it."""
    half = {"memory_copy": 1.5e12}
    (problem,) = Rates(outcomes(half, half), CheckHistory()).problems(0)
    assert problem.words == (
        "device memory, copy (read + write): 1.5 TB/s, 50 % of what this model reaches (3.02 TB/s)"
    )


@pytest.mark.parametrize(("runs", "found"), [(2, {}), (3, {0: ["slow_fp32"]})])
def test_its_own_past(runs: int, found: dict[int, list[str]]) -> None:
    """Three healthy checks are a reference; checks that found a problem are none."""
    past = [Run(1.0, 1, Health.HEALTHY, values={"fp32": 80e12})] * runs
    bad = [Run(1.0, 1, Health.DEGRADED, values={"fp32": 90e12})] * 9
    assert problems(outcomes({}, model="unknown"), CheckHistory(gpus={"GPU-0": [*past, *bad]})) == found


def test_one_slow_link() -> None:
    """The link is named, not the GPUs, which are fast with all others."""
    of = outcomes({}, {}, {}, {}, pairs={(1, 3): 200e9})
    assert problems(of) == {1: ["slow_link"]}
    assert Rates(of, CheckHistory()).slow() == ([], [(1, 3)])


def test_a_gpu_with_slow_links() -> None:
    """All of its links are slow: this is one problem, of this GPU."""
    of = outcomes({}, {}, {}, {}, pairs={pair: 200e9 for pair in permutations(range(4), 2) if 2 in pair})
    assert problems(of) == {2: ["slow_nvlink"]}


def test_both_processes_have_the_same_measurements() -> None:
    assert sorted(OF_CHILD) == sorted(MEASUREMENTS)


@pytest.mark.parametrize("name", MEASURED)
def test_measured_rates_are_possible(name: str) -> None:
    """They are above the share of the data sheet at which a GPU of another model is faulty, and hardly above it.

    A data sheet assumes the nominal clock, around which the real one varies by a few percent.
    """
    for quantity, measured in MEASURED[name].items():
        theoretical = datasheet(BY_NAME[name], quantity)
        assert theoretical is not None
        assert 0.5 * theoretical < measured.low <= measured.high < 1.03 * theoretical


def test_references_of_other_models() -> None:
    """The data sheet is the reference, unless the kernel does not suit the model."""
    known = reference("NVIDIA L4", Quantity.FP32)
    assert known is not None
    assert (known.value, known.measured) == (30.3e12, False)
    assert reference("NVIDIA L4", Quantity.NVLINK) is None
    assert reference(B200.name, Quantity.BF16) is None
    assert reference("GeForce", Quantity.FP32) is None
    assert reference(H200.name, Quantity.BF16) is not None


def test_what_a_rate_is_compared_with() -> None:
    """The model, the median of the other GPUs of the model, its own past, and itself together with all."""
    of = outcomes({"bf16": 800e12}, {"bf16": 900e12}, {"bf16": 920e12})
    of.gpus[0].together = {"bf16": {"value": 790e12}}
    of.gpus[0].alone["bf16"] = {"value": 800e12, "spread": 0.02, "how": "wgmma"}
    of.ring = [{"from": 0, "to": 1, "value": 300e9}]
    past = [Run(1.0, 1, Health.HEALTHY, values={"bf16": value}) for value in (810e12, 830e12, 820e12)]
    found = {rated.quantity: rated for rated in Rates(of, CheckHistory(gpus={"GPU-0": past})).rated(0)}
    known = reference(H100.name, Quantity.BF16)
    assert known
    assert found[Quantity.BF16] == Rated(
        *(Quantity.BF16, 800e12, 790e12, 0.02, known.value, 910e12, 820e12, "wgmma", "model")
    )
    assert found[Quantity.BF16].share == 800e12 / known.value
    assert (found[Quantity.NVLINK].value, found[Quantity.NVLINK].together) == (395e9, 300e9)
    fp32 = found[Quantity.FP32]
    assert (fp32.together, fp32.spread, fp32.own, fp32.how) == (None, 0.0, None, "")
    assert set(found) == {Quantity.NVLINK, *map(Quantity, GOOD)}


def test_rates_without_reference() -> None:
    of = outcomes({}, model="unknown")
    of.gpus[0].together = of.gpus[0].alone
    for rated in Rates(of, CheckHistory()).rated(0):
        assert (rated.together, rated.usual, rated.share, rated.peers, rated.source) == (None, None, None, None, "")
    (l4, *_) = Rates(outcomes({"fp32": 30e12}, model="NVIDIA L4"), CheckHistory()).rated(0)
    assert l4.source == "data sheet"


def test_words_of_a_slow_rate() -> None:
    """All references that it misses, in one sentence."""
    of = outcomes({"fp32": 40e12}, {"fp32": 80e12}, model="NVIDIA L4")
    past = [Run(1.0, 1, Health.HEALTHY, values={"fp32": 50e12})] * 3
    (problem,) = (each for each in Rates(of, CheckHistory(gpus={"GPU-0": past})).problems(0) if "fp32" in each.reason)
    assert problem.words == (
        "FP32 arithmetic: 40 TFLOP/s, 50 % below the other GPUs of this node, 20 % below its own earlier checks"
    )
    assert (problem.metric, problem.value, problem.action) == (m.CHECK_RATE, 40e12, Action.DRAIN)
    (problem,) = Rates(outcomes({"fp32": 3e12}, model="NVIDIA L4"), CheckHistory()).problems(0)
    assert problem.words == "FP32 arithmetic: 3 TFLOP/s, 9.9 % of the data sheet (30.3 TFLOP/s)"
    (problem,) = Rates(outcomes({"memory_copy": 1e12}, {}, model="unknown"), CheckHistory()).problems(0)
    assert problem.metric == m.CHECK_BANDWIDTH


@pytest.mark.parametrize("quantity", [Quantity.FP32, Quantity.MEMORY_COPY])
def test_how_far_below_its_peers_is_slow(quantity: Quantity) -> None:
    for share, slow in ((1.001, False), (0.999, True)):
        value = share * (1 - quantity.tolerance) * GOOD[quantity.value]
        of = outcomes({quantity.value: value}, {}, model="unknown")
        assert bool(list(Rates(of, CheckHistory()).problems(0))) is slow


def test_words_of_a_slow_link() -> None:
    """It is compared with the median of all pairs, which takes three GPUs at least. Copies through hosts are apart."""
    of = outcomes({}, {}, {}, {}, pairs={(1, 3): 200e9, (3, 1): 300e9})
    (problem,) = Rates(of, CheckHistory()).problems(1)
    assert problem.words == "NVLink to GPU 3: 200 GB/s, other pairs 395 GB/s"
    assert (problem.metric, problem.value, problem.health) == (m.CHECK_LINK, 200e9, Health.DEGRADED)
    assert problems(outcomes({}, {}, pairs={(0, 1): 200e9}, model="unknown")) == {}
    (slow,) = Rates(outcomes({}, {}, {}, pairs={(0, 1): 300e9}, model="unknown"), CheckHistory()).slow()[1]
    assert slow == (0, 1)
    least = (1 - Quantity.NVLINK.tolerance) * 395e9
    for rate, found in ((least * 1.001, []), (least * 0.999, [(0, 1)])):
        assert Rates(outcomes({}, {}, {}, pairs={(0, 1): rate}, model="unknown"), CheckHistory()).slow() == ([], found)
    through_host = outcomes({}, {}, model="unknown")
    through_host.pairs = {(0, 1): {"value": 20e9, "direct": False}, (1, 0): {"error": "x"}}
    assert Rates(through_host, CheckHistory()).pairs == {}


def test_links_of_a_slow_gpu_are_measured_again() -> None:
    of = outcomes({}, {}, {}, {}, pairs={pair: 200e9 for pair in permutations(range(4), 2) if 2 in pair})
    measurements, pairs = Rates(of, CheckHistory()).slow()
    assert measurements == []
    assert pairs == sorted(pair for pair in permutations(range(4), 2) if 2 in pair)
