"""Render the page on GPU models: what was measured, what is extrapolated, and where that may fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_exporter.alerting import banner, coverage, runbooks
from gpu_exporter.alerting.coverage import Detectability
from gpu_exporter.catalogue import gpu_models, model_assumptions, model_expectations
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode
from gpu_exporter.catalogue.gpu_models import SLICES, WHOLE, GpuModel, Profiling
from gpu_exporter.catalogue.model_assumptions import ASSUMPTIONS
from gpu_exporter.catalogue.model_expectations import (
    EXPECTATIONS,
    IDLE_EDGE,
    MARGIN,
    Exempt,
    Expectation,
    fixed_numbers,
    limits,
    narrow,
    recognised_waiting,
)
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.conditions.prose import title
from gpu_exporter.conditions.signal import Read, Signal
from gpu_exporter.reports.markdown import bullets, table, ticked
from gpu_exporter.reports.numbers import exact

HEAD = """# GPU models

The conditions of [classes and failure modes](failure-modes.md) were developed on recordings of the models that are
marked *measured* below. For all others, the numbers come from NVIDIA's documents, and whether a condition
carries over is **extrapolated**: it was not run there. This page lists what is assumed, and where it is known to fail.
See [platforms](platforms.md) for drivers, operating systems and other environments.

## Models

*Profiling metrics*: where SM, pipe and DRAM activity come from. With *DCGM only*, use [DCGM](dcgm.md) or dcgm-exporter;
without it, the class is [approximate](without-profiling.md). NVLink traffic is the sum of both directions.

"""
PEAKS_HEAD = """
## Peaks

In TFLOP/s, without sparsity. `gpu_job_peak_flops_per_second`, to which the MFU of a [training loop](jobs.md) refers,
has the value for the data type that the loop declares. A slice has the share of its SMs. Models that are not listed
have peaks, too, as far as they can be [computed](platforms.md#what-does-each-product-line-get) from their chip.

"""
SLICES_HEAD = """
## MIG slices

No MIG slice was measured. A slice has no NVLink, no power limit and no PCIe traffic of its own. Of the
[signals](signals.md), these exist for each GPU instance: {}.

All others exist only for the whole GPU. Shares of SMs and of memory bandwidth are assumed to be shares of what the
instance has. Where no list of the SMs of slices is public (H100 PCIe, H20, and a part of RTX PRO 6000), a slice is
assumed to have the fraction of the SMs that the guide names. GB200 is assumed to have the profiles of B200.

"""
ASSUMPTIONS_HEAD = """
## What do the limits assume?

Conditions compare shares, ratios between ranks, and traffic that differs by orders of magnitude. No condition but
GpuPowerOscillation reads power, because idle and waiting GPUs draw between 0.11 and 0.31 of their limit, which depends
on the model and the clock.

"""
ABSOLUTE_HEAD = """
Limits in units of which a model has more than another:

"""
MARGINS_HEAD = f"""
## How far is each reading from its limit?

Each line is a reading that follows from the data of a model. The factor says how far it is from the limit: 2 means that
it could double, or halve, before a condition changes its answer; below 1, it is on the wrong side. *Lowest*: the model
where the factor is lowest. Factors below {MARGIN:g} are listed under *Known limitations*.

"""
LIMITATIONS_HEAD = """
## Known limitations

"""
MISSING_HEAD = """
On some models, no source reports a signal that a failure mode needs. *Partly*: it is detected, but may be mistaken for
another one, or another one for it. Faults of the GPU itself are detected on all models.

"""
SOURCES_HEAD = """
## Sources

"""


def page() -> str:
    """Return docs/gpu-models.md."""
    per_instance = ", ".join(title(each) for each in _per_instance())
    parts = (
        banner.markdown(gpu_models, model_assumptions, model_expectations, gpu_models) + HEAD,
        table(_MODEL_COLUMNS, map(_model, WHOLE)),
        PEAKS_HEAD,
        table(("model", *gpu_models.DTYPES), map(_peaks, WHOLE)),
        SLICES_HEAD.format(per_instance),
        table(("slice", "SMs", "memory", "memory bandwidth"), map(_slice, SLICES)),
        ASSUMPTIONS_HEAD,
        table(("readings", "limits", "measured", "extrapolated"), _assumptions()),
        ABSOLUTE_HEAD,
        table(("limit", "why it is the same for every model"), _absolute()),
        MARGINS_HEAD,
        table(("reading", "limit", "H200", "lowest"), _margins()),
        _waiting(),
        LIMITATIONS_HEAD,
        bullets(_limitations()),
        MISSING_HEAD,
        table(("models", "not detectable", "partly"), _undetectable()),
        SOURCES_HEAD,
        bullets(sorted({source for model in gpu_models.MODELS for source in model.sources})),
    )
    return "".join(parts)


_MODEL_COLUMNS = (
    "model",
    "state",
    "architecture",
    "SMs",
    "power limit",
    "memory",
    "bandwidth",
    "NVLink",
    "PCIe",
    "profiling metrics",
)


def _model(model: GpuModel) -> tuple[str, ...]:
    link = model.nvlink
    pcie = " or ".join(map(str, model.pcie))
    return (
        model.name,
        "**measured**" if model.seen else "extrapolated",
        model.architecture,
        str(model.sms),
        f"{model.watts:g} W",
        f"{_size(model)} {model.memory_type}",
        exact(model.memory_bandwidth, "bytes_per_second"),
        f"generation {link.generation}, {link.links} links, {_rate(link.bytes_per_second)}" if link else "none",
        f"generation {pcie}" + (", copies over NVLink-C2C" if model.c2c else ""),
        model.profiling.value + ("" if model.profiling is Profiling.GPM else _without(model)),
    )


def _peaks(model: GpuModel) -> tuple[str, ...]:
    highest = (gpu_models.peak_of(model, dtype) for dtype in gpu_models.DTYPES)
    return (model.name, *("" if peak is None else f"{peak / gpu_models.TFLOP:g}" for peak in highest))


def _without(model: GpuModel) -> str:
    pipes = [title(signal) for signal in model.lacks if signal.name.endswith("_active")]
    return f", without {', '.join(pipes)}" if pipes else ""


def _slice(model: GpuModel) -> tuple[str, ...]:
    return model.name, str(model.sms), _size(model), _rate(model.memory_bandwidth)


def _size(model: GpuModel) -> str:
    """Return the memory as the data sheet and the name of the product have it."""
    return f"{model.memory / 1e9:g} GB"


def _rate(bytes_per_second: float) -> str:
    return exact(round(bytes_per_second / 1e9) * 1e9, "bytes_per_second")


def _per_instance() -> tuple[Signal, ...]:
    whole = set(gpu_models.whole_gpu_only())
    return tuple(signal for signal in SIGNALS if signal not in whole)


def _assumptions() -> Iterator[tuple[str, ...]]:
    for each in ASSUMPTIONS:
        names = ticked(name for name, limit in limits().items() if limit.assumes == each)
        yield each.name, names, each.measured, each.extrapolated


def _absolute() -> Iterator[tuple[str, ...]]:
    for name, limit in limits().items():
        if limit.any_model:
            yield f"`{name}`", limit.any_model


def _margins() -> Iterator[tuple[str, ...]]:
    known = fixed_numbers()
    for expectation in EXPECTATIONS:
        if expectation.limit not in known:
            continue
        limit = known[expectation.limit]
        factors = {model.name: expectation.margin(model, limit) for model in gpu_models.MODELS}
        lowest, name = min((factor, name) for name, factor in factors.items() if factor is not None)
        on_h200 = factors[gpu_models.H200.name]
        yield (
            expectation.reading,
            f"{'below' if expectation.below else 'above'} {_limit(expectation, limit)}",
            "" if on_h200 is None else _times(on_h200),
            f"{_times(lowest)} on {name}",
        )


def _waiting() -> str:
    share, name = min((recognised_waiting(model), model.name) for model in WHOLE)
    on_h200 = recognised_waiting(gpu_models.H200)
    return (
        f"\nOf the time that a rank waits in NCCL, the time shares attribute {100 * on_h200:.0f} % to its peers on an "
        f"H200, and at least {100 * share:.0f} % on every other whole GPU ({name}).\n"
    )


def _limit(expectation: Expectation, value: float) -> str:
    if expectation.limit == IDLE_EDGE:
        return f"{exact(value, 'ratio')} (part of the signal *SM idle time*)"
    return f"{exact(value, limits()[expectation.limit].unit)} (`{expectation.limit}`)"


def _times(factor: float) -> str:
    return f"{factor:.0f}" if factor >= 10 else f"{factor:.2g}"


def _limitations() -> Iterator[str]:
    models: dict[Exempt, list[str]] = {}
    for expectation, model, _ in narrow():
        exempt = expectation.exemption(model)
        if exempt is not None and model.name not in models.setdefault(exempt, []):
            models[exempt].append(model.name)
    for exempt, names in models.items():
        yield f"**{', '.join(_short(names))}.** {exempt.reason}"


def _short(names: Sequence[str]) -> Iterator[str]:
    """Yield the names of whole GPUs, and the profiles of slices without the model and the memory: MIG 1g."""
    profiles = {name.partition(" MIG ")[2].partition(".")[0] for name in names if " MIG " in name}
    yield from (name.removeprefix("NVIDIA ") for name in names if " MIG " not in name)
    if profiles:
        yield f"MIG slices {', '.join(sorted(profiles))}"


def series(model: GpuModel) -> frozenset[str]:
    """Return the names of the series that exist for this model, with gpu-exporter or dcgm-exporter."""
    lacking = {way.name for signal in model.lacks for way in signal.definitions if isinstance(way, Read)}
    return (coverage.exposed(full=True, host=not model.slice_of, jobs=True) | coverage.DCGM_RECOMMENDED) - lacking


def detectability(mode: FailureMode, model: GpuModel) -> Detectability:
    """Return how well a failure mode can be detected on this model, or on an instance of it in MIG mode."""
    return coverage.detectability(mode, series(model))


def _undetectable() -> Iterator[tuple[str, ...]]:
    rows: dict[tuple[str, str], list[str]] = {}
    for model in gpu_models.MODELS:
        if model.lacks:
            found = [
                (mode, detectability(mode, model))
                for mode in MODES
                if mode.domain not in (Domain.HEALTH, Domain.NETWORK)
            ]
            no, partly = (_names(found, level) for level in (Detectability.NO, Detectability.PARTLY))
            rows.setdefault((no, partly), []).append(model.name)
    for (no, partly), names in rows.items():
        yield "all MIG slices" if len(names) == len(SLICES) else ", ".join(names), no, partly


def _names(found: Sequence[tuple[FailureMode, Detectability]], level: Detectability) -> str:
    return ", ".join(
        f"[{mode.name}]({runbooks.path(mode).removeprefix('docs/')})" for mode, reached in found if reached is level
    )
