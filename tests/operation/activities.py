"""What people and programs do on GPUs in normal operation: training, serving, notebooks."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles as p
from gpu_exporter.model.metric import Metric
from tests.operation.fleet import DAY, HOUR, Fleet, Owner, Timeline, steps
from tests.operation.loads import BOARD, IDLE, Values, growing, load, memory
from tests.rules.series import Stretch, rank
from tests.rules.shapes import Integral, Shape

# Loads a model, then fills the memory ever more slowly, as caching allocators do: MiB at the end of each stretch.
LOADING_MIB = 60_000.0
FILLS = ((8.0, 105_000.0), (25.0, 127_000.0), (30.0, 138_000.0), (35.0, 139_200.0))
SPINS: Values = {**BOARD, **p.HANGING}
WRITES: Values = {**BOARD, **p.IDLE, m.PCIE_TX: 4e9}
LOADS: Values = {**BOARD, **p.SLOW_LOADER}


@dataclass(frozen=True, slots=True)
class Job:
    """A kind of training job: the load of each rank, and the alerts that describe it.

    It saves a checkpoint of `saves` minutes every `every` minutes.
    """

    name: str
    ranks: Sequence[tuple[str, str, int]]
    explains: tuple[str, ...] = ()
    every: float = 40.0
    saves: float = 3.0

    def loads(self) -> Sequence[Values]:
        """Return the load of each rank."""
        return [load(*each) for each in self.ranks]


def train(fleet: Fleet, gpus: Sequence[Timeline], start: int, end: int, name: str, job: Job, rng: random.Random) -> int:
    """Run a training job on these GPUs; return the scrape at which it ends."""
    loads, end = job.loads(), min(end, fleet.total)
    for number, gpu in enumerate(gpus):
        own = random.Random(f"{name} {rng.random() if number == 0 else 0}")
        plan = _plan(job, end - start, random.Random(f"{name}{start}"))
        story = _training(plan, loads[number % len(loads)], rank(name, number), first=number == 0, rng=own)
        gpu.put(start, _until(story, end - start))
    fleet.true(f"{job.name} job", gpus, start, end, *job.explains)
    return end


def _until(story: Iterator[Stretch], length: int) -> Iterator[Stretch]:
    for stretch in story:
        taken = min(stretch.steps, length)
        if taken <= 0:
            return
        length -= taken
        yield Stretch(taken, stretch.values, owner=stretch.owner)


def _plan(job: Job, length: int, rng: random.Random) -> Sequence[tuple[str, int]]:
    """Return what all ranks do together: trains, saves or evaluates, for so many scrapes."""
    plan: list[tuple[str, int]] = []
    done, until_evaluation = 0, rng.uniform(2, 5) * HOUR
    while done < length:
        trains = steps(job.every * rng.uniform(0.9, 1.1))
        plan += [("trains", trains), ("saves", steps(job.saves * rng.uniform(0.7, 1.3)))]
        if done >= until_evaluation:
            plan.append(("evaluates", steps(rng.uniform(5, 9))))
            until_evaluation = done + rng.uniform(2, 5) * HOUR
        done += trains + plan[-1][1]
    return plan


def _training(
    plan: Sequence[tuple[str, int]], values: Values, owner: Owner, *, first: bool, rng: random.Random
) -> Iterator[Stretch]:
    loading = rng.uniform(3, 6)
    yield Stretch(steps(loading), {**LOADS, **growing(600.0, LOADING_MIB, loading * 60)}, owner=owner)
    used = LOADING_MIB
    for minutes, until in FILLS:
        yield Stretch(steps(minutes), {**values, **growing(used, until, minutes * 60)}, owner=owner)
        used = until
    full = memory(used)
    doing: Mapping[str, Values] = {
        "trains": values,
        "saves": WRITES if first else SPINS,
        "evaluates": load("single", "memory_bound_elementwise"),
    }
    for what, length in plan:
        yield Stretch(length, {**doing[what], **full}, owner=owner)


def mixed(values: Values, busy: float, rng: random.Random) -> Values:
    """Return a load that works for a share of the time and idles otherwise, in bursts of random length."""
    shares = [min(1.0, rng.expovariate(1 / busy)) if busy else 0.0 for _ in range(61)]
    found: dict[Metric, Shape | Integral] = dict(values)
    for row in p.BALANCED:
        found[row] = [share * _at(values[row], n) + (1 - share) * _at(IDLE[row], n) for n, share in enumerate(shares)]
    ons = [rng.random() < share for share in shares]
    for row in (m.POWER_INSTANT, m.SM_CLOCK):
        found[row] = [_at(values[row] if on else IDLE[row], n) for n, on in enumerate(ons)]
    for histogram, row in ((m.SM_SHARES, m.SM_ACTIVE), (m.POWER_SAMPLES, m.POWER_INSTANT)):
        found[histogram] = [_at(values[row] if on else IDLE[row], n) for n, on in enumerate(ons)]
    return found


def _at(shape: Shape | Integral, n: int) -> float:
    assert isinstance(shape, float | int | list), shape
    return shape[n % len(shape)] if isinstance(shape, list) else float(shape)


def serve(
    fleet: Fleet,
    gpu: Timeline,
    owner: Owner,
    model: Values,
    rng: random.Random,
    *,
    peak: float,
    explains: Sequence[str],
) -> None:
    """Serve requests for the whole period: many by day, almost none at night. vLLM's metrics are scraped, too."""
    requests: list[tuple[int, Shape | Integral | None]] = []
    place, full = 0, memory(128_000.0)
    while place < fleet.total:
        hour = place % DAY / HOUR
        traffic = peak * max(0.0, math.sin((hour - 7) / 14 * math.pi)) ** 2 if 7 < hour < 21 else 0.0
        weekend = place // DAY % 7 >= 5
        busy = min(0.97, traffic * (0.3 if weekend else 1.0) * rng.uniform(0.8, 1.2)) or rng.uniform(0.02, 0.06)
        length = steps(rng.uniform(10, 20))
        values = mixed(model, busy, rng)
        gpu.put(place, [Stretch(length, {**values, **full}, owner=owner)])
        shown = [
            round(20 * busy * rng.uniform(0.5, 1.5)) if busy > 0.1 else float(rng.random() < busy) for _ in range(31)
        ]
        requests.append((min(length, fleet.total - place), shown))
        few = ("GpuHostBound",) if busy > 0.1 else ()
        fleet.true("serving", [gpu], place, place + length, *explains, *few)
        place += length
    # The server works as intended, in bursts.
    fleet.true("serving", [gpu], 0, fleet.total, "GpuPowerOscillation", "GpuMemoryHoarded", "GpuWaitsForRequests")
    labels = {"job": "vllm", "namespace": owner["namespace"], "pod": owner["pod"], "model_name": "chat"}
    fleet.series["vllm:num_requests_running", tuple(labels.items())] = requests


def notebook(fleet: Fleet, gpu: Timeline, person: str, day: int, rng: random.Random, *, forgotten: bool) -> None:
    """Use a notebook from morning to evening: bursts of work, pauses, lunch. It may be forgotten until next morning."""
    owner = {"namespace": "research", "pod": f"notebook-{person}-0", "container": "main"}
    place, end = day * DAY + steps(rng.uniform(8.3, 10) * 60), day * DAY + steps(rng.uniform(17, 19) * 60)
    start, held, lunch = place, memory(rng.uniform(8_000, 60_000)), False
    kinds = ("train_big_batch", "data_loading_bound_train", "compute_bound_bf16_gemm", "memory_bound_elementwise")
    while place < end:
        works = load("single", rng.choice(kinds))
        place = gpu.put(place, [Stretch(steps(rng.uniform(1, 20)), {**works, **held}, owner=owner)])
        pause = rng.uniform(2, 30)
        if not lunch and place > day * DAY + 12 * HOUR:
            lunch, pause = True, rng.uniform(50, 80)
        place = gpu.put(place, [Stretch(steps(pause), {**IDLE, **held}, owner=owner)])
    fleet.true("notebook", [gpu], start, place, *WORK)
    if forgotten:
        until = (day + 1) * DAY + 7 * HOUR
        gpu.put(place, [Stretch(until - place, {**IDLE, **held}, owner=owner)])
        fleet.true("forgotten notebook", [gpu], start, until, "GpuAllocatedIdle")


# What may limit work that changes all the time.
WORK = ("GpuHostBound", "GpuDataLoadingBound", "GpuMemoryBound", "GpuPowerOscillation", "GpuUnderfilled")


def bursts(fleet: Fleet, gpu: Timeline, start: int, end: int, name: str, rng: random.Random) -> None:
    """Run a job that works in bursts of some minutes, with pauses of seconds to minutes."""
    works, place = load("single", "compute_bound_bf16_gemm"), start
    while place < end:
        busy = Stretch(steps(rng.uniform(1, 6)), {**works, **memory(90_000.0)}, owner=rank(name))
        pause = Stretch(steps(rng.uniform(0.5, 12)), {**IDLE, **memory(90_000.0)}, owner=rank(name))
        place = gpu.put(place, [busy, pause])
    fleet.true("bursty job", [gpu], start, place, *WORK)


def queue(
    fleet: Fleet, gpus: Sequence[Timeline], jobs: Sequence[Job], rng: random.Random, prefix: str, *, hours: float = 14.0
) -> None:
    """Run one training job after another for the whole period."""
    place, number = steps(rng.uniform(5, 40)), 0
    while place < fleet.total:
        job = rng.choice(jobs)
        length = round(min(40.0, max(0.7, rng.lognormvariate(math.log(hours), 0.7))) * HOUR)
        number += 1
        end = train(fleet, gpus, place, place + length, f"{prefix}{_letters(number)}", job, rng)
        place = end + steps(rng.uniform(3, 60))


def _letters(number: int) -> str:
    """Return a number in letters: a number at the end of a pod's name may be cut off."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))
