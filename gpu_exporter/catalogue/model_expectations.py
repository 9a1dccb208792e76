"""Readings that follow from the data of a GPU model, with the limit that each must stay clear of.

The limits are those of all conditions and time shares. The formulas reproduce what was measured on an H200; for other
models they extrapolate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.failure_modes import MODES, profiles
from gpu_exporter.catalogue.gpu_models import (
    A30,
    A100,
    A100_40,
    A100_PCIE,
    BLOCKS_MEASURED,
    C2C_BYTES_PER_SECOND,
    GB200,
    GH200,
    H20,
    H100_PCIE,
    H200,
    L4,
    L40S,
    MODELS,
    RTX_PRO_6000,
    GpuModel,
)
from gpu_exporter.catalogue.time_shares import TIME_SHARES, WAITING_SM, WORKING_SM
from gpu_exporter.conditions.formulas import parts
from gpu_exporter.conditions.signal import Read, Within
from gpu_exporter.conditions.tree import Condition, Limit, limits_of

# The edge of the histogram that the signal `sm_idle` is computed from is fixed, too, but is no limit that users change.
IDLE_EDGE = "edge of sm_idle"


def conditions() -> Iterator[tuple[str, Condition]]:
    """Yield all conditions of classes, failure modes and time shares, with their names."""
    yield from ((each.name, each.condition) for each in BOTTLENECKS)
    yield from ((mode.name, mode.condition) for mode in MODES if mode.condition)
    for cause, share in TIME_SHARES.items():
        yield from ((f"time share {cause.value}", part) for part in parts(share) if isinstance(part, Condition))


def limits() -> Mapping[str, Limit]:
    """Return every limit that a condition or a time share reads, by name."""
    compared = (limit for _, condition in conditions() for limit in limits_of(condition))
    computed = (part for share in TIME_SHARES.values() for part in parts(share) if isinstance(part, Limit))
    return {limit.name: limit for limit in (*compared, *computed)}


def fixed_numbers() -> Mapping[str, float]:
    """Return the values that expectations refer to: the limits, and the edge that is part of a signal."""
    (edge,) = (
        way.shape.edge for way in s.SM_IDLE.definitions if isinstance(way, Read) and isinstance(way.shape, Within)
    )
    return {IDLE_EDGE: edge, **{name: limit.value for name, limit in limits().items()}}


# No reading may come closer to its limit than this factor, unless the expectation says what follows.
MARGIN = 1.3
# Measured on two H200s: the integer activity of a rank that waits in an all-reduce of 1 MiB (protocol LL), and the
# NVLink traffic in each direction of all-reduces of 4 KiB, one after the other.
SPIN_INT, SMALL_REDUCES = 0.030, 2.0e8


@dataclass(frozen=True, slots=True)
class Exempt:
    """Models on which a reading comes too close to its limit, and what follows. `MIG 1g.` names such slices of all."""

    models: tuple[str, ...]
    reason: str

    def covers(self, model: GpuModel) -> bool:
        """Return whether the model is one of these."""
        return any(self.is_named(model, part) for part in self.models)

    @staticmethod
    def is_named(model: GpuModel, part: str) -> bool:
        """Return whether `part` names the model: its name, or the beginning of the profile of a slice."""
        return part in model.name if part.startswith("MIG") else part == model.name


@dataclass(frozen=True, slots=True)
class Expectation:
    """A reading that a model's data predicts: it must stay `below` the limit, or else above it, by `MARGIN`.

    `values` returns what the model reads in the given situation, in one or more configurations; nothing if the
    situation or the signal does not exist on the model.
    """

    limit: str
    reading: str
    below: bool
    values: Callable[[GpuModel], tuple[float, ...]]
    exempt: tuple[Exempt, ...] = ()

    def margin(self, model: GpuModel, limit: float) -> float | None:
        """Return the factor by which the closest reading is on the right side of `limit`; None without a reading."""
        factors = [_factor(limit, value) if self.below else value / limit for value in self.values(model)]
        return min(factors, default=None)

    def exemption(self, model: GpuModel) -> Exempt | None:
        """Return why the margin may be too small on this model."""
        return next((exempt for exempt in self.exempt if exempt.covers(model)), None)


def _factor(limit: float, value: float) -> float:
    return limit / value if value else float("inf")


def _one_block(model: GpuModel) -> tuple[float, ...]:
    return (1 / model.sms,)


def _waiting(model: GpuModel) -> tuple[float, ...]:
    return (model.blocks / model.sms,)


def _waiting_int(model: GpuModel) -> tuple[float, ...]:
    per_filled_sm = SPIN_INT / (BLOCKS_MEASURED / H200.sms)
    return tuple(per_filled_sm * share for share in _waiting(model))


def _has_pcie(model: GpuModel) -> bool:
    return s.PCIE_RX not in model.lacks


def _of_link(bytes_per_second: float) -> Callable[[GpuModel], tuple[float, ...]]:
    return lambda model: tuple(bytes_per_second / link for link in model.pcie_links if _has_pcie(model))


def _launches(model: GpuModel) -> tuple[float, ...]:
    return (0.0 if model.c2c else profiles.TINY_KERNELS[m.PCIE_RX],) if _has_pcie(model) else ()


def _full_copy(model: GpuModel) -> tuple[float, ...]:
    measured = profiles.HOST_COPY[m.PCIE_RX] / H200.pcie_links[0]
    return (0.0 if model.c2c else measured,) if _has_pcie(model) else ()


def _copied_bytes(model: GpuModel) -> tuple[float, ...]:
    return tuple(share * link for share in _full_copy(model) for link in model.pcie_links)


def _dram_of_copy(model: GpuModel) -> tuple[float, ...]:
    fastest = C2C_BYTES_PER_SECOND if model.c2c else max(model.pcie_links)
    return (fastest / model.memory_bandwidth,)


def _gemm(measured: float, flops: Callable[[GpuModel], float]) -> Callable[[GpuModel], tuple[float, ...]]:
    """Return the DRAM activity of a matrix product: as on an H200, by FLOP/s per byte/s."""

    def intensity(model: GpuModel) -> float:
        return flops(model) / model.memory_bandwidth

    return lambda model: (measured * intensity(model) / intensity(H200),)


def _nvlink(share: float) -> Callable[[GpuModel], tuple[float, ...]]:
    return lambda model: (share * model.nvlink.bytes_per_second,) if model.nvlink else ()


def _reduces_over_pcie(model: GpuModel) -> tuple[float, ...]:
    if model.nvlink:
        return ()
    return (SMALL_REDUCES if _has_pcie(model) else 0.0,)


def _half_of_power(model: GpuModel) -> tuple[float, ...]:
    return () if model.watts is None else (model.watts / 2,)


def _slices(model: GpuModel, *profiles: str) -> tuple[str, ...]:
    return tuple(f"{model.name} MIG {profile}" for profile in profiles)


_FEW_SMS = Exempt(
    ("MIG 1g.", *_slices(H20, "2g.24gb")),
    "A slice has so few SMs that one thread fills 5 to 7 % of them: a busy loop is reported as "
    "communicating instead of as fake load.",
)
_C2C = Exempt(
    (GB200.name, GH200.name),
    "Copies and launches go over NVLink-C2C, whose traffic is not a signal: a GPU that only copies counts as idle, one "
    "that waits for data as host-bound, and ranks that only launch are not recognised.",
)
_FEW_BLOCKS = Exempt(
    ("MIG 1g.", "MIG 2g."),
    "If NCCL uses 8 blocks on a slice of 14 to 32 SMs, a rank that waits fills too many SMs to count as waiting: a "
    "hang of such ranks is not reported.",
)
EXPECTATIONS: tuple[Expectation, ...] = (
    Expectation("emptySm", "SM activity of one thread in a busy loop", True, _one_block, (_FEW_SMS,)),
    Expectation(
        "hoarderSm",
        "SM activity of one thread in a busy loop",
        True,
        _one_block,
        (
            Exempt(
                _slices(H20, "1g.12gb", "1g.24gb", "1g.12gb+me"),
                "A seventh of an H20 has so few SMs that one thread fills 9 % of them: a program that holds memory and "
                "only spins may not be recognised.",
            ),
        ),
    ),
    Expectation(
        IDLE_EDGE,
        "SM activity of one block",
        True,
        _one_block,
        (
            Exempt(
                (A100.name, A100_40.name, A100_PCIE.name, A30.name, H100_PCIE.name, H20.name, L4.name, "MIG"),
                "With fewer than 130 SMs, one block is about 1 % of them or more: a GPU that runs tiny kernels "
                "counts as working, and the share of time with idle SMs is lower than on large GPUs.",
            ),
        ),
    ),
    Expectation(
        "spinningSm",
        "SM activity of a rank that waits in NCCL",
        True,
        _waiting,
        (
            _FEW_BLOCKS,
            Exempt(
                (H20.name,),
                "With 24 blocks on its 78 SMs, a rank that waits fills 31 % of them, so the time shares attribute "
                "only 82 % of its waiting to its peers. With 28 blocks or more, a hang would not be reported.",
            ),
        ),
    ),
    Expectation(
        "busySm",
        "SM activity of a rank that waits in NCCL",
        True,
        _waiting,
        (_FEW_BLOCKS,),
    ),
    Expectation(
        "idleInt",
        "integer activity of a rank that waits in NCCL",
        True,
        _waiting_int,
        (_FEW_BLOCKS,),
    ),
    Expectation(
        "quietPcie",
        "share of the PCIe link that the fastest launches use",
        True,
        _of_link(profiles.TINY_KERNELS[m.PCIE_RX]),
    ),
    Expectation(
        "smallTrafficBytes",
        "known PCIe traffic of all-reduces of 4 KiB without NVLink",
        False,
        _reduces_over_pcie,
        (
            Exempt(
                ("MIG",),
                "The traffic of MIG slices is unknown: a job on them that only exchanges small messages, keeps the "
                "engine busy and touches no memory is taken for a hang.",
            ),
        ),
    ),
    Expectation("fullPcie", "share of the PCIe link that a copy from pinned memory uses", False, _full_copy, (_C2C,)),
    Expectation("movingBytes", "PCIe traffic of a copy from pinned memory", False, _copied_bytes, (_C2C,)),
    Expectation("movingBytes", "PCIe traffic of the fastest launches", True, _launches),
    Expectation("movingBytes", "NVLink traffic of a GPU that uses 1 % of its links", False, _nvlink(0.01)),
    Expectation("talkingBytes", "NVLink traffic of a GPU that uses 0.1 % of its links", False, _nvlink(0.001)),
    Expectation("launchingBytes", "PCIe traffic of the fastest launches", False, _launches, (_C2C,)),
    Expectation(
        "busyDram",
        "DRAM activity of a copy from the host",
        True,
        _dram_of_copy,
        (
            Exempt(
                _slices(GH200, "1g.12gb", "1g.12gb+me"),
                "Copies over NVLink-C2C can use most of the memory bandwidth of a slice, which then counts as "
                "memory-bound.",
            ),
        ),
    ),
    Expectation(
        "busyDram",
        "DRAM activity of a bf16 matrix product",
        True,
        _gemm(profiles.GEMM[m.DRAM_ACTIVE], lambda model: model.bf16),
    ),
    Expectation(
        "lowDram",
        "DRAM activity of an FP32 matrix product",
        True,
        _gemm(profiles.FP32_GEMM[m.DRAM_ACTIVE], lambda model: model.fp32),
        (
            Exempt(
                (
                    *(L40S.name, L4.name, RTX_PRO_6000.name),
                    *_slices(RTX_PRO_6000, "1g.24gb", "2g.48gb", "4g.96gb", "1g.24gb+me"),
                ),
                "They have five to seven times the FP32 rate per byte of bandwidth of an H200, so the product may load "
                "the memory too much to be reported as tensor-cores-idle. Their "
                "larger L2 cache, which is not considered, helps.",
            ),
        ),
    ),
    Expectation("heldMemory", "half of the memory", False, lambda model: (model.memory / 2,)),
    Expectation(
        "coarsePower",
        "swing between no power and the power limit",
        False,
        _half_of_power,
        (Exempt((L4.name,), "The distribution of power is too coarse for a board of 72 W; see the group *power*."),),
    ),
)


def narrow() -> Iterator[tuple[Expectation, GpuModel, float]]:
    """Yield each expectation and model whose margin is below `MARGIN`, with the margin."""
    known = fixed_numbers()
    for expectation in EXPECTATIONS:
        if expectation.limit not in known:
            continue
        for model in MODELS:
            margin = expectation.margin(model, known[expectation.limit])
            if margin is not None and margin < MARGIN:
                yield expectation, model, margin


def recognised_waiting(model: GpuModel) -> float:
    """Return the share of the time that a rank waits in NCCL which the time shares attribute to its peers."""
    (active,) = _waiting(model)
    return min((WORKING_SM.value - active) / (WORKING_SM.value - WAITING_SM.value), 1.0)
