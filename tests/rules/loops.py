"""Training jobs with a step timer, as input series for promtool: what their loops say in each stretch of time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes.loops import PHASES, SELF_SHARE, TrainingLoop
from gpu_exporter.catalogue.failure_modes.mode import Ramp, Values
from gpu_exporter.model.job_message import LONG_STEPS, WAITING
from tests.rules.needed import rule_groups
from tests.rules.promtool import RULES
from tests.rules.series import Device, minutes, rank
from tests.rules.shapes import STEP, Part, notation

Loop = Mapping[str, "float | Ramp"]
COUNTER = re.compile(r"_(total|sum|count|bucket)\{")
GROUPS = (
    "gpu-identity",
    "gpu-jobs",
    "gpu-progress",
    "gpu-accounting",
    "gpu-distributed",
    "gpu-distributed-prompt",
    "gpu-cost",
)
# A GPU has to be known for its rank to have a place; other values do not matter.
BUSY: Values = {m.GPU_UTIL: 100.0}


class Stretch(NamedTuple):
    """What the loops of a job say for some minutes."""

    minutes: float
    loop: Loop


Story = Sequence[Stretch]


def series(name: str, story: Story) -> list[Mapping[str, str]]:
    """Return the input series of a job on one node of its name. Counters go on from one stretch to the next."""
    scrape = f'job="gpu-exporter",instance="{name}:9400",'
    keys = dict.fromkeys(key for stretch in story for key in stretch.loop)
    return [{"series": key.replace("{", f"{{{scrape}", 1), "values": notation(parts(key, story))} for key in keys]


def parts(key: str, story: Story) -> Iterable[Part]:
    """Yield the values of a series in each stretch of a story."""
    done, reached = 0, None
    for length, loop in story:
        steps = round(length * 60 / STEP)
        value = loop.get(key)
        if isinstance(value, Ramp):
            if COUNTER.search(key):
                start = value.start if reached is None else reached
                reached = start + value.per_second * steps * STEP
            else:  # a time
                start = value.start + done * STEP
            value = Ramp(start, value.per_second)
        yield steps, value
        done += steps


def rules(folder: Path) -> list[Path]:
    """Write the committed rules that training loops need, and return their files: all of them take much longer."""
    path = folder / "rules.yaml"
    path.write_text(json.dumps({"groups": [each for each in rule_groups(tuple(RULES)) if each["name"] in GROUPS]}))
    return [path]


def devices(name: str, story: Story, ranks: int = 4) -> list[Device]:
    """Return the GPUs of a job, which all work."""
    total = sum(stretch.minutes for stretch in story)
    return [Device(name, gpu, [minutes(total, BUSY)], owner=rank(name, gpu), full=False) for gpu in range(ranks)]


def changed(loop: Loop, pattern: str, value: float | Ramp) -> Loop:
    """Return a loop in which the series that match a pattern have this value."""
    assert any(re.search(pattern, key) for key in loop), pattern
    return {key: value if re.search(pattern, key) else before for key, before in loop.items()}


def scaled(loop: Loop, pattern: str, factor: float) -> Loop:
    """Return a loop in which the counters that match a pattern grow by this factor faster."""
    assert any(re.search(pattern, key) for key in loop), pattern
    return {
        key: Ramp(before.start * factor, before.per_second * factor)
        if isinstance(before, Ramp) and re.search(pattern, key)
        else before
        for key, before in loop.items()
    }


def varied(loop: Loop, share: float) -> Loop:
    """Return a loop in which each self time differs from the mean by this share of it, up or down."""
    found = dict(loop)
    for key, value in loop.items():
        if isinstance(value, Ramp) and key.startswith(f"{m.JOB_SELF}_sum"):
            steps = loop[key.replace("_sum{", "_count{")]
            assert isinstance(steps, Ramp)
            per_second = (1 + share**2) * value.per_second**2 / steps.per_second
            found[key.replace(f"{m.JOB_SELF}_sum", m.JOB_SELF_SQUARES.name)] = Ramp(500 * per_second, per_second)
    return found


def of_shares(name: str, own: Sequence[float], waiting: Sequence[float]) -> Loop:
    """Return what a job says whose ranks have these self times and waiting, as shares of a step."""
    loop: Loop = TrainingLoop(name, ranks=len(own))
    for number, (of_rank, waits) in enumerate(zip(own, waiting, strict=True)):
        loop = scaled(loop, rf'self_seconds_sum{{.*rank="{number}"', of_rank / SELF_SHARE)
        loop = scaled(loop, rf'phase_seconds_total{{.*rank="{number}".*phase="{WAITING}"', waits / PHASES[WAITING])
    return loop


# Self times and waiting of the ranks of a job, as shares of a step, and which of them are stragglers. The first three
# were measured on four H100s, those of two ranks on two H200s.
MEASURED: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[int]]] = {
    "slower-gpu": ((0.911, 0.998, 0.905, 0.888), (0.099, 0.015, 0.105, 0.121), (1,)),
    "last-to-launch": ((0.871, 0.878, 0.978, 0.871), (0.84, 0.83, 0.1, 0.85), ()),
    "launch-bound": ((0.85, 0.84, 0.83, 0.88), (0.7, 0.64, 0.51, 0.6), ()),
    "launch-bound-and-slow": ((0.62, 0.63, 0.64, 0.97), (0.85, 0.84, 0.83, 0.1), (3,)),
    "apart": ((0.80, 0.84, 0.88, 0.95), (0.18, 0.14, 0.1, 0.03), ()),
    "next-is-near": ((0.80, 0.80, 0.86, 0.90), (0.18, 0.18, 0.1, 0.06), ()),
    "slower-gpu-of-two": ((0.850, 0.982), (0.150, 0.018), (1,)),
    "alike-of-two": ((0.971, 0.985), (0.025, 0.012), ()),
    "launch-bound-of-two": ((0.876, 0.930), (0.537, 0.248), ()),
    "next-is-near-of-three": ((0.80, 0.86, 0.90), (0.18, 0.1, 0.06), ()),
}


# In this job, rare long steps take two fifths of the time; without them, it would not look launch-bound.
LONG_SHARE, WITH_LONG_STEPS = 0.4, ((0.53, 0.62), (0.4, 0.2))


def with_long_steps(loop: Loop, share: float) -> Loop:
    """Return a loop of which rare long steps take this share of the time, on all ranks."""
    waits = [key for key in loop if f'phase="{WAITING}"' in key]
    return {**loop, **{key.replace(WAITING, LONG_STEPS): Ramp(500 * share, share) for key in waits}}


def paused(loop: Loop, activity: str = "evaluation", ranks: str = r"\d+") -> Loop:
    """Return what some ranks say during a pause: no rank completes a step."""
    still = {key: Ramp(value.start, 0.0) if isinstance(value, Ramp) else value for key, value in loop.items()}
    of = rf'rank="({ranks})".*'
    now = changed(still, rf'gpu_job_activity\{{.*{of}activity="training"', 0.0)
    now = changed(now, rf'gpu_job_activity\{{.*{of}activity="{activity}"', 1.0)
    return changed(now, rf'activity_seconds_total\{{.*{of}activity="{activity}"', Ramp(0.0, 1.0))
