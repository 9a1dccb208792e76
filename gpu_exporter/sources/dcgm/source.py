"""DCGM -> readings: GPUs through NVIDIA's host engine, another process or one within this.

Every call into its library is made by one thread (`caller`), with a deadline of ours: a host engine that hangs holds
a call for 60 s. All devices share what is read, one call for all GPUs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from gpu_exporter.inputs import Hostengine
from gpu_exporter.model.errors import GpuLost, SourceLost
from gpu_exporter.model.finding import Finding, Level
from gpu_exporter.model.gpu import Gpu, Owner, Sample, XidEvent
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.model.source_kind import DCGM
from gpu_exporter.sources.dcgm import switches_and_cpus
from gpu_exporter.sources.dcgm.bindings import Bindings, load
from gpu_exporter.sources.dcgm.device import DcgmDevice
from gpu_exporter.sources.dcgm.errors import DcgmError
from gpu_exporter.sources.dcgm.session import LOOK_SECONDS, Session, Table
from gpu_exporter.sources.dcgm.switches_and_cpus import Beside, Chosen
from gpu_exporter.sources.dcgm.thread import Caller
from gpu_exporter.sources.dcgm.values import EntityGroup
from gpu_exporter.sources.nvml.driver import bound, reload_needed

log = logging.getLogger(__name__)

T = TypeVar("T")
ALL = Chosen()
# How long a connection or the start of an embedded host engine may take, and each call while a GPU is attached, for
# the host engine then samples all that is new.
CONNECT_SECONDS, ATTACH_SECONDS = 5.0, 5.0
# How long any other call may take, or an interval if that is longer.
READ_SECONDS = 1.0
# How long `close` waits for a remote host engine; one in this process takes 1.5 s to stop.
CLOSE_SECONDS, STOP_SECONDS = 1.0, 5.0
# What was read at a slow pace is good for another device that comes so much later.
SHARED_SECONDS = 5.0


class DcgmSource:
    """The GPUs of a host engine. A GPU's index is its place among those that DCGM knows, as nvidia-smi counts them."""

    name, description, live = DCGM
    # A profiling value takes a whole interval of the host engine, which begins when it likes.
    reads_until_profiled = 4

    def __init__(
        self,
        hostengine: Hostengine,
        folder: Path | None = None,
        *,
        sysfs: Path = Path("/sys"),
        procfs: Path = Path("/proc"),
        instances: Sequence[int | str] = (),
        chosen: Chosen = ALL,
    ) -> None:
        """`instances` are the MIG instances to read, by DCGM's numbers or their devices' UUIDs; all, if it is empty."""
        self.interval = 1.0
        self.instances = instances
        self._chosen = chosen
        self._hostengine, self._folder = hostengine, folder
        self._sysfs, self._procfs = sysfs, procfs
        self._caller = Caller(str(hostengine))
        self._turn = threading.Lock()
        self._bindings: Bindings | None = None
        self._session: Session | None = None
        self._supported: frozenset[int] = frozenset()
        self._listed: int | None = None
        self._stamp: int | None = None
        self._listeners: dict[int, list[deque[XidEvent]]] = {}
        self._pci: dict[int, str] = {}
        self._beside: Beside | None = None
        self._warned = False

    def sample_every(self, seconds: float) -> None:
        """How often the host engine is to sample what is read most often."""
        self.interval = seconds

    @property
    def patience(self) -> float:
        """Seconds after which a call counts as stuck."""
        return max(READ_SECONDS, self.interval)

    def open(self) -> None:
        """Connect anew: what an earlier connection had is of no use. Raises SourceLost."""
        old, self._session = self._session, None

        def connect() -> Session:
            if old is not None:
                old.close()
                self._caller.beat()
            return self._connected()

        self._bindings = self._bindings or load(self._folder)
        self._session = self._caller.call(connect, CONNECT_SECONDS)

    def _connected(self) -> Session:
        assert self._bindings is not None
        try:
            return Session(self._bindings, self._hostengine, CONNECT_SECONDS * 0.8, self._caller.beat)
        except DcgmError as error:
            raise SourceLost(f"DCGM: {self._hostengine}: {error}") from error

    def _open_session(self) -> Session:
        session = self._session
        if session is None:
            raise SourceLost(f"DCGM: {self._hostengine}: not connected", "no_connection")
        return session

    def _call(self, session: Session, job: Callable[[], T], patience: float) -> T:
        """On the thread, if the connection is still that one. Raises SourceLost."""

        def checked() -> T:
            if session is not self._session:
                raise SourceLost(f"DCGM: {self._hostengine}: connected anew", "no_connection")
            return job()

        return self._caller.call(checked, patience)

    def count(self) -> int:
        session = self._open_session()

        def look() -> int:
            self._supported = frozenset(session.gpus(supported=True))
            self._listed = len(session.gpus())
            return self._listed

        return self._call(session, look, self.patience)

    def expected(self) -> int | None:
        """GPUs that are bound to the driver, if the host engine is on this machine."""
        return bound(self._sysfs) if self._hostengine.local else None

    def reload_needed(self) -> bool | None:
        return reload_needed(self._sysfs, self._procfs) if self._hostengine.embedded else None

    def attach(self, index: int, metrics: Sequence[Metric]) -> DcgmDevice:
        session = self._open_session()

        def attach() -> DcgmDevice:
            number = self._number(session, index)
            device = DcgmDevice(self, session, index, number, metrics)
            self._pci[number] = device.gpu.pci_bus_id
            self._warn(session)
            self._look_beside(session, metrics)
            return device

        return self._call(session, attach, ATTACH_SECONDS)

    def _number(self, session: Session, index: int) -> int:
        numbers = session.gpus()
        if index >= len(numbers):
            raise GpuLost(f"GPU {index}: the host engine has no GPU of this index any more", "gone")
        self._supported = frozenset(session.gpus(supported=True))
        if numbers[index] not in self._supported:
            raise GpuLost(f"GPU {index}: DCGM knows it, and can't read it now", "gone")
        return numbers[index]

    def identities(self) -> dict[int, tuple[str, str]]:
        """UUID and PCI address of each GPU that can be read now, by index. Raises SourceLost."""
        session = self._open_session()

        def look() -> dict[int, tuple[str, str]]:
            supported = session.gpus(supported=True)
            found = {}
            for index, number in enumerate(session.gpus()):
                with suppress(DcgmError):
                    known = session.attributes(number)
                    if number in supported and known.uuid:
                        found[index] = (known.uuid, known.pci)
            return found

        return self._call(session, look, ATTACH_SECONDS)

    def owners(self, gpu: Gpu) -> Sequence[Owner]:
        """The driver knows processes, not pods."""
        return ()

    def non_gpu_samples(self) -> Sequence[Sample]:
        """NVSwitches and CPUs, as they were read with the GPUs."""
        known = self._beside
        if known is None or known.session is not self._session:
            return ()
        session, questions = known.session, known.questions
        read_at = session.table.read_at.get(Pace.SLOW, -float("inf"))
        return (
            switches_and_cpus.samples(questions, session.table.answers)
            if time.monotonic() - read_at < STALE_SECONDS
            else ()
        )

    def _look_beside(self, session: Session, metrics: Sequence[Metric]) -> None:
        """Once for what is asked for, by whichever device comes first; all are asked for the same."""
        before, wanted = self._beside, switches_and_cpus.wanted(metrics)
        if before is not None and before.session is session and before.wanted == wanted:
            return
        try:
            self._beside = switches_and_cpus.ask(session, wanted, self._chosen)
        except DcgmError:
            self._beside = Beside(session, wanted)
        if before is not None and before.session is session:
            for watch in before.watches:
                session.unwatch(watch)

    def _warn(self, session: Session) -> None:
        """Say once what was chosen and is not there."""
        if self._warned:
            return
        self._warned = True
        for line in switches_and_cpus.missing(session, self._chosen):
            log.warning(line)
        there = {part.entity.id for part in session.parts() if part.entity.group is EntityGroup.GPU_I}
        none = [str(each) for each in self.instances if isinstance(each, int) and each not in there]
        if none:
            known = ", ".join(map(str, sorted(there))) or "none"
            log.warning("--devices: there is no GPU instance %s; those there are: %s", ", ".join(none), known)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(SourceLost):
                self._caller.call(session.close, STOP_SECONDS if self._hostengine.embedded else CLOSE_SECONDS)

    # --- what the devices share -----------------------------------------------------------------------------------

    def read(self, session: Session, paces: frozenset[Pace], since: float) -> Table:
        """The answers for these paces, none of a pace older than `since`: of one reading for all devices of a tick."""
        with self._turn:  # held for as long as a call may take, and no longer
            now = time.monotonic()
            oldest = {pace: now - (self.interval / 2 if pace is Pace.FAST else SHARED_SECONDS) for pace in paces}
            due = [pace for pace in paces if session.table.read_at.get(pace, -float("inf")) < max(since, oldest[pace])]
            if due or session is not self._session:
                self._call(session, lambda: self._read(session, due), self.patience)
        return session.table

    def _read(self, session: Session, paces: Sequence[Pace]) -> None:
        session.read(paces)
        if Pace.FAST not in paces:
            return
        first = self._stamp is None
        found, self._stamp = session.xids(self._stamp or 0)
        for entity, answer in () if first else found:  # what was there before we came is no news
            if isinstance(answer.value, int | float):
                event = XidEvent(time.time(), self._pci.get(entity.id, ""), int(answer.value))
                for heard in self._listeners.get(entity.id, ()):
                    heard.append(event)

    def look(self, session: Session, job: Callable[[], bool]) -> bool:
        """Look at something on the thread, which takes no longer than a read. Raises SourceLost."""
        return self._call(session, job, self.patience)

    def ask(self, session: Session, job: Callable[[], None]) -> None:
        """Do something on the thread, which may take as long as to attach a GPU. Raises SourceLost."""
        self._call(session, job, ATTACH_SECONDS)

    def drop(self, session: Session, job: Callable[[], None]) -> None:
        """Do something on the thread if it can be done soon. Never raises."""
        if session is self._session:
            with suppress(SourceLost, GpuLost):
                self._call(session, job, self.patience)

    def listen(self, number: int, heard: deque[XidEvent]) -> None:
        """Put Xids of a GPU there from now on. A GPU may be attached twice, and each of both is told."""
        self._listeners[number] = [*self._listeners.get(number, ()), heard]

    def unlisten(self, number: int, heard: deque[XidEvent]) -> None:
        """The opposite."""
        self._listeners[number] = [each for each in self._listeners.get(number, ()) if each is not heard]

    def supported(self, number: int) -> bool:
        """Whether the host engine could read this GPU when it was asked last."""
        return number in self._supported

    # --- doctor ---------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """The bindings, the host engine, and what it has beside GPUs. Never raises."""
        if self._bindings is None:
            return []
        version = self._bindings.version() or "of unknown version"
        found = [Finding("bindings", Level.OK, f"DCGM {version}, bindings in {self._bindings.folder}")]
        if self._listed is not None:
            what = f"{self._hostengine}: reads {len(self._supported)} of {self._listed} GPUs"
            found.append(Finding("hostengine", Level.OK, what))
        questions = self._beside.questions if self._beside is not None else ()
        entities = Counter(entity.group for entity in {question.entity for question in questions})
        there = [f"{entities[group]} {name}" for group, name in NAMES.items() if entities[group]]
        if there:
            found.append(Finding("hostengine", Level.OK, f"beside the GPUs: {', '.join(there)}"))
        return found


NAMES = {EntityGroup.SWITCH: "NVSwitches", EntityGroup.CPU: "CPUs", EntityGroup.CPU_CORE: "CPU cores"}
STALE_SECONDS = 3 * SHARED_SECONDS + LOOK_SECONDS + Pace.SLOW.value
