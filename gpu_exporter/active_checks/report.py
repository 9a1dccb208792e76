"""The results of an active check as lines, JSON, Prometheus text and runs for the history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpu_exporter.active_checks.history import FoundHistory, Run
from gpu_exporter.active_checks.rates import Rated
from gpu_exporter.active_checks.run import Outcomes
from gpu_exporter.active_checks.verdicts import CheckResult
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.verdict import Health
from gpu_exporter.reports.numbers import binary_size, scaled, signed_percent


def lines(results: Sequence[CheckResult], outcomes: Outcomes) -> Iterator[str]:
    """Yield what was measured: each GPU, then the links, then the time that it took."""
    for result in results:
        gpu = result.verdict.gpu
        yield f"GPU {gpu.index} ({gpu.model})"
        yield from (f"  {line}" for rated in result.rates for line in _rate_lines(rated))
        yield from (f"  {line}" for line in _load_lines(result))
        yield from (f"  note: {note}" for note in result.notes)
    yield from _matrix(outcomes)
    total = sum(outcomes.seconds.values())
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in outcomes.seconds.items())
    yield f"took {total:.1f} s ({parts})"
    for process in outcomes.stuck:
        yield f"process {process} is stuck in the driver and cannot be ended; only a reboot ends it"


def _rate_lines(rated: Rated) -> Iterator[str]:
    share = f"  {rated.share:4.0%} of its {rated.source}" if rated.share else ""
    together = f"  with all GPUs {scaled(rated.together, rated.quantity.unit)}" if rated.together else ""
    how = f" ({rated.how})" if rated.how else ""
    yield f"{rated.quantity.words + how:36} {scaled(rated.value, rated.quantity.unit):>12}{share}{together}"


def _load_lines(result: CheckResult) -> Iterator[str]:
    load = result.load
    if load.clock_low is not None and load.clock_high is not None:
        held = f"; clock held down by {', '.join(load.reasons)}" if load.reasons else ""
        power = f", up to {load.power:.0f} W" if load.power is not None else ""
        heat = f", {load.temperature:.0f} °C" if load.temperature is not None else ""
        yield f"under load: {load.clock_low:.0f} to {load.clock_high:.0f} MHz{power}{heat}{held}"
    test, sustained = result.memory_test, result.sustained
    if test and "bytes" in test:
        yield f"memory test: {binary_size(test['bytes'])}, {test['passes']} passes, {test['wrong']} wrong words"
    if sustained and "last" in sustained:
        change = sustained["last"] / sustained["first"] - 1
        rate = scaled(sustained["value"], "FLOP/s")
        yield f"sustained tensor rate: {rate}, {signed_percent(change)} from start to end"


def _matrix(outcomes: Outcomes) -> Iterator[str]:
    """Yield the rates between GPUs in GB/s, from the row's GPU to the column's."""
    answers = outcomes.pairs
    if not answers:
        return
    indices = sorted({index for pair in answers for index in pair})
    yield "copies between GPUs, GB/s (* through the host):"
    yield "       " + "".join(f"{f'to {index}':>8}" for index in indices)
    for source in indices:
        cells = (_cell(answers.get((source, target))) for target in indices)
        yield f"from {source:<2}" + "".join(f"{cell:>8}" for cell in cells)
    if outcomes.ring:
        ring = (f"{pair['from']} to {pair['to']} {pair['value'] / 1e9:.0f}" for pair in outcomes.ring)
        yield f"all at once: {', '.join(ring)}"


def _cell(pair: Mapping[str, Any] | None) -> str:
    if pair is None:
        return "-"
    if "value" not in pair:
        return "failed"
    return f"{pair['value'] / 1e9:.0f}{'' if pair.get('direct') else '*'}"


def as_dict(results: Sequence[CheckResult], outcomes: Outcomes) -> dict[str, Any]:
    """Return what was measured for JSON."""
    return {
        "seconds": outcomes.seconds,
        "stuck": outcomes.stuck,
        "pairs": [{"from": source, "to": target, **answer} for (source, target), answer in outcomes.pairs.items()],
        "all_at_once": list(outcomes.ring),
        "gpus": [_gpu(result) for result in results],
    }


def _gpu(result: CheckResult) -> dict[str, Any]:
    return {
        "gpu": result.verdict.gpu.index,
        "UUID": result.verdict.gpu.uuid,
        "modelName": result.verdict.gpu.model,
        "health": result.verdict.health.value,
        "rates": [
            {**asdict(rated), "quantity": rated.quantity.value, "unit": rated.quantity.unit, "share": rated.share}
            for rated in result.rates
        ],
        "load": {**asdict(result.load), "reasons": result.load.reasons},
        "memory_test": result.memory_test,
        "sustained": result.sustained,
        "notes": list(result.notes),
    }


def runs(results: Sequence[CheckResult], at: float, level: int, boot: str, seconds: float) -> dict[str, Run]:
    """Return a run of each GPU for the history, by its UUID."""
    return {
        result.verdict.gpu.uuid: Run(
            at=at,
            level=level,
            health=result.verdict.health,
            model=result.verdict.gpu.model,
            driver=result.verdict.gpu.driver,
            boot_id=boot,
            seconds=round(seconds, 3),
            values={rated.quantity.value: rated.value for rated in result.rates},
            problems=[
                FoundHistory(each.reason, each.health, each.action, each.words) for each in result.verdict.problems
            ],
        )
        for result in results
        if result.verdict.gpu.uuid
    }


def textfile(results: Sequence[CheckResult], outcomes: Outcomes, at: float) -> str:
    """Return Prometheus text for the textfile collector of node_exporter."""
    samples: dict[Metric, list[str]] = {}

    def add(metric: Metric, gpu: Gpu, value: float, **labels: str) -> None:
        text = ",".join(f'{name}="{value}"' for name, value in {"gpu": gpu.index, "UUID": gpu.uuid, **labels}.items())
        samples.setdefault(metric, []).append(f"{metric.name}{{{text}}} {value!r}")

    for result in results:
        gpu = result.verdict.gpu
        for rated in result.rates:
            metric = m.CHECK_RATE if rated.quantity.unit == "FLOP/s" else m.CHECK_BANDWIDTH
            add(metric, gpu, rated.value, quantity=rated.quantity.value)
        for (source, target), answer in outcomes.pairs.items():
            if source == gpu.index and answer.get("direct"):
                add(m.CHECK_LINK, gpu, answer["value"], peer=str(target))
        if result.verdict.health is not Health.UNKNOWN:
            add(m.CHECK_PASSED, gpu, int(result.verdict.health is Health.HEALTHY))
        add(m.CHECK_AT, gpu, at)
    return "".join(f"{line}\n" for metric, each in samples.items() for line in _family(metric, each))


def _family(metric: Metric, samples: Iterable[str]) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind.value}"
    yield from samples
