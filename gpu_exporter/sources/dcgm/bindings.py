"""NVIDIA's Python bindings of DCGM: found, imported, and what their calls take and give, the same in DCGM 3.3 and 4.

The only module that imports them. They come as plain files with a DCGM installation, and are no Python package: their
directory is on the path only while they are imported. Of them the low-level ones are used alone, since the classes
on top (`pydcgm`) keep lists of their own, delete on destruction, and import a package named `common`.
Every function here may block, for as long as the host engine does: for 60 s if that is stopped.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from gpu_exporter.inputs import Hostengine
from gpu_exporter.model.errors import SourceLost
from gpu_exporter.sources.dcgm.errors import FUNCTION_NOT_FOUND, LIBRARY_NOT_FOUND, DcgmError
from gpu_exporter.sources.dcgm.health_and_peers import Incident
from gpu_exporter.sources.dcgm.places import DCGM_3, DCGM_4, MODULE, found
from gpu_exporter.sources.dcgm.values import Answer, Entity, EntityGroup, answer

WHERE = f"install the package datacenter-gpu-manager-4-core ({DCGM_4}), or datacenter-gpu-manager for DCGM 3 ({DCGM_3})"
MODULES = ("dcgmvalue", "dcgm_structs", "dcgm_fields", "dcgm_agent", "dcgm_errors")
# What the host engine holds of a field group, and of entities in one question (DCGM 3.3 has the lower limits).
MOST_FIELDS, MOST_ENTITIES = 127, 64
# Values in DCGM's order, not live ones: a live read of a profiling field ends the host engine.
NO_FLAGS = 0
AUTOMATIC, EMPTY_GROUP = 1, 1
ALL_SYSTEMS = 0xFFFFFFFF
IMPORTING = threading.Lock()


class Attributes(NamedTuple):
    """What DCGM knows of a GPU's identity; empty where it does not."""

    uuid: str
    name: str
    pci: str
    serial: str
    vbios: str
    inforom: str
    driver: str


class Part(NamedTuple):
    """A GPU instance or compute instance: its entity, whose it is, NVML's number of it, and its compute slices."""

    entity: Entity
    parent: Entity
    number: int
    slices: int


class Bindings:
    """The imported modules. `folder` is where they were found."""

    def __init__(self, agent: ModuleType, structs: ModuleType, errors: ModuleType, folder: Path) -> None:
        self.folder = folder
        self._agent: Any = agent
        self._structs: Any = structs
        self._faults = {
            code: name
            for name, code in vars(errors).items()
            if name.startswith("DCGM_FR_") and not name.startswith("DCGM_FR_EC_") and isinstance(code, int)
        }
        # Kept: the library would call into freed memory else.
        self._enumerate = agent.dcgmFieldValueEntityEnumeration_f(_collect)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """The bindings' exceptions as ours. Their text is not asked for: that is one more call to the library."""
        try:
            yield
        except self._structs.DCGMError as error:
            raise DcgmError(int(error.value)) from error

    def version(self) -> str:
        """Of the library, such as 4.6.0; empty if it does not say."""
        with suppress(DcgmError), self._errors():
            info = _text(self._agent.dcgmVersionInfo().rawBuildInfoString)
            return next((part.partition(":")[2] for part in info.split(";") if part.startswith("version:")), "")
        return ""

    def connect(self, to: Hostengine, patience: float) -> Any:
        """A handle of the host engine, or of one in this process. Raises DcgmError."""
        with self._errors():
            self._structs._dcgmInit()
            self._agent.dcgmInit()
            if to.embedded:
                return self._agent.dcgmStartEmbedded(AUTOMATIC)
            if hasattr(self._agent, "dcgmConnect_v3"):
                parameters = self._structs.c_dcgmConnectV3Params_v1()
                where = f"unix://{to.socket}" if to.socket else f"tcp://{to.address}"
                connect = self._agent.dcgmConnect_v3
            else:
                parameters = self._structs.c_dcgmConnectV2Params_v2()
                parameters.addressIsUnixSocket = int(bool(to.socket))
                where = to.socket or to.address
                connect = self._agent.dcgmConnect_v2
            parameters.persistAfterDisconnect = 0
            parameters.timeoutMs = int(patience * 1000)
            return connect(where, parameters)

    def disconnect(self, handle: Any, to: Hostengine) -> None:
        """Give a handle back. Raises DcgmError."""
        with self._errors():
            (self._agent.dcgmStopEmbedded if to.embedded else self._agent.dcgmDisconnect)(handle)

    def gpus(self, handle: Any, *, supported: bool) -> list[int]:
        """DCGM's numbers of all GPUs that it knew since its start, or of those that it can read now."""
        with self._errors():
            ask = self._agent.dcgmGetAllSupportedDevices if supported else self._agent.dcgmGetAllDevices
            return sorted(int(each) for each in ask(handle))

    def attributes(self, handle: Any, gpu: int) -> Attributes:
        """The identity of a GPU. Raises DcgmError."""
        with self._errors():
            known = self._agent.dcgmGetDeviceAttributes(handle, gpu).identifiers
        names = ("uuid", "deviceName", "pciBusId", "serial", "vbios", "inforomImageVersion", "driverVersion")
        return Attributes(*(_known(getattr(known, name)) for name in names))

    def entities(self, handle: Any, group: EntityGroup) -> list[int]:
        """The entities of a kind that the host engine can read. Raises DcgmError."""
        with self._errors():
            return sorted(int(each) for each in self._agent.dcgmGetEntityGroupEntities(handle, int(group), 1))

    def cores(self, handle: Any) -> dict[int, int]:
        """Whose CPU each core is. Raises DcgmError."""
        with self._errors():
            hierarchy = self._agent.dcgmGetCpuHierarchy(handle)
        found = {}
        for cpu in hierarchy.cpus[: hierarchy.numCpus]:
            for word, bits in enumerate(cpu.ownedCores.bitmask):
                found.update({word * 64 + bit: int(cpu.cpuId) for bit in range(64) if bits >> bit & 1})
        return found

    def parts(self, handle: Any) -> list[Part]:
        """The MIG instances of all GPUs. Raises DcgmError."""
        with self._errors():
            hierarchy = self._agent.dcgmGetGpuInstanceHierarchy(handle)
        return [
            Part(
                _entity(each.entity),
                _entity(each.parent),
                int(
                    each.info.nvmlInstanceId
                    if each.entity.entityGroupId == EntityGroup.GPU_I
                    else each.info.nvmlComputeInstanceId
                ),
                int(each.info.nvmlProfileSlices),
            )
            for each in hierarchy.entityList[: hierarchy.count]
        ]

    def links(self, handle: Any) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """The states of the NVLinks of each GPU, and of each NVSwitch: 0 none, 1 disabled, 2 down, 3 up."""
        with self._errors():
            known = self._agent.dcgmGetNvLinkLinkStatus(handle)
        gpus = {int(each.entityId): list(each.linkState) for each in known.gpus[: known.numGpus]}
        switches = {int(each.entityId): list(each.linkState) for each in known.nvSwitches[: known.numNvSwitches]}
        return gpus, switches

    def watch_health(self, handle: Any, group: Any) -> None:
        """Have the host engine sample what it needs for the health checks of a group. Raises DcgmError."""
        with self._errors():
            self._agent.dcgmHealthSet(handle, group, ALL_SYSTEMS)

    def health(self, handle: Any, group: Any) -> tuple[Incident, ...]:
        """What the health checks of a group find. Raises DcgmError."""
        with self._errors():
            found = self._agent.dcgmHealthCheck(handle, group)
        return tuple(
            Incident(int(each.system), int(each.health), _entity(each.entityInfo), self._fault(int(each.error.code)))
            for each in found.incidents[: found.incidentCount]
        )

    def _fault(self, code: int) -> str:
        return self._faults.get(code, f"DCGM_FR_UNKNOWN({code})")

    def peers(self, handle: Any) -> dict[int, dict[int, int]]:
        """By DCGM's number of a GPU and of another one, the state of the NVLink between them. Raises DcgmError."""
        if not hasattr(self._agent, "dcgmGetNvLinkP2PStatus"):  # before DCGM 4.4
            raise DcgmError(FUNCTION_NOT_FOUND)
        known = self._structs.c_dcgmNvLinkP2PStatus_v1()
        with self._errors():
            self._agent.dcgmGetNvLinkP2PStatus(handle, known)
        gpus = [(int(each.entityId), list(each.linkStatus)) for each in known.gpus[: known.numGpus]]
        return {number: {other: int(states[place]) for place, (other, _) in enumerate(gpus)} for number, states in gpus}

    def group(self, handle: Any, name: str, entities: Iterable[Entity]) -> Any:
        """A group of entities. Raises DcgmError."""
        with self._errors():
            group = self._agent.dcgmGroupCreate(handle, EMPTY_GROUP, name)
        try:
            for entity in entities:
                with self._errors():
                    self._agent.dcgmGroupAddEntity(handle, group, int(entity.group), entity.id)
        except DcgmError:
            with suppress(DcgmError):
                self.drop_group(handle, group)
            raise
        return group

    def drop_group(self, handle: Any, group: Any) -> None:
        """Give a group back. Raises DcgmError."""
        with self._errors():
            self._agent.dcgmGroupDestroy(handle, group)

    def field_group(self, handle: Any, name: str, fields: Sequence[int]) -> Any:
        """A field group. Raises DcgmError: BADPARAM if one of the fields is unknown to the host engine."""
        with self._errors():
            return self._agent.dcgmFieldGroupCreate(handle, list(fields), name)

    def drop_field_group(self, handle: Any, fields: Any) -> None:
        """Give a field group back. Raises DcgmError."""
        with self._errors():
            self._agent.dcgmFieldGroupDestroy(handle, fields)

    def watch(self, handle: Any, group: Any, fields: Any, seconds: float, keep: float, samples: int) -> None:
        """Have the host engine sample fields of a group, and wait for the first samples. Raises DcgmError."""
        with self._errors():
            self._agent.dcgmWatchFields(handle, group, fields, int(seconds * 1e6), keep, samples)

    def unwatch(self, handle: Any, group: Any, fields: Any) -> None:
        """The opposite of `watch`. Raises DcgmError."""
        with self._errors():
            self._agent.dcgmUnwatchFields(handle, group, fields)

    def latest(
        self, handle: Any, entities: Sequence[Entity], fields: Sequence[int]
    ) -> dict[tuple[Entity, int], Answer]:
        """The last sample of each field of each entity. Raises DcgmError."""
        found: dict[tuple[Entity, int], Answer] = {}
        pair = self._structs.c_dcgmGroupEntityPair_t
        for first in range(0, len(entities), MOST_ENTITIES):
            some = entities[first : first + MOST_ENTITIES]
            for start in range(0, len(fields), MOST_FIELDS):
                pairs = [pair(int(each.group), each.id) for each in some]
                with self._errors():
                    values = self._agent.dcgmEntitiesGetLatestValues(
                        handle, pairs, list(fields[start : start + MOST_FIELDS]), NO_FLAGS
                    )
                for value in values:
                    entity = Entity(EntityGroup(value.entityGroupId), value.entityId)
                    found[entity, value.fieldId] = _answer(value)
        return found

    def since(self, handle: Any, group: Any, fields: Any, stamp: int) -> tuple[list[tuple[Entity, Answer]], int]:
        """Every sample after a time stamp, and the stamp to ask from the next time. Raises DcgmError."""
        found: list[tuple[Entity, Answer]] = []
        with self._errors():
            stamp = self._agent.dcgmGetValuesSince_v2(handle, group, fields, stamp, self._enumerate, found)
        return found, int(stamp)


def _collect(group: int, entity: int, values: Any, count: int, found: int) -> int:
    """Called by the library with a pointer to a Python list."""
    into = ctypes.cast(found, ctypes.py_object).value
    into.extend((Entity(EntityGroup(group), entity), _answer(values[place])) for place in range(count))
    return 0


def _answer(value: Any) -> Answer:
    kind, union = chr(value.fieldType), value.value
    raw = union.dbl if kind == "d" else _text(union.str) if kind == "s" else union.i64
    return answer(int(value.status), kind, raw, int(value.ts))


def _entity(pair: Any) -> Entity:
    return Entity(EntityGroup(pair.entityGroupId), int(pair.entityId))


def _text(value: object) -> str:
    """Some structures of the bindings decode their text themselves, some don't."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _known(value: object) -> str:
    found = answer(0, "s", _text(value), 0).value
    return "" if found is None else str(found)


def load(folder: Path | None = None, places: Sequence[Path] = (DCGM_4, DCGM_3)) -> Bindings:
    """Find and import the bindings. Raises SourceLost, in one line that says how to get them."""
    chosen = _chosen(folder, places)
    with IMPORTING:
        agent, structs, errors = _imported(chosen)
    where = Path(str(structs.__file__)).parent
    if chosen is not None and where.resolve() != chosen.resolve():
        raise SourceLost(f"DCGM: its bindings of {where} are in use already, not those of {chosen}", "no_bindings")
    try:
        bindings = Bindings(agent, structs, errors, where)
        with bindings._errors():
            _load_library(structs, where)
    except DcgmError as error:
        raise SourceLost(_no_library(error, where), "no_library") from error
    except (OSError, AttributeError) as error:
        raise SourceLost(
            f"DCGM: the library of the bindings in {where} does not load: {error}", "no_library"
        ) from error
    return bindings


def _load_library(structs: Any, where: Path) -> None:
    """Where the bindings look for it, and then beside them: they know no other place than that of the packages."""
    try:
        structs._dcgmInit()
    except structs.DCGMError as error:
        near = [folder for folder in (where, where.parent / "lib") if any(folder.glob("libdcgm.so*"))]
        if int(error.value) != LIBRARY_NOT_FOUND or not near:
            raise
        structs._dcgmInit(str(near[0]))


def _chosen(folder: Path | None, places: Sequence[Path]) -> Path | None:
    """Where the bindings are; None if they are on the path, if anywhere."""
    if folder is None:
        return next(filter(found, places), None)
    if not found(folder):
        what = f"has no {MODULE}.py" if folder.is_dir() else "is no directory"
        raise SourceLost(f"DCGM: --dcgm-bindings {folder} {what}: {WHERE}", "no_bindings")
    return folder


def _imported(folder: Path | None) -> tuple[ModuleType, ModuleType, ModuleType]:
    known = folder is None or str(folder) in sys.path
    if not known:
        sys.path.insert(0, str(folder))
    try:
        import dcgm_agent
        import dcgm_errors
        import dcgm_structs
    except ModuleNotFoundError as error:
        if error.name not in MODULES:
            raise SourceLost(f"DCGM: its Python bindings can't be imported: {error}", "no_bindings") from error
        message = f"DCGM: its Python bindings are not installed: {WHERE}, or name their directory with --dcgm-bindings"
        raise SourceLost(message, "no_bindings") from error
    except (Exception, SystemExit) as error:  # a file of them that is broken may raise anything
        what = " ".join(str(error).split()) or type(error).__name__
        raise SourceLost(f"DCGM: its Python bindings can't be imported: {what}", "no_bindings") from error
    finally:
        if not known:
            with suppress(ValueError):
                sys.path.remove(str(folder))
    return dcgm_agent, dcgm_structs, dcgm_errors


def _no_library(error: DcgmError, where: Path) -> str:
    if error.code == LIBRARY_NOT_FOUND:
        return (
            f"DCGM: the bindings in {where} find no libdcgm.so of their version: install the package that they came"
            " with, or name the library's directory in LD_LIBRARY_PATH"
        )
    return f"DCGM: the library of the bindings in {where} does not load: {error}"
