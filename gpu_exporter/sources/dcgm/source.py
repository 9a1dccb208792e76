"""DCGM -> readings: GPUs through NVIDIA's host engine, in another process or embedded in this one.

One thread makes every call into its library (`thread`), each with a timeout: a host engine that hangs holds a call for
60 s. All devices share what is read, by one call for all GPUs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gpu_exporter.io.user_text import Hostengine
from gpu_exporter.model.errors import GpuLost, SourceLost
from gpu_exporter.model.finding import Finding, FindingLevel
from gpu_exporter.model.gpu import Sample, XidEvent
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.model.pci import PciGpu
from gpu_exporter.model.source import Source
from gpu_exporter.model.source_kind import DCGM
from gpu_exporter.sources.dcgm import switches_and_cpus
from gpu_exporter.sources.dcgm.bindings import Bindings
from gpu_exporter.sources.dcgm.connection import CallThread
from gpu_exporter.sources.dcgm.demand import SAMPLED_SECONDS, Demand, EngineLoad, SampleAge, interval_of, is_late
from gpu_exporter.sources.dcgm.device import DcgmDevice
from gpu_exporter.sources.dcgm.errors import SEE_LOG, DcgmError
from gpu_exporter.sources.dcgm.inventory import LIST_SECONDS
from gpu_exporter.sources.dcgm.loading import load
from gpu_exporter.sources.dcgm.session import FieldTable, Session
from gpu_exporter.sources.dcgm.switches_and_cpus import ChosenDevices, SwitchesAndCpus
from gpu_exporter.sources.dcgm.values import EntityGroup
from gpu_exporter.sources.nvml.driver import gpus_on_bus, reload_needed

log = logging.getLogger(__name__)

T = TypeVar("T")
ALL = ChosenDevices()
# Seconds that connecting, or starting an embedded host engine, may take, and that attaching a GPU may take: then the
# host engine samples all new fields.
CONNECT_SECONDS, ATTACH_SECONDS = 5.0, 5.0
# Seconds that any other call may take, or an interval if that is longer.
READ_SECONDS = 1.0
# Seconds that `close` waits for a remote host engine; one in this process takes 1.5 s to stop.
CLOSE_SECONDS, STOP_SECONDS = 1.0, 5.0
# Seconds for which devices share an answer of a slow pace: until the host engine samples again.
SHARED_SECONDS = {**{pace: pace.value for pace in Pace}, **SAMPLED_SECONDS}


class DcgmSource(Source):
    """The GPUs of a host engine. A GPU's index is its position in DCGM's list, as nvidia-smi counts."""

    name, description, live = DCGM
    through_hostengine = True
    # A profiling value takes a whole interval of the host engine, which may begin at any time.
    reads_until_profiled = 4

    def __init__(
        self,
        hostengine: Hostengine,
        folder: Path | None = None,
        *,
        sysfs: Path = Path("/sys"),
        procfs: Path = Path("/proc"),
        instances: Sequence[int | str] = (),
        chosen: ChosenDevices = ALL,
    ) -> None:
        """`instances` are the MIG instances to read, by DCGM's numbers or their devices' UUIDs; all, if it is empty."""
        self.interval = 1.0
        self.instances = instances
        self.hidden: frozenset[Metric] = frozenset()
        self._chosen = chosen
        self._load, self._age = EngineLoad(), SampleAge()
        self._prepared: list[tuple[Session, DcgmDevice]] = []
        self._hostengine, self._folder = hostengine, folder
        self._sysfs, self._procfs = sysfs, procfs
        self._caller = CallThread(str(hostengine))
        self._reading = threading.Lock()
        self._bindings: Bindings | None = None
        self._session: Session | None = None
        self._unclosed: list[Session] = []
        self._supported: frozenset[int] = frozenset()
        self._listed: int | None = None
        self._stamp: int | None = None
        self._listeners: dict[int, list[deque[XidEvent]]] = {}
        self._pci: dict[int, str] = {}
        self._switches_and_cpus: SwitchesAndCpus | None = None
        self._warned = False

    def sample_every(self, seconds: float) -> None:
        self.interval = seconds

    def read_rarely(self, metrics: frozenset[Metric]) -> None:
        self.hidden = metrics

    @property
    def demand(self) -> Demand:
        """How much is asked of the host engine now."""
        return self._load.demand

    @property
    def timeout(self) -> float:
        """Seconds after which a call counts as stuck."""
        return max(READ_SECONDS, self.interval)

    def open(self) -> None:
        """Reconnect, without anything of an earlier connection. Raises SourceLost."""
        self._retire()

        def connect() -> Session:
            self._close_retired()
            session = self._connected()
            try:
                self._caller.heartbeat()
            except SourceLost:  # nothing waits for it any more
                session.close()
                raise
            return session

        self._bindings = self._bindings or load(self._folder)
        self._session = self._caller.call(connect, CONNECT_SECONDS)
        self._age, self._load = SampleAge(), replace(self._load, since=time.monotonic())

    def _retire(self) -> None:
        """Stop using the session. It stays open until a call can be made: a host engine has room for few groups."""
        session, self._session = self._session, None
        if session is not None:
            self._unclosed.append(session)

    def _close_retired(self) -> None:
        """Only on the thread."""
        while self._unclosed:
            self._unclosed.pop().close()
            self._caller.heartbeat()

    def _connected(self) -> Session:
        assert self._bindings is not None
        try:
            return Session(self._bindings, self._hostengine, CONNECT_SECONDS * 0.8, self._caller.heartbeat)
        except DcgmError as error:
            raise SourceLost(f"DCGM: {self._hostengine}: {error}", fix=SEE_LOG) from error

    def _open_session(self) -> Session:
        session = self._session
        if session is None:
            raise SourceLost(f"DCGM: {self._hostengine}: not connected", "no_connection")
        return session

    def _call(self, session: Session, job: Callable[[], T], timeout: float) -> T:
        """Run a job on the thread, if the session is still the current one. Raises SourceLost."""

        def checked() -> T:
            if session is not self._session:
                raise SourceLost(f"DCGM: {self._hostengine}: reconnected meanwhile", "no_connection")
            return job()

        return self._caller.call(checked, timeout)

    def count(self) -> int:
        session = self._open_session()

        def count() -> int:
            self._supported = frozenset(session.inventory.gpus(supported=True))
            self._listed = len(session.inventory.gpus())
            return self._listed

        return self._call(session, count, self.timeout)

    def bus(self) -> Sequence[PciGpu]:
        """Return the GPUs on the PCI bus, if the host engine is on this machine."""
        return gpus_on_bus(self._sysfs) if self._hostengine.local else ()

    def reload_needed(self) -> bool | None:
        return reload_needed(self._sysfs, self._procfs) if self._hostengine.embedded else None

    def attach(self, index: int, metrics: Sequence[Metric]) -> DcgmDevice:
        session = self._open_session()

        def prepare() -> DcgmDevice:
            number = self._number(session, index)
            device = DcgmDevice(self, session, index, number, metrics)
            self._pci[number] = device.gpu.pci_bus_id
            self._prepared.append((session, device))
            self._warn(session)
            self._watch_switches_and_cpus(session, metrics)
            return device

        device = self._call(session, prepare, ATTACH_SECONDS)
        try:
            self._begin(session, device)
        except (GpuLost, SourceLost):
            device.close()
            raise
        return device

    def _begin(self, session: Session, device: DcgmDevice) -> None:
        """Make the watches of this device and of all others that have been prepared by now. Raises GpuLost, SourceLost.

        Devices are attached by several threads at the same time, so the others are prepared before this is called.
        """

        def begin() -> None:
            if (session, device) in self._prepared:
                self._watch_prepared(session)
            device.begin()

        self._call(session, begin, ATTACH_SECONDS)

    def _watch_prepared(self, session: Session) -> None:
        """Make all watches of this connection that devices have prepared. Only on the thread."""
        self._prepared = [prepared for prepared in self._prepared if prepared[0] is session]
        while watches := [watch for _, device in self._prepared for watch in device.take_requests()]:
            results = session.groups.watch_all([watch.request for watch in watches])
            for watch, result in zip(watches, results, strict=True):
                watch.take(watch.request, result)
        self._prepared.clear()

    def _number(self, session: Session, index: int) -> int:
        numbers = session.inventory.gpus()
        if index >= len(numbers):
            raise GpuLost(f"GPU {index}: the host engine no longer lists a GPU at this index", "gone")
        self._supported = frozenset(session.inventory.gpus(supported=True))
        if numbers[index] not in self._supported:
            raise GpuLost(f"GPU {index}: DCGM lists it, but cannot read it now", "gone")
        return numbers[index]

    def identities(self) -> dict[int, tuple[str, str]]:
        session = self._open_session()

        def identities() -> dict[int, tuple[str, str]]:
            supported = session.inventory.gpus(supported=True)
            by_index = {}
            for index, number in enumerate(session.inventory.gpus()):
                with suppress(DcgmError):
                    attributes = session.inventory.attributes(number)
                    if number in supported and attributes.uuid:
                        by_index[index] = (attributes.uuid, attributes.pci)
            return by_index

        return self._call(session, identities, ATTACH_SECONDS)

    def non_gpu_samples(self) -> Sequence[Sample]:
        """Return the samples of NVSwitches and CPUs, as they were last read with the GPUs."""
        watched = self._switches_and_cpus
        if watched is None or watched.session is not self._session:
            return ()
        table = watched.session.table
        if time.monotonic() - table.read_at.get(Pace.SLOW, -float("inf")) >= STALE_SECONDS:
            return ()
        return switches_and_cpus.samples(watched.queries, table.answers)

    def _watch_switches_and_cpus(self, session: Session, metrics: Sequence[Metric]) -> None:
        """Watch NVSwitches and CPUs for the first device that is attached; all others have the same metrics."""
        before, wanted = self._switches_and_cpus, switches_and_cpus.wanted(metrics)
        if before is not None and before.session is session and before.wanted == wanted:
            return
        try:
            self._switches_and_cpus = switches_and_cpus.watch(session, wanted, self._chosen)
        except DcgmError:
            self._switches_and_cpus = SwitchesAndCpus(session, wanted)
        if before is not None and before.session is session:
            for watch in before.watches:
                session.groups.unwatch(watch)

    def _warn(self, session: Session) -> None:
        """Warn once of chosen devices that do not exist."""
        if self._warned:
            return
        self._warned = True
        for line in switches_and_cpus.missing(session.inventory, self._chosen):
            log.warning(line)
        there = {part.entity.id for part in session.inventory.parts() if part.entity.group is EntityGroup.GPU_I}
        absent = [str(number) for number in self.instances if isinstance(number, int) and number not in there]
        if absent:
            existing = ", ".join(map(str, sorted(there))) or "none"
            log.warning("--devices: there is no GPU instance %s; those there are: %s", ", ".join(absent), existing)

    def close(self) -> None:
        self._retire()
        if self._unclosed:
            with suppress(SourceLost):
                self._caller.call(self._close_retired, STOP_SECONDS if self._hostengine.embedded else CLOSE_SECONDS)

    # --- what devices use (`DeviceContext`) -----------------------------------------------------------------------

    def read(self, session: Session, paces: frozenset[Pace], since: float) -> FieldTable:
        """Return the answers for these paces, read after `since`, once for all devices of a collection."""
        with self._reading:  # held for as long as a call may take, and no longer
            now = time.monotonic()
            shared = {**SHARED_SECONDS, Pace.FAST: self.interval / 2}
            oldest = {pace: now - shared[pace] for pace in paces}
            due = [pace for pace in paces if session.table.read_at.get(pace, -float("inf")) < max(since, oldest[pace])]
            if due or session is not self._session:
                self._call(session, lambda: self._read(session, due), self.timeout)
        return session.table

    def _read(self, session: Session, paces: Sequence[Pace]) -> None:
        began = time.monotonic()
        session.read(paces)
        if Pace.FAST not in paces:
            return
        self._judge(session, began)
        first = self._stamp is None
        samples, self._stamp = session.xids.samples_since(self._stamp or 0, session.table.answers)
        for entity, answer in () if first else samples:  # the first read has XIDs from before this source
            if isinstance(answer.value, int | float):
                event = XidEvent(time.time(), self._pci.get(entity.id, ""), int(answer.value))
                for xids in self._listeners.get(entity.id, ()):
                    xids.append(event)

    def _judge(self, session: Session, began: float) -> None:
        """Ask less of a host engine that falls behind, and more again later; devices follow within seconds."""
        now, before = time.monotonic(), self._load.demand
        interval = interval_of(self.interval, before)
        age = self._age.age(now, session.newest_stamp(), interval)
        if age is None:
            return
        self._load = self._load.after(now, late=is_late(age, now - began, interval, self.timeout))
        demand = self._load.demand
        if demand > before:
            log.warning("DCGM: the %s falls behind: it is asked for less: %s", self._hostengine, demand.text)
        elif demand < before:
            log.info("DCGM: the %s keeps up: it is asked for %s", self._hostengine, demand.text or "everything again")

    def inspect(self, session: Session, job: Callable[[], bool]) -> bool:
        """On the thread, run a job that takes no longer than a read. Raises SourceLost."""
        return self._call(session, job, self.timeout)

    def watch(self, session: Session, device: DcgmDevice, prepare: Callable[[], None]) -> None:
        """Prepare a device again, and make its watches. Raises GpuLost, SourceLost."""

        def prepared() -> None:
            prepare()
            self._prepared.append((session, device))

        self._call(session, prepared, ATTACH_SECONDS)
        self._begin(session, device)

    def clean_up(self, session: Session, job: Callable[[], None]) -> None:
        """Run a job on the thread if that is possible soon. Never raises."""
        if session is self._session:
            with suppress(SourceLost, GpuLost):
                self._call(session, job, self.timeout)

    def add_listener(self, number: int, xids: deque[XidEvent]) -> None:
        """Append XIDs of a GPU to this queue from now on. If the GPU is attached twice, both devices get them."""
        self._listeners[number] = [*self._listeners.get(number, ()), xids]

    def remove_listener(self, number: int, xids: deque[XidEvent]) -> None:
        """Stop appending XIDs to this queue."""
        self._listeners[number] = [queue for queue in self._listeners.get(number, ()) if queue is not xids]

    def is_readable(self, number: int) -> bool:
        """Return whether the host engine could read this GPU when its GPUs were last listed."""
        return number in self._supported

    # --- doctor ---------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """Return findings about the bindings, the host engine, and its entities without a GPU. Never raises."""
        if self._bindings is None:
            return []
        version = self._bindings.version() or "of unknown version"
        findings = [Finding("bindings", FindingLevel.OK, f"DCGM {version}, bindings in {self._bindings.folder}")]
        if self._listed is not None:
            what = f"{self._hostengine}: reads {len(self._supported)} of {self._listed} GPUs"
            findings.append(Finding("hostengine", FindingLevel.OK, what))
        if self.demand is not Demand.ALL:
            behind = f"{self._hostengine} falls behind, and is asked for less: {self.demand.text}"
            findings.append(Finding("hostengine", FindingLevel.WARN, behind, FEWER_FIELDS))
        queries = self._switches_and_cpus.queries if self._switches_and_cpus is not None else ()
        entities = Counter(entity.group for entity in {query.entity for query in queries})
        there = [f"{entities[group]} {name}" for group, name in NAMES.items() if entities[group]]
        if there:
            findings.append(Finding("hostengine", FindingLevel.OK, f"beside the GPUs: {', '.join(there)}"))
        return findings


FEWER_FIELDS = (
    "see its CPU usage; read fewer fields (--metrics, --collectors) or less often (--interval), in all clients"
)
NAMES = {EntityGroup.SWITCH: "NVSwitches", EntityGroup.CPU: "CPUs", EntityGroup.CPU_CORE: "CPU cores"}
STALE_SECONDS = LIST_SECONDS + 2 * Pace.SLOW.value
