"""Diagnoses as text, as JSON and as an exit code. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from gpu_exporter.catalogue.failure_modes.mode import Severity
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.diagnosis.judge import Diagnosis
from gpu_exporter.diagnosis.window import DeviceIdentity


def exit_code(diagnoses: Sequence[Diagnosis]) -> int:
    """Return 0 if nothing is wrong, 1 if a failure mode matches, 2 if nothing could be judged."""
    if any(diagnosis.matches for diagnosis in diagnoses):
        return 1
    return 0 if any(diagnosis.bottleneck for diagnosis in diagnoses) else 2


def as_dict(diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    """Return the GPUs for JSON, in order of node and index; `class` is null if none could be determined."""
    return {"gpus": [_as_dict(diagnosis) for diagnosis in diagnoses if _is_reported(diagnosis)]}


def _is_reported(diagnosis: Diagnosis) -> bool:
    """A GPU in MIG mode is left out unless there is a finding on it: its instances do the work."""
    return bool(diagnosis.bottleneck or diagnosis.matches or not diagnosis.identity.has_instances)


def _as_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    device, identity = diagnosis.device, diagnosis.identity
    return {
        "gpu": identity.gpu,
        "UUID": device.uuid,
        **({"GPU_I_ID": device.instance} if device.instance else {}),
        **{name: value for name in ("node", "namespace", "pod", "workload") if (value := getattr(identity, name))},
        "modelName": identity.model,
        "class": diagnosis.bottleneck.name if diagnosis.bottleneck else None,
        "evidence": _rounded(diagnosis.numbers),
        "modes": [
            {
                "name": match.mode.name,
                "severity": match.mode.severity.value,
                "domain": match.mode.domain.value,
                "action": match.mode.action.value,
                "because": _rounded(match.because),
                "advice": match.mode.advice,
            }
            for match in diagnosis.matches
        ],
        "unknown": {name: list(missing) for name, missing in diagnosis.unknown.items()},
    }


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def lines(diagnoses: Sequence[Diagnosis], *, every: bool = False) -> Iterator[str]:
    """Yield a block for each group of GPUs with identical findings, the worst first: class, modes, numbers, advice.

    Units are those of the signals: ratios as percent, traffic per second. With `every`, also what could not be judged.
    """
    groups: dict[Hashable, list[Diagnosis]] = defaultdict(list)
    for diagnosis in filter(_is_reported, diagnoses):
        bottleneck = diagnosis.bottleneck.name if diagnosis.bottleneck else ""
        modes = tuple(match.mode.name for match in diagnosis.matches)
        unknown = tuple(diagnosis.unknown.items()) if every else ()
        where = _where(diagnosis.identity)
        groups[where, bool(diagnosis.device.instance), bottleneck, modes, unknown].append(diagnosis)
    for group in sorted(groups.values(), key=_urgency):
        yield from _block(group, every=every)


def _urgency(group: Sequence[Diagnosis]) -> int:
    severities = list(Severity)
    return min((severities.index(match.mode.severity) for match in group[0].matches), default=len(severities))


def _where(identity: DeviceIdentity) -> str:
    return ", ".join(text for text in (identity.node, identity.model, identity.pod or identity.workload) if text)


def _block(group: Sequence[Diagnosis], *, every: bool) -> Iterator[str]:
    first, where = group[0], _where(group[0].identity)
    bottleneck = first.bottleneck
    what = f"{bottleneck.name}: {bottleneck.means}" if bottleneck else "class unknown: not enough is collected of it"
    yield f"GPU{'s' * (len(group) > 1)} {_names(group)}{f' ({where})' if where else ''}  {what}"
    printed: set[str] = set()
    yield from _numbers([diagnosis.numbers for diagnosis in group], printed)
    for place, match in enumerate(first.matches):
        yield f"  {match.mode.name} ({match.mode.severity.value})"
        yield from _numbers([diagnosis.matches[place].because for diagnosis in group], printed)
        yield f"    -> {match.mode.advice}"
    if every:
        for name, missing in first.unknown.items():
            yield f"  {name}: not judged, " + (f"no {', '.join(missing)}" if missing else "not watched long enough")


def _names(group: Sequence[Diagnosis]) -> str:
    """Return the GPUs as `0-3, 6`; instances and GPUs without an index one by one."""
    runs: list[list[str]] = []
    for diagnosis in group:
        name = diagnosis.identity.gpu or diagnosis.device.uuid
        if diagnosis.device.instance:
            runs.append([f"{name} instance {diagnosis.device.instance}"])
        elif runs and name.isdecimal() and runs[-1][-1] == str(int(name) - 1):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _numbers(by_gpu: Sequence[Mapping[str, float]], printed: set[str]) -> Iterator[str]:
    """Yield a line with the numbers that are not `printed` yet; of several GPUs the lowest and the highest."""
    texts = []
    for name in dict.fromkeys(name for numbers in by_gpu for name in numbers):
        if name not in printed:
            values = [numbers[name] for numbers in by_gpu if name in numbers]
            ends = dict.fromkeys((_shown(name, min(values)), _shown(name, max(values))))
            texts.append(f"{name} {' to '.join(ends)}")
    printed.update(*by_gpu)
    if texts:
        yield f"    {', '.join(texts)}"


def _shown(name: str, value: float) -> str:
    unit = UNITS.get(name.split("_of_ranks")[0].removesuffix("_max").removesuffix("_min").removesuffix("_stddev"), "")
    if unit == "ratio" or name.startswith("other_ranks"):
        return f"{value:.1%}" if 0.0005 <= abs(value) < 0.1 else f"{value:.0%}"
    if unit.startswith("bytes"):
        return f"{value / 1e9:.2f} GB" + ("/s" if unit.endswith("second") else "")
    return f"{value:.4g}"


UNITS = {signal.name: signal.unit for signal in SIGNALS}
