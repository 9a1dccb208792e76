"""No condition depends on a value that differs between GPU models, unless it is listed here or in the catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from content.docs.gpu_models import detectability
from gpu_exporter.alerting.coverage import Detectability
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes import MODES, host, profiles
from gpu_exporter.catalogue.failure_modes.mode import Domain
from gpu_exporter.catalogue.gpu_models import (
    BY_NAME,
    H20,
    H100,
    H200,
    L4,
    L40S,
    MODELS,
    RTX_PRO_6000,
    SLICES,
    WHOLE,
    GpuModel,
)
from gpu_exporter.catalogue.model_assumptions import ASSUMPTIONS
from gpu_exporter.catalogue.model_expectations import (
    EXPECTATIONS,
    MARGIN,
    Exempt,
    Expectation,
    conditions,
    fixed_numbers,
    limits,
    narrow,
    recognised_waiting,
)
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.conditions.signal import Derived, Signal
from gpu_exporter.conditions.tree import (
    And,
    Calc,
    Compare,
    Condition,
    Fn,
    Limit,
    Mark,
    OfBoard,
    Over,
    PeerShare,
    Term,
    comparisons,
    leaves,
    marks_of,
)

# Units of which a model has more or less than another.
OF_A_MODEL = frozenset(
    {"watts", "hertz", "bytes", "bytes_per_second", "joules_per_second", "celsius", "generation", "lanes", "links"}
)
# Shares, counts, states and times.
OF_NO_MODEL = frozenset(
    {"ratio", "bool", "errors", "banks", "rows", "action", "status", "code", "timestamp", "seconds", "total", "per_15m"}
    | {"cpus", "processes", "per_second", "level"}
)
# Limits that power is compared with. They belong to one failure mode, which is about power.
# The last two apply only without profiling counters: see `test_power_of_a_gpu_with_profiling_counters`.
POWER: Mapping[str, str] = {
    "powerSwing": "GpuPowerOscillation",
    "coarsePower": "GpuPowerOscillation",
    "lowPower": "low-power",
    "highPower": "compute-bound",
}
# Failure modes that a model without the signal cannot have reported, with the reason.
UNDETECTABLE: Mapping[str, tuple[tuple[GpuModel, ...], str]] = {
    "GpuNvlinkImbalance": ((L40S, L4, RTX_PRO_6000, *SLICES), "they have no NVLink"),
    "GpuTensorCoresIdle": ((L40S, L4), "the sum of the floating-point pipes needs FP64 activity, which DCGM lacks"),
    "GpuPcieBound": (SLICES, "slices have no PCIe traffic of their own"),
    "GpuDataLoadingBound": (SLICES, "slices have no PCIe traffic of their own"),
    "GpuCommunicationBound": (SLICES, "the traffic of slices is not measured"),
    "GpuLaunchBound": (SLICES, "slices have no PCIe traffic of their own"),
    "GpuStragglerLaunchBound": (SLICES, "slices have no PCIe traffic of their own"),
    "GpuStragglerStarved": (SLICES, "the traffic of slices is not measured"),
    "GpuStragglerSlow": (SLICES, "the traffic of slices is not measured"),
    "GpuJobAcrossCliques": (SLICES, "the traffic of slices is not measured"),
    "GpuPowerOscillation": (SLICES, "slices have no power of their own"),
}
# Models whose SMs are so few that waiting ranks fill many of them: docs/gpu-models.md says what follows.
LEAST_RECOGNISED = {H20.name: 0.82}
ABSOLUTE = "fix: compare a share, or pass the reason as `any_model` to the Limit (gpu_exporter/conditions/tree.py)"
NO_POWER = "fix: compare another quantity: which share of its limit a GPU draws differs by model, cooling and clock"
ASSUMES = "fix: pass `assumes` to the Limit, one of gpu_exporter/catalogue/model_assumptions.py"
EXEMPT = "fix: change the limit, or add an Exempt with its consequence in gpu_exporter/catalogue/model_expectations.py"
STALE = "fix: delete what is no longer needed from gpu_exporter/catalogue/model_expectations.py"
LISTED = "fix: correct UNDETECTABLE in tests/unit/catalogue/test_model_independence.py"


def unit_of(term: Term) -> str:
    """Return the unit of a term; terms of one unit, divided by each other, are a ratio."""
    if isinstance(term, Over):
        return term.signal.unit
    if isinstance(term, Calc):
        left, right = unit_of(term.left), unit_of(term.right)
        return "ratio" if term.operator == "/" and left == right else left
    if isinstance(term, OfBoard):
        return unit_of(term.of[0])
    return "ratio" if isinstance(term, PeerShare) else unit_of(term.of)


def number_of(compare: Compare) -> tuple[str, float] | None:
    """Return name and value of the fixed number on the right; None if it is another term. 0 means "any"."""
    right = compare.right
    if isinstance(right, Limit):
        return right.name, right.value
    return (f"{right:g}", right) if isinstance(right, float | int) else None


def all_comparisons(condition: Condition) -> Iterator[Compare]:
    """Yield the comparisons of a condition and of the marks that it reads on other ranks."""
    for compare in comparisons(condition):
        yield compare
        for mark in marks_of(compare):
            yield from all_comparisons(mark.condition)


def depend_on_model(condition: Condition) -> Iterator[str]:
    """Yield the numbers in units of a model that a condition compares with."""
    for compare in all_comparisons(condition):
        number = number_of(compare)
        if number and number[1] and unit_of(compare.left) in OF_A_MODEL:
            yield number[0]


def roots(signal: Signal) -> Iterator[Signal]:
    """Yield the signals that a signal is derived from, itself included."""
    yield signal
    for way in signal.definitions:
        if isinstance(way, Derived):
            for part in way.signals():
                yield from roots(part)


def compared_with_power(condition: Condition) -> Iterator[str]:
    """Yield the numbers that a condition compares power, or a share of a power limit, with."""
    for compare in all_comparisons(condition):
        signals = (leaf.signal for leaf in leaves(compare.left) if isinstance(leaf, Over))
        if any(root.unit in ("watts", "joules_per_second") for signal in signals for root in roots(signal)):
            number = number_of(compare)
            yield number[0] if number else "another term"


@pytest.mark.drift
def test_every_unit_is_sorted() -> None:
    """A new unit must be sorted before a condition can use it."""
    assert {signal.unit for signal in SIGNALS} <= OF_A_MODEL | OF_NO_MODEL, (
        "fix: sort the unit into OF_A_MODEL or OF_NO_MODEL in tests/unit/catalogue/test_model_independence.py"
    )


@pytest.mark.drift
def test_limits_in_units_of_a_model_have_a_reason() -> None:
    """Watts, hertz, bytes, bytes per second and degrees are compared only with limits that have a reason."""
    found = {name for _, condition in conditions() for name in depend_on_model(condition)}
    explained = {name for name, limit in limits().items() if limit.any_model}
    assert found - explained == set(), ABSOLUTE
    assert explained - found == set(), "fix: remove `any_model` from the Limit, whose unit needs no reason"


@pytest.mark.drift
def test_power_decides_only_about_power() -> None:
    """No mode but GpuPowerOscillation reads power, and a class only without profiling counters."""
    found = {(name, owner) for owner, condition in conditions() for name in compared_with_power(condition)}
    assert found == set(POWER.items()), NO_POWER


@pytest.mark.parametrize(
    ("compare", "absolute", "power"),
    [
        (Compare(Over(s.SM_CLOCK), "<", 1.5e9), ["1.5e+09"], []),
        (Compare(Calc(Over(s.POWER), "-", Over(s.POWER_LIMIT)), ">", -50.0), ["-50"], ["-50"]),
        (Compare(Over(s.POWER_USE, Fn.MEAN, 300), "<", Limit("idlePower", 0.3, "ratio", "")), [], ["idlePower"]),
        (Compare(Over(s.POWER), ">", Over(s.POWER_LIMIT)), [], ["another term"]),
        (Compare(Calc(Over(s.NVLINK_RX), "/", Over(s.NVLINK_TX)), ">", 2.0), [], []),
        (Compare(Over(s.NVLINK_UP), ">", 0.0), [], []),
        (Compare(PeerShare(Mark("cool", Compare(Over(s.GPU_TEMP), "<", 40.0))), ">", 0.5), ["40"], []),
    ],
)
def test_what_counts_as_dependent(compare: Compare, absolute: list[str], power: list[str]) -> None:
    """The checks find a dependent comparison, also below other nodes and in marks of other ranks."""
    condition = And(Compare(Over(s.GR_ACTIVE), ">", 0.5), compare)
    assert (list(depend_on_model(condition)), list(compared_with_power(condition))) == (absolute, power)


@pytest.mark.drift
def test_every_limit_has_an_assumption() -> None:
    """Somebody has decided what each limit assumes about models."""
    assert [name for name, limit in limits().items() if limit.assumes is None] == [], ASSUMES
    unused = set(ASSUMPTIONS) - {limit.assumes for limit in limits().values()}
    assert unused == set(), "fix: remove it from gpu_exporter/catalogue/model_assumptions.py"


@pytest.mark.drift
def test_every_expectation_has_its_limit() -> None:
    """No expectation is left of a limit that was removed."""
    assert {expectation.limit for expectation in EXPECTATIONS} - set(fixed_numbers()) == set(), STALE


@pytest.mark.drift
def test_readings_stay_clear_of_limits() -> None:
    """On every model, what its data predicts is on the right side of the limit by a factor of 1.3 or more."""
    close = [
        f"{each.limit}: {each.reading} on {model.name}: {margin:.2f}"
        for each, model, margin in narrow()
        if each.exemption(model) is None
    ]
    assert close == [], EXEMPT


@pytest.mark.drift
def test_every_exemption_is_needed() -> None:
    """Each model that an exemption names is too close to a limit."""
    pairs = [(each.exemption(model), model) for each, model, _ in narrow()]
    named = {(exempt, part) for each in EXPECTATIONS if each.limit in fixed_numbers() for exempt, part in parts(each)}
    used = {(e, part) for e, model in pairs if e for part in e.models if Exempt.is_named(model, part)}
    assert [part for _, part in named - used] == [], STALE


def parts(expectation: Expectation) -> Iterator[tuple[Exempt, str]]:
    """Yield each exemption of an expectation with each of the models that it names."""
    return ((exempt, part) for exempt in expectation.exempt for part in exempt.models)


def test_a_margin_has_two_sides() -> None:
    """Readings below a limit have room upwards, others downwards; the closest reading counts."""
    above = Expectation("x", "", False, lambda model: (3.0, 6.0))
    below = Expectation("x", "", True, lambda model: (0.5, 1.0))
    none = Expectation("x", "", True, lambda model: ())
    assert [each.margin(H200, 2.0) for each in (above, below, none)] == [1.5, 2.0, None]


def test_a_model_with_few_sms_is_found() -> None:
    """A thread in a busy loop on a GPU with 20 SMs would look like real work."""
    small = GpuModel(**{**{name: getattr(L4, name) for name in L4.__slots__}, "name": "small", "sms": 20})
    (one_thread,) = (each for each in EXPECTATIONS if each.limit == "emptySm")
    limit = fixed_numbers()["emptySm"]
    margins = [one_thread.margin(model, limit) or 0.0 for model in (small, L4)]
    assert margins[0] < MARGIN < margins[1]
    assert one_thread.exemption(small) is None


@pytest.mark.parametrize(
    ("limit", "reading", "measured"),
    [
        ("emptySm", "one thread", profiles.ONE_THREAD[m.SM_ACTIVE]),
        ("spinningSm", "waits in NCCL", profiles.HANGING[m.SM_ACTIVE]),
        ("fullPcie", "pinned", profiles.HOST_COPY[m.PCIE_RX] / 63.04e9),
        ("busyDram", "copy from the host", profiles.HOST_COPY[m.DRAM_ACTIVE]),
        ("lowDram", "FP32", profiles.FP32_GEMM[m.DRAM_ACTIVE]),
    ],
)
def test_formulas_predict_what_an_h200_read(limit: str, reading: str, measured: float) -> None:
    """The readings that are extrapolated to other models are those of the measured one, within 20 %."""
    (expectation,) = (each for each in EXPECTATIONS if each.limit == limit and reading in each.reading)
    assert expectation.values(H200) == pytest.approx((measured,), rel=0.2)


@pytest.mark.parametrize("model", WHOLE, ids=lambda model: model.name)
def test_waiting_is_recognised_on_every_model(model: GpuModel) -> None:
    """The time shares miss at most a tenth of the time that a rank waits for its peers, but where the page says so."""
    assert recognised_waiting(model) >= LEAST_RECOGNISED.get(model.name, 0.9)


@pytest.mark.drift
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_failure_modes_that_need_a_missing_signal_are_listed(model: GpuModel) -> None:
    """A mode that works on an H200 works on this model, at least partly, or is listed with a reason."""
    of_gpus = (mode for mode in MODES if mode.domain not in (Domain.HEALTH, Domain.NETWORK))
    modes = [mode for mode in of_gpus if mode not in host.MODES]
    lost = {mode.name for mode in modes if detectability(mode, model) is Detectability.NO}
    assert lost - {name for name, (models, _) in UNDETECTABLE.items() if model in models} == set(), LISTED
    assert {mode.name for mode in modes if detectability(mode, H200) is not Detectability.YES} == set(), LISTED


def test_rows_of_models() -> None:
    """Every row has its sources; only H100 and H200 were measured; a slice is no larger than its GPU."""
    assert len(BY_NAME) == len(MODELS)
    assert all(model.sources for model in MODELS)
    assert [model for model in MODELS if model.seen] == [H200, H100]
    assert all(model.watts and not model.slice_of for model in WHOLE)
    for part in SLICES:
        whole = BY_NAME[part.slice_of]
        assert part.sms <= whole.sms
        assert part.memory <= whole.memory
        assert (part.nvlink, part.watts) == (None, None)
        assert s.PCIE_RX in part.lacks
        assert s.SM_ACTIVE not in part.lacks
