"""One GPU through DCGM -> readings: the GPU itself, its NVLinks, its MIG instances."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.errors import GpuLost, GpuNotSampled, SourceLost
from gpu_exporter.model.gpu import Gpu, Reading, Series, XidEvent, detail
from gpu_exporter.model.metric import EntityKind, Labels, Metric, Pace
from gpu_exporter.model.source import Device
from gpu_exporter.sources.dcgm.bindings import Attributes, MigPart
from gpu_exporter.sources.dcgm.demand import SAMPLED_SECONDS, Demand, interval_of, sampling, sampling_of_means
from gpu_exporter.sources.dcgm.errors import (
    GPUS_DETACHED,
    LOST,
    NO_PROFILING,
    PROFILING_PAUSED,
    DcgmError,
    down_reason,
    hung_fix,
    outcome,
    raise_if_lost,
    stopped_fix,
)
from gpu_exporter.sources.dcgm.groups import FieldWatch, WatchRequest, WatchResult
from gpu_exporter.sources.dcgm.health_and_peers import HealthAndPeers
from gpu_exporter.sources.dcgm.inventory import (
    COMPUTE_CAPABILITY,
    LINK_NONE,
    LINK_UP,
    LIST_SECONDS,
    MIG_MODE,
    MINOR_NUMBER,
    UUID,
    Inventory,
)
from gpu_exporter.sources.dcgm.plan import FieldQuery, GpuParts, plan
from gpu_exporter.sources.dcgm.profiling import STOPPED, ProfilingReads
from gpu_exporter.sources.dcgm.session import XID, FieldTable, Session, XidWatches
from gpu_exporter.sources.dcgm.values import NO_ANSWER, Entity, EntityGroup, FieldAnswer, gpu

log = logging.getLogger(__name__)

NAME = 50
# Fields of utilisation and power: they tell a GPU that works from one whose profiling counters are rightly 0, and
# counters that keep their values from a host engine that samples nothing.
WITNESSES = {row: row.dcgm for row in (m.GPU_UTIL, m.POWER) if row.dcgm is not None}
# The first architecture whose links are measured by NVML's GPM. Before, DCGM's profiling module would have to share the
# counters of a GPU with the fields of all of its links.
FIRST_WITH_MEASURED_LINKS = 9


@dataclass(frozen=True, slots=True)
class Layout:
    """The states of a GPU's NVLinks, whether it is in MIG mode, and its MIG instances and devices."""

    links: tuple[int, ...]
    mig: bool
    parts: tuple[MigPart, ...]

    @property
    def shape(self) -> object:
        """What decides which fields are read: of a link, only its existence, not its state."""
        return self.mig, self.parts, tuple(state != LINK_NONE for state in self.links)

    def parts_of(self, group: EntityGroup) -> list[MigPart]:
        """Return the MIG parts of one kind."""
        return [part for part in self.parts if part.entity.group is group]


def layout(inventory: Inventory, board: Entity, *, links: bool, mig: bool) -> Layout:
    """Return the current layout of a GPU, with its links if they are wanted. Raises SourceLost.

    `mig` is whether the GPU says that it is in MIG mode; one that has instances is, too.
    """
    parts = inventory.parts()
    own = {part.entity for part in parts if part.parent == board}
    devices = [part for part in parts if part.parent in own]
    # In a GPU instance without a compute instance nothing can run.
    instances = [part for part in parts if part.entity in {device.parent for device in devices}]
    states = tuple(inventory.links(board.id)) if links else ()
    return Layout(states, mig or bool(own), (*instances, *devices))


class Instances(NamedTuple):
    """Return the labels of the GPU instances that are read, and the constant values of these and their devices."""

    labels: Mapping[Entity, Labels]
    constants: Sequence[tuple[Metric, Labels, float]]


def instances(session: Session, layout: Layout, chosen: Sequence[int | str]) -> Instances:
    """Return the chosen GPU instances, by DCGM's numbers or their devices' UUIDs; all by default. Raises SourceLost."""
    devices, parts = layout.parts_of(EntityGroup.GPU_CI), layout.parts_of(EntityGroup.GPU_I)
    uuids = _texts(session, UUID, [device.entity for device in devices])
    if chosen:
        by_uuid = {device.parent for device in devices if uuids.get(device.entity) in chosen}
        parts = [part for part in parts if part.entity.id in chosen or part.entity in by_uuid]
        devices = [device for device in devices if device.parent in {part.entity for part in parts}]
    names = _texts(session, NAME, [part.entity for part in parts])
    labels: dict[Entity, Labels] = {}
    constants: list[tuple[Metric, Labels, float]] = []
    for part in parts:
        labels[part.entity] = (("GPU_I_ID", str(part.number)), ("GPU_I_PROFILE", names.get(part.entity, "")))
        constants.append((m.INSTANCE_SLICES, labels[part.entity], float(part.slices)))
    for device in devices:
        identity = (("compute_instance_id", str(device.number)), ("mig_uuid", uuids.get(device.entity, "")))
        constants.append((m.MIG_DEVICE, (*labels.get(device.parent, ()), *identity), 1.0))
    return Instances(labels, constants)


def _texts(session: Session, field: int, entities: Sequence[Entity]) -> dict[Entity, str]:
    if not entities:
        return {}
    watches, refused = session.groups.watch(WatchRequest(tuple(entities), (field,), SAMPLED_SECONDS[Pace.STATIC]))
    answers = {} if refused else session.connection.latest(entities, (field,))
    for watch in watches:
        session.groups.unwatch(watch)
    return {entity: answer.value for (entity, _), answer in answers.items() if isinstance(answer.value, str)}


# Fields of the system that complement a GPU's attributes.
SYSTEM_FIELDS = NVML_VERSION, CUDA_DRIVER = 2, 5
# NVML's names of architectures, by compute capability.
ARCHITECTURES = {
    (5, 0): "Maxwell",
    (6, 0): "Pascal",
    (7, 0): "Volta",
    (7, 5): "Turing",
    (8, 0): "Ampere",
    (8, 9): "Ada",
    (9, 0): "Hopper",
    (10, 0): "Blackwell",
}


def identify(index: int, attributes: Attributes, answers: Mapping[int, FieldAnswer]) -> Gpu:
    """Return the identity, without details that DCGM does not know."""

    def number(field: int) -> int | None:
        answer = answers.get(field)
        return int(answer.value) if answer is not None and isinstance(answer.value, int | float) else None

    nvml = answers.get(NVML_VERSION)
    cuda, minor, capability = number(CUDA_DRIVER), number(MINOR_NUMBER), number(COMPUTE_CAPABILITY)
    pair = None if capability is None else (capability >> 16, capability & 0xFFFF)
    info = {
        "driver_version": attributes.driver,
        "nvml_version": nvml.value if nvml is not None and isinstance(nvml.value, str) else "",
        "cuda_version": "" if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        "serial": attributes.serial,
        "vbios_version": attributes.vbios,
        "inforom_version": attributes.inforom,
        "architecture": "" if pair is None else _architecture(pair),
        "compute_capability": "" if pair is None else f"{pair[0]}.{pair[1]}",
    }
    return Gpu(
        index=index,
        uuid=attributes.uuid,
        pci_bus_id=detail(attributes.pci),
        model=attributes.name,
        device="" if minor is None else f"nvidia{minor}",
        driver=attributes.driver,
        info=tuple((name, value) for name, value in info.items() if detail(value)),
    )


def _architecture(capability: tuple[int, int]) -> str:
    """Return the newest architecture up to this compute capability; a capability that is not listed may be any."""
    return next((ARCHITECTURES[first] for first in sorted(ARCHITECTURES, reverse=True) if first <= capability), "")


# Metrics of NVLinks that the list of links has.
OF_LINKS = (m.NVLINK_COUNT, m.NVLINK_UP, m.LINK_UP)
# Without a new sample of a GPU for this long, its values are too old: the host engine hangs or is overloaded.
STUCK_INTERVALS, STUCK_SECONDS = 3.0, 3.0
# If the host engine has sampled no GPU for this long, it is connected anew.
RECONNECT_SECONDS = 60.0
# The most XIDs that are kept until they are fetched. Those of a device that only complements NVML's are never fetched.
MOST_XIDS = 1000


class PreparedWatch(NamedTuple):
    """What a device wants to be watched, and what takes the result."""

    request: WatchRequest
    take: Callable[[WatchRequest, WatchResult], None]


class DeviceContext(Protocol):
    """The methods of a source that its devices use."""

    interval: float
    instances: Sequence[int | str]
    hidden: frozenset[Metric]

    @property
    def demand(self) -> Demand:
        """How much is asked of the host engine now."""

    def read(self, session: Session, paces: frozenset[Pace], since: float) -> FieldTable:
        """Return the answers for these paces, read after `since` (monotonic seconds)."""

    def inspect(self, session: Session, job: Callable[[], bool]) -> bool:
        """Run a job on the source's thread that takes no longer than a read. Raises SourceLost."""

    def watch(self, session: Session, device: DcgmDevice, prepare: Callable[[], None]) -> None:
        """Prepare a device on the source's thread, and make the watches of all devices that are prepared by then.

        Raises SourceLost.
        """

    def clean_up(self, session: Session, job: Callable[[], None]) -> None:
        """Run a job on the source's thread if that is possible soon. Never raises."""

    def add_listener(self, number: int, xids: deque[XidEvent]) -> None:
        """Append XIDs of a GPU to this queue from now on."""

    def remove_listener(self, number: int, xids: deque[XidEvent]) -> None:
        """Stop appending XIDs to this queue."""

    def is_readable(self, number: int) -> bool:
        """Return whether the host engine could read this GPU when its GPUs were last listed."""


class DcgmDevice(Device):
    """One GPU. It calls the host engine on the source's thread, and interprets the answers on the thread that reads."""

    def __init__(
        self, context: DeviceContext, session: Session, index: int, number: int, metrics: Sequence[Metric]
    ) -> None:
        """Attach a GPU by its index and DCGM's number. Only on the source's thread. Raises GpuLost, SourceLost."""
        self._context, self._session, self._metrics = context, session, metrics
        self._number, self._board = number, gpu(number)
        self._series: dict[tuple[Metric, Labels], Series] = {}
        self._answered: set[Series] = set()
        self._watches: list[FieldWatch] = []
        self._profiling_watches: list[FieldWatch] = []
        self._xid_watches: list[FieldWatch] = []
        self._replaced: list[FieldWatch] = []
        self._requests: list[PreparedWatch] = []
        self._errors: dict[int, DcgmError] = {}
        self.begun = False
        self._profiling = ProfilingReads((), {}, 0.0, {})
        self._refused: dict[Metric, str] = {}
        self._constants: dict[Series, float] = {}
        self._paused: Series | None = None
        self._stopped = False
        self._stamp, self._stamped_at, self._layout_at = 0, time.monotonic(), time.monotonic()
        self._read_once = self._settled = False
        self._xids: deque[XidEvent] = deque(maxlen=MOST_XIDS)
        self._health_and_peers = HealthAndPeers(self._series_of, metrics)
        self._other_since: int | None = None
        try:
            self.gpu = self._identify(index)
            self._layout = self._new_layout = self._current_layout()
            self._prepare()
        except DcgmError as error:
            raise_if_lost(error, f"GPU {index}", session.connection.where)
            raise GpuLost(f"GPU {index}: DCGM: {error}", down_reason(error.code)) from error

    # --- watches --------------------------------------------------------------------------------------------------

    def _identify(self, index: int) -> Gpu:
        inventory = self._session.inventory
        attributes = inventory.attributes(self._number)
        if not attributes.uuid:
            raise GpuLost(f"GPU {index}: DCGM no longer knows its UUID", "gone")
        answers = dict(inventory.identity(self._board))
        for (_, field), answer in inventory.system_answers(self._board, SYSTEM_FIELDS).items():
            answers[field] = answer
        mig, capability = (answers.get(field, NO_ANSWER).value for field in (MIG_MODE, COMPUTE_CAPABILITY))
        self._mig = mig == 1
        older = isinstance(capability, int | float) and int(capability) >> 16 < FIRST_WITH_MEASURED_LINKS
        self._measures_links = not older
        return identify(index, attributes, answers)

    def _current_layout(self) -> Layout:
        """Only on the source's thread."""
        links = any(row.entity is EntityKind.NVLINK or row in OF_LINKS for row in self._metrics)
        return layout(self._session.inventory, self._board, links=links, mig=self._mig)

    def _series_of(self, metric: Metric, labels: Labels) -> Series:
        key = (metric, labels)
        if key not in self._series:
            self._series[key] = Series(metric, self.gpu, labels)
        return self._series[key]

    def _prepare(self) -> None:
        """Plan what to watch now. Only on the source's thread. Raises SourceLost."""
        context = self._context
        if self._profiling.pause:  # the counters are asked for again
            self._end(self._profiling_watches)
            self._profiling_watches = []
        self._demand, self._hidden = context.demand, context.hidden
        self._interval = interval_of(context.interval, self._demand)
        labels, constants = instances(self._session, self._layout, context.instances)
        self._constants = {
            self._series_of(metric, of): value
            for metric, of, value in constants
            if metric is m.MIG_DEVICE or metric in self._metrics
        }
        there = tuple(n for n, state in enumerate(self._layout.links) if state != LINK_NONE)
        parts = GpuParts(there, labels, self._layout.mig, self._measures_links)
        self._plan = plan(self._series_of, self._board, self._metrics, parts, self._demand, self._hidden)
        self._refused = {}
        means = sampling_of_means(context.interval, self._demand)
        self._seconds = sampling(context.interval, self._demand)
        # At first, slow means are sampled as fast ones, so that a command that reads GPUs for a second has them.
        means = means if self._settled else dict.fromkeys(Pace, self._interval)
        self._profiling = ProfilingReads(self._plan.profiling, means, time.monotonic(), self._session.counted)
        self._replaced += [*self._watches, *self._profiling_watches]
        self._watches, self._profiling_watches, self._errors = [], [], {}
        self._requests = [
            *(PreparedWatch(request, self._take_plain) for request in self._plan.plain_requests(self._seconds)),
            *(PreparedWatch(request, self._take_profiling) for request in self._plan.profiling_requests(means)),
        ]
        unread = tuple(number for row, number in WITNESSES.items() if row not in self._metrics)
        if self._plan.profiling and unread:
            request = WatchRequest((self._board,), unread, self._seconds[Pace.FAST])
            self._requests.append(PreparedWatch(request, self._take_plain))
        if not self._xid_watches:
            self._asked_for_xids_at = time.time()
            self._requests.append(PreparedWatch(XidWatches.request(self._number), self._take_xids))
        self.begun = False

    def take_requests(self) -> Sequence[PreparedWatch]:
        """Return what to watch next; nothing once everything is watched. Only on the source's thread."""
        requests, self._requests = self._requests, []
        if not requests and not self.begun:
            self.begun = True
            if self._profiling.refused and not self._profiling.pause:
                return [PreparedWatch(each, self._take_plain) for each in self._plan.sum_requests(self._seconds)]
        return requests

    def _take_plain(self, request: WatchRequest, result: WatchResult) -> None:
        """Remove fields from the plan that the host engine does not sample."""
        self._watches += result.watches
        self._errors.update(result.refused)
        reasons = {field: outcome(error.code) for field, error in result.refused.items()}
        for query in self._plan.plain:
            if query.entity in request.entities and query.number in reasons:
                self._refused[query.series.metric] = reasons[query.number]
        if reasons:
            self._plan = self._plan.without(request.entities, reasons)

    def _take_profiling(self, request: WatchRequest, result: WatchResult) -> None:
        """Note which profiling fields the host engine does not sample. One that cannot profile refuses only these."""
        self._profiling_watches += result.watches
        codes = [error.code for error in result.refused.values()]
        pause = next((PROFILING_PAUSED[code] for code in codes if code in PROFILING_PAUSED), "")
        for field, error in result.refused.items():
            reason = "paused" if pause else NO_PROFILING.get(error.code, outcome(error.code))
            self._profiling.refuse(request.entities, field, reason)
        self._profiling.pause = self._profiling.pause or pause

    def _take_xids(self, request: WatchRequest, result: WatchResult) -> None:
        """Read XIDs from now on, if the host engine keeps them."""
        self._xid_watches += result.watches
        if not result.refused:
            self._session.xids.watched(self._number)
            self._context.add_listener(self._number, self._xids)
            self.xids_since = self._asked_for_xids_at

    def begin(self) -> None:
        """Read what is watched now. Only on the source's thread. Raises GpuLost if the host engine refused it all."""
        if self._errors and not self._watches:
            error = next(iter(self._errors.values()))
            raise GpuLost(f"GPU {self.gpu.index}: DCGM: {error}", down_reason(error.code)) from error
        self._subscribe()
        replaced, self._replaced = self._replaced, []
        self._end(replaced)

    def _end(self, watches: Sequence[FieldWatch]) -> None:
        for watch in watches:
            self._session.groups.unwatch(watch)

    def _subscribe(self) -> None:
        """Add the fields of this GPU to the reads that all devices share."""
        fields: dict[tuple[Pace, Entity], set[int]] = {
            (Pace.SLOW, self._board): {MIG_MODE, UUID},
            (Pace.FAST, self._board): {
                *((XID,) if self._xid_watches else ()),
                *(WITNESSES.values() if self._profiling.queries else ()),
            },
        }
        for query in (*self._plan.plain, *self._profiling.queries):
            hurry = not self._settled and query.sampled is not Pace.FAST
            fields.setdefault((Pace.FAST if hurry else query.pace, query.entity), set()).add(query.number)
        self._session.calls.subscribe(self, self._board, self._health_and_peers.rows)
        fast = (query for query in self._plan.plain if query.pace is Pace.FAST and query.series.metric.nvml is not None)
        pulse = next((query.key for query in fast if query.entity == self._board), None)
        self._session.subscribe(self, {place: frozenset(numbers) for place, numbers in fields.items()}, pulse)
        self._subscribed_at = time.monotonic()

    # --- readings -------------------------------------------------------------------------------------------------

    def events(self) -> Sequence[XidEvent]:
        return [self._xids.popleft() for _ in range(len(self._xids))]

    @property
    def in_driver(self) -> bool:
        return False

    def read(self, paces: frozenset[Pace]) -> Reading:
        if not self._context.is_readable(self._number):
            raise GpuLost(f"GPU {self.gpu.index}: DCGM no longer lists it among the GPUs that it can read", "gone")
        ended = self._follow_layout(time.monotonic())
        if not self._read_once:
            paces = frozenset(Pace)
        table = self._context.read(self._session, paces, self._subscribed_at)
        now = time.monotonic()
        values: dict[Series, float] = {}
        failed: dict[Series, str] = {}
        spans: dict[Series, float] = {}
        computed = self._profiling.computed_sums(self._plan.plain, table.answers, now)
        ended |= computed & self._answered
        self._answered -= computed
        due = [query for query in self._plan.plain if query.pace in paces and query.series not in computed]
        self._read_plain(table.answers, due, now, values, failed)
        if Pace.FAST in paces:
            util, power = (
                answer.value if isinstance(answer.value, int | float) else None
                for answer in (table.answers.get((self._board, number), NO_ANSWER) for number in WITNESSES.values())
            )
            ratio = None if util is None else util / 100
            self._profiling.read(table.answers, now, ratio, power, values, spans, failed)
            self._say_if_stopped()
        values.update(self._constants)
        values.update(self._links())
        ended |= self._read_pause(values)
        ended |= self._health_and_peers.read(table.call_answers, (self._board, self.gpu.index), paces, values, failed)
        self._answered |= values.keys()
        self._read_once = True
        return Reading(now, values, None, failed, self._unsupported(table.answers, now), spans, ended)

    def _read_plain(
        self,
        answers: Mapping[tuple[Entity, int], FieldAnswer],
        due: Sequence[FieldQuery],
        now: float,
        values: dict[Series, float],
        failed: dict[Series, str],
    ) -> None:
        """Fill in the values of fields other than profiling.

        Raises GpuLost if no sample has a value, GpuNotSampled if there is no new sample, SourceLost if that lasts.
        """
        fast = [query for query in due if query.pace is Pace.FAST and query.entity == self._board]
        board = [query for query in fast if query.series.metric.nvml is not None]  # others may be blank on a good GPU
        stamps = [answers[query.key].stamp for query in board if query.key in answers]
        for query in due:
            answer = answers.get(query.key)
            value = _value(query, answer)
            if value is not None:
                values[query.series] = value
            elif answer is not None and answer.status in (*LOST, GPUS_DETACHED):
                raise_if_lost(DcgmError(answer.status), f"GPU {self.gpu.index}", self._session.connection.where)
            elif query.series in self._answered:
                failed[query.series] = answer.reason if answer and answer.reason else "no_data"
        newest = max(stamps, default=0)
        if newest != self._stamp:
            if self._stamp:
                self._session.sampled_at = now
            self._stamp, self._stamped_at = newest, now
        if board and newest and not any(query.series in values for query in board):
            raise GpuLost(f"GPU {self.gpu.index}: DCGM has no value of it", "lost")
        since = now - max(self._session.sampled_at, self._subscribed_at)
        if board and since > max(STUCK_INTERVALS * self._interval, RECONNECT_SECONDS):
            where = self._session.connection.where
            message = f"DCGM: {where} has sampled no GPU for {since:.0f} s"
            raise SourceLost(message, "stalled", fix=hung_fix(where))
        if board and (not newest or now - self._stamped_at > max(STUCK_INTERVALS * self._interval, STUCK_SECONDS)):
            raise GpuNotSampled(f"GPU {self.gpu.index}: the host engine has no new sample of it")

    def _links(self) -> dict[Series, float]:
        """Return how many NVLinks the GPU has, how many are up, and which."""
        there = {n: state == LINK_UP for n, state in enumerate(self._layout.links) if state != LINK_NONE}
        values: list[tuple[Metric, Labels, float]] = [(m.LINK_UP, (("nvlink", str(n)),), up) for n, up in there.items()]
        if there:
            values += [(m.NVLINK_COUNT, (), len(there)), (m.NVLINK_UP, (), sum(there.values()))]
        return {self._series_of(metric, of): float(value) for metric, of, value in values if metric in self._metrics}

    def _follow_layout(self, now: float) -> set[Series]:
        """Watch other fields if MIG instances or the demand have changed; return the series that ended."""
        if now - self._layout_at < LIST_SECONDS:
            return set()
        self._layout_at = now
        before = {*self._plan.series, *self._constants, *self._links()}
        if self._context.inspect(self._session, lambda: self._is_watch_due(now)):
            self._context.watch(self._session, self, self._prepare_again)
        return before - self._plan.series - self._constants.keys() - self._links().keys()

    def _is_watch_due(self, now: float) -> bool:
        """Whether the layout has changed, or profiling is to be retried. Only on the source's thread."""
        self._check_identity()
        mig = self._session.table.answers.get((self._board, MIG_MODE))
        if mig is not None and mig.value is not None:
            self._mig = mig.value == 1
        self._new_layout = self._current_layout()
        if self._new_layout.shape != self._layout.shape:
            return True
        self._layout = self._new_layout
        asked = self._context.demand, self._context.hidden
        return asked != (self._demand, self._hidden) or not self._settled or self._profiling.is_due(now)

    def _check_identity(self) -> None:
        """Raise GpuLost if two samples in a row have another UUID: DCGM's number may belong to another GPU by now."""
        answer = self._session.table.answers.get((self._board, UUID))
        if answer is None or not isinstance(answer.value, str) or answer.value == self.gpu.uuid:
            self._other_since = None
        elif self._other_since is None:
            self._other_since = answer.stamp
        elif self._other_since != answer.stamp:
            raise GpuLost(f"GPU {self.gpu.index}: DCGM has another GPU at this number now", "gone")

    def _prepare_again(self) -> None:
        """Plan to watch what there is now. Only on the source's thread."""
        before, changed = self._profiling, self._new_layout.shape != self._layout.shape
        self._layout, self._settled = self._new_layout, True
        self._read_once = self._read_once and not changed
        try:
            self._prepare()
        except DcgmError as error:
            raise GpuLost(f"GPU {self.gpu.index}: DCGM: {error}", down_reason(error.code)) from error
        self._answered = {series for series in self._answered if series.metric not in self._plan.unsupported}
        self._profiling.resume(before)

    def _say_if_stopped(self) -> None:
        """Log when the counters stop, and when they count again."""
        before, self._stopped = self._stopped, self._profiling.pause == STOPPED
        if self._stopped and not before:
            fix = stopped_fix(self._session.connection.where)
            stopped = "GPU %d: DCGM's profiling counters have stopped, so they have no values: %s"
            log.warning(stopped, self.gpu.index, fix)
        elif before and not self._stopped:
            log.info("GPU %d: DCGM's profiling counters count again", self.gpu.index)

    def _read_pause(self, values: dict[Series, float]) -> set[Series]:
        """Fill in the series that says why the counters have no values; return the series that ended."""
        pause = self._profiling.pause
        before = self._paused
        if before is not None and dict(before.labels)["reason"] != pause:
            self._paused = None
        if pause:
            self._paused = self._series_of(m.PROFILING_PAUSED, (("reason", pause),))
            values[self._paused] = 1.0
        return set() if before is None or before is self._paused else {before}

    def _unsupported(self, answers: Mapping[tuple[Entity, int], FieldAnswer], now: float) -> dict[Metric, str]:
        """Return the metrics that neither the GPU nor any part of it has answered yet, with the reason."""
        reasons = {**self._plan.unsupported, **self._refused, **self._profiling.unsupported(answers, now)}
        reasons.update(self._health_and_peers.unsupported)
        for query in self._plan.plain:
            if query.series not in self._answered and query.series.metric not in reasons:
                answer = answers.get(query.key)
                reasons[query.series.metric] = answer.reason if answer and answer.reason else "no_value"
        if not any(self._layout.links):
            reasons.update((metric, "not_supported") for metric in OF_LINKS if metric in self._metrics)
        answered = {series.metric for series in self._answered}
        return {metric: reason for metric, reason in reasons.items() if metric not in answered}

    def close(self) -> None:
        self._context.remove_listener(self._number, self._xids)
        self._context.clean_up(self._session, self._give_back)

    def _give_back(self) -> None:
        """End all watches. Only on the source's thread."""
        self._session.unsubscribe(self)
        if self.xids_since is not None:
            self._session.xids.unwatch(self._number)
        self._end([*self._watches, *self._profiling_watches, *self._replaced, *self._xid_watches])
        self._watches, self._profiling_watches, self._replaced, self._xid_watches = [], [], [], []


def _value(query: FieldQuery, answer: FieldAnswer | None) -> float | None:
    return query.value(answer.value) if answer is not None and isinstance(answer.value, int | float) else None
