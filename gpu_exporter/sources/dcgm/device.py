"""One GPU through DCGM -> readings: the GPU itself, its NVLinks, its MIG instances."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.errors import GpuLost
from gpu_exporter.model.gpu import Gpu, Reading, Series, XidEvent
from gpu_exporter.model.metric import EntityKind, Labels, Metric, Pace
from gpu_exporter.sources.dcgm.bindings import Part
from gpu_exporter.sources.dcgm.errors import LOST, NO_PROFILING, PROFILING_PAUSED, DcgmError, outcome, raise_if_lost
from gpu_exporter.sources.dcgm.health_and_peers import Told
from gpu_exporter.sources.dcgm.identity import MIG_MODE, OF_GPU, OF_SYSTEM, identify
from gpu_exporter.sources.dcgm.plan import PROFILING_KIND, SAMPLED_SECONDS, Question, plan
from gpu_exporter.sources.dcgm.profiling import Profiling
from gpu_exporter.sources.dcgm.session import LINK_NONE, LINK_UP, LOOK_SECONDS, Session, Table, Watch, Wish
from gpu_exporter.sources.dcgm.values import Answer, Entity, EntityGroup, gpu, link

NAME, UUID = 50, 54
# Samples of a GPU that get no younger for so long: the host engine is alive, and stuck in the driver.
STUCK_INTERVALS, STUCK_SECONDS = 3.0, 3.0
# Xids that nobody has fetched yet; a device beside NVML's is never asked for them.
MOST_XIDS = 1000


class Shared(Protocol):
    """What the devices of a source have in common."""

    interval: float
    instances: Sequence[int | str]

    def read(self, session: Session, paces: frozenset[Pace], since: float) -> Table:
        """The answers for these paces, none of a pace older than `since` (monotonic seconds)."""

    def look(self, session: Session, job: Callable[[], bool]) -> bool:
        """Look at something on the source's thread, which takes no longer than a read."""

    def ask(self, session: Session, job: Callable[[], None]) -> None:
        """Do something on the source's thread, which may take as long as to attach a GPU."""

    def listen(self, number: int, heard: deque[XidEvent]) -> None:
        """Put Xids of a GPU there from now on."""

    def unlisten(self, number: int, heard: deque[XidEvent]) -> None:
        """The opposite."""

    def supported(self, number: int) -> bool:
        """Whether the host engine could read this GPU when it was asked last."""

    def drop(self, session: Session, job: Callable[[], None]) -> None:
        """Do something on the source's thread if it can be done soon. Never raises."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a GPU is made of: the states of its NVLinks, whether it is in MIG mode, and its instances."""

    links: tuple[int, ...]
    mig: bool
    parts: tuple[Part, ...]

    @property
    def built_as(self) -> object:
        """What decides which questions there are; that a link goes down does not."""
        return self.mig, self.parts, tuple(state != LINK_NONE for state in self.links)


class DcgmDevice:
    """One GPU. Asks the host engine on the source's thread, and judges the answers on its own."""

    def __init__(self, shared: Shared, session: Session, index: int, number: int, metrics: Sequence[Metric]) -> None:
        """Only on the source's thread. Raises GpuLost, SourceLost."""
        self.xids_since: float | None = None
        self._shared, self._session = shared, session
        self._number, self._board = number, gpu(number)
        self._metrics = metrics
        self._interval = shared.interval
        self._series: dict[tuple[Metric, Labels], Series] = {}
        self._answered: set[Series] = set()
        self._watches: list[Watch] = []
        self._profiling_watches: list[Watch] = []
        self._refused: dict[Metric, str] = {}
        self._own: dict[Series, float] = {}
        self._paused: Series | None = None
        self._stamp, self._stamped_at = 0, time.monotonic()
        self._looked_at = time.monotonic()
        self._read_once = False
        self._heard: deque[XidEvent] = deque(maxlen=MOST_XIDS)
        self._told = Told(self._of, metrics)
        self._xids: Watch | None = None
        self._identity: Watch | None = None
        try:
            self.gpu = self._identify(index)
            self._layout = self._seen = self._look()
            self._build()
            asked_at = time.time()
            self._xids = session.watch_xids(number)
            self.xids_since = asked_at if self._xids else None
            shared.listen(number, self._heard)
        except DcgmError as error:
            self._give_back()
            raise_if_lost(error, f"GPU {index}", session.where)
            raise GpuLost(f"GPU {index}: DCGM: {error}", LOST.get(error.code, "unknown")) from error
        except BaseException:
            self._give_back()
            raise

    # --- what is asked --------------------------------------------------------------------------------------------

    def _identify(self, index: int) -> Gpu:
        known = self._session.attributes(self._number)
        if not known.uuid:
            raise GpuLost(f"GPU {index}: DCGM does not know its UUID any more", "gone")
        self._identity, refused = self._session.watch(
            Wish("identity", (self._board,), OF_GPU, SAMPLED_SECONDS[Pace.SLOW])
        )
        fields = [field for field in OF_GPU if field not in refused]
        answers = {
            **self._session.of_system(self._board, OF_SYSTEM),
            **(self._session.latest([self._board], fields) if fields else {}),
        }
        mig = answers.get((self._board, MIG_MODE))
        self._mig = mig is not None and mig.value == 1
        return identify(index, known, {field: answer for (_, field), answer in answers.items()})

    def _look(self) -> Layout:
        """What the GPU is made of now. Only on the source's thread."""
        parts = self._session.parts()
        mine = {part.entity for part in parts if part.parent == self._board}
        devices = [part for part in parts if part.parent in mine]
        # Without a compute instance nothing can run in a GPU instance.
        instances = [part for part in parts if part.entity in {device.parent for device in devices}]
        wanted = any(row.entity is EntityKind.NVLINK or row in (m.NVLINK_COUNT, m.NVLINK_UP) for row in self._metrics)
        states = tuple(self._session.links(self._number)) if wanted else ()
        return Layout(states, self._mig or bool(mine), (*instances, *devices))

    def _of(self, metric: Metric, labels: Labels) -> Series:
        key = (metric, labels)
        if key not in self._series:
            self._series[key] = Series(metric, self.gpu, labels)
        return self._series[key]

    def _build(self) -> None:
        """Ask for everything. Only on the source's thread. Raises DcgmError, SourceLost."""
        links = {n: link(self._board, n) for n, state in enumerate(self._layout.links) if state != LINK_NONE}
        instances = self._instances()
        self._plan = plan(self._of, self._board, self._metrics, links, instances, mig=self._layout.mig)
        self._refused = {}
        refusals: dict[int, DcgmError] = {}
        for wish in self._plan.wishes(self._interval):
            if wish.kind != PROFILING_KIND:
                watch, refused = self._session.watch(wish)
                self._watches.append(watch)
                self._refuse(wish.entities, {field: outcome(error.code) for field, error in refused.items()})
                refusals.update(refused)
        if refusals and not self._plan.plain:
            raise next(iter(refusals.values()))
        self._ask_profiling()
        self._enter()

    def _instances(self) -> dict[Entity, Labels]:
        """The GPU instances with their labels, and what is told of them and their MIG devices by DCGM's calls."""
        devices = [part for part in self._layout.parts if part.entity.group is EntityGroup.GPU_CI]
        uuids = self._texts(UUID, [part.entity for part in devices])
        instances = [part for part in self._layout.parts if part.entity.group is EntityGroup.GPU_I]
        if named := self._shared.instances:
            by_uuid = {part.parent for part in devices if uuids.get(part.entity) in named}
            instances = [each for each in instances if each.entity.id in named or each.entity in by_uuid]
            devices = [part for part in devices if part.parent in {each.entity for each in instances}]
        names = self._texts(NAME, [part.entity for part in instances])
        found: dict[Entity, Labels] = {}
        self._own = {}
        for part in instances:
            labels = (("GPU_I_ID", str(part.number)), ("GPU_I_PROFILE", names.get(part.entity, "")))
            found[part.entity] = labels
            if m.INSTANCE_SLICES in self._metrics:
                self._own[self._of(m.INSTANCE_SLICES, labels)] = float(part.slices)
        for part in devices:
            of = found.get(part.parent, ())
            own = (("compute_instance_id", str(part.number)), ("mig_uuid", uuids.get(part.entity, "")))
            self._own[self._of(m.MIG_DEVICE, (*of, *own))] = 1.0
        return found

    def _texts(self, field: int, entities: Sequence[Entity]) -> dict[Entity, str]:
        if not entities:
            return {}
        watch, refused = self._session.watch(Wish("names", tuple(entities), (field,), SAMPLED_SECONDS[Pace.STATIC]))
        answers = {} if refused else self._session.latest(entities, (field,))
        self._session.unwatch(watch)
        return {entity: answer.value for (entity, _), answer in answers.items() if isinstance(answer.value, str)}

    def _ask_profiling(self) -> None:
        """Have the profiling fields sampled. A host engine without the means refuses them all, and nothing else."""
        profiling = self._profiling = Profiling(
            self._plan.profiling, self._interval, time.monotonic(), self._session.counted
        )
        for wish in self._plan.wishes(self._interval):
            if wish.kind != PROFILING_KIND:
                continue
            watch, refused = self._session.watch(wish)
            self._profiling_watches.append(watch)
            taken = next(
                (PROFILING_PAUSED[each.code] for each in refused.values() if each.code in PROFILING_PAUSED), ""
            )
            for field, error in refused.items():
                reason = "paused" if taken else NO_PROFILING.get(error.code, outcome(error.code))
                profiling.refuse(wish.entities, field, reason)
            profiling.pause = profiling.pause or taken

    def _refuse(self, entities: Sequence[Entity], reasons: Mapping[int, str]) -> None:
        """Take note of what the host engine does not sample."""
        if reasons:
            for question in self._plan.plain:
                if question.entity in entities and question.number in reasons:
                    self._refused[question.series.metric] = reasons[question.number]
            self._plan = self._plan.without(entities, reasons)

    def _enter(self) -> None:
        """Put what is asked at each pace up for the readings that all devices share."""
        fields: dict[tuple[Pace, Entity], set[int]] = {(Pace.SLOW, self._board): {MIG_MODE}}
        for question in (*self._plan.plain, *self._profiling.questions):
            fields.setdefault((question.pace, question.entity), set()).add(question.number)
        self._session.tell(self, self._board, self._told.rows)
        self._session.ask(self, {place: frozenset(numbers) for place, numbers in fields.items()})
        self._asked_at = time.monotonic()

    def _forget(self) -> None:
        """Ask for nothing any more. Only on the source's thread."""
        self._session.forget(self)
        for watch in (*self._watches, *self._profiling_watches):
            self._session.unwatch(watch)
        self._watches.clear()
        self._profiling_watches.clear()

    # --- what is answered -----------------------------------------------------------------------------------------

    def events(self) -> Sequence[XidEvent]:
        """Xids that DCGM told since the last call."""
        return [self._heard.popleft() for _ in range(len(self._heard))]

    def read(self, paces: frozenset[Pace]) -> Reading:
        if not self._shared.supported(self._number):
            raise GpuLost(f"GPU {self.gpu.index}: it is gone: DCGM lists it no more among those that it reads", "gone")
        ended = self._changes(time.monotonic())
        if not self._read_once:
            paces = frozenset(Pace)
        table = self._shared.read(self._session, paces, self._asked_at)
        now = time.monotonic()
        values: dict[Series, float] = {}
        failed: dict[Series, str] = {}
        spans: dict[Series, float] = {}
        self._judge(table.answers, paces, now, values, failed)
        if Pace.FAST in paces:
            self._profiling.read(table.answers, now, values, spans, failed)
        values.update(self._own)
        values.update(self._links())
        ended |= self._pause(values)
        ended |= self._told.read(table.told, self._board, self.gpu.index, paces, values, failed)
        self._answered |= values.keys()
        self._read_once = True
        return Reading(now, values, None, failed, self._unsupported(table.answers, now), spans, ended)

    def _judge(
        self,
        answers: Mapping[tuple[Entity, int], Answer],
        paces: frozenset[Pace],
        now: float,
        values: dict[Series, float],
        failed: dict[Series, str],
    ) -> None:
        """Fill in what the plain fields of these paces answer. Raises GpuLost if none does, or none anew."""
        asked = [question for question in self._plan.plain if question.pace in paces]
        board = [question for question in asked if question.pace is Pace.FAST and question.entity == self._board]
        stamps = [answers[question.key].stamp for question in board if question.key in answers]
        for question in asked:
            answer = answers.get(question.key)
            value = _number(question, answer)
            if value is not None:
                values[question.series] = value
            elif answer is not None and answer.status in LOST:
                raise GpuLost(f"GPU {self.gpu.index}: {DcgmError(answer.status)}", LOST[answer.status])
            elif question.series in self._answered:
                failed[question.series] = answer.reason if answer and answer.reason else "no_data"
        if board and not any(question.series in values for question in board):
            raise GpuLost(f"GPU {self.gpu.index}: DCGM has no value of it", "lost")
        if stamps and max(stamps) != self._stamp:
            self._stamp, self._stamped_at = max(stamps), now
        elif stamps and now - self._stamped_at > max(STUCK_INTERVALS * self._interval, STUCK_SECONDS):
            since = now - self._stamped_at
            raise GpuLost(f"GPU {self.gpu.index}: the host engine has sampled nothing for {since:.0f} s", "stalled")

    def _links(self) -> dict[Series, float]:
        """How many NVLinks there are, and are up."""
        states = self._layout.links
        found = {
            m.NVLINK_COUNT: sum(state != LINK_NONE for state in states),
            m.NVLINK_UP: sum(state == LINK_UP for state in states),
        }
        present = found[m.NVLINK_COUNT]
        return {self._of(metric, ()): float(n) for metric, n in found.items() if present and metric in self._metrics}

    def _changes(self, now: float) -> set[Series]:
        """Follow MIG instances that come and go, and try again what somebody else has; return the series that ended."""
        if now - self._looked_at < LOOK_SECONDS:
            return set()
        self._looked_at = now
        before = {*self._plan.series, *self._own}
        if self._shared.look(self._session, lambda: self._is_due(now)):
            self._shared.ask(self._session, self._follow)
        return before - self._plan.series - self._own.keys()

    def _is_due(self, now: float) -> bool:
        """Whether something has changed, or is to be tried again. Only on the source's thread."""
        mig = self._session.table.answers.get((self._board, MIG_MODE))
        if mig is not None and mig.value is not None:
            self._mig = mig.value == 1
        self._seen, before = self._look(), self._layout
        if self._seen.built_as != before.built_as:
            return True
        self._layout = self._seen
        return self._profiling.due(now)

    def _follow(self) -> None:
        """Ask for what there is now. Only on the source's thread."""
        profiling, anew = self._profiling, self._seen.built_as != self._layout.built_as
        self._layout = self._seen
        try:
            if anew:
                self._forget()
                self._build()
                self._read_once = False
            else:
                for watch in self._profiling_watches:
                    self._session.unwatch(watch)
                self._profiling_watches.clear()
                self._ask_profiling()
                self._enter()
        except DcgmError as error:
            raise GpuLost(f"GPU {self.gpu.index}: DCGM: {error}", LOST.get(error.code, "unknown")) from error
        self._profiling.after(profiling)

    def _pause(self, values: dict[Series, float]) -> set[Series]:
        """Say that the counters are taken, as long as they are."""
        pause = self._profiling.pause
        known = self._paused
        if known is not None and dict(known.labels)["reason"] != pause:
            self._paused = None
        if pause:
            self._paused = self._of(m.PROFILING_PAUSED, (("reason", pause),))
            values[self._paused] = 1.0
        return set() if known is None or known is self._paused else {known}

    def _unsupported(self, answers: Mapping[tuple[Entity, int], Answer], now: float) -> dict[Metric, str]:
        """What neither the GPU nor any part of it has answered yet, and why."""
        found = {**self._plan.unsupported, **self._refused, **self._profiling.unsupported(answers, now)}
        found.update(self._told.unsupported)
        for question in self._plan.plain:
            if question.series not in self._answered and question.series.metric not in found:
                answer = answers.get(question.key)
                found[question.series.metric] = answer.reason if answer and answer.reason else "no_value"
        if not any(self._layout.links):
            found.update(
                (metric, "not_supported") for metric in (m.NVLINK_COUNT, m.NVLINK_UP) if metric in self._metrics
            )
        answered = {series.metric for series in self._answered}
        return {metric: reason for metric, reason in found.items() if metric not in answered}

    def close(self) -> None:
        self._shared.unlisten(self._number, self._heard)
        self._shared.drop(self._session, self._give_back)

    def _give_back(self) -> None:
        if self._xids is not None:
            self._session.unwatch_xids(self._number, self._xids)
        if self._identity is not None:
            self._session.unwatch(self._identity)
        self._forget()


def _number(question: Question, answer: Answer | None) -> float | None:
    return question.value(answer.value) if answer is not None and isinstance(answer.value, int | float) else None
