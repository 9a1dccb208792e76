"""What the training loops of the fleet say, in the fleet's own time: their messages, through the exporter's parser."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gpu_exporter.jobs.message import decode
from gpu_exporter.jobs.places import SenderPlace
from gpu_exporter.jobs.store import RankKey, RankSeries, RankStore, Sender
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.snapshot import GpuSamples
from tests.support.job_sender import encoded, message

# Every 20 minutes, all ranks save a checkpoint for a minute.
SAVES_EVERY, SAVES_FOR = 1200.0, 60.0
STEP_SECONDS, TOKENS, FLOPS = 0.8, 7200.0, 3.4e14


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank whose data loader takes a share of a step longer from `begin` on, so that all ranks need longer."""

    rank: int
    begin: float
    longer: float = 0.3


@dataclass(frozen=True, slots=True)
class Loop:
    """The training loop of a job. It makes no more steps from `stops` on, and its processes end at `ends`."""

    ranks: int
    straggler: Straggler | None = None
    stops: float = float("inf")
    ends: float = float("inf")


class Rank:
    """One rank of a loop: its sums, which grow with time."""

    def __init__(self, job_id: str, number: int, loop: Loop, begin: float) -> None:
        self._job_id, self._number, self._loop = job_id, number, loop
        self._begin = self._at = begin
        self._trained = self._waited = self._data = self._saved = self._steps = 0.0
        self._activity = "training"

    def says(self, now: float, uuid: str) -> Mapping[str, Any]:
        """Return its message at a time, which may not be before that of the last one."""
        late, loop = self._loop.straggler, self._loop
        longer = late.longer if late and now >= late.begin else 0.0
        since_save = now % SAVES_EVERY
        self._activity = "checkpoint" if since_save < SAVES_FOR and now < loop.stops else "training"
        passed, self._at = now - self._at, now
        if self._activity == "checkpoint":
            self._saved += passed
        elif now < loop.stops:
            mine = bool(late and late.rank == self._number)
            self._trained += passed
            self._steps += passed / (STEP_SECONDS * (1 + longer))
            self._waited += passed * (0.05 if mine else 0.05 + longer / (1 + longer))
            self._data += passed * (0.01 + (longer / (1 + longer) if mine else 0.0))
        own = self._trained - self._waited
        said = message(int(self._steps), STEP_SECONDS * (1 + longer))
        work = self._steps * STEP_SECONDS
        return {
            **said,
            "job_id": self._job_id,
            "rank": self._number,
            "world_size": loop.ranks,
            "uuid": uuid,
            "dtype": "bf16",
            "activity": self._activity,
            "elapsed": now - self._begin,
            "since_step": max(now - loop.stops, 0.0),
            "step": {**said["step"], "sum": self._trained},
            "self": {**said["self"], "sum": own},
            "self_squares": own**2 / max(int(self._steps), 1),
            "data_seconds": self._data,
            "activity_seconds": {
                "training": self._trained,
                "evaluation": 0.0,
                "checkpoint": self._saved,
                "compile": 0.0,
            },
            "phase_seconds": {"forward": 0.3 * work, "backward": 0.55 * work, "waiting": self._waited},
            "tokens": work * TOKENS,
            "flops": work * FLOPS,
            "samples": None,
        }


class NodeLoops:
    """The loops of the ranks on one node. `first` is the rank on its first GPU."""

    def __init__(self, job_id: str, loop: Loop, first: int, since_start: Callable[[], float]) -> None:
        self._job_id, self._loop, self._first, self._since_start = job_id, loop, first, since_start
        self._store = RankStore()
        self._ranks: dict[str, Rank] = {}
        self._series: dict[RankKey, RankSeries] = {}

    def start(self) -> None:
        """Do nothing: messages are made when samples are needed."""

    def stop(self) -> None:
        """Do nothing."""

    def samples(self, gpus: Sequence[GpuSamples], pods: Sequence[Series]) -> Sequence[Sample]:
        """Return what the ranks say now."""
        now = self._since_start()
        of_node: Mapping[str, Gpu] = {seen.gpu.uuid: seen.gpu for seen in gpus}
        for gpu in of_node.values() if now < self._loop.ends else ():
            number = self._first + gpu.index
            rank = self._ranks.setdefault(gpu.uuid, Rank(self._job_id, number, self._loop, now))
            said = {key: value for key, value in rank.says(now, gpu.uuid).items() if value is not None}
            self._store.take(decode(encoded(said)), Sender(0, 0, SenderPlace(gpu.uuid), True), now, time.time())
        shown = [(key, state) for key, state in self._store.shown(now) if key.place.uuid in of_node]
        for key, _ in shown:
            self._series.setdefault(key, RankSeries(key, of_node[key.place.uuid]))
        return tuple(chain.from_iterable(self._series[key].samples(state) for key, state in shown))
